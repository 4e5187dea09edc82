//! Lanes between real processes.
//!
//! The children are forked from a process with threads, so they do nothing but what the
//! channel promises to do without allocation or locks.

#![cfg(not(loom))]
#![expect(clippy::cast_possible_truncation, reason = "sizes are far below the limits")]

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use viaduct_channel::{Geometry, Receiver, Segment, Sender, Side};

/// Byte at a stream position: differs between blocks and between rounds of the pool.
fn pattern(at: u64) -> u8 {
    let mixed = at.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

fn segment() -> Segment {
    let fd = Segment::create(1, Geometry::DEFAULT).expect("memory for a segment");
    Segment::map(fd.as_fd()).expect("just made")
}

/// Sends the pattern from the lane's tail up to `end`; `false` when the peer misbehaves.
fn send(tx: Sender<'_>, end: u64) -> bool {
    let mut bytes = [0; 5000];
    let mut len = 1;
    while tx.tail() < end {
        let at = tx.tail();
        len = (len * 7 + 13) % bytes.len();
        let n = len.min((end - at) as usize);
        for (i, byte) in bytes[..n].iter_mut().enumerate() {
            *byte = pattern(at + i as u64);
        }
        match tx.append(bytes[..n].into()) {
            Ok(0) => yield_now(),
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Receives from the lane's head up to `end`; `false` when a byte is wrong, the peer
/// misbehaves, or nothing comes for long.
fn receive(rx: Receiver<'_>, end: u64) -> bool {
    let mut bytes = [0; 7000];
    let mut last = Instant::now();
    while rx.head() < end {
        let at = rx.head();
        match rx.readable() {
            Ok(0) if last.elapsed() > Duration::from_secs(20) => return false,
            Ok(0) => yield_now(),
            Ok(_) => {
                let n = rx.copy_out(bytes.as_mut_slice().into(), 0);
                let right = |(i, byte): (usize, &u8)| *byte == pattern(at + i as u64);
                if !bytes[..n].iter().enumerate().all(right) {
                    return false;
                }
                rx.consume(n);
                last = Instant::now();
            }
            Err(_) => return false,
        }
    }
    true
}

fn yield_now() {
    // SAFETY: no arguments.
    unsafe { libc::sched_yield() };
}

/// Runs `body` in a forked process, which exits with 0 if it returns `true`.
fn fork(body: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child calls only `body`, which takes no lock and allocates nothing, and
    // leaves by `_exit`.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(i32::from(!body())),
            pid => {
                assert!(pid > 0, "no process left");
                pid
            }
        }
    }
}

/// Waits for a child. Its exit code, or `None` if it was killed.
fn wait(pid: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is writable; the process is a child of this one, not yet waited for.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

#[test]
fn two_processes_exchange_a_hundred_megabytes() {
    const EACH: u64 = 50_000_000;
    let segment = segment();
    let child = fork(|| receive(segment.receiver(Side::Second), EACH) && send(segment.sender(Side::Second), EACH));
    assert!(send(segment.sender(Side::First), EACH));
    assert!(receive(segment.receiver(Side::First), EACH));
    assert_eq!(wait(child), Some(0));
}

#[test]
fn processes_that_share_an_end_share_its_state() {
    let segment = segment();
    let mut end = 0;
    for _ in 0..20 {
        end += 123_457;
        let sender = fork(|| send(segment.sender(Side::First), end));
        let receiver = fork(|| receive(segment.receiver(Side::Second), end));
        assert_eq!((wait(sender), wait(receiver)), (Some(0), Some(0)));
    }
    assert_eq!(segment.receiver(Side::Second).head(), end);
}

/// Kills one side again and again in the middle of its work; its successor goes on with
/// what is in the segment.
fn kill_and_take_over(kill_sender: bool) {
    const ROUNDS: u32 = 40;
    let segment = segment();
    let (tx, rx) = (segment.sender(Side::First), segment.receiver(Side::Second));
    let end = u64::MAX;
    let other = fork(|| if kill_sender { receive(rx, end) } else { send(tx, end) });
    for round in 0..ROUNDS {
        let before = rx.head();
        let victim = fork(|| if kill_sender { send(tx, end) } else { receive(rx, end) });
        let start = Instant::now();
        while rx.head() - before < 1_000_000 {
            assert!(start.elapsed() < Duration::from_secs(20), "stuck in round {round}");
            yield_now();
        }
        std::thread::sleep(Duration::from_micros(u64::from(round * 37 % 500)));
        // SAFETY: the process is a child of this one, not yet waited for.
        unsafe { libc::kill(victim, libc::SIGKILL) };
        assert_eq!(wait(victim), None, "the victim found a wrong byte in round {round}");
    }
    // SAFETY: as above.
    unsafe { libc::kill(other, libc::SIGKILL) };
    assert_eq!(wait(other), None, "the other side found a wrong byte");
}

#[test]
fn a_killed_sender_leaves_a_lane_that_its_successor_can_use() {
    kill_and_take_over(true);
}

#[test]
fn a_killed_receiver_leaves_a_lane_that_its_successor_can_use() {
    kill_and_take_over(false);
}
