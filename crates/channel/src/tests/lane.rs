//! One lane, step by step.

use crate::{Geometry, Receiver, Segment, Sender, Side, Source, Stores};

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

/// Has a lane hold all that it ever can, though it has carried nothing.
fn hasten(rx: Receiver<'_>) {
    assert_eq!(rx.want(1 << 40), 0);
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
    assert_eq!(tx.append_many(sources, Stores::Cached), Ok(23));
    assert_eq!(read(rx, 99), b"some more than a block!");
}

#[test]
fn stores_past_the_cache_bring_the_same_bytes_from_and_to_any_alignment() {
    let (a, _) = Segment::heap(Geometry::new(12, 8).expect("permitted"));
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    let bytes: Vec<u8> = (0..20_000u32).map(|i| ((i * 7919) >> 5).to_le_bytes()[0]).collect();
    for (from, len) in (0..130)
        .flat_map(|from| [from % 7, 15, 16, 63, 64, 65, 127, 128, 129, 4095 + from, 9000].map(|len| (from, len)))
    {
        let piece = &bytes[from..from + len];
        assert_eq!(tx.append_many([Source::from(piece)], Stores::PastCache), Ok(len));
        // Not before and not behind: the neighbours came by plain stores.
        assert_eq!(append(tx, b"edge"), 4);
        assert!(read(rx, len) == piece, "{len} bytes from {from} on");
        assert_eq!(read(rx, 9), b"edge");
    }
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

#[test]
fn released_blocks_let_the_sender_run_ahead_as_far_as_the_table_reaches() {
    // With small tables only, and with those that are taken into use on the way.
    for (blocks, reach) in [(4, 8_u32), (8, 32)] {
        let geometry = Geometry::new(3, blocks).expect("tests allow tiny blocks");
        let (a, _) = Segment::heap(geometry);
        let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
        assert_eq!(append(tx, b"unread.."), 8);
        for n in 1..u64::from(reach) {
            assert_eq!(append(tx, b"released"), 8, "block {n}");
            assert_eq!(rx.readable().map(|bytes| bytes as u64), Ok(8 * (n + 1)));
            assert_eq!(rx.release(8 * n, 8 * n + 8), 1);
        }
        assert_eq!((tx.space(), tx.has_space(), append(tx, b"too far.")), (0, false, 0));
        assert_eq!(read(rx, 8), b"unread..");
        assert_eq!(tx.space(), 8);
        assert_eq!(append(tx, b"in reach"), 8);
        rx.readable().expect("honest peer");
        assert_eq!(rx.consume((reach as usize - 1) * 8), reach as usize - 1);
        assert_eq!(read(rx, 99), b"in reach");
        assert_eq!(tx.space(), geometry.capacity());
        // The table's second round knows nothing of what was released in the first.
        for n in 0..reach {
            assert_eq!(append(tx, b"anything"), 8, "block {n}");
            assert_eq!(read(rx, 8), b"anything");
        }
        assert_eq!(tx.space(), geometry.capacity());
    }
}

#[test]
fn a_lane_holds_more_when_it_has_carried_more() {
    let geometry = Geometry::new(3, 16).expect("tests allow tiny blocks");
    let (a, _) = Segment::heap(geometry);
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    assert_eq!((tx.capacity(), tx.space()), (64, 64));
    for round in 0..20 {
        assert_eq!(append(tx, &[round; 8]), 8);
        assert_eq!(read(rx, 8), [round; 8]);
    }
    // Half of the 160 bytes that it has carried.
    assert_eq!((tx.capacity(), tx.space()), (80, 80));
    assert_eq!(append(tx, &[7; 200]), 80);
    assert_eq!(read(rx, 16), [7; 16]);
    // By twos: 240 bytes by now.
    assert_eq!((tx.capacity(), append(tx, &[7; 200])), (112, 48));
    while tx.capacity() < 128 {
        append(tx, &[8; 16]);
        read(rx, 16);
    }
    while append(tx, &[9; 16]) != 0 {}
    assert_eq!((tx.capacity(), tx.in_flight(), tx.space()), (128, 128, 0));
    read(rx, 128);
    // It begins anew.
    assert!(tx.shrink());
    assert_eq!((tx.capacity(), append(tx, &[7; 200])), (64, 64));
}

#[test]
fn a_lane_holds_more_when_somebody_found_no_space() {
    let geometry = Geometry::new(3, 16).expect("tests allow tiny blocks");
    let (a, _) = Segment::heap(geometry);
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    assert_eq!(append(tx, &[1; 200]), 64);
    assert!(tx.grant());
    assert_eq!((tx.capacity(), append(tx, &[2; 200])), (96, 32));
    assert!(tx.grant() && !tx.grant());
    assert_eq!((tx.capacity(), append(tx, &[3; 200])), (128, 32));
    assert!(!tx.grant() && !tx.has_space());
    read(rx, 128);
    // Not what the program does not want.
    assert!(tx.shrink());
    tx.limit(80);
    assert!(tx.grant() && !tx.grant());
    assert_eq!((tx.capacity(), append(tx, &[2; 200])), (80, 80));
}

#[test]
fn a_lane_holds_more_when_its_receiver_needs_more() {
    let geometry = Geometry::new(3, 16).expect("tests allow tiny blocks");
    let (a, _) = Segment::heap(geometry);
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    assert_eq!(append(tx, &[1; 200]), 64);
    tx.arm_credit(2);
    // So much is there already.
    assert_eq!(rx.want(64), 2);
    assert!(!tx.is_wanted() && !tx.has_space());
    tx.arm_credit(2);
    assert_eq!(rx.want(65), 2);
    // As many blocks as that takes.
    assert!(tx.is_wanted() && tx.has_space());
    assert_eq!((tx.capacity(), append(tx, &[2; 200])), (72, 8));
    assert!(!tx.is_wanted() && !tx.has_space());
    // One that is known already needs no bell.
    tx.arm_credit(2);
    assert_eq!((rx.want(81), rx.want(81), rx.want(70)), (2, 0, 0));
    assert_eq!((tx.capacity(), append(tx, &[4; 3]), append(tx, &[4; 200])), (88, 3, 13));
    // More than there are blocks.
    tx.arm_credit(2);
    assert_eq!(rx.want(1 << 40), 2);
    assert_eq!(append(tx, &[4; 200]), 128 - 88);
    assert_eq!((rx.readable(), tx.space()), (Ok(128), 0));
}

/// Bytes and blocks of both kinds of tables, in flight together.
#[test]
fn a_lane_goes_on_in_larger_tables_amid_a_message() {
    let geometry = Geometry::new(3, 16).expect("tests allow tiny blocks");
    let (a, b) = Segment::heap(geometry);
    let (tx, rx) = (a.sender(Side::First), b.receiver(Side::Second));
    hasten(rx);
    let bytes: Vec<u8> = (0..128).collect();
    assert_eq!(append(tx, &bytes[..12]), 12);
    assert_eq!(read(rx, 3), &bytes[..3]);
    assert_eq!(append(tx, &bytes[12..]), 116);
    assert_eq!((tx.space(), append(tx, b"more")), (0, 0));
    assert_eq!(read(rx, 61), &bytes[3..64]);
    assert_eq!(append(tx, &bytes), 64);
    assert_eq!(read(rx, 64), &bytes[64..]);
    assert_eq!(append(tx, &bytes[64..]), 64);
    assert_eq!(read(rx, 999), bytes);
    assert_eq!(tx.space(), 128);
}

/// The last blocks of the small table and the first of the larger one are left behind by a receiver that is killed
/// before it has given them back: its successor's credits are of the larger table all the same.
#[test]
fn credits_of_the_larger_tables_survive_a_killed_receiver() {
    let geometry = Geometry::new(3, 16).expect("tests allow tiny blocks");
    let (a, b) = Segment::heap(geometry);
    let (tx, rx) = (a.sender(Side::First), b.receiver(Side::Second));
    hasten(rx);
    let bytes: Vec<u8> = (0..200).collect();
    assert_eq!((append(tx, &bytes[..32]), append(tx, &bytes[32..])), (32, 96));
    assert_eq!(read(rx, 16), &bytes[..16]);
    assert_eq!(append(tx, &bytes[128..]), 16);
    assert_eq!(rx.readable(), Ok(128));
    rx.consume_and_die(24);
    // Three blocks are lost. All others come back, each once: none that still holds something is filled.
    for at in (40..128).step_by(8) {
        assert_eq!(read(rx, 8), &bytes[at..at + 8]);
        assert_eq!(append(tx, &[7; 16]), 8);
    }
    assert_eq!(read(rx, 16), &bytes[128..144]);
    assert_eq!(read(rx, 999), [7; 88]);
    assert_eq!(append(tx, &bytes), 104);
}

/// The first credit is one of the larger ring's here.
#[test]
fn a_block_is_given_back_before_any_other_after_the_tables_were_enlarged() {
    let geometry = Geometry::new(3, 16).expect("tests allow tiny blocks");
    let (a, b) = Segment::heap(geometry);
    let (tx, rx) = (a.sender(Side::First), b.receiver(Side::Second));
    hasten(rx);
    assert_eq!(append(tx, &[1; 200]), 128);
    assert_eq!(rx.readable(), Ok(128));
    assert_eq!(rx.release(64, 128), 8);
    assert_eq!(append(tx, &[2; 200]), 64);
    assert_eq!(read(rx, 64), [1; 64]);
    assert_eq!(rx.consume(64), 8);
    assert_eq!(read(rx, 99), [2; 64]);
    assert_eq!(tx.space(), 128);
    assert_eq!(append(tx, &[3; 200]), 128);
    assert_eq!(read(rx, 200), [3; 128]);
}

#[test]
fn without_memory_for_larger_tables_a_lane_stays_with_the_small() {
    let geometry = Geometry::new(3, 16).expect("tests allow tiny blocks");
    let (a, _) = Segment::heap(geometry);
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    a.limit_memory(4);
    for round in 0..9 {
        assert_eq!(append(tx, &[round; 100]), 32);
        assert_eq!((tx.space(), append(tx, &[round])), (0, 0));
        assert!(tx.starved());
        assert_eq!(read(rx, 100), [round; 32]);
        assert_eq!(tx.space(), 32);
    }
    a.limit_memory(16);
    assert_eq!(append(tx, &[9; 200]), 128);
    assert!(!tx.starved());
    assert_eq!(read(rx, 200), [9; 128]);
}

#[test]
fn blocks_are_filled_in_the_order_in_which_they_were_read() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    for round in 0..5 {
        assert_eq!(append(tx, &[7; 32]), 32);
        let filled: Vec<_> = (4 * round..4 * round + 4).map(|n| tx.physical(n)).collect();
        assert_eq!(filled, [0, 1, 2, 3]);
        // Given back one by one, and all at once.
        for _ in 0..if round % 2 == 0 { 4 } else { 1 } {
            read(rx, if round % 2 == 0 { 8 } else { 32 });
        }
    }
}

#[test]
fn a_limited_lane_holds_less() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    assert_eq!(tx.capacity(), 32);
    tx.limit(9);
    assert_eq!((tx.capacity(), tx.space()), (16, 16));
    assert_eq!(append(tx, &[7; 32]), 16);
    assert_eq!((tx.space(), append(tx, &[7])), (0, 0));
    assert_eq!(read(rx, 8), [7; 8]);
    assert_eq!(append(tx, &[7; 32]), 8);
    // Never less than two blocks, so that a message may cross from one to the next.
    tx.limit(0);
    assert_eq!(tx.capacity(), 16);
    tx.limit(1000);
    assert_eq!(append(tx, &[7; 32]), 16);
    assert_eq!(tx.capacity(), 32);
    // What is in use already stays in use.
    tx.limit(9);
    assert_eq!(tx.capacity(), 32);
    // What the receiver needs at once counts for more.
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    tx.limit(9);
    assert_eq!(append(tx, &[7; 32]), 16);
    assert_eq!(rx.want(17), 0);
    assert_eq!(append(tx, &[7; 8]), 8);
    assert_eq!((tx.capacity(), append(tx, &[7; 8])), (24, 0));
}

#[test]
fn without_memory_a_lane_lives_on_with_the_blocks_it_has() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    a.limit_memory(0);
    assert_eq!(append(tx, b"nothing"), 0);
    assert!(tx.starved());
    assert_eq!((tx.space(), tx.in_flight()), (0, 0));
    a.limit_memory(1);
    assert_eq!(append(tx, b"more than a block"), 8);
    assert!(tx.starved());
    assert_eq!(tx.space(), 0);
    assert_eq!(read(rx, 8), b"more tha");
    assert_eq!(tx.space(), 8);
    assert_eq!(append(tx, b"n a block"), 8);
    a.limit_memory(4);
    assert_eq!(append(tx, b"k"), 1);
    assert!(!tx.starved());
    assert_eq!(read(rx, 99), b"n a block");
}

#[test]
fn a_lane_that_is_made_smaller_asks_for_memory_again() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    a.limit_memory(3);
    assert_eq!(append(tx, &[1; 32]), 24);
    assert!(tx.starved() && tx.is_grown() && !tx.shrink());
    assert_eq!(read(rx, 99), [1; 24]);
    assert!(tx.shrink() && !tx.is_grown());
    assert_eq!((tx.starved(), tx.space()), (false, 32));
    a.limit_memory(4);
    for round in 0..9 {
        // The block being filled moves to another, whichever it was and whichever is on the stack.
        assert_eq!(append(tx, &[round; 24]), 24);
        assert_eq!(read(rx, 99), [round; 24]);
        assert!(tx.shrink());
        assert_eq!(append(tx, b"more"), 4);
        assert_eq!(read(rx, 99), b"more");
    }
    assert_eq!(tx.space(), 32 - (9 * 28) % 8);
}

#[test]
fn bits_are_taken_once_and_only_those_left_can_be_disarmed() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    assert_eq!(tx.take_wait(), 0);
    rx.arm(1);
    rx.arm(4);
    assert_eq!(rx.disarm(3), 1);
    assert_eq!(tx.take_wait(), 4);
    assert_eq!(tx.take_wait(), 0);
    assert_eq!(rx.disarm(4), 0);
    tx.arm_credit(6);
    assert_eq!(tx.disarm_credit(2), 2);
    assert_eq!(rx.take_credit_wait(), 4);
    assert_eq!(rx.take_credit_wait(), 0);
    assert_eq!(tx.disarm_credit(6), 0);
}

#[test]
fn who_waits_for_more_is_not_woken_before_it_is_there() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    rx.arm_until(1, 6);
    assert_eq!(append(tx, b"five."), 5);
    assert_eq!(tx.take_wait(), 0);
    assert_eq!(append(tx, b"."), 1);
    assert_eq!(tx.take_wait(), 1);
    assert_eq!(tx.take_wait(), 0);
    // Others wait for less, be they first or second.
    rx.arm(4);
    rx.arm_until(1, 9);
    assert_eq!(tx.take_wait(), 5);
    rx.arm_until(1, 9);
    rx.arm(4);
    assert_eq!(tx.take_wait(), 5);
    // What is left of one that is awake again binds nobody.
    rx.arm_until(1, 9);
    assert_eq!(rx.disarm(1), 1);
    assert_eq!(tx.take_wait(), 0);
    rx.arm_until(1, 7);
    assert_eq!(append(tx, b"."), 1);
    assert_eq!(tx.take_wait(), 1);
}

#[test]
fn who_waits_for_room_is_not_woken_before_it_is_there() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    assert_eq!(append(tx, &[7; 40]), 32);
    let wakes = |blocks: usize| {
        for _ in 0..blocks {
            assert_eq!(read(rx, 8).len(), 8);
            if rx.take_credit_wait() != 0 {
                return true;
            }
        }
        false
    };
    tx.arm_credit_for(1, 24);
    assert!(!wakes(2) && wakes(1));
    assert_eq!(append(tx, &[7; 40]), 24);
    // All that can come back are four, of which the receiver has read nothing yet; more help no waiter.
    tx.arm_credit_for(1, 80);
    assert!(!wakes(3) && wakes(1));
    // A block that is being filled does not come back.
    assert_eq!(append(tx, &[7; 28]), 28);
    tx.arm_credit_for(1, 32);
    assert!(!wakes(2) && wakes(1));
    assert_eq!(append(tx, &[7; 40]), 28);
    // Others wait for less, be they first or second.
    for _ in 0..2 {
        tx.arm_credit(4);
        tx.arm_credit_for(1, 24);
        tx.arm_credit(2);
        assert_eq!(read(rx, 8).len(), 8);
        assert_eq!(rx.take_credit_wait(), 7);
    }
    // What is left of one that is awake again binds nobody.
    tx.arm_credit_for(1, 24);
    assert_eq!(tx.disarm_credit(1), 1);
    assert_eq!(rx.take_credit_wait(), 0);
    tx.arm_credit(1);
    assert!(wakes(1));
}

#[test]
fn who_waits_for_room_is_woken_as_soon_as_it_is_there() {
    let eight = Geometry::new(3, 8).expect("tests allow tiny blocks");
    for (blocks, sent, room, needed) in [
        // Blocks not yet in use count.
        (eight, 24, 56, 2),
        // The rest of a block does.
        (tiny(), 28, 20, 2),
    ] {
        let (a, _) = Segment::heap(blocks);
        let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
        assert_eq!(append(tx, &vec![7; sent]), sent);
        assert!(tx.space() < room);
        tx.arm_credit_for(1, room);
        let woken = (1..).find(|_| {
            assert_eq!(read(rx, 8).len(), 8);
            rx.take_credit_wait() != 0
        });
        assert_eq!(woken, Some(needed), "{sent} bytes sent, {room} wanted");
        assert!(tx.space() >= room);
    }
}

#[test]
fn a_receiver_that_needs_more_keeps_no_sender_waiting_for_room() {
    let (a, _) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), a.receiver(Side::Second));
    assert_eq!(append(tx, &[7; 40]), 32);
    hasten(rx);
    tx.arm_credit_for(1, 24);
    assert_eq!(read(rx, 8).len(), 8);
    assert_eq!(rx.take_credit_wait(), 1);
}

#[test]
fn a_receiver_knows_what_a_lane_can_never_hold() {
    let (a, b) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), b.receiver(Side::Second));
    let (block, capacity) = (rx.block_size() as u64, tiny().capacity() as u64);
    assert!(rx.can_hold(0) && rx.can_hold(capacity) && !rx.can_hold(capacity + 1) && !rx.can_hold(u64::MAX));
    assert_eq!(rx.reach(), capacity);
    assert_eq!(append(tx, &vec![7; tiny().capacity()]), tiny().capacity());
    assert!(rx.readable().is_ok());
    assert_eq!(rx.release(block, 2 * block), 1);
    assert!(rx.can_hold(capacity + block) && !rx.can_hold(capacity + block + 1));
    assert_eq!(rx.reach(), capacity + block);
    // A block that the head is in counts until it is left.
    rx.consume(1);
    assert!(!rx.can_hold(capacity + block + 1));
    rx.consume(rx.block_size());
    assert!(rx.can_hold(capacity + block) && !rx.can_hold(capacity + 2 * block + 1));
}

#[test]
fn who_does_not_use_a_receiver_may_ask_for_bytes_and_disturbs_nothing() {
    let (a, b) = Segment::heap(tiny());
    let (tx, rx) = (a.sender(Side::First), b.receiver(Side::Second));
    assert!(!rx.has_bytes());
    assert_eq!(append(tx, b"one"), 3);
    assert_eq!(rx.readable(), Ok(3));
    assert_eq!(append(tx, b"two"), 3);
    assert!(rx.has_bytes());
    // Still what `readable` saw.
    assert_eq!(rx.copy_out([0; 9][..].as_mut().into(), 0), 3);
    assert_eq!(rx.consume(9), 0);
    assert!(rx.has_bytes());
    assert_eq!(read(rx, 9), b"two");
    assert!(!rx.has_bytes());
}

#[test]
fn words_are_seen_by_the_peer_and_kept_apart() {
    use core::sync::atomic::Ordering::Relaxed;
    let (a, b) = Segment::heap(tiny());
    for i in 0..crate::WORDS {
        a.sender(Side::First).word(i).store(10 + i as u64, Relaxed);
        a.receiver(Side::First).word(i).store(20 + i as u64, Relaxed);
        b.sender(Side::Second).word(i).store(30 + i as u64, Relaxed);
        b.receiver(Side::Second).word(i).store(40 + i as u64, Relaxed);
    }
    for i in 0..crate::WORDS {
        assert_eq!(b.receiver(Side::Second).peer_word(i).load(Relaxed), 10 + i as u64);
        assert_eq!(b.sender(Side::Second).peer_word(i).load(Relaxed), 20 + i as u64);
        assert_eq!(a.receiver(Side::First).peer_word(i).load(Relaxed), 30 + i as u64);
        assert_eq!(a.sender(Side::First).peer_word(i).load(Relaxed), 40 + i as u64);
    }
    assert_eq!(a.receiver(Side::First).readable(), Ok(0));
}

#[test]
fn slices_of_buffers_stay_inside() {
    let source = crate::Source::from(&b"abcdef"[..]);
    assert_eq!(source.slice(4, 9).len(), 2);
    assert_eq!(source.slice(7, 1).len(), 0);
    assert!(source.slice(usize::MAX, usize::MAX).is_empty());
    let mut bytes = [0; 6];
    let dest = crate::Dest::from(&mut bytes[..]);
    assert_eq!(dest.slice(4, 9).len(), 2);
    assert!(dest.slice(usize::MAX, usize::MAX).is_empty());
}

#[test]
fn threads_exchange_bytes_without_a_race() {
    let (a, b) = Segment::heap(tiny());
    let bytes: Vec<u8> = (0..=255).cycle().take(if cfg!(miri) { 400 } else { 200_000 }).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let n = append(a.sender(Side::First), &rest[..rest.len().min(11)]);
                rest = &rest[n..];
                std::thread::yield_now();
            }
        });
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            got.extend(read(b.receiver(Side::Second), 13));
            std::thread::yield_now();
        }
        assert_eq!(got, bytes);
    });
}
