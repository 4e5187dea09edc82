//! Plug-ins that a host loads into scopes of symbols of their own (`RTLD_DEEPBIND`), as PHP loads its extensions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use viaduct_testkit::processes::{free_port, wait_until};
use viaduct_testkit::{Instance, Launch, Mode, can_run};

const PATIENCE: Duration = Duration::from_secs(20);

fn compile(instance: &Instance, name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/plugins/programs")
        .join(name);
    let program = instance.scratch(&name.replace('.', "-"));
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A plug-in that was linked with `options` echoes over shared memory.
fn echoes(options: &[&str]) {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let plugin = compile(&instance, "plugin.c", &[&["-shared", "-fPIC"], options].concat());
    let host = compile(&instance, "host.c", &[]);
    let plugin = plugin.to_string_lossy().into_owned();
    let port = free_port().to_string();
    let start = |arguments: &[&str]| Launch::new(Mode::Accelerated(&instance), &host, arguments).spawn();
    let mut server = start(&[&port, &plugin]).listening(port.parse().unwrap());
    start(&[&port]).finish(PATIENCE).success();
    // That the end has been closed is seen too.
    assert!(wait_until(PATIENCE, || instance.totals_of(server.pid()).ended == 1));
    let totals = instance.totals_of(server.pid());
    assert_eq!((totals.bytes_sent, totals.bytes_received), (300_300, 300_300));
    assert!(totals.fast_bytes() > 500_000, "{totals:#?}");
    server.kill();
}

#[test]
fn whose_imports_are_found_with_their_first_calls() {
    echoes(&["-Wl,-z,lazy"]);
}

#[test]
fn whose_imports_are_found_at_once_and_sealed() {
    echoes(&["-Wl,-z,now", "-Wl,-z,relro"]);
}

#[test]
fn that_calls_by_the_table_of_addresses() {
    echoes(&["-fno-plt"]);
}
