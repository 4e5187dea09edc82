//! One end of a connection, with the calls that a program makes, as the preload library passes them on.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::{Duration, Instant};

use libc::{c_int, iovec};
use viaduct_socket::{Conn, Vector, lifecycle, options, search, sys, table};

/// Longer than any call takes here, on a machine however busy.
const PROMPTLY: Duration = Duration::from_secs(20);

pub(crate) struct End(c_int);

/// Makes a call, which must come to an end. Answers what it did, or `errno`.
fn in_time(call: impl FnOnce() -> isize) -> Result<usize, c_int> {
    let started = Instant::now();
    let got = call();
    let errno = sys::errno();
    assert!(started.elapsed() < PROMPTLY, "no end: {got}, errno {errno}");
    usize::try_from(got).map_err(|_| errno)
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
            let end = Self(socket.into_raw_fd());
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
        self.0
    }

    fn conn(&self) -> &'static Conn {
        table::connection(self.0).expect("the library knows it")
    }

    fn set<T>(&self, name: c_int, value: T) {
        let len = libc::socklen_t::try_from(size_of::<T>()).expect("small");
        // SAFETY: the value is of the option's type, which the callers see to.
        let done = unsafe { libc::setsockopt(self.0, libc::SOL_SOCKET, name, (&raw const value).cast(), len) };
        assert_eq!(done, 0);
        options::was_set(self.conn(), libc::SOL_SOCKET, name, None);
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
        let direct = || unsafe { libc::send(self.0, parts[0].iov_base, parts[0].iov_len, flags) };
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
        let direct = || unsafe { libc::recv(self.0, parts[0].iov_base, parts[0].iov_len, flags) };
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

    /// Sends no more.
    pub(crate) fn shut_down(&self) {
        // SAFETY: no pointers.
        let direct = || unsafe { libc::shutdown(self.0, libc::SHUT_WR) };
        let _ = in_time(|| lifecycle::shut_down(self.conn(), libc::SHUT_WR, direct) as isize);
    }

    /// Stays on TCP from now on.
    pub(crate) fn ban(&self) {
        options::setting(self.conn(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, Some(1));
    }

    /// Puts bytes on the kernel connection past the library.
    pub(crate) fn send_past(&self, bytes: &[u8]) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the bytes are there until the call has returned.
        unsafe { libc::send(self.0, bytes.as_ptr().cast(), bytes.len(), flags) };
    }
}

impl Drop for End {
    fn drop(&mut self) {
        lifecycle::closing(self.0);
        // SAFETY: the descriptor is ours, and nobody uses it any more.
        unsafe { libc::close(self.0) };
    }
}
