//! Senders of tagged messages that keep to nothing.

#[path = "support/hostile.rs"]
mod support;

use std::fs;
use std::path::Path;

/// A generator good enough to vary scripts, the same in every run.
fn scramble(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[test]
fn senders_of_anything_are_told_of_and_disturb_no_others() {
    let mut state = 1;
    for round in 0..400 {
        let script: Vec<u8> = (0..4 + round % 60)
            .flat_map(|_| scramble(&mut state).to_le_bytes())
            .collect();
        support::run(&script);
    }
}

#[test]
fn what_the_fuzzer_found_worth_keeping_still_passes() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/inbox");
    let mut scripts = 0;
    for entry in fs::read_dir(&corpus).expect("the corpus is committed") {
        support::run(&fs::read(entry.expect("readable").path()).expect("readable"));
        scripts += 1;
    }
    assert!(scripts > 0, "{} is empty", corpus.display());
}
