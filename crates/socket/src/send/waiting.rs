//! Waiting until there is room to send: by polling first, by sleeping then.

use crate::agent::counters;
use crate::conn::Conn;
use crate::conn::pace::{Bound, Naps, STUCK_NS};
use crate::path::marks::probe_peer;
use crate::path::{recall, switch};
use crate::ready;
use crate::send::may_overflow;
use crate::sys::{self, Errno};
use crate::wait::spin::Spinner;
use crate::wait::{self, Deadline, Woken, bell};
use viaduct_control::Reason;
use viaduct_control::counters::slot;
use viaduct_stream::{Mode, Outgoing};

/// Waits until a send may go on. Nothing is owned while waiting. `asked`: the call knows whether it may wait at all.
pub(crate) fn wait_for_space(conn: &Conn, id: u64, deadline: Deadline, asked: &mut bool) -> Result<Woken, Errno> {
    let mut spinner = Spinner::new();
    let mut naps = Naps::new();
    let started = sys::now_ns();
    let bit = wait::bit_for(conn);
    let mut polling = true;
    loop {
        let armed = {
            let Some(send) = conn.own_send(id) else {
                return Err(libc::EBADF);
            };
            let Some(segment) = conn.segment(&send) else {
                return Err(libc::EBADF);
            };
            let lane = segment.sender(conn.side());
            let out = Outgoing::new(lane);
            if recall::is_peers_turn(conn, &out) {
                // The kernel has room, but it is the peer's turn, which rings when it has done its part.
                Err((wait::FOR_CREDIT, Some(recall::TURN_NS)))
            } else if out.mode() != Mode::Lane {
                Err((wait::FOR_OUTPUT, None))
            } else if out.peer_wants_raw() {
                return Ok(Woken::Look);
            } else if lane.has_space() {
                spinner.paid();
                return Ok(Woken::Look);
            } else if polling {
                // The core is given up without the direction. Each look takes the line that the receiver writes with
                // every message: it is left alone while that has plenty to read.
                let plenty = lane.in_flight() as u64 / 4;
                drop(send);
                spinner.rest(plenty);
                polling = spinner.again();
                continue;
            } else if lane.grant() && lane.has_space() {
                return Ok(Woken::Look);
            } else {
                // No sleep for room ends with a mark: those are for who receives, and would pile up where nobody does.
                let bound = if bit == bell::BY_BELL {
                    lane.arm_credit_for(bit, ready::share(&lane));
                    Bound::Room
                } else {
                    Bound::UnrungRoom
                };
                if lane.has_space() {
                    lane.disarm_credit(bit);
                    return Ok(Woken::Look);
                }
                Ok((out.progress(), naps.next(bound, None)))
            }
        };
        if conn.refresh_nonblocking_once(asked) {
            return Ok(Woken::TimedOut);
        }
        let (before, nap) = match armed {
            Ok(armed) => armed,
            Err((events, nap)) => return Ok(wait::sleep(conn, bit, events, deadline, nap)),
        };
        counters::add(conn, slot::SLEEPS, 1);
        let woken = wait::nap(conn, bit, wait::FOR_CREDIT, deadline, nap);
        if let Some(woken) = woken.filter(|woken| *woken != Woken::Look) {
            return Ok(woken);
        }
        let Some(send) = conn.own_send(id) else {
            return Err(libc::EBADF);
        };
        let Some(segment) = conn.segment(&send) else {
            return Err(libc::EBADF);
        };
        let lane = segment.sender(conn.side());
        let out = Outgoing::new(lane);
        if out.mode() == Mode::Lane {
            ready::mind_bell_of(conn, &lane, bit, woken.is_some(), bell::rings_for_thread);
            probe_peer(conn, &send)?;
        }
        if lane.has_space() {
            return Ok(Woken::Look);
        }
        let stalled = sys::now_ns() - started >= STUCK_NS && out.progress() == before;
        if stalled && may_overflow(conn, &lane) {
            switch::demote(conn, &out, Reason::LaneStall);
            conn.note_stall();
            return Ok(Woken::Look);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::{self, Phase, records};
    use crate::sys::raw;
    use viaduct_stream::Incoming;

    /// The far end has found no place for it, say.
    #[test]
    fn a_bell_that_is_not_rung_for_room_is_not_counted_on() {
        let (conn, _sockets) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        let bell = bell::of_thread().unwrap();
        conn.set_own_bell(bell.number());
        conn.rung.begin(bell::RUNG_BY_EVENTFD);
        // However long the receiver is kept from the processor, the lane is not given up as one on which nothing moves.
        conn.set_flag(conn::OUT_WANTED, true);
        let segment = conn.segment(&conn).unwrap();
        let own = segment.sender(conn.side());
        Incoming::new(segment.receiver(conn.side().other())).set_ready();
        assert!(Outgoing::new(own).promote(0));
        // Makes room once it is asked for, and rings or does not.
        let wait_for_room = |rings: bool| {
            let bytes = [0; 4096];
            while own.append(bytes.as_slice().into()).is_ok_and(|sent| sent > 0) || own.grant() {}
            assert_eq!(wait::bit_for(conn), bell::BY_BELL);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !own.awaits_credit(bell::BY_BELL) {
                        std::thread::yield_now();
                    }
                    let far = segment.receiver(conn.side().other());
                    far.consume(far.readable().unwrap());
                    assert_eq!(far.take_credit_wait(), bell::BY_BELL);
                    if rings {
                        raw::eventfd_ring(bell.fd()).unwrap();
                    }
                });
                wait_for_space(conn, conn.id(), Deadline::after(0), &mut true)
            })
        };
        assert_eq!(wait_for_room(false), Ok(Woken::Look));
        assert_eq!(wait_for_room(true), Ok(Woken::Look));
        // Once may be by chance.
        assert_eq!(wait_for_room(false), Ok(Woken::Look));
        assert_eq!(conn.known_bell(), bell.number());
        assert_eq!(wait_for_room(false), Ok(Woken::Look));
        assert_eq!((conn.known_bell(), wait::bit_for(conn)), (0, bell::BY_SOCKET));
    }
}
