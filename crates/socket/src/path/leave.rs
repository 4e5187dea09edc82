//! Handing a connection over without its peer, which does not do its part: it stands still, or is busy elsewhere.

use crate::conn::Conn;
use crate::kernel;
use crate::path::marks::look_at_marks;
use crate::path::recall::give_back_raw;
use crate::receive::plain;
use crate::sys;
use viaduct_control::counters::Path;
use viaduct_stream::{Incoming, Leave, Source};

/// Where no raw bytes come for so long, all have that the peer has sent.
const QUIET_NS: u64 = 1_000_000;

/// Ends the peer's stretch in its stead, as far as that can be done now. What it has sent and this end has not received
/// it sends again once it goes on. Nobody who knows lanes goes on here. The recall has been made.
/// `for_good`: and is not withdrawn, as where a program cannot be started.
pub(crate) fn leave(conn: &Conn, id: u64, for_good: bool) {
    let Some(guard) = conn.own_receive(id) else { return };
    let Some(segment) = conn.segment(&guard) else { return };
    let lane = segment.receiver(conn.side());
    let incoming = Incoming::new(lane);
    if incoming.has_left() {
        return;
    }
    let has_all = match incoming.leave(for_good) {
        Leave::NotNow => false,
        Leave::Marks => {
            let looked = incoming.source() != Source::Lane || look_at_marks(conn, &incoming, &lane).is_ok();
            let all = || plain::position(conn).is_some_and(|position| incoming.has_all_marks(position));
            // A mark that a killed process had only announced.
            let none_comes = || kernel::peer_has_ended(conn.fd()) && kernel::queued(conn.fd()) == 0;
            looked && (all() || none_comes())
        }
        Leave::Raw => {
            let come = || kernel::queued(conn.fd()) as u64;
            let until = plain::position(conn).map_or(0, |position| position + come());
            // A peer that stands in the middle of a send has more on its way once there is room.
            let is_quiet = || {
                sys::wait_quietly(-1, 0, QUIET_NS);
                come() == 0
            };
            (come() == 0 || give_back_raw(conn, segment, &incoming, until)) && come() == 0 && is_quiet()
        }
    };
    if has_all && let Some(position) = plain::position(conn) {
        incoming.has_gone(position);
        conn.receives_on(Path::Tcp);
        drop(guard);
        // It may sleep, and what it is to send again is awaited.
        conn.ring_peer();
    }
}

/// The peer has done its part after all: it waits for nothing more.
pub(crate) fn has_not_to_leave(conn: &Conn, id: u64) {
    if let Some(guard) = conn.own_receive(id)
        && let Some(segment) = conn.segment(&guard)
        && let incoming = Incoming::new(segment.receiver(conn.side()))
        && incoming.leaves()
        && !incoming.has_left()
        && let Some(position) = plain::position(conn)
    {
        incoming.has_gone(position);
    }
}

/// Whether this end is about to leave, and waits for a mark that is on its way.
pub(crate) fn has_begun(conn: &Conn) -> bool {
    let leaves = |incoming: Incoming<'_>| incoming.leaves() && !incoming.has_left();
    conn.segment(&conn)
        .is_some_and(|segment| leaves(Incoming::new(segment.receiver(conn.side()))))
}

/// Whether bytes that the peer has sent are for the successor to wait for, should this end leave.
pub(crate) fn has_unread(conn: &Conn) -> bool {
    conn.segment(&conn)
        .is_some_and(|segment| segment.receiver(conn.side()).has_bytes())
}

/// The peer is amid putting a mark, and has been for as long as this end can wait: the successor would take it for
/// data. It finds the connection reset instead.
pub(crate) fn break_off(conn: &Conn, id: u64) {
    if conn.own_receive(id).is_some() && has_begun(conn) {
        kernel::give_up(conn.fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::{Phase, records};
    use crate::path::switch;
    use core::sync::atomic::Ordering::SeqCst;
    use std::io::Write;
    use viaduct_stream::{MARK_BELL, Mode, Outgoing};

    #[test]
    fn the_successor_of_who_has_left_meets_no_mark() {
        let (conn, [_own, mut peer]) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        let segment = conn.segment(&conn).unwrap();
        let sender = segment.sender(conn.side().other());
        let (out, incoming) = (Outgoing::new(sender), Incoming::new(segment.receiver(conn.side())));
        incoming.set_ready();
        assert!(out.promote(0));
        incoming.enter_lane();
        sender.append(b"unread".as_slice().into()).unwrap();
        incoming.recall();
        // Handed to the kernel, but not here yet.
        assert!(out.begin_put());
        leave(conn, conn.id(), true);
        assert!(has_begun(conn));
        out.end_put(true);
        leave(conn, conn.id(), true);
        assert!(has_begun(conn));
        peer.write_all(&[MARK_BELL]).unwrap();
        while kernel::queued(conn.fd()) == 0 {}
        leave(conn, conn.id(), true);
        assert!(incoming.has_left() && incoming.is_owed());
        assert_eq!((incoming.source(), kernel::queued(conn.fd())), (Source::Raw, 0));
        // The peer goes on.
        assert!(out.answer(|| 0));
        out.demote();
        assert!(!out.begin_put());
        out.end_put(false);
        out.back_sent();
        assert_eq!(out.mode(), Mode::Recalling);
        assert!(!out.awaits_receiver() && out.owes_recalled());
    }

    #[test]
    fn who_leaves_without_a_recall_breaks_the_connection() {
        let (conn, _sockets) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        let segment = conn.segment(&conn).unwrap();
        let peer = segment.receiver(conn.side().other());
        let out = Outgoing::new(segment.sender(conn.side()));
        Incoming::new(peer).set_ready();
        assert!(out.promote(0));
        out.demote();
        // Bit 6 alone, and the wish for TCP.
        peer.word(2).fetch_or(1 << 6 | 1, SeqCst);
        assert_eq!(switch::send_back(conn, &out), Err(libc::ECONNRESET));
    }

    /// The kernel has taken it, and the peer has not come to note that.
    #[test]
    fn a_mark_that_has_come_is_not_waited_for() {
        let (conn, [_own, mut peer]) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        let segment = conn.segment(&conn).unwrap();
        let out = Outgoing::new(segment.sender(conn.side().other()));
        let incoming = Incoming::new(segment.receiver(conn.side()));
        incoming.set_ready();
        assert!(out.promote(0));
        incoming.enter_lane();
        incoming.recall();
        assert!(out.begin_put());
        peer.write_all(&[MARK_BELL]).unwrap();
        while kernel::queued(conn.fd()) == 0 {}
        leave(conn, conn.id(), true);
        assert!(incoming.has_left());
    }
}
