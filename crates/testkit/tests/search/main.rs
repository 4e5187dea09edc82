//! Direct search: the Python bindings and the examples ([`bindings`]), what is said of the kernel's help ([`doctor`]),
//! and a C program of checks: natively, where the library does it by itself, and under Viaduct, where the ordinary
//! calls mind the holes. Each check is a run of its own, so that one that hangs or crashes hides no other.

mod bindings;
mod doctor;
mod model;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use viaduct_control::counters::Wanted;
use viaduct_control::runtime::socket_path;
use viaduct_testkit::binaries::{link_with_library, workspace};
use viaduct_testkit::pattern::Random;
use viaduct_testkit::prompt::{Watch, again_where_late};
use viaduct_testkit::{Counters, Instance, Launch, Mode, can_run};

/// A check ends itself long before.
const PATIENCE: Duration = Duration::from_secs(120);

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/search/programs")
        .join(name)
}

/// Compiles one of the programs with these further words.
fn compile_from<I>(instance: &Instance, name: &str, words: I) -> PathBuf
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    let program = instance.scratch(name.rsplit('/').next().unwrap_or(name));
    let flags = "-O2 -D_FORTIFY_SOURCE=2 -Wall -Wextra -Werror -pthread -o";
    let output = Command::new("cc")
        .args(flags.split(' '))
        .arg(&program)
        .arg(source(&format!("{name}.c")))
        .args(words.into_iter().map(Into::into))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A program of checks.
fn compile(instance: &Instance, name: &str) -> PathBuf {
    let parts = ["check.c", "../../programs/ends.c"].map(|name| source(name).into_os_string());
    let include = ["-I".into(), workspace().join("include").into_os_string()];
    let library = link_with_library(instance.dir()).map(OsString::from);
    compile_from(instance, name, parts.into_iter().chain(include).chain(library))
}

/// A program that knows nothing of Viaduct.
fn compile_alone(instance: &Instance, name: &str) -> PathBuf {
    compile_from(instance, name, [] as [OsString; 0])
}

/// Whether a failed check is one of how soon a call ends: its condition is a bound of a time and nothing else.
fn is_of_time(failure: &str) -> bool {
    let condition = failure.split(": ").nth(2).unwrap_or_default();
    TIMES.iter().any(|time| condition.starts_with(time)) && condition.contains(" < ") && !condition.contains(" && ")
}

/// What times are called in checks.
const TIMES: [&str; 4] = ["took", "deep.took", "shallow.took", "now() - began"];

/// The lines that tell of failed checks, and the names of all that ran. They run once more where a call was late and
/// the machine stood still; any other failure is final.
fn run(mode: Mode<'_>, program: &Path, arguments: &[&str], options: &str) -> (Vec<String>, Vec<String>) {
    again_where_late(
        || run_once(mode, program, arguments, options),
        |(failures, _)| !failures.is_empty() && failures.iter().all(|failure| is_of_time(failure)),
    )
}

fn run_once(mode: Mode<'_>, program: &Path, arguments: &[&str], options: &str) -> (Vec<String>, Vec<String>) {
    let outcome = Launch::new(mode, program, arguments).options(options).run(PATIENCE);
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
    let (failures, names) = run(Mode::Native, &program, &[], "");
    assert!(failures.is_empty(), "on kernel sockets: {failures:#?}");
    assert!(names.len() > 5);
    let mode = Mode::Accelerated(&instance);
    let mut failures = Vec::new();
    for check in &names {
        for options in ["--offer now", "--offer now --spin never", "--path tcp"] {
            let (failed, _) = run(mode, &program, &[check], options);
            failures.extend(failed.into_iter().map(|line| format!("{options}: {line}")));
        }
    }
    assert!(failures.is_empty(), "under Viaduct: {failures:#?}");
    // Two of the sets of options let connections have lanes, and most checks have one that does.
    let (checks, pairs) = (names.len() as u64, instance.stats().pairs);
    assert!(pairs > checks, "{pairs} connections had lanes in {checks} checks");
    // Before Linux 6.9.
    for check in &names {
        for (mode, options) in [(Mode::Native, ""), (mode, "--offer now"), (mode, "--path tcp")] {
            let (failed, _) = run(mode, &program, &[check, "old"], options);
            failures.extend(failed.into_iter().map(|line| format!("{options}: {line}")));
        }
    }
    assert!(failures.is_empty(), "without peek offsets: {failures:#?}");
}

#[test]
fn direct_search() {
    check("search");
}

/// What the manual pages of the message functions say of errors.
#[test]
fn errors_of_messages() {
    check("messages");
}

/// Inboxes that keep what their sockets do not hold.
#[test]
fn inboxes_and_full_sockets() {
    check("stores");
}

/// As libfaketime has it for the program: waits and looks at full sockets end by another clock.
#[test]
fn inboxes_where_time_stands_still() {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let program = compile(&instance, "stores");
    let still = compile_from(&instance, "../../plugins/programs/still", ["-shared", "-fPIC"]);
    for mode in [Mode::Native, Mode::Accelerated(&instance)] {
        for check in ["a_call_that_waits_makes_room", "a_wait_ends_in_time"] {
            let (program, still) = (program.display(), still.display());
            let script = format!("LD_PRELOAD=\"$LD_PRELOAD:{still}\" exec {program} {check}");
            let outcome = Launch::new(mode, "sh", ["-c", &script])
                .options("--offer now")
                .run(PATIENCE);
            assert_eq!(outcome.success(), format!("check {check}\nok {check}\n"));
        }
    }
}

/// Inboxes that threads share.
#[test]
fn inboxes_and_threads() {
    check("inboxes");
}

/// Offsets in control messages.
#[test]
fn offsets_in_messages() {
    check("requests");
}

/// IPv6, and IPv4 in its disguise.
#[test]
fn families_of_addresses() {
    check("families");
}

/// Under `viaduct run`, where no viaductd can be started.
#[test]
fn searches_without_viaductd() {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::without_daemon();
    for name in ["search", "families", "messages"] {
        let program = compile(&instance, name);
        let outcome = Launch::new(Mode::Accelerated(&instance), &program, [] as [&str; 0])
            .variable("VIADUCT_DAEMON", "/nonexistent/viaductd")
            .variable("WITHOUT_VIADUCTD", "1")
            .run(PATIENCE);
        assert!(outcome.errors.contains("runs as plain TCP"), "{}", outcome.errors);
        let lines = |start: &str| outcome.output.lines().filter(|line| line.starts_with(start)).count();
        assert!(
            outcome.status.success() && lines("ok") > 5 && lines("ok") == lines("check"),
            "{name}: {}{}",
            outcome.output,
            outcome.errors
        );
    }
    assert!(!socket_path(instance.dir()).exists());
}

/// The ordinary calls beside searches.
#[test]
fn calls_beside_searches() {
    check("calls");
}

#[test]
fn errors_of_searches() {
    check("errors");
}

/// Searches that are never ended, and receives beside them.
#[test]
fn killed_searches() {
    check("killed");
}

/// The same of ordinary ones, where nothing is searched.
#[test]
fn killed_calls() {
    check("left");
}

/// Several threads, processes and waits on one socket.
#[test]
fn searches_beside_one_another() {
    check("waits");
}

/// A lane that has carried little grows for who needs more before it consumes anything: nobody goes over to the
/// kernel's buffers.
#[test]
fn far_ahead_on_a_fresh_lane() {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let program = compile(&instance, "ahead");
    for (options, names, count) in [
        ("--offer wait", None, 11),
        ("--offer now", Some("a_peek_behind_raw_bytes"), 1),
        ("--offer now", Some("a_peek_behind_raw_bytes_of_a_small_send_buffer"), 1),
    ] {
        // On a machine that keeps a receiver from its processor for long enough, a sender may leave the lane.
        let once = || {
            most_changes(
                Launch::new(Mode::Accelerated(&instance), &program, names).options(options),
                count,
            )
        };
        let (mut left, mut late) = (Vec::new(), Vec::new());
        loop {
            let watch = Watch::start();
            let most = once();
            if most == 1 {
                break;
            }
            let tries = if watch.held_up().is_some() {
                &mut late
            } else {
                &mut left
            };
            tries.push(most);
            assert!(
                left.len() < 3 && late.len() < 6 && most != 0,
                "{options}: onto the lane, and never off it: {left:?}, where the machine stood still {late:?}"
            );
        }
    }
}

/// How often a connection of the program, which is to pass so many checks, has changed its path at most.
fn most_changes(checks: Launch<'_>, count: usize) -> u64 {
    let mut checks = checks.spawn();
    let (pid, mut most) = (checks.pid(), 0);
    while checks.is_running() {
        if let Ok(counters) = Counters::open(pid)
            && let Ok(connections) = counters.connections()
        {
            most = connections
                .into_iter()
                .map(|(_, switches)| switches)
                .fold(most, u64::max);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let outcome = checks.finish(PATIENCE);
    let passed = outcome.output.lines().filter(|line| line.starts_with("ok")).count();
    assert!(
        outcome.status.success() && passed == count,
        "{}{}",
        outcome.output,
        outcome.errors
    );
    most
}

/// Receives in random order while the connection is moved between paths all the time.
#[test]
fn direct_search_in_a_storm() {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let program = compile(&instance, "search");
    let storm = Launch::new(Mode::Accelerated(&instance), &program, ["--for", "12"])
        .options("--offer now")
        .spawn();
    let pid = storm.pid();
    let (mut random, mut asked) = (Random::new(9), 0);
    let mut storm = storm;
    let mut switches = 0;
    let mut last: HashMap<usize, u64> = HashMap::new();
    while storm.is_running() {
        if let Ok(counters) = Counters::open(pid)
            && let Ok(connections) = counters.connections()
        {
            for (slot, count) in connections {
                let before = last.insert(slot, count).unwrap_or(0);
                // Fewer than before: the slot has got another connection.
                switches += count.checked_sub(before).unwrap_or(count);
                let wanted = [Wanted::Tcp, Wanted::Shm, Wanted::Auto][usize::try_from(random.below(3)).unwrap()];
                asked += u32::from(counters.want(slot, wanted).is_ok());
            }
        }
        std::thread::sleep(Duration::from_micros(random.below(4000)));
    }
    let outcome = storm.finish(PATIENCE);
    assert!(outcome.status.success(), "{}{}", outcome.output, outcome.errors);
    assert!(
        outcome.output.lines().filter(|line| line.starts_with("ok")).count() > 3,
        "{}",
        outcome.output
    );
    assert!(
        asked > 200 && switches > 500,
        "asked {asked} times, {switches} switches"
    );
}

#[test]
fn only_bounds_of_times_are_of_time() {
    let is_late = |condition: &str| is_of_time(&format!("not ok a_check: line 9: {condition} (errno 0 Success)"));
    assert!(is_late("took[4] < 0.02") && is_late("now() - began < 0.5"));
    assert!(!is_late("deep.got == 40") && !is_late("now() - began > 0.05") && !is_late("took < 1 && got == 4"));
    assert!(!is_of_time("[\"a_check\"]: signal: 14 (SIGALRM) took < 1"));
}
