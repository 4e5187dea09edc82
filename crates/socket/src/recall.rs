//! Both parts in giving a direction back to the kernel connection with all that is unread: the receiver's, which hands the connection to
//! a successor, and the sender's.

use crate::conn::{self, Conn};
use crate::marks::{self, Marks};
use crate::sys::{self, Errno, raw};
use crate::{kernel, receive, send};
use core::sync::atomic::Ordering::Relaxed;
use viaduct_channel::{Receiver, Segment};
use viaduct_stream::{Incoming, Outgoing, Recall};

/// Bytes moved at once.
const PART: usize = 4096;
/// More than a hand-over takes, however many connections it is for.
const GONE_NS: u64 = 2_000_000_000;
/// Steps that one look makes at most; a hostile peer may always ask for one more.
const STEPS: u32 = 64;

/// Does what can be done now so that the kernel connection carries the stream; true once all that it holds and will hold is the rest of
/// the stream, and where the connection has broken.
pub(crate) fn is_over(conn: &Conn, id: u64) -> bool {
    for _ in 0..STEPS {
        let Some(guard) = conn.own_receive(id) else { return true };
        let Some(segment) = conn.segment(&guard) else {
            return true;
        };
        let lane = segment.receiver(conn.side());
        let incoming = Incoming::new(lane);
        let moved = match incoming.recalling() {
            Recall::Done => return true,
            Recall::Wait => false,
            Recall::Marks => match marks::look_at_marks(conn, &incoming, &lane) {
                Ok(Marks::Changed) => incoming.recalling() != Recall::Marks,
                Ok(Marks::None) => false,
                // Nobody is left who could send again; where nothing is missing, nothing has to be.
                Ok(Marks::End) => return true,
                Err(_) => return true,
            },
            Recall::RawUntil(until) => match receive::approach(conn, &incoming, until) {
                Ok(true) => true,
                Ok(false) => give_back_raw(conn, segment, &incoming, until),
                Err(_) => return true,
            },
            Recall::Lane => give_back_lane(conn, segment, &incoming, &lane),
        };
        if !moved {
            return false;
        }
        // The peer may sleep until it hears that its part is due.
        let _ = raw::eventfd_ring(conn.peer_bell());
    }
    false
}

/// The sender is to do without what it did not wait for.
pub(crate) fn give_up(conn: &Conn, id: u64) {
    if let Some(guard) = conn.own_receive(id)
        && let Some(segment) = conn.segment(&guard)
    {
        Incoming::new(segment.receiver(conn.side())).give_up_recall();
    }
}

/// Gives back raw bytes before kernel position `until`; false if there are none yet, or no room for them.
fn give_back_raw(conn: &Conn, segment: &Segment, incoming: &Incoming<'_>, until: u64) -> bool {
    let mut bytes = [0; PART];
    let left = usize::try_from(until.saturating_sub(receive::position(conn))).unwrap_or(PART);
    let Some(room) = bytes.get_mut(..left.min(PART)) else {
        return false;
    };
    // Only what has found its place is taken off.
    let Ok(seen) = raw::recv(conn.fd(), room, libc::MSG_PEEK | libc::MSG_DONTWAIT) else {
        return false;
    };
    let written = give_back(conn, segment, incoming, room.get(..seen).unwrap_or(&[]));
    marks::take(conn, written).is_ok() && written > 0
}

/// Gives back what the lane holds, and ends its stretch; false if there is no room for all of it.
fn give_back_lane(conn: &Conn, segment: &Segment, incoming: &Incoming<'_>, lane: &Receiver<'_>) -> bool {
    let mut bytes = [0; PART];
    if lane.readable().is_err() {
        return false;
    }
    loop {
        let len = lane.copy_out((&mut bytes[..]).into(), 0);
        if len == 0 {
            incoming.lane_drained();
            return true;
        }
        let written = give_back(conn, segment, incoming, bytes.get(..len).unwrap_or(&[]));
        lane.consume(written);
        if written < len {
            return false;
        }
    }
}

fn give_back(conn: &Conn, segment: &Segment, incoming: &Incoming<'_>, bytes: &[u8]) -> usize {
    let Some(room) = segment.returns(conn.side().other()) else {
        return 0;
    };
    let written = room.write(incoming.given_back(), bytes.into());
    incoming.give_back(written);
    written
}

/// Sends again, raw, what the peer has given back and what it left unread in the lane; false: the kernel's buffer is full, or the peer has
/// not given back all that it will. The sending direction is owned.
pub(crate) fn send_again(conn: &Conn, segment: &Segment, out: &Outgoing<'_>) -> Result<bool, Errno> {
    if !(out.knows_rest() || peer_is_gone(conn)) {
        return Ok(false);
    }
    if !out.returned().is_empty() && !send_returned(conn, segment, out)? {
        return Ok(false);
    }
    // The peer has promised to read no more: this end stands in for it.
    let lane = segment.receiver(conn.side().other());
    let mut bytes = [0; PART];
    loop {
        if lane.readable().is_err() {
            return Err(send::violated(conn));
        }
        let len = lane.copy_out((&mut bytes[..]).into(), 0);
        if len == 0 {
            out.recalled();
            return Ok(true);
        }
        match put(conn, bytes.get(..len).unwrap_or(&[]))? {
            0 => return Ok(false),
            sent => {
                lane.consume(sent);
            }
        }
    }
}

/// Whether a peer that has not given back all that it will never does: it was killed in the middle of its hand-over. Where the kernel shows a
/// closed direction, that may have been closed long before, so such a peer has as much time as one takes that lives.
fn peer_is_gone(conn: &Conn) -> bool {
    let events = raw::poll_now(conn.fd(), libc::POLLRDHUP);
    if events & (libc::POLLERR | libc::POLLHUP) != 0 {
        return true;
    }
    if events & libc::POLLRDHUP == 0 {
        return false;
    }
    let now = sys::now_ns();
    match conn.rest_awaited_since.load(Relaxed) {
        0 => {
            conn.rest_awaited_since.store(now, Relaxed);
            false
        }
        since => now.saturating_sub(since) > GONE_NS,
    }
}

/// Sends what the peer has given back; false: the kernel's buffer is full.
fn send_returned(conn: &Conn, segment: &Segment, out: &Outgoing<'_>) -> Result<bool, Errno> {
    let Some(returns) = segment.returns(conn.side()) else {
        return Ok(false);
    };
    let mut bytes = [0; PART];
    loop {
        let returned = out.returned();
        let left = usize::try_from(returned.end.saturating_sub(returned.start)).unwrap_or(PART);
        let Some(room) = bytes.get_mut(..left.min(PART)) else {
            return Ok(true);
        };
        let len = returns.copy_out(returned.start, room.into());
        if len == 0 {
            return Ok(true);
        }
        match put(conn, room.get(..len).unwrap_or(&[]))? {
            0 => return Ok(false),
            sent => out.sent_again(sent),
        }
    }
}

/// Hands bytes to the kernel; 0: its buffer is full.
fn put(conn: &Conn, bytes: &[u8]) -> Result<usize, Errno> {
    match raw::send(conn.fd(), bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
        Err(libc::EAGAIN | libc::EINTR) => Ok(0),
        sent => sent,
    }
}

/// Begins to send what the peer has given back, though the direction is raw; false if it cannot be told now how far that is. The sending
/// direction is owned.
pub(crate) fn fetch(conn: &Conn, out: &Outgoing<'_>) -> bool {
    // A call of the program that is inside the kernel sending moves the end of the raw stretch.
    if !out.must_fetch() || conn.sending_directly() {
        return false;
    }
    let position = kernel::send_position(conn.fd(), conn.flag(conn::ACTIVE), false);
    out.fetch(position.ok())
}
