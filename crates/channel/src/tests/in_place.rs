//! Bytes that others put where they belong.

use crate::{Dest, Geometry, Segment, Side};

/// Puts the bytes into the places, from the first on; answers how many.
fn put(places: &[Dest<'_>], mut bytes: &[u8]) -> usize {
    let mut done = 0;
    for place in places {
        let (part, rest) = bytes.split_at(place.len().min(bytes.len()));
        // SAFETY: the place has room for as many bytes.
        unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), place.as_mut_ptr(), part.len()) };
        done += part.len();
        bytes = rest;
    }
    done
}

#[test]
fn bytes_put_in_place_come_out_in_order_across_blocks() {
    let (a, b) = Segment::heap(Geometry::new(3, 16).expect("tests allow tiny blocks"));
    let (tx, rx) = (a.sender(Side::First), b.receiver(Side::Second));
    let (mut sent, mut received) = (0_u8, 0_u8);
    // Every offset in a block, fewer bytes than asked for, none, and as many as there is no room for.
    for round in 0..2000_usize {
        let (asked, found) = (round % 41 + 1, round * 7 % 43);
        let bytes: Vec<u8> = (0..found)
            .map(|i| sent.wrapping_add(u8::try_from(i).unwrap()))
            .collect();
        let mut room = 0;
        let appended = tx.append_by(asked, |places| {
            room = places.iter().map(Dest::len).sum();
            put(places, &bytes)
        });
        let appended = appended.expect("an honest peer");
        assert!(room <= asked);
        assert_eq!(appended, found.min(room));
        sent = sent.wrapping_add(u8::try_from(appended).unwrap());
        if round % 3 != 0 {
            let mut out = vec![0; rx.readable().expect("an honest peer")];
            assert_eq!(rx.copy_out(out.as_mut_slice().into(), 0), out.len());
            rx.consume(out.len());
            for byte in out {
                assert_eq!(byte, received);
                received = received.wrapping_add(1);
            }
        }
    }
}

#[test]
fn places_in_which_nothing_was_put_are_there_for_later() {
    let (a, b) = Segment::heap(Geometry::new(3, 4).expect("tests allow tiny blocks"));
    let (tx, rx) = (a.sender(Side::First), b.receiver(Side::Second));
    assert_eq!(rx.want(1 << 40), 0);
    for put_first in [0, 1, 8, 9] {
        for _ in 0..100 {
            let appended = tx.append_by(32, |places| put(places, &[7; 9][..put_first]));
            assert_eq!(appended, Ok(put_first));
            assert_eq!(tx.append_by(32, |_| 0), Ok(0));
            let readable = rx.readable().expect("an honest peer");
            assert_eq!(readable, put_first);
            rx.consume(readable);
        }
    }
    let mut all = 0;
    while let Ok(1) = tx.append_by(1, |places| put(places, b"x")) {
        all += 1;
    }
    assert!(all >= 32 - 7, "no block has been lost: {all}");
}
