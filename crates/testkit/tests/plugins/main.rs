//! Plug-ins that a host loads into scopes of symbols of their own (`RTLD_DEEPBIND`), as PHP loads its extensions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use viaduct_testkit::binaries::binary;
use viaduct_testkit::processes::{free_port, wait_until};
use viaduct_testkit::{Instance, Launch, Mode, Program, can_run};

const PATIENCE: Duration = Duration::from_secs(20);

fn compile(instance: &Instance, result: &str, source: &str, options: &[&str]) -> PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plugins/programs");
    let result = instance.scratch(result);
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-xc", "-o"])
        .arg(&result)
        .arg(programs.join(source))
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    result
}

/// The plug-in that was linked with `options`.
fn plugin(instance: &Instance, options: &[&str]) -> PathBuf {
    compile(
        instance,
        "plugin.so",
        "plugin.c",
        &[&["-shared", "-fPIC"], options].concat(),
    )
}

/// What `make` makes echoes over shared memory.
fn echoes(make: impl FnOnce(&Instance) -> PathBuf) {
    echoes_in("host.c", make);
}

fn echoes_in(host: &str, make: impl FnOnce(&Instance) -> PathBuf) {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let host = compile(&instance, "host", host, &["-rdynamic"]);
    let plugin = make(&instance).to_string_lossy().into_owned();
    let port = free_port().to_string();
    let start = |arguments: &[&str]| Launch::new(Mode::Accelerated(&instance), &host, arguments).spawn();
    let mut server = start(&[&port, &plugin, "accepted"]).listening(port.parse().unwrap());
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
    echoes(|instance| plugin(instance, &["-Wl,-z,lazy"]));
}

#[test]
fn whose_imports_are_found_at_once_and_sealed() {
    echoes(|instance| plugin(instance, &["-Wl,-z,now", "-Wl,-z,relro"]));
}

#[test]
fn that_call_by_the_table_of_addresses() {
    echoes(|instance| plugin(instance, &["-fno-plt"]));
}

#[test]
fn whose_calls_are_in_a_library_that_they_need() {
    echoes(|instance| {
        let library = plugin(instance, &["-Wl,-soname,libneeded.so"]);
        std::fs::rename(&library, library.with_file_name("libneeded.so")).unwrap();
        let place = library.with_file_name("").to_string_lossy().into_owned();
        let (at, path) = (format!("-L{place}"), format!("-Wl,-rpath,{place}"));
        let options = ["-shared", "-Wl,--no-as-needed", &at, "-lneeded", &path];
        compile(instance, "outer.so", "/dev/null", &options)
    });
}

#[test]
fn with_a_function_of_the_same_name() {
    echoes(|instance| plugin(instance, &["-DOWN_SEND"]));
}

#[test]
fn while_nobody_allocates_under_the_lock_of_the_loader() {
    echoes_in("watched.c", |instance| plugin(instance, &[]));
}

/// What `viaduct explain` says.
fn explained(instance: &Instance, target: &str) -> String {
    let mut command = Command::new(binary("viaduct"));
    let output = command
        .args(["explain", "--dir"])
        .arg(instance.dir())
        .arg(target)
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// What `make` makes echoes over TCP, and it is told why. Loaded when `host.c` takes `when` to say.
fn echoes_plainly(make: impl FnOnce(&Instance) -> PathBuf, when: &[&str]) {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let host = compile(&instance, "host", "host.c", &[]);
    let plugin = make(&instance).to_string_lossy().into_owned();
    let port = free_port();
    let start = |arguments: &[&str]| Launch::new(Mode::Accelerated(&instance), &host, arguments).spawn();
    let mut server = start(&[&[&*port.to_string(), &*plugin], when].concat()).listening(port);
    let (pid, place) = (server.pid().to_string(), format!(":{port}"));
    let explains = || {
        for target in [&pid, &place] {
            let text = explained(&instance, target);
            let advice = text.split_once("[unseen-calls]\n").map(|(_, rest)| rest.trim_start());
            assert!(advice.is_some_and(|advice| advice.starts_with("What to do:")), "{text}");
        }
    };
    if when[0] == "first" {
        explains();
    }
    let mut client = start(&[&port.to_string(), "stays"]);
    let is_done = |client: &Program| client.output().contains("done");
    wait_until(PATIENCE, || {
        is_done(&client) || !client.is_running() || !server.is_running()
    });
    assert!(is_done(&client), "{} {}", client.errors(), server.errors());
    let rows = instance.status();
    let end_of = |program: &Program| rows.iter().find(|row| row.pid == program.pid()).unwrap();
    let end = end_of(&server);
    assert_eq!((&*end.path, &*end.reason), ("tcp", "unseen-calls"), "{rows:#?}");
    assert_eq!(end.fast_bytes_received > 0, when[0] == "later", "{rows:#?}");
    assert_eq!(end_of(&client).path, "tcp", "{rows:#?}");
    explains();
}

#[test]
fn with_relocations_in_its_code() {
    let options = ["-fno-pic", "-mcmodel=large", "-Wl,-z,notext"];
    echoes_plainly(|instance| plugin(instance, &options), &["accepted"]);
}

#[test]
fn that_comes_before_the_first_connection() {
    echoes_plainly(|instance| plugin(instance, &[]), &["first", "several"]);
}

#[test]
fn that_comes_to_several_threads() {
    echoes_plainly(|instance| plugin(instance, &[]), &["accepted", "several"]);
}

#[test]
fn that_comes_to_several_threads_and_an_accelerated_connection() {
    echoes_plainly(|instance| plugin(instance, &[]), &["later", "several"]);
}
