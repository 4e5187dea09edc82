//! What the program does past the library, so that its connections must stay on TCP: code in scopes of symbols of its
//! own, whose calls go straight to the C library, rings by which the kernel moves bytes, and epoll sets that it made by
//! system calls of its own (Rust's `rustix` does).
//!
//! Who waits in such a set is not seen to: no lane is looked at for it, and what a program does after such a wait need
//! not lead it to `EAGAIN`, where bytes to come would be announced. So in a process that has such a set connections
//! stay on TCP.

use crate::agent::counters;
use crate::conn::records;
use crate::descriptors::table;
use crate::path::demote;
use crate::sys::{self, raw};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64};
use viaduct_control::Reason;

/// So far beyond the connection's own number sets are looked for: they are mostly made before connections, and numbers
/// are given out lowest first.
const BEYOND: i32 = 64;
/// Between two looks at this or any later offer, except that the first ones are looked at more often.
const AGAIN_NS: u64 = 1_000_000_000;

/// The reason's number, where there is such code or such a ring; 0: there is neither.
static BAR: AtomicU16 = AtomicU16::new(0);
/// Whether the connections that there were before have been given back to the kernel.
static PREPARED: AtomicBool = AtomicBool::new(false);
/// Whether there is such a set.
static FOUND: AtomicBool = AtomicBool::new(false);
static OFFERS: AtomicU32 = AtomicU32::new(0);
static LOOKED_AT_NS: AtomicU64 = AtomicU64::new(0);

/// Such code is about to be loaded, or such a ring to be made, and may be once `prepare` has given all connections
/// back, which this answers. Threads that come together each see to it.
pub(crate) fn come(reason: Reason, prepare: impl FnOnce() -> bool) -> bool {
    // Of two reasons the later one in their list is told: the ring.
    BAR.fetch_max(reason as u16, Relaxed);
    counters::tell_bar();
    // Acquire pairs with the release below: who need not prepare sees what was done.
    if PREPARED.load(Acquire) {
        return true;
    }
    let is_done = prepare();
    if is_done {
        PREPARED.store(true, Release);
    }
    is_done
}

/// Whether there is such a ring, and so no lane.
pub(crate) fn has_ring() -> bool {
    PREPARED.load(Acquire) && bar() == Some(Reason::UnseenRing)
}

/// Why no connection of the process is to be offered.
pub(crate) fn bar() -> Option<Reason> {
    match BAR.load(Relaxed) {
        0 => None,
        number => Reason::from_number(number),
    }
}

/// Why the connection with descriptor `fd`, which is about to be offered, is not to be. Nothing may be owned.
pub(crate) fn objection(fd: i32) -> Option<Reason> {
    bar().or_else(|| has_set(fd).then_some(Reason::UnseenWait))
}

/// Whether the process, which is about to offer a connection with descriptor `fd`, has such a set. The first time it is
/// found to, the connections that it has already are banned. Nothing may be owned.
fn has_set(fd: i32) -> bool {
    if FOUND.load(Relaxed) {
        return true;
    }
    let offers = OFFERS.fetch_add(1, Relaxed).wrapping_add(1);
    let now = sys::now_ns();
    if !offers.is_power_of_two() && now.saturating_sub(LOOKED_AT_NS.load(Relaxed)) < AGAIN_NS {
        return false;
    }
    LOOKED_AT_NS.store(now, Relaxed);
    let found = look(fd.saturating_add(BEYOND));
    if found && !FOUND.swap(true, Relaxed) {
        records::all().for_each(|conn| demote::ban(conn, Reason::UnseenWait));
    }
    found
}

/// Whether a descriptor up to `last` is an epoll set that the table does not know.
fn look(last: i32) -> bool {
    // Nobody has registered this one, so the question changes nothing.
    let Ok(stranger) = raw::eventfd() else { return false };
    let is_set = |fd| raw::epoll_ctl(fd, libc::EPOLL_CTL_MOD, stranger, 0, 0) == Err(libc::ENOENT);
    let found = (0..=last).any(|fd| table::epoll_set(fd).is_none() && !table::is_private(fd) && is_set(fd));
    raw::close(stranger);
    found
}
