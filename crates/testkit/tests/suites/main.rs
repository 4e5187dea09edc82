//! Suites that others wrote, natively and under Viaduct with `--offer wait`: the same tests must pass. What fails
//! natively too is listed with its reason.
//!
//! `make test` runs the quick ones, `make test-suites` all: the others are `#[ignore]`d.

mod cpython;
mod crates;
mod libevent;

use std::collections::BTreeMap;
use std::time::Duration;
use viaduct_testkit::prompt::{Watch, tell};

/// What became of each test of a suite, and why.
type Outcomes = BTreeMap<String, (String, String)>;

/// How often what fails only natively is run again, and what fails only under Viaduct while the machine stood still.
const REPEATS: u32 = 2;

/// A machine that stands still for as long keeps tests from what they wait for.
const STANDSTILL: Duration = Duration::from_millis(500);

/// What came of a run under Viaduct.
struct Run {
    outcomes: Outcomes,
    /// For how long the machine stood still meanwhile: many tests allow what they wait for some milliseconds.
    held_up: Option<Duration>,
}

impl Run {
    /// Runs tests while the machine is watched.
    fn of(run: impl FnOnce() -> Outcomes) -> Self {
        let watch = Watch::start();
        let outcomes = run();
        let held_up = watch.held_up();
        Self { outcomes, held_up }
    }
}

/// Fails if a test that passes natively does not under Viaduct, or the other way round; tells what passes in neither.
/// `known`: tests that are left out of the comparison, with the reason. `natively` runs the suite once more: a test
/// that depends on the machine's timing may fail natively now and then, and one success shows that it can pass. Under
/// Viaduct every failure counts, unless the machine stood still: then `again` runs these tests, which pass each time.
fn compare(
    suite: &str,
    native: &Outcomes,
    fast: &Run,
    known: &[(&str, &str)],
    natively: impl Fn() -> Outcomes,
    again: impl Fn(&[String]) -> Outcomes,
) {
    let (mut native, late) = (native.clone(), fast.held_up);
    let mut fast = fast.outcomes.clone();
    let is_known = |name: &str| known.iter().any(|(known, _)| name.ends_with(known));
    let passes = |outcomes: &Outcomes, name: &str| outcomes.get(name).is_some_and(|outcome| outcome.0 == "passed");
    let only_native = |name: &&String| passes(&native, name) && !passes(&fast, name) && !is_known(name);
    let doubtful: Vec<String> = native.keys().filter(only_native).cloned().collect();
    if let Some(late) = late.filter(|late| *late >= STANDSTILL)
        && !doubtful.is_empty()
    {
        let repeats: Vec<Outcomes> = (0..REPEATS).map(|_| again(&doubtful)).collect();
        for name in &doubtful {
            if repeats.iter().all(|repeated| passes(repeated, name)) {
                let before = fast.insert(name.clone(), ("passed".to_owned(), String::new()));
                tell(&format!(
                    "{suite}: {name}: {before:?} where the machine stood still for {late:?}"
                ));
            }
        }
        // What has passed before is to pass in one of them, if it is run again.
        for (name, outcome) in &repeats[0] {
            let fails = |repeated: &Outcomes| repeated.get(name).is_some_and(|outcome| outcome.0 != "passed");
            if !doubtful.contains(name) && passes(&fast, name) && repeats.iter().all(fails) {
                fast.insert(name.clone(), outcome.clone());
            }
        }
    }
    for _ in 0..REPEATS {
        let only_fast = |name: &&String| passes(&fast, name) && !passes(&native, name) && !is_known(name);
        let doubtful: Vec<String> = fast.keys().filter(only_fast).cloned().collect();
        if doubtful.is_empty() {
            break;
        }
        let again = natively();
        for name in doubtful.into_iter().filter(|name| passes(&again, name)) {
            tell(&format!(
                "{suite}: {name}: natively passes now and then, {:?} before",
                native.get(&name)
            ));
            native.insert(name, ("passed".to_owned(), String::new()));
        }
    }
    let nothing = (String::from("not run"), String::new());
    let mut differing = Vec::new();
    let mut passed = 0;
    let names: std::collections::BTreeSet<&String> = native.keys().chain(fast.keys()).collect();
    for name in names {
        let before = native.get(name).unwrap_or(&nothing);
        let after = fast.get(name).unwrap_or(&nothing);
        if let Some((_, reason)) = known.iter().find(|(known, _)| name.ends_with(known)) {
            println!("{suite}: left out: {name}: {reason}; natively {before:?}, under Viaduct {after:?}");
        } else if before.0 != after.0 {
            differing.push(format!("{name}: natively {before:?}, under Viaduct {after:?}"));
        } else if before.0 == "passed" {
            passed += 1;
        } else {
            println!("{suite}: {name}: {} in both: {}", before.0, before.1);
        }
    }
    println!("{suite}: {passed} tests pass in both");
    assert!(differing.is_empty(), "{suite}: {differing:#?}");
    assert!(passed > 0, "{suite}: no test passed");
}

#[test]
fn a_native_failure_now_and_then_is_no_difference() {
    let outcome = |outcome: &str| Outcomes::from([("test".to_owned(), (outcome.to_owned(), String::new()))]);
    let [passed, failed] = ["passed", "failed"].map(outcome);
    let run = |outcomes: &Outcomes, held_up| Run {
        outcomes: outcomes.clone(),
        held_up,
    };
    let prompt = |outcomes: &Outcomes| run(outcomes, None);
    let late = |outcomes: &Outcomes| run(outcomes, Some(Duration::from_secs(1)));
    let unasked = |_: &[String]| unreachable!();
    compare(
        "native failure",
        &failed,
        &prompt(&passed),
        &[],
        || passed.clone(),
        unasked,
    );
    compare(
        "held up",
        &passed,
        &late(&failed),
        &[],
        || passed.clone(),
        |_| passed.clone(),
    );
    let differ = |native: &Outcomes, fast: &Run, again: &dyn Fn(&[String]) -> Outcomes| {
        let compared = || compare("difference", native, fast, &[], || native.clone(), again);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(compared)).is_err()
    };
    assert!(differ(&failed, &prompt(&passed), &unasked), "it never passes natively");
    assert!(differ(&passed, &prompt(&failed), &unasked), "it fails under Viaduct");
    let a_bit_late = run(&failed, Some(Duration::from_millis(400)));
    assert!(differ(&passed, &a_bit_late, &unasked), "it fails under Viaduct");
    let repeats = std::cell::Cell::new(0);
    let passes_once = |_: &[String]| {
        repeats.set(repeats.get() + 1);
        [&passed, &failed][repeats.get() - 1].clone()
    };
    assert!(differ(&passed, &late(&failed), &passes_once), "it fails again");
    let both = |one: &str, other: &str| {
        let outcome = |outcome: &str| (outcome.to_owned(), String::new());
        Outcomes::from([("one".to_owned(), outcome(one)), ("other".to_owned(), outcome(other))])
    };
    let other_fails = |_: &[String]| both("passed", "failed");
    assert!(
        differ(
            &both("passed", "passed"),
            &late(&both("failed", "passed")),
            &other_fails
        ),
        "another fails again"
    );
}
