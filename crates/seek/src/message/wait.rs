//! The socket calls of an inbox besides direct search, made through the C library so that they are accelerated too.
//!
//! A socket with a message that nobody wants is readable all the time, so an inbox waits for edges: an epoll set reports each arrival
//! once. An event counter in the set wakes waiters for other reasons.

use core::ffi::c_int;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::Duration;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Takes a descriptor that has just been made.
fn own(fd: c_int) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What calls of an inbox wait with.
#[derive(Debug)]
pub(super) struct Waiter {
    set: OwnedFd,
    bell: OwnedFd,
    /// Edges that some call has taken out of the set: for the others that wait.
    taken: AtomicU64,
}

/// Names the event counter in the set, as no source is.
const BELL: u64 = u64::MAX;

/// Longest sleep: another thread may have taken the edge that was meant for this one.
const LONGEST_MS: u128 = 50;

impl Waiter {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let set = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: no pointers.
        let bell = own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let waiter = Self {
            set,
            bell,
            taken: AtomicU64::new(0),
        };
        waiter.watch(waiter.bell.as_fd(), BELL)?;
        Ok(waiter)
    }

    /// Edges of `fd` are news of this source from now on.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, source: usize) -> io::Result<()> {
        self.watch(fd, source as u64)
    }

    fn watch(&self, fd: BorrowedFd<'_>, name: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET).cast_unsigned(),
            u64: name,
        };
        // SAFETY: the event outlives the call.
        check(unsafe { libc::epoll_ctl(self.raw(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) })?;
        Ok(())
    }

    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        // SAFETY: a removal takes no event.
        unsafe { libc::epoll_ctl(self.raw(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), core::ptr::null_mut()) };
    }

    fn raw(&self) -> RawFd {
        self.set.as_raw_fd()
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Wakes everybody who waits.
    pub(super) fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes that outlive the call.
        unsafe { libc::write(self.bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes what edges there are: the sources they are of.
    pub(super) fn news(&self) -> io::Result<Vec<usize>> {
        self.poll(0)
    }

    /// How often edges have been taken. What this answers before a look is for [`Waiter::wait`].
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Acquire)
    }

    /// Waits for an edge, or for as long as `limit`, unless edges have been taken since: the sources they are of. An error of the kind
    /// `Interrupted`: a signal was caught.
    pub(super) fn wait(&self, taken: u64, limit: Option<Duration>) -> io::Result<Vec<usize>> {
        if self.taken() != taken {
            return Ok(Vec::new());
        }
        let limit = limit.map_or(LONGEST_MS, |limit| limit.as_micros().div_ceil(1000).min(LONGEST_MS));
        self.poll(c_int::try_from(limit).unwrap_or(c_int::MAX))
    }

    fn poll(&self, mut ms: c_int) -> io::Result<Vec<usize>> {
        const ROOM: c_int = 16;
        let mut sources = Vec::new();
        loop {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
            // SAFETY: room for as many events.
            let count = unsafe { libc::epoll_wait(self.raw(), events.as_mut_ptr(), ROOM, ms) };
            let count = match check(count) {
                Ok(count) => count,
                // What has been taken is told.
                Err(_) if ms == 0 && !sources.is_empty() => 0,
                Err(error) => return Err(error),
            };
            if count > 0 {
                self.taken.fetch_add(1, AcqRel);
            }
            let names = events
                .iter()
                .take(usize::try_from(count).unwrap_or(0))
                .map(|event| event.u64);
            sources.extend(
                names
                    .filter(|name| *name != BELL)
                    .filter_map(|name| usize::try_from(name).ok()),
            );
            if count < ROOM {
                return Ok(sources);
            }
            ms = 0;
        }
    }
}

fn option(fd: RawFd, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or(0);
    // SAFETY: room for one integer.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

pub(super) fn is_stream(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(option(fd.as_raw_fd(), libc::SO_TYPE)? == libc::SOCK_STREAM)
}

/// `ENOTCONN` for a socket that has no connection and none that has ended.
pub(super) fn check_connected(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: zeroes are a valid address.
    let mut address: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
    // SAFETY: room for an address of any family.
    let peer = check(unsafe { libc::getpeername(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len) });
    match peer {
        // One that has ended has no peer either, but both its directions are shut.
        Err(error) if error.kind() == ErrorKind::NotConnected && events(fd) & libc::POLLRDHUP == 0 => Err(error),
        _ => Ok(()),
    }
}

/// Whether the other end sends no more.
pub(super) fn has_ended(fd: BorrowedFd<'_>) -> bool {
    events(fd) != 0
}

/// Which of `POLLRDHUP` and `POLLHUP` there are. `POLLERR` alone is of messages to the program, and ends nothing.
fn events(fd: BorrowedFd<'_>) -> libc::c_short {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut entry, 1, 0) };
    entry.revents & (libc::POLLRDHUP | libc::POLLHUP)
}

fn check_stream(fd: BorrowedFd<'_>) -> io::Result<()> {
    match is_stream(fd)? {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
    }
}

/// Whether the socket of a number was a stream of the Internet when it was last asked.
///
/// To ask takes far longer than to send on a lane. So what is sent on a number that was one carries an address that is none: such streams
/// ignore it, and sockets for datagrams, if the number has become one, refuse it.
struct Known {
    place: Option<&'static AtomicU64>,
    bit: u64,
}

impl Known {
    fn of(fd: BorrowedFd<'_>) -> Self {
        static ALL: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
        let number = usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX);
        Self {
            place: ALL.get(number / 64),
            bit: 1 << (number % 64),
        }
    }

    fn is_known(&self) -> bool {
        self.place.is_some_and(|place| place.load(Relaxed) & self.bit != 0)
    }

    fn note(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let domain = option(fd.as_raw_fd(), libc::SO_DOMAIN)?;
        if let Some(place) = self.place
            && [libc::AF_INET, libc::AF_INET6].contains(&domain)
        {
            place.fetch_or(self.bit, Relaxed);
        }
        Ok(())
    }

    /// Whether it was known.
    fn forget(&self) -> bool {
        self.place
            .is_some_and(|place| place.fetch_and(!self.bit, Relaxed) & self.bit != 0)
    }
}

/// Sends both, all of it, waiting for room where the socket does not.
pub(super) fn send_all(fd: BorrowedFd<'_>, first: &[u8], second: &[u8]) -> io::Result<()> {
    let known = Known::of(fd);
    if !known.is_known() {
        check_stream(fd)?;
        known.note(fd)?;
    }
    let (mut done, mut no_address) = (0, 0_u8);
    while done < first.len() + second.len() {
        let head = first.get(done..).unwrap_or_default();
        let tail = second.get(done.saturating_sub(first.len())..).unwrap_or_default();
        let mut parts = [head, tail].map(|part| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        // SAFETY: zeroes are a valid header.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        if known.is_known() {
            message.msg_name = (&raw mut no_address).cast();
            message.msg_namelen = 1;
        }
        // SAFETY: the header and its parts outlive the call, which only reads them.
        let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => done += sent,
            Err(_) => {
                let error = io::Error::last_os_error();
                if known.forget() {
                    check_stream(fd)?;
                    let refused = [libc::EINVAL, libc::EISCONN, libc::EOPNOTSUPP].map(Some);
                    if refused.contains(&error.raw_os_error()) {
                        continue;
                    }
                }
                match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => wait_for_room(fd),
                    // What the kernel says of TCP sockets without a connection.
                    ErrorKind::BrokenPipe => return check_connected(fd).and(Err(error)),
                    _ => return Err(error),
                }
            }
        }
    }
    Ok(())
}

fn wait_for_room(fd: BorrowedFd<'_>) {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut entry, 1, -1) };
}
