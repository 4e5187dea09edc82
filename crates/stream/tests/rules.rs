//! The rules of docs/stream-protocol.md, one by one.

mod support;

use std::sync::atomic::Ordering::Relaxed;
use support::{Pipe, segment};
use viaduct_channel::{Segment, Side};
use viaduct_stream::{Incoming, MARK_BACK, MARK_BELL, Mode, Outgoing, Recall, Source};

fn outgoing(near: &Segment) -> Outgoing<'_> {
    Outgoing::new(near.sender(Side::First))
}

fn incoming(far: &Segment) -> Incoming<'_> {
    Incoming::new(far.receiver(Side::Second))
}

/// A stretch on the lane that the receiver has entered.
fn on_lane<'a>(near: &'a Segment, far: &'a Segment) -> (Outgoing<'a>, Incoming<'a>) {
    let (out, inc) = (outgoing(near), incoming(far));
    inc.set_ready();
    assert!(out.may_promote());
    assert!(out.promote(0));
    assert_eq!(inc.source(), Source::RawUntil(0));
    inc.enter_lane();
    assert_eq!(inc.source(), Source::Lane);
    (out, inc)
}

/// The same with bytes unread.
fn with_rest<'a>(near: &'a Segment, far: &'a Segment) -> (Outgoing<'a>, Incoming<'a>) {
    let ends = on_lane(near, far);
    assert_eq!(near.sender(Side::First).append(b"unread"[..].into()), Ok(6));
    ends
}

/// The same, recalled too late: the sender is raw, and the receiver has seen the back.
fn recalled_late<'a>(near: &'a Segment, far: &'a Segment) -> (Outgoing<'a>, Incoming<'a>) {
    let (out, inc) = with_rest(near, far);
    out.demote();
    out.back_sent();
    inc.recall();
    assert_eq!(out.mode(), Mode::Raw);
    inc.marks(&[MARK_BACK]);
    (out, inc)
}

#[test]
fn a_direction_begins_raw_and_stays_so_until_the_receiver_is_attached() {
    let (near, far) = segment();
    let (out, inc) = (outgoing(&near), incoming(&far));
    assert_eq!(out.mode(), Mode::Raw);
    assert_eq!(inc.source(), Source::Raw);
    assert!(!out.may_promote());
    inc.set_ready();
    assert!(out.may_promote());
}

#[test]
fn a_receiver_that_is_not_ready_any_more_keeps_the_stretch_that_has_begun() {
    let (near, far) = segment();
    let (out, inc) = on_lane(&near, &far);
    inc.set_unready();
    assert_eq!((out.mode(), inc.source()), (Mode::Lane, Source::Lane));
    out.demote();
    out.back_sent();
    inc.marks(&[MARK_BACK]);
    inc.lane_drained();
    assert!(!out.may_promote());
    inc.set_ready();
    assert!(out.may_promote());
}

#[test]
fn a_promotion_names_the_position_at_which_the_raw_stretch_ends() {
    let (near, far) = segment();
    let (out, inc) = (outgoing(&near), incoming(&far));
    inc.set_ready();
    assert!(out.promote(1 << 40));
    assert_eq!(out.mode(), Mode::Lane);
    assert!(!out.may_promote());
    assert_eq!(inc.source(), Source::RawUntil(1 << 40));
}

#[test]
fn the_next_promotion_waits_until_the_stretch_before_it_has_been_read() {
    let (near, far) = segment();
    let (out, inc) = on_lane(&near, &far);
    out.demote();
    assert!(!out.may_promote(), "MARK_BACK is owed");
    out.back_sent();
    assert_eq!(out.mode(), Mode::Raw);
    assert!(!out.may_promote(), "the receiver has not seen the end");
    inc.marks(&[MARK_BACK]);
    assert_eq!(inc.source(), Source::LaneThenRaw);
    assert!(!out.may_promote(), "the lane may still hold bytes");
    inc.lane_drained();
    assert_eq!(inc.source(), Source::Raw);
    assert!(out.may_promote());
    assert!(out.promote(9));
    assert_eq!(inc.source(), Source::RawUntil(9));
}

#[test]
fn a_mark_that_finds_the_kernel_full_stays_owed_and_nothing_overtakes_it() {
    let (near, far) = segment();
    let (out, inc) = on_lane(&near, &far);
    let pipe = Pipe::new(1);
    assert_eq!(pipe.send(&[MARK_BELL]), 1);
    out.demote();
    assert_eq!(pipe.send(&[MARK_BACK]), 0);
    assert_eq!(out.mode(), Mode::BackPending);
    out.demote();
    assert_eq!(out.mode(), Mode::BackPending);
    // The receiver goes on with the lane and makes room.
    assert_eq!(inc.marks(&pipe.peek(9)), 1);
    pipe.receive(1);
    assert_eq!(inc.source(), Source::Lane);
    assert_eq!(pipe.send(&[MARK_BACK]), 1);
    out.back_sent();
    assert_eq!(out.mode(), Mode::Raw);
}

#[test]
fn demoting_a_raw_direction_changes_nothing() {
    let (near, _far) = segment();
    let out = outgoing(&near);
    out.demote();
    assert_eq!(out.mode(), Mode::Raw);
}

#[test]
fn bells_are_discarded_and_say_nothing() {
    let (near, far) = segment();
    let (_out, inc) = on_lane(&near, &far);
    assert_eq!(inc.marks(&[]), 0);
    assert_eq!(inc.marks(&[MARK_BELL; 64]), 64);
    assert_eq!(inc.marks(&[7, 255]), 2, "marks of a later version are bells");
    assert_eq!(inc.source(), Source::Lane);
}

#[test]
fn what_stands_behind_the_mark_back_is_raw_whatever_it_looks_like() {
    let (near, far) = segment();
    let (_out, inc) = on_lane(&near, &far);
    assert_eq!(inc.marks(&[MARK_BELL, MARK_BELL, MARK_BACK, MARK_BACK, MARK_BELL]), 3);
    assert_eq!(inc.source(), Source::LaneThenRaw);
}

#[test]
fn a_request_for_tcp_is_seen_and_can_be_taken_back() {
    let (near, far) = segment();
    let (out, inc) = (outgoing(&near), incoming(&far));
    assert!(!out.peer_wants_raw());
    inc.set_ready();
    inc.request_raw(true);
    assert!(out.peer_wants_raw());
    assert!(!out.answer(|| 0), "a wish needs no answer");
    assert!(!out.promote(0), "a promotion that comes after the request is none");
    assert_eq!((out.mode(), inc.source()), (Mode::Raw, Source::Raw));
    inc.request_raw(false);
    assert!(!out.peer_wants_raw());
    assert!(out.promote(0));
}

#[test]
fn a_need_is_a_request_of_its_own() {
    let (near, far) = segment();
    let (out, inc) = (outgoing(&near), incoming(&far));
    inc.set_ready();
    assert!(!inc.need_raw(false));
    assert!(inc.need_raw(true) && !inc.need_raw(true));
    assert!(out.peer_wants_raw() && !out.promote(0));
    inc.request_raw(true);
    assert!(inc.need_raw(false) && !inc.need_raw(false));
    assert!(out.peer_wants_raw(), "the wish stands");
    inc.need_raw(true);
    inc.request_raw(false);
    assert!(out.peer_wants_raw(), "the need stands");
    inc.need_raw(false);
    assert!(out.promote(0));
}

#[test]
fn a_recall_makes_the_sender_send_again_behind_the_mark_back() {
    let (near, far) = segment();
    let (out, inc) = with_rest(&near, &far);
    inc.recall();
    assert!(out.peer_wants_raw());
    // A wish that comes later, or is taken back, changes nothing about it.
    inc.request_raw(true);
    inc.request_raw(false);
    assert!(out.peer_wants_raw());
    assert!(out.answer(|| 0) && out.answer(|| 0));
    assert!(!inc.withdraw_recall(), "the sender counts on it");
    out.demote();
    assert_eq!(out.mode(), Mode::BackPending);
    inc.marks(&[MARK_BACK]);
    assert_eq!(inc.recalling(), Recall::Wait, "the sender has not noted the back");
    out.back_sent();
    assert_eq!(out.mode(), Mode::Recalling);
    assert!(!out.may_promote());
    assert_eq!(
        inc.recalling(),
        Recall::Ended,
        "this end has nothing to do with the lane's rest"
    );
    assert_eq!(inc.source(), Source::LaneThenRaw, "asking changes nothing");
    inc.lane_drained();
    assert_eq!(inc.recalling(), Recall::Sending);
    // The sender stands in for the receiver.
    let lane = near.receiver(Side::Second);
    let mut bytes = [0; 9];
    assert_eq!(lane.readable(), Ok(6));
    assert_eq!(lane.copy_out((&mut bytes[..]).into(), 0), 6);
    assert_eq!(&bytes[..6], b"unread");
    lane.consume(6);
    assert_eq!(out.mode(), Mode::Recalling);
    out.recalled();
    assert!(!out.awaits_receiver(), "nothing is left that could come back");
    assert_eq!(out.mode(), Mode::Raw);
    assert_eq!(far.receiver(Side::Second).readable(), Ok(0));
    assert_eq!(inc.recalling(), Recall::Done);
}

#[test]
fn a_recall_without_an_answer_takes_nothing_and_can_be_withdrawn() {
    let (near, far) = segment();
    let (out, inc) = recalled_late(&near, &far);
    assert!(!inc.may_give_back());
    assert_eq!(inc.recalling(), Recall::Wait);
    assert!(inc.withdraw_recall());
    assert!(!out.answer(|| 0));
    assert!(out.peer_wants_raw(), "TCP is still wanted");
    assert_eq!(inc.source(), Source::LaneThenRaw);
    assert_eq!(far.receiver(Side::Second).readable(), Ok(6));
}

#[test]
fn a_sender_that_was_killed_while_it_promoted_is_in_nobodys_way() {
    let (near, far) = segment();
    let (out, inc) = (outgoing(&near), incoming(&far));
    inc.set_ready();
    let request = near.sender(Side::First).peer_word(2);
    request.store(4, Relaxed);
    assert!(out.promote(0));
    assert_eq!(request.load(Relaxed), 0);
    request.store(4, Relaxed);
    inc.recall();
    assert_eq!(inc.recalling(), Recall::Wait);
    assert!(out.answer(|| 0));
    assert_eq!(inc.recalling(), Recall::RawUntil(0));
}

#[test]
fn what_stands_before_the_marks_is_given_back_and_comes_first() {
    let (near, far) = segment();
    let (out, inc) = (outgoing(&near), incoming(&far));
    inc.set_ready();
    assert!(out.promote(3));
    inc.recall();
    assert_eq!(inc.recalling(), Recall::RawUntil(3));
    assert!(!inc.may_give_back());
    assert!(out.answer(|| 0));
    assert!(inc.may_give_back());
    // The sender may be faster.
    out.demote();
    out.back_sent();
    assert_eq!(out.mode(), Mode::Recalling);
    assert!(out.awaits_receiver());
    assert_eq!(
        far.returns(Side::First)
            .expect("on the heap")
            .write(inc.given_back(), b"raw"[..].into()),
        3
    );
    inc.give_back(3);
    assert!(out.awaits_receiver());
    inc.enter_lane();
    assert!(!out.awaits_receiver());
    assert_eq!(inc.recalling(), Recall::Marks);
    inc.marks(&[MARK_BACK]);
    assert_eq!(inc.recalling(), Recall::Ended);
    inc.lane_drained();
    assert_eq!(
        inc.recalling(),
        Recall::Sending,
        "the sender sends the rest as the kernel takes it"
    );
    let mut bytes = [0; 3];
    assert_eq!(out.returned(), 0..3);
    assert_eq!(
        near.returns(Side::First)
            .expect("on the heap")
            .copy_out(0, (&mut bytes[..]).into()),
        3
    );
    assert_eq!(&bytes, b"raw");
    out.sent_again(2);
    assert_eq!((out.mode(), out.returned()), (Mode::Recalling, 2..3));
    out.sent_again(1);
    out.recalled();
    assert_eq!((out.mode(), out.returned()), (Mode::Raw, 3..3));
    assert!(!out.owes_recalled());
}

#[test]
fn a_recall_behind_the_mark_back_makes_the_sender_come_and_fetch() {
    let (near, far) = segment();
    let (out, inc) = recalled_late(&near, &far);
    assert!(!out.owes_recalled() && !out.awaits_receiver());
    assert!(out.answer(|| 9));
    assert!(out.owes_recalled(), "the receiver counts on it");
    assert_eq!(out.mode(), Mode::Raw);
    assert!(out.awaits_receiver(), "what is sent now would have to be given back");
    assert_eq!(inc.recalling(), Recall::Lane);
    assert_eq!(
        (far.receiver(Side::Second).readable(), inc.to_give_back(|| 5)),
        (Ok(6), 6 + 4)
    );
    inc.give_back(6);
    far.receiver(Side::Second).consume(6);
    assert!(!out.must_fetch(), "there may be more");
    assert!(out.awaits_receiver());
    inc.lane_drained();
    assert!(!out.awaits_receiver());
    assert_eq!(inc.recalling(), Recall::Wait);
    assert!(!out.promote(9));
    assert!(out.must_fetch());
    assert!(!out.fetch(None));
    assert!(out.fetch(Some(9)));
    assert_eq!(out.mode(), Mode::BackPending);
    assert_eq!(inc.recalling(), Recall::RawUntil(9));
    inc.give_back(1);
    inc.enter_lane();
    out.back_sent();
    assert_eq!(out.returned(), 0..7);
    out.sent_again(7);
    out.recalled();
    inc.marks(&[MARK_BACK]);
    assert_eq!(inc.recalling(), Recall::Ended);
    inc.lane_drained();
    assert_eq!(inc.recalling(), Recall::Done);
}

#[test]
fn a_sender_does_without_a_receiver_that_has_given_up() {
    let (near, far) = segment();
    let (out, inc) = (outgoing(&near), incoming(&far));
    inc.set_ready();
    assert!(out.promote(3));
    inc.recall();
    assert!(out.answer(|| 0));
    out.demote();
    out.back_sent();
    assert!(out.awaits_receiver());
    inc.give_up_recall();
    assert!(!out.awaits_receiver());
    // Who tries again is not waited for, once the sender has answered, so it must not give back.
    inc.recall();
    assert!(!out.awaits_receiver());
    assert!(!inc.may_give_back());
}

#[test]
fn whatever_the_receiver_takes_is_progress() {
    let (near, far) = segment();
    let (out, inc) = (outgoing(&near), incoming(&far));
    inc.set_ready();
    assert!(out.promote(3));
    near.sender(Side::First).append(b"unread"[..].into()).unwrap();
    let begun = out.progress();
    inc.approached();
    let approached = out.progress();
    assert_ne!(approached, begun);
    assert_eq!(out.progress(), approached, "nothing has been taken since");
    inc.enter_lane();
    let lane = far.receiver(Side::Second);
    assert_eq!(lane.readable(), Ok(6));
    lane.consume(1);
    assert_ne!(out.progress(), approached);
    // Counting has not made it any less ready.
    out.demote();
    out.back_sent();
    assert_eq!(inc.marks(&[MARK_BACK]), 1);
    inc.lane_drained();
    assert!(out.may_promote());
    inc.set_unready();
    assert!(!out.may_promote());
}

#[test]
fn a_reset_that_is_meant_is_told_from_a_death() {
    let (near, far) = segment();
    let (out, inc) = on_lane(&near, &far);
    assert!(!inc.peer_means_reset());
    out.set_means_reset(true);
    assert!(inc.peer_means_reset());
    // Programs change their mind.
    out.set_closing();
    out.set_means_reset(false);
    assert!(!inc.peer_means_reset());
    // Not about what has been refused.
    assert!(!out.is_refused());
    out.set_refused();
    out.set_means_reset(false);
    assert!(out.is_refused() && inc.peer_means_reset());
}

#[test]
fn an_end_is_told_of_before_it_comes() {
    let (near, far) = segment();
    let (out, inc) = on_lane(&near, &far);
    out.set_means_reset(true);
    assert!(!inc.sender_ends());
    out.set_ending();
    assert!(inc.sender_ends() && !inc.sender_refuses());
    out.set_refusing();
    assert!(inc.sender_refuses());
    assert!(inc.peer_means_reset() && !inc.peer_marks());
}

#[test]
fn no_mark_without_bytes_is_put_once_the_peer_closes() {
    let (near, far) = segment();
    let (out, inc) = on_lane(&near, &far);
    let (closing, sees) = (
        Outgoing::new(far.sender(Side::Second)),
        Incoming::new(near.receiver(Side::First)),
    );
    assert!(out.begin_mark(&sees));
    assert!(inc.peer_marks(), "who closes waits for the mark");
    out.end_mark();
    assert!(!inc.peer_marks());
    closing.set_closing();
    assert!(!out.begin_mark(&sees));
    out.end_mark();
    assert!(sees.sender_ends());
    assert!(!sees.peer_means_reset(), "closing in order is not a reset");
}

#[test]
fn all_state_is_in_the_segment_so_a_forked_process_goes_on_with_it() {
    let (near, far) = segment();
    let (out, inc) = on_lane(&near, &far);
    inc.marks(&[MARK_BACK]);
    out.demote();
    assert_eq!(outgoing(&near).mode(), Mode::BackPending);
    assert_eq!(incoming(&far).source(), Source::LaneThenRaw);
}

/// A promotion between the two looks puts a mark among what the second one finds.
#[test]
fn who_looks_at_the_epoch_before_counting_takes_a_mark_for_data() {
    let (near, far) = segment();
    let (out, inc) = (outgoing(&near), incoming(&far));
    let pipe = Pipe::new(99);
    inc.set_ready();
    pipe.send(b"data");
    let (epoch_first, counted_first) = (inc.source(), pipe.queued());
    assert!(out.promote(pipe.send_position()));
    pipe.send(&[MARK_BELL]);
    let (epoch_second, counted_second) = (inc.source(), pipe.queued());
    // Wrong: it was raw, and there are five bytes, of which one is a mark.
    assert_eq!((epoch_first, counted_second), (Source::Raw, 5));
    // Right: there were four bytes, and the second look tells how many are raw.
    assert_eq!((counted_first, epoch_second), (4, Source::RawUntil(4)));
}
