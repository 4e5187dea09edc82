//! Waits at random: a program that keeps a model of what each end of its connections has sent and received, and of what
//! is registered in its epoll sets, has threads sleep in every kind of wait while it does what a seed says. Whatever
//! TCP would wake must wake soon, and what waits tell must be so. The program proves itself natively, with the same
//! seeds.
//!
//! `WAITS_SEEDS=FIRST,COUNT` and `WAITS_ROUNDS=ROUNDS` do as many others.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use viaduct_control::counters::Wanted;
use viaduct_testkit::pattern::Random;
use viaduct_testkit::{Counters, Instance, Launch, Mode, Outcome, Program, binaries, can_run};

const SEEDS: (u64, u64) = (1, 8);
const ROUNDS: u64 = 250;
const PATIENCE: Duration = Duration::from_secs(120);
const WAITS: [&str; 4] = ["waits", "world", "sets", "sleepers"];

/// What `tidings` does, and for how many seconds.
const TIDINGS: [(&str, &str); 2] = [("echoes", "4"), ("ends", "2")];

/// How `registrations` is run: threads of each side, and how they register.
const REGISTRATIONS: [&str; 19] = [
    "1",
    "1 edge",
    "1 again",
    "1 second",
    "1 again edge",
    "4 oneshot",
    "4 oneshot edge",
    "4 oneshot again",
    "4 oneshot again edge",
    "4 oneshot second",
    "4 oneshot nested",
    "1 outer",
    "1 edge outer",
    "4 oneshot outer",
    "4 oneshot again outer",
    "1 again polled",
    "4 oneshot polled",
    "4 oneshot forks",
    "4 oneshot again forks",
];

/// What `variable` says, in numbers separated by commas.
fn numbers(variable: &str) -> Vec<u64> {
    let text = std::env::var(variable).unwrap_or_default();
    text.split(',').filter_map(|number| number.parse().ok()).collect()
}

fn compile(instance: &Instance, sources: &[&str]) -> PathBuf {
    binaries::compile("random_waits", sources, instance.scratch(sources[0]))
}

/// What becomes of connections while they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lives {
    /// They stay where they were when they were made.
    Steady,
    /// They come onto their lanes.
    Young,
    /// And are moved between paths.
    Moved,
}

/// Moves the connections of the program and of the other process that it starts, until it ends.
fn storm(mut program: Program, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let mut counters: HashMap<u32, Counters> = HashMap::new();
    let mut switches = 0;
    let begun = Instant::now();
    while program.is_running() && begun.elapsed() < PATIENCE {
        for pid in program.family() {
            if !counters.contains_key(&pid)
                && let Ok(opened) = Counters::open(pid)
            {
                counters.insert(pid, opened);
            }
        }
        for _ in 0..20 {
            for counters in counters.values() {
                for (slot, switched) in counters.connections().unwrap_or_default() {
                    let wanted = [Wanted::Tcp, Wanted::Shm, Wanted::Shm, Wanted::Auto];
                    let wanted = wanted[usize::try_from(random.below(4)).unwrap()];
                    // It may have ended meanwhile.
                    let _ = counters.want(slot, wanted);
                    switches = switched.max(switches);
                }
            }
            std::thread::sleep(Duration::from_micros(random.below(1500)));
        }
    }
    println!("a connection has changed its path {switches} times");
    program.finish(PATIENCE)
}

/// Runs a program that is to succeed; what it has said.
fn play(launch: Launch<'_>, lives: Lives, seed: u64) -> String {
    let started = launch.spawn();
    let outcome = if lives == Lives::Moved {
        storm(started, seed)
    } else {
        started.finish(PATIENCE)
    };
    outcome.success()
}

/// Runs all seeds in one way.
fn check(mode: Mode<'_>, program: &Path, options: &str, lives: Lives) {
    check_with(mode, program, options, lives, "");
}

/// The same where the other process that the program starts is another user's.
fn check_strangers(mode: Mode<'_>, program: &Path, options: &str, lives: Lives) {
    check_with(mode, program, options, lives, "strangers");
}

fn check_with(mode: Mode<'_>, program: &Path, options: &str, lives: Lives, word: &str) {
    let (first, count) = match numbers("WAITS_SEEDS")[..] {
        [first, count] => (first, count),
        _ => SEEDS,
    };
    let rounds = numbers("WAITS_ROUNDS").first().copied().unwrap_or(ROUNDS);
    for seed in first..first + count {
        let mut arguments = vec![seed.to_string(), rounds.to_string()];
        arguments.extend((lives != Lives::Steady).then(|| "young".to_owned()));
        arguments.extend((lives == Lives::Moved).then(|| "moved".to_owned()));
        arguments.extend((!word.is_empty()).then(|| word.to_owned()));
        let said = play(Launch::new(mode, program, arguments).options(options), lives, seed);
        print!("{said}");
    }
}

/// [`check`] or [`register`].
type Run = fn(Mode<'_>, &Path, &str, Lives);

fn plain(sources: &[&str], run: Run) {
    if can_run(false, &["cc"]) {
        let instance = Instance::without_daemon();
        run(Mode::Native, &compile(&instance, sources), "", Lives::Steady);
    }
}

fn accelerated(sources: &[&str], run: Run, options: &str, lives: Lives) {
    if can_run(true, &["cc"]) {
        let instance = Instance::start();
        // For the other process, which may be another user's.
        std::fs::set_permissions(instance.dir(), PermissionsExt::from_mode(0o755)).unwrap();
        run(
            Mode::Accelerated(&instance),
            &compile(&instance, sources),
            options,
            lives,
        );
        // Without lanes there would have been nothing to find.
        let stats = instance.stats();
        assert!(stats.pairs > 0, "{stats:?}");
    }
}

#[test]
fn natively() {
    plain(&WAITS, check);
}

#[test]
fn on_lanes() {
    accelerated(&WAITS, check, "--offer wait", Lives::Steady);
}

#[test]
fn coming_onto_lanes() {
    accelerated(&WAITS, check, "--offer now", Lives::Young);
}

#[test]
fn coming_onto_lanes_without_polling() {
    accelerated(&WAITS, check, "--offer now --spin never", Lives::Young);
}

#[test]
fn coming_onto_lanes_between_users() {
    accelerated(&WAITS, check_strangers, "--offer now --spin never", Lives::Young);
}

#[test]
fn moved_at_random_between_users() {
    accelerated(&WAITS, check_strangers, "--offer now", Lives::Moved);
}

#[test]
fn moved_at_random() {
    accelerated(&WAITS, check, "--offer now", Lives::Moved);
}

/// Servers and clients that register around every message, for a second each.
fn register(mode: Mode<'_>, program: &Path, options: &str, lives: Lives) {
    let first = numbers("WAITS_SEEDS").first().copied().unwrap_or(SEEDS.0);
    for (seed, way) in (first..).zip(REGISTRATIONS) {
        let seed_and_seconds = [seed.to_string(), "1".to_owned()];
        let arguments = seed_and_seconds.into_iter().chain(way.split(' ').map(str::to_owned));
        let said = play(Launch::new(mode, program, arguments).options(options), lives, seed);
        print!("{way}: {said}");
    }
}

#[test]
fn registrations_natively() {
    plain(&["registrations"], register);
}

#[test]
fn registrations_of_connections_on_tcp() {
    if can_run(false, &["cc"]) {
        let instance = Instance::start();
        let program = compile(&instance, &["registrations"]);
        register(Mode::Accelerated(&instance), &program, "--path tcp", Lives::Steady);
    }
}

#[test]
fn registrations_of_connections_that_come_onto_lanes() {
    accelerated(&["registrations"], register, "--offer auto", Lives::Young);
}

#[test]
fn registrations_of_connections_offered_at_once() {
    accelerated(&["registrations"], register, "--offer now", Lives::Young);
}

#[test]
fn registrations_of_connections_moved_at_random() {
    accelerated(&["registrations"], register, "--offer now", Lives::Moved);
}

/// What waits tell of connections that begin and end.
fn tell(mode: Mode<'_>, program: &Path, options: &str, lives: Lives) {
    for (what, seconds) in TIDINGS {
        let arguments = ["1", seconds, what];
        let said = play(Launch::new(mode, program, arguments).options(options), lives, 1);
        print!("{what}: {said}");
    }
}

#[test]
fn tidings_natively() {
    plain(&["tidings"], tell);
}

#[test]
fn tidings_of_connections_that_come_onto_lanes() {
    accelerated(&["tidings"], tell, "--offer auto", Lives::Young);
}

#[test]
fn tidings_of_connections_offered_at_once() {
    accelerated(&["tidings"], tell, "--offer now", Lives::Young);
}
