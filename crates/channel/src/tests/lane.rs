//! One lane, step by step.

use crate::{Geometry, Receiver, Segment, Sender, Side};

fn tiny() -> Geometry {
    Geometry::new(3, 4).expect("tests allow tiny blocks")
}

fn read(rx: Receiver<'_>, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    rx.readable().expect("honest peer");
    let got = rx.copy_out(bytes.as_mut_slice().into(), 0);
    rx.consume(got);
    bytes.truncate(got);
    bytes
}

fn append(tx: Sender<'_>, bytes: &[u8]) -> usize {
    tx.append(bytes.into()).expect("honest peer")
}

#[test]
fn bytes_come_out_in_order_and_on_the_other_side_only() {
    let (a, b) = Segment::heap(tiny());
    assert_eq!(append(a.sender(Side::First), b"hello, world"), 12);
    assert_eq!(a.receiver(Side::First).readable(), Ok(0));
    assert_eq!(read(b.receiver(Side::Second), 5), b"hello");
    assert_eq!(read(b.receiver(Side::Second), 50), b", world");
    assert_eq!(append(b.sender(Side::Second), b"and back"), 8);
    assert_eq!(read(a.receiver(Side::First), 50), b"and back");
}

#[test]
fn a_full_lane_takes_what_fits_and_goes_on_after_a_credit() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    assert_eq!(tx.space(), 32);
    let bytes: Vec<u8> = (0..40).collect();
    assert_eq!(append(tx, &bytes), 32);
    assert_eq!((tx.space(), append(tx, &bytes)), (0, 0));
    // Not a whole block yet.
    assert_eq!(read(rx, 7), &bytes[..7]);
    assert_eq!((tx.space(), append(tx, &bytes[32..])), (0, 0));
    assert_eq!(read(rx, 1), &bytes[7..8]);
    assert_eq!(tx.space(), 8);
    assert_eq!(append(tx, &bytes[32..]), 8);
    assert_eq!(read(rx, 99), &bytes[8..]);
    assert_eq!(tx.space(), 32);
}

#[test]
fn an_idle_exchange_stays_in_one_block() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    for round in 0..100u8 {
        assert_eq!(append(tx, &[round; 3]), 3);
        assert_eq!(read(rx, 9), [round; 3]);
    }
    // Two, because a message that crosses blocks holds both for a moment.
    assert!(tx.grown() <= 2, "{} blocks in use", tx.grown());
}

#[test]
fn pieces_are_published_together() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    let pieces: [&[u8]; 4] = [b"some", b"", b" more than a block", b"!"];
    let sources = pieces.map(crate::Source::from).into_iter().inspect(|_| {
        assert_eq!(rx.readable(), Ok(0));
    });
    assert_eq!(tx.append_many(sources), Ok(23));
    assert_eq!(read(rx, 99), b"some more than a block!");
}

#[test]
fn blocks_released_in_the_middle_are_used_again_before_the_head_moves() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    let bytes: Vec<u8> = (0..64).collect();
    assert_eq!(append(tx, &bytes), 32);
    assert_eq!(rx.readable(), Ok(32));
    // Blocks 1 and 2 lie wholly in 6..25.
    assert_eq!(rx.release(6, 25), 2);
    assert_eq!(rx.release(6, 25), 0);
    assert_eq!(append(tx, &bytes[32..]), 16);
    assert_eq!(rx.readable(), Ok(48));
    assert_eq!(read(rx, 8), &bytes[..8]);
    assert_eq!(tx.space(), 8);
    assert_eq!(rx.consume(16), 2);
    assert_eq!(tx.space(), 8);
    assert_eq!(read(rx, 99), &bytes[24..48]);
    assert_eq!(tx.space(), 32);
}
