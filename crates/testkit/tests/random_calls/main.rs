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
use viaduct_testkit::prompt::Watch;
use viaduct_testkit::status::Totals;
use viaduct_testkit::{Instance, Launch, Mode, binaries, can_run};

const SEEDS: (u64, u64) = (1, 500);
/// Others that have shown faults.
const SHOWN: [u64; 12] = [814, 940, 1021, 1219, 1262, 1403, 1461, 1967, 2998, 3277, 3455, 3604];
/// Calls of a seed.
const LENGTH: u64 = 60;
/// Seeds of longer lives, each with so many calls.
const LONGER: (u64, u64, u64) = (2_000_000, 100, 150);
/// Seeds that two processes play, which share both ends.
const FAMILIES: (u64, u64) = (500_000_000, 100);
/// Others that have shown faults.
const SHOWN_BY_FAMILIES: [u64; 6] = [
    500_000_119,
    500_000_141,
    500_000_186,
    500_000_324,
    500_000_570,
    500_001_050,
];
/// Seeds of ends that another process has made, and is no more.
const PASSED: (u64, u64) = (700_000_000, 100);
const PATIENCE: Duration = Duration::from_secs(600);
const TRIES: usize = 3;
const SOURCES: [&str; 8] = [
    "calls",
    "meet",
    "transfers",
    "looks",
    "sets",
    "settings",
    "interrupted",
    "lives",
];

/// What `variable` says, in numbers separated by commas.
fn numbers(variable: &str) -> Vec<u64> {
    let text = std::env::var(variable).unwrap_or_default();
    text.split(',').filter_map(|number| number.parse().ok()).collect()
}

/// What is played.
struct Plan {
    first: u64,
    count: u64,
    /// Seeds beside those.
    others: &'static [u64],
    length: u64,
}

/// What the environment asks for, or this.
fn plan((first, count): (u64, u64), others: &'static [u64], length: u64) -> Plan {
    let length = numbers("CALLS_LENGTH").first().copied().unwrap_or(length);
    match numbers("CALLS_SEEDS")[..] {
        [first, count] => Plan {
            first,
            count,
            others: &[],
            length,
        },
        _ => Plan {
            first,
            count,
            others,
            length,
        },
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

fn play(plan: &Plan, mode: Mode<'_>, program: &Path, options: &str) -> Run {
    let arguments = [&[plan.first, plan.count, plan.length], plan.others].concat();
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
    let output = program.finish(PATIENCE).success();
    Run {
        transcript: Transcript::read(&output),
        totals,
    }
}

/// Whether the connections of the run were on lanes, and most of their bytes.
fn is_on_lanes(plan: &Plan, run: &Run) -> bool {
    let count = plan.count + plan.others.len() as u64;
    let (totals, sent) = (&run.totals, run.transcript.sent());
    println!("{sent} bytes sent, {totals:?}");
    // Forked children that have used an end count it once more, on a lane or not.
    totals.ended_fast >= 2 * count && totals.fast_bytes_sent > sent / 2 && totals.fast_bytes_received > sent / 4
}

fn check(plan: &Plan) {
    if !can_run(true, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let program = compile(&instance);
    let native = play(plan, Mode::Native, &program, "").transcript;
    let mut reports = differences(
        "natively once more",
        &native,
        &play(plan, Mode::Native, &program, "").transcript,
    );
    for options in ["--offer wait", "--offer wait --spin never"] {
        // What viaductd does not pair within fifty milliseconds begins on TCP, as it does where the machine stands
        // still.
        for again in (0..TRIES).rev() {
            let watch = Watch::start();
            let run = play(plan, Mode::Accelerated(&instance), &program, options);
            reports.extend(differences(options, &native, &run.transcript));
            if is_on_lanes(plan, &run) {
                break;
            }
            assert!(again > 0 && watch.held_up().is_some(), "{options}: not on lanes");
        }
    }
    for report in &reports {
        println!("{report}");
    }
    assert!(reports.is_empty(), "{} differences", reports.len());
}

#[test]
fn calls_do_the_same_on_lanes() {
    check(&plan(SEEDS, &SHOWN, LENGTH));
}

/// Lives long enough for much to come after an end has been shut down.
#[test]
fn many_calls_of_one_connection_do_the_same_on_lanes() {
    let (first, count, length) = LONGER;
    check(&plan((first, count), &[], length));
}

#[test]
fn calls_of_two_processes_do_the_same_on_lanes() {
    check(&plan(FAMILIES, &SHOWN_BY_FAMILIES, LENGTH));
}

#[test]
fn calls_on_ends_that_were_passed_on_do_the_same_on_lanes() {
    check(&plan(PASSED, &[], LENGTH));
}
