//! Direct search in a program that does not run under Viaduct: nothing is known of its descriptors but what each call
//! tells.
//!
//! While a socket has holes, it must be received from by these calls only; other processes or libraries that read the
//! socket see the stream with the bytes of the holes in it. Readiness, as the kernel tells it, is right for these
//! calls.

use super::area::{self, Area, Child};
use super::kernel::Front;
use super::simple::may_be_simple;
use super::{Ask, Searched, Step, check, run, waiting};
use crate::descriptors::lifecycle::{is_tcp, nanoseconds};
use crate::lock::{self, Guard};
use crate::options::rules_searches_out;
use crate::real;
use crate::sys::memory::mapped;
use crate::sys::{self, Errno, raw};
use crate::vector::Vector;
use crate::wait::{Deadline, Woken};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicUsize};
use libc::c_int;

/// Descriptors from this number on cannot be searched.
const DESCRIPTORS: usize = 1 << 16;

/// The reference of each descriptor's area; 0 for none.
static KNOWN: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];

/// Receives from the socket `fd`, from `offset` unread bytes after the head on.
///
/// # Errors
/// As `recv`; `EINVAL` for numbers that are too large, `EOPNOTSUPP` for other sockets than TCP and for flags beyond
/// those of `recv` on a stream, `ENOBUFS` where the receive buffer cannot hold so much or there are too many holes.
pub fn seek_receive(fd: c_int, vector: Vector<'_>, flags: c_int, offset: usize) -> Result<usize, Errno> {
    check(vector.asked(), flags, offset)?;
    let socket = socket(fd)?;
    if vector.is_empty() {
        return Ok(0);
    }
    match socket.take_simply(vector, flags, offset as u64) {
        Some(bytes) => Ok(bytes),
        None => run(&socket, vector, flags, offset as u64),
    }
}

/// Bytes that can be received from the socket now.
///
/// # Errors
/// As [`seek_receive`].
pub fn readable(fd: c_int) -> Result<usize, Errno> {
    let socket = socket(fd)?;
    let _guard = socket.own()?;
    Ok(socket.front.readable())
}

#[derive(Debug)]
struct Socket {
    front: Front<'static>,
    identity: u64,
}

impl Socket {
    fn own(&self) -> Result<Guard<'static>, Errno> {
        let guard = lock::acquire(&self.front.area.owner).ok_or(libc::EAGAIN)?;
        // Another thread may have closed the descriptor, and the area be another socket's by now.
        if self.front.area.identity.load(Relaxed) == self.identity {
            Ok(guard)
        } else {
            Err(libc::EBADF)
        }
    }

    /// Takes all that a call asks for, where that is simple.
    #[inline]
    fn take_simply(&self, vector: Vector<'_>, flags: c_int, offset: u64) -> Option<usize> {
        if !may_be_simple(flags) {
            return None;
        }
        let _guard = self.own().ok()?;
        self.front.take_simply(vector.only_dest()?, offset)
    }

    /// Nanoseconds that a receive waits; 0: for ever.
    fn timeout(&self) -> u64 {
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let known = raw::getsockopt(self.front.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &mut time).is_ok();
        if known { nanoseconds(time) } else { 0 }
    }

    /// Sleeps until one of `events`, or so many nanoseconds have passed.
    fn sleep(&self, events: i16, ns: u64, deadline: Deadline) -> Result<Woken, Errno> {
        let left = deadline.left_ns();
        if left == Some(0) {
            return Ok(Woken::TimedOut);
        }
        let bound = sys::timespec(left.map_or(ns, |left| left.min(ns)));
        // Errors are told of at once even to who waits for nothing.
        let fd = if events == 0 { -1 } else { self.front.fd };
        match raw::poll_until(fd, events, Some(bound)) {
            Ok(_) => Ok(Woken::Look),
            Err(libc::EINTR) => Ok(Woken::Interrupted),
            Err(errno) => Err(errno),
        }
    }
}

/// What is kept of the socket `fd`.
fn socket(fd: c_int) -> Result<Socket, Errno> {
    let identity = raw::inode(fd)?;
    let place = usize::try_from(fd)
        .ok()
        .and_then(|index| KNOWN.get(index))
        .ok_or(libc::EBADF)?;
    let reference = place.load(Acquire);
    let front = |reference| {
        let (area, peeked) = (area::numbered(reference)?, area::peeked(reference)?);
        (area.identity.load(Relaxed) == identity).then_some(Socket {
            front: Front {
                fd,
                area,
                peeked,
                locks: None,
            },
            identity,
        })
    };
    if let Some(known) = front(reference) {
        return Ok(known);
    }
    first(fd, identity, place)?;
    front(place.load(Acquire)).ok_or(libc::ENOBUFS)
}

/// A descriptor that has not been searched, or stood for something else when it was.
#[cold]
fn first(fd: c_int, identity: u64, place: &'static AtomicU32) -> Result<(), Errno> {
    check_socket(fd)?;
    area::share();
    let claiming = area::claiming().ok_or(libc::ENOBUFS)?;
    let _one_at_a_time = lock::acquire(claiming).ok_or(libc::EAGAIN)?;
    if area::numbered(place.load(Acquire)).is_some_and(|area| area.identity.load(Relaxed) == identity) {
        // Another thread was first.
        return Ok(());
    }
    release(place, lock::acquire).ok_or(libc::EAGAIN)?;
    let reference = match area::find(identity) {
        Some(reference) => {
            // Another process's as yet, or another descriptor's.
            if area::peeked(reference).is_some_and(|peeked| peeked.descriptors.load(Relaxed) == 0) {
                area::add(reference);
            }
            reference
        }
        None => {
            if rules_searches_out(fd) {
                return Err(libc::EOPNOTSUPP);
            }
            sweep_in_time();
            let reference = match area::claim() {
                Some(reference) => reference,
                None => {
                    sweep();
                    area::claim().ok_or(libc::ENOBUFS)?
                }
            };
            let area = area::numbered(reference).ok_or(libc::ENOBUFS)?;
            area.identity.store(identity, Relaxed);
            reference
        }
    };
    if let Some(peeked) = area::peeked(reference) {
        peeked.descriptors.fetch_add(1, Relaxed);
    }
    place.store(reference, Release);
    Ok(())
}

/// Whether `fd` can be searched.
pub(super) fn check_socket(fd: c_int) -> Result<(), Errno> {
    let mut kind: c_int = 0;
    raw::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, &mut kind)?;
    if kind != libc::SOCK_STREAM || !is_tcp(fd) {
        return Err(libc::EOPNOTSUPP);
    }
    // The kernel says of a socket that it is not connected. No byte is peeked at: that would move where the program
    // peeks next.
    match raw::recv(fd, &mut [], libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Err(errno) if !matches!(errno, libc::EAGAIN | libc::EINTR) => Err(errno),
        _ => Ok(()),
    }
}

/// Forgets what a descriptor stood for; `None` if somebody in a call on it has what is kept, and `own` does not wait.
fn release(place: &AtomicU32, own: fn(&'static AtomicU32) -> Option<Guard<'static>>) -> Option<()> {
    let reference = place.load(Relaxed);
    let (Some(area), Some(peeked)) = (area::numbered(reference), area::peeked(reference)) else {
        return Some(());
    };
    let _guard = own(&area.owner)?;
    if peeked.descriptors.fetch_sub(1, Relaxed) == 1 {
        peeked.give_back();
        area::leave(reference);
        if area.holders.are_gone() {
            // Whoever still waits for it is not to take another's for it.
            area.identity.store(0, Relaxed);
            area::release(place);
        }
    }
    place.store(0, Relaxed);
    Some(())
}

/// So many buffers of sockets that have been closed are no matter.
const BUFFERS: usize = 16;

/// Gives the memory back that sockets which have been closed still have: nobody tells of that. Rarely enough that each
/// first search pays for a few looks only.
fn sweep_in_time() {
    static SINCE: AtomicUsize = AtomicUsize::new(0);
    let since = SINCE.fetch_add(1, Relaxed);
    if since >= BUFFERS.max(mapped() / 2) {
        SINCE.store(0, Relaxed);
        if mapped() > BUFFERS {
            sweep();
        }
    }
}

/// Forgets all descriptors that stand for something else by now.
fn sweep() {
    for (fd, place) in KNOWN.iter().enumerate() {
        let identity = |area: &'static Area| area.identity.load(Relaxed);
        let Some(known) = area::numbered(place.load(Relaxed)).map(identity) else {
            continue;
        };
        if c_int::try_from(fd).ok().and_then(|fd| raw::inode(fd).ok()) != Some(known) {
            let _ = release(place, lock::try_acquire);
        }
    }
}

/// Has `fork` tell us, also before the first search, and finds what searches look up.
pub fn loaded() {
    real::prepare_test_cancel();
    sys::at_fork(before_fork, area::after_fork_in_parent, after_fork_in_child);
}

/// The child will know each socket that its parent knows.
fn before_fork(_frame: usize) {
    // What either process will search later, both must see.
    area::share();
    let mut child = Child::begin();
    area::known_by_descriptors().for_each(|reference| child.expect(reference));
}

fn after_fork_in_child() {
    lock::after_fork();
    area::after_fork_in_child();
    area::known_by_descriptors().for_each(area::arrive);
}

impl Searched for Socket {
    fn attempt(&self, ask: &Ask<'_>, last: bool) -> Result<Step, Errno> {
        let _guard = self.own()?;
        if !self.front.area.holes.is_intact() {
            return Err(libc::ECONNRESET);
        }
        self.front.attempt(ask, last)
    }

    fn is_nonblocking(&self) -> bool {
        let flags = raw::fcntl(self.front.fd, libc::F_GETFL, 0).unwrap_or(0);
        flags & libc::O_NONBLOCK.cast_unsigned() as usize != 0
    }

    fn announce(&self, step: Step, offset: u64) -> Result<bool, Errno> {
        match step {
            Step::Nothing { until } if offset > 0 => {
                let _guard = self.own()?;
                waiting::announce(self.front.fd, self.front.area, until)
            }
            _ => Ok(false),
        }
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout())
    }

    fn wait(&self, step: Step, deadline: Deadline, again: bool) -> Result<Woken, Errno> {
        let Step::Nothing { until } = step else {
            return Ok(Woken::Look);
        };
        // Nothing wakes a thread that is cancelled in its sleep, but no sleep is long.
        real::test_cancel();
        let waiting = {
            let _guard = self.own()?;
            waiting::begin(self.front.fd, self.front.area, until, again)?
        };
        let woken = waiting::sleep(waiting, |events, ns| self.sleep(events, ns, deadline))?;
        // Another thread may have closed the descriptor, and its number stand for another socket by now.
        match raw::inode(self.front.fd)? == self.identity {
            true => Ok(woken),
            false => Err(libc::EBADF),
        }
    }

    fn received(&self, _bytes: usize) {}

    fn broken(&self, errno: Errno) {
        self.front.area.error.store(errno, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::queued;
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    const ALL: usize = 160 << 10;

    /// Peeks at a few bytes every `step`; answers up to where the stream was peeked in bulk, and how often.
    fn walk(step: usize) -> (u64, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let fd = far.as_raw_fd();
        raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &(1 << 20)).unwrap();
        let sent: Vec<u8> = (0..=250).cycle().take(ALL).collect();
        near.write_all(&sent).unwrap();
        while queued(fd) < ALL {
            std::thread::yield_now();
        }
        let mut ends = std::collections::BTreeSet::new();
        for at in (0..ALL).step_by(step) {
            let mut bytes = [0; 4];
            let parts = [libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            }];
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            assert_eq!(seek_receive(fd, Vector::own(&parts), flags, at), Ok(4));
            assert_eq!(sent.get(at..at + 4), Some(&bytes[..]));
            let Front { area, peeked, .. } = socket(fd).unwrap().front;
            ends.insert(peeked.range(area).1);
        }
        (ends.last().copied().unwrap(), ends.len())
    }

    #[test]
    fn a_walk_from_header_to_header_copies_little() {
        // Near ones come with what is between, in few peeks.
        for step in [16, 100, 1024, 4096] {
            assert!(walk(step).1 <= 8, "{step}: {:?}", walk(step));
        }
        // What is between those that are far apart is left alone.
        assert!(walk(16 << 10).0 <= 4096, "{:?}", walk(16 << 10));
    }
}
