//! Giving a direction back to the kernel connection, with all that its receiver has not read: for a successor that
//! knows no lanes.
//!
//! What stands unread before the marks of a lane stretch can reach the successor only by travelling again. So the
//! receiver takes raw bytes before X off the kernel connection, and lane bytes whose stretch ended before the sender
//! could see the recall, puts them into the segment's room for [returns](viaduct_channel::Returns), and the sender
//! sends them raw, before what is left in the lane. If it is raw already, it begins a stretch of no bytes, up to which
//! the receiver gives back what has come meanwhile.
//!
//! The receiver takes nothing before the sender has answered the recall: until then it can be withdrawn, and nothing
//! has happened.

use crate::{
    ANSWERED, BACK_SEEN, COUNT, GIVEN_UP, Incoming, LEAVING, LEFT, Mode, Outgoing, PROMOTING, R_ENDED, R_READING,
    R_REQUEST, RECALL, S_CLOSED, S_EPOCH, S_MODE, Source, WISH,
};
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::fence;

/// Attempts to change a word that the peer changes too; a hostile one can spoil them all.
pub(crate) const ATTEMPTS: u32 = 16;

/// What a receiver that recalls has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// Nothing: all that comes by the kernel connection from here on is the stream.
    Done,
    /// The same, once the sender has sent all of it again; it is at it, and needs no help.
    Sending,
    /// Wait for the sender.
    Wait,
    /// Once [`Incoming::may_give_back`]: give back the raw bytes up to this kernel position. Then,
    /// [`Incoming::enter_lane`].
    RawUntil(u64),
    /// Take the marks of the lane stretch.
    Marks,
    /// Give back what the lane holds, then [`Incoming::lane_drained`].
    Lane,
    /// Nothing of the stretch that has ended is this end's to give back: [`Incoming::lane_drained`], and let the sender
    /// know.
    Ended,
}

impl Outgoing<'_> {
    /// Answers a recall, if there is one: this end will send again what the receiver gives back and leaves in the lane,
    /// which the receiver reads no more. The caller can send. `position` is how far the direction is where it is raw:
    /// so much at least the receiver will have to give back.
    pub fn answer(&self, position: impl FnOnce() -> u64) -> bool {
        if self.lane.peer_word(R_REQUEST).load(Relaxed) & (RECALL | ANSWERED) == RECALL && self.mode() == Mode::Raw {
            let word = self.lane.word(S_CLOSED);
            // In place of what a recall that was withdrawn had noted; the exchange below releases it.
            word.fetch_and((1 << COUNT) - 1, Relaxed);
            word.fetch_or(position() << COUNT, Relaxed);
        }
        let request = self.lane.peer_word(R_REQUEST);
        // Acquire pairs with the release in `Incoming::recall`: the receiver's head stands still.
        let mut found = request.load(Acquire);
        for _ in 0..ATTEMPTS {
            if found & RECALL == 0 || found & (ANSWERED | PROMOTING) == ANSWERED {
                break;
            }
            // Whoever was promoting was killed in it: the direction is the caller's.
            match request.compare_exchange(found, (found | ANSWERED) & !PROMOTING, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(other) => found = other,
            }
        }
        found & (RECALL | ANSWERED) == RECALL | ANSWERED
    }

    /// Whether the receiver recalls what it has not read, and is not done with: unanswered, or with something left to
    /// be sent or given back.
    pub fn is_recalled(&self) -> bool {
        match self.lane.peer_word(R_REQUEST).load(Relaxed) & (RECALL | ANSWERED) {
            RECALL => true,
            0 => false,
            _ => self.owes_recalled(),
        }
    }

    /// Whether a recall has been answered: what the receiver left in the lane must travel again, raw, after
    /// [`MARK_BACK`](crate::MARK_BACK).
    pub fn has_answered(&self) -> bool {
        let request = self.lane.peer_word(R_REQUEST).load(Acquire);
        request & (RECALL | ANSWERED) == RECALL | ANSWERED
    }

    /// Whether something that a recall asks for is still to be sent, or may be given back yet: a FIN would cut it off.
    pub fn owes_recalled(&self) -> bool {
        let owes_raw =
            || (!self.is_given_up() || self.has_been_left()) && (self.awaits_receiver() || self.must_fetch());
        let is_awaited = self.has_answered() || self.has_been_left();
        is_awaited && (self.mode() != Mode::Raw || owes_raw())
    }

    /// Bytes given back that have not been sent again, by their positions in the room for returns.
    pub fn returned(&self) -> Range<u64> {
        // Acquire pairs with the release in `Incoming::give_back`: the bytes are there.
        let given = self.lane.peer_word(R_REQUEST).load(Acquire) >> COUNT;
        self.lane.word(S_MODE).load(Relaxed) >> COUNT..given
    }

    /// So many of them have been sent again.
    pub fn sent_again(&self, bytes: usize) {
        self.lane.word(S_MODE).fetch_add((bytes as u64) << COUNT, Relaxed);
    }

    /// Whether a raw direction must stop for bytes that the receiver has given back, or has left in the lane as it
    /// [left](Incoming::has_left) between two steps of this end.
    pub fn must_fetch(&self) -> bool {
        let left = self.has_been_left() && self.has_answered();
        self.mode() == Mode::Raw
            && (left || !self.is_being_left())
            && (!self.returned().is_empty() || left && self.lane.in_flight() > 0)
            && self.read_to_the_end()
    }

    /// Where [`must_fetch`](Self::must_fetch) holds: begins a stretch without lane bytes at kernel position `until`,
    /// behind whose end the bytes given back are sent. Where the receiver does not wait for it any more, they are sent
    /// at once. False, and nothing has changed, if it waits and there is no position.
    pub fn fetch(&self, until: Option<u64>) -> bool {
        match until {
            _ if self.is_given_up() => self.set_mode(3),
            Some(until) => {
                self.announce(until);
                self.demote();
            }
            None => return false,
        }
        true
    }

    /// In [`Mode::Recalling`]: whether the receiver has given back all that it will.
    fn knows_rest(&self) -> bool {
        self.has_entered() && !self.is_being_left() || self.read_to_the_end() || self.is_given_up()
    }

    /// Whether it is the receiver's turn in a recall. Nothing is sent meanwhile: what a raw direction sends before the
    /// receiver has ended its last stretch might have to be given back too, and have no room.
    pub fn awaits_receiver(&self) -> bool {
        match self.mode() {
            Mode::Recalling => !self.knows_rest(),
            Mode::Raw if self.is_being_left() => !self.has_been_left(),
            Mode::Raw => {
                self.has_answered() && !self.read_to_the_end() && !self.is_given_up() && !self.nothing_comes_back()
            }
            Mode::Lane | Mode::BackPending => false,
        }
    }

    /// In [`Mode::Raw`]: whether the receiver has entered the last stretch, and has neither left anything of it nor
    /// given anything back.
    fn nothing_comes_back(&self) -> bool {
        let empty = self.has_entered() && self.lane.in_flight() == 0;
        // Pairs with the release of the receiver's head: what has left the lane to be given back is seen there.
        fence(Acquire);
        empty && self.returned().is_empty()
    }

    fn has_entered(&self) -> bool {
        // Acquire pairs with the release in `Incoming::enter_lane`.
        let reading = self.lane.peer_word(R_READING).load(Acquire) & !BACK_SEEN;
        reading == self.lane.word(S_EPOCH).load(Relaxed)
    }

    /// In [`Mode::Recalling`]: nothing is left in the lane, nor of what was given back.
    pub fn recalled(&self) {
        self.set_mode(0);
    }

    fn read_to_the_end(&self) -> bool {
        self.lane.peer_word(R_ENDED).load(Acquire) == self.lane.word(S_EPOCH).load(Relaxed)
    }

    /// A receiver that leaves has said so before it has, whatever it gave up before.
    fn is_given_up(&self) -> bool {
        let request = self.lane.peer_word(R_REQUEST).load(Acquire);
        request & if request & LEAVING == 0 { GIVEN_UP } else { LEFT } != 0
    }
}

impl Incoming<'_> {
    /// Asks the sender for TCP and for all that is unread in the lane: a successor that knows no lanes is to receive
    /// it. Once the sender has answered, this end reads the lane no more. [`recalling`](Self::recalling) tells how it
    /// goes on.
    pub fn recall(&self) {
        let request = self.lane.word(R_REQUEST);
        // Who gave one up that was not answered may try again.
        if request.load(Relaxed) & ANSWERED == 0 {
            request.fetch_and(!GIVEN_UP, Relaxed);
        }
        // Release pairs with `Outgoing::answer`; acquire with the end of a promotion that came first.
        request.fetch_or(RECALL, AcqRel);
    }

    /// Takes a recall back that has not been answered; what is asked for then is TCP. False if it has been.
    pub fn withdraw_recall(&self) -> bool {
        let request = self.lane.word(R_REQUEST);
        let mut found = request.load(Relaxed);
        for _ in 0..ATTEMPTS {
            if found & ANSWERED != 0 {
                return false;
            }
            // One of this and `Outgoing::answer` comes first.
            let withdrawn = found & !(RECALL | GIVEN_UP | LEAVING | LEFT) | WISH;
            match request.compare_exchange(found, withdrawn, AcqRel, Relaxed) {
                Ok(_) if found & LEFT != 0 => {
                    self.come_back();
                    return true;
                }
                Ok(_) => return true,
                Err(other) => found = other,
            }
        }
        false
    }

    /// Where a recall stands.
    pub fn recalling(&self) -> Recall {
        if self.has_left() {
            return Recall::Done;
        }
        // Acquire there pairs with the release in `Outgoing::promote`: a promotion that came first has been announced.
        if self.is_being_promoted() {
            return Recall::Wait;
        }
        let sender = self.lane.peer_word(S_MODE).load(Acquire);
        let mode = Mode::of(sender);
        match self.source() {
            Source::Raw => self.recalling_raw(),
            Source::RawUntil(until) => Recall::RawUntil(until),
            Source::Lane => Recall::Marks,
            // Not before the sender notes that the back has gone out can be told whether it stands in for this end.
            Source::LaneThenRaw => match mode {
                Mode::Raw if self.lane.has_bytes() && self.may_give_back() => Recall::Lane,
                Mode::Raw if self.lane.has_bytes() => Recall::Wait,
                Mode::Raw | Mode::Recalling => Recall::Ended,
                Mode::Lane | Mode::BackPending => Recall::Wait,
            },
        }
    }

    /// Whether the sender is about to promote, so that what it puts on the kernel connection next is no byte of the
    /// stream.
    pub fn is_being_promoted(&self) -> bool {
        self.lane.word(R_REQUEST).load(Acquire) & PROMOTING != 0
    }

    /// The same, where the last stretch has ended.
    fn recalling_raw(&self) -> Recall {
        let sender = self.lane.peer_word(S_MODE).load(Acquire);
        if Mode::of(sender) == Mode::Recalling {
            Recall::Sending
        } else if sender >> COUNT == self.given_back() {
            Recall::Done
        } else {
            Recall::Wait
        }
    }

    /// Bytes that a recall will have this end give back if its kernel position is `position`, which is asked for where
    /// it matters, as far as can be told before the sender has answered; from then on exactly, or less.
    pub fn to_give_back(&self, position: impl FnOnce() -> u64) -> u64 {
        let lane = || self.lane.readable().map_or(0, |bytes| bytes as u64);
        let ahead = |until: u64| until.saturating_sub(position());
        match (self.source(), self.answered_at()) {
            // The sender sends the lane's rest again by itself.
            (Source::Raw | Source::Lane, _) | (Source::LaneThenRaw, None) => 0,
            (Source::RawUntil(until), None) => ahead(until),
            (Source::RawUntil(until), Some(answered)) => ahead(answered.max(until)).saturating_add(lane()),
            (Source::LaneThenRaw, Some(answered)) => ahead(answered).saturating_add(lane()),
        }
    }

    /// Kernel position up to which a sender that was raw when it answered had sent, and until it may go on. `None` if
    /// it is not raw.
    fn answered_at(&self) -> Option<u64> {
        let is_raw = Mode::of(self.lane.peer_word(S_MODE).load(Acquire)) == Mode::Raw;
        is_raw.then(|| self.lane.peer_word(S_CLOSED).load(Relaxed) >> COUNT)
    }

    /// Whether the sender has answered the recall, and still counts on this end.
    pub fn may_give_back(&self) -> bool {
        self.lane.word(R_REQUEST).load(Acquire) & (ANSWERED | GIVEN_UP | LEFT) == ANSWERED
    }

    /// Bytes given back so far, and so the position of the next one in the room for returns.
    pub fn given_back(&self) -> u64 {
        self.lane.word(R_REQUEST).load(Relaxed) >> COUNT
    }

    /// So many more bytes stand in the room for returns.
    pub fn give_back(&self, bytes: usize) {
        // Release pairs with `Outgoing::returned`.
        self.lane.word(R_REQUEST).fetch_add((bytes as u64) << COUNT, Release);
    }

    /// The receiver waits for the sender's part no longer: the sender is to do without its answers.
    pub fn give_up_recall(&self) {
        self.lane.word(R_REQUEST).fetch_or(GIVEN_UP, Release);
    }
}
