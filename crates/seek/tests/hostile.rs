//! Senders of tagged messages that keep to nothing.

#[path = "support/hostile.rs"]
mod support;

use support::script::{replay, scramble};

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
    replay("inbox", support::run);
}
