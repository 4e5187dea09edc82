//! Python: blocking sockets with threads, `selectors`, asyncio; each server with each client.

use crate::{PATIENCE, Pair, Way};
use std::path::Path;
use viaduct_testkit::processes::free_port;

matrix!(check, "python3");

fn check(pair: &Pair<'_>) {
    let ways = ["blocking", "selectors", "asyncio"];
    pair.echo_each_way("python3", "echo.py", &ways);
    for way in ways {
        let port = free_port();
        let words = |role| {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apps/programs/echo.py");
            [script.to_string_lossy().as_ref(), role, way, &port.to_string(), "600"].map(str::to_owned)
        };
        let _server = pair.server("python3", words("server")).spawn().listening(port);
        let output = pair.proved_by_rows("python3", "python3", Way::Both, || {
            pair.client("python3", words("client")).run(PATIENCE).success()
        });
        assert!(output.contains("all messages came back"), "{way}: {output}");
    }
}
