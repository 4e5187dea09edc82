//! Threads that sleep until a mark tells of bytes, counted with the connections they wait for. Who takes a mark while others sleep must arm the
//! lane again on their behalf, since their wait bit went with it.

use crate::conn::Conn;
use crate::lifecycle;
use core::cell::Cell;
use core::sync::atomic::Ordering::SeqCst;

/// A thread is counted with no more connections at a time: several threads seldom wait for one connection, and then not for many.
const MOST: usize = 8;

thread_local! {
    /// What the thread has been counted with, and which connection that was. A thread need not come back from its sleep: it is cancelled, or
    /// jumps out of a signal handler.
    static COUNTED: Cell<[Option<(&'static Conn, u64)>; MOST]> = const { Cell::new([None; MOST]) };
}

/// The calling thread goes to sleep until marks tell of bytes of `conns`. To be said before they are armed: who takes a mark meanwhile must
/// know.
pub(crate) fn fall_asleep(conns: impl Iterator<Item = &'static Conn>) {
    wake_up();
    let mut counted = [None; MOST];
    for (place, conn) in counted.iter_mut().zip(conns) {
        let id = conn.id();
        if let Some(locks) = conn.locks() {
            locks.asleep.fetch_add(1, SeqCst);
            *place = Some((conn, id));
        }
    }
    if counted.iter().any(Option::is_some) {
        lifecycle::watch_thread();
        COUNTED.set(counted);
    }
}

/// The calling thread is awake, though it may have left its sleep without saying so.
pub(crate) fn wake_up() {
    for (conn, id) in COUNTED.take().into_iter().flatten() {
        // The record may be another connection's by now.
        if conn.id() == id
            && let Some(locks) = conn.locks()
        {
            let _ = locks.asleep.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1));
        }
    }
}

/// In a forked child, whose parent counts on.
pub(crate) fn after_fork() {
    COUNTED.set([None; MOST]);
}

impl Conn {
    /// Whether threads sleep until a mark tells of bytes.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.locks().is_some_and(|locks| locks.asleep.load(SeqCst) > 0)
    }
}
