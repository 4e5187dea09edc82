//! A registration in an epoll set that the program has just taken back, and the kernel still has. Many programs
//! register the same connection again at once, for something else: then the kernel is asked to change one thing, not
//! two.
//!
//! There is at most one, and as long as the process has one thread. It must not show: before anybody can wait, and
//! before a descriptor or a process comes or goes, the kernel is told ([`empty`]); but not by `posix_spawn`, whose
//! child seldom waits in its parent's set. Only sets in which the program waits by calls that are seen are concerned.

use crate::conn::{Conn, records};
use crate::epoll::Registration;
use crate::sys::{self, raw};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

/// One more than the number of the connection's record; 0: empty.
static HELD: AtomicU32 = AtomicU32::new(0);

fn token(conn: &Conn) -> u32 {
    u32::try_from(conn.index() + 1).unwrap_or(0)
}

/// Whether it is this connection's.
#[inline(always)]
pub(crate) fn holds(conn: &Conn) -> bool {
    let held = HELD.load(Relaxed);
    held != 0 && held == token(conn)
}

/// Keeps the connection's registration, which is noted as taken back.
#[inline(always)]
pub(crate) fn put(conn: &Conn) {
    empty();
    HELD.store(token(conn), Relaxed);
}

/// It is no longer to be taken back, or there is nothing left of it.
pub(crate) fn take(conn: &Conn) {
    if holds(conn) {
        let _ = HELD.compare_exchange(token(conn), 0, AcqRel, Relaxed);
    }
}

/// Has the kernel take back what it holds.
#[inline(always)]
pub(crate) fn empty() {
    let held = HELD.load(Relaxed);
    if held != 0 {
        take_back(held);
    }
}

#[cold]
fn take_back(held: u32) {
    let Some(conn) = records::record(held as usize - 1) else {
        return;
    };
    let lone = &conn.lone;
    // Where the process has got more threads meanwhile, one of them may be registering it anew.
    let _owned = if sys::single_threaded() { None } else { lone.own() };
    if HELD.load(Relaxed) != held {
        return;
    }
    let Some(set) = lone.in_set() else {
        // Closed unseen, and its registrations with it.
        let _ = HELD.compare_exchange(held, 0, AcqRel, Relaxed);
        return;
    };
    let Registration { fd, .. } = lone.registration();
    let _ = raw::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
    if HELD.compare_exchange(held, 0, AcqRel, Relaxed).is_err() && !lone.is_parked() {
        // A signal handler has registered it anew, which was a change then and is undone; or nothing is left to be
        // done.
        let Registration { fd, events, data, .. } = lone.registration();
        let _ = raw::epoll_ctl(set.fd(), libc::EPOLL_CTL_ADD, fd, events, data);
    }
}
