//! One end of a connection, with the calls that a program makes, as the preload library passes them on.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use libc::{c_int, epoll_event, iovec, pollfd};
use viaduct_socket::descriptors::{lifecycle, table};
use viaduct_socket::epoll::ctl::{self, Asked};
use viaduct_socket::epoll::wait::{self as waiting, Timeout};
use viaduct_socket::poll::{self, Wait};
use viaduct_socket::{Conn, Vector, epoll, options, process, search, sys};

/// Longer than any call takes here, on a machine however busy.
const PROMPTLY: Duration = Duration::from_secs(20);

pub(crate) struct End {
    fd: c_int,
    /// Sets in which it is registered for input, by level and by edge.
    sets: [c_int; 2],
}

/// Makes a call, which must come to an end. Answers what it did, or `errno`.
fn in_time(call: impl FnOnce() -> isize) -> Result<usize, c_int> {
    let started = Instant::now();
    let got = call();
    let errno = sys::errno();
    assert!(started.elapsed() < PROMPTLY, "no end: {got}, errno {errno}");
    usize::try_from(got).map_err(|_| errno)
}

/// A new set with one member.
fn set_for(fd: c_int, events: u32) -> c_int {
    // SAFETY: no pointers.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    lifecycle::fresh(set);
    epoll::created(set);
    let index = table::epoll_set(set).expect("just created");
    let mut event = epoll_event { events, u64: 1 };
    let event = &raw mut event;
    // SAFETY: the event is there until the call has returned.
    let direct = || unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, event) };
    let asked = Asked {
        set: index,
        operation: libc::EPOLL_CTL_ADD,
        fd,
        events,
        data: 1,
    };
    let done = match ctl::begin(index, fd) {
        Some(change) => change.make(asked, direct),
        None => ctl::control(asked, direct),
    };
    assert_eq!(done, 0);
    set
}

/// Whether the member of a set is reported, without waiting.
fn reported(set: c_int) -> bool {
    let mut room = [epoll_event { events: 0, u64: 0 }; 2];
    let count = in_time(|| wait_in(set, &mut room)).expect("a set");
    assert!(count == 0 || count == 1 && { room[0].u64 } == 1, "{count} events");
    count == 1
}

/// `epoll_wait` with a timeout of 0.
fn wait_in(set: c_int, room: &mut [epoll_event; 2]) -> isize {
    let at_once = Timeout {
        ns: Some(0),
        fine: false,
    };
    let (into, index) = (room.as_mut_ptr(), table::epoll_set(set).expect("created with the end"));
    // SAFETY: the room is there until the wait has ended.
    let mut events = unsafe { sys::Events::new(into, room.len()) };
    // SAFETY: as above.
    let direct = || unsafe { libc::epoll_wait(set, into, 2, 0) as isize };
    let ours = match waiting::begin(index) {
        waiting::Wait::Unknown => return direct(),
        waiting::Wait::Plain(wait) => wait.end(direct(), &mut events),
        waiting::Wait::Ours(ours) => Err(ours),
    };
    ours.unwrap_or_else(|wait| wait.make(&mut events, at_once, core::ptr::null()))
}

impl End {
    /// Both ends of a new connection.
    pub(crate) fn pair(listener: &TcpListener) -> [Self; 2] {
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let far = listener.accept().expect("connected").0;
        lifecycle::made_socket(near.as_raw_fd(), false);
        lifecycle::connected(near.as_raw_fd(), libc::AF_INET, false);
        lifecycle::accepted(far.as_raw_fd(), listener.as_raw_fd());
        [near, far].map(|socket| {
            socket.set_nodelay(true).expect("a socket");
            let fd = socket.into_raw_fd();
            let sets = [0, libc::EPOLLET.cast_unsigned()].map(|how| set_for(fd, libc::EPOLLIN.cast_unsigned() | how));
            let end = Self { fd, sets };
            // Where no wait has been seen a connection is not offered.
            assert!(!end.sets.into_iter().any(reported));
            end.wait_at_most(PROMPTLY / 2);
            let now = libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            // Many connections are made, and no port is to wait after each.
            end.set(libc::SO_LINGER, now);
            end
        })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    fn conn(&self) -> &'static Conn {
        table::connection(self.fd).expect("the library knows it")
    }

    fn set<T>(&self, name: c_int, value: T) {
        let len = libc::socklen_t::try_from(size_of::<T>()).expect("small");
        // SAFETY: the value is of the option's type, which the callers see to.
        let done = unsafe { libc::setsockopt(self.fd, libc::SOL_SOCKET, name, (&raw const value).cast(), len) };
        assert_eq!(done, 0);
        options::was_set(self.conn(), libc::SOL_SOCKET, name, None, None);
    }

    /// How long its receives wait from now on.
    pub(crate) fn wait_at_most(&self, time: Duration) {
        let time = libc::timeval {
            tv_sec: time.as_secs().cast_signed(),
            tv_usec: i64::from(time.subsec_micros()),
        };
        self.set(libc::SO_RCVTIMEO, time);
    }

    /// Sends without waiting for room.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, c_int> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let parts = [iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }];
        // SAFETY: the bytes are there until the call has returned.
        let vector = unsafe { Vector::new(&parts) };
        // SAFETY: as above.
        let direct = || unsafe { libc::send(self.fd, parts[0].iov_base, parts[0].iov_len, flags) };
        in_time(|| viaduct_socket::send(self.conn(), vector, flags, direct))
    }

    /// Receives into `bytes`; with an offset by a search.
    pub(crate) fn receive(&self, bytes: &mut [u8], flags: c_int, offset: Option<usize>) -> Result<usize, c_int> {
        let parts = [iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        }];
        // SAFETY: the bytes are there until the call has returned.
        let vector = unsafe { Vector::new(&parts) };
        // SAFETY: as above.
        let direct = || unsafe { libc::recv(self.fd, parts[0].iov_base, parts[0].iov_len, flags) };
        in_time(|| match offset {
            Some(offset) => search::seek_receive(self.conn(), vector, flags, offset, direct),
            None => viaduct_socket::receive(self.conn(), vector, flags, direct),
        })
    }

    /// `FIONREAD`.
    pub(crate) fn readable(&self) -> usize {
        let conn = self.conn();
        let bytes = in_time(|| match options::readable_bytes(conn) {
            Some(bytes) => bytes as isize,
            None => options::queued_bytes(conn),
        });
        bytes.expect("a number of bytes")
    }

    /// Whether `poll` and the set by level say that there is something to receive, or the end.
    pub(crate) fn is_ready(&self) -> [bool; 2] {
        let mut entry = [pollfd {
            fd: self.fd,
            events: libc::POLLIN,
            revents: 0,
        }];
        let how = Wait {
            timeout_ns: Some(0),
            mask: core::ptr::null(),
        };
        in_time(|| poll::poll(&mut entry, how).map_or(-1, usize::cast_signed)).expect("a number of entries");
        [entry[0].revents & libc::POLLIN != 0, reported(self.sets[0])]
    }

    /// Whether the set by edge tells of something since it last did.
    pub(crate) fn is_told(&self) -> bool {
        reported(self.sets[1])
    }

    /// [`receive`](Self::receive) in a child, which shares the connection and ends.
    pub(crate) fn receive_in_child(
        &self,
        bytes: &mut [u8],
        flags: c_int,
        offset: Option<usize>,
    ) -> Result<usize, c_int> {
        let (mut from_child, mut to_parent) = io::pipe().expect("a pipe");
        // SAFETY: the child makes the calls of this function's only, and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no child: errno {}", sys::errno());
        if child == 0 {
            let done = panic::catch_unwind(AssertUnwindSafe(|| {
                let got = self.receive(bytes, flags, offset);
                let (done, errno) = (got.unwrap_or(0), got.err().unwrap_or(0));
                to_parent.write_all(&errno.to_ne_bytes()).expect("the parent reads");
                to_parent.write_all(&done.to_ne_bytes()).expect("the parent reads");
                to_parent.write_all(bytes).expect("the parent reads");
            }));
            process::exiting();
            sys::raw::exit(c_int::from(done.is_err()));
        }
        drop(to_parent);
        let (mut errno, mut done) = ([0; size_of::<c_int>()], [0; size_of::<usize>()]);
        let read = from_child
            .read_exact(&mut errno)
            .and_then(|()| from_child.read_exact(&mut done))
            .and_then(|()| from_child.read_exact(bytes));
        let mut status = 0;
        // SAFETY: the status is there until the call has returned.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(ended == child && status == 0, "the child's status is {status:#x}");
        read.expect("all that the child has written");
        match c_int::from_ne_bytes(errno) {
            0 => Ok(usize::from_ne_bytes(done)),
            errno => Err(errno),
        }
    }

    /// Sends no more.
    pub(crate) fn shut_down(&self) {
        // SAFETY: no pointers.
        let direct = || unsafe { libc::shutdown(self.fd, libc::SHUT_WR) };
        let _ = in_time(|| lifecycle::shut_down(self.conn(), libc::SHUT_WR, direct) as isize);
    }

    /// Stays on TCP from now on.
    pub(crate) fn ban(&self) {
        options::setting(self.conn(), libc::SOL_SOCKET, libc::SO_OOBINLINE, Some(1));
    }

    /// Puts bytes on the kernel connection past the library.
    pub(crate) fn send_past(&self, bytes: &[u8]) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the bytes are there until the call has returned.
        unsafe { libc::send(self.fd, bytes.as_ptr().cast(), bytes.len(), flags) };
    }
}

impl Drop for End {
    fn drop(&mut self) {
        for fd in self.sets.into_iter().chain([self.fd]) {
            lifecycle::closing(fd);
            // SAFETY: the descriptor is ours, and nobody uses it any more.
            unsafe { libc::close(fd) };
        }
    }
}
