//! Programs of the musl C library: each way they come to run under Viaduct they stay plain and work, and their loader
//! has nothing to complain about.

use crate::{PATIENCE, Pair};
use std::path::{Path, PathBuf};
use std::process::Command;
use viaduct_testkit::processes::free_port;
use viaduct_testkit::{Mode, Outcome};

matrix!(root check, "musl-gcc", "cc", "chroot");

fn compile(compiler: &str, program: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apps/programs/echo.c");
    let output = Command::new(compiler)
        .args(["-O2", "-Wall", "-Wextra", "-o"])
        .args([program, &source])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A root directory that holds nothing but the program and its C library.
fn container(pair: &Pair<'_>, program: &Path) -> PathBuf {
    let root = pair.instance.scratch("root");
    std::fs::create_dir_all(root.join("lib")).unwrap();
    std::fs::copy("/lib/ld-musl-x86_64.so.1", root.join("lib/ld-musl-x86_64.so.1")).unwrap();
    std::fs::copy(program, root.join("echo")).unwrap();
    root
}

fn check(pair: &Pair<'_>) {
    let (musl, gnu) = (pair.instance.scratch("musl-echo"), pair.instance.scratch("gnu-echo"));
    compile("musl-gcc", &musl);
    compile("cc", &gnu);
    let root = container(pair, &musl).display().to_string();
    let (musl, gnu) = (musl.to_str().unwrap(), gnu.to_str().unwrap());

    let port = free_port();
    let number = port.to_string();
    let _server = pair.server(gnu, ["server", &number]).spawn().listening(port);
    let came_back = |outcome: Outcome, said: bool| {
        let why = "musl-echo runs as plain TCP: it uses the musl C library";
        let told = said && matches!(pair.client, Mode::Accelerated(_));
        assert_eq!(outcome.errors.contains(why), told, "{outcome:#?}");
        assert!(told || outcome.errors.is_empty(), "{outcome:#?}");
        assert!(outcome.success().contains("all bytes came back"));
    };
    came_back(pair.client(musl, ["client", &number]).run(PATIENCE), true);
    let script = format!("{musl} client {number}; exit $?");
    came_back(pair.client("sh", ["-c", &script]).run(PATIENCE), false);
    let inside = [&root, "/echo", "client", &number];
    came_back(pair.client("chroot", inside).run(PATIENCE), false);

    let port = free_port();
    let number = port.to_string();
    let inside = [&root, "/echo", "server", &number];
    let _server = pair.server("chroot", inside).spawn().listening(port);
    let output = pair.client(gnu, ["client", &number]).run(PATIENCE).success();
    assert!(output.contains("all bytes came back"));
    pair.prove_plain("Viaduct is built for the GNU C library");
}
