//! A peer that writes what it likes into the words. Bytes may be garbled; nothing panics, and every call comes to an
//! end.

mod support;

use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;
use support::{Deed, Glance, Listener, Pipe, Step, Talker};
use viaduct_channel::{Segment, Side};
use viaduct_stream::{MARK_BACK, MARK_BELL, Mode, Source};

const GLANCE: Glance = Glance {
    room: 4096,
    batch: 64,
    marks_first: false,
};

/// What a hostile peer does.
#[derive(Clone, Copy, Debug)]
enum Evil {
    /// Writes one of the eight words.
    Word(usize, u64),
    /// Writes what was X of a promotion, or near it.
    Until(i8),
    /// Sends a byte on the kernel connection.
    Byte(u8),
    /// Sends bytes on the lane.
    Lane(usize),
}

fn evil() -> impl Strategy<Value = Evil> {
    let value = prop_oneof![
        any::<u64>(),
        0u64..5,
        (0u32..64).prop_map(|shift| 1 << shift),
        // What looks at a word's edges: the next number is none, or reaches the flag.
        (0u32..2).prop_map(|shift| u64::MAX >> shift),
    ];
    prop_oneof![
        6 => (0usize..8, value).prop_map(|(word, value)| Evil::Word(word, value)),
        2 => any::<i8>().prop_map(Evil::Until),
        2 => prop_oneof![Just(MARK_BELL), Just(MARK_BACK), any::<u8>()].prop_map(Evil::Byte),
        1 => (1usize..9000).prop_map(Evil::Lane),
    ]
}

fn do_evil(segment: &Segment, pipe: &Pipe, evil: Evil) {
    let lane = segment.sender(Side::First);
    match evil {
        Evil::Word(number, value) if number < 4 => lane.word(number).store(value, Relaxed),
        Evil::Word(number, value) => lane.peer_word(number).store(value, Relaxed),
        Evil::Until(off) => {
            let near = pipe.receive_position().wrapping_add_signed(off.max(0).into());
            lane.word(0).store(near, Relaxed);
        }
        Evil::Byte(byte) => {
            pipe.send(&[byte]);
        }
        Evil::Lane(len) => {
            let _ = lane.append(vec![0x5A; len].as_slice().into());
        }
    }
}

/// Receives until there is nothing, as one call of a program would: what it takes must be bounded by what there is.
fn receive_all(listener: &mut Listener<'_>) -> Step {
    let there = listener.pipe.queued() + listener.lane.readable().unwrap_or(0);
    for _ in 0..4 * there + 32 {
        match listener.step(GLANCE) {
            Step::Moved => {}
            end => return end,
        }
    }
    panic!("no end: {listener:#?}");
}

proptest! {
    #[test]
    fn a_receiver_survives_any_words(
        steps in prop::collection::vec((evil(), any::<bool>()), 0..200),
    ) {
        let (near, far) = support::segment();
        let pipe = Pipe::new(64);
        let mut listener = Listener::new(&far, Side::Second, &pipe);
        listener.incoming.set_ready();
        for (evil, look) in steps {
            do_evil(&near, &pipe, evil);
            listener.incoming.peer_means_reset();
            if look && receive_all(&mut listener) == Step::Violation {
                break;
            }
        }
    }

    #[test]
    fn a_sender_survives_any_words(
        steps in prop::collection::vec((evil(), 0usize..2000), 0..200),
    ) {
        let (near, far) = support::segment();
        let pipe = Pipe::new(64);
        let mut talker = Talker::new(&near, Side::First, &pipe);
        for (evil, len) in steps {
            do_evil(&far, &pipe, evil);
            talker.act(Deed::Promote);
            talker.act(Deed::Send(len));
            talker.act(if len % 2 == 0 { Deed::Demote } else { Deed::Bell });
            // A sender in a mode owes something that it can do.
            prop_assert!(matches!(
                talker.out.mode(),
                Mode::Raw | Mode::Lane | Mode::BackPending | Mode::Recalling
            ));
            pipe.receive(len % 64);
        }
    }
}

/// Where the epoch being read would come out as 0, that is as none, the receiver would enter the lane for ever.
#[test]
fn a_receiver_that_enters_the_lane_is_in_the_lane() {
    for ended in [u64::MAX, u64::MAX >> 1, 1 << 63, 0, 1] {
        let (near, far) = support::segment();
        let pipe = Pipe::new(64);
        let mut listener = Listener::new(&far, Side::Second, &pipe);
        near.sender(Side::First).peer_word(1).store(ended, Relaxed);
        near.sender(Side::First).word(1).store(77, Relaxed);
        assert_eq!(listener.incoming.source(), Source::RawUntil(0));
        listener.incoming.enter_lane();
        assert_eq!(listener.incoming.source(), Source::Lane, "{ended:#x}");
        assert_eq!(receive_all(&mut listener), Step::Idle);
    }
}
