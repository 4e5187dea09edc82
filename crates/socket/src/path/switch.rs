//! The sender's changes of path, which it alone declares: onto the lane, back to the kernel connection, and what is
//! owed there first.

use crate::agent::counters;
use crate::conn::{self, Conn, Phase};
use crate::path::{marks, recall, wish};
use crate::sys::{self, Errno, raw};
use crate::{kernel, send};
use core::sync::atomic::Ordering::Relaxed;
use viaduct_control::Reason;
use viaduct_control::counters::{Path, Wanted, slot};
use viaduct_stream::{MARK_BACK, MARK_BELL, Mode, Outgoing};

/// A peer that leaves and comes back does so at most so often while a back is put; a hostile one might for ever.
const ATTEMPTS: u32 = 16;

/// Moves the direction onto the lane if that is possible now.
#[cold]
pub(crate) fn promote(conn: &Conn, out: &Outgoing<'_>) -> bool {
    let is_behind_fin = conn.flag(conn::PEER_FIN);
    if !out.may_promote() || !conn.stall_over() || is_behind_fin && !is_known_to_receive(conn) {
        return false;
    }
    let first = !conn.flag(conn::COUNTED);
    let position = match kernel::send_position(conn.fd(), conn.flag(conn::ACTIVE), first) {
        Ok(position) => position,
        Err(reason) => {
            if reason == kernel::NoPosition::Disagree {
                conn.set_flag(conn::BANNED, true);
                conn.set_reason(Reason::Uncounted);
            }
            return false;
        }
    };
    conn.set_flag(conn::COUNTED, true);
    if !out.promote(position) {
        return false;
    }
    counters::add(conn, slot::SWITCHES, 1);
    // Why it was on TCP meanwhile is over, and must not stand beside a lane where the other direction never moves.
    if matches!(
        conn.reason(),
        Reason::Requested | Reason::PeerRequested | Reason::LaneStall
    ) {
        conn.set_reason(Reason::Pairing);
    }
    // Wakes a peer that sleeps in the kernel.
    if let Err(errno) = send::mark(conn, MARK_BELL) {
        marks::found_broken(conn, errno);
    }
    if is_behind_fin {
        // The peer may have been killed meanwhile: the bytes that follow are to be the first that are refused.
        conn.look_soon();
    }
    conn.sends_on(Path::Shm);
    true
}

/// Whether a peer whose FIN has been seen is there, and receives: its kernel has taken bytes that went out behind the
/// FIN. That of a peer that was killed answers with RST, which is for the program's bytes to bring about, as with TCP,
/// and not for the mark that goes before the lane. Asked as often as marks are put behind a FIN, of which that is one.
fn is_known_to_receive(conn: &Conn) -> bool {
    if conn.wanted() == Wanted::Tcp || !conn.is_due_for_mark(send::CHECK_US) {
        return false;
    }
    let Some(taken) = kernel::taken_by_peer(conn.fd()) else {
        return false;
    };
    let at_fin = conn.taken_at_fin.load(Relaxed);
    if at_fin == 0 {
        conn.taken_at_fin.store(taken + 1, Relaxed);
    }
    at_fin != 0 && taken >= at_fin
}

/// Moves the direction back to the kernel connection.
pub(crate) fn demote(conn: &Conn, out: &Outgoing<'_>, reason: Reason) {
    out.demote();
    counters::add(conn, slot::SWITCHES, 1);
    conn.set_reason(reason);
}

/// Sends the mark that ends a lane stretch, unless the peer needs none; false: the kernel's buffer is full.
pub(crate) fn send_back(conn: &Conn, out: &Outgoing<'_>) -> Result<bool, Errno> {
    for _ in 0..ATTEMPTS {
        match marks::unless_closing(conn, out, || marks::put(conn, out, MARK_BACK)) {
            // A peer that has left may come back until this end has answered.
            Some(None) => {
                recall::answer(conn, out);
                if !out.has_answered() && !conn.flag(conn::SHUT_WRITE | conn::DEAD) {
                    continue;
                }
            }
            None | Some(Some(Ok(_))) => {}
            Some(Some(Err(libc::EAGAIN | libc::EINTR))) => return Ok(false),
            Some(Some(Err(errno))) => {
                conn.set_flag(conn::DEAD, true);
                return Err(errno);
            }
        }
        out.back_sent();
        conn.sends_on(Path::Tcp);
        return Ok(true);
    }
    // Whoever leaves has made a recall, which this end answers, and comes back once.
    Err(send::violated(conn))
}

/// Whether something must go out on the kernel connection before the sending direction is raw, and is not the peer's to
/// make possible.
pub(crate) fn owes(conn: &Conn) -> bool {
    conn.learn_what_has_ended();
    if conn.flag(conn::SHUT_WRITE | conn::DEAD) {
        return false;
    }
    conn.try_own_send().is_some_and(|guard| {
        conn.segment(&guard).is_some_and(|segment| {
            let out = Outgoing::new(segment.sender(conn.side()));
            matches!(out.mode(), Mode::BackPending | Mode::Recalling) && !recall::is_peers_turn(conn, &out)
        })
    })
}

/// Before a FIN, which nothing may follow: what a recall that has been answered leaves to be sent again goes out. False
/// if kernel or peer did not let it in time.
pub(crate) fn finish(conn: &Conn, until: u64) -> bool {
    loop {
        let owes = conn.phase() == Phase::Attached
            && conn.own_send(conn.id()).is_some_and(|guard| {
                conn.segment(&guard)
                    .is_some_and(|segment| recall::owes(conn, &Outgoing::new(segment.sender(conn.side()))))
            });
        if !owes {
            return true;
        }
        if sys::now_ns() > until {
            return false;
        }
        serve(conn);
        raw::sched_yield();
    }
}

/// Does what the peer has asked for, if this end's direction is on the lane: for ends that wait and do not send.
pub(crate) fn serve(conn: &Conn) {
    conn.learn_what_has_ended();
    let Some(guard) = conn.try_own_or_inherit_send() else {
        return;
    };
    let Some(segment) = conn.segment(&guard) else { return };
    let out = Outgoing::new(segment.sender(conn.side()));
    if out.peer_wants_raw() {
        recall::answer(conn, &out);
        if out.mode() == Mode::Lane {
            demote(conn, &out, Reason::PeerRequested);
        }
        recall::fetch(conn, &out);
    }
    wish::note_peers(conn, &out);
    // What the kernel does not take now goes with the next send.
    if out.mode() == Mode::BackPending
        && let Err(errno) = send_back(conn, &out)
    {
        marks::found_broken(conn, errno);
    }
    if out.mode() == Mode::Recalling
        && let Err(errno) = recall::send_again(conn, segment, &out)
    {
        marks::found_broken(conn, errno);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::records;
    use core::time::Duration;
    use std::io::Write;
    use std::net::Shutdown;
    use viaduct_stream::Incoming;

    #[test]
    fn a_peer_that_sends_no_more_is_known_to_receive_before_a_lane_is_used() {
        let (conn, [mut own, peer]) = records::on_the_heap();
        conn.set_flag(conn::ACTIVE, true);
        conn.set_phase(Phase::Attached);
        peer.shutdown(Shutdown::Write).unwrap();
        while raw::poll_now(conn.fd(), libc::POLLRDHUP) == 0 {}
        conn.set_flag(conn::PEER_FIN, true);
        let segment = conn.segment(&conn).unwrap();
        Incoming::new(segment.receiver(conn.side().other())).set_ready();
        let out = Outgoing::new(segment.sender(conn.side()));
        let promotes = || {
            // Until the next look is due.
            std::thread::sleep(Duration::from_millis(2));
            promote(conn, &out)
        };
        assert!(!promotes() && !promotes());
        own.write_all(b"answer").unwrap();
        while kernel::taken_by_peer(conn.fd()).unwrap() < 6 {}
        assert!(promotes());
        assert_eq!(out.mode(), Mode::Lane);
    }
}
