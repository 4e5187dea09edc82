//! Java NIO: a selector server, and clients with blocking and non-blocking channels.

use crate::{PATIENCE, Pair, Way};
use std::path::Path;
use std::process::Command;
use viaduct_testkit::processes::free_port;

matrix!(check, "java", "javac");

fn check(pair: &Pair<'_>) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apps/programs/NioEcho.java");
    let classes = pair.instance.scratch("classes");
    let compiled = Command::new("javac")
        .arg("-d")
        .arg(&classes)
        .arg(source)
        .output()
        .unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );

    let port = free_port();
    let words = |role: &str| {
        let options = [
            "-Xmx128m".into(),
            "-XX:+UseSerialGC".into(),
            "-cp".into(),
            classes.clone().into_os_string(),
        ];
        let own = ["NioEcho".into(), role.into(), port.to_string().into()];
        options.into_iter().chain(own).collect::<Vec<_>>()
    };
    let _server = pair.server("java", words("server")).spawn().listening(port);
    let output = pair.proved("java", || pair.client("java", words("client")).run(PATIENCE).success());
    assert!(output.contains("all messages came back"), "{output}");
    let output = pair.proved_by_rows("java", "java", Way::Both, || {
        let bytes = words("client").into_iter().chain(["60000000".into()]);
        pair.client("java", bytes).run(PATIENCE).success()
    });
    assert!(output.contains("all messages came back"), "{output}");
    pair.prove(&["java"]);
}
