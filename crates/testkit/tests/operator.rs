//! What stands in the way of whoever runs programs under Viaduct is told, not left to be guessed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use viaduct_testkit::binaries::binary;
use viaduct_testkit::processes::wait_until;
use viaduct_testkit::status::Row;
use viaduct_testkit::{Instance, Launch, Mode, Program, Server};

const PATIENCE: Duration = Duration::from_secs(20);

/// A viaductd with so much in its `[daemon]` table.
fn limited(table: &str) -> (TempDir, Instance) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("viaduct.toml");
    std::fs::write(&file, format!("[daemon]\n{table}\n")).unwrap();
    let instance = Instance::start_with(&["--config", file.to_str().unwrap()]);
    (dir, instance)
}

/// Waits until so many connection ends of the instance show `reason`.
fn expect(instance: &Instance, reason: &str, count: usize) -> Vec<Row> {
    let told = instance.wait_for_status(PATIENCE, |rows| {
        rows.iter().filter(|row| row.reason == reason).count() == count
    });
    let mut rows = told.unwrap_or_else(|rows| panic!("{count} times {reason}: {rows:#?}"));
    rows.retain(|row| row.reason == reason);
    rows
}

fn explain(instance: &Instance, pid: u32) -> String {
    let output = Command::new(binary("viaduct"))
        .arg("explain")
        .arg(pid.to_string())
        .arg("--dir")
        .arg(instance.dir())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_program_too_many_is_told_of_the_limit_until_there_is_room() {
    let (_dir, instance) = limited("processes_per_user = 1");
    let mode = Mode::Accelerated(&instance);
    let server = Server::start(Mode::Native, "epoll");
    let first = server.client(mode, "--seconds 100").spawn();
    expect(&instance, "offered", 1);
    let second = server.client(mode, "--seconds 100").spawn();
    let rows = expect(&instance, "limit-processes", 1);
    assert_eq!(rows[0].pid, second.pid());
    assert_eq!(instance.stats().processes, 1);
    let text = explain(&instance, second.pid());
    assert!(text.contains("`processes_per_user`"), "{text}");
    drop(first);
    assert_eq!(expect(&instance, "offered", 1)[0].pid, second.pid());
}

#[test]
fn offers_that_are_too_many_are_told_of_the_limit() {
    let (_dir, instance) = limited("offers_per_user = 2");
    let server = Server::start(Mode::Native, "epoll");
    let arguments = "--connections 5 --seconds 100";
    let client = server.client(Mode::Accelerated(&instance), arguments).spawn();
    expect(&instance, "limit-offers", 3);
    expect(&instance, "offered", 2);
    let text = explain(&instance, client.pid());
    assert!(text.contains("`offers_per_user`"), "{text}");
}

/// Containers set variables themselves, so nobody has read them before the library does.
#[test]
fn a_misspelt_variable_is_told() {
    let instance = Instance::start();
    let server = Server::start(Mode::Accelerated(&instance), "epoll");
    let client = server
        .client(Mode::Native, "--seconds 100")
        .variable("LD_PRELOAD", binary("libviaduct_preload.so").to_str().unwrap())
        .variable("VIADUCT_DIR", instance.dir().to_str().unwrap())
        .variable("VIADUCT_OFFER", "now")
        .variable("VIADUCT_SPIN", "somtimes")
        .spawn();
    let rows = expect(&instance, "misspelt", 1);
    assert_eq!((rows[0].pid, rows[0].path.as_str()), (client.pid(), "tcp"));
    let text = explain(&instance, client.pid());
    assert!(
        text.contains("VIADUCT_SPIN: expected auto, never or always, found 'somtimes'"),
        "{text}"
    );
}

fn is_loaded(program: &Program) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.pid())).unwrap();
    maps.contains("libviaduct_preload.so")
}

#[test]
fn a_program_that_is_never_to_be_accelerated_has_no_library_if_started_by_viaduct_run() {
    const RULE: &str = "never,program=viaduct-testpeer";
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let server = Server::start(mode, "epoll");
    let arguments = "--connections 3 --seconds 100";
    let client = server.client(mode, arguments).variable("VIADUCT_RULES", RULE).spawn();
    // The server's ends wait for others that do not come.
    expect(&instance, "offered", 3);
    assert!(is_loaded(&server.program) && !is_loaded(&client));
    assert!(instance.status().iter().all(|row| row.pid == server.program.pid()));
    drop(client);

    // Started by another program it has the library, and leaves its connections alone.
    let words = server.client(Mode::Native, arguments).words();
    let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
    let script = format!("{} & wait", words.join(" "));
    let shell = Launch::new(mode, Path::new("/bin/sh"), ["-c", &script])
        .variable("VIADUCT_RULES", RULE)
        .spawn();
    let rows = expect(&instance, "rule-tcp", 3);
    assert!(
        rows.iter().all(|row| row.path == "tcp" && row.pid != shell.pid()),
        "{rows:#?}"
    );
}

/// `viaductd` and `viaduct`, each on its own, with a configuration that names a directory.
#[test]
fn a_viaductd_started_by_hand_serves_the_configured_directory() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("configured");
    std::fs::write(home.path().join("viaduct.toml"), format!("dir = {dir:?}\n")).unwrap();
    let command = |name: &str| {
        let path: PathBuf = binary(name);
        let mut command = Command::new(path);
        command.env("XDG_CONFIG_HOME", home.path());
        for variable in ["VIADUCT_DIR", "VIADUCT_CONFIG"] {
            command.env_remove(variable);
        }
        command
    };
    let mut viaductd = command("viaductd").spawn().unwrap();
    let found = wait_until(PATIENCE, || {
        let output = command("viaduct").args(["doctor", "--json"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains(&format!("running as process {}", viaductd.id()))
    });
    viaductd.kill().unwrap();
    viaductd.wait().unwrap();
    assert!(found);
}
