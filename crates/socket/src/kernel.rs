//! What the kernel says of a connection: its byte counts, and raw calls on its stream.

use crate::lock::{IN_LINE, Locks, TELLS_REST};
use crate::sys::memory::discard;
use crate::sys::{self, Errno, raw};
use crate::vector::Vector;
use core::sync::atomic::Ordering::Relaxed;
use libc::{c_int, iovec};

/// The start of `struct tcp_info` (linux/tcp.h), up to the last field used here.
#[repr(C)]
#[derive(Clone, Copy)]
struct TcpInfo {
    state: u8,
    bytes: [u8; 7],
    words: [u32; 24],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
    delivered: u32,
    delivered_ce: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
}

const ESTABLISHED: u8 = 1;
const FIN_WAIT1: u8 = 4;
const FIN_WAIT2: u8 = 5;
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LISTEN: u8 = 10;

fn tcp_info(fd: c_int) -> Option<TcpInfo> {
    let mut info = TcpInfo {
        state: 0,
        bytes: [0; 7],
        words: [0; 24],
        pacing_rate: 0,
        max_pacing_rate: 0,
        bytes_acked: 0,
        bytes_received: 0,
        segs_out: 0,
        segs_in: 0,
        notsent_bytes: 0,
        min_rtt: 0,
        data_segs_in: 0,
        data_segs_out: 0,
        delivery_rate: 0,
        busy_time: 0,
        rwnd_limited: 0,
        sndbuf_limited: 0,
        delivered: 0,
        delivered_ce: 0,
        bytes_sent: 0,
        bytes_retrans: 0,
    };
    let len = raw::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
    (len >= size_of::<TcpInfo>()).then_some(info)
}

/// Whether `fd` is a TCP socket that listens.
pub(crate) fn is_listening(fd: c_int) -> bool {
    tcp_info(fd).is_some_and(|info| info.state == LISTEN)
}

/// Whether the peer's direction of `fd`'s connection has ended.
pub(crate) fn peer_has_ended(fd: c_int) -> bool {
    tcp_info(fd).is_some_and(|info| !matches!(info.state, ESTABLISHED | FIN_WAIT1 | FIN_WAIT2))
}

/// Whether a direction of `fd`'s connection has been shut down, by either end.
pub(crate) fn is_shut(fd: c_int) -> bool {
    tcp_info(fd).is_none_or(|info| info.state != ESTABLISHED)
        || raw::poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP) != 0
}

/// Whether bytes came or went with the SYN (`TCP_FASTOPEN`), which makes counts hard to read.
pub(crate) fn was_opened_fast(fd: c_int) -> bool {
    /// Of `tcpi_options`, the byte behind state, congestion state, retransmits, probes and backoff.
    const SYN_DATA: u8 = 32;
    tcp_info(fd).is_none_or(|info| info.bytes[4] & SYN_DATA != 0)
}

/// How many of the bytes that this end has sent the peer's kernel has taken; `None` if nothing can be sent.
pub(crate) fn taken_by_peer(fd: c_int) -> Option<u64> {
    tcp_info(fd)
        .filter(|info| matches!(info.state, ESTABLISHED | CLOSE_WAIT))
        .map(|info| info.bytes_acked)
}

/// Whether the kernel counts as much as the program has `sent` and `received` by it. It does not where it moves bytes
/// past the protocol, as between sockets that are in a map of BPF's. `active` as in [`send_position`].
pub(crate) fn counts(fd: c_int, active: bool, [sent, received]: [u64; 2]) -> bool {
    // What is acknowledged meanwhile is counted twice, not never.
    let queued = raw::ioctl_get(fd, SIOCOUTQ).map_or(0, |bytes| u64::try_from(bytes).unwrap_or(0));
    tcp_info(fd).is_none_or(|info| {
        info.bytes_acked.wrapping_add(queued).wrapping_sub(active.into()) >= sent && info.bytes_received >= received
    })
}

/// Why there is no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPosition {
    /// Not open for sending, or acknowledgements come too fast to count.
    NotNow,
    /// The kernel's counts contradict each other.
    Disagree,
}

/// Kernel position at which the next byte this end hands to the kernel will stand. `active`: this end called connect,
/// so that its SYN counts one in `bytes_acked`. `check`: hold the result against the kernel's count of bytes sent,
/// which is right as long as nothing was retransmitted in part. The caller owns the sending direction.
pub(crate) fn send_position(fd: c_int, active: bool, check: bool) -> Result<u64, NoPosition> {
    for _ in 0..16 {
        let before = tcp_info(fd).ok_or(NoPosition::NotNow)?;
        let queued = raw::ioctl_get(fd, SIOCOUTQ)
            .ok()
            .and_then(|bytes| u64::try_from(bytes).ok());
        let queued = queued.ok_or(NoPosition::NotNow)?;
        let after = tcp_info(fd).ok_or(NoPosition::NotNow)?;
        if !matches!(after.state, ESTABLISHED | CLOSE_WAIT) {
            return Err(NoPosition::NotNow);
        }
        if before.bytes_acked != after.bytes_acked {
            continue;
        }
        let position = after.bytes_acked.wrapping_add(queued).wrapping_sub(active.into());
        let sent = after.bytes_sent.wrapping_sub(after.bytes_retrans);
        let agree = !check || sent.wrapping_add(after.notsent_bytes.into()) == position;
        return if agree { Ok(position) } else { Err(NoPosition::Disagree) };
    }
    Err(NoPosition::NotNow)
}

/// The size of a socket's receive buffer; 0 if it has none.
pub(crate) fn buffer_size(fd: c_int) -> c_int {
    let mut size: c_int = 0;
    let known = raw::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut size).is_ok();
    if known { size } else { 0 }
}

/// Whether the program has set the size of a socket's buffer, by `SO_RCVBUF` or `SO_SNDBUF`, rather than left it to the
/// kernel. Unknown before Linux 5.14, and taken for no.
pub(crate) fn has_set_size(fd: c_int, option: c_int) -> bool {
    /// linux/socket.h; the libc crate has no names for these.
    const SO_BUF_LOCK: c_int = 72;
    const SOCK_SNDBUF_LOCK: c_int = 1;
    const SOCK_RCVBUF_LOCK: c_int = 2;
    let bit = match option {
        libc::SO_RCVBUF => SOCK_RCVBUF_LOCK,
        _ => SOCK_SNDBUF_LOCK,
    };
    let mut locked: c_int = 0;
    raw::getsockopt(fd, libc::SOL_SOCKET, SO_BUF_LOCK, &mut locked).is_ok() && locked & bit != 0
}

/// Whether the kernel resets the connection when its last descriptor goes, whatever ends the program (`SO_LINGER` with
/// no time).
pub(crate) fn resets_at_close(fd: c_int) -> bool {
    let mut linger = libc::linger {
        l_onoff: 0,
        l_linger: 0,
    };
    let known = raw::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger).is_ok();
    known && linger.l_onoff != 0 && linger.l_linger == 0
}

/// Whether a socket's buffer is full: out of memory, or the peer may send nothing.
pub(crate) fn is_full(fd: c_int) -> bool {
    /// linux/socket.h and linux/sock_diag.h: memory in use for receiving, and its limit, are the first two.
    const SO_MEMINFO: c_int = 55;
    /// Place of `tcpi_rcv_wnd` in `struct tcp_info` (linux/tcp.h, since Linux 6.2), in words.
    const WINDOW: usize = 58;
    let mut memory = [0_u32; 2];
    let known = raw::getsockopt(fd, libc::SOL_SOCKET, SO_MEMINFO, &mut memory).is_ok();
    if known && memory[0] > memory[1] {
        return true;
    }
    let mut words = [0_u32; WINDOW + 1];
    let len = raw::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut words);
    len == Ok(size_of_val(&words)) && words[WINDOW] == 0
}

const SIOCOUTQ: libc::c_long = 0x5411;
const FIONREAD: libc::c_long = 0x541b;
const SIOCATMARK: libc::c_long = 0x8905;

/// Bytes that wait in the kernel to be received.
pub(crate) fn queued(fd: c_int) -> usize {
    raw::ioctl_get(fd, FIONREAD)
        .ok()
        .and_then(|bytes| usize::try_from(bytes).ok())
        .unwrap_or(0)
}

/// Whether urgent data comes next, before which a receive ends.
pub(crate) fn is_at_mark(fd: c_int) -> bool {
    raw::ioctl_get(fd, SIOCATMARK).is_ok_and(|at| at != 0)
}

/// Tells, as an error, the one that a receive would tell if nothing stood before it.
///
/// # Errors
/// That one, which the kernel has forgotten then.
pub(crate) fn take_error(fd: c_int) -> Result<(), Errno> {
    // The option also gives errors that are only passing, as long as there is no other.
    if raw::poll_now(fd, 0) & libc::POLLERR == 0 {
        return Ok(());
    }
    let mut errno: c_int = 0;
    match raw::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut errno) {
        Ok(_) if errno != 0 => Err(errno),
        _ => Ok(()),
    }
}

/// Options that are on for a count of ours, with the bits of [`Locks::amid`] that say so. They are off for the program.
const COUNTING: [(u32, c_int, c_int); 2] = [
    (IN_LINE, libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (TELLS_REST, libc::IPPROTO_TCP, libc::TCP_INQ),
];

/// Has `count` count while an option is on. The receiving direction, whose words these are, is owned.
fn with_option<T>(fd: c_int, locks: &Locks, (note, level, name): (u32, c_int, c_int), count: impl FnOnce() -> T) -> T {
    let mut is_on: c_int = 0;
    let known = raw::getsockopt(fd, level, name, &mut is_on).is_ok();
    if !known || is_on != 0 {
        return count();
    }
    let set = |on: c_int| raw::setsockopt(fd, level, name, &on).is_ok();
    locks.begin(note);
    set(1);
    let counted = count();
    set(0);
    locks.end(note);
    counted
}

/// Who has counted was killed, or has jumped away: the options are as the program has them. The receiving direction is
/// owned.
pub(crate) fn end_counts(fd: c_int, locks: &Locks) {
    for (note, level, name) in COUNTING {
        if locks.amid.load(Relaxed) & note != 0 {
            let _ = raw::setsockopt(fd, level, name, &0);
            locks.end(note);
        }
    }
}

/// The same as [`queued`] with those behind urgent data, up to which the kernel counts unless that is taken in line.
/// The receiving direction is owned.
pub(crate) fn queued_in_all(fd: c_int, locks: &Locks) -> usize {
    with_option(fd, locks, COUNTING[0], || queued(fd))
}

/// Why the kernel does not tell where the next byte to be received stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untold {
    /// Bytes arrive faster than they can be counted.
    Busy,
    /// The connection has ended, and how is no longer known; or there are no counts at all.
    Ended,
}

/// Kernel position of the next byte to be received, with `queued` bytes before the last that came, while the connection
/// is up: its end hides whether a FIN was counted. The caller owns the receiving direction.
pub(crate) fn receive_position(fd: c_int, queued: impl Fn() -> usize) -> Result<u64, Untold> {
    for _ in 0..16 {
        let before = tcp_info(fd).ok_or(Untold::Ended)?;
        let waiting = queued() as u64;
        let after = tcp_info(fd).ok_or(Untold::Ended)?;
        if before.bytes_received == after.bytes_received && before.state == after.state {
            // A FIN counts one in `bytes_received`, but never waits among the bytes.
            let fin = match after.state {
                ESTABLISHED | FIN_WAIT1 | FIN_WAIT2 => 0,
                CLOSE => return Err(Untold::Ended),
                _ => 1,
            };
            return Ok(after.bytes_received.wrapping_sub(fin).wrapping_sub(waiting));
        }
    }
    Err(Untold::Busy)
}

/// The same whatever stands in the queue, though bytes arrive fast, and after the end, as far as that can be told.
#[cold]
pub(crate) fn receive_position_surely(fd: c_int, locks: &Locks) -> Result<u64, Untold> {
    with_option(fd, locks, COUNTING[0], || {
        // Nobody else takes bytes off the queue, so that the sender soon finds no more room.
        for _ in 0..256 {
            match receive_position(fd, || queued(fd)) {
                Err(Untold::Busy) => {}
                Err(Untold::Ended) => return end_position(fd, locks).ok_or(Untold::Ended),
                told => return told,
            }
        }
        Err(Untold::Busy)
    })
}

/// The same on a connection that has ended.
fn end_position(fd: c_int, locks: &Locks) -> Option<u64> {
    let (received, waiting) = (tcp_info(fd)?.bytes_received, queued(fd) as u64);
    // Where nothing is left, the look would take an error, which the kernel tells once.
    if waiting == 0 && raw::poll_now(fd, 0) & libc::POLLERR != 0 {
        return None;
    }
    // The count beside a receive has the FIN in it.
    let rest = with_option(fd, locks, COUNTING[1], || sys::peek_at_rest(fd))?;
    let fin = u64::from(u64::from(rest) > waiting);
    Some(received.wrapping_sub(fin).wrapping_sub(waiting))
}

/// Nobody can tell how far the stream has been received. What is left of it is not, by whoever holds the socket: an
/// error is.
#[cold]
pub(crate) fn give_up(fd: c_int) {
    if raw::poll_now(fd, 0) & libc::POLLERR == 0 {
        let _ = raw::disconnect(fd);
        return;
    }
    let left = queued(fd);
    if left > 0 {
        let _ = discard(fd, left);
    }
}

/// Bytes of the stream for which the program has made room with `SO_RCVBUF`; 0 if it has not. What the kernel has
/// enlarged for an earlier wait is nobody's wish.
pub(crate) fn room_set(fd: c_int) -> u64 {
    if !has_set_size(fd, libc::SO_RCVBUF) {
        return 0;
    }
    // The kernel counts what surrounds the bytes too.
    u64::try_from(buffer_size(fd)).unwrap_or(0) / 2
}

/// Parts handed to the kernel at once. Longer lists go in several calls, so that little of the program's stack is used.
const PARTS: usize = 16;

fn message(parts: &mut [iovec]) -> libc::msghdr {
    libc::msghdr {
        msg_name: core::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: parts.as_mut_ptr(),
        msg_iovlen: parts.len(),
        msg_control: core::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    }
}

const NO_PART: iovec = iovec {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

/// Makes `call` with the program's buffers from `skip` on, cut to `limit` bytes, until it moves less than it could.
fn by_parts(
    vector: Vector<'_>,
    skip: usize,
    limit: usize,
    mut call: impl FnMut(&mut libc::msghdr) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut done = 0;
    loop {
        let mut parts = [NO_PART; PARTS];
        let used = vector.copy_parts(skip + done, limit - done, &mut parts);
        let parts = parts.get_mut(..used).unwrap_or(&mut []);
        let asked: usize = parts.iter().map(|part| part.iov_len).sum();
        if asked == 0 && done > 0 {
            return Ok(done);
        }
        match call(&mut message(parts)) {
            Ok(moved) => {
                done += moved;
                if used < PARTS || moved < asked {
                    return Ok(done);
                }
            }
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => return Ok(done),
        }
    }
}

/// Receives at most `limit` raw bytes into the program's buffers from `skip` on, without waiting.
pub(crate) fn receive(fd: c_int, vector: Vector<'_>, skip: usize, limit: usize, flags: c_int) -> Result<usize, Errno> {
    let mut peeked = false;
    by_parts(vector, skip, limit, |message| {
        // A second peek would see the same bytes.
        if flags & libc::MSG_PEEK != 0 && core::mem::replace(&mut peeked, true) {
            return Err(libc::EAGAIN);
        }
        crate::sys::message_call(libc::SYS_recvmsg, fd, message, flags | libc::MSG_DONTWAIT)
    })
}

/// Sends the program's bytes from `skip` on raw, without waiting and without a signal.
pub(crate) fn send(fd: c_int, vector: Vector<'_>, skip: usize, flags: c_int) -> Result<usize, Errno> {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    by_parts(vector, skip, usize::MAX, |message| {
        crate::sys::message_call(libc::SYS_sendmsg, fd, message, flags)
    })
}

/// Waits until the kernel has connected the socket; false if it fails, or not soon enough.
pub(crate) fn comes_to_stand(fd: c_int, until: u64) -> bool {
    loop {
        let left = until.saturating_sub(sys::now_ns());
        let shown = sys::wait_quietly(fd, libc::POLLOUT, left);
        if shown != 0 || left == 0 {
            return shown == libc::POLLOUT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_buffer_that_the_kernel_enlarges_is_not_the_programs_wish() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = near.as_raw_fd();
        let before = buffer_size(fd);
        // As a search does that waits.
        raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &(1 << 20)).unwrap();
        assert!(buffer_size(fd) > before);
        assert!(!has_set_size(fd, libc::SO_RCVBUF));
        raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &(1 << 16)).unwrap();
        assert!(has_set_size(fd, libc::SO_RCVBUF) && !has_set_size(fd, libc::SO_SNDBUF));
    }
}
