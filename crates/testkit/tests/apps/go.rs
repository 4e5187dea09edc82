//! A static Go program, which stays plain and says why; its partner is Python, accelerated or not.

use crate::{PATIENCE, Pair};
use std::path::{Path, PathBuf};
use std::process::Command;
use viaduct_testkit::processes::free_port;
use viaduct_testkit::{Instance, Mode};

matrix!(check, "go", "python3");

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/apps/programs")
        .join(name)
}

/// Compiles the peer without the C library.
fn build(instance: &Instance) -> PathBuf {
    let program = instance.scratch("goecho");
    let output = Command::new(viaduct_testkit::binaries::find("go").unwrap())
        .args(["build", "-o"])
        .arg(&program)
        .arg(source("echo.go"))
        .env("CGO_ENABLED", "0")
        .env("GO111MODULE", "off")
        .env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Whether `viaduct run`, where it was used, has told why the program is plain.
fn told(mode: Mode<'_>, errors: &str) -> bool {
    errors.contains("goecho runs as plain TCP: ") == matches!(mode, Mode::Accelerated(_))
}

fn check(pair: &Pair<'_>) {
    let program = build(pair.instance);
    let program = program.to_str().unwrap();
    let script = source("echo.py").display().to_string();

    let port = free_port();
    let number = port.to_string();
    let server = pair.server(program, ["server", &number]).spawn().listening(port);
    assert!(told(pair.server, &server.errors()), "{}", server.errors());
    for how in ["blocking", "selectors", "asyncio"] {
        let outcome = pair.client("python3", [&script, "client", how, &number]).run(PATIENCE);
        assert!(outcome.success().contains("all messages came back"), "{how}");
    }

    for how in ["blocking", "selectors", "asyncio"] {
        let port = free_port();
        let number = port.to_string();
        let words = [&script, "server", how, &number];
        let _server = pair.server("python3", words).spawn().listening(port);
        let outcome = pair.client(program, ["client", &number]).run(PATIENCE);
        assert!(told(pair.client, &outcome.errors), "{}", outcome.errors);
        assert!(outcome.success().contains("all messages came back"), "{how}");
    }
    pair.prove_plain("Go makes system calls without the C library");
}
