//! Descriptors coming and going: what each call means for the records of connections and sets.

use crate::agent::{self, policy};
use crate::conn::{self, Conn, Phase, records};
use crate::descriptors::table::{self, Entry};
use crate::epoll::{self, back, inner, shelf};
use crate::path::{closing, demote, marks, switch};
use crate::process::{self, lodgers};
use crate::search::streams;
use crate::sys::{self, raw};
use crate::{kernel, options};
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use viaduct_control::Reason;
use viaduct_control::policy::OfferPolicy;
use viaduct_stream::Outgoing;

/// A descriptor has just been created by a call that knows nothing of what the number stood for: whatever that was has
/// been closed unseen.
pub fn fresh(fd: c_int) {
    if fd >= 0 && !lodgers::has_own_table() {
        streams::clear(fd);
        forget(fd, true);
    }
}

/// The program has made a TCP socket; `for_search`: one of the type for direct search.
pub fn made_socket(fd: c_int, for_search: bool) {
    fresh(fd);
    if fd >= 0 && !lodgers::has_own_table() {
        process::start_with_sockets();
        table::set_socket(fd);
        if for_search {
            streams::set(fd);
        }
    }
}

/// Forgets what `fd` stood for. `stale`: the number already stands for something else.
fn forget(fd: c_int, stale: bool) {
    if !stale && let Some(index) = table::epoll_set(fd) {
        inner::descriptor_goes(index, fd);
    }
    match table::take(fd) {
        Entry::Connection(conn) => conn.release(fd, stale),
        Entry::Epoll(index) => epoll::release(index, fd),
        Entry::Unknown | Entry::Private | Entry::Socket => {}
    }
}

/// Whether the program may close or replace `fd`: not if it is ours, which to the program does not exist.
#[inline]
pub fn hidden(fd: c_int) -> bool {
    table::is_private(fd)
}

/// The program is about to close `fd`, or to put something else in its place.
#[inline]
pub fn closing(fd: c_int) {
    if lodgers::has_own_table() {
        return;
    }
    streams::clear(fd);
    shelf::empty();
    if !matches!(table::lookup(fd), Entry::Unknown) {
        forget(fd, false);
    }
}

/// The program is about to close every descriptor from `first` to `last`. Calls `close` with each range in which
/// nothing is ours.
pub fn closing_range(first: c_int, last: c_int, mut close: impl FnMut(c_int, c_int) -> c_int) -> c_int {
    if lodgers::has_own_table() {
        return close(first, last);
    }
    shelf::empty();
    let mut from = first;
    let mut next = first;
    let mut result = 0;
    while let Some(fd) = table::next_known(next, last) {
        if table::is_private(fd) {
            if from < fd && close(from, fd - 1) != 0 {
                result = -1;
            }
            from = fd + 1;
        } else {
            forget(fd, false);
        }
        let Some(after) = fd.checked_add(1) else { break };
        next = after;
    }
    if from <= last && close(from, last) != 0 {
        result = -1;
    }
    result
}

/// `new` refers to what `old` refers to. A connection that is given a standard number is for the stdio stream that
/// reads or writes there.
pub fn duplicated(old: c_int, new: c_int) {
    if new < 0 || new == old {
        return;
    }
    if lodgers::has_own_table() {
        return duplicated_for_successor(old, new);
    }
    fresh(new);
    if streams::is(old) {
        streams::set(new);
    }
    // Else each number would get a record of its own once it is connected.
    begin_early(old);
    match table::lookup(old) {
        Entry::Connection(conn) => {
            share(conn, new);
            if new <= libc::STDERR_FILENO && !conn.flag(conn::HANDED_OVER) {
                to_stdio(conn);
            }
        }
        Entry::Epoll(index) => {
            epoll::hold(index);
            if !table::set_epoll(new, index) {
                epoll::release(index, new);
            }
        }
        Entry::Socket => table::set_socket(new),
        Entry::Unknown | Entry::Private => {}
    }
}

/// One more descriptor refers to the socket.
fn share(conn: &'static Conn, fd: c_int) {
    conn.hold();
    if !table::set_connection(fd, conn.index()) {
        conn.release(fd, true);
    }
}

/// In a child on our memory, with a table of its own: a standard number is for the program that it becomes.
fn duplicated_for_successor(old: c_int, new: c_int) {
    if new <= libc::STDERR_FILENO
        && let Some(conn) = table::connection(old)
        && is_tcp(new)
    {
        demote::hand_over(conn, Reason::ForeignProcess, true);
    }
}

/// Begins the record of a socket before it is connected, for what must be known of it by then: its descriptors, its
/// sets. Another thread may be connecting it.
#[cold]
pub(crate) fn begin_early(fd: c_int) -> Option<&'static Conn> {
    if !matches!(table::lookup(fd), Entry::Socket) || lodgers::has_own_table() {
        return None;
    }
    if kernel::is_listening(fd) {
        return None;
    }
    process::start_with_sockets();
    records::begin(fd, conn::EARLY)
}

/// The program has connected `fd` (to an address of family `family`), or is about to know (`pending`).
pub fn connected(fd: c_int, family: c_int, pending: bool) {
    if !matches!(family, libc::AF_INET | libc::AF_INET6) || lodgers::has_own_table() {
        return;
    }
    if table::connection(fd).is_some_and(|conn| !conn.flag(conn::EARLY)) {
        return;
    }
    process::start_with_sockets();
    if let Some(conn) = records::begin(fd, conn::EARLY | conn::ACTIVE) {
        // It may have begun before.
        conn.set_flag(conn::ACTIVE, true);
        if conn.stands() {
            settle(conn, pending);
        }
    }
}

/// The program is about to dissolve the connection behind `fd` by connecting to no address, which resets it and leaves
/// a new socket. One that has copies, is in sets or is held elsewhere stays on TCP from then on.
pub fn disconnecting(fd: c_int) {
    if lodgers::has_own_table() {
        return;
    }
    let Some(conn) = table::connection(fd).filter(|conn| !conn.is_early()) else {
        return;
    };
    let id = conn.id();
    let mut linger = libc::linger {
        l_onoff: 0,
        l_linger: 0,
    };
    let known = raw::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger).is_ok();
    let on_lanes = conn.phase() == Phase::Attached;
    if let Some(guard) = conn.own_send(id)
        && let Some(segment) = conn.segment(&guard)
    {
        Outgoing::new(segment.sender(conn.side())).set_means_reset(true);
    }
    if on_lanes && !conn.flag(conn::HANDED_OVER) {
        options::give_back(conn);
    }
    let in_sets = back::leave(conn);
    let copied = conn.references.load(Relaxed) != 1;
    let simple = !in_sets && !copied && conn.alone() && !conn.flag(conn::HANDED_OVER | conn::CAME);
    let mut heir: Option<&'static Conn> = None;
    // With its last descriptor the record may be another connection's.
    while conn.id() == id
        && let Some(number) = table::find(conn)
    {
        forget(number, false);
        match heir {
            None => {
                table::set_socket(number);
                heir = (!simple)
                    .then(|| records::begin(number, conn::EARLY | conn::BANNED))
                    .flatten();
            }
            Some(heir) => share(heir, number),
        }
    }
    if let Some(heir) = heir {
        heir.set_reason(Reason::UnseenWait);
    }
    if on_lanes && known {
        // A lane that was not empty is reset by it.
        let _ = raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    }
}

/// The program has accepted `fd` from `listener`.
pub fn accepted(fd: c_int, listener: c_int) {
    if lodgers::has_own_table() {
        return;
    }
    process::start_with_sockets();
    fresh(fd);
    if streams::is(listener) {
        streams::set(fd);
    }
    if accepts_tcp(listener)
        && let Some(conn) = records::open(fd)
    {
        settle(conn, false);
    }
}

/// Whether what `listener` accepts may be TCP connections. Only one that the program was not seen to make is asked,
/// once if it is a TCP socket, and if the program has not forbidden itself to.
fn accepts_tcp(listener: c_int) -> bool {
    if !matches!(table::lookup(listener), Entry::Unknown) || process::is_confined() {
        return true;
    }
    let protocol = internet_protocol(listener);
    if protocol == Some(libc::IPPROTO_TCP) {
        table::become_socket(listener);
    }
    // Some others, as MPTCP, accept TCP connections, too.
    protocol.is_some()
}

/// What the record must know before the first lane: what was set before it began, on the listener or before connect. An
/// error if no lane may be had: the socket is no TCP stream, or only the kernel can do what was asked. Until then a
/// connection costs no system call of ours.
pub(crate) fn recall_options(conn: &Conn) -> Result<(), Reason> {
    let fd = conn.fd();
    if !is_tcp(fd) {
        return Err(Reason::NotStream);
    }
    conn.refresh_nonblocking();
    options::recall(conn)
}

/// A timeout option in nanoseconds; 0: none.
pub(crate) fn nanoseconds(time: libc::timeval) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000)
        + u64::try_from(time.tv_usec).unwrap_or(0).saturating_mul(1000)
}

/// How long `--offer wait` holds `connect` and `accept`.
const HOLD_NS: u64 = 50_000_000;

/// A connection stands, or is about to (`pending`): with `--offer wait`, hold the call until it is decided how it goes
/// on.
fn settle(conn: &'static Conn, pending: bool) {
    if policy::policy().offer != OfferPolicy::Wait {
        return;
    }
    let (id, until) = (conn.id(), sys::now_ns() + HOLD_NS);
    if (!pending || kernel::comes_to_stand(conn.fd(), until)) && conn.id() == id {
        agent::offer_and_wait(conn, until);
    }
}

/// An error that a call could not report, since it had received something: the next one does.
pub fn keep_error(conn: &Conn, errno: c_int) {
    conn.set_error(errno);
}

/// Such an error, taken, or one of the kernel's, which comes first in some calls.
pub fn first_error(conn: &Conn) -> Option<c_int> {
    marks::untold_error(conn)
}

/// Whether `fd` is a TCP socket.
pub fn is_tcp(fd: c_int) -> bool {
    internet_protocol(fd) == Some(libc::IPPROTO_TCP)
}

/// The protocol of `fd`, if it is a socket of the internet's families.
fn internet_protocol(fd: c_int) -> Option<c_int> {
    let mut domain: c_int = 0;
    let mut protocol: c_int = 0;
    raw::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, &mut domain).ok()?;
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return None;
    }
    raw::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut protocol).ok()?;
    Some(protocol)
}

/// The program shuts a direction down; `direct` is its own call.
pub fn shut_down(conn: &'static Conn, how: c_int, direct: impl FnOnce() -> c_int) -> c_int {
    if how != libc::SHUT_RD {
        switch::finish(conn, sys::now_ns() + demote::PATIENCE_NS);
    }
    if conn.phase() != Phase::Attached && how != libc::SHUT_WR {
        shutting_plain(conn);
    }
    // Marks and FIN must not overtake each other, nor a lane that comes the note of what is shut.
    let mut guard = conn.own_send(conn.id());
    if let Some(guard) = &guard {
        closing::shutting(conn, how, guard);
    }
    let result = direct();
    if result == 0 {
        closing::has_shut(conn, how, guard.as_ref());
        if guard.take().is_some() {
            epoll::shut_down(conn);
        }
    }
    result
}

/// A connection on which nothing is to be received any more before it has a lane is not worth one.
fn shutting_plain(conn: &'static Conn) {
    conn.end_offer();
    if conn.phase() != Phase::Attached && !conn.flag(conn::BANNED) {
        conn.ban();
        conn.set_reason(Reason::HalfClosed);
    }
}

/// The connection was opened by a send; where its bytes stand is not known well enough for a lane.
pub fn fast_opened(fd: c_int) {
    connected(fd, libc::AF_INET, false);
    if let Some(conn) = table::connection(fd) {
        demote::ban(conn, Reason::FastOpen);
    }
}

/// The program makes a stdio stream of the socket, whose calls are not seen; false if it is still on a lane.
pub fn to_stdio(conn: &'static Conn) -> bool {
    demote::hand_over(conn, Reason::Stdio, false)
}

/// The program has the C library's threads move the socket's bytes, whose calls are not seen; false if it is still on a
/// lane.
pub fn to_background(conn: &'static Conn) -> bool {
    demote::hand_over(conn, Reason::UnseenWait, false)
}

/// The program has the kernel send the socket bytes; false if that direction is still on a lane.
pub(crate) fn sends_by_kernel(conn: &'static Conn) -> bool {
    // Behind its FIN the kernel refuses everything.
    if conn.flag(conn::SHUT_WRITE) {
        return true;
    }
    off_lanes(conn) || {
        demote::ban(conn, Reason::Splice);
        demote::sends_raw(conn, conn.id())
    }
}

/// The program has the kernel take the socket's bytes; false if that direction is still on a lane.
pub(crate) fn receives_by_kernel(conn: &'static Conn) -> bool {
    off_lanes(conn) || {
        demote::ban(conn, Reason::Splice);
        demote::receives_raw(conn, conn.id())
    }
}

/// Whether the connection has gone back to TCP for good because of an earlier such call. To ban it once more with each
/// call would wake the peer each time.
fn off_lanes(conn: &'static Conn) -> bool {
    let id = conn.id();
    conn.reason() == Reason::Splice && demote::sends_raw(conn, id) && demote::receives_raw(conn, id)
}
