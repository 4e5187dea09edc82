//! What kernel sockets do, call by call, checked by unmodified C programs: natively, which proves the check, and under
//! Viaduct, where nothing may differ. Each check is a run of its own, so that one that hangs or crashes hides no other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use viaduct_testkit::{Instance, Launch, Mode, can_run};

/// A check ends itself long before.
const PATIENCE: Duration = Duration::from_secs(40);

fn compile(instance: &Instance, name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/calls/programs");
    let program = instance.scratch(name);
    let output = Command::new("cc")
        .args([
            "-O2",
            "-D_FORTIFY_SOURCE=2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            "-o",
        ])
        .arg(&program)
        .arg(sources.join(format!("{name}.c")))
        .arg(sources.join("check.c"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// The lines that tell of failed checks, and the names of all that ran.
fn run(mode: Mode<'_>, program: &Path, check: Option<&str>, options: &str) -> (Vec<String>, Vec<String>) {
    let outcome = Launch::new(mode, program, check).options(options).run(PATIENCE);
    let names: Vec<String> = outcome
        .output
        .lines()
        .filter_map(|line| line.strip_prefix("check ").map(str::to_owned))
        .collect();
    let mut failures: Vec<String> = outcome
        .output
        .lines()
        .filter(|line| line.starts_with("not ok"))
        .map(str::to_owned)
        .collect();
    if !outcome.status.success() && failures.is_empty() {
        failures.push(format!("{names:?}: {} {}", outcome.status, outcome.errors));
    }
    (failures, names)
}

fn check(name: &str) {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let program = compile(&instance, name);
    let (failures, names) = run(Mode::Native, &program, None, "");
    assert!(failures.is_empty(), "on kernel sockets: {failures:#?}");
    assert!(names.len() > 5);
    let mode = Mode::Accelerated(&instance);
    let mut failures = Vec::new();
    for check in &names {
        for options in ["--offer now", "--offer now --spin never"] {
            let (failed, _) = run(mode, &program, Some(check), options);
            failures.extend(failed.into_iter().map(|line| format!("{options}: {line}")));
        }
    }
    assert!(failures.is_empty(), "under Viaduct: {failures:#?}");
}

#[test]
fn calls_that_move_bytes() {
    check("data");
}

#[test]
fn ends_of_connections() {
    check("ends");
}

#[test]
fn waits() {
    check("waits");
}

#[test]
fn sockets_and_processes() {
    check("processes");
}
