//! Waiting until more of a stream is there than what has not been received.

use super::Step;
use super::area::Area;
use super::kernel::peek_from;
use crate::conn::Conn;
use crate::direct::DirectCall;
use crate::spin::Spinner;
use crate::sys::{self, Errno, raw};
use crate::wait::{self, Deadline, Woken};
use crate::{agent, counters, kernel, real, send, signals};
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use viaduct_control::counters::slot;
use viaduct_stream::{Incoming, Source};

/// A connection without a lane may get one while a call waits, and then its bytes come another way.
const LOOK_AGAIN_NS: u64 = 50_000_000;

/// How much larger than what is waited for a buffer should be: packets that are not full take more room than their bytes.
const AMPLE: u64 = 4;
/// The kernel calls a socket readable as soon as its peer may send no more than the largest packet has had, which on the loopback device is
/// as much as buffers hold at first: a wait on such a one would never be one.
const LEAST: u64 = 512 << 10;
/// In a buffer that is nearly full the kernel calls a socket readable at once: a wait looks this often, in nanoseconds.
const NAP_NS: u64 = 200_000;

/// Until dropped, a socket counts as readable once it holds so many bytes. The kernel makes its buffer large enough, within limits, and
/// calls it readable also when the buffer is nearly full.
#[derive(Debug)]
pub(super) struct Mark {
    fd: c_int,
    set: bool,
}

impl Mark {
    pub(super) fn at(fd: c_int, area: &Area, bytes: u64) -> Self {
        let set = |bytes: u64| {
            let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
            raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes).is_ok()
        };
        let ample = bytes.saturating_mul(AMPLE);
        if bytes > 1 && ample > area.ample.load(Relaxed) {
            // The buffer stays as large as this makes it.
            let ample = ample.max(LEAST);
            set(ample);
            area.ample.store(ample, Relaxed);
            let room = u64::try_from(kernel::buffer_size(fd)).unwrap_or(0) / (2 * AMPLE);
            area.room.store(room, Relaxed);
        }
        Self {
            fd,
            set: bytes > 1 && set(bytes),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.set {
            let _ = raw::setsockopt(self.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &(1 as c_int));
        }
    }
}

/// Whether the stream has ended, so that no more than what is there will come.
pub(super) fn has_ended(fd: c_int) -> bool {
    let over = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    raw::poll_now(fd, over) & over != 0
}

/// `ENOBUFS` if the socket's buffer is full although it holds fewer than `bytes`. A mark has been made there.
pub(super) fn refuse_if_full(fd: c_int, area: &Area, bytes: u64) -> Result<(), Errno> {
    let holds = || kernel::queued(fd) as u64;
    if holds() >= bytes {
        return Ok(());
    }
    // Where the mark has enlarged the buffer, a receive is what has the kernel tell the peer.
    peek_from(fd, area, 0);
    let _ = raw::recv(fd, &mut [0; 1], libc::MSG_PEEK | libc::MSG_DONTWAIT);
    if !kernel::is_full(fd) || has_ended(fd) || holds() >= bytes || enlarge(fd, bytes) {
        return Ok(());
    }
    Err(libc::ENOBUFS)
}

/// Makes the socket's buffer larger than it is, if it may be: what has been received of a packet takes room until all of it has. The mark
/// at `bytes` stays.
fn enlarge(fd: c_int, bytes: u64) -> bool {
    let set = |bytes: c_int| raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes);
    let before = kernel::buffer_size(fd);
    let _ = set(before);
    let _ = set(c_int::try_from(bytes).unwrap_or(c_int::MAX));
    let _ = raw::recv(fd, &mut [0; 1], libc::MSG_PEEK | libc::MSG_DONTWAIT);
    kernel::buffer_size(fd) > before
}

/// After a wait that has not brought `bytes`: naps if the buffer is nearly full, since the next wait would not be one.
pub(super) fn look_around(fd: c_int, area: &Area, bytes: u64) -> Result<(), Errno> {
    let _mark = Mark::at(fd, area, bytes);
    if raw::poll_now(fd, libc::POLLIN) == 0 {
        return Ok(());
    }
    refuse_if_full(fd, area, bytes)?;
    raw::nap(NAP_NS);
    Ok(())
}

pub(super) fn wait(conn: &'static Conn, id: u64, step: Step, deadline: Deadline) -> Result<Woken, Errno> {
    match step {
        Step::Nothing { kernel } => {
            let area = conn.area().ok_or(libc::EBADF)?;
            counters::add(conn, slot::SLEEPS, 1);
            if kernel == 1 || kernel <= area.room.load(Relaxed) {
                return sleep_inside(conn, area, kernel, deadline);
            }
            let woken = {
                let _mark = Mark::at(conn.fd(), area, kernel);
                wait::sleep(
                    conn,
                    wait::bit_for(conn),
                    wait::FOR_INPUT,
                    deadline,
                    Some(LOOK_AGAIN_NS),
                )
            };
            if agent::has_mail() {
                agent::deliver();
            }
            Ok(woken)
        }
        Step::Stretches { lane, kernel } => wait_for_news(conn, id, lane, kernel, deadline),
        _ => Ok(Woken::Look),
    }
}

/// Sleeps until the socket holds so many bytes, which it can, in a receive that takes nothing. The peer does not go over to the lane
/// meanwhile.
fn sleep_inside(conn: &'static Conn, area: &Area, bytes: u64, deadline: Deadline) -> Result<Woken, Errno> {
    let Some(call) = DirectCall::peek(conn) else {
        return Ok(Woken::Look);
    };
    let errno = sys::errno();
    let want = usize::try_from(bytes).unwrap_or(usize::MAX);
    peek_from(conn.fd(), area, 0);
    let result = {
        let _mark = Mark::at(conn.fd(), area, bytes);
        real::peek_away(conn.fd(), want)
    };
    sys::set_errno(errno);
    call.end_peek(conn);
    if agent::has_mail() {
        agent::deliver();
    }
    match result {
        Ok(got) if got >= want || has_ended(conn.fd()) => Ok(Woken::Look),
        Ok(_) | Err(libc::EINTR) if deadline.is_over() => Ok(Woken::TimedOut),
        Ok(_) | Err(libc::EINTR) if signals::all_restart(deadline.is_set()) => Ok(Woken::Look),
        Ok(_) | Err(libc::EINTR) => Ok(Woken::Interrupted),
        Err(libc::EAGAIN) => Ok(Woken::TimedOut),
        Err(errno) => Err(errno),
    }
}

/// Waits until the lane has published beyond `published`, or the kernel holds more than `queued` bytes.
fn wait_for_news(
    conn: &'static Conn,
    id: u64,
    published: u64,
    queued: u64,
    deadline: Deadline,
) -> Result<Woken, Errno> {
    let mut spinner = Spinner::new();
    let bit = wait::bit_for(conn);
    loop {
        let guard = conn.own_receive(id).ok_or(libc::EBADF)?;
        let lane = conn.segment(&guard).ok_or(libc::EBADF)?.receiver(conn.side());
        if lane.published() != published {
            spinner.paid();
            return Ok(Woken::Look);
        }
        if Incoming::new(lane).source() == Source::Lane && spinner.again() {
            continue;
        }
        lane.arm(bit);
        if lane.published() != published {
            return Ok(Woken::Look);
        }
        break;
    }
    if conn.refresh_nonblocking() {
        return Ok(Woken::TimedOut);
    }
    counters::add(conn, slot::SLEEPS, 1);
    let owed = if send::owes(conn) { wait::FOR_OUTPUT } else { 0 };
    let woken = {
        let area = conn.area().ok_or(libc::EBADF)?;
        let _mark = Mark::at(conn.fd(), area, queued + 1);
        wait::sleep(conn, bit, wait::FOR_INPUT | owed, deadline, None)
    };
    send::serve(conn);
    if agent::has_mail() {
        agent::deliver();
    }
    Ok(woken)
}
