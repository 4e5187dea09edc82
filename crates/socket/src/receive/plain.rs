//! Receiving bytes that the kernel connection carries.

use crate::agent::counters;
use crate::conn::{self, Conn};
use crate::kernel;
use crate::lock::{COUNTS, Locks};
use crate::receive::{Found, approach, needs};
use crate::sys::{Errno, raw};
use crate::vector::Vector;
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use viaduct_control::Reason;
use viaduct_control::counters::slot;
use viaduct_stream::{Incoming, Source};

/// As few bytes a waiting receive is content with.
#[inline]
pub(crate) fn low_water(conn: &Conn) -> usize {
    if !conn.common_flag(conn::LOW_WATER) {
        return 1;
    }
    let mut mark: c_int = 1;
    let _ = raw::getsockopt(conn.fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mut mark);
    usize::try_from(mark).unwrap_or(1).max(1)
}

/// Nothing waits in a raw stretch: is that the end, an error, or just not yet?
pub(crate) fn end_of_raw(conn: &Conn, incoming: &Incoming<'_>) -> Result<Found, Errno> {
    let mut byte = [0; 1];
    match raw::recv(conn.fd(), &mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(0) if incoming.source() == Source::Raw => Ok(Found::End),
        Ok(1) if kernel::queued(conn.fd()) == 0 && incoming.source() == Source::Raw => Ok(Found::Bytes(1)),
        Ok(_) | Err(libc::EAGAIN | libc::EINTR) => Ok(Found::Nothing),
        Err(errno) => Err(errno),
    }
}

pub(crate) fn raw_receive(
    conn: &Conn,
    vector: Vector<'_>,
    skip: usize,
    limit: usize,
    flags: c_int,
) -> Result<Found, Errno> {
    let takes = flags & libc::MSG_PEEK == 0;
    let heeded = flags & (libc::MSG_PEEK | libc::MSG_TRUNC);
    let receive = || kernel::receive(conn.fd(), vector, skip, limit, heeded);
    match if takes { conn.take_counted(receive) } else { receive() } {
        Ok(0) => Ok(Found::End),
        Ok(bytes) => {
            if takes {
                counters::add(conn, slot::BYTES_RECEIVED, bytes as u64);
            }
            Ok(Found::Bytes(bytes))
        }
        Err(libc::EAGAIN) => Ok(Found::Nothing),
        Err(errno) => Err(errno),
    }
}

/// Receives what stands behind urgent data, which the kernel does not count.
#[cold]
pub(crate) fn behind_urgent_data(
    conn: &Conn,
    incoming: &Incoming<'_>,
    vector: Vector<'_>,
    skip: usize,
    flags: c_int,
) -> Result<Found, Errno> {
    let locks = conn.locks().ok_or(libc::EBADF)?;
    let waiting = kernel::queued_in_all(conn.fd(), locks).saturating_sub(1);
    if incoming.source() != Source::Raw {
        return Ok(Found::Nothing);
    }
    raw_receive(conn, vector, skip, waiting.max(1), flags)
}

/// Nothing waits but urgent data out of line, which a receive passes, as with TCP. Nothing may be promoted any more, or
/// what comes meanwhile might be a mark.
#[cold]
pub(crate) fn pass_urgent_data(
    conn: &Conn,
    incoming: &Incoming<'_>,
    vector: Vector<'_>,
    skip: usize,
    flags: c_int,
) -> Result<Found, Errno> {
    conn.ban();
    conn.set_reason(Reason::UrgentData);
    incoming.request_raw(true);
    if incoming.is_being_promoted() || incoming.source() != Source::Raw {
        return Ok(Found::Nothing);
    }
    raw_receive(conn, vector, skip, 1, flags)
}

/// As with TCP, a receive that is told of an error has passed the urgent data before that.
#[cold]
pub(crate) fn pass_urgent_data_before(conn: &Conn, flags: c_int) {
    if flags & libc::MSG_PEEK == 0 && kernel::is_at_mark(conn.fd()) {
        let _ = raw::recv(conn.fd(), &mut [0; 1], libc::MSG_DONTWAIT);
    }
}

/// Kernel position of the next byte: the kernel's word while the connection is up, our own count once its end hides it.
/// `None` if that is unsure. The receiving direction is owned.
pub(crate) fn position(conn: &Conn) -> Option<u64> {
    let own = own_position(conn)?;
    let fd = conn.fd();
    match kernel::receive_position(fd, || kernel::queued(fd)) {
        // Urgent data, which hides what stands behind it, is not counted by those who pass it.
        Ok(position) if position != own => {
            let position = kernel::receive_position_surely(fd, conn.locks()?).unwrap_or(own);
            conn.set_position(position);
            Some(position)
        }
        _ => Some(own),
    }
}

/// The same by our own count, which is right from where the lane has been entered on.
pub(crate) fn own_position(conn: &Conn) -> Option<u64> {
    let is_sure = conn.locks()?.amid.load(Relaxed) & COUNTS == 0;
    is_sure.then(|| conn.position())
}

/// Whoever took bytes last was killed before it had counted them, or has jumped away.
#[cold]
pub(crate) fn count_anew(conn: &Conn, locks: &Locks) {
    if let Ok(position) = kernel::receive_position_surely(conn.fd(), locks) {
        conn.set_position(position);
        locks.end(COUNTS);
    }
}

/// Receives raw bytes before a promotion at `until`; `None` once there are none left.
pub(crate) fn before_lane(
    conn: &Conn,
    incoming: &Incoming<'_>,
    until: u64,
    vector: Vector<'_>,
    skip: usize,
    flags: c_int,
) -> Result<Option<Found>, Errno> {
    let sure = conn.surely_raw();
    let asks = sure < vector.len().saturating_sub(skip) as u64;
    let left = if asks { approach(conn, incoming, until)? } else { sure };
    if left == 0 {
        return Ok(None);
    }
    // Whoever is killed in the middle leaves nothing that is not sure.
    conn.know_raw(0);
    let limit = usize::try_from(left).unwrap_or(usize::MAX);
    let found = raw_receive(conn, vector, skip, limit, flags)?;
    if let Found::Bytes(bytes) = found
        && flags & libc::MSG_PEEK == 0
    {
        incoming.approached();
        needs::consumed(conn, incoming);
        let left = left.saturating_sub(bytes as u64);
        // Half of what the kernel says: beside the bytes that a receive counts it may take one of urgent data.
        conn.know_raw(if asks { left / 2 } else { left });
    }
    Ok(Some(found))
}

impl Conn {
    /// Kernel position of the next byte to be received, counted since the pair stood; unsure amid [`COUNTS`].
    fn position(&self) -> u64 {
        self.locks().map_or(0, |locks| locks.position.load(Relaxed))
    }

    /// The kernel's next byte is at this position. The receiving direction is owned.
    pub(crate) fn set_position(&self, position: u64) {
        if let Some(locks) = self.locks() {
            locks.position.store(position, Relaxed);
        }
    }

    /// Has `take` take bytes, of the stream or marks, off the kernel connection, and counts them. Whoever is killed in
    /// between, or jumps away, leaves it to who owns the receiving direction next to count anew. It is owned.
    #[inline]
    pub(crate) fn take_counted(&self, take: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
        let was_sure = own_position(self).is_some();
        if let Some(locks) = self.locks() {
            locks.begin(COUNTS);
        }
        let taken = take();
        self.set_position(self.position().wrapping_add(taken.unwrap_or(0) as u64));
        if let Some(locks) = self.locks().filter(|_| was_sure) {
            locks.end(COUNTS);
        }
        taken
    }

    /// So many of the next bytes are raw, as the kernel's word was not long ago. The receiving direction is owned.
    fn surely_raw(&self) -> u64 {
        if !self.alone() {
            // Others may take bytes that nobody here counts.
            return 0;
        }
        let known = self.locks().map_or(0, |locks| locks.surely_raw.load(Relaxed));
        own_position(self).map_or(0, |position| known.saturating_sub(position))
    }

    /// So many of the next bytes are. The receiving direction is owned.
    pub(crate) fn know_raw(&self, bytes: u64) {
        if let Some(locks) = self.locks() {
            locks.surely_raw.store(self.position().saturating_add(bytes), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::{Phase, records};
    use core::sync::atomic::{AtomicBool, AtomicU32};
    use rustix::net::SendFlags;

    #[test]
    fn urgent_data_is_received_apart_amidst_counts() {
        let (conn, [_own, peer]) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        let (over, counts) = (AtomicBool::new(false), AtomicU32::new(0));
        rustix::net::send(&peer, b"!", SendFlags::OOB).unwrap();
        while raw::poll_now(conn.fd(), libc::POLLPRI) == 0 {}
        let flags = libc::MSG_OOB | libc::MSG_PEEK;
        let mut byte = [0_u8];
        let parts = [libc::iovec {
            iov_base: byte.as_mut_ptr().cast(),
            iov_len: 1,
        }];
        let received = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let _guard = conn.own_receive(conn.id());
                    kernel::queued_in_all(conn.fd(), conn.locks().unwrap());
                    counts.fetch_add(1, Relaxed);
                }
            });
            let receive = || {
                let direct = || raw::recv(conn.fd(), &mut [0], flags).map_or(-1, usize::cast_signed);
                crate::receive(conn, Vector::own(&parts), flags, direct)
            };
            let mut received = true;
            while received && counts.load(Relaxed) < 5000 {
                received = receive() == 1;
            }
            over.store(true, Relaxed);
            received
        });
        assert!(received);
    }
}
