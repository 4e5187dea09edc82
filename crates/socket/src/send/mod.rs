//! Sending: the program's bytes go to the kernel connection or to the lane.

pub(crate) mod stores;
pub(crate) mod waiting;

use crate::agent::{self, Way, counters};
use crate::conn::common::Timed;
use crate::conn::{self, Conn, Phase};
use crate::lock::Guard;
use crate::path::{behind, demote, marks, recall, switch, wish};
use crate::send::waiting::wait_for_space;
use crate::sys::{self, Errno};
use crate::vector::Vector;
use crate::wait::direct::DirectCall;
use crate::wait::{self, Deadline, Woken, bell, cancel};
use crate::{at_once, epoll, kernel};
use libc::c_int;
use viaduct_channel::{Segment, Sender, Stores};
use viaduct_control::Reason;
use viaduct_control::counters::slot;
use viaduct_stream::{Incoming, MARK_BELL, Mode, Outgoing};

/// Flags that change nothing about where bytes go.
pub(crate) const PLAIN_FLAGS: c_int =
    libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_MORE | libc::MSG_EOR | libc::MSG_CONFIRM;
/// Changes of path that one look makes: a peer that asks for more does not keep bytes from going out.
const MOVES: u32 = 4;
/// Steps that these changes take at most, and some more.
const ROUNDS: u32 = 32;
/// What is longer is put on the lane in pieces of so many bytes, so that the receiver copies while the sender does.
pub(crate) const PIECE: usize = 64 << 10;
/// A sender that never reads looks this often, in microseconds, whether its peer is still there.
pub(crate) const CHECK_US: u64 = 500;

/// Sends on `conn`; `direct` is the program's own call, to be made as it is when the connection is plain.
#[inline]
pub fn send(conn: &'static Conn, vector: Vector<'_>, flags: c_int, direct: impl FnOnce() -> isize) -> isize {
    if agent::has_mail() {
        agent::deliver();
    }
    if conn.phase() != Phase::Attached {
        conn.note_traffic(Way::Sent, vector.len());
        if flags & libc::MSG_ZEROCOPY != 0 {
            demote::before_lanes(conn, vector.len(), flags);
        }
        if let Some(call) = DirectCall::send(conn) {
            let sent = direct();
            if call.end() && sent > 0 {
                counters::add(conn, slot::BYTES_SENT, sent.cast_unsigned() as u64);
            }
            return sent;
        }
    }
    cancel::point();
    let id = conn.id();
    let sent = vector
        .only_source()
        .map_or(0, |bytes| at_once::send(conn, id, bytes, flags));
    if sent != 0 && sent == vector.len() {
        return sent.cast_signed();
    }
    attached(conn, id, vector, flags, sent, direct)
}

/// Sends with control messages, which only the kernel understands, and refuses where they mean nothing.
pub fn send_with_control(conn: &'static Conn, direct: impl FnOnce() -> isize) -> isize {
    if conn.phase() == Phase::Attached {
        demote::send_on_tcp(conn, Reason::SocketOption, libc::MSG_DONTWAIT, direct)
    } else {
        send(conn, Vector::NONE, 0, direct)
    }
}

/// Sends on a connection that was attached when the call began, and had this id, from `done` on. No point of
/// cancellation before there is no room.
#[inline(never)]
pub(crate) fn attached(
    conn: &'static Conn,
    id: u64,
    vector: Vector<'_>,
    flags: c_int,
    mut done: usize,
    direct: impl FnOnce() -> isize,
) -> isize {
    let total = vector.len();
    // The kernel says whether the connection is over, and puts nothing out.
    let begins_nowhere = vector.begins_nowhere();
    if total == 0 || begins_nowhere {
        return match conn.take_error() {
            0 if conn.flag(conn::QUIET_END) && !begins_nowhere => 0,
            0 if conn.flag(conn::QUIET_END) => sys::fail(libc::EFAULT),
            0 => direct(),
            errno => sys::fail(errno),
        };
    }
    if vector.is_nowhere() {
        return sys::fail(libc::EFAULT);
    }
    if flags & !PLAIN_FLAGS != 0
        && let Some(reason) = demote::sent_by_kernel(conn, flags)
    {
        return demote::send_on_tcp(conn, reason, flags, direct);
    }
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || conn.nonblocking();
    let (mut deadline, mut asked) = (None, false);
    let error = loop {
        match attempt(conn, id, vector, done, flags) {
            Ok(sent) => {
                done += sent;
                if done == total {
                    break 0;
                }
                if sent > 0 {
                    continue;
                }
            }
            Err(errno) => break errno,
        }
        if nonblocking {
            if let_grow(conn, id) {
                continue;
            }
            break libc::EAGAIN;
        }
        let timeout = conn.timeout_ns(Timed::Send);
        let deadline = *deadline.get_or_insert_with(|| Deadline::after(timeout));
        match wait_for_space(conn, id, deadline, &mut asked) {
            Ok(Woken::Look) => {}
            Ok(Woken::Restarted) if done == 0 => {}
            Ok(woken) => break wait::errno_of(woken),
            Err(errno) => break errno,
        }
    };
    if error == libc::EAGAIN {
        epoll::wants_room(conn);
    } else if error == 0 && conn.flag(conn::OUT_WANTED) {
        conn.set_flag(conn::OUT_WANTED, false);
    }
    if done > 0 {
        marks::keep_error(conn, error);
        return done.cast_signed();
    }
    let error = if error == libc::EPIPE {
        marks::untold_error(conn).unwrap_or(error)
    } else {
        error
    };
    if error == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise_sigpipe();
    }
    sys::fail(error)
}

/// Whether a full lane has more space once it may grow.
#[cold]
fn let_grow(conn: &Conn, id: u64) -> bool {
    let Some(guard) = conn.own_send(id) else { return false };
    conn.segment(&guard).is_some_and(|segment| {
        let lane = segment.sender(conn.side());
        Outgoing::new(lane).mode() == Mode::Lane && lane.grant() && lane.has_space()
    })
}

/// Sends what can be sent now from `skip` on; 0: nothing, the caller waits.
#[inline]
fn attempt(conn: &Conn, id: u64, vector: Vector<'_>, skip: usize, flags: c_int) -> Result<usize, Errno> {
    let Some(send) = conn.own_send(id) else {
        return Err(if id != 0 && conn.id() == id {
            libc::EAGAIN
        } else {
            libc::EBADF
        });
    };
    let mut moves = 0;
    for _ in 0..ROUNDS {
        let Some(segment) = conn.segment(&send) else {
            return Err(libc::EBADF);
        };
        let out = Outgoing::new(segment.sender(conn.side()));
        match out.mode() {
            Mode::Lane => {
                if moves < MOVES && (out.peer_wants_raw() || !conn.wants_lane()) {
                    moves += 1;
                    wish::heed_sending(conn, id);
                    recall::answer(conn, &out);
                    switch::demote(
                        conn,
                        &out,
                        if conn.wants_lane() {
                            Reason::PeerRequested
                        } else {
                            Reason::Requested
                        },
                    );
                    continue;
                }
                return on_lane(conn, &send, segment, vector, skip);
            }
            Mode::BackPending => {
                recall::answer(conn, &out);
                if !switch::send_back(conn, &out)? {
                    return Ok(0);
                }
            }
            Mode::Recalling => {
                if !recall::send_again(conn, segment, &out)? {
                    return Ok(0);
                }
            }
            Mode::Raw => {
                wish::heed_sending(conn, id);
                let wanted = out.peer_wants_raw();
                if wanted {
                    // It is on TCP only because the peer asks for it.
                    conn.change_reason(Reason::Pairing, Reason::PeerRequested);
                    recall::answer(conn, &out);
                    // In this order: a receiver that ends its stretch between the two is fetched from before anything
                    // else is sent.
                    if recall::is_peers_turn(conn, &out) {
                        return Ok(0);
                    }
                    if recall::fetch(conn, &out) {
                        continue;
                    }
                }
                let may = moves < MOVES && conn.wants_lane() && !wanted && !conn.sending_directly();
                if may && switch::promote(conn, &out) {
                    moves += 1;
                    continue;
                }
                return raw_send(conn, vector, skip, flags);
            }
        }
    }
    // No peer that keeps to the protocol has a sender look so often.
    Err(violated(conn))
}

#[inline]
fn on_lane(conn: &Conn, guard: &Guard<'_>, segment: &Segment, vector: Vector<'_>, skip: usize) -> Result<usize, Errno> {
    let lane = segment.sender(conn.side());
    let closes = Outgoing::new(lane).peer_closes(|| Incoming::new(segment.receiver(conn.side())));
    conn.learn_what_has_ended();
    let is_behind_fin = conn.flag(conn::PEER_FIN);
    // The peer has closed at least one direction. If not both, it says nothing once it is killed, and is asked by marks
    // whether it is there: for bytes that it has not received before others go out, as these are refused then; else by
    // the mark of those that go out, of which the first are not.
    let may_ask = is_behind_fin && !closes && (lane.has_space() || conn.common_flag(conn::MARK_OWED));
    let asks = may_ask && conn.is_due_for_mark(CHECK_US);
    let unread = asks && lane.in_flight() > 0;
    if unread {
        conn.set_common_flag(conn::FIN_PROBED | conn::MARK_OWED, false);
        conn.look_soon();
    }
    if asks || conn.due_for_check_of_many(CHECK_US) || closes && !is_behind_fin {
        marks::check_peer(conn, guard)?;
    } else if is_behind_fin {
        behind::look_behind(conn, guard);
    }
    if conn.flag(conn::SHUT_WRITE) {
        return Err(libc::EPIPE);
    }
    if conn.flag(conn::DEAD) {
        return to_the_dead(conn, vector.len().saturating_sub(skip));
    }
    if closes && marks::will_be_refused(conn) {
        // As the bytes would, the mark is answered with RST.
        mark(conn, MARK_BELL)?;
        let refused = vector.len().saturating_sub(skip);
        counters::add(conn, slot::BYTES_SENT, refused as u64);
        return Ok(refused);
    }
    let (mut sent, mut marked, mut last_marked) = (0, false, false);
    // A receiver that keeps up makes room for ever. Others may want the direction, and there may be something else to
    // do. One look at the lane decides, whatever a peer makes of its size.
    let most = lane.capacity().max(1);
    let long = vector.len().saturating_sub(skip) >= stores::LONG;
    turn_to_lane(conn, guard, &lane);
    while sent < most {
        let kind = if long { conn.stores.stores() } else { Stores::Cached };
        let Ok(piece) = lane.append_many(vector.sources(skip + sent, PIECE), kind) else {
            return Err(violated(conn));
        };
        if piece > 0 {
            last_marked = sent_on_lane(conn, guard, &lane, piece);
            marked |= last_marked;
        }
        if long {
            conn.stores.count(piece);
        }
        sent += piece;
        if piece < PIECE {
            break;
        }
    }
    if sent == 0 && conn.due_for_check(CHECK_US) {
        // Waits may have told of an error already: a program that only sends must hear which.
        marks::check_peer(conn, guard)?;
        if conn.flag(conn::DEAD) {
            return to_the_dead(conn, vector.len().saturating_sub(skip));
        }
    }
    if sent > 0 && (closes || conn.flag(conn::PEER_FIN)) {
        // If the peer has closed both directions, or is about to, the kernel answers a mark with RST, as it would have
        // answered the bytes.
        let due = closes || asks && !unread || !is_behind_fin && conn.is_due_for_mark(CHECK_US);
        // What follows the piece that a mark went with has none.
        conn.set_common_flag(conn::MARK_OWED, !last_marked && (marked || !due));
        // A second one would meet what the first is answered with, and have the call fail whose bytes have gone out.
        if due && !marked {
            mark(conn, MARK_BELL)?;
        }
        if due {
            // The next bytes are refused if that is what it has been answered.
            conn.look_soon();
        }
    }
    Ok(sent)
}

/// So many bytes have been put on the lane: counts them and wakes a peer that sleeps; whether by a mark.
#[inline(always)]
pub(crate) fn sent_on_lane(conn: &Conn, guard: &Guard<'_>, lane: &Sender<'_>, sent: usize) -> bool {
    conn.sent_again();
    counters::add(conn, slot::BYTES_SENT, sent as u64);
    counters::add(conn, slot::FAST_BYTES_SENT, sent as u64);
    let bits = lane.take_wait();
    bits != 0 && {
        // Where each end of several has a thread or process of its own.
        lane.set_sent_at(sys::ticks());
        ring(conn, guard, bits)
    }
}

/// Before bytes are put on the lane: a receiver that waits for several connections is to know which it was sent on
/// first. Not behind bytes that are unread: it has to know when those came. A peer that has answered has read them;
/// looking costs a cache line.
#[inline(always)]
pub(crate) fn turn_to_lane(conn: &Conn, guard: &Guard<'_>, lane: &Sender<'_>) {
    guard.turn_to(conn.id(), || {
        if conn.has_received_since() || lane.in_flight() == 0 {
            lane.set_sent_at(sys::ticks());
        }
    });
}

/// The peer wrote nonsense: this end breaks the connection, as TCP does on nonsense.
#[cold]
pub(crate) fn violated(conn: &Conn) -> Errno {
    conn.set_flag(conn::DEAD | conn::BANNED, true);
    conn.set_reason(Reason::PeerViolation);
    libc::ECONNRESET
}

/// Sends so many bytes on a connection that has ended.
#[cold]
fn to_the_dead(conn: &Conn, bytes: usize) -> Result<usize, Errno> {
    if conn.flag(conn::QUIET_END) {
        // As with TCP, the first bytes after the FIN are what is answered with RST.
        conn.set_flag(conn::QUIET_END, false);
        return Ok(bytes);
    }
    Err(broken(conn))
}

#[cold]
fn broken(conn: &Conn) -> Errno {
    match mark(conn, MARK_BELL) {
        Err(errno) => errno,
        Ok(()) => libc::EPIPE,
    }
}

/// Puts a mark on the kernel connection. A full kernel buffer is no error: then there is something to read anyway. Nor
/// is a peer that has left: who receives there now knows no lanes. The sending direction is owned and not raw.
pub(crate) fn mark(conn: &Conn, mark: u8) -> Result<(), Errno> {
    let put = |segment: &Segment| marks::put(conn, &Outgoing::new(segment.sender(conn.side())), mark);
    match conn.segment(&conn).and_then(put) {
        None | Some(Ok(_) | Err(libc::EAGAIN | libc::EINTR)) => Ok(()),
        Some(Err(errno)) => {
            conn.set_flag(conn::DEAD, true);
            Err(errno)
        }
    }
}

/// Wakes the peer by the means in `bits`, unless it is closing and asked for a mark; whether a mark has gone out. The
/// sending direction is owned and on the lane.
#[cold]
pub(crate) fn ring(conn: &Conn, send: &Guard<'_>, bits: u32) -> bool {
    counters::add(conn, slot::BELLS_SENT, 1);
    let by_socket = bits & (bell::BY_SOCKET | bell::ANNOUNCED) != 0;
    let has_heard = bits & bell::BY_BELL == 0 || conn.ring_peer();
    if (by_socket || !has_heard)
        && let Some(segment) = conn.segment(send)
        && let out = Outgoing::new(segment.sender(conn.side()))
        && let Some(rung) = marks::unless_closing(conn, &out, || mark(conn, MARK_BELL))
    {
        counters::add(conn, slot::BELLS_BY_SOCKET, 1);
        if let Err(errno) = rung {
            marks::found_broken(conn, errno);
        }
        return rung.is_ok();
    }
    false
}

/// Wakes the peer by a mark where it is not to be told of bytes: not after this end's own FIN, which nothing may
/// follow.
pub(crate) fn ring_without_bytes(conn: &Conn, send: &Guard<'_>, out: &Outgoing<'_>) {
    if out.mode() == Mode::Lane && !conn.flag(conn::SHUT_WRITE) {
        ring(conn, send, bell::BY_SOCKET);
    }
}

/// The direction's owner was killed: wakes the peer's receivers, whose wait bits it may have taken.
pub(crate) fn ring_for_killed(conn: &Conn, send: &Guard<'_>) {
    conn.ring_peer();
    if let Some(segment) = conn.segment(send) {
        ring_without_bytes(conn, send, &Outgoing::new(segment.sender(conn.side())));
    }
}

/// Whether a sender that finds no room may go over to the kernel's buffers, which together with the lane hold what TCP
/// would have held. Not if the program has been told that the connection is full: it stays so until the peer reads. But
/// a lane that got no memory at all never empties, nor does one that gets none for what the peer needs before it reads.
pub(crate) fn may_overflow(conn: &Conn, lane: &viaduct_channel::Sender<'_>) -> bool {
    !conn.flag(conn::OUT_WANTED) || lane.starved() && (lane.in_flight() == 0 || lane.is_wanted())
}

fn raw_send(conn: &Conn, vector: Vector<'_>, skip: usize, flags: c_int) -> Result<usize, Errno> {
    marks::will_be_refused(conn);
    match kernel::send(conn.fd(), vector, skip, flags) {
        Ok(sent) => {
            counters::add(conn, slot::BYTES_SENT, sent as u64);
            Ok(sent)
        }
        Err(libc::EAGAIN) => Ok(0),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::records;
    use crate::sys::raw;
    use core::time::Duration;
    use std::io::Read;
    use std::net::Shutdown;

    /// And its kernel is asked now and then whether it is there, not with every message.
    #[test]
    fn a_peer_that_sends_no_more_is_sent_to_by_the_lane() {
        const MESSAGES: usize = 1000;
        let (conn, [_own, mut peer]) = records::on_the_heap();
        conn.set_flag(conn::ACTIVE, true);
        conn.set_phase(Phase::Attached);
        peer.shutdown(Shutdown::Write).unwrap();
        while raw::poll_now(conn.fd(), libc::POLLRDHUP) == 0 {}
        let segment = conn.segment(&conn).unwrap();
        let far = segment.receiver(conn.side().other());
        Incoming::new(far).set_ready();
        let mut bytes = [7; 8];
        let parts = [libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        }];
        let send_one = || send(conn, Vector::own(&parts), libc::MSG_DONTWAIT, || unreachable!());
        let send_all = || (0..MESSAGES).for_each(|_| assert_eq!(send_one(), 8));
        assert_eq!(
            (send_one(), Outgoing::new(segment.sender(conn.side())).mode()),
            (8, Mode::Lane)
        );
        conn.set_flag(conn::PEER_FIN, true);
        send_all();
        assert_eq!(far.published(), 8 * (MESSAGES + 1) as u64);
        let mut room = [0; 4 * MESSAGES];
        // Until none is left that the kernel has kept for later.
        peer.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut put = 0;
        while let Ok(read) = peer.read(&mut room) {
            put += read;
        }
        assert!((2..MESSAGES / 2).contains(&put), "{put} marks");
        // One that says that it closes is to answer each as it would the bytes.
        Outgoing::new(segment.sender(conn.side().other())).set_closing();
        Incoming::new(far).set_unready();
        send_all();
        let mut put = 0;
        while put < MESSAGES {
            put += peer.read(&mut room).unwrap();
        }
        assert_eq!((put, far.published()), (MESSAGES, 8 * (2 * MESSAGES + 1) as u64));
    }
}
