//! Peers that write anything anywhere.

#![cfg(not(loom))]

#[path = "support/hostile.rs"]
mod support;

use support::script::{replay, scramble};

#[test]
fn a_peer_that_writes_anything_anywhere_garbles_bytes_and_no_more() {
    let mut state = 1;
    for _ in 0..3000 {
        let script: Vec<u8> = (0..128).flat_map(|_| scramble(&mut state).to_le_bytes()).collect();
        support::run(&script);
    }
}

#[test]
fn what_the_fuzzer_found_worth_keeping_still_passes() {
    replay("segment", support::run);
}
