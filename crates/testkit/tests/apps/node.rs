//! Node.js: its HTTP server and client, with bodies of all sizes, by one process and by a cluster, whose workers are
//! passed the connections.

use crate::{PATIENCE, Pair, Way};
use std::path::Path;
use viaduct_testkit::Launch;
use viaduct_testkit::processes::free_port;

matrix!(one_process, "node");
mod cluster {
    // Without the kernel's word the connections stay on TCP.
    matrix!(root super::workers, "node");
}

fn one_process(pair: &Pair<'_>) {
    check(pair, "server");
}

fn workers(pair: &Pair<'_>) {
    check(pair, "cluster");
}

fn check(pair: &Pair<'_>, role: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apps/programs/echo.mjs");
    let port = free_port();
    let words = |role: &str| [script.clone().into_os_string(), role.into(), port.to_string().into()];
    let _server = asking(pair.server("node", words(role))).spawn().listening(port);
    let output = pair.proved("node", || {
        asking(pair.client("node", words("client"))).run(PATIENCE).success()
    });
    assert!(output.contains("all bodies came back"), "{output}");
    let output = pair.proved_by_rows("node", "node", Way::Both, || {
        let rounds = words("client").into_iter().chain(["300".into()]);
        asking(pair.client("node", rounds)).run(PATIENCE).success()
    });
    assert!(output.contains("all bodies came back"), "{output}");
    pair.prove(&["node"]);
}

/// Its library asks for rings then, which some versions do of their own accord.
fn asking(launch: Launch<'_>) -> Launch<'_> {
    launch.variable("UV_USE_IO_URING", "1")
}
