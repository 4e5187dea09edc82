//! The tests that published crates bring along. mio and socket2 publish no more than their unit tests and the examples
//! of their documentation; polling and async-io publish their integration tests as well. Cargo fetches the crates, each
//! of which names the versions of all that its tests need.

use crate::{Outcomes, Run, compare};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use viaduct_testkit::{Instance, Launch, Mode};

const PATIENCE: Duration = Duration::from_secs(600);

const MANIFEST: &str = r#"
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"

[workspace]

[lib]
path = "lib.rs"

[dependencies]
async-io = "=2.5.0"
mio = "=1.2.4"
polling = "=3.10.0"
socket2 = "=0.6.0"
"#;

/// Of tests of async-io that wake a future after a second, and have no sockets.
const READS_ITS_CLOCK_LATE: &str = "it reads its clock when the thread that sleeps for a second has begun, and less than a second passes if that thread was quicker";

/// Differences that are known, with their reasons.
const KNOWN: &[(&str, &str)] = &[
    (
        "level_triggered",
        "it makes an epoll set without the C library, after its connection is accelerated: the byte that wakes such a wait is seen once more after the data",
    ),
    (
        "edge_triggered",
        "it makes an epoll set without the C library, after its connection is accelerated: there is no further edge while bytes of the last one are unread",
    ),
    ("inner_cannot_wake_outer", READS_ITS_CLOCK_LATE),
    ("outer_cannot_wake_inner", READS_ITS_CLOCK_LATE),
    ("first_cannot_wake_second", READS_ITS_CLOCK_LATE),
];

/// The source of a published crate. Tests that run beside one another fetch once.
fn source(name: &str) -> PathBuf {
    static FETCHING: Mutex<()> = Mutex::new(());
    let _alone = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("crates");
    let sources = place.join("vendor");
    if !sources.join(name).is_dir() {
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("Cargo.toml"), MANIFEST).unwrap();
        std::fs::write(place.join("lib.rs"), "").unwrap();
        cargo(Mode::Native, "vendor --quiet vendor", &place)
            .run(PATIENCE)
            .success();
    }
    let source = sources.join(name);
    stands_alone(&source.join("Cargo.toml"));
    source
}

/// Makes the package of `manifest` a workspace of its own: where the target folder is within this project, cargo would
/// look for it among this project's members.
fn stands_alone(manifest: &Path) {
    let text = std::fs::read_to_string(manifest).unwrap();
    if !text.lines().any(|line| line == "[workspace]") {
        std::fs::write(manifest, text + "\n[workspace]\n").unwrap();
    }
}

fn cargo<'a>(mode: Mode<'a>, arguments: &str, source: &Path) -> Launch<'a> {
    Launch::new(mode, env!("CARGO"), arguments.split_whitespace())
        .options("--offer wait")
        .directory(source)
        .variable(
            "CARGO_TARGET_DIR",
            concat!(env!("CARGO_TARGET_TMPDIR"), "/crates/target"),
        )
}

/// The lines `test NAME ... OUTCOME` of test programs.
fn outcomes(text: &str) -> Outcomes {
    let lines = text.lines().filter_map(|line| {
        let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let outcome = if outcome == "ok" { "passed" } else { outcome };
        Some((name.to_owned(), (outcome.to_owned(), String::new())))
    });
    lines.collect()
}

/// Runs what `arguments` of cargo select.
fn same(name: &str, arguments: &str) {
    let source = source(name);
    let run = |mode, more: &str| {
        let all = format!("test --locked --quiet {arguments} {more}");
        cargo(mode, &all, &source).run(PATIENCE)
    };
    if !arguments.contains("--doc") {
        run(Mode::Native, "--no-run").success();
    }
    let tests = "--no-fail-fast -- --test-threads=1 --format=pretty";
    let natively = || outcomes(&run(Mode::Native, tests).output);
    let native = natively();
    let instance = Instance::start();
    let fast = || outcomes(&run(Mode::Accelerated(&instance), tests).output);
    compare(name, &native, &Run::of(fast), KNOWN, natively, |_| fast());
    println!("{name}: {} pairs", instance.stats().pairs);
}

#[test]
fn polling() {
    same("polling", "--tests");
}

#[test]
fn async_io() {
    same("async-io", "--tests");
}

#[test]
fn mio() {
    same("mio", "--features os-poll,os-ext,net --lib");
    same("mio", "--features os-poll,os-ext,net --doc");
}

#[test]
fn socket2() {
    same("socket2", "--all-features --lib");
    same("socket2", "--all-features --doc");
}
