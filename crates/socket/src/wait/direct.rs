//! Calls of the program's that are inside the kernel while nothing of ours is owned.
//!
//! A connection counts them. A thread that is cancelled inside one, or jumps out of it, never says that it has
//! returned: so each thread also notes what it has begun, and what is still noted when the thread ends has not ended
//! otherwise.

use crate::conn::{Conn, Phase};
use crate::process::thread;
use crate::sys;
use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, compiler_fence};

/// Calls of one thread at a time: its own, and those of signal handlers that interrupt it. More are not noted.
const MOST: usize = 4;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Receive,
    /// A receive that takes nothing.
    Peek,
    Send,
}

/// A call as its connection counts it.
#[derive(Clone, Copy, Debug)]
struct Begun {
    conn: &'static Conn,
    id: u64,
    kind: Kind,
}

/// The calls that one thread is in. Each place is set whole by whoever found it empty: handlers leave it as they found
/// it.
#[derive(Debug)]
pub(crate) struct Calls([Cell<Option<Begun>>; MOST]);

impl Calls {
    /// Of a thread that is in none.
    pub(crate) const fn new() -> Self {
        Self([const { Cell::new(None) }; MOST])
    }
}

impl Begun {
    fn count(&self) -> &'static AtomicU32 {
        match self.kind {
            Kind::Receive => &self.conn.direct_receives,
            Kind::Peek => &self.conn.peeks,
            Kind::Send => &self.conn.direct_sends,
        }
    }

    #[inline]
    fn end(self) -> bool {
        let is_known = self.conn.id() == self.id;
        if is_known {
            take_one(self.count());
        }
        is_known
    }
}

#[inline]
fn add_one(count: &AtomicU32) {
    if sys::single_threaded() {
        count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
        // A signal handler that finds no call has come before the look at the phase that follows.
        compiler_fence(SeqCst);
    } else {
        // SeqCst pairs with `Conn::pay_ready`, `search::begin` and `Conn::sending_directly`.
        count.fetch_add(1, SeqCst);
    }
}

/// In a forked child the counts begin at 0, whatever its thread is in.
#[inline]
fn take_one(count: &AtomicU32) {
    if sys::single_threaded() {
        count.store(count.load(Relaxed).saturating_sub(1), Relaxed);
    } else {
        let _ = count.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1));
    }
}

/// Notes a call; answers where, if there is room.
#[inline]
fn note(begun: Begun) -> Option<&'static Cell<Option<Begun>>> {
    let thread = thread::this();
    thread.watch();
    let place = thread.calls.0.iter().find(|place| place.get().is_none())?;
    place.set(Some(begun));
    Some(place)
}

/// A call of the program's that is inside the kernel with its own buffers, on a connection that was not attached when
/// it began.
#[derive(Debug)]
pub(crate) struct DirectCall {
    begun: Begun,
    /// Where it is noted, if it is.
    place: Option<&'static Cell<Option<Begun>>>,
}

impl DirectCall {
    /// Begins a receive; `None` if the connection has been attached meanwhile, or searched.
    #[inline]
    pub(crate) fn receive(conn: &'static Conn) -> Option<Self> {
        let call = Self::begin(conn, Kind::Receive)?;
        if conn.searched() {
            call.end();
            return None;
        }
        Some(call)
    }

    /// Begins a receive that takes nothing, for a search that waits; `None` if the connection has been attached
    /// meanwhile.
    pub(crate) fn peek(conn: &'static Conn) -> Option<Self> {
        Self::begin(conn, Kind::Peek)
    }

    /// Begins a send; `None` if the connection has been attached meanwhile.
    #[inline]
    pub(crate) fn send(conn: &'static Conn) -> Option<Self> {
        Self::begin(conn, Kind::Send)
    }

    #[inline]
    fn begin(conn: &'static Conn, kind: Kind) -> Option<Self> {
        let id = conn.id();
        let begun = Begun { conn, id, kind };
        add_one(begun.count());
        if conn.phase() == Phase::Attached {
            begun.end();
            return None;
        }
        // The only thread of a process leaves nobody behind who would wait for its call.
        let place = if sys::single_threaded() { None } else { note(begun) };
        Some(Self { begun, place })
    }

    /// The call has returned; false if the record is another connection's by now. Not a destructor: a cancelled thread
    /// must find nothing to run.
    #[inline]
    pub(crate) fn end(self) -> bool {
        if let Some(place) = self.place {
            place.set(None);
        }
        self.begun.end()
    }
}

/// The calling thread ends, and with it the calls that it has never come back from.
pub(crate) fn thread_ends() {
    for begun in thread::this().calls.0.iter().filter_map(Cell::take) {
        begun.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::records;
    use crate::descriptors::lifecycle;

    /// What it has moved is no next connection's.
    #[test]
    fn a_call_that_outlives_its_connection_knows() {
        let (conn, _sockets) = records::on_the_heap();
        let (short, long) = (DirectCall::receive(conn).unwrap(), DirectCall::receive(conn).unwrap());
        assert!(short.end());
        lifecycle::closing(conn.fd());
        assert!(!long.end());
    }
}
