//! The socket calls of an inbox besides direct search, made through the C library so that they are accelerated too.
//!
//! A socket with a message that nobody wants is readable all the time, so an inbox waits for edges: an epoll set
//! reports each arrival once. An event counter in the set wakes waiters for other reasons, and a timer those who wait
//! by the descriptor of the set for what no edge tells.

use super::instant::Instant;
use core::ffi::c_int;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

// As `libc` declares them, a cancelled thread may not unwind through them.
unsafe extern "C-unwind" {
    fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> libc::ssize_t;
    fn poll(entries: *mut libc::pollfd, count: libc::nfds_t, ms: c_int) -> c_int;
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

const WAIT: c_int = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
const WAKE: c_int = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;

/// Number of the calling thread.
fn own_number() -> u32 {
    // SAFETY: no pointers.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// Takes a descriptor that has just been made.
fn own(fd: c_int) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What calls of an inbox wait with.
///
/// One thread watches the set. The others follow: they sleep until they are called, which whoever takes something out
/// of the set does once it is noted, since an edge may be of a source that another waits for.
#[derive(Debug)]
pub(super) struct Waiter {
    set: OwnedFd,
    bell: OwnedFd,
    timer: OwnedFd,
    /// Number of the thread that watches; 0: none.
    watcher: AtomicU32,
    /// When it has watched for as long as any does, in milliseconds after `began`: it may have jumped out, and not come
    /// back.
    watched_until: AtomicU64,
    began: Instant,
    followers: AtomicU32,
    /// How often the followers have been called.
    calls: AtomicU32,
}

/// How a call is to wait.
#[derive(Debug)]
pub(super) enum Turn {
    Watch,
    /// Until there are more calls than so many.
    Follow(u32),
}

/// What a call has taken out of the set.
#[derive(Debug)]
pub(super) struct Taken {
    /// The sources that have news. An error of the kind `Interrupted`: a signal was caught.
    pub(super) news: io::Result<Vec<usize>>,
    /// Who is to be called, once the news are noted.
    pub(super) call: Call,
}

/// Which other threads are to look again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    None,
    /// Those that follow.
    Followers,
    /// And the one that watches.
    All,
}

/// Names the event counter in the set, as no source is.
const BELL: u64 = u64::MAX;
/// And the timer.
const TIMER: u64 = BELL - 1;

/// Longest sleep: a cancelled thread is not woken.
const LONGEST: Duration = Duration::from_millis(50);

impl Waiter {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let set = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: no pointers.
        let bell = own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: no pointers.
        let timer = own(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) })?;
        let waiter = Self {
            set,
            bell,
            timer,
            watcher: AtomicU32::new(0),
            watched_until: AtomicU64::new(0),
            began: Instant::now(),
            followers: AtomicU32::new(0),
            calls: AtomicU32::new(0),
        };
        waiter.register(waiter.bell.as_fd(), BELL)?;
        waiter.register(waiter.timer.as_fd(), TIMER)?;
        Ok(waiter)
    }

    /// Edges of `fd` are news of this source from now on.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, source: usize) -> io::Result<()> {
        self.register(fd, source as u64)
    }

    fn register(&self, fd: BorrowedFd<'_>, name: u64) -> io::Result<()> {
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

    /// Wakes everybody who waits, by the descriptor of the set too. The caller holds the lock of the sources.
    pub(super) fn wake(&self) {
        self.call_followers();
        self.ring();
    }

    /// Has all other threads that wait look again. The caller holds the lock of the sources.
    pub(super) fn call_others(&self) {
        self.call_followers();
        // An edge that has been taken wakes nobody. Should the ring be taken too, who takes it rings again.
        if self.is_watched_elsewhere(Instant::now()) {
            self.ring();
        }
    }

    fn milliseconds(&self, at: Instant) -> u64 {
        let since = at.since(self.began).as_millis();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    /// Whether another thread watches. One that has left its watch by a jump is the caller, has ended, or has had its
    /// time; one that is late looks by itself.
    fn is_watched_elsewhere(&self, now: Instant) -> bool {
        let watcher = self.watcher.load(Acquire);
        let is_over = self.milliseconds(now) > self.watched_until.load(Relaxed);
        if watcher == 0 || watcher == own_number() || is_over {
            return false;
        }
        // SAFETY: no pointers, and no signal.
        let found = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), watcher, 0) };
        found == 0
    }

    /// Has those that follow look again: one of them is to watch. The caller holds the lock of the sources.
    pub(super) fn call_followers(&self) {
        if self.followers.load(Acquire) > 0 {
            self.calls.fetch_add(1, Release);
            // SAFETY: the word outlives the call.
            unsafe { libc::syscall(libc::SYS_futex, self.calls.as_ptr(), WAKE, c_int::MAX) };
        }
    }

    fn ring(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes that outlive the call.
        unsafe { libc::write(self.bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Has the descriptor of the set be readable once so much time has passed, and not at a time that was said before.
    pub(super) fn ring_after(&self, time: Duration) {
        let time = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
                // None at all would be never.
                tv_nsec: libc::c_long::from(time.subsec_nanos()).max(1),
            },
        };
        // SAFETY: the time outlives the call.
        unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const time, core::ptr::null_mut()) };
    }

    /// Takes what edges there are.
    pub(super) fn take(&self) -> Taken {
        self.poll(0)
    }

    /// How the caller, who has just looked and holds the lock of the sources, is to wait. It does in any case.
    pub(super) fn turn(&self, now: Instant) -> Turn {
        if self.is_watched_elsewhere(now) {
            self.followers.fetch_add(1, AcqRel);
            Turn::Follow(self.calls.load(Acquire))
        } else {
            self.watched_until.store(self.milliseconds(now + LONGEST), Relaxed);
            self.watcher.store(own_number(), Release);
            Turn::Watch
        }
    }

    /// Waits for news, or for as long as `limit`.
    pub(super) fn wait(&self, turn: &Turn, limit: Option<Duration>) -> Taken {
        let limit = limit.map_or(LONGEST, |limit| limit.min(LONGEST));
        match turn {
            Turn::Watch => {
                let ms = c_int::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX);
                let taken = self.poll(ms);
                let _ = self.watcher.compare_exchange(own_number(), 0, AcqRel, Relaxed);
                // What was rung for this thread is nobody else's.
                let has_news = taken.news.as_ref().is_ok_and(|sources| !sources.is_empty());
                Taken {
                    call: if has_news { Call::All } else { Call::Followers },
                    ..taken
                }
            }
            Turn::Follow(calls) => {
                let time = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: limit.subsec_nanos().into(),
                };
                // SAFETY: the word and the time outlive the call.
                let result =
                    unsafe { libc::syscall(libc::SYS_futex, self.calls.as_ptr(), WAIT, *calls, &raw const time) };
                let error = io::Error::last_os_error();
                self.followers.fetch_sub(1, AcqRel);
                let news = match (result, error.kind()) {
                    // Whoever watches may have jumped out of a signal handler, and not come back.
                    (-1, ErrorKind::TimedOut) => return self.poll(0),
                    (-1, ErrorKind::Interrupted) => Err(error),
                    _ => Ok(Vec::new()),
                };
                Taken { news, call: Call::None }
            }
        }
    }

    fn poll(&self, mut ms: c_int) -> Taken {
        const ROOM: c_int = 16;
        let (mut sources, mut call) = (Vec::new(), Call::None);
        loop {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
            // SAFETY: room for as many events.
            let count = unsafe { libc::epoll_wait(self.raw(), events.as_mut_ptr(), ROOM, ms) };
            let count = match check(count) {
                Ok(count) => count,
                // What has been taken is told.
                Err(_) if ms == 0 && !sources.is_empty() => 0,
                Err(error) => {
                    return Taken { news: Err(error), call };
                }
            };
            if count > 0 {
                call = Call::All;
            }
            let names = events
                .iter()
                .take(usize::try_from(count).unwrap_or(0))
                .map(|event| event.u64);
            sources.extend(
                names
                    .filter(|name| *name < TIMER)
                    .filter_map(|name| usize::try_from(name).ok()),
            );
            if count < ROOM {
                return Taken {
                    news: Ok(sources),
                    call,
                };
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
    unsafe { poll(&raw mut entry, 1, 0) };
    entry.revents & (libc::POLLRDHUP | libc::POLLHUP)
}

/// Sends both, all of it, waiting for room where the socket does not. A point of cancellation.
pub(super) fn send_all(fd: BorrowedFd<'_>, first: &[u8], second: &[u8]) -> io::Result<()> {
    // Each time: a number that was a stream's may be another's now, which would make packets of what it is given. The
    // preload library sees numbers change; without it there is no cheaper way to ask whose a number is.
    if !crate::call::is_known_stream(fd) && !is_stream(fd)? {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let mut done = 0;
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
        // SAFETY: the header and its parts outlive the call, which only reads them.
        let sent = unsafe { sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        if let Ok(sent) = usize::try_from(sent) {
            done += sent;
            continue;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            ErrorKind::Interrupted => {}
            ErrorKind::WouldBlock => wait_for_room(fd),
            // What the kernel says of TCP sockets without a connection.
            ErrorKind::BrokenPipe => return check_connected(fd).and(Err(error)),
            _ => return Err(error),
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
    unsafe { poll(&raw mut entry, 1, -1) };
}
