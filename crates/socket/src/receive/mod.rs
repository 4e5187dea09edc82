//! Receiving: the stream's next bytes, wherever they travelled.

pub(crate) mod lane;
pub(crate) mod needs;
mod peek;
pub(crate) mod plain;
pub(crate) mod rest;
pub(crate) mod waiting;

use crate::agent::{self, Way, counters};
use crate::conn::common::Timed;
use crate::conn::{self, Conn, Phase};
use crate::lock::Guard;
use crate::path::marks::{Marks, keep_error, look_past_bells};
use crate::path::{announce, marks, wish};
use crate::receive::lane::from_lane;
use crate::receive::peek::{Peek, wait_for_more};
use crate::receive::plain::{
    before_lane, behind_urgent_data, end_of_raw, low_water, pass_urgent_data, pass_urgent_data_before, position,
    raw_receive,
};
use crate::receive::waiting::{END, wait_for_bytes};
use crate::sys::{self, Errno, raw};
use crate::vector::Vector;
use crate::wait::direct::DirectCall;
use crate::wait::spin::Spinner;
use crate::wait::{self, Deadline, Woken, cancel};
use crate::{at_once, kernel, search, send};
use libc::c_int;
use viaduct_channel::Receiver;
use viaduct_control::Reason;
use viaduct_control::counters::{Path, slot};
use viaduct_stream::{Incoming, Source};

/// Steps of one look at the stream. Each takes something that the peer did; no peer that keeps to the protocol is ahead
/// by so many.
const ROUNDS: u32 = 4096;
/// Not an error number: the direction is searched, `crate::search` receives.
const SEARCHED: Errno = -1;
/// A reader that never waits looks this often, in microseconds, whether the kernel connection has ended without a word
/// from the peer.
const CHECK_US: u64 = 50;

/// What one look at the stream found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// So many bytes were received.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The stream has ended.
    End,
}

/// Receives on `conn`; `direct` is the program's own call, to be made as it is when the connection is plain.
#[inline]
pub fn receive(conn: &'static Conn, vector: Vector<'_>, flags: c_int, direct: impl FnOnce() -> isize) -> isize {
    if agent::has_mail() {
        agent::deliver();
    }
    if let Some(call) = enter(conn) {
        return by(conn, call, flags, direct);
    }
    cancel::point();
    let id = conn.id();
    let mut polling = None;
    let received = vector
        .only_dest()
        .map_or(0, |dest| at_once::receive(conn, id, dest, flags, &mut polling));
    if received != 0 {
        return received.cast_signed();
    }
    attached(conn, id, vector, flags, polling, direct)
}

/// Receives by the program's own call, which fills more than one list of buffers or none at all; `None` where a lane or
/// holes stand in the way.
pub fn by_kernel(conn: &'static Conn, flags: c_int, direct: impl FnOnce() -> isize) -> Option<isize> {
    if agent::has_mail() {
        agent::deliver();
    }
    enter(conn).map(|call| by(conn, call, flags, direct))
}

/// A receive of the program's begins inside the kernel; `None` where a lane or holes stand in the way.
#[inline]
fn enter(conn: &'static Conn) -> Option<DirectCall> {
    if conn.phase() == Phase::Attached || conn.searched() {
        return None;
    }
    DirectCall::receive(conn)
}

#[inline]
fn by(conn: &Conn, call: DirectCall, flags: c_int, direct: impl FnOnce() -> isize) -> isize {
    let received = direct();
    if call.end() && received > 0 && flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) == 0 {
        counters::add(conn, slot::BYTES_RECEIVED, received.cast_unsigned() as u64);
        conn.note_traffic(Way::Received, received.cast_unsigned());
    }
    received
}

/// Receives on a connection that was attached when the call began, and had this id. No point of cancellation before
/// there is nothing to receive. `polling`: the call has polled already, and goes on from there.
#[inline(never)]
pub(crate) fn attached(
    conn: &'static Conn,
    id: u64,
    vector: Vector<'_>,
    flags: c_int,
    mut polling: Option<Spinner>,
    direct: impl FnOnce() -> isize,
) -> isize {
    let total = vector.len();
    if flags & libc::MSG_ERRQUEUE != 0 {
        return direct();
    }
    if flags & libc::MSG_OOB != 0 {
        // The kernel keeps urgent data apart from the stream.
        crate::path::demote::ban(conn, Reason::UrgentData);
        // And apart it is but amidst a count. This does not wait.
        let _guard = conn.own_receive(id);
        return direct();
    }
    let nowhere = vector.is_nowhere() && flags & libc::MSG_TRUNC == 0;
    if conn.searched() {
        match total {
            _ if nowhere => return sys::fail(libc::EFAULT),
            0 if conn.phase() != Phase::Attached => return direct(),
            0 => {}
            _ => return search::receive_in_order(conn, id, vector, flags),
        }
    }
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || conn.nonblocking();
    let want = if flags & libc::MSG_WAITALL != 0 && !nonblocking {
        total
    } else {
        low_water(conn).min(total)
    };
    let peek = flags & libc::MSG_PEEK != 0;
    let mut done = 0;
    let mut deadline = None;
    let (mut slept, mut asked) = (false, false);
    let error = loop {
        let found = match total {
            // Nothing is received, but not before something could be.
            0 => receive_nothing(conn, id),
            _ if nowhere => receive_nowhere(conn, id),
            _ => attempt(conn, id, vector, if peek { 0 } else { done }, flags, nonblocking),
        };
        match found {
            Err(SEARCHED) if done == 0 => return search::receive_in_order(conn, id, vector, flags),
            Err(SEARCHED) => break libc::EAGAIN,
            Ok(Found::Bytes(bytes)) => {
                done = if peek { bytes } else { done + bytes };
                slept = false;
                if done >= want {
                    break 0;
                }
                if !peek {
                    continue;
                }
            }
            Ok(Found::Nothing) => {}
            Ok(Found::End) => break conn.take_error(),
            Err(errno) => break errno,
        }
        if nonblocking {
            conn.set_flag(conn::IN_WANTED, true);
            if announce::announce(conn, id) {
                continue;
            }
            break libc::EAGAIN;
        }
        let timeout = conn.timeout_ns(Timed::Receive);
        let deadline = *deadline.get_or_insert_with(|| Deadline::after(timeout));
        let woken = if done > 0 && peek {
            wait_for_more(conn, deadline)
        } else {
            let again = core::mem::replace(&mut slept, true);
            wait_for_bytes(conn, id, deadline, polling.take(), again, &mut asked)
        };
        match woken {
            Ok(Woken::Look) => {}
            Ok(Woken::Restarted) if done == 0 => {}
            Err(END) if done > 0 && peek => {
                done = peek_rest(conn, id, vector);
                break 0;
            }
            Ok(woken) => break wait::errno_of(woken),
            Err(END) => break conn.take_error(),
            Err(errno) => break errno,
        }
    };
    // Another thread closed the socket; had it shut it down before, this call would have come to the end.
    let closed = error == libc::EBADF && conn.flag(conn::SHUT_READ);
    if done > 0 || error == 0 || closed {
        if !closed && error != 0 && !matches!(error, libc::EAGAIN | libc::EINTR) {
            conn.set_error(error);
        }
        return done.cast_signed();
    }
    sys::fail(error)
}

/// Whether urgent data comes next and has come. An end that receives no more hears of some that its kernel has not
/// taken.
fn holds_urgent_data(conn: &Conn, id: u64) -> bool {
    let has_come = |locks| {
        conn.own_receive(id)
            .is_some_and(|_guard| kernel::queued_in_all(conn.fd(), locks) > 0)
    };
    kernel::is_at_mark(conn.fd()) && conn.locks().is_some_and(has_come)
}

/// What a receive into no room finds: `Bytes(0)` where something could be received.
#[cold]
fn receive_nothing(conn: &'static Conn, id: u64) -> Result<Found, Errno> {
    match look(conn, id) {
        Ok(Found::Bytes(_)) => Ok(Found::Bytes(0)),
        // Urgent data is enough, and so is less than a wait asks for.
        Ok(Found::Nothing) if kernel::is_at_mark(conn.fd()) => Ok(Found::Bytes(0)),
        Ok(Found::Nothing) if has_less_than_asked(conn, id) => Ok(Found::Bytes(0)),
        Err(errno) if holds_urgent_data(conn, id) => {
            keep_error(conn, errno);
            Ok(Found::Bytes(0))
        }
        other => other,
    }
}

/// Into a buffer that is nowhere: only what could be received has no place to go.
#[cold]
fn receive_nowhere(conn: &'static Conn, id: u64) -> Result<Found, Errno> {
    match look(conn, id) {
        Ok(Found::Bytes(_)) => Err(libc::EFAULT),
        Ok(Found::Nothing) if has_less_than_asked(conn, id) => Err(libc::EFAULT),
        other => other,
    }
}

/// Whether there are bytes, but fewer than a wait asks for.
fn has_less_than_asked(conn: &'static Conn, id: u64) -> bool {
    conn.common_flag(conn::LOW_WATER) && readable_bytes(conn, id) > 0
}

/// What a waiting peek gets when the stream ends first, or urgent data stands in the way.
#[cold]
fn peek_rest(conn: &Conn, id: u64, vector: Vector<'_>) -> usize {
    match attempt(conn, id, vector, 0, libc::MSG_PEEK, true) {
        Ok(Found::Bytes(bytes)) => bytes,
        _ => 0,
    }
}

/// Receives what is there now, in however many stretches: a program that gets less than it has room for may take that
/// for all there is, and wait for an edge.
#[inline]
fn attempt(
    conn: &Conn,
    id: u64,
    vector: Vector<'_>,
    skip: usize,
    flags: c_int,
    nonblocking: bool,
) -> Result<Found, Errno> {
    let Some(guard) = conn.own_receive(id) else {
        return Err(if id != 0 && conn.id() == id {
            libc::EAGAIN
        } else {
            libc::EBADF
        });
    };
    if guard.searched() {
        return Err(SEARCHED);
    }
    let Some(segment) = conn.segment(&guard) else {
        return Err(libc::EBADF);
    };
    let lane = segment.receiver(conn.side());
    if flags & libc::MSG_PEEK != 0
        && let Some(found) = Peek::new(conn, &guard, lane).attempt(vector, flags)?
    {
        return Ok(found);
    }
    let mut reached = skip;
    let last = in_stretches(conn, &guard, lane, vector, &mut reached, flags, nonblocking);
    match (reached - skip, last) {
        (0, Ok(Found::Nothing)) => match conn.take_error() {
            0 => Ok(Found::Nothing),
            errno => Err(errno),
        },
        (0, last) => last,
        (bytes, last) => {
            if let Err(errno) = last {
                keep_error(conn, errno);
            }
            Ok(Found::Bytes(bytes))
        }
    }
}

/// Receives from place `at` of the vector on, and moves it; what is found behind all that is for the caller only if
/// nothing was.
#[inline]
fn in_stretches(
    conn: &Conn,
    guard: &Guard<'_>,
    lane: Receiver<'_>,
    vector: Vector<'_>,
    at: &mut usize,
    flags: c_int,
    nonblocking: bool,
) -> Result<Found, Errno> {
    let (began, incoming) = (*at, Incoming::new(lane));
    for _ in 0..ROUNDS {
        // Whether more may stand behind what is received, in the next stretch.
        let (found, ends) = match incoming.source() {
            Source::Lane => {
                let found = from_lane(conn, &lane, vector, *at, flags)?;
                let is_full = matches!(found, Found::Bytes(bytes) if *at + bytes >= vector.len());
                let ends = !is_full && incoming.sender_leaves();
                if found == Found::Nothing {
                    // A waiter hears of what is on the kernel connection.
                    let over =
                        || conn.flag(conn::PEER_FIN | conn::SHUT_READ) || conn.has_error() || incoming.sender_ends();
                    if !(ends || nonblocking && (over() || conn.due_for_check(CHECK_US))) {
                        return Ok(Found::Nothing);
                    }
                    match look_past_bells(conn, &incoming, &lane)? {
                        Marks::Changed => continue,
                        Marks::None => return Ok(Found::Nothing),
                        Marks::End => return Ok(Found::End),
                    }
                }
                (found, ends)
            }
            Source::LaneThenRaw => match from_lane(conn, &lane, vector, *at, flags)? {
                Found::Nothing => {
                    incoming.lane_drained();
                    conn.receives_on(Path::Tcp);
                    continue;
                }
                found => (found, true),
            },
            // As with TCP, what stands behind urgent data is not received together with what stands before.
            Source::RawUntil(_) | Source::Raw if *at > 0 && kernel::is_at_mark(conn.fd()) => {
                return Ok(if *at > began { Found::Nothing } else { Found::End });
            }
            Source::RawUntil(until) => match before_lane(conn, &incoming, until, vector, *at, flags)? {
                None => continue,
                Some(found) => (found, true),
            },
            Source::Raw => {
                conn.pay_ready(guard);
                wish::heed(conn, &incoming);
                let waiting = kernel::queued(conn.fd());
                // Only bytes that were there before this second look are surely raw.
                if waiting > 0 && incoming.source() != Source::Raw {
                    continue;
                }
                let found = if waiting > 0 {
                    raw_receive(conn, vector, *at, waiting, flags)?
                } else {
                    match end_of_raw(conn, &incoming) {
                        Err(errno) => {
                            pass_urgent_data_before(conn, flags);
                            return Err(errno);
                        }
                        // Bytes that the kernel does not count: they stand behind urgent data.
                        Ok(Found::Bytes(_)) => behind_urgent_data(conn, &incoming, vector, *at, flags)?,
                        _ if flags & libc::MSG_PEEK == 0 && kernel::is_at_mark(conn.fd()) => {
                            pass_urgent_data(conn, &incoming, vector, *at, flags)?
                        }
                        Ok(other) => other,
                    }
                };
                (found, false)
            }
        };
        let Found::Bytes(bytes) = found else {
            return Ok(found);
        };
        *at += bytes;
        if !ends || *at >= vector.len() || flags & libc::MSG_PEEK != 0 {
            return Ok(found);
        }
    }
    if *at > began {
        Ok(Found::Nothing)
    } else {
        Err(send::violated(conn))
    }
}

/// What a receive would find now, without receiving.
pub(crate) fn look(conn: &Conn, id: u64) -> Result<Found, Errno> {
    let Some(guard) = conn.own_receive(id) else {
        return Ok(Found::Nothing);
    };
    let Some(segment) = conn.segment(&guard) else {
        return Ok(Found::Nothing);
    };
    let lane = segment.receiver(conn.side());
    let incoming = Incoming::new(lane);
    for _ in 0..ROUNDS {
        match incoming.source() {
            Source::Lane if lane.published() != lane.head() => return Ok(Found::Bytes(1)),
            Source::Lane => match look_past_bells(conn, &incoming, &lane)? {
                Marks::Changed if lane.published() == lane.head() && incoming.source() == Source::Lane => {
                    return Ok(Found::Nothing);
                }
                Marks::Changed => {}
                Marks::None => return Ok(Found::Nothing),
                Marks::End => return Ok(Found::End),
            },
            Source::LaneThenRaw if lane.published() != lane.head() => return Ok(Found::Bytes(1)),
            Source::LaneThenRaw => {
                incoming.lane_drained();
                conn.receives_on(Path::Tcp);
            }
            Source::RawUntil(until) => {
                if approach(conn, &incoming, until)? != 0 {
                    return Ok(if kernel::queued(conn.fd()) > 0 {
                        Found::Bytes(1)
                    } else {
                        Found::Nothing
                    });
                }
            }
            Source::Raw => {
                conn.pay_ready(&guard);
                // The kernel minds the low-water mark.
                if raw::poll_now(conn.fd(), libc::POLLIN) == 0 {
                    return Ok(Found::Nothing);
                }
                let waiting = kernel::queued(conn.fd());
                if incoming.source() != Source::Raw {
                    continue;
                }
                return if waiting > 0 {
                    Ok(Found::Bytes(1))
                } else {
                    end_of_raw(conn, &incoming)
                };
            }
        }
    }
    Err(send::violated(conn))
}

/// Takes marks that are in the way. An error behind them, which the kernel tells once, is kept for the program's next
/// call.
pub(crate) fn clear_marks(conn: &Conn, id: u64) {
    if let Err(errno) = look(conn, id) {
        conn.set_error(errno);
    }
}

/// Where a promotion to the lane at position `until` stands: so many raw bytes are to be received before; once there
/// are none, the lane is entered.
pub(crate) fn approach(conn: &Conn, incoming: &Incoming<'_>, until: u64) -> Result<u64, Errno> {
    // Beyond X there are only marks, which are never received before X is reached.
    // Who cannot tell takes no mark for data.
    let position = position(conn).ok_or(libc::ECONNRESET)?;
    let left = until.checked_sub(position).ok_or_else(|| send::violated(conn))?;
    if left == 0 {
        incoming.enter_lane();
        conn.receives_on(Path::Shm);
    }
    Ok(left)
}

/// Bytes that receives would find.
pub(crate) fn readable_bytes(conn: &'static Conn, id: u64) -> c_int {
    if conn.searched() {
        // Out of the way where the lane has no bytes, as without holes.
        clear_marks(conn, id);
    }
    let quiet = marks::is_quiet(conn);
    let Some(guard) = conn.own_receive(id) else { return 0 };
    let Some(segment) = conn.segment(&guard) else { return 0 };
    let lane = segment.receiver(conn.side());
    let bytes = match search::lanes::Stretches::new(conn, &guard) {
        Some(stretches) => stretches.readable(),
        None => Peek::new(conn, &guard, lane).readable(quiet).map(|bytes| bytes as u64),
    };
    let bytes = bytes.unwrap_or_else(|errno| {
        conn.set_error(errno);
        0
    });
    needs::want_more(conn, &lane);
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}
