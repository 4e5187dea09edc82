//! What a receiver needs of its sender: room for more than a lane would have, and to be told of room that it waits for.

use crate::agent::counters;
use crate::conn::Conn;
use crate::conn::flags::LOOKED;
use crate::lock::Guard;
use crate::wait::bell;
use crate::{kernel, send};
use viaduct_channel::Receiver;
use viaduct_control::counters::slot;
use viaduct_stream::{Incoming, Outgoing, Source};

/// Bytes up to a lane's position are waited for, while those before them stay where they are. False if the lane can
/// never hold so much.
#[inline]
pub(crate) fn want(conn: &Conn, lane: &Receiver<'_>, until: u64) -> bool {
    if !lane.can_hold(until) {
        return false;
    }
    let bits = lane.want(until);
    if bits != 0 {
        ring_for_credit(conn, bits);
    }
    true
}

/// Every lane whose sender has not said otherwise has so much from the beginning.
const UNREAD: u64 = 1 << 20;

/// Whoever looks at what is there may do so until there is more, and consume nothing before.
pub(crate) fn want_more(conn: &Conn, lane: &Receiver<'_>) {
    let published = lane.published();
    let unread = published.wrapping_sub(lane.head());
    let room = if unread < UNREAD {
        UNREAD
    } else {
        kernel::room_set(conn.fd())
    };
    if unread >= room {
        return;
    }
    // Much at once: whoever peeks copies all of it each time.
    let steps = [unread / 2, unread / 16, 1].map(|more| more.clamp(1, room - unread));
    let has_room = steps
        .into_iter()
        .any(|more| want(conn, lane, published.wrapping_add(more)));
    let incoming = Incoming::new(*lane);
    if has_room || !matches!(incoming.source(), Source::Lane | Source::RawUntil(_)) {
        return;
    }
    // A program that consumes between its looks is merely slow.
    if conn.flag(LOOKED) {
        go_on_in_kernel(conn, &incoming);
    }
    conn.set_flag(LOOKED, true);
}

/// Something has been consumed, a block of the lane or raw bytes before it: what looks have asked for is taken back.
/// The receiving direction is owned.
#[inline]
pub(crate) fn consumed(conn: &Conn, incoming: &Incoming<'_>) {
    if conn.flag(LOOKED) {
        conn.set_flag(LOOKED, false);
    }
    // Another process may have looked.
    if !conn.searched() {
        incoming.need_raw(false);
    }
}

/// The lane can hold no more. The program has made the socket's buffer large enough for what it waits for: the stream
/// goes on there.
pub(crate) fn go_on_in_kernel(conn: &Conn, incoming: &Incoming<'_>) {
    if incoming.need_raw(true) {
        conn.ring_peer();
    }
}

/// Wakes a sender that waits for blocks. By bell, or by a mark where our own sending direction is on the lane; else the
/// sender finds out by itself, since it never sleeps long.
#[cold]
pub(crate) fn ring_for_credit(conn: &Conn, bits: u32) {
    if bits & bell::BY_BELL != 0 && conn.ring_peer() {
        counters::add(conn, slot::BELLS_SENT, 1);
        return;
    }
    if let Some(send) = conn.try_own_send()
        && let Some(segment) = conn.segment(&send)
    {
        send::ring_without_bytes(conn, &send, &Outgoing::new(segment.sender(conn.side())));
    }
}

/// The direction's owner was killed: wakes the peer's senders, whose wait bits it may have taken.
pub(crate) fn ring_for_killed(conn: &Conn, _receive: &Guard<'_>) {
    conn.ring_peer();
    ring_for_credit(conn, bell::BY_SOCKET);
}
