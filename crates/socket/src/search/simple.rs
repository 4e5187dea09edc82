//! What most calls on a searched connection come down to: one buffer, and bytes for all of it, none behind a hole. This
//! takes a fraction of the instructions of [`run`](super::run), which goes on where it is not so.

use super::{Recorded, Searched, front, lanes};
use crate::conn::{Conn, Phase};
use crate::lock::Guard;
use libc::c_int;
use viaduct_channel::Dest;

/// Whether a call with these flags takes bytes as it gets them.
#[inline]
pub(super) fn may_be_simple(flags: c_int) -> bool {
    flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0
}

/// Takes all that a call with one buffer asks for that [may be simple](may_be_simple), if it is.
#[inline]
pub(super) fn take_simply(conn: &'static Conn, id: u64, dest: Dest<'_>, offset: u64) -> Option<usize> {
    match offset {
        0 => take_head(conn, id, dest),
        _ => take_behind(conn, id, dest, offset),
    }
}

#[inline(never)]
pub(super) fn take_head(conn: &'static Conn, id: u64, dest: Dest<'_>) -> Option<usize> {
    take_at(conn, id, dest, 0)
}

#[inline(never)]
fn take_behind(conn: &'static Conn, id: u64, dest: Dest<'_>, offset: u64) -> Option<usize> {
    take_at(conn, id, dest, offset)
}

/// Once for each of those above, so that what has no offset keeps none.
#[inline(always)]
fn take_at(conn: &'static Conn, id: u64, dest: Dest<'_>, offset: u64) -> Option<usize> {
    let guard = conn.try_own_searched(id)?;
    if conn.phase() != Phase::Attached {
        return take_peeked(Recorded { conn, id }, guard, dest, offset);
    }
    lanes::take_simply(conn, &guard, conn.area()?, dest, offset)
}

/// The same without a lane.
#[inline(never)]
fn take_peeked(end: Recorded, guard: Guard<'static>, dest: Dest<'_>, offset: u64) -> Option<usize> {
    if end.is_shared() {
        return None;
    }
    let bytes = front(end.conn)?.take_simply(dest, offset)?;
    drop(guard);
    end.received(bytes);
    Some(bytes)
}
