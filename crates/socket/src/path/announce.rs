//! Bytes that announce themselves: a mark with the next ones, for a program that found nothing and may now wait where
//! this library does not see it.
//!
//! Most programs then call `poll`, which looks at lanes. So the announcement has a wait bit of its own, and a wait that
//! is seen takes it back for as long as it lasts, if it is known to be the calling thread's: a mark costs the peer more
//! than all the rest of a message.

use crate::conn::Conn;
use crate::wait::bell;
use crate::{epoll, lock, ready};
use core::sync::atomic::Ordering::Relaxed;

/// In [`Conn::announcer`]: more than one thread asked.
const SEVERAL: u32 = u32::MAX;
/// In [`Conn::announcer`]: the thread with the number in the other bits has taken its request back for a wait.
const TAKEN_BACK: u32 = 1 << 31;

/// The program found nothing and will not wait here. Unless it waits where the lane is looked at, the next bytes must
/// announce themselves on the kernel connection. True if there are some already.
pub(crate) fn announce(conn: &'static Conn, id: u64) -> bool {
    !epoll::covers(conn) && ask(conn, id)
}

fn ask(conn: &'static Conn, id: u64) -> bool {
    let Some(guard) = conn.own_receive(id) else {
        return false;
    };
    let bytes = ready::arm_for(&guard, conn, bell::ANNOUNCED);
    let tid = lock::tid();
    let alone = matches!(conn.announcer.load(Relaxed) & !TAKEN_BACK, known if known == 0 || known == tid);
    conn.announcer.store(if alone { tid } else { SEVERAL }, Relaxed);
    bytes
}

/// The calling thread begins a wait that looks at the lane.
#[inline]
pub(crate) fn take_back(conn: &'static Conn) {
    if conn.announcer.load(Relaxed) == lock::tid() {
        take_own_back(conn);
    }
}

fn take_own_back(conn: &'static Conn) {
    let Some(guard) = conn.own_receive(conn.id()) else {
        return;
    };
    // A forked process may have asked too.
    let alone = conn.locks().is_some_and(|locks| locks.holders.load(Relaxed) == 1);
    if alone && conn.announcer.load(Relaxed) == lock::tid() {
        ready::disarm_for(&guard, conn, bell::ANNOUNCED);
        conn.announcer.store(lock::tid() | TAKEN_BACK, Relaxed);
    }
}

/// The wait is over. If it found no bytes, as `none` says, the request stands again; true if there are some after all.
#[inline]
pub(crate) fn renew(conn: &'static Conn, none: bool) -> bool {
    if conn.announcer.load(Relaxed) != lock::tid() | TAKEN_BACK {
        return false;
    }
    conn.announcer.store(0, Relaxed);
    none && ask(conn, conn.id())
}
