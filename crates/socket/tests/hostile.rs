//! Peers that write anything anywhere while a connection is searched, and what holds until they do.

#[path = "../../../fuzz/support/old.rs"]
mod old;
#[path = "support/hostile.rs"]
mod support;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use support::script::{replay, scramble};

/// Has a call that never ends fail the test.
fn in_time(test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let test = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if is_done.recv_timeout(Duration::from_secs(300)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("a call has not come to an end");
    }
    test.join().expect("as its message says");
}

fn script(state: &mut u64, words: usize) -> Vec<u8> {
    (0..words).flat_map(|_| scramble(state).to_le_bytes()).collect()
}

#[test]
fn searches_do_what_a_list_does_and_end_whatever_a_peer_writes() {
    in_time(|| {
        let mut state = 1;
        for round in 0..600 {
            support::run(&script(&mut state, 20 + round % 100));
        }
    });
}

/// Before Linux 6.9, what is passed over is copied.
#[test]
fn searches_do_the_same_where_the_kernel_does_not_peek_at_offsets() {
    in_time(|| {
        old::refuse_peek_offsets();
        let mut state = 3;
        for round in 0..300 {
            support::run(&script(&mut state, 20 + round % 100));
        }
        replay("search", support::run);
    });
}

#[test]
fn searches_end_whatever_is_written_meanwhile() {
    in_time(|| {
        let mut state = 2;
        for seed in 0..300 {
            support::run_beside_a_scribbler(seed, &script(&mut state, 100));
        }
    });
}

#[test]
fn what_the_fuzzer_found_worth_keeping_still_passes() {
    in_time(|| replay("search", support::run));
}
