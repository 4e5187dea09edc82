//! The call, wherever the connection is kept: by the preload library, or by this one.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};
use libc::{iovec, size_t, ssize_t};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use viaduct_socket::search::plain;
use viaduct_socket::{Vector, sys};

/// How to receive. Combined with `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(c_int);

impl Flags {
    /// As the socket is set.
    pub const NONE: Self = Self(0);
    /// Leave the bytes where they are (`MSG_PEEK`).
    pub const PEEK: Self = Self(libc::MSG_PEEK);
    /// Do not wait (`MSG_DONTWAIT`).
    pub const DONT_WAIT: Self = Self(libc::MSG_DONTWAIT);
    /// Wait until all of the buffer can be filled (`MSG_WAITALL`).
    pub const WAIT_ALL: Self = Self(libc::MSG_WAITALL);
    /// Take the bytes without copying them (`MSG_TRUNC`).
    pub const DISCARD: Self = Self(libc::MSG_TRUNC);

    pub(crate) const fn bits(self) -> c_int {
        self.0
    }
}

impl core::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Receives bytes that stand `offset` unread bytes after the next byte of the stream. Answers how many there were: 0 at
/// the end of the stream, fewer than there is room for where no more have arrived.
///
/// # Errors
/// As `recv`, with the error numbers that `viaduct_seek_recv(3)` lists.
pub fn seek_recv(socket: impl AsFd, buffer: &mut [u8], flags: Flags, offset: usize) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the buffer is ours to write for its length.
    unsafe { receive(fd, buffer.as_mut_ptr(), buffer.len(), flags.bits(), offset) }
        .map_err(io::Error::from_raw_os_error)
}

/// How many of the `len` bytes from `offset` on are there now, up to the first that is not. All bytes between two that
/// have come need not have: while a stream changes its path they travel in two ways.
pub(crate) fn peek_all(socket: impl AsFd, len: usize, offset: usize) -> io::Result<usize> {
    let flags = Flags::PEEK | Flags::DISCARD | Flags::DONT_WAIT | Flags::WAIT_ALL;
    let nowhere = core::ptr::NonNull::dangling().as_ptr();
    // SAFETY: a peek that discards writes nothing.
    unsafe { receive(socket.as_fd().as_raw_fd(), nowhere, len, flags.bits(), offset) }
        .map_err(io::Error::from_raw_os_error)
}

/// Receives in order by the C library's `recv`, which minds holes under `viaduct run` only.
///
/// # Errors
/// As `recv`.
pub fn recv(socket: impl AsFd, buffer: &mut [u8], flags: Flags) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the buffer is ours to write for its length.
    let got = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags.bits()) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Bytes that can be received from the socket now, those in holes not counted.
///
/// # Errors
/// As [`seek_recv`].
pub fn readable(socket: impl AsFd) -> io::Result<usize> {
    readable_bytes(socket.as_fd().as_raw_fd()).map_err(io::Error::from_raw_os_error)
}

/// Whether the kernel peeks into the stream of such a socket as this at an offset (`SO_PEEK_OFF`), so that a search
/// copies nothing of what it passes over. Two bytes must have come or be on their way.
///
/// # Errors
/// As `recv`.
pub fn peeks_at_offsets(socket: impl AsFd) -> io::Result<bool> {
    let fd = socket.as_fd().as_raw_fd();
    let peek_from = |offset: c_int| sys::raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &offset);
    let mut both = [0; 2];
    recv(&socket, &mut both, Flags::PEEK | Flags::WAIT_ALL)?;
    let mut second = [0; 1];
    let got = peek_from(1).map(|()| recv(&socket, &mut second, Flags::PEEK));
    let back = peek_from(-1);
    match (got, back) {
        (Ok(got), Ok(())) => Ok(got? == 1 && both.ends_with(&second)),
        _ => Ok(false),
    }
}

type SeekRecv = unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, c_int, size_t) -> ssize_t;
type Readable = unsafe extern "C-unwind" fn(c_int) -> ssize_t;
type IsStream = unsafe extern "C-unwind" fn(c_int) -> bool;

/// A function of the preload library.
struct Preloaded {
    name: &'static CStr,
    known: AtomicPtr<c_void>,
}

/// Stands for one that is not there.
static NOTHING: u8 = 0;

impl Preloaded {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            known: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Null where the preload library is not loaded.
    fn find(&self) -> *mut c_void {
        let nothing = core::ptr::from_ref(&NOTHING).cast_mut().cast::<c_void>();
        let mut known = self.known.load(Acquire);
        if known.is_null() {
            // SAFETY: a valid C string.
            known = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.name.as_ptr()) };
            if known.is_null() {
                known = nothing;
            }
            self.known.store(known, Release);
        }
        if known == nothing { core::ptr::null_mut() } else { known }
    }
}

static SEEK_RECV: Preloaded = Preloaded::new(c"viaduct_preload_seek_recv");
static READABLE: Preloaded = Preloaded::new(c"viaduct_preload_readable");
static IS_STREAM: Preloaded = Preloaded::new(c"viaduct_preload_is_stream");

/// When the program or this library is loaded: to look up what is not known asks for memory, which a handler must not,
/// and for locks, which whoever loads a library holds.
extern "C" fn loaded() {
    for function in [&SEEK_RECV, &READABLE, &IS_STREAM] {
        function.find();
    }
    sys::find_clock();
    if SEEK_RECV.find().is_null() {
        plain::loaded();
    }
    // That some are not there is nothing that whoever has opened this library should find.
    // SAFETY: what it returns is not used.
    unsafe { libc::dlerror() };
}

#[used]
// SAFETY: what the loader calls at that place are functions of this type.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = loaded;

/// # Safety
/// `len` bytes at `at` must be writable.
pub(crate) unsafe fn receive(fd: c_int, at: *mut u8, len: usize, flags: c_int, offset: usize) -> Result<usize, c_int> {
    let there = SEEK_RECV.find();
    if there.is_null() {
        let parts = [iovec {
            iov_base: at.cast(),
            iov_len: len,
        }];
        // SAFETY: the caller's buffer.
        return plain::seek_receive(fd, unsafe { Vector::new(&parts) }, flags, offset);
    }
    // SAFETY: the preload library's function of this name has this type.
    let there = unsafe { core::mem::transmute::<*mut c_void, SeekRecv>(there) };
    // SAFETY: the caller's buffer.
    usize::try_from(unsafe { there(fd, at.cast(), len, flags, offset) }).map_err(|_| sys::errno())
}

pub(crate) fn readable_bytes(fd: c_int) -> Result<usize, c_int> {
    let there = READABLE.find();
    if there.is_null() {
        return plain::readable(fd);
    }
    // SAFETY: the preload library's function of this name has this type.
    let there = unsafe { core::mem::transmute::<*mut c_void, Readable>(there) };
    // SAFETY: it takes any number.
    usize::try_from(unsafe { there(fd) }).map_err(|_| sys::errno())
}

/// Whether the preload library knows the descriptor to be of a stream.
pub(crate) fn is_known_stream(socket: impl AsFd) -> bool {
    let there = IS_STREAM.find();
    if there.is_null() {
        return false;
    }
    // SAFETY: the preload library's function of this name has this type.
    let there = unsafe { core::mem::transmute::<*mut c_void, IsStream>(there) };
    // SAFETY: it takes any number.
    unsafe { there(socket.as_fd().as_raw_fd()) }
}
