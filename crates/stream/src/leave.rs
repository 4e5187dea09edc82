//! A receiver that ends a lane stretch in its sender's stead, and leaves the connection to a successor that knows no
//! lanes: the sender has not answered the recall, since it does not run, and a mark that it put later would be a byte
//! of the stream to whoever receives then.
//!
//! Two words make the two exclude each other. The sender says that it is putting a mark, and then looks whether the
//! receiver leaves; the receiver says that it leaves, and then looks whether a mark is being put, or is on its way: the
//! sender counts those of the stretch, and the receiver knows how many it has taken. Until it knows of all, it has not
//! left, and a sender that goes on meanwhile waits for it.

use crate::recall::ATTEMPTS;
use crate::{
    ANSWERED, BACK_SEEN, COUNT, HEEDS, Incoming, LEAVING, LEFT, Mode, Outgoing, PROMOTING, R_ENDED, R_READING, R_READY,
    R_REQUEST, RECALL, S_CLOSED, S_MODE, S_UNTIL, Source,
};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// In the sender's word aside: it is putting a mark.
const PUTTING: u64 = 1;
/// One mark there.
const ONE: u64 = 2;
/// In the receiver's word of readiness, once it has left: it was amid a lane stretch, whose back it had seen.
const AMID: u64 = 2;
const BEHIND_BACK: u64 = 4;

/// What a receiver that leaves has to do before it [has left](Incoming::has_left).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Nothing now: the sender is amid something, or [`Recall`](crate::Recall) tells what is to be done first.
    NotNow,
    /// Take the marks that have come, up to a back, until there are [no more](Incoming::has_all_marks); then
    /// [`Incoming::has_gone`].
    Marks,
    /// Give back the raw bytes that have come; then [`Incoming::has_gone`].
    Raw,
}

impl Outgoing<'_> {
    /// A stretch begins, in which no mark has been put.
    pub(crate) fn begin_puts(&self) {
        self.lane.aside().store(0, Relaxed);
        self.lane.word(S_CLOSED).fetch_or(HEEDS, Relaxed);
    }

    /// Before any mark is handed to the kernel. False if the receiver leaves: then none may be.
    /// [`end_put`](Self::end_put) is due either way.
    pub fn begin_put(&self) -> bool {
        let puts = self.lane.aside();
        // SeqCst pairs with `Incoming::leave`: either this end sees the receiver leave, or that sees a mark coming.
        puts.store(puts.load(Relaxed) | PUTTING, SeqCst);
        self.lane.peer_word(R_REQUEST).load(SeqCst) & LEAVING == 0
    }

    /// The kernel has taken the mark, or not.
    pub fn end_put(&self, taken: bool) {
        let puts = self.lane.aside();
        let before = puts.load(Relaxed) & !PUTTING;
        // One store, so that there is always either one to come or one more to be counted.
        puts.store(before.wrapping_add(if taken { ONE } else { 0 }), Release);
    }

    /// Whether the receiver leaves, or has left.
    pub(crate) fn is_being_left(&self) -> bool {
        self.lane.peer_word(R_REQUEST).load(Acquire) & LEAVING != 0
    }

    pub(crate) fn has_been_left(&self) -> bool {
        self.lane.peer_word(R_REQUEST).load(Acquire) & LEFT != 0
    }

    /// Kernel position at which the receiver has left. Where more has been sent, what the successor has is not the
    /// stream.
    pub fn left_at(&self) -> Option<u64> {
        self.has_been_left()
            .then(|| self.lane.peer_word(R_READY).load(Relaxed) >> COUNT)
    }
}

impl Incoming<'_> {
    /// Ends a recall without the sender. Nobody who knows lanes goes on here. To be called again until it [has
    /// left](Self::has_left); in between, a sender that runs after all may do its part. `for_good`: the recall will not
    /// be withdrawn, so that bytes may be given back.
    pub fn leave(&self, for_good: bool) -> Leave {
        let request = self.lane.word(R_REQUEST).load(Relaxed);
        let heeds = self.lane.peer_word(S_CLOSED).load(Relaxed) & HEEDS != 0;
        if request & (RECALL | PROMOTING) != RECALL || !heeds {
            return Leave::NotNow;
        }
        let sender = self.lane.peer_word(S_MODE).load(Acquire);
        let leave = match (self.source(), Mode::of(sender)) {
            (Source::Lane | Source::LaneThenRaw, Mode::Lane | Mode::BackPending) => Leave::Marks,
            (Source::Raw, Mode::Raw) if sender >> COUNT != self.given_back() => Leave::Raw,
            // Once begun, by where it stands: the sender waits.
            (Source::Lane, _) if self.leaves() => Leave::Marks,
            (Source::RawUntil(_) | Source::LaneThenRaw, _) if for_good => {
                self.answer_in_its_stead();
                return Leave::NotNow;
            }
            _ => return Leave::NotNow,
        };
        // SeqCst pairs with `Outgoing::begin_put`.
        self.lane.word(R_REQUEST).fetch_or(LEAVING, SeqCst);
        leave
    }

    /// The sender may not have seen the recall. What it promises by its answer holds all the same: it looks whether
    /// there is one before it does anything that it must not do any more, but for putting a mark, and for promoting.
    fn answer_in_its_stead(&self) {
        let request = self.lane.word(R_REQUEST);
        let mut found = request.load(Relaxed);
        for _ in 0..ATTEMPTS {
            if found & (RECALL | PROMOTING | ANSWERED) != RECALL {
                break;
            }
            match request.compare_exchange(found, found | ANSWERED, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(other) => found = other,
            }
        }
    }

    /// Whether this end [leaves](Self::leave), or has left.
    pub fn leaves(&self) -> bool {
        self.lane.word(R_REQUEST).load(Relaxed) & LEAVING != 0
    }

    /// Whether all marks of the stretch have been taken that the sender has put or is putting, `position` being that of
    /// the next byte. None comes any more then.
    pub fn has_all_marks(&self, position: u64) -> bool {
        // SeqCst pairs with `Outgoing::begin_put`.
        let puts = self.lane.peer_aside().load(SeqCst);
        let taken = position.wrapping_sub(self.lane.peer_word(S_UNTIL).load(Relaxed));
        let noted = (puts / ONE).wrapping_add(puts & PUTTING);
        // One more, where a process that shared the sender was killed before it had noted its mark.
        taken.wrapping_sub(noted).cast_signed() >= 0
    }

    /// This end has left, at kernel position `position`: the sender puts no mark any more, and sends what it finds in
    /// the lane and what was given back. A stretch that was being read has ended.
    pub fn has_gone(&self, position: u64) {
        let reading = self.lane.word(R_READING).load(Relaxed);
        let was_amid = match reading {
            0 => 0,
            _ if reading & BACK_SEEN == 0 => AMID,
            _ => AMID | BEHIND_BACK,
        };
        self.lane.word(R_READY).store(position << COUNT | was_amid, Relaxed);
        if reading != 0 {
            self.lane_drained();
        }
        // Release pairs with the acquires of `Outgoing`: who sees this sees all that was given back, and where it
        // ended.
        self.lane.word(R_REQUEST).fetch_or(LEAVING | LEFT, Release);
    }

    /// The recall has been withdrawn: a stretch that was ended is read on.
    pub(crate) fn come_back(&self) {
        let was_amid = self.lane.word(R_READY).swap(0, Relaxed);
        if was_amid & AMID != 0 {
            let epoch = self.lane.word(R_ENDED).load(Relaxed);
            let back = if was_amid & BEHIND_BACK == 0 { 0 } else { BACK_SEEN };
            self.lane.word(R_ENDED).store(epoch.wrapping_sub(1), Release);
            self.lane.word(R_READING).store(epoch | back, Release);
        }
    }

    /// Whether this end has left: all that comes by the kernel connection from then on is the stream.
    pub fn has_left(&self) -> bool {
        self.lane.word(R_REQUEST).load(Relaxed) & LEFT != 0
    }

    /// Whether the sender has not yet sent all that this end had not received as it left.
    pub fn is_owed(&self) -> bool {
        self.has_left()
            && (self.lane.has_bytes() || self.lane.peer_word(S_MODE).load(Acquire) >> COUNT != self.given_back())
    }
}
