//! Suites that others wrote, natively and under Viaduct with `--offer wait`: the same tests must pass. What fails natively too is
//! listed with its reason.
//!
//! `make test` runs the quick ones, `make test-suites` all: the others are `#[ignore]`d.

mod cpython;
mod crates;
mod libevent;

use std::collections::BTreeMap;

/// What became of each test of a suite, and why.
type Outcomes = BTreeMap<String, (String, String)>;

/// Fails if a test that passes natively does not under Viaduct, or the other way round; tells what passes in neither.
/// `known`: tests that are left out of the comparison, with the reason.
fn compare(suite: &str, native: &Outcomes, fast: &Outcomes, known: &[(&str, &str)]) {
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
