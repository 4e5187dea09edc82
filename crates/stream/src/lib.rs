//! One direction of a connection as a sequence of stretches (law 2 of the design).
//!
//! A direction starts *raw*: the kernel connection carries the program's bytes. The sender alone changes that:
//!
//! * **promote**: the sender publishes, in the lane, "the raw stretch ends at kernel position X" and a new epoch. From
//!   X on the stream's bytes are in the lane, and the kernel connection carries [marks](MARK_BELL), single bytes that
//!   are not part of the stream.
//! * **demote**: the sender sends [`MARK_BACK`] on the kernel connection. Everything published in the lane before it
//!   belongs to the ended stretch; every kernel byte after it is raw again. The receiver acknowledges the epoch once it
//!   has taken the last lane byte, and only then may the sender promote again. So one word pair suffices, and nothing
//!   is ever announced twice.
//!
//! A *kernel position* counts the bytes of one direction of the TCP connection, marks included, from its first byte;
//! both ends can ask the kernel for it (`TCP_INFO`), so bytes that passed before anyone counted do no harm.
//!
//! Law for receivers: while a promotion is possible ([`Outgoing::may_promote`] at the peer), never take more bytes from
//! the kernel than were there *before* the epoch was last looked at. Marks are published after the epoch, so such bytes
//! are raw.
//!
//! This crate makes no system calls and reads no clock; every word it reads may have been written by a hostile peer,
//! whose worst is to garble its own connection.
//!
//! Words in the lane, by the side that writes them:
//!
//! | word | meaning |
//! |---|---|
//! | sender 0 | X of the newest epoch |
//! | sender 1 | newest epoch, counted from 1 |
//! | sender 2 | bit 0: a reset from this end is one that its program means; bit 1: this end is closing; bit 2: it is putting a mark; bit 3: its FIN is about to go out; bit 4: its kernel answers whatever comes with RST; bit 5: so will the receiver's kernel what this end has sent; bit 6: it heeds a receiver that leaves; from bit 8 on: its send position when it answered a recall, if it was raw |
//! | sender 3 | the sender's own [`Mode`], so that forked processes share it; from bit 8 on: bytes given back that it has sent again |
//! | sender's aside | bit 0: it is putting a mark; from bit 1 on: marks that it has put in the newest stretch |
//! | receiver 0 | bit 0: this end is attached, promotions may come; from bit 8 on: receives of raw bytes that a promotion waits for, or the kernel position at which the receiver has left |
//! | receiver 1 | newest epoch whose stretch has ended and been read |
//! | receiver 2 | bit 0: please demote; bit 1: recall; bits 2 and 3, set by the sender: it is promoting, it answers the recall; bit 4: the recall has been given up; bit 5: please demote for now; bit 6: the receiver leaves; bit 7: it has left; from bit 8 on: bytes given back |
//! | receiver 3 | epoch being read, bit 63: its [`MARK_BACK`] has been seen |
#![forbid(unsafe_code)]

mod holes;
mod leave;
mod recall;

pub use holes::{Full, HOLES, Holes};
pub use leave::Leave;
pub use recall::Recall;

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use viaduct_channel::{Receiver, Sender};

/// Mark: look at the lane. Carries no meaning beyond making the socket readable.
pub const MARK_BELL: u8 = 0;
/// Mark: the lane stretch ends with what has been published; raw bytes follow.
pub const MARK_BACK: u8 = 1;

const S_UNTIL: usize = 0;
const S_EPOCH: usize = 1;
const S_CLOSED: usize = 2;
const S_MODE: usize = 3;
const MEANS_RESET: u64 = 1;
const CLOSING: u64 = 2;
const MARKING: u64 = 4;
const ENDING: u64 = 8;
const REFUSING: u64 = 16;
const REFUSED: u64 = 32;
const HEEDS: u64 = 64;
const GONE: u64 = 128;
const R_READY: usize = 0;
const R_ENDED: usize = 1;
const R_REQUEST: usize = 2;
const R_READING: usize = 3;
const BACK_SEEN: u64 = 1 << 63;
const MODE: u64 = 0xff;
const WISH: u64 = 1;
const RECALL: u64 = 2;
const PROMOTING: u64 = 4;
const ANSWERED: u64 = 8;
const GIVEN_UP: u64 = 16;
const NEED: u64 = 32;
const LEAVING: u64 = 64;
const LEFT: u64 = 128;
/// Where counts begin: of bytes given back in the sender's mode and the receiver's request, of receives beside its
/// readiness.
const COUNT: u32 = 8;
const READY: u64 = 1;

/// How the sender sends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Bytes go to the kernel connection.
    Raw,
    /// Bytes go to the lane.
    Lane,
    /// [`MARK_BACK`] must be sent before anything else; then the mode is [`Mode::Raw`].
    BackPending,
    /// What the receiver has given back, and what it left in the lane, must be sent raw before anything else.
    Recalling,
}

impl Mode {
    #[inline]
    fn of(word: u64) -> Self {
        match word & MODE {
            1 => Self::Lane,
            2 => Self::BackPending,
            3 => Self::Recalling,
            _ => Self::Raw,
        }
    }
}

/// The sending half of one end. Used by one party at a time.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    lane: Sender<'a>,
}

impl<'a> Outgoing<'a> {
    /// The half that sends on `lane`.
    #[inline]
    pub fn new(lane: Sender<'a>) -> Self {
        Self { lane }
    }

    /// How bytes are sent now.
    #[inline]
    pub fn mode(&self) -> Mode {
        Mode::of(self.lane.word(S_MODE).load(Relaxed))
    }

    fn set_mode(&self, mode: u64) {
        let word = self.lane.word(S_MODE);
        // Release pairs with the acquire in `Incoming::recalling`: who sees that the sender is raw sees what it took
        // from the lane.
        word.store(word.load(Relaxed) & !MODE | mode, Release);
    }

    /// Whether the receiver is attached and has taken the whole of the last lane stretch, so that [`Outgoing::promote`]
    /// is allowed.
    #[inline]
    pub fn may_promote(&self) -> bool {
        // Acquire pairs with the release in `Incoming::set_ready` and `Incoming::lane_drained`.
        self.mode() == Mode::Raw
            && self.lane.peer_word(R_READY).load(Acquire) & READY != 0
            && self.lane.peer_word(R_ENDED).load(Acquire) == self.lane.word(S_EPOCH).load(Relaxed)
    }

    /// Changes whenever the receiver takes anything off the lane, or raw bytes that it has to take before.
    pub fn progress(&self) -> u64 {
        let head = self.lane.tail().wrapping_sub(self.lane.in_flight() as u64);
        head.wrapping_add(self.lane.peer_word(R_READY).load(Relaxed) >> COUNT)
    }

    /// Whether the receiver asks for TCP.
    #[inline]
    pub fn peer_wants_raw(&self) -> bool {
        self.lane.peer_word(R_REQUEST).load(Relaxed) & (WISH | RECALL | NEED) != 0
    }

    /// Declares that the raw stretch ends at kernel position `until` and the lane goes on from there. A mark must
    /// follow on the kernel connection, to wake a receiver that waits there. False, and nothing has changed, if the
    /// receiver asks for TCP.
    pub fn promote(&self, until: u64) -> bool {
        let request = self.lane.peer_word(R_REQUEST);
        // A receiver that recalls either comes first, or sees that a promotion is on its way and waits for the epoch.
        // The bit alone is left of a sender that was killed in the middle, in whose place this one is.
        if let Err(found) = request.compare_exchange(0, PROMOTING, AcqRel, Relaxed)
            && found != PROMOTING
        {
            return false;
        }
        self.announce(until);
        // Release pairs with the acquire in `Incoming::recalling`.
        request.fetch_and(!PROMOTING, Release);
        true
    }

    fn announce(&self, until: u64) {
        let epoch = self.lane.word(S_EPOCH).load(Relaxed);
        self.lane.word(S_UNTIL).store(until, Relaxed);
        self.begin_puts();
        self.set_mode(1);
        // Release pairs with the acquire in `Incoming::source`: who sees the epoch sees X.
        self.lane.word(S_EPOCH).store(epoch.wrapping_add(1), Release);
    }

    /// Ends the lane stretch; [`MARK_BACK`] is now owed to the kernel connection.
    pub fn demote(&self) {
        if self.mode() == Mode::Lane {
            self.set_mode(2);
        }
    }

    /// Whether the program means it if the kernel resets the connection once this end is gone, however it goes; another
    /// reset may be due to unread marks only.
    pub fn set_means_reset(&self, means: bool) {
        let word = self.lane.word(S_CLOSED);
        if means {
            word.fetch_or(MEANS_RESET, Relaxed);
        } else {
            word.fetch_and(!MEANS_RESET, Relaxed);
        }
    }

    /// This end's FIN is about to go out: nothing follows what has been published.
    pub fn set_ending(&self) {
        self.lane.word(S_CLOSED).fetch_or(ENDING, Relaxed);
    }

    /// Both of this end's directions are down: its kernel answers whatever comes with RST.
    pub fn set_refusing(&self) {
        self.lane.word(S_CLOSED).fetch_or(REFUSING, Relaxed);
    }

    /// Bytes are about to be sent to a peer that [refuses](Self::set_refusing) them: its kernel resets the connection,
    /// and tells its program so.
    pub fn set_refused(&self) {
        self.lane.word(S_CLOSED).fetch_or(REFUSED, Relaxed);
    }

    /// Whether [bytes have been sent to a peer that refuses them](Self::set_refused).
    pub fn is_refused(&self) -> bool {
        self.lane.word(S_CLOSED).load(Relaxed) & REFUSED != 0
    }

    /// The process has handed the connection over, and lets go of it: nobody sends again what the receiver has not
    /// received.
    pub fn set_gone(&self) {
        self.lane.word(S_CLOSED).fetch_or(GONE, Relaxed);
    }

    /// The end is being closed, and takes marks once more after [`Incoming::peer_marks`] is false: those that are put
    /// later find nobody.
    pub fn set_closing(&self) {
        // SeqCst pairs with `begin_mark`: either the peer sees this, or we see that it is putting a mark.
        self.lane.word(S_CLOSED).fetch_or(CLOSING, SeqCst);
    }

    /// Whether the peer [is closing](Self::set_closing) its end, as `incoming` tells: what is sent from now on may not
    /// be received.
    #[inline]
    pub fn peer_closes<'p>(&self, incoming: impl FnOnce() -> Incoming<'p>) -> bool {
        // In this order: the first word is looked at with every send, and seldom written.
        self.lane.peer_word(R_READY).load(Relaxed) & READY == 0
            && incoming().lane.peer_word(S_CLOSED).load(Relaxed) & CLOSING != 0
    }

    /// Before a mark that no bytes follow. False if the peer, as `incoming` tells, is closing: the mark would break off
    /// what its kernel still has to deliver. [`end_mark`](Self::end_mark) is due either way.
    pub fn begin_mark(&self, incoming: &Incoming<'_>) -> bool {
        self.lane.word(S_CLOSED).fetch_or(MARKING, SeqCst);
        incoming.lane.peer_word(S_CLOSED).load(SeqCst) & CLOSING == 0
    }

    /// The mark has been put, or not.
    pub fn end_mark(&self) {
        self.lane.word(S_CLOSED).fetch_and(!MARKING, Release);
    }

    /// [`MARK_BACK`] has been handed to the kernel.
    pub fn back_sent(&self) {
        self.set_mode(if self.has_answered() { 3 } else { 0 });
    }
}

/// Where the next bytes of the stream come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel connection, all that it has. What was there before this answer was raw.
    Raw,
    /// The kernel connection, up to position X and no further.
    RawUntil(u64),
    /// The lane; the kernel connection carries marks.
    Lane,
    /// The lane, for what is left there; the kernel connection is raw again after that.
    LaneThenRaw,
}

/// The receiving half of one end. Used by one party at a time.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    lane: Receiver<'a>,
}

impl<'a> Incoming<'a> {
    /// The half that receives on `lane`.
    #[inline]
    pub fn new(lane: Receiver<'a>) -> Self {
        Self { lane }
    }

    /// Tells the sender that this end is attached and follows the receivers' law.
    pub fn set_ready(&self) {
        // Release pairs with `Outgoing::may_promote`.
        self.lane.word(R_READY).fetch_or(READY, Release);
    }

    /// Tells the sender to promote no more; a stretch that has begun goes on.
    pub fn set_unready(&self) {
        self.lane.word(R_READY).fetch_and(!READY, Release);
    }

    /// Asks the sender for TCP, or takes that back; answers whether that is news. A recall stands either way: who has
    /// promised to read no more cannot be asked for less.
    pub fn request_raw(&self, raw: bool) -> bool {
        let request = self.lane.word(R_REQUEST);
        let before = if raw {
            request.fetch_or(WISH, Relaxed)
        } else {
            request.fetch_and(!WISH, Relaxed)
        };
        (before & WISH != 0) != raw
    }

    /// The receiver needs more at once than the lane can hold: asks for TCP as [`request_raw`](Self::request_raw) does,
    /// and independently of that. Answers whether that is news. What one process needs another may take back that has
    /// received some of it.
    pub fn need_raw(&self, raw: bool) -> bool {
        let request = self.lane.word(R_REQUEST);
        // Mostly there is nothing to take back.
        if (request.load(Relaxed) & NEED != 0) == raw {
            return false;
        }
        let before = if raw {
            request.fetch_or(NEED, Relaxed)
        } else {
            request.fetch_and(!NEED, Relaxed)
        };
        (before & NEED != 0) != raw
    }

    /// Whether a reset is one that the sender's program means, or the answer to its bytes.
    pub fn peer_means_reset(&self) -> bool {
        self.lane.peer_word(S_CLOSED).load(Relaxed) & (MEANS_RESET | REFUSED) != 0
    }

    /// Whether the sender has ended the lane stretch, though its [`MARK_BACK`] may not have been seen: more may be
    /// behind what the lane holds.
    #[inline]
    pub fn sender_leaves(&self) -> bool {
        // Acquire pairs with the release in `Outgoing::demote`: all of the stretch has been published.
        Mode::of(self.lane.peer_word(S_MODE).load(Acquire)) != Mode::Lane
    }

    /// Whether the sender has ended its direction, or is about to: the kernel connection tells of it, if it does not
    /// yet, and whether bytes went before that.
    #[inline]
    pub fn sender_ends(&self) -> bool {
        self.lane.peer_word(S_CLOSED).load(Relaxed) & (ENDING | CLOSING) != 0
    }

    /// Whether the sender [is gone](Outgoing::set_gone), though the connection goes on.
    pub fn sender_is_gone(&self) -> bool {
        self.lane.peer_word(S_CLOSED).load(Relaxed) & GONE != 0
    }

    /// Whether the sender's kernel [answers whatever is sent to it](Outgoing::set_refusing) with RST.
    pub fn sender_refuses(&self) -> bool {
        self.lane.peer_word(S_CLOSED).load(Relaxed) & REFUSING != 0
    }

    /// Whether the sender is putting a mark just now.
    pub fn peer_marks(&self) -> bool {
        self.lane.peer_word(S_CLOSED).load(SeqCst) & MARKING != 0
    }

    /// Raw bytes have been received in [`Source::RawUntil`]: a sender whose lane is full meanwhile sees that it is not
    /// forgotten.
    pub fn approached(&self) {
        self.lane.word(R_READY).fetch_add(1 << COUNT, Relaxed);
    }

    /// Where the next bytes come from.
    #[inline]
    pub fn source(&self) -> Source {
        let reading = self.lane.word(R_READING).load(Relaxed);
        if reading != 0 {
            return if reading & BACK_SEEN == 0 {
                Source::Lane
            } else {
                Source::LaneThenRaw
            };
        }
        // Acquire pairs with the release in `Outgoing::promote`.
        let epoch = self.lane.peer_word(S_EPOCH).load(Acquire);
        if epoch == self.lane.word(R_ENDED).load(Relaxed) {
            Source::Raw
        } else {
            Source::RawUntil(self.lane.peer_word(S_UNTIL).load(Relaxed))
        }
    }

    /// All raw bytes up to X have been received: the lane is next.
    pub fn enter_lane(&self) {
        let epoch = self.lane.word(R_ENDED).load(Relaxed).wrapping_add(1) & !BACK_SEEN;
        // Never 0, which would mean that the lane has not been entered: a hostile peer could have it entered for ever.
        // Release pairs with the acquire in `Outgoing::has_entered`: who sees this sees all that was given back before.
        self.lane.word(R_READING).store(epoch.max(1), Release);
    }

    /// Takes marks that were peeked from the kernel connection in [`Source::Lane`]; answers how many of them may be
    /// discarded there. The rest, after a [`MARK_BACK`], is raw.
    pub fn marks(&self, marks: &[u8]) -> usize {
        match marks.iter().position(|mark| *mark == MARK_BACK) {
            Some(index) => {
                let reading = self.lane.word(R_READING).load(Relaxed);
                self.lane.word(R_READING).store(reading | BACK_SEEN, Relaxed);
                index + 1
            }
            None => marks.len(),
        }
    }

    /// In [`Source::LaneThenRaw`], once the lane is empty: the stretch has ended, raw is next.
    pub fn lane_drained(&self) {
        let epoch = self.lane.word(R_READING).load(Relaxed) & !BACK_SEEN;
        self.lane.word(R_READING).store(0, Relaxed);
        // Release pairs with `Outgoing::may_promote`: who sees the acknowledgement may overwrite X.
        self.lane.word(R_ENDED).store(epoch, Release);
    }
}
