//! What every process that has a connection knows of it: options, which who sets sets for all; that it is banned from
//! lanes; what has been learned of the peer's end; and an error that one of them is to be told of.

use crate::conn::{BANNED, Conn, FORKED, PEER_FIN, SHUT_READ, SHUT_WRITE};
use crate::sys::Errno;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// What forked processes tell each other of options, in memory that they share.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Options {
    /// Bits of `crate::conn::flags`, and those of [`Timed`].
    set: AtomicU32,
    receive_timeout_ns: AtomicU64,
    send_timeout_ns: AtomicU64,
    /// See [`Conn::take_error`].
    error: AtomicI32,
}

/// What a time-out is of. As a number, the bit that says that there is one: words that are new to a connection keep the
/// last one's.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Timed {
    Receive = 1 << 30,
    Send = 1 << 31,
}

impl Options {
    /// For a new connection, which has set none.
    pub(crate) fn forget(&self) {
        self.set.store(0, Relaxed);
        self.error.store(0, Relaxed);
    }

    /// Release pairs with the acquire in [`Conn::timeout_ns`]: who sees the bit sees the time.
    fn set(&self, bits: u32, on: bool) {
        // The line is that of the words that are owned: written to only where something changes.
        let known = self.set.load(Relaxed) & bits;
        if on && known != bits {
            self.set.fetch_or(bits, Release);
        } else if !on && known != 0 {
            self.set.fetch_and(!bits, Release);
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
    /// Whether an option is set, whichever process has set it.
    #[inline]
    pub(crate) fn option(&self, flag: u32) -> bool {
        // What other processes would have to look at is looked at only where there may be some.
        let flags = self.flags.load(Relaxed);
        match self.locks() {
            Some(locks) if flags & FORKED != 0 => locks.options.set.load(Relaxed) & flag != 0,
            _ => flags & flag != 0,
        }
    }

    /// The program has set an option, or taken it back.
    pub(crate) fn set_option(&self, flag: u32, on: bool) {
        self.set_flag(flag, on);
        if let Some(locks) = self.locks() {
            locks.options.set(flag, on);
        }
    }

    /// No direction is to be promoted any more, by whichever process.
    pub(crate) fn ban(&self) {
        self.set_option(BANNED, true);
    }

    #[inline]
    pub(crate) fn is_banned(&self) -> bool {
        self.flag(BANNED) || self.option(BANNED)
    }

    /// Which directions the program has shut down, in whichever process, and whether one that has looked behind the
    /// peer's FIN has seen that, for what looks at this process's flags.
    #[inline]
    pub(crate) fn learn_what_is_shut(&self) {
        let flags = self.flags.load(Relaxed);
        if flags & FORKED != 0
            && let Some(locks) = self.locks()
        {
            let shut = locks.options.set.load(Relaxed) & (SHUT_READ | SHUT_WRITE | PEER_FIN) & !flags;
            if shut != 0 {
                self.set_flag(shut, true);
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
                locks.options.error.swap(0, AcqRel)
            }
            None => self.pending_error.swap(0, AcqRel),
        }
    }

    pub(crate) fn has_error(&self) -> bool {
        match self.locks() {
            Some(locks) if self.flag(FORKED) => locks.options.error.load(Relaxed) != 0,
            _ => self.pending_error.load(Relaxed) != 0,
        }
    }

    pub(crate) fn set_error(&self, errno: Errno) {
        if let Some(locks) = self.locks() {
            locks.options.error.store(errno, Release);
        }
        self.pending_error.store(errno, Release);
    }

    /// How long calls wait at most; 0: for ever.
    pub(crate) fn timeout_ns(&self, timed: Timed) -> u64 {
        match self.locks() {
            Some(locks) if locks.options.set.load(Acquire) & timed as u32 != 0 => {
                locks.options.timeout_ns(timed).load(Relaxed)
            }
            _ => 0,
        }
    }

    pub(crate) fn set_timeout_ns(&self, timed: Timed, time_ns: u64) {
        if let Some(locks) = self.locks() {
            locks.options.timeout_ns(timed).store(time_ns, Relaxed);
            locks.options.set(timed as u32, time_ns != 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_bits_each_is_set_and_taken_back() {
        let options = Options::default();
        options.set(1, true);
        options.set(3, true);
        assert_eq!(options.set.load(Relaxed), 3);
        options.set(2, false);
        options.set(3, false);
        assert_eq!(options.set.load(Relaxed), 0);
    }
}
