//! Every socket program behaves the same: cases in C, each a script that two processes play at the two ends of a
//! connection, are run natively and in every other way, and what they saw is compared line by line with what they saw
//! natively.
//!
//! `CONFORMANCE_CASES=name,name` runs only these cases.

mod expected;
mod page;
mod programs;
mod received;
mod transcript;

use expected::Difference;
use programs::Players;
use std::collections::BTreeMap;
use transcript::Transcripts;
use viaduct_testkit::prompt::tell;
use viaduct_testkit::{Instance, can_run};

/// How the two ends of a run are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    name: &'static str,
    /// Whether the connecting end runs under Viaduct.
    near: bool,
    /// Whether the accepting end does.
    far: bool,
    /// Options of `viaduct run`.
    options: &'static str,
    /// Whether connections are moved between paths at random moments while cases run.
    storm: bool,
}

impl Way {
    const fn new(name: &'static str, near: bool, far: bool, options: &'static str, storm: bool) -> Self {
        Self {
            name,
            near,
            far,
            options,
            storm,
        }
    }

    /// Whether connections must come onto the fast path.
    fn is_fast(self) -> bool {
        self.near && self.far
    }
}

const NATIVE: Way = Way::new("native", false, false, "", false);

const WAYS: [Way; 5] = [
    Way::new("accelerated", true, true, "--offer wait", false),
    Way::new(
        "accelerated without polling",
        true,
        true,
        "--offer wait --spin never",
        false,
    ),
    Way::new("accelerated to native", true, false, "--offer wait", false),
    Way::new("native to accelerated", false, true, "--offer wait", false),
    Way::new("moved at random", true, true, "--offer wait", true),
];

/// How often a case is played again that differed while connections were moved, or that the machine held up.
const REPLAYS: usize = 3;

/// There are to be as many cases as the project promises.
const CASES: usize = 250;

/// What is wrong with a case.
#[derive(Debug)]
struct Fault {
    report: String,
    /// Whether the moment may be why: of a move, if the bytes that came are right and nothing hung, or one in which the
    /// machine stood still, if nothing but the time differs.
    passing: bool,
}

/// What is wrong with `run` where `native` is right.
fn differences(way: Way, native: &Transcripts, run: &Transcripts) -> BTreeMap<String, Fault> {
    let mut found = BTreeMap::new();
    for (case, right) in native {
        let seen = run.get(case);
        let mut report = String::new();
        if seen.is_none_or(|seen| seen.lines() != right.lines()) {
            report = format!(
                "natively\n{right}but {}\n{}",
                way.name,
                seen.cloned().unwrap_or_default()
            );
        } else if let Some(seen) = seen
            && seen.paths().any(|path| (path == "shm") != way.is_fast())
        {
            report = format!("on the wrong path\n{seen}");
        }
        if !report.is_empty() {
            let late = seen.is_some_and(|seen| seen.was_held_up() && seen.is_late(right));
            let moved =
                way.storm && !report.contains("killed by ALRM") && seen.is_none_or(|seen| seen.has_bytes_of(right));
            let passing = late || moved;
            found.insert(case.clone(), Fault { report, passing });
        }
    }
    found
}

/// Plays again what differed while connections were moved: a call may fall between two moments of a move in which the
/// kernel reports other events, or a buffer holds more, than before and after. And what was late, or on the wrong path,
/// when the machine stood still. What differs always stays in `found`, and so does what hung, and what received other
/// bytes, were it once.
fn replay(way: Way, native: &Transcripts, players: &Players<'_>, found: &mut BTreeMap<String, Fault>) {
    for _ in 0..REPLAYS {
        let again: Vec<String> = found
            .iter()
            .filter(|(_, fault)| fault.passing)
            .map(|(case, _)| case.clone())
            .collect();
        if again.is_empty() {
            return;
        }
        let run = players.play(way, &again);
        let native = native.iter().filter(|(case, _)| again.contains(case));
        let native: Transcripts = native.map(|(case, right)| (case.clone(), right.clone())).collect();
        let mut still = differences(way, &native, &run);
        for case in again {
            match still.remove(&case) {
                Some(fault) => drop(found.insert(case, fault)),
                None => {
                    let report = found.remove(&case).map(|fault| fault.report).unwrap_or_default();
                    tell(&format!("{case}: {}: differed once: {report}", way.name));
                }
            }
        }
    }
}

/// What all ways are compared with. Cases that the machine held up are played again.
fn play_natively(players: &Players<'_>) -> Transcripts {
    let mut native = players.play(NATIVE, &[]);
    for _ in 0..REPLAYS {
        let held_up = native.iter().filter(|(_, transcript)| transcript.was_held_up());
        let again: Vec<String> = held_up.map(|(case, _)| case.clone()).collect();
        if again.is_empty() {
            break;
        }
        native.extend(players.play(NATIVE, &again));
    }
    native
}

/// Compares every way of running the cases of `programs/THEME.c` with the native one.
fn check(theme: &'static str) {
    if !can_run(true, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let program = programs::compile(&instance, theme);
    let players = Players::new(&instance, &program);
    let mut failures = Vec::new();
    let native = play_natively(&players);
    for (case, transcript) in native.iter().filter(|(_, transcript)| !transcript.is_whole()) {
        failures.push(format!("{case}: natively not played to its end\n{transcript}"));
    }
    // Who plays alone has both ends in one process, which is either accelerated or not.
    let alone = theme.starts_with("alone_");
    for way in WAYS.into_iter().filter(|way| way.is_fast() || !alone) {
        let mut found = differences(way, &native, &players.play(way, &[]));
        replay(way, &native, &players, &mut found);
        for known in expected::DIFFERENCES
            .iter()
            .filter(|known| native.contains_key(known.case))
        {
            let Difference {
                case,
                ways,
                sometimes,
                reason,
            } = known;
            let listed = ways.contains(&way.name) || sometimes.contains(&way.name);
            if listed && found.remove(*case).is_some() {
                println!("{case}: {}: differs, as is known: {reason}", way.name);
            } else if ways.contains(&way.name) {
                failures.push(format!("{case}: {} no longer differs: take it off the list", way.name));
            }
        }
        failures.extend(
            found
                .into_iter()
                .map(|(case, fault)| format!("{case}: {}", fault.report)),
        );
    }
    for failure in &failures {
        println!("{failure}");
    }
    assert!(failures.is_empty(), "{} differences", failures.len());
}

macro_rules! themes {
    ($($theme:ident)*) => {
        $(
            #[test]
            fn $theme() {
                check(stringify!($theme));
            }
        )*

        #[test]
        fn there_are_as_many_cases_as_promised() {
            let cases: usize = THEMES.iter().map(|(_, source)| page::cases(source).count()).sum();
            println!("{cases} cases");
            assert!(cases >= CASES, "only {cases} cases");
        }

        /// The themes, each with its source.
        const THEMES: &[(&str, &str)] =
            &[$((stringify!($theme), include_str!(concat!("programs/", stringify!($theme), ".c")))),*];

        #[test]
        fn the_page_of_cases_tells_the_truth() {
            let faults = page::faults(THEMES);
            assert!(faults.is_empty(), "{faults:#?}");
        }
    };
}

themes! {
    breaks data flags amounts arrivals ends epolls handovers inner_sets sets fds kernels listeners lives names processes raw_rings requests rings successors setups options signals storms stretches threads waits worlds
    alone_cancels alone_data alone_ends alone_families alone_heap alone_looks alone_processes alone_sets alone_sleepers alone_successors alone_waits
}
