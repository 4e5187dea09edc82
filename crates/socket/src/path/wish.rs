//! What `viaduct path` wants of a connection: that both directions be on TCP, or that Viaduct choose.
//!
//! An end moves its own direction when it next sends. The other direction is the peer's to move, so this end asks it
//! to, and takes that back when the wish changes. The wish is looked at where the kernel is called anyway, and where
//! the receiver gives blocks back, so the data path pays nothing for it.

use crate::conn::{ASKED, BANNED, Conn, PEER_FIN};
use crate::path::demote;
use viaduct_control::Reason;
use viaduct_control::counters::Wanted;
use viaduct_stream::{Incoming, Mode, Outgoing};

/// Whether the peer does not know yet what is wanted. A connection that is banned from lanes has asked for good.
#[inline]
pub(crate) fn is_news(conn: &Conn) -> bool {
    (conn.wanted() == Wanted::Tcp) != conn.flag(ASKED) && !conn.flag(BANNED | PEER_FIN)
}

/// Acts on a wish that has changed. The receiving direction is owned.
#[inline]
pub(crate) fn heed(conn: &Conn, incoming: &Incoming<'_>) {
    if is_news(conn) {
        tell(conn, incoming);
        move_own(conn);
    }
}

/// The same for a sender, which owns the sending direction and moves it itself.
#[inline]
pub(crate) fn heed_sending(conn: &Conn, id: u64) {
    if is_news(conn)
        && let Some(receive) = conn.own_receive(id)
        && let Some(segment) = conn.segment(&receive)
    {
        tell(conn, &Incoming::new(segment.receiver(conn.side())));
    }
}

#[cold]
fn tell(conn: &Conn, incoming: &Incoming<'_>) {
    let tcp = conn.wanted() == Wanted::Tcp;
    incoming.request_raw(tcp);
    if !tcp {
        incoming.need_raw(false);
    }
    conn.set_flag(ASKED, tcp);
    // An end that never sends has no direction of its own to move, and would go on saying that it waits for one.
    if tcp {
        conn.set_reason(Reason::Requested);
    } else if conn.reason() == Reason::Requested {
        conn.set_reason(Reason::Pairing);
    }
    // The peer may sleep with nothing to send; it looks when it wakes.
    conn.ring_peer();
}

/// Says of an end whose sending direction is raw whether the peer keeps it so. One that sends is told when it does, and
/// takes this back when it promotes; one that only receives learns it here.
pub(crate) fn note_peers(conn: &Conn, out: &Outgoing<'_>) {
    if out.mode() != Mode::Raw {
        return;
    }
    match (out.peer_wants_raw(), conn.reason()) {
        (true, Reason::Pairing) => conn.change_reason(Reason::Pairing, Reason::PeerRequested),
        (false, Reason::PeerRequested) => conn.change_reason(Reason::PeerRequested, Reason::Pairing),
        _ => {}
    }
}

/// The same for a receiver, whose direction the peer has moved. A sender that owns its own sees to it itself.
pub(crate) fn note_peers_receiving(conn: &Conn) {
    if let Some(guard) = conn.try_own_send()
        && let Some(segment) = conn.segment(&guard)
    {
        note_peers(conn, &Outgoing::new(segment.sender(conn.side())));
    }
}

/// Moves the direction of an end that only receives, if nobody sends now: a sender sees to it itself.
#[cold]
fn move_own(conn: &Conn) {
    if conn.wanted() == Wanted::Tcp
        && let Some(guard) = conn.try_own_send()
        && let Some(segment) = conn.segment(&guard)
    {
        demote::end_stretch(conn, &guard, segment, Reason::Requested);
    }
}
