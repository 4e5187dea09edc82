//! A lane that may not grow for now. A program of its own: the gate is the process's.

#![cfg(not(loom))]

use std::os::fd::AsFd;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use viaduct_channel::{Geometry, Receiver, Segment, Sender, Side, set_gate};

/// Bytes that may still be taken, and how often it was asked for some.
static LEFT: AtomicUsize = AtomicUsize::new(0);
static ASKED: AtomicUsize = AtomicUsize::new(0);

fn gate(bytes: usize, take: &mut dyn FnMut() -> bool) -> bool {
    ASKED.fetch_add(1, Relaxed);
    assert!(bytes <= 64 << 10, "{bytes} at once");
    let taken = LEFT.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes));
    taken.is_ok() && take()
}

const FREE: usize = 16 << 10;

/// Sends all of it through the lane, as much at a time as there is room for. Returns the most that was there at once.
fn pass(tx: &Sender<'_>, rx: &Receiver<'_>, bytes: &[u8]) -> usize {
    let mut got = vec![0; bytes.len()];
    let (mut sent, mut done, mut most) = (0, 0, 0);
    while done < bytes.len() {
        sent += tx.append(bytes[sent..].into()).expect("an honest peer");
        most = most.max(sent - done);
        let there = rx.readable().expect("an honest peer");
        assert!(there > 0, "nothing comes any more after {done} bytes");
        assert_eq!(rx.copy_out((&mut got[done..done + there]).into(), 0), there);
        rx.consume(there);
        done += there;
    }
    assert!(got == bytes, "other bytes");
    most
}

#[test]
fn a_lane_that_may_not_grow_lives_on_and_grows_when_it_may() {
    set_gate(gate);
    // What comes later is not asked.
    set_gate(|_, _| panic!("the second gate"));
    let fd = Segment::create(1, Geometry::DEFAULT).expect("memory");
    let segment = Segment::map(fd.as_fd()).expect("just made");
    let (tx, rx) = (segment.sender(Side::First), segment.receiver(Side::Second));
    let bytes: Vec<u8> = (0..4_096_000_u32).map(|i| (i / 3).to_le_bytes()[0]).collect();

    assert_eq!(pass(&tx, &rx, &bytes[..FREE]), FREE);
    assert_eq!(
        (tx.starved(), ASKED.load(Relaxed)),
        (false, 0),
        "so much it has without asking"
    );
    assert_eq!(pass(&tx, &rx, &bytes), FREE);
    assert!(tx.starved() && ASKED.load(Relaxed) > 0);
    // A receiver that needs more at once does not get it either.
    assert_eq!(tx.append(bytes.as_slice().into()), Ok(FREE));
    let _ = rx.want(rx.head() + 2 * FREE as u64);
    assert!(tx.is_wanted() && !tx.has_space());
    assert_eq!(tx.append(bytes.as_slice().into()), Ok(0));

    // Block by block where there is not enough for a step.
    LEFT.store(3 * 4096 + 1, Relaxed);
    assert_eq!(tx.append(bytes.as_slice().into()), Ok(3 * 4096));
    assert!(tx.starved() && LEFT.load(Relaxed) == 1);

    LEFT.store(usize::MAX, Relaxed);
    let there = rx.readable().expect("an honest peer");
    rx.consume(there);
    assert!(pass(&tx, &rx, &bytes) >= 1 << 20);
    assert!(!tx.starved());
}
