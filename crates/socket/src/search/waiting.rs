//! Waiting until more of a stream is there than what has not been received.

use super::Step;
use super::area::Area;
use super::kernel::peek_from;
use crate::agent::{self, counters};
use crate::conn::Conn;
use crate::kernel;
use crate::path::switch;
use crate::receive::needs;
use crate::sys::{Errno, raw};
use crate::wait::direct::DirectCall;
use crate::wait::spin::Spinner;
use crate::wait::{self, Deadline, Woken};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use libc::c_int;
use viaduct_control::counters::slot;
use viaduct_stream::{Incoming, Source};

/// A wait looks this often whether it still is for the right thing, in nanoseconds.
const LOOK_AGAIN_NS: u64 = 50_000_000;

/// How much larger than what is waited for a buffer should be: packets that are not full take more room than their
/// bytes.
const AMPLE: u64 = 4;
/// The kernel calls a socket readable as soon as its peer may send no more than the largest packet has had, which on
/// the loopback device is as much as buffers hold at first: a wait on such a one would never be one.
const LEAST: u64 = 512 << 10;
/// A wait for so many bytes is one for messages that are long.
const LONG: u64 = 64 << 10;
/// What is peeked stays in the buffer, so a sender of long messages soon finds no room in one that has just enough:
/// whatever is thrown away then has the kernel send on, in the receiver's time. As much as a lane holds. Short messages
/// would come out of the processor's cache.
const LEAST_LONG: u64 = 4 << 20;
/// In a buffer that is nearly full the kernel calls a socket readable at once: a wait looks this often, in nanoseconds.
const NAP_NS: u64 = 200_000;

/// Until dropped, a call waits for a socket to hold so many bytes, and the socket counts as readable once it holds as
/// many as the most modest of all who wait asks for: the socket has one `SO_RCVLOWAT` for all of them. Whatever makes a
/// count wrong lifts the mark, so that everybody looks again. The kernel makes the socket's buffer large enough, within
/// limits, and calls it readable also when that is nearly full.
#[derive(Debug)]
pub(super) struct Mark {
    fd: c_int,
    area: &'static Area,
    /// Of the area, as this socket has it.
    generation: u64,
    identity: u64,
}

fn set_mark(fd: c_int, bytes: u64) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    let _ = raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes);
}

/// How large the buffer should be for a wait for so many bytes.
fn ample_for(bytes: u64) -> u64 {
    let least = if bytes >= LONG { LEAST_LONG } else { LEAST };
    bytes.saturating_mul(AMPLE).max(least)
}

/// Whether a mark at so many bytes is to make the buffer larger than it has been made.
fn enlarges(area: &Area, bytes: u64) -> bool {
    bytes > 1 && ample_for(bytes) > area.ample.load(Relaxed)
}

/// Has all who wait on the socket look again when something comes.
#[inline]
pub(super) fn lift_mark(fd: c_int, area: &Area) {
    if area.mark.load(Relaxed) != 0 && area.mark.swap(0, AcqRel) != 0 {
        set_mark(fd, 1);
    }
}

impl Mark {
    /// The caller owns the direction.
    pub(super) fn at(fd: c_int, area: &'static Area, bytes: u64) -> Self {
        let others = area.waiters.fetch_add(1, AcqRel) != 0;
        let present = area.mark.load(Relaxed);
        // Where others wait without a mark, they are to look at whatever comes.
        let mark = if others { bytes.min(present) } else { bytes };
        let mark = if mark > 1 { mark } else { 0 };
        let enlarge = enlarges(area, bytes);
        if enlarge {
            let ample = ample_for(bytes);
            // The buffer stays as large as this makes it.
            set_mark(fd, ample);
            area.ample.store(ample, Relaxed);
        }
        if enlarge || mark != present {
            set_mark(fd, mark.max(1));
            area.mark.store(mark, Release);
        }
        Self {
            fd,
            area,
            generation: area.generation.load(Relaxed),
            identity: area.identity.load(Relaxed),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // The area may be another socket's by now.
        if self.area.generation.load(Relaxed) != self.generation {
            return;
        }
        let _ = self
            .area
            .waiters
            .fetch_update(AcqRel, Relaxed, |waiters| waiters.checked_sub(1));
        // And so may the descriptor, where there is no record of the connection.
        if self.identity == 0 || raw::inode(self.fd) == Ok(self.identity) {
            lift_mark(self.fd, self.area);
        }
    }
}

/// Whether the stream has ended, so that no more than what is there will come. `POLLERR` alone is of messages to the
/// program, that what it sent without a copy has gone for one.
pub(super) fn has_ended(fd: c_int) -> bool {
    let over = libc::POLLRDHUP | libc::POLLHUP;
    raw::poll_now(fd, over) & over != 0
}

/// `ENOBUFS` if the socket's buffer is full although it holds fewer than `bytes`. A mark has been made for so many.
pub(super) fn refuse_if_full(fd: c_int, area: &Area, bytes: u64) -> Result<(), Errno> {
    let holds = || kernel::queued(fd) as u64;
    if holds() >= bytes {
        return Ok(());
    }
    // Where the mark has enlarged the buffer, a receive is what has the kernel tell the peer.
    peek_from(fd, area, 0);
    let _ = raw::recv(fd, &mut [0; 1], libc::MSG_PEEK | libc::MSG_DONTWAIT);
    if !kernel::is_full(fd) || has_ended(fd) || holds() >= bytes || enlarge(fd, area) {
        return Ok(());
    }
    Err(libc::ENOBUFS)
}

/// Makes the socket's buffer larger than it is, if it may be: what has been received of a packet takes room until all
/// of it has.
fn enlarge(fd: c_int, area: &Area) -> bool {
    let before = kernel::buffer_size(fd);
    set_mark(fd, u64::try_from(before).unwrap_or(0));
    // As those who wait have it, until one who does not own the direction lifts it.
    loop {
        let mark = area.mark.load(Acquire);
        set_mark(fd, mark.max(1));
        if area.mark.load(Acquire) == mark {
            break;
        }
    }
    let _ = raw::recv(fd, &mut [0; 1], libc::MSG_PEEK | libc::MSG_DONTWAIT);
    kernel::buffer_size(fd) > before
}

/// What a call that waits is to do.
#[derive(Debug)]
pub(super) enum Waiting {
    /// Look: what it waits for may be there.
    Not,
    /// Sleep until the socket is readable.
    Sleep(Mark),
    /// Sleep for [`NAP_NS`]: the socket is called readable all the time.
    Nap,
}

/// Begins to wait for bytes up to position `until`. `again`: a wait has brought too little. The caller owns the
/// direction.
pub(super) fn begin(fd: c_int, area: &'static Area, until: u64, again: bool) -> Result<Waiting, Errno> {
    let bytes = until.saturating_sub(area.base.load(Relaxed));
    if bytes == 0 {
        return Ok(Waiting::Not);
    }
    let mark = Mark::at(fd, area, bytes);
    if again && raw::poll_now(fd, libc::POLLIN) != 0 {
        refuse_if_full(fd, area, bytes)?;
        return Ok(Waiting::Nap);
    }
    Ok(Waiting::Sleep(mark))
}

/// A call that does not wait found too little before position `until`: tells if there is no room for so much. The
/// caller owns the direction.
pub(super) fn announce(fd: c_int, area: &'static Area, until: u64) -> Result<bool, Errno> {
    let bytes = until.saturating_sub(area.base.load(Relaxed));
    // A mark is not needed again where it has made the buffer large: the kernel tells of the bytes that are there with
    // each, which for who waits by edges is news.
    let _mark = enlarges(area, bytes).then(|| Mark::at(fd, area, bytes));
    refuse_if_full(fd, area, bytes)?;
    Ok(false)
}

/// Sleeps as `waiting` says; `sleep` waits for input for at most so many nanoseconds, or for nothing.
pub(super) fn sleep(waiting: Waiting, sleep: impl FnOnce(i16, u64) -> Result<Woken, Errno>) -> Result<Woken, Errno> {
    match waiting {
        Waiting::Not => Ok(Woken::Look),
        Waiting::Sleep(_mark) => sleep(wait::FOR_INPUT, LOOK_AGAIN_NS),
        Waiting::Nap => sleep(0, NAP_NS),
    }
}

pub(super) fn wait(conn: &'static Conn, id: u64, step: Step, deadline: Deadline, again: bool) -> Result<Woken, Errno> {
    match step {
        Step::Nothing { until } => {
            // The peer does not go over to the lane meanwhile.
            let Some(call) = DirectCall::peek(conn) else {
                return Ok(Woken::Look);
            };
            let woken = wait_for_kernel(conn, id, until, deadline, again);
            call.end();
            if agent::has_mail() {
                agent::deliver();
            }
            woken
        }
        Step::Stretches { until, kernel, .. } => wait_for_news(conn, id, until, kernel, deadline, again),
        _ => Ok(Woken::Look),
    }
}

/// Waits until the kernel holds bytes up to position `until`.
fn wait_for_kernel(conn: &'static Conn, id: u64, until: u64, deadline: Deadline, again: bool) -> Result<Woken, Errno> {
    let waiting = {
        let _guard = conn.own_searched(id).ok_or(libc::EBADF)?;
        begin(conn.fd(), conn.area().ok_or(libc::EBADF)?, until, again)?
    };
    if conn.refresh_nonblocking() {
        return Ok(Woken::TimedOut);
    }
    counters::add(conn, slot::SLEEPS, 1);
    sleep(waiting, |events, ns| {
        Ok(wait::sleep(conn, wait::bit_for(conn), events, deadline, Some(ns)))
    })
}

/// Waits until the lane has published up to position `until`, or the kernel holds more than `queued` bytes. `again`: a
/// wait has brought too little.
fn wait_for_news(
    conn: &'static Conn,
    id: u64,
    until: u64,
    queued: u64,
    deadline: Deadline,
    again: bool,
) -> Result<Woken, Errno> {
    let mut spinner = Spinner::new();
    let bit = wait::bit_for(conn);
    let area = conn.area().ok_or(libc::EBADF)?;
    let mut polling = true;
    let mark = loop {
        let guard = conn.own_searched(id).ok_or(libc::EBADF)?;
        let lane = conn.segment(&guard).ok_or(libc::EBADF)?.receiver(conn.side());
        let missing = until.wrapping_sub(lane.published());
        if missing.cast_signed() <= 0 {
            spinner.paid();
            return Ok(Woken::Look);
        }
        if polling && Incoming::new(lane).source() == Source::Lane {
            // The core is given up without the direction.
            drop(guard);
            polling = spinner.again();
            if polling && spinner.is_long() && has_ended(conn.fd()) {
                return Ok(Woken::Look);
            }
            spinner.rest(missing);
            continue;
        }
        if Incoming::new(lane).source() == Source::Lane {
            needs::want(conn, &lane, until);
        }
        lane.arm_until(bit, until);
        let mark = Mark::at(conn.fd(), area, queued + 1);
        let there = until.wrapping_sub(lane.published()).cast_signed() <= 0;
        // Fewer than were counted: another thread has taken some.
        if there || queued > 0 && (kernel::queued(conn.fd()) as u64) < queued {
            return Ok(Woken::Look);
        }
        break mark;
    };
    if conn.refresh_nonblocking() {
        return Ok(Woken::TimedOut);
    }
    counters::add(conn, slot::SLEEPS, 1);
    let owed = if switch::owes(conn) { wait::FOR_OUTPUT } else { 0 };
    let called_readable = again && raw::poll_now(conn.fd(), libc::POLLIN) != 0;
    if called_readable && kernel::queued(conn.fd()) as u64 > queued {
        return Ok(Woken::Look);
    }
    // A buffer that is full of what is known is called readable all the time.
    let (events, most) = if called_readable {
        (owed, NAP_NS)
    } else {
        (wait::FOR_INPUT | owed, LOOK_AGAIN_NS)
    };
    // Bounded: without a bound it may peek, and where a peek begins is the owner's to say.
    let woken = wait::sleep(conn, bit, events, deadline, Some(most));
    drop(mark);
    switch::serve(conn);
    if agent::has_mail() {
        agent::deliver();
    }
    Ok(woken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::area;
    use core::sync::atomic::AtomicU32;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn a_wait_that_outlives_its_socket_leaves_others_alone() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        let mark_of = |fd: c_int| {
            let mut mark: c_int = 0;
            raw::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mut mark).unwrap();
            mark
        };
        let reference = area::claim().unwrap();
        let area = area::numbered(reference).unwrap();
        let inode = raw::inode(fd).unwrap();
        for (identity, later, left) in [
            (0, 0, (0, 1)),
            (inode, 0, (0, 1)),
            (inode + 1, 0, (0, 100)),
            (0, 1, (1, 100)),
        ] {
            area.identity.store(identity, Relaxed);
            area.waiters.store(0, Relaxed);
            area.mark.store(0, Relaxed);
            let mark = Mark::at(fd, area, 100);
            assert_eq!((area.waiters.load(Relaxed), mark_of(fd)), (1, 100));
            area.generation.fetch_add(later, Relaxed);
            drop(mark);
            assert_eq!((area.waiters.load(Relaxed), mark_of(fd)), left, "{identity}, {later}");
        }
        area::release(&AtomicU32::new(reference));
    }
}
