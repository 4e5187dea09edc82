//! Calls at random: a program makes calls drawn from a seed at both ends of one connection, and prints what came of
//! each. What it prints under Viaduct is compared, line by line, with what it prints natively.
//!
//! `CALLS_SEEDS=FIRST,COUNT` and `CALLS_LENGTH=CALLS` do as many others.

mod compare;

use compare::{Transcript, differences};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use viaduct_testkit::processes::wait_until;
use viaduct_testkit::status::Totals;
use viaduct_testkit::{Instance, Launch, Mode, binaries, can_run};

const SEEDS: (u64, u64) = (1, 500);
/// Others that have shown faults, those of two processes below.
const SHOWN: [u64; 18] = [
    814,
    940,
    1021,
    1219,
    1262,
    1403,
    1461,
    1967,
    2998,
    3277,
    3455,
    3604,
    500_000_119,
    500_000_141,
    500_000_186,
    500_000_324,
    500_000_570,
    500_001_050,
];
/// From which on seeds are played by two processes, and how many of those are.
const FAMILIES: (u64, u64) = (500_000_000, 100);
/// Calls of a seed.
const LENGTH: u64 = 60;
const PATIENCE: Duration = Duration::from_secs(120);
const SOURCES: [&str; 4] = ["calls", "transfers", "looks", "lives"];

/// What `variable` says, in numbers separated by commas.
fn numbers(variable: &str) -> Vec<u64> {
    let text = std::env::var(variable).unwrap_or_default();
    text.split(',').filter_map(|number| number.parse().ok()).collect()
}

/// From which on how many, and which others.
fn seeds() -> (u64, u64, Vec<u64>) {
    match numbers("CALLS_SEEDS")[..] {
        [first, count] => (first, count, Vec::new()),
        _ => {
            let families = FAMILIES.0..FAMILIES.0 + FAMILIES.1;
            (SEEDS.0, SEEDS.1, SHOWN.into_iter().chain(families).collect())
        }
    }
}

fn compile(instance: &Instance) -> PathBuf {
    binaries::compile("random_calls", &SOURCES, instance.scratch("calls"))
}

/// What the program printed, and what carried it.
struct Run {
    transcript: Transcript,
    totals: Totals,
}

fn play(mode: Mode<'_>, program: &Path, options: &str) -> Run {
    let (first, count, others) = seeds();
    let length = numbers("CALLS_LENGTH").first().copied().unwrap_or(LENGTH);
    let arguments = [&[first, count, length], &others[..]].concat();
    let arguments: Vec<String> = arguments.iter().map(u64::to_string).collect();
    let mut program = Launch::new(mode, program, arguments).options(options).spawn();
    let played = wait_until(PATIENCE, || {
        compare::is_whole(&program.output()) || !program.is_running()
    });
    let totals = match mode {
        Mode::Accelerated(instance) if played => instance.totals_of(program.pid()),
        _ => Totals::default(),
    };
    program.signal(Signal::SIGTERM);
    let output = program.finish(Duration::from_secs(10)).success();
    Run {
        transcript: Transcript::read(&output),
        totals,
    }
}

/// That the connections of the run were on lanes, and most of their bytes.
fn assert_on_lanes(run: &Run) {
    let (_, count, others) = seeds();
    let count = count + others.len() as u64;
    let (totals, sent) = (&run.totals, run.transcript.sent());
    println!("{sent} bytes sent, {totals:?}");
    // Forked children that have used an end count it once more, on a lane or not.
    assert!(totals.ended_fast >= 2 * count);
    assert!(totals.fast_bytes_sent > sent / 2 && totals.fast_bytes_received > sent / 4);
}

#[test]
fn calls_do_the_same_on_lanes() {
    if !can_run(true, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let program = compile(&instance);
    let native = play(Mode::Native, &program, "").transcript;
    let mut reports = differences(
        "natively once more",
        &native,
        &play(Mode::Native, &program, "").transcript,
    );
    for options in ["--offer wait", "--offer wait --spin never"] {
        let run = play(Mode::Accelerated(&instance), &program, options);
        reports.extend(differences(options, &native, &run.transcript));
        assert_on_lanes(&run);
    }
    for report in &reports {
        println!("{report}");
    }
    assert!(reports.is_empty(), "{} differences", reports.len());
}
