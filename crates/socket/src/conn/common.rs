//! What every process that has a connection knows of it: options, which who sets sets for all; that it is banned from
//! lanes; what has been learned of the peer's end; and an error that one of them is to be told of.

use crate::conn::{BANNED, Conn, FORKED, PEER_FIN, SHUT_READ, SHUT_WRITE};
use crate::sys::Errno;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

/// What forked processes tell each other of a connection, in memory that they share.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Common {
    /// Bits of `crate::conn::flags`, and those of [`Timed`].
    flags: AtomicU32,
    receive_timeout_ns: AtomicU64,
    send_timeout_ns: AtomicU64,
    /// See [`Conn::take_error`].
    error: AtomicI32,
    /// See [`Conn::is_meant_for_successors`].
    is_meant: AtomicBool,
}

/// What a time-out is of. As a number, the bit that says that there is one: words that are new to a connection keep the
/// last one's.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Timed {
    Receive = 1 << 30,
    Send = 1 << 31,
}

impl Common {
    /// For a new connection, which has set none.
    pub(crate) fn forget(&self) {
        self.flags.store(0, Relaxed);
        self.error.store(0, Relaxed);
        self.is_meant.store(false, Relaxed);
    }

    /// Release pairs with the acquire in [`Conn::timeout_ns`]: who sees the bit sees the time.
    fn set_flags(&self, bits: u32, on: bool) {
        // The line is that of the words that are owned: written to only where something changes.
        let known = self.flags.load(Relaxed) & bits;
        if on && known != bits {
            self.flags.fetch_or(bits, Release);
        } else if !on && known != 0 {
            self.flags.fetch_and(!bits, Release);
        }
    }

    fn timeout_ns(&self, timed: Timed) -> &AtomicU64 {
        match timed {
            Timed::Receive => &self.receive_timeout_ns,
            Timed::Send => &self.send_timeout_ns,
        }
    }
}

impl Conn {
    /// Whether one of the flags that processes have in common is set, whichever has set it.
    #[inline]
    pub(crate) fn common_flag(&self, flag: u32) -> bool {
        // What other processes would have to look at is looked at only where there may be some.
        let flags = self.flags.load(Relaxed);
        match self.locks() {
            Some(locks) if flags & FORKED != 0 => locks.common.flags.load(Relaxed) & flag != 0,
            _ => flags & flag != 0,
        }
    }

    /// Sets these flags, or takes them back, for all processes: as the program does with an option.
    pub(crate) fn set_common_flag(&self, flag: u32, on: bool) {
        self.set_flag(flag, on);
        if let Some(locks) = self.locks() {
            locks.common.set_flags(flag, on);
        }
    }

    /// No direction is to be promoted any more, by whichever process.
    pub(crate) fn ban(&self) {
        self.set_common_flag(BANNED, true);
    }

    #[inline]
    pub(crate) fn is_banned(&self) -> bool {
        self.flag(BANNED) || self.common_flag(BANNED)
    }

    /// Which directions have ended, for what looks at this process's flags: shut down by the program, in whichever
    /// process, or by the peer's FIN, where one that has looked behind it has seen it.
    #[inline]
    pub(crate) fn learn_what_has_ended(&self) {
        let flags = self.flags.load(Relaxed);
        if flags & FORKED != 0
            && let Some(locks) = self.locks()
        {
            let ended = locks.common.flags.load(Relaxed) & (SHUT_READ | SHUT_WRITE | PEER_FIN) & !flags;
            if ended != 0 {
                self.set_flag(ended, true);
            }
        }
    }

    /// An error that the kernel has told, and no longer knows, before the program could be told of it, taken; 0 for
    /// none. Of several processes one takes it, whichever had met it.
    pub(crate) fn take_error(&self) -> Errno {
        match self.locks() {
            _ if !self.has_error() => 0,
            // In this order: what this process knows is but a hint that there may be one.
            Some(locks) => {
                self.pending_error.store(0, Relaxed);
                locks.common.error.swap(0, AcqRel)
            }
            None => self.pending_error.swap(0, AcqRel),
        }
    }

    pub(crate) fn has_error(&self) -> bool {
        match self.locks() {
            Some(locks) if self.flag(FORKED) => locks.common.error.load(Relaxed) != 0,
            _ => self.pending_error.load(Relaxed) != 0,
        }
    }

    pub(crate) fn set_error(&self, errno: Errno) {
        if let Some(locks) = self.locks() {
            locks.common.error.store(errno, Release);
        }
        self.pending_error.store(errno, Release);
    }

    /// Whether the program has said of a descriptor that the programs which its processes become are to have it.
    pub(crate) fn is_meant_for_successors(&self) -> bool {
        self.locks().is_some_and(|locks| locks.common.is_meant.load(Relaxed))
    }

    pub(crate) fn mean_for_successors(&self) {
        if let Some(locks) = self.locks() {
            locks.common.is_meant.store(true, Relaxed);
        }
    }

    /// How long calls wait at most; 0: for ever.
    pub(crate) fn timeout_ns(&self, timed: Timed) -> u64 {
        match self.locks() {
            Some(locks) if locks.common.flags.load(Acquire) & timed as u32 != 0 => {
                locks.common.timeout_ns(timed).load(Relaxed)
            }
            _ => 0,
        }
    }

    pub(crate) fn set_timeout_ns(&self, timed: Timed, time_ns: u64) {
        if let Some(locks) = self.locks() {
            locks.common.timeout_ns(timed).store(time_ns, Relaxed);
            locks.common.set_flags(timed as u32, time_ns != 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_bits_each_is_set_and_taken_back() {
        let common = Common::default();
        common.set_flags(1, true);
        common.set_flags(3, true);
        assert_eq!(common.flags.load(Relaxed), 3);
        common.set_flags(2, false);
        common.set_flags(3, false);
        assert_eq!(common.flags.load(Relaxed), 0);
    }
}
