//! Giving a direction back to the kernel connection, with all that its receiver has not read: for a successor that knows no lanes.
//!
//! What stands unread before the marks of a lane stretch can reach the successor only by travelling again. So the receiver takes raw bytes
//! before X off the kernel connection, and lane bytes whose stretch ended before the sender could see the recall, puts them into the
//! segment's room for [returns](viaduct_channel::Returns), and the sender sends them raw, before what is left in the lane. If it is raw
//! already, it begins a stretch of no bytes, up to which the receiver gives back what has come meanwhile.

use crate::{
    BACK_SEEN, COUNT, GIVEN_UP, Incoming, Mode, Outgoing, PROMOTING, R_ENDED, R_READING, R_REQUEST, RECALL, S_EPOCH,
    S_MODE, Source,
};
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// What a receiver that recalls has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// Nothing: all that comes by the kernel connection from here on is the stream.
    Done,
    /// Wait for the sender.
    Wait,
    /// Give back the raw bytes up to this kernel position, then [`Incoming::enter_lane`].
    RawUntil(u64),
    /// Take the marks of the lane stretch.
    Marks,
    /// Give back what the lane holds, then [`Incoming::lane_drained`].
    Lane,
}

impl Outgoing<'_> {
    /// Whether the receiver will read no more from the lane: what it left there must travel again, raw, after
    /// [`MARK_BACK`](crate::MARK_BACK).
    pub fn peer_recalls(&self) -> bool {
        // Acquire pairs with the release in `Incoming::recall`: the receiver's head stands still.
        self.lane.peer_word(R_REQUEST).load(Acquire) & RECALL != 0
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

    /// Whether a raw direction must stop for bytes that the receiver has given back.
    pub fn must_fetch(&self) -> bool {
        self.mode() == Mode::Raw && !self.returned().is_empty() && self.read_to_the_end()
    }

    /// Where [`must_fetch`](Self::must_fetch) holds: begins a stretch without lane bytes at kernel position `until`, behind whose end the bytes
    /// given back are sent. Where the receiver does not wait for it any more, they are sent at once. False, and nothing has changed, if it
    /// waits and there is no position.
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
    pub fn knows_rest(&self) -> bool {
        // Acquire pairs with the release in `Incoming::enter_lane`.
        let reading = self.lane.peer_word(R_READING).load(Acquire) & !BACK_SEEN;
        reading == self.lane.word(S_EPOCH).load(Relaxed) || self.read_to_the_end() || self.is_given_up()
    }

    /// In [`Mode::Recalling`]: nothing is left in the lane, nor of what was given back.
    pub fn recalled(&self) {
        self.set_mode(0);
    }

    fn read_to_the_end(&self) -> bool {
        self.lane.peer_word(R_ENDED).load(Acquire) == self.lane.word(S_EPOCH).load(Relaxed)
    }

    fn is_given_up(&self) -> bool {
        self.lane.peer_word(R_REQUEST).load(Relaxed) & GIVEN_UP != 0
    }
}

impl Incoming<'_> {
    /// Asks the sender for TCP and for all that is unread in the lane, which this end reads no more: a successor that knows no lanes is
    /// to receive it. [`recalling`](Self::recalling) tells how it goes on.
    pub fn recall(&self) {
        let request = self.lane.word(R_REQUEST);
        request.fetch_and(!GIVEN_UP, Relaxed);
        // Release pairs with `Outgoing::peer_recalls`; acquire with the end of a promotion that came first.
        request.fetch_or(RECALL, AcqRel);
    }

    /// Where a recall stands.
    pub fn recalling(&self) -> Recall {
        // Acquire pairs with the release in `Outgoing::promote`: a promotion that came first has been announced.
        if self.lane.word(R_REQUEST).load(Acquire) & PROMOTING != 0 {
            return Recall::Wait;
        }
        let sender = self.lane.peer_word(S_MODE).load(Acquire);
        match self.source() {
            Source::Raw if sender >> COUNT == self.given_back() => Recall::Done,
            Source::Raw => Recall::Wait,
            Source::RawUntil(until) => Recall::RawUntil(until),
            Source::Lane => Recall::Marks,
            // Not before it notes that the back has gone out can be told whether it has seen the recall. If so, it sends the rest, in order,
            // as the kernel takes it.
            Source::LaneThenRaw => match Mode::of(sender) {
                Mode::Raw => Recall::Lane,
                Mode::Recalling => Recall::Done,
                Mode::Lane | Mode::BackPending => Recall::Wait,
            },
        }
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
