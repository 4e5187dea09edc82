//! Receiving bytes that the kernel connection carries.

use crate::agent::counters;
use crate::conn::{self, Conn};
use crate::kernel;
use crate::receive::{Found, approach, needs};
use crate::sys::{Errno, raw};
use crate::vector::Vector;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::compiler_fence;
use libc::c_int;
use viaduct_control::Reason;
use viaduct_control::counters::slot;
use viaduct_stream::{Incoming, Source};

/// As few bytes a waiting receive is content with.
#[inline]
pub(crate) fn low_water(conn: &Conn) -> usize {
    if !conn.option(conn::LOW_WATER) {
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
    let waiting = kernel::queued_in_all(conn.fd()).saturating_sub(1);
    if incoming.source() != Source::Raw {
        return Ok(Found::Nothing);
    }
    raw_receive(conn, vector, skip, waiting.max(1), flags)
}

/// Nothing waits but urgent data out of line, which a receive passes, as with TCP. Nothing may be promoted any more, or what comes meanwhile might
/// be a mark.
#[cold]
pub(crate) fn pass_urgent_data(
    conn: &Conn,
    incoming: &Incoming<'_>,
    vector: Vector<'_>,
    skip: usize,
    flags: c_int,
) -> Result<Found, Errno> {
    conn.set_flag(conn::BANNED, true);
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

/// In a count of taken bytes: whoever took some last was killed before it had counted them, or has jumped away.
const UNSURE: u64 = 1 << 63;

/// Kernel position of the next byte: the kernel's word while the connection is up, our own count once a reset hides it. `None` if that is unsure.
pub(crate) fn position(conn: &Conn) -> Option<u64> {
    let own = conn.position();
    if own & UNSURE != 0 {
        return count_anew(conn);
    }
    Some(match kernel::receive_position(conn.fd(), kernel::queued) {
        // There may be urgent data, which hides what stands behind it.
        Some(position) if position != own => kernel::receive_position(conn.fd(), kernel::queued_in_all).unwrap_or(own),
        _ => own,
    })
}

#[cold]
fn count_anew(conn: &Conn) -> Option<u64> {
    let position = kernel::receive_position_surely(conn.fd())?;
    conn.set_position(position);
    Some(position)
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
    /// Kernel position of the next byte to be received, counted since the pair stood; perhaps [`UNSURE`].
    fn position(&self) -> u64 {
        self.locks().map_or(0, |locks| locks.position.load(Relaxed))
    }

    /// The kernel's next byte is at this position. The receiving direction is owned.
    pub(crate) fn set_position(&self, position: u64) {
        if let Some(locks) = self.locks() {
            locks.position.store(position, Relaxed);
        }
    }

    /// Has `take` take bytes, of the stream or marks, off the kernel connection, and counts them. Whoever is killed in between, or jumps away, leaves the
    /// count unsure. The receiving direction is owned.
    #[inline]
    pub(crate) fn take_counted(&self, take: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
        let before = self.position();
        self.set_position(before | UNSURE);
        compiler_fence(SeqCst);
        let taken = take();
        compiler_fence(SeqCst);
        self.set_position(before.wrapping_add(taken.unwrap_or(0) as u64));
        taken
    }

    /// So many of the next bytes are raw, as the kernel's word was not long ago. The receiving direction is owned.
    fn surely_raw(&self) -> u64 {
        if !self.alone() {
            // Others may take bytes that nobody here counts.
            return 0;
        }
        let known = self.locks().map_or(0, |locks| locks.surely_raw.load(Relaxed));
        known.saturating_sub(self.position())
    }

    /// So many of the next bytes are. The receiving direction is owned.
    pub(crate) fn know_raw(&self, bytes: u64) {
        if let Some(locks) = self.locks() {
            let position = self.position() & !UNSURE;
            locks.surely_raw.store(position.saturating_add(bytes), Relaxed);
        }
    }
}
