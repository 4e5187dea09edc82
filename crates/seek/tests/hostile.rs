//! Senders of tagged messages that keep to nothing.

#[path = "../../../fuzz/support/old.rs"]
mod old;
#[path = "support/hostile.rs"]
mod support;

use support::script::{replay, scramble};

fn script(state: &mut u64, words: usize) -> Vec<u8> {
    (0..words).flat_map(|_| scramble(state).to_le_bytes()).collect()
}

#[test]
fn senders_of_anything_are_told_of_and_disturb_no_others() {
    let mut state = 1;
    for round in 0..400 {
        support::run(&script(&mut state, 4 + round % 60));
    }
}

#[test]
fn they_are_told_of_where_the_kernel_does_not_peek_at_offsets() {
    let refused = std::thread::spawn(|| {
        old::refuse_peek_offsets();
        let mut state = 2;
        for round in 0..200 {
            support::run(&script(&mut state, 4 + round % 60));
        }
        replay("inbox", support::run);
    });
    refused.join().expect("as its message says");
}

#[test]
fn what_the_fuzzer_found_worth_keeping_still_passes() {
    replay("inbox", support::run);
}
