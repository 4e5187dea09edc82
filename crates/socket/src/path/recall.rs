//! Both parts in giving a direction back to the kernel connection with all that is unread: the receiver's, which hands
//! the connection to a successor, and the sender's.

use crate::conn::{self, Conn, Phase, records};
use crate::path::marks::{self, Marks};
use crate::path::{leave, switch};
use crate::receive::{self, plain};
use crate::sys::{self, Errno, raw};
use crate::{kernel, send};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use viaduct_channel::{Receiver, Returns, Segment};
use viaduct_control::counters::Path;
use viaduct_stream::{Incoming, Mode, Outgoing, Recall, Source};

/// Bytes moved at once.
const PART: usize = 4096;
/// How long an end sleeps at most while it has a part in a recall to do.
pub(crate) const TURN_NS: u64 = 1_000_000;
/// More than a hand-over takes, however many connections it is for.
const GONE_NS: u64 = 2_000_000_000;
/// Steps that one look makes at most; a hostile peer may always ask for one more.
const STEPS: u32 = 64;

/// How far a recall has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All that the kernel connection holds and will hold is the rest of the stream; or the connection has broken.
    Over,
    /// The same once the peer has sent it; nothing of it is there yet.
    Sending,
    /// Something is left to be done.
    Going,
    /// There is no room for what would have to be given back. None of it has been.
    Stuck,
}

/// Does what can be done now so that the kernel connection carries the stream.
pub(crate) fn go_on(conn: &Conn, id: u64) -> Progress {
    let progress = take_steps(conn, id);
    if matches!(progress, Progress::Over | Progress::Sending) {
        leave::has_not_to_leave(conn, id);
    }
    progress
}

fn take_steps(conn: &Conn, id: u64) -> Progress {
    for _ in 0..STEPS {
        let Some(guard) = conn.own_receive(id) else {
            return Progress::Over;
        };
        let Some(segment) = conn.segment(&guard) else {
            return Progress::Over;
        };
        let lane = segment.receiver(conn.side());
        let incoming = Incoming::new(lane);
        let next = incoming.recalling();
        if incoming.source() == Source::Raw {
            // Nobody may receive here any more who would note it.
            conn.receives_on(Path::Tcp);
        }
        let moved = match next {
            Recall::Done => return Progress::Over,
            // What the peer sends next may have to wait until the successor receives.
            Recall::Sending if kernel::queued(conn.fd()) > 0 => return Progress::Over,
            Recall::Sending => return Progress::Sending,
            Recall::Wait => false,
            Recall::Marks => match marks::look_at_marks(conn, &incoming, &lane) {
                Ok(Marks::Changed) => incoming.recalling() != Recall::Marks,
                Ok(Marks::None) => false,
                // Nobody is left who could send again; where nothing is missing, nothing has to be.
                Ok(Marks::End) | Err(_) => return Progress::Over,
            },
            Recall::RawUntil(until) => match receive::approach(conn, &incoming, until) {
                Ok(0) => true,
                // In this order: what the peer tells with its answer is known then.
                Ok(_) if !incoming.may_give_back() => false,
                Ok(_) if !fits(conn, segment, &incoming) => return Progress::Stuck,
                Ok(_) => give_back_raw(conn, segment, &incoming, until),
                Err(_) => return Progress::Over,
            },
            Recall::Lane if !fits(conn, segment, &incoming) => return Progress::Stuck,
            Recall::Lane => give_back_lane(conn, segment, &incoming, &lane),
            Recall::Ended => {
                incoming.lane_drained();
                true
            }
        };
        if !moved {
            return Progress::Going;
        }
        // The peer may sleep until it hears that its part is due.
        conn.ring_peer();
    }
    Progress::Going
}

/// Asks the peer for everything back, or just for TCP where what would have to be given back has no room.
pub(crate) fn begin(conn: &Conn, segment: &Segment, incoming: &Incoming<'_>) {
    if fits(conn, segment, incoming) {
        incoming.recall();
    } else {
        incoming.request_raw(true);
    }
}

/// Whether there is room for all that would have to be given back, as far as can be told now: part of it would only put
/// the rest out of order.
fn fits(conn: &Conn, segment: &Segment, incoming: &Incoming<'_>) -> bool {
    has_room(segment, incoming, incoming.to_give_back(|| position_or_end(conn)))
}

/// Whether the peer has begun with its part.
pub(crate) fn is_answered(conn: &Conn, id: u64) -> bool {
    conn.own_receive(id).is_some_and(|guard| {
        conn.segment(&guard)
            .is_some_and(|segment| Incoming::new(segment.receiver(conn.side())).may_give_back())
    })
}

/// Takes a recall back that the peer has not answered, so that this end reads on; false if it has.
pub(crate) fn withdraw(conn: &Conn, id: u64) -> bool {
    let withdrawn = conn.own_receive(id).is_none_or(|guard| {
        conn.segment(&guard)
            .is_none_or(|segment| Incoming::new(segment.receiver(conn.side())).withdraw_recall())
    });
    if withdrawn {
        conn.set_flag(conn::HANDED_OVER, false);
    }
    withdrawn
}

/// The peer is to do without what it did not wait for.
pub(crate) fn give_up(conn: &Conn, id: u64) {
    if let Some(guard) = conn.own_receive(id)
        && let Some(segment) = conn.segment(&guard)
    {
        Incoming::new(segment.receiver(conn.side())).give_up_recall();
    }
    // It may sleep until it hears of it.
    conn.ring_peer();
}

/// Kernel position of the next byte. Where that cannot be told the connection has been reset, and nothing is given
/// back.
fn position_or_end(conn: &Conn) -> u64 {
    plain::position(conn).unwrap_or(u64::MAX)
}

/// Gives back raw bytes before kernel position `until`; false if there are none yet, or no room for all of them.
pub(crate) fn give_back_raw(conn: &Conn, segment: &Segment, incoming: &Incoming<'_>, until: u64) -> bool {
    let Some(room) = segment.returns(conn.side().other()) else {
        return false;
    };
    let mut bytes = [0; PART];
    let mut moved = false;
    loop {
        let left = until.saturating_sub(position_or_end(conn));
        let Some(part) = bytes.get_mut(..usize::try_from(left).unwrap_or(PART).min(PART)) else {
            return moved;
        };
        if left == 0 || !has_room(segment, incoming, left) {
            return moved;
        }
        // Only what has found its place is taken off.
        let Ok(seen @ 1..) = raw::recv(conn.fd(), part, libc::MSG_PEEK | libc::MSG_DONTWAIT) else {
            return moved;
        };
        let written = give_back(&room, incoming, part.get(..seen).unwrap_or(&[]));
        if written == 0 || marks::take_into(conn, part.get_mut(..written).unwrap_or_default()).is_err() {
            return moved;
        }
        moved = true;
    }
}

/// Gives back what the lane holds, and ends its stretch; false if there is no room for all of it.
fn give_back_lane(conn: &Conn, segment: &Segment, incoming: &Incoming<'_>, lane: &Receiver<'_>) -> bool {
    let Ok(mut left) = lane.readable() else { return false };
    let Some(room) = segment.returns(conn.side().other()) else {
        return false;
    };
    let mut bytes = [0; PART];
    while left > 0 {
        let len = lane.copy_out((&mut bytes[..left.min(PART)]).into(), 0);
        let written = give_back(&room, incoming, bytes.get(..len).unwrap_or(&[]));
        if written == 0 {
            return false;
        }
        lane.consume(written);
        left -= written;
    }
    incoming.lane_drained();
    true
}

/// Whether so many more bytes can be given back.
fn has_room(segment: &Segment, incoming: &Incoming<'_>, bytes: u64) -> bool {
    incoming.given_back().saturating_add(bytes) <= segment.geometry().capacity() as u64
}

fn give_back(room: &Returns<'_>, incoming: &Incoming<'_>, bytes: &[u8]) -> usize {
    let written = room.write(incoming.given_back(), bytes.into());
    incoming.give_back(written);
    written
}

/// Answers the peer's recall, if there is one and this end can send. The sending direction is owned.
pub(crate) fn answer(conn: &Conn, out: &Outgoing<'_>) {
    if !out.peer_wants_raw() || conn.flag(conn::SHUT_WRITE | conn::DEAD) {
        return;
    }
    // Where the direction is raw the peer must be told how far it is.
    let is_raw = out.mode() == Mode::Raw;
    let position = if is_raw && !conn.sending_directly() {
        position(conn)
    } else {
        None
    };
    if !is_raw || position.is_some() {
        out.answer(|| position.unwrap_or(0));
    }
}

/// Sends again, raw, what the peer has given back and what it left unread in the lane; false: the kernel's buffer is
/// full, or the peer has not given back all that it will. The sending direction is owned.
pub(crate) fn send_again(conn: &Conn, segment: &Segment, out: &Outgoing<'_>) -> Result<bool, Errno> {
    if is_peers_turn(conn, out) {
        return Ok(false);
    }
    conn.rest_awaited_since.store(0, Relaxed);
    if !out.returned().is_empty() && !send_returned(conn, segment, out)? {
        return Ok(false);
    }
    // The peer has promised to read no more: this end stands in for it.
    let lane = segment.receiver(conn.side().other());
    let Ok(mut left) = lane.readable() else {
        return Err(send::violated(conn));
    };
    let mut bytes = [0; PART];
    while left > 0 {
        let len = lane.copy_out((&mut bytes[..left.min(PART)]).into(), 0);
        match put(conn, bytes.get(..len).unwrap_or(&[]))? {
            0 => return Ok(false),
            sent => {
                lane.consume(sent);
                left = left.saturating_sub(sent);
            }
        }
    }
    out.recalled();
    Ok(true)
}

/// Whether it is the peer's turn in a recall, and the peer is there to take it. Notes since when. The sending direction
/// is owned.
pub(crate) fn is_peers_turn(conn: &Conn, out: &Outgoing<'_>) -> bool {
    // What can be sent no more is waited for no more; the kernel tells.
    out.awaits_receiver() && !conn.flag(conn::SHUT_WRITE | conn::DEAD) && !peer_is_gone(conn)
}

/// Whether this end has a part in a recall that is not over: it is to look at the connection again soon, since not each
/// peer can ring.
pub(crate) fn is_pending(conn: &Conn, out: &Outgoing<'_>) -> bool {
    out.is_recalled() && !conn.flag(conn::SHUT_WRITE | conn::DEAD) && !(out.awaits_receiver() && peer_is_gone(conn))
}

/// The same where the sending direction is not owned; false where somebody else owns it, who serves.
fn is_pending_now(conn: &Conn) -> bool {
    conn.try_own_send().is_some_and(|guard| {
        conn.segment(&guard)
            .is_some_and(|segment| is_pending(conn, &Outgoing::new(segment.sender(conn.side()))))
    })
}

/// When the process's connections may next be looked at by [`serve_all`],
static SERVE_AT_NS: AtomicU64 = AtomicU64::new(0);
/// and what the last look found.
static PENDING: AtomicBool = AtomicBool::new(false);

/// Somebody rang, and none of the connections waited for has anything new: one may be recalled, of which a bell does
/// not tell. Serves those that are; true if one is not done with. Nothing may be owned.
pub(crate) fn serve_all() -> bool {
    let now = sys::now_ns();
    if now < SERVE_AT_NS.load(Relaxed) {
        return PENDING.load(Relaxed);
    }
    let mut pending = false;
    for conn in records::all().filter(|conn| conn.phase() == Phase::Attached) {
        if is_pending_now(conn) {
            switch::serve(conn);
            pending |= is_pending_now(conn);
        }
    }
    PENDING.store(pending, Relaxed);
    // A small part of the time goes into this, however many there are.
    let end = sys::now_ns();
    SERVE_AT_NS.store(end + (end - now).saturating_mul(16).max(TURN_NS), Relaxed);
    pending
}

/// Whether a recall that this end has answered leaves it something to send again, or may yet. The sending direction is
/// owned.
pub(crate) fn owes(conn: &Conn, out: &Outgoing<'_>) -> bool {
    out.owes_recalled() && !conn.flag(conn::SHUT_WRITE | conn::DEAD) && !(out.awaits_receiver() && peer_is_gone(conn))
}

/// Whether a peer that has not given back all that it will never does: it was killed in the middle of its hand-over.
/// Where the kernel shows a closed direction, that may have been closed long before, so such a peer has as much time as
/// one takes that lives.
fn peer_is_gone(conn: &Conn) -> bool {
    let now = sys::now_ns();
    let since = match conn.rest_awaited_since.load(Relaxed) {
        0 => {
            conn.rest_awaited_since.store(now, Relaxed);
            now
        }
        since => since,
    };
    let events = raw::poll_now(conn.fd(), libc::POLLRDHUP);
    events & (libc::POLLERR | libc::POLLHUP) != 0
        || events & libc::POLLRDHUP != 0 && now.saturating_sub(since) > GONE_NS
}

/// Sends what the peer has given back; false: the kernel's buffer is full.
fn send_returned(conn: &Conn, segment: &Segment, out: &Outgoing<'_>) -> Result<bool, Errno> {
    let Some(returns) = segment.returns(conn.side()) else {
        return Ok(false);
    };
    let mut bytes = [0; PART];
    // No more than there is room for.
    for _ in 0..segment.geometry().capacity() {
        let returned = out.returned();
        let left = returned.end.saturating_sub(returned.start);
        let Some(part) = bytes.get_mut(..usize::try_from(left).unwrap_or(PART).min(PART)) else {
            break;
        };
        let len = returns.copy_out(returned.start, part.into());
        if len == 0 {
            return Ok(true);
        }
        match put(conn, part.get(..len).unwrap_or(&[]))? {
            0 => return Ok(false),
            sent => out.sent_again(sent),
        }
    }
    Err(send::violated(conn))
}

/// Hands bytes to the kernel; 0: its buffer is full.
fn put(conn: &Conn, bytes: &[u8]) -> Result<usize, Errno> {
    match raw::send(conn.fd(), bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
        Err(libc::EAGAIN | libc::EINTR) => Ok(0),
        Err(errno) => {
            conn.set_flag(conn::DEAD, true);
            Err(errno)
        }
        sent => sent,
    }
}

/// Begins to send what the peer has given back, though the direction is raw; false if it cannot be told now how far
/// that is. The sending direction is owned.
pub(crate) fn fetch(conn: &Conn, out: &Outgoing<'_>) -> bool {
    // A call of the program that is inside the kernel sending moves the end of the raw stretch.
    if !out.must_fetch() || conn.sending_directly() {
        return false;
    }
    conn.rest_awaited_since.store(0, Relaxed);
    let until = position(conn);
    if !out.fetch(until) {
        return false;
    }
    // Only now: the peer may have left since the first look at it.
    if out.mode() == Mode::Recalling
        && let (Some(left), Some(until)) = (out.left_at(), until)
        && left != until
    {
        // Bytes that went out meanwhile belong behind those that are to be sent again: whoever has them must not go on.
        kernel::give_up(conn.fd());
        conn.set_error(send::violated(conn));
        return false;
    }
    true
}

fn position(conn: &Conn) -> Option<u64> {
    kernel::send_position(conn.fd(), conn.flag(conn::ACTIVE), false).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::peer_bells::Ringer;
    use viaduct_stream::MARK_BACK;

    /// A sender that looks between the two stores of the end of a stretch takes it for the receiver's turn, and sleeps.
    #[test]
    fn the_sender_hears_that_the_stretch_has_ended() {
        let (conn, _sockets) = records::on_the_heap();
        let bell = raw::eventfd().unwrap();
        conn.set_peer_bell(Ringer::eventfd(bell));
        let segment = conn.segment(&conn).unwrap();
        let (out, inc) = (
            Outgoing::new(segment.sender(conn.side().other())),
            Incoming::new(segment.receiver(conn.side())),
        );
        inc.set_ready();
        assert!(out.promote(0));
        inc.enter_lane();
        inc.recall();
        assert!(out.answer(|| 0));
        out.demote();
        out.back_sent();
        inc.marks(&[MARK_BACK]);
        assert_eq!(go_on(conn, conn.id()), Progress::Sending);
        assert_eq!(inc.source(), Source::Raw);
        assert_ne!(raw::poll_now(bell, libc::POLLIN), 0);
    }
}
