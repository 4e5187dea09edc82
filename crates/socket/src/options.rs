//! Options, `fcntl` and `ioctl` where they touch what we keep.

use crate::conn::{self, Conn, Phase};
use crate::lifecycle::nanoseconds;
use crate::lock::Guard;
use crate::sys::raw;
use crate::{demote, receive, search};
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use viaduct_control::Reason;

/// What becomes of an option call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel's business.
    Pass,
    /// Done without the kernel.
    Done,
    /// Answered with this integer.
    Answer(c_int),
    /// Refused with this error number.
    Refuse(c_int),
}

/// The program sets an option; called before the kernel is told. `value`: its first integer, `time`: its value as a time.
pub fn setting(
    conn: &'static Conn,
    level: c_int,
    name: c_int,
    value: Option<c_int>,
    time: Option<libc::timeval>,
) -> Verdict {
    let on = value.unwrap_or(0) != 0;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
            if let Some(time) = time {
                conn.receive_timeout_ns.store(nanoseconds(time), Relaxed);
            }
        }
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
            if let Some(time) = time {
                conn.send_timeout_ns.store(nanoseconds(time), Relaxed);
            }
        }
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if value.unwrap_or(1) > 1 => demote::ban(conn, Reason::ReceiveLowWater),
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) if on => demote::ban(conn, Reason::ZeroCopy),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) if on => demote::ban(conn, Reason::UrgentData),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS | libc::SO_TIMESTAMPING) if on => {
            demote::ban(conn, Reason::SocketOption);
        }
        // The kernel would count the marks that we look at, too, so none may come any more.
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF)
            if value.is_some_and(|from| from >= 0) && !demote::hand_over(conn, Reason::SocketOption) =>
        {
            return Verdict::Refuse(libc::EOPNOTSUPP);
        }
        (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR) => {
            // As on a kernel without it: TLS libraries then do their work themselves.
            if conn.phase() == Phase::Attached {
                return Verdict::Refuse(libc::ENOENT);
            }
            demote::ban(conn, Reason::TransportLayer);
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
            conn.set_flag(conn::NAGLE, !on);
            // Bells may not be held back.
            if conn.phase() == Phase::Attached {
                return Verdict::Done;
            }
        }
        (libc::IPPROTO_TCP, libc::TCP_CORK) => {
            conn.set_flag(conn::CORK, on);
            if conn.phase() == Phase::Attached {
                return Verdict::Done;
            }
        }
        _ => {}
    }
    Verdict::Pass
}

/// The program asks for an option.
pub fn getting(conn: &'static Conn, level: c_int, name: c_int) -> Verdict {
    if conn.phase() != Phase::Attached {
        return Verdict::Pass;
    }
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Verdict::Answer((!conn.flag(conn::NAGLE)).into()),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => Verdict::Answer(conn.flag(conn::CORK).into()),
        (libc::SOL_SOCKET, libc::SO_ERROR) if conn.has_error() => Verdict::Answer(conn.take_error()),
        _ => Verdict::Pass,
    }
}

/// The kernel has taken an option.
pub fn was_set(conn: &'static Conn, level: c_int, name: c_int) {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_SNDBUF)
        && conn.phase() == Phase::Attached
        && let Some(guard) = conn.own_send(conn.id())
    {
        limit_lane(conn, &guard);
    }
}

/// linux/socket.h; the libc crate has no name for it.
const SO_BUF_LOCK: c_int = 72;
/// The program has set the size of the send buffer.
const SOCK_SNDBUF_LOCK: c_int = 1;

/// A program that has set the size of its send buffer wants no more than that to be on its way.
pub(crate) fn limit_lane(conn: &Conn, send: &Guard<'_>) {
    let (mut locked, mut size): (c_int, c_int) = (0, 0);
    if raw::getsockopt(conn.fd(), libc::SOL_SOCKET, SO_BUF_LOCK, &mut locked).is_ok()
        && locked & SOCK_SNDBUF_LOCK != 0
        && raw::getsockopt(conn.fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &mut size).is_ok()
        && let Some(segment) = conn.segment(send)
    {
        // The kernel doubles what the program asks for, to have room for its own bookkeeping.
        let bytes = usize::try_from(size / 2).unwrap_or(0);
        segment.sender(conn.side()).limit(bytes);
    }
}

/// `F_SETFL` has succeeded, or `FIONBIO`.
pub fn blocking_changed(conn: &Conn, nonblocking: bool) {
    conn.set_nonblocking(nonblocking);
}

/// The program asks to be sent signals for the descriptor, which only the kernel can.
pub fn signal_driven(conn: &'static Conn) {
    demote::ban(conn, Reason::UnseenWait);
}

/// `FIONREAD`; `None`: the kernel's business.
pub fn readable_bytes(conn: &'static Conn) -> Option<c_int> {
    match conn.phase() {
        Phase::Attached => Some(receive::readable_bytes(conn, conn.id())),
        _ => search::readable_bytes(conn),
    }
}

/// What the kernel has of a connection that is neither on a lane nor searched.
pub fn queued_bytes(conn: &Conn) -> isize {
    isize::try_from(crate::kernel::queued(conn.fd())).unwrap_or(isize::MAX)
}

/// `SIOCATMARK`: the kernel's business, once marks of ours are out of the way.
pub fn at_mark(conn: &'static Conn) {
    if conn.phase() == Phase::Attached {
        let _ = receive::look(conn, conn.id());
    }
}

/// `SIOCOUTQ`; `None`: the kernel's business.
pub fn unsent_bytes(conn: &'static Conn) -> Option<c_int> {
    (conn.phase() == Phase::Attached)
        .then(|| crate::send::unsent_bytes(conn, conn.id()))
        .flatten()
}
