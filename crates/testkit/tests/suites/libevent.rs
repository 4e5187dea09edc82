//! libevent's regress, built from the distribution's source package, which `scripts/setup` unpacks.

use crate::{Outcomes, Run, compare};
use std::path::Path;
use std::time::Duration;
use viaduct_testkit::prompt::Watch;
use viaduct_testkit::{Instance, Launch, Mode, Program, can_run};

/// Where it is built.
const PLACE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/libevent");
const PATIENCE: Duration = Duration::from_secs(300);

/// The distribution changes files from which others are generated; those that were published do as well, and need no
/// further tools.
const BUILD: &str = "
    /usr/src/libevent/configure --quiet --disable-shared --disable-samples --disable-dependency-tracking
    make -j2 AUTOMAKE=: ACLOCAL=: AUTOCONF=: AUTOHEADER=: MAKEINFO=: test/regress
";

/// Ways to wait, by the variables that choose them.
const CHANGES: &[&str] = &["EVENT_EPOLL_USE_CHANGELIST"];
const POLL: &[&str] = &["EVENT_NOEPOLL"];
const SELECT: &[&str] = &["EVENT_NOEPOLL", "EVENT_NOPOLL"];

/// Tests that wait for their own clocks for a minute together.
const SLOW: &str = ":http/cancel_inactive_server :http/cancel_by_host_inactive_server :http/cancel_by_host_no_ns \
    :http/cancel_by_host_no_ns_inactive_server :http/cancel_by_host_ns_timeout :http/cancel_by_host_ns_timeout_inactive_server";

/// Differences that are known, with their reasons.
const KNOWN: &[(&str, &str)] = &[(
    "http/bad_request",
    "its only thread gives itself 10 ms, and waits up to 50 ms in accept with `--offer wait`; compared with `--offer now`",
)];

/// What a test says where the machine is too fast for it: `dns/getaddrinfo_cancel_stress` asks a server a thousand
/// times over UDP, and wants some questions to be unanswered after 10 ms. A fast machine answers all of them by then,
/// natively in 31 of 40 runs of one and under Viaduct in all. If that is all it says, it counts as passed.
const TOO_FAST: &str = "assert(gaic_freed != 1000): 1000 vs 1000";

/// What each test became: `GROUP/NAME: OK`, or what went wrong on lines of its own.
fn outcomes(text: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut current = String::new();
    for line in text.lines() {
        let rest = match line.split_once(": ") {
            Some((name, rest)) if name.contains('/') && !name.contains(' ') => {
                current = name.to_owned();
                rest
            }
            _ => line,
        };
        let known = [("OK", "passed"), ("SKIPPED", "skipped"), ("DISABLED", "disabled")];
        let end = known.iter().find(|(word, _)| rest.ends_with(word));
        let entry = outcomes.entry(current.clone()).or_default();
        if let Some((_, outcome)) = end {
            entry.0 = (*outcome).to_owned();
        } else if let Some(why) = rest.trim_start().strip_prefix("FAIL ") {
            let others = if entry.0 == "failed" { entry.1.as_str() } else { "" };
            *entry = ("failed".to_owned(), format!("{others}{why}\n"));
        } else if rest.ends_with("FAILED]") {
            entry.0 = "failed".to_owned();
        }
    }
    outcomes.retain(|name, _| !name.is_empty());
    for (what, why) in outcomes.values_mut() {
        if why.lines().count() == 1 && why.trim_end().ends_with(TOO_FAST) {
            (*what, *why) = ("passed".to_owned(), String::new());
        }
    }
    outcomes
}

/// Starts it in one of its ways to wait, with `tests` selected.
fn regress(mode: Mode<'_>, offer: &str, backend: &[&str], tests: &str) -> Program {
    let program = format!("{PLACE}/test/regress");
    let launch = Launch::new(mode, program, tests.split_whitespace()).options(&format!("--offer {offer}"));
    let launch = backend.iter().fold(launch, |launch, name| launch.variable(name, "yes"));
    launch.directory(Path::new(PLACE)).spawn()
}

/// Compares `tests` natively, and under Viaduct with both kinds of offer, side by side: they wait for clocks most of
/// the time.
fn same(backend: &[&str], tests: &str) {
    if !can_run(
        false,
        &[
            "make",
            "cc",
            "/usr/include/openssl/ssl.h",
            "/usr/src/libevent/configure",
        ],
    ) {
        return;
    }
    if !Path::new(PLACE).join("test/regress").is_file() {
        std::fs::create_dir_all(PLACE).unwrap();
        Launch::new(Mode::Native, "sh", ["-ec", BUILD])
            .directory(Path::new(PLACE))
            .run(PATIENCE)
            .success();
    }
    let [waiting, now] = [Instance::start(), Instance::start()];
    let watch = Watch::start();
    let runs = [
        regress(Mode::Native, "auto", backend, tests),
        regress(Mode::Accelerated(&waiting), "wait", backend, tests),
        regress(Mode::Accelerated(&now), "now", backend, tests),
    ];
    let [native, wait, at_once] = runs.map(|run| outcomes(&run.finish(PATIENCE).output));
    let held_up = watch.held_up();
    let natively = || {
        let run = regress(Mode::Native, "auto", backend, tests);
        outcomes(&run.finish(PATIENCE).output)
    };
    for (instance, offer, fast, known) in [(&waiting, "wait", wait, KNOWN), (&now, "now", at_once, &KNOWN[..0])] {
        let again = |names: &[String]| {
            let run = regress(Mode::Accelerated(instance), offer, backend, &names.join(" "));
            outcomes(&run.finish(PATIENCE).output)
        };
        let fast = Run {
            outcomes: fast,
            held_up,
        };
        compare(
            &format!("regress, --offer {offer}"),
            &native,
            &fast,
            known,
            natively,
            again,
        );
    }
    let pairs = waiting.stats().pairs;
    println!("regress: {pairs} pairs");
    assert!(pairs > 50, "only {pairs} connections were accelerated");
}

#[test]
fn epoll() {
    same(&[], SLOW);
}

#[test]
#[ignore = "six minutes: make test-suites"]
fn other_ways_to_wait() {
    for backend in [&[], CHANGES, POLL, SELECT] {
        same(backend, "");
    }
}
