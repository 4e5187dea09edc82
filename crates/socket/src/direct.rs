//! Calls of the program's that are inside the kernel while nothing of ours is owned.

use crate::conn::{Conn, Phase};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;

/// A call of the program's that is inside the kernel with its own buffers, on a connection that was not attached when it began.
#[derive(Debug)]
pub(crate) struct DirectCall<'a> {
    count: &'a AtomicU32,
}

impl<'a> DirectCall<'a> {
    /// Begins a receive; `None` if the connection has been attached meanwhile, or searched.
    #[inline]
    pub(crate) fn receive(conn: &'a Conn) -> Option<Self> {
        let call = Self::begin(conn, &conn.direct_receives)?;
        if conn.searched() {
            call.end();
            return None;
        }
        Some(call)
    }

    /// Begins a receive that takes nothing, for a search that waits; `None` if the connection has been attached meanwhile.
    pub(crate) fn peek(conn: &'a Conn) -> Option<Self> {
        conn.peeks.fetch_add(1, SeqCst);
        let call = Self::begin(conn, &conn.direct_receives);
        if call.is_none() {
            conn.peeks.fetch_sub(1, SeqCst);
        }
        call
    }

    /// The receive that [`DirectCall::peek`] began has returned.
    pub(crate) fn end_peek(self, conn: &Conn) {
        self.end();
        conn.peeks.fetch_sub(1, SeqCst);
    }

    /// Begins a send; `None` if the connection has been attached meanwhile.
    #[inline]
    pub(crate) fn send(conn: &'a Conn) -> Option<Self> {
        Self::begin(conn, &conn.direct_sends)
    }

    #[inline]
    fn begin(conn: &Conn, count: &'a AtomicU32) -> Option<Self> {
        // SeqCst pairs with `Conn::pay_ready`, `search::begin` and `Conn::sending_directly`.
        count.fetch_add(1, SeqCst);
        if conn.phase() == Phase::Attached {
            count.fetch_sub(1, SeqCst);
            return None;
        }
        Some(Self { count })
    }

    /// The call has returned. Not a destructor: a cancelled thread must find nothing to run.
    #[inline]
    pub(crate) fn end(self) {
        self.count.fetch_sub(1, SeqCst);
    }
}
