//! Bells: the eventfds that peers ring to wake this process.
//!
//! A bell belongs to one epoll set or to one thread. A connection's peer is told of one bell, that of the set the socket is in
//! or of the thread that offered it; a waiter with another bell asks to be woken by a mark on the kernel connection instead.

use crate::agent;
use crate::descriptors::table;
use crate::process::thread;
use crate::sys::raw;
use crate::wait::peer_bells;
use core::cell::Cell;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};

/// Wait bit: ring the bell.
pub(crate) const BY_BELL: u32 = 1;
/// Wait bit: send a mark on the kernel connection.
pub(crate) const BY_SOCKET: u32 = 2;
/// Wait bit: likewise, for a program that may wait where it is not seen, see `crate::path::announce`.
pub(crate) const ANNOUNCED: u32 = 4;

/// Bells in one process. Waiters beyond them are woken by marks.
const BELLS: usize = 1024;

/// One bell.
#[derive(Debug)]
pub(crate) struct Bell {
    /// One more than its eventfd; 0: it has none. So a table of them that nobody has used is all zeroes, and takes no memory.
    descriptor: AtomicI32,
    used: AtomicBool,
    /// Whether viaductd holds it.
    given: AtomicBool,
    number: AtomicU32,
}

static BELL: [Bell; BELLS] = [const {
    Bell {
        descriptor: AtomicI32::new(0),
        used: AtomicBool::new(false),
        given: AtomicBool::new(false),
        number: AtomicU32::new(0),
    }
}; BELLS];

thread_local! {
    static OWN: Cell<u32> = const { Cell::new(0) };
}

impl Bell {
    /// One more than its index; never 0.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Relaxed)
    }

    /// Its eventfd; -1 if it has none.
    #[inline]
    pub(crate) fn fd(&self) -> i32 {
        self.descriptor.load(Relaxed) - 1
    }

    /// Whether the bell must accompany the offer that names it: only the first time.
    pub(crate) fn give(&self) -> bool {
        !self.given.swap(true, Relaxed)
    }

    /// The offer did not go out.
    pub(crate) fn take_back(&self) {
        self.given.store(false, Relaxed);
    }

    /// Gives the bell up for another owner.
    pub(crate) fn abandon(&self) {
        self.used.store(false, Release);
    }
}

/// A bell that nobody has, if there is one and the program can spare a descriptor for it.
pub(crate) fn claim() -> Option<&'static Bell> {
    for (number, bell) in (1..).zip(&BELL) {
        if bell.used.load(Relaxed) || bell.used.swap(true, AcqRel) {
            continue;
        }
        if bell.fd() < 0 {
            if !peer_bells::may_have(number as usize) {
                bell.abandon();
                return None;
            }
            match raw::eventfd() {
                Ok(fd) => bell.descriptor.store(agent::hide(fd) + 1, Relaxed),
                Err(_) => {
                    bell.abandon();
                    return None;
                }
            }
        }
        bell.number.store(number, Relaxed);
        return Some(bell);
    }
    None
}

/// The bell numbered `number`.
pub(crate) fn numbered(number: u32) -> Option<&'static Bell> {
    BELL.get((number as usize).checked_sub(1)?)
}

/// The calling thread's bell, if it has one.
pub(crate) fn known_of_thread() -> Option<&'static Bell> {
    numbered(OWN.get())
}

/// The calling thread's bell.
pub(crate) fn of_thread() -> Option<&'static Bell> {
    if let Some(bell) = numbered(OWN.get()) {
        return Some(bell);
    }
    let bell = claim()?;
    OWN.set(bell.number());
    thread::this().watch();
    Some(bell)
}

/// The calling thread ends.
pub(crate) fn thread_ends() {
    if let Some(bell) = numbered(OWN.take()) {
        bell.abandon();
    }
}

/// Wakes the thread that bell `number` belongs to, unless it is the caller: the connection that it may sleep on has been closed.
pub(crate) fn wake_other_thread(number: u32) {
    if let Some(bell) = numbered(number)
        && OWN.get() != number
    {
        let _ = raw::eventfd_ring(bell.fd());
    }
}

/// viaductd is a new one: it has no bells yet.
pub(crate) fn reset_given() {
    for bell in BELL.iter().filter(|bell| bell.given.load(Relaxed)) {
        bell.given.store(false, Relaxed);
    }
}

/// In a forked child: the bells are the parent's.
pub(crate) fn after_fork() {
    OWN.set(0);
    // Most have never been used, and a store takes memory.
    for bell in BELL.iter().filter(|bell| bell.used.load(Relaxed) || bell.fd() >= 0) {
        let fd = bell.descriptor.swap(0, Relaxed) - 1;
        if fd >= 0 {
            table::take(fd);
            raw::close(fd);
        }
        bell.used.store(false, Relaxed);
        bell.given.store(false, Relaxed);
    }
}
