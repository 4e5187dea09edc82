//! Options, `fcntl` and `ioctl` where they touch what we keep.

use crate::conn::common::Timed;
use crate::conn::flags::{CAME, CONTROLLED, FORKED, STAMPED, STREAM, TELLS_REST};
use crate::conn::{self, Conn, Phase};
use crate::descriptors::lifecycle::nanoseconds;
use crate::lock::Guard;
use crate::path::{demote, marks};
use crate::sys::raw;
use crate::{kernel, receive, search};
use libc::c_int;
use viaduct_control::Reason;
use viaduct_stream::{Incoming, Mode, Outgoing, Source};

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

/// asm-generic/socket.h: the names of options with times of 64 bits, which the libc crate does not have.
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;

/// Options that tell, besides the bytes, when they came, to who gives room for control messages.
const STAMPS: [c_int; 4] = [
    libc::SO_TIMESTAMP,
    libc::SO_TIMESTAMPNS,
    SO_TIMESTAMP_NEW,
    SO_TIMESTAMPNS_NEW,
];
/// Those that may besides tell when bytes went, as errors.
const STAMPS_BOTH_WAYS: [c_int; 2] = [libc::SO_TIMESTAMPING, SO_TIMESTAMPING_NEW];

/// The option that has receives tell what is left, and its usual value.
const TELL_REST: (c_int, c_int, c_int) = (libc::IPPROTO_TCP, libc::TCP_INQ, 0);

/// What the record must know of options that were set before it began. An error if only the kernel can do what they ask
/// for.
pub(crate) fn recall(conn: &Conn) -> Result<(), Reason> {
    // On an attached connection these are as lanes need them, and the program's are known.
    if conn.phase() != Phase::Attached {
        recall_flag(conn, libc::TCP_NODELAY, conn::NAGLE, false);
        recall_flag(conn, libc::TCP_CORK, conn::CORK, true);
    }
    recall_timeouts(conn);
    conn.set_flag(TELLS_REST, is_unusual(conn.fd(), TELL_REST));
    // What `setting` sends back to TCP.
    if changes_receives(conn.fd()) {
        return Err(Reason::SocketOption);
    }
    if is_stamped(conn.fd()) && (are_times_told(conn, STAMPED) || !has_received(conn)) {
        return Err(Reason::SocketOption);
    }
    Ok(())
}

/// Whether an option is set that a search would set too, or that has receives tell more than bytes.
pub(crate) fn rules_searches_out(fd: c_int) -> bool {
    takes_in_line(fd) || changes_receives(fd) || is_stamped(fd) || has_upper_layer(fd)
}

/// Whether urgent data is a byte of the stream, which it is no less where lanes are: it comes by TCP, from a sender
/// that has left its lane.
pub(crate) fn takes_in_line(fd: c_int) -> bool {
    is_unusual(fd, (libc::SOL_SOCKET, libc::SO_OOBINLINE, 0))
}

/// Whether the kernel makes something else of the bytes (`TCP_ULP`, TLS for one).
pub(crate) fn has_upper_layer(fd: c_int) -> bool {
    let mut name = [0_u8; 16];
    raw::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_ULP, &mut name).is_ok() && name[0] != 0
}

/// Whether a filter of packets is attached, of whichever kind: of one by `SO_ATTACH_BPF` the kernel does not tell how
/// long it is.
pub(crate) fn has_filter(fd: c_int) -> bool {
    let mut none: [u64; 0] = [];
    match raw::getsockopt(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER, &mut none) {
        Ok(instructions) => instructions != 0,
        Err(_) => true,
    }
}

fn changes_receives(fd: c_int) -> bool {
    let others = [(libc::SO_RCVLOWAT, 1), (libc::SO_PEEK_OFF, -1)];
    let mut all = others.into_iter().chain(STAMPS_BOTH_WAYS.map(|name| (name, 0)));
    all.any(|(name, usual)| is_unusual(fd, (libc::SOL_SOCKET, name, usual)))
}

/// Whether the program has shown how it receives. While urgent data waits, which hides bytes from counts, it has not;
/// nor by what another has received before it.
fn has_received(conn: &Conn) -> bool {
    !conn.flag(CAME)
        && raw::poll_now(conn.fd(), libc::POLLPRI) == 0
        && kernel::receive_position(conn.fd(), || kernel::queued(conn.fd())).is_ok_and(|position| position != 0)
}

fn is_stamped(fd: c_int) -> bool {
    STAMPS
        .into_iter()
        .any(|name| is_unusual(fd, (libc::SOL_SOCKET, name, 0)))
}

fn is_unusual(fd: c_int, (level, name, usual): (c_int, c_int, c_int)) -> bool {
    let mut value = usual;
    raw::getsockopt(fd, level, name, &mut value).is_ok() && value != usual
}

/// Has `flag` say that a TCP option is what `when` says.
fn recall_flag(conn: &Conn, name: c_int, flag: u32, when: bool) {
    let mut on: c_int = 0;
    let known = raw::getsockopt(conn.fd(), libc::IPPROTO_TCP, name, &mut on).is_ok();
    conn.set_common_flag(flag, known && (on != 0) == when);
}

/// A time-out that was negative, which the kernel takes for none at all and tells as if it were unlimited.
const AT_ONCE_NS: u64 = 1;

fn recall_timeout(conn: &Conn, timed: Timed) {
    let name = match timed {
        Timed::Receive => libc::SO_RCVTIMEO,
        Timed::Send => libc::SO_SNDTIMEO,
    };
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    if raw::getsockopt(conn.fd(), libc::SOL_SOCKET, name, &mut time).is_ok() {
        conn.set_timeout_ns(timed, nanoseconds(time));
    }
}

fn recall_timeouts(conn: &Conn) {
    for timed in [Timed::Receive, Timed::Send] {
        if conn.timeout_ns(timed) != AT_ONCE_NS {
            recall_timeout(conn, timed);
        }
    }
}

/// The program has set a time-out of so many seconds and more.
fn timeout_was_set(conn: &Conn, name: c_int, seconds: Option<i64>) {
    let timed = match name {
        libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW => Timed::Receive,
        _ => Timed::Send,
    };
    recall_timeout(conn, timed);
    if seconds.is_some_and(|seconds| seconds < 0) && conn.timeout_ns(timed) == 0 {
        conn.set_timeout_ns(timed, AT_ONCE_NS);
    }
}

/// The program sets an option; called before the kernel is told. `value`: its first integer.
pub fn setting(conn: &'static Conn, level: c_int, name: c_int, value: Option<c_int>) -> Verdict {
    let unasked = [libc::SO_ATTACH_FILTER, libc::SO_ATTACH_BPF];
    if conn.is_early() && level == libc::SOL_SOCKET && !unasked.contains(&name) {
        // Asked for before the first lane.
        return Verdict::Pass;
    }
    let on = value.unwrap_or(0) != 0;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if value.unwrap_or(1) > 1 => demote::ban(conn, Reason::ReceiveLowWater),
        // Filters look at what the kernel connection carries.
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF) => demote::ban(conn, Reason::SocketOption),
        (libc::SOL_SOCKET, name) if on && STAMPS_BOTH_WAYS.contains(&name) => demote::ban(conn, Reason::SocketOption),
        (libc::SOL_SOCKET, name) if on && STAMPS.contains(&name) && are_times_told(conn, STAMPED) => {
            demote::ban(conn, Reason::SocketOption);
        }
        // The kernel would count the marks that we look at, too, so none may come any more.
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF)
            if value.is_some_and(|from| from >= 0) && !demote::hand_over(conn, Reason::SocketOption, false) =>
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
        // Bells may not be held back. What is no number the kernel refuses.
        (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK)
            if value.is_some() && conn.phase() == Phase::Attached && !conn.flag(conn::HANDED_OVER) =>
        {
            hold_back(conn, name, on);
            return Verdict::Done;
        }
        _ => {}
    }
    Verdict::Pass
}

/// Whether a send with these flags is told of when the kernel no longer needs its memory. The flag is heeded on sockets
/// that have the option, which changes nothing by itself, and which another process may have set.
#[inline]
pub(crate) fn tells_completion(conn: &Conn, flags: c_int) -> bool {
    flags & libc::MSG_ZEROCOPY != 0 && may_tell_completion(conn.fd())
}

/// Whether sends may be told of so, by a flag of theirs.
pub(crate) fn may_tell_completion(fd: c_int) -> bool {
    is_unusual(fd, (libc::SOL_SOCKET, libc::SO_ZEROCOPY, 0))
}

/// A receive has room for control messages.
#[cold]
pub fn giving_room_for_control(conn: &'static Conn) {
    if !conn.flag(CONTROLLED) && are_times_told(conn, CONTROLLED) {
        demote::ban(conn, Reason::SocketOption);
    }
}

/// Whether control messages come with what is received, for which the receive has no room.
#[inline]
pub fn has_control(conn: &Conn) -> bool {
    conn.flag(STAMPED) && is_stamped(conn.fd())
}

/// Whether the program asks for the times when bytes come and takes them, now that it also does what `flag` says: only
/// the kernel knows them.
fn are_times_told(conn: &Conn, flag: u32) -> bool {
    conn.set_flag(flag, true);
    // What other processes do with the connection is not known.
    conn.flag(STAMPED) && conn.flag(CONTROLLED | FORKED)
}

/// Whether an error of [`recall`] may not be the last word: the program may yet show how it receives.
pub(crate) fn are_undecided(conn: &Conn) -> bool {
    conn.flag(STAMPED) && !conn.flag(CONTROLLED)
}

/// Notes whether the program wants small messages sent at once, or full segments only.
fn hold_back(conn: &Conn, name: c_int, on: bool) {
    if name == libc::TCP_CORK {
        conn.set_common_flag(conn::CORK, on);
    } else {
        conn.set_common_flag(conn::NAGLE, !on);
    }
}

/// The connection is no longer ours: the kernel's socket is to be as the program made it.
pub(crate) fn give_back(conn: &Conn) {
    let (no_delay, cork) = (!conn.common_flag(conn::NAGLE), conn.common_flag(conn::CORK));
    for (name, on) in [(libc::TCP_NODELAY, no_delay), (libc::TCP_CORK, cork)] {
        let _ = raw::setsockopt(conn.fd(), libc::IPPROTO_TCP, name, &c_int::from(on));
    }
}

/// The program asks for an option.
pub fn getting(conn: &'static Conn, level: c_int, name: c_int) -> Verdict {
    /// linux/tcp.h; the libc crate has no name for it. The kernel gives away what it has received, marks and all.
    const TCP_ZEROCOPY_RECEIVE: c_int = 35;
    if conn.phase() != Phase::Attached {
        return Verdict::Pass;
    }
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Verdict::Answer((!conn.common_flag(conn::NAGLE)).into()),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => Verdict::Answer(conn.common_flag(conn::CORK).into()),
        (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) if !demote::hand_over(conn, Reason::ZeroCopy, false) => {
            Verdict::Refuse(libc::EAGAIN)
        }
        (libc::SOL_SOCKET, libc::SO_ERROR) => marks::asked_error(conn).map_or(Verdict::Pass, Verdict::Answer),
        _ => Verdict::Pass,
    }
}

/// Makes the program's own call about an option, and not amidst a count of ours that takes urgent data in line for a
/// moment: it would undo what is set, and show what is not.
pub fn undisturbed(conn: &'static Conn, (level, name): (c_int, c_int), call: impl FnOnce() -> c_int) -> c_int {
    let is_ours_too = (level, name) == (libc::SOL_SOCKET, libc::SO_OOBINLINE);
    let _guard = is_ours_too.then(|| conn.own_receive(conn.id())).flatten();
    call()
}

/// The kernel has taken an option, whose first integer is `value`, and `long` its first of twice the length.
pub fn was_set(conn: &'static Conn, level: c_int, name: c_int, value: Option<c_int>, long: Option<i64>) {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | SO_RCVTIMEO_NEW | SO_SNDTIMEO_NEW) => {
            timeout_was_set(conn, name, long);
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK) => hold_back(conn, name, value.unwrap_or(0) != 0),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => {
            let mark = value.unwrap_or(1).max(1);
            conn.set_common_flag(conn::LOW_WATER, mark > 1);
            // As with TCP, sets are told anew where there is as much.
            if conn.phase() == Phase::Attached && receive::readable_bytes(conn, conn.id()) >= mark {
                conn.set_flag(conn::IN_WANTED, true);
            }
        }
        (libc::IPPROTO_TCP, libc::TCP_INQ) => conn.set_flag(TELLS_REST, value.unwrap_or(0) != 0),
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) if conn.phase() == Phase::Attached => {
            if let Some(guard) = conn.own_send(conn.id()) {
                limit_lane(conn, &guard);
            }
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) if conn.phase() == Phase::Attached => {
            if let Some(guard) = conn.own_send(conn.id()) {
                tell_of_resets(conn, &guard);
            }
        }
        _ => {}
    }
}

/// A program that has set the size of its send buffer wants no more than that to be on its way.
pub(crate) fn limit_lane(conn: &Conn, send: &Guard<'_>) {
    let mut size: c_int = 0;
    if kernel::has_set_size(conn.fd(), libc::SO_SNDBUF)
        && raw::getsockopt(conn.fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &mut size).is_ok()
        && let Some(segment) = conn.segment(send)
    {
        // The kernel doubles what the program asks for, to have room for its own bookkeeping.
        let bytes = usize::try_from(size / 2).unwrap_or(0);
        segment.sender(conn.side()).limit(bytes);
    }
}

/// The peer is to know what a reset means while there is somebody to tell it: a program that is killed closes nothing
/// itself.
pub(crate) fn tell_of_resets(conn: &Conn, send: &Guard<'_>) {
    if let Some(segment) = conn.segment(send) {
        let out = Outgoing::new(segment.sender(conn.side()));
        out.set_means_reset(kernel::resets_at_close(conn.fd()));
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

/// Whether the connection is known to be a stream: the kernel is asked once, and not of one with a lane.
pub fn is_stream(conn: &'static Conn) -> bool {
    if conn.has_lane() || conn.flag(STREAM) {
        return true;
    }
    let (id, mut kind) = (conn.id(), 0);
    let known = raw::getsockopt(conn.fd(), libc::SOL_SOCKET, libc::SO_TYPE, &mut kind).is_ok();
    let is_stream = known && kind == libc::SOCK_STREAM && conn.id() == id;
    conn.set_flag(STREAM, is_stream);
    is_stream
}

/// `FIONREAD`; `None`: the kernel's business.
pub fn readable_bytes(conn: &'static Conn) -> Option<c_int> {
    match conn.phase() {
        Phase::Attached => Some(receive::readable_bytes(conn, conn.id())),
        _ => search::readable_bytes(conn),
    }
}

/// What a receive is to tell of the bytes that are left, if the program wants to know. The end counts as one, as with
/// the kernel.
#[inline]
pub fn told_rest(conn: &'static Conn) -> Option<c_int> {
    // Another process may have asked.
    let is_told = conn.flag(TELLS_REST) || conn.flag(FORKED) && is_unusual(conn.fd(), TELL_REST);
    is_told.then(|| rest(conn))
}

#[cold]
fn rest(conn: &'static Conn) -> c_int {
    let bytes = readable_bytes(conn).map_or_else(|| queued_bytes(conn), |bytes| bytes as isize);
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    // Its own, which poll tells of too, does not count.
    let looks = !conn.flag(conn::SHUT_READ);
    let ended = conn.flag(conn::PEER_FIN) || looks && raw::poll_now(conn.fd(), libc::POLLRDHUP) != 0;
    bytes.saturating_add(ended.into())
}

/// What the kernel has of a connection that is neither on a lane nor searched.
pub fn queued_bytes(conn: &Conn) -> isize {
    isize::try_from(crate::kernel::queued(conn.fd())).unwrap_or(isize::MAX)
}

/// `SIOCATMARK`; `None`: the kernel's business, once marks of ours are out of the way. What the lane still has comes
/// before urgent data.
pub fn at_mark(conn: &'static Conn) -> Option<c_int> {
    if conn.phase() != Phase::Attached {
        return None;
    }
    receive::clear_marks(conn, conn.id());
    let guard = conn.own_receive(conn.id())?;
    let lane = conn.segment(&guard)?.receiver(conn.side());
    let first = matches!(Incoming::new(lane).source(), Source::Lane | Source::LaneThenRaw);
    (first && lane.has_bytes()).then_some(0)
}

/// So many bytes a peer's kernel would have acknowledged on TCP before its program receives any: what the window of a
/// new connection takes.
const ACKNOWLEDGED: usize = 64 << 10;

/// `SIOCOUTQ`: bytes on the lane that a peer's kernel would not have acknowledged, as far as can be told; `None`: the
/// kernel's business. A program may wait for all to have been before it has its peer receive them.
pub fn unsent_bytes(conn: &'static Conn) -> Option<c_int> {
    if conn.phase() != Phase::Attached {
        return None;
    }
    let guard = conn.own_send(conn.id())?;
    let lane = conn.segment(&guard)?.sender(conn.side());
    let unsent = lane.in_flight().saturating_sub(ACKNOWLEDGED);
    (Outgoing::new(lane).mode() == Mode::Lane).then(|| c_int::try_from(unsent).unwrap_or(c_int::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn what_is_set_amidst_counts_stays_set() {
        let option = (libc::SOL_SOCKET, libc::SO_OOBINLINE);
        let (conn, _ends) = crate::conn::records::on_the_heap();
        let over = AtomicBool::new(false);
        let set = |on: c_int| {
            let direct = || raw::setsockopt(conn.fd(), option.0, option.1, &on).map_or(-1, |()| 0);
            assert_eq!(undisturbed(conn, option, direct), 0);
        };
        let lost = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let _guard = conn.own_receive(conn.id());
                    kernel::queued_in_all(conn.fd(), conn.locks().unwrap());
                }
            });
            let lost = (0..2000).filter(|_| {
                set(1);
                let lost = !is_unusual(conn.fd(), (option.0, option.1, 0));
                set(0);
                lost
            });
            let lost = lost.count();
            over.store(true, Relaxed);
            lost
        });
        assert_eq!(lost, 0);
    }
}
