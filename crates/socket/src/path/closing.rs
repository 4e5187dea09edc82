//! What an end does as it is shut down, closed or left to others.

use crate::conn::{self, Conn};
use crate::kernel;
use crate::lock::Guard;
use crate::path::marks::{look_at_marks, look_past_bells};
use crate::sys::{self, raw};
use viaduct_channel::{Segment, Sender};
use viaduct_stream::{Incoming, Outgoing, Source};

/// How long an end that closes waits for a mark that its peer is putting: some time slices, which a preempted peer may
/// take to go on.
const MARKING_NS: u64 = 20_000_000;

/// The stream does not end where it ends now: the peer is to see that.
pub(crate) fn reset_on_close(conn: &Conn) {
    let abort = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let _ = raw::setsockopt(conn.fd(), libc::SOL_SOCKET, libc::SO_LINGER, &abort);
}

/// The process lets go of a connection that it has handed over: what is left in its lane, after a peer that can send
/// nothing again has ended the stream, or has handed over its own end, reaches nobody. The successor is not to take
/// what it has for the whole stream. The receiving direction is owned.
fn tell_of_loss(conn: &Conn, receive: &Guard<'_>) {
    let Some(segment) = conn.segment(receive) else { return };
    if conn.alone() {
        Outgoing::new(segment.sender(conn.side())).set_gone();
    }
    let lane = segment.receiver(conn.side());
    let incoming = Incoming::new(lane);
    let on_lane = matches!(incoming.source(), Source::Lane | Source::LaneThenRaw);
    let unread = || on_lane && !incoming.may_give_back() && lane.readable() != Ok(0);
    let lost = conn.alone() && (unread() || incoming.is_owed());
    // Where this end receives no more, a poll tells of an end whether or not there is one.
    if lost && (incoming.sender_is_gone() || kernel::peer_has_ended(conn.fd())) {
        let _ = raw::disconnect(conn.fd());
    }
}

/// The program shuts a direction down. With both down the kernel answers bytes with RST, and forgets what it has still
/// to deliver.
pub(crate) fn shutting(conn: &Conn, how: libc::c_int, send: &Guard<'_>) {
    let Some(segment) = conn.segment(send) else { return };
    conn.learn_what_has_ended();
    if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
        let lane = segment.sender(conn.side());
        turn_to_end(conn, send, &lane);
        Outgoing::new(lane).set_ending();
    }
    let both = match how {
        libc::SHUT_RD => conn.flag(conn::SHUT_WRITE),
        libc::SHUT_WR => conn.flag(conn::SHUT_READ),
        libc::SHUT_RDWR => true,
        _ => false,
    };
    if both {
        refuse(conn, segment, send);
    }
}

/// The program has shut a direction down.
pub(crate) fn has_shut(conn: &Conn, how: libc::c_int, send: Option<&Guard<'_>>) {
    if how != libc::SHUT_RD {
        conn.set_common_flag(conn::SHUT_WRITE, true);
    }
    if how != libc::SHUT_WR {
        conn.set_common_flag(conn::SHUT_READ, true);
    }
    if conn.flag(conn::SHUT_WRITE)
        && conn.flag(conn::SHUT_READ)
        && let Some(segment) = send.and_then(|guard| conn.segment(guard))
    {
        Outgoing::new(segment.sender(conn.side())).set_refusing();
    }
}

/// A receiver that waits for several connections is to know which has ended first. Not while bytes before the end are
/// unread: it has to know when those came; nor where it has been told of an end. `guard`: of either direction.
fn turn_to_end(conn: &Conn, guard: &Guard<'_>, lane: &Sender<'_>) {
    if !conn.flag(conn::SHUT_WRITE) && lane.in_flight() == 0 {
        guard.turn_away();
        lane.set_sent_at(sys::ticks());
    }
}

/// From now on this end takes no marks: tells the peer, and waits for one that it is putting. `guard`: of either
/// direction.
fn refuse(conn: &Conn, segment: &Segment, guard: &Guard<'_>) {
    let (incoming, lane) = (
        Incoming::new(segment.receiver(conn.side())),
        segment.sender(conn.side()),
    );
    incoming.set_unready();
    turn_to_end(conn, guard, &lane);
    Outgoing::new(lane).set_closing();
    // As a rule the peer is not; one that was killed or stopped meanwhile must not hold this end up.
    let until = sys::now_ns() + MARKING_NS;
    while incoming.peer_marks() && sys::now_ns() < until {
        raw::sched_yield();
    }
}

/// Before the last descriptor goes, or the process: takes marks off the kernel connection, since the kernel answers
/// unread bytes with RST where the program has read everything; and has it send RST where the program has left lane
/// bytes unread. Where another process may go on with the socket, only marks are taken. The receiving direction is
/// owned.
pub(crate) fn settle(conn: &Conn, receive: &Guard<'_>) {
    if conn.flag(conn::HANDED_OVER) {
        return tell_of_loss(conn, receive);
    }
    let Some(segment) = conn.segment(receive) else { return };
    let lane = segment.receiver(conn.side());
    let incoming = Incoming::new(lane);
    let shared = !conn.alone();
    if !shared {
        refuse(conn, segment, receive);
    }
    if let Source::RawUntil(until) = incoming.source() {
        let _ = crate::receive::approach(conn, &incoming, until);
    }
    // The look would take an error, which the kernel tells once, away from who goes on.
    let is_broken = || raw::poll_now(conn.fd(), 0) & libc::POLLERR != 0;
    if incoming.source() == Source::Lane && !(shared && is_broken()) {
        let look = if shared { look_past_bells } else { look_at_marks };
        let _ = look(conn, &incoming, &lane);
    }
    if shared {
        return;
    }
    let on_lane = matches!(incoming.source(), Source::Lane | Source::LaneThenRaw);
    if on_lane && lane.readable() != Ok(0) {
        reset_on_close(conn);
    }
    if kernel::resets_at_close(conn.fd()) {
        Outgoing::new(segment.sender(conn.side())).set_means_reset(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::{Phase, records};
    use crate::descriptors::lifecycle;
    use std::io::Read;
    use std::net::Shutdown;

    #[test]
    fn no_mark_comes_once_both_directions_are_down() {
        // Kept, so that each has numbers of its own.
        let mut kept = Vec::new();
        let (read, write) = ((libc::SHUT_RD, Shutdown::Read), (libc::SHUT_WR, Shutdown::Write));
        for ways in [&[(libc::SHUT_RDWR, Shutdown::Both)][..], &[read, write], &[write, read]] {
            let (conn, [own, peer]) = records::on_the_heap();
            conn.set_phase(Phase::Attached);
            let segment = conn.segment(&conn).unwrap();
            let side = conn.side().other();
            let (out, incoming) = (
                Outgoing::new(segment.sender(side)),
                Incoming::new(segment.receiver(side)),
            );
            let may_mark = || {
                let may = out.begin_mark(&incoming);
                out.end_mark();
                may
            };
            for (how, way) in ways {
                assert!(may_mark());
                lifecycle::shut_down(conn, *how, || own.shutdown(*way).map_or(-1, |()| 0));
            }
            assert!(!may_mark());
            kept.push((own, peer));
        }
    }

    /// A successor that finds the end of what is not the whole stream.
    #[test]
    fn a_successor_hears_of_lost_bytes() {
        let mut kept = Vec::new();
        for (lost, ended, gone, deaf) in [
            (true, true, false, false),
            (false, true, false, false),
            (true, false, false, false),
            (true, false, true, false),
            (false, false, true, false),
            (true, false, false, true),
        ] {
            let (conn, [own, peer]) = records::on_the_heap();
            let mut successor = own.try_clone().unwrap();
            let segment = conn.segment(&conn).unwrap();
            let sender = segment.sender(conn.side().other());
            records::receive_on_the_lane(conn);
            if lost {
                sender.append(b"bytes".as_slice().into()).unwrap();
            }
            if ended {
                peer.shutdown(Shutdown::Write).unwrap();
                while raw::poll_now(conn.fd(), libc::POLLRDHUP) == 0 {}
            }
            if gone {
                Outgoing::new(sender).set_gone();
            }
            if deaf {
                own.shutdown(Shutdown::Read).unwrap();
            }
            conn.set_flag(conn::HANDED_OVER, true);
            settle(conn, &conn.own_receive(conn.id()).unwrap());
            successor.set_nonblocking(true).unwrap();
            let found = successor.read(&mut [0; 8]).map_err(|error| error.raw_os_error());
            let expected = match (lost, ended || gone) {
                (true, true) => Err(Some(libc::ECONNRESET)),
                _ if ended || deaf => Ok(0),
                _ => Err(Some(libc::EAGAIN)),
            };
            assert_eq!(found, expected);
            let said = Incoming::new(segment.receiver(conn.side().other())).sender_is_gone();
            assert!(said, "who hands its own end over is to know");
            kept.push((own, peer));
        }
    }
}
