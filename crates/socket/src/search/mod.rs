//! Direct search: receiving bytes from the middle of a stream.
//!
//! The bytes received become a hole, which all other calls skip (`viaduct_stream::Holes`). Where they are taken from
//! depends on what carries the stream: `kernel` for connections without a lane, `lanes` for those with one. A direction
//! that has been searched is marked in its ownership word, so that receives on all others take no notice of any of
//! this.
//!
//! [`plain`] offers the same in a program that does not run under Viaduct.

pub(crate) mod area;
mod holders;
pub(crate) mod kernel;
pub(crate) mod lanes;
pub mod plain;
mod simple;
pub mod streams;
mod waiting;

use crate::agent::{self, Way, counters};
use crate::conn::common::Timed;
use crate::conn::flags::STAMPED;
use crate::conn::{self, Conn, Phase};
use crate::descriptors::{lifecycle, predecessors, table};
use crate::lock::Guard;
use crate::options::{rules_searches_out, takes_in_line};
use crate::path::announce;
use crate::process::lodgers;
use crate::receive;
use crate::sys::{self, Errno};
use crate::vector::Vector;
use crate::wait::{self, Deadline, Woken};
use area::Area;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
pub(crate) use holders::Forking;
use kernel::{Front, is_told_once};
use lanes::Stretches;
use libc::c_int;
use simple::{may_be_simple, take_head, take_simply};
use viaduct_control::counters::slot;

/// Flags that a search understands.
const FLAGS: c_int = libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_DONTWAIT | libc::MSG_TRUNC | libc::MSG_NOSIGNAL;

/// No byte of a stream lies further away than a call's result can say.
const MOST: usize = isize::MAX.cast_unsigned();

/// What a call wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) vector: Vector<'a>,
    /// Bytes of the vector that are filled already.
    pub(crate) skip: usize,
    pub(crate) flags: c_int,
    /// Unread bytes to pass over.
    pub(crate) offset: u64,
    /// All of it or nothing yet.
    pub(crate) whole: bool,
    /// A call that takes bytes in order is inside the kernel.
    pub(crate) shared: bool,
}

impl Ask<'_> {
    #[inline]
    pub(crate) fn takes(&self) -> bool {
        self.flags & libc::MSG_PEEK == 0
    }

    #[inline]
    pub(crate) fn truncates(&self) -> bool {
        self.flags & libc::MSG_TRUNC != 0
    }
}

/// What an attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// So many bytes were received.
    Bytes(usize),
    /// Too few are there; the kernel must hold bytes up to this position for it to be worth another attempt.
    Nothing { until: u64 },
    /// Too few are there; the lane has published so far and must come to `until` for it to be worth another attempt,
    /// and the kernel holds so many that are known.
    Stretches { lane: u64, until: u64, kernel: u64 },
    /// Something has changed meanwhile.
    Again,
    /// The stream ends before.
    End,
}

/// One end that can be searched.
trait Searched {
    /// Takes what is there now. `last`: the caller has waited since the last attempt.
    fn attempt(&self, ask: &Ask<'_>, last: bool) -> Result<Step, Errno>;
    /// Whether the program has said that its calls are not to wait.
    fn is_nonblocking(&self) -> bool;
    /// A call that does not wait found too little: true if there is news after all.
    fn announce(&self, step: Step, offset: u64) -> Result<bool, Errno>;
    /// How long a call waits.
    fn deadline(&self) -> Deadline;
    /// Waits for news. `again`: the last wait brought too little. Nothing is owned.
    fn wait(&self, step: Step, deadline: Deadline, again: bool) -> Result<Woken, Errno>;
    /// So many bytes were received.
    fn received(&self, bytes: usize);
    /// The connection broke after part of a call was served: the next is to tell.
    fn broken(&self, errno: Errno);
}

/// Receives from `offset` on: the whole of the call but for what sets ends apart, and for what is simple, as it mostly
/// is.
fn run(end: &impl Searched, vector: Vector<'_>, flags: c_int, offset: u64) -> Result<usize, Errno> {
    let total = vector.len();
    let all = flags & libc::MSG_WAITALL != 0;
    let mut ask = Ask {
        vector,
        skip: 0,
        flags,
        offset,
        // In order, parts of it may be received as they come.
        whole: all && (offset > 0 || flags & libc::MSG_PEEK != 0),
        shared: false,
    };
    let (mut last, mut over) = (false, None);
    let mut deadline = None;
    let mut again = 0;
    let error = loop {
        let step = match end.attempt(&ask, last) {
            Ok(Step::Again) if again < 1000 => {
                again += 1;
                continue;
            }
            Ok(Step::Bytes(bytes)) => {
                if !ask.takes() {
                    return Ok(bytes);
                }
                ask.skip += bytes;
                end.received(bytes);
                if ask.skip >= total || !all {
                    break 0;
                }
                last = false;
                continue;
            }
            // What is there of it, then.
            Ok(Step::End) if ask.whole => {
                (ask.whole, over) = (false, Some(0));
                continue;
            }
            // A peek at the head shows what there is; from the middle it is all or nothing.
            Err(libc::ENOBUFS) if ask.whole && offset == 0 => {
                (ask.whole, over) = (false, Some(libc::ENOBUFS));
                continue;
            }
            Ok(Step::End) => break 0,
            Err(errno) => break errno,
            Ok(step) => step,
        };
        match over {
            // There may be too much to come before there is anything.
            Some(libc::ENOBUFS) => over = None,
            Some(errno) => break errno,
            None => {}
        }
        if flags & libc::MSG_DONTWAIT != 0 || end.is_nonblocking() {
            if ask.whole || !last {
                // What there is of it, and whether the stream has ended.
                (ask.whole, last) = (false, true);
                continue;
            }
            match end.announce(step, offset) {
                Ok(true) if again < 1000 => again += 1,
                Ok(_) => break libc::EAGAIN,
                Err(errno) => break errno,
            }
            continue;
        }
        let deadline = *deadline.get_or_insert_with(|| end.deadline());
        match end.wait(step, deadline, last) {
            Ok(Woken::Look) => last = true,
            Ok(Woken::Restarted) if ask.skip == 0 => last = true,
            // Part of it is better than nothing.
            Ok(woken) if ask.whole => (ask.whole, over) = (false, Some(wait::errno_of(woken))),
            Ok(woken) => break wait::errno_of(woken),
            // As above.
            Err(libc::ENOBUFS) if ask.whole && offset == 0 => (ask.whole, over) = (false, Some(libc::ENOBUFS)),
            Err(errno) => break errno,
        }
    };
    if ask.skip > 0 || error == 0 {
        if error != 0 && is_told_once(error) {
            end.broken(error);
        }
        Ok(ask.skip)
    } else {
        Err(error)
    }
}

/// A connection this crate keeps a record of.
#[derive(Debug)]
struct Recorded {
    conn: &'static Conn,
    id: u64,
}

impl Recorded {
    fn own(&self) -> Result<Guard<'static>, Errno> {
        let error = if self.id != 0 && self.conn.id() == self.id {
            libc::EAGAIN
        } else {
            libc::EBADF
        };
        self.conn.own_searched(self.id).ok_or(error)
    }

    /// Whether a call that takes bytes in order is inside the kernel.
    fn is_shared(&self) -> bool {
        self.conn.direct_receives.load(SeqCst) != 0
    }
}

impl Searched for Recorded {
    fn attempt(&self, ask: &Ask<'_>, last: bool) -> Result<Step, Errno> {
        let mut guard = self.own()?;
        let area = begin(self.conn, &mut guard)?;
        if !area.holes.is_intact() {
            // A process that shares the socket was killed while it changed the holes.
            return Err(libc::ECONNRESET);
        }
        if self.conn.phase() == Phase::Attached {
            let stretches = Stretches::new(self.conn, &guard).ok_or(libc::EBADF)?;
            return stretches.attempt(ask, last);
        }
        let shared = self.is_shared();
        if shared && ask.offset > 0 {
            return Err(libc::EBUSY);
        }
        let front = front(self.conn).ok_or(libc::EBADF)?;
        front.attempt(&Ask { shared, ..*ask }, last)
    }

    fn is_nonblocking(&self) -> bool {
        // Whether another process has changed it is asked before a sleep.
        self.conn.nonblocking()
    }

    fn announce(&self, step: Step, offset: u64) -> Result<bool, Errno> {
        match step {
            Step::Nothing { until } if offset > 0 => {
                self.conn.set_flag(conn::IN_WANTED, true);
                let _guard = self.own()?;
                let area = self.conn.area().ok_or(libc::EBADF)?;
                waiting::announce(self.conn.fd(), area, until)
            }
            Step::Stretches { lane, .. } => {
                let _ = announce::announce(self.conn, self.id);
                let guard = self.own()?;
                let segment = self.conn.segment(&guard).ok_or(libc::EBADF)?;
                let receiver = segment.receiver(self.conn.side());
                // Of bytes that are there, and were found too few, there is nothing to be told again.
                if !receiver.has_bytes() {
                    self.conn.set_flag(conn::IN_WANTED, true);
                }
                Ok(receiver.published() != lane)
            }
            _ => {
                self.conn.set_flag(conn::IN_WANTED, true);
                Ok(false)
            }
        }
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.conn.timeout_ns(Timed::Receive))
    }

    fn wait(&self, step: Step, deadline: Deadline, again: bool) -> Result<Woken, Errno> {
        waiting::wait(self.conn, self.id, step, deadline, again)
    }

    fn received(&self, bytes: usize) {
        if self.conn.phase() != Phase::Attached && self.conn.id() == self.id {
            counters::add(self.conn, slot::BYTES_RECEIVED, bytes as u64);
            self.conn.note_traffic(Way::Received, bytes);
        }
    }

    fn broken(&self, errno: Errno) {
        self.conn.set_error(errno);
    }
}

impl Conn {
    /// What direct search keeps of the receiving direction.
    #[inline(always)]
    pub(crate) fn area(&self) -> Option<&'static Area> {
        area::numbered(self.locks()?.area.load(Acquire))
    }

    /// Whether receives must mind holes, for calls that are to enter the kernel without owning the direction.
    #[inline]
    pub(crate) fn searched(&self) -> bool {
        // SeqCst pairs with the fence in `search::begin`: see `DirectCall`.
        let flags = self.flags.load(SeqCst);
        flags & (conn::SEARCHED | conn::FORKED) != 0 && (flags & conn::SEARCHED != 0 || self.area().is_some())
    }
}

fn front(conn: &Conn) -> Option<Front<'static>> {
    let locks = conn.locks()?;
    let reference = locks.area.load(Relaxed);
    Some(Front {
        fd: conn.fd(),
        area: area::numbered(reference)?,
        peeked: area::peeked(reference)?,
        locks: Some(locks),
    })
}

/// Has the connection's receives mind holes from now on.
fn begin(conn: &Conn, guard: &mut Guard<'_>) -> Result<&'static Area, Errno> {
    if let Some(area) = conn.area() {
        return Ok(area);
    }
    let locks = conn.locks().ok_or(libc::EBADF)?;
    // With a lane it has passed already, and options that matter have it banned since, or noted.
    if (conn.phase() != Phase::Attached || conn.is_banned()) && lifecycle::recall_options(conn).is_err()
        || conn.flag(STAMPED) && rules_searches_out(conn.fd())
        || takes_in_line(conn.fd())
    {
        return Err(libc::EOPNOTSUPP);
    }
    let reference = area::claim().ok_or(libc::ENOBUFS)?;
    // First of all: if this process is killed now, others that share the connection are to look for holes.
    guard.set_searched(true);
    locks.area.store(reference, Release);
    conn.set_flag(conn::SEARCHED, true);
    // Pairs with `DirectCall::receive`: either its second look finds the flag, or we find the call.
    fence(SeqCst);
    // Only now: whoever makes a child counts it in either.
    area::add_unknown(reference, locks.holders.load(Relaxed).saturating_sub(1));
    area::numbered(reference).ok_or(libc::ENOBUFS)
}

/// Who peeks next begins at the front. The receiving direction is owned.
pub(crate) fn peek_at_front(conn: &Conn) {
    if let Some(area) = conn.area() {
        kernel::peek_from(conn.fd(), area, 0);
    }
}

/// Somebody who knows of no holes is to receive from the kernel connection: what has been received is not to come once
/// more, as far as it stands before all that is unread, and peeks begin at the front.
pub(crate) fn hand_over(conn: &Conn) {
    let Some(front) = front(conn) else { return };
    if let Some(_guard) = conn.own_receive(conn.id())
        && conn.phase() != Phase::Attached
    {
        if front.area.holes.is_intact() {
            // What a reset has taken the successor is told.
            let _ = front.settle(true);
        } else if let Some(locks) = front.locks {
            front.settle_damaged(locks);
        }
        kernel::peek_from(front.fd, front.area, 0);
        waiting::lift_mark(front.fd, front.area);
    }
}

/// The program receives in order on a connection that has been searched.
pub(crate) fn receive_in_order(conn: &'static Conn, id: u64, vector: Vector<'_>, flags: c_int) -> isize {
    if may_be_simple(flags)
        && let Some(dest) = vector.only_dest()
        && let Some(bytes) = take_head(conn, id, dest)
    {
        return bytes.cast_signed();
    }
    answer(&Recorded { conn, id }, vector, flags, 0)
}

fn answer(end: &Recorded, vector: Vector<'_>, flags: c_int, offset: u64) -> isize {
    let conn = end.conn;
    match run(end, vector, flags, offset) {
        Ok(0) => match conn.take_error() {
            0 => 0,
            errno => sys::fail(errno),
        },
        Ok(bytes) => bytes.cast_signed(),
        Err(errno) => sys::fail(errno),
    }
}

/// Receives on `conn` from `offset` unread bytes after the head on. `direct` is the program's own call without the
/// offset.
#[inline]
pub fn seek_receive(
    conn: &'static Conn,
    vector: Vector<'_>,
    flags: c_int,
    offset: usize,
    direct: impl FnOnce() -> isize,
) -> isize {
    let id = conn.id();
    let known = flags & !FLAGS == 0 && !vector.is_empty() && offset <= MOST && !agent::has_mail();
    if known
        && may_be_simple(flags)
        && conn.searched()
        && let Some(dest) = vector.only_dest()
        && let Some(bytes) = take_simply(conn, id, dest, offset as u64)
    {
        return bytes.cast_signed();
    }
    seek_slowly(Recorded { conn, id }, vector, flags, offset, direct)
}

#[inline(never)]
fn seek_slowly(
    end: Recorded,
    vector: Vector<'_>,
    flags: c_int,
    offset: usize,
    direct: impl FnOnce() -> isize,
) -> isize {
    let conn = end.conn;
    if let Err(errno) = check(vector.asked(), flags, offset) {
        return sys::fail(errno);
    }
    if agent::has_mail() {
        agent::deliver();
    }
    if vector.is_empty() {
        return 0;
    }
    // Attached, it is known to be a TCP connection. A plain peek waits for all of it, though it may be more than there
    // is room for.
    let whole_peek = flags & libc::MSG_PEEK != 0 && flags & libc::MSG_WAITALL != 0;
    if offset == 0 && !whole_peek && conn.phase() == Phase::Attached && !conn.searched() {
        return receive::receive(conn, vector, flags, direct);
    }
    answer(&end, vector, flags, offset as u64)
}

/// The record of the connected TCP socket `fd`, made now if there is none: a socket that another program opened stays
/// on TCP, but its receives are to mind holes.
///
/// # Errors
/// `EBADF`, `ENOTSOCK`, `ENOTCONN`; `EOPNOTSUPP` for other sockets; `ENOBUFS` if there are too many connections.
pub fn connection(fd: c_int) -> Result<&'static Conn, Errno> {
    match table::connection(fd) {
        Some(conn) if !conn.is_early() => return Ok(conn),
        _ => plain::check_socket(fd)?,
    }
    if lodgers::has_own_table() {
        return Err(libc::ENOBUFS);
    }
    predecessors::adopted(fd).ok_or(libc::ENOBUFS)
}

/// What is wrong with a call's numbers.
fn check(len: usize, flags: c_int, offset: usize) -> Result<(), Errno> {
    if len > MOST || offset > MOST || offset.checked_add(len).is_none_or(|end| end > MOST) {
        return Err(libc::EINVAL);
    }
    if flags & !FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(())
}

/// `FIONREAD` on a connection without a lane; `None` unless it has been searched.
pub(crate) fn readable_bytes(conn: &'static Conn) -> Option<c_int> {
    let front = front(conn)?;
    let _guard = conn.own_receive(conn.id())?;
    Some(c_int::try_from(front.readable()).unwrap_or(c_int::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::records;
    use crate::sys::raw;
    use crate::wait::direct::DirectCall;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};

    #[test]
    fn a_receive_in_the_kernel_counts_beside_searches_that_wait() {
        let (conn, _sockets) = records::on_the_heap();
        let end = Recorded { conn, id: conn.id() };
        let search = DirectCall::peek(conn).unwrap();
        assert!(!end.is_shared());
        let receive = DirectCall::receive(conn).unwrap();
        assert!(end.is_shared());
        // One more has begun to wait, and been counted in part.
        conn.peeks.fetch_add(1, SeqCst);
        assert!(end.is_shared());
        receive.end();
        assert!(!end.is_shared());
        search.end();
        assert_eq!(conn.peeks.load(SeqCst), 1);
    }

    /// A connection on which a call has received 16 of 100 bytes, and has been killed before it threw them away.
    fn damaged() -> (&'static Conn, &'static Area, [TcpStream; 2]) {
        let (conn, [own, mut peer]) = records::on_the_heap();
        let bytes: Vec<u8> = (0..100).collect();
        peer.write_all(&bytes).unwrap();
        while crate::kernel::queued(conn.fd()) < bytes.len() {
            std::thread::yield_now();
        }
        let mut guard = conn.own_receive(conn.id()).unwrap();
        let area = begin(conn, &mut guard).unwrap();
        drop(guard);
        area.holes.begin_change();
        area.holes.take(0, 16).unwrap();
        own.set_nonblocking(true).unwrap();
        (conn, area, [own, peer])
    }

    fn assert_rest(mut own: TcpStream) {
        let mut rest = [0; 84];
        own.read_exact(&mut rest).unwrap();
        assert!(rest.into_iter().eq(16..100));
    }

    /// Bytes that nobody has received must not go with those that a killed call has, however often it is asked.
    #[test]
    fn handed_over_damaged_more_than_once() {
        let (conn, _, [own, _peer]) = damaged();
        for _ in 0..3 {
            hand_over(conn);
        }
        assert_rest(own);
    }

    /// Nor where the connection has ended, in whatever way. A reset is told behind them, as ever.
    #[test]
    fn handed_over_damaged_after_the_end() {
        for (is_half_closed, is_reset) in [(false, false), (true, false), (false, true), (true, true)] {
            let (conn, area, [own, peer]) = damaged();
            if is_half_closed {
                peer.shutdown(Shutdown::Write).unwrap();
                while raw::poll_now(conn.fd(), libc::POLLRDHUP) == 0 {}
            }
            if is_reset {
                records::reset(peer);
            } else {
                drop(peer);
                own.shutdown(Shutdown::Write).unwrap();
            }
            while raw::poll_now(conn.fd(), libc::POLLHUP) == 0 {}
            for _ in 0..3 {
                hand_over(conn);
            }
            assert_eq!(area.origin.load(Relaxed), 0);
            let told = raw::poll_now(conn.fd(), 0) & libc::POLLERR != 0;
            assert_eq!(told, is_reset, "{is_half_closed}");
            assert_rest(own);
        }
    }

    /// What nobody can tell the successor is not told that it has ended in order.
    #[test]
    fn handed_over_damaged_without_a_count() {
        for is_up in [true, false] {
            let (conn, area, [mut own, peer]) = damaged();
            area.origin.store(area::UNTOLD, Relaxed);
            let _peer = is_up.then_some(peer);
            if !is_up {
                own.shutdown(Shutdown::Write).unwrap();
                while raw::poll_now(conn.fd(), libc::POLLHUP) == 0 {}
            }
            hand_over(conn);
            own.read(&mut [0; 100]).unwrap_err();
            assert_eq!(crate::kernel::queued(conn.fd()), 0);
        }
    }
}
