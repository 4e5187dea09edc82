//! The C face, as `include/viaduct.h` declares it. Calls that may wait can be unwound through by a cancelled thread;
//! the others are no points of cancellation.

use crate::call;
use crate::cancel::keep;
use crate::message::{self, Envelope, Error, Inbox, Limits, Match};
use core::ffi::{c_int, c_void};
use core::time::Duration;
use libc::{size_t, ssize_t};
use std::os::fd::{AsRawFd, BorrowedFd};
use viaduct_socket::sys;

fn answer(result: Result<usize, c_int>) -> ssize_t {
    match result {
        Ok(bytes) => bytes.cast_signed(),
        Err(errno) => sys::fail(errno),
    }
}

/// `viaduct_seek_recv(3)`.
///
/// # Safety
/// `len` bytes at `buffer` must be writable, unless the flags say that nothing is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn viaduct_seek_recv(
    s: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    offset: size_t,
) -> ssize_t {
    if buffer.is_null() && len > 0 && flags & libc::MSG_TRUNC == 0 {
        return sys::fail(libc::EFAULT);
    }
    // SAFETY: passed on to the caller.
    answer(unsafe { call::receive(s, buffer.cast(), len, flags, offset) })
}

/// `viaduct_readable(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn viaduct_readable(s: c_int) -> ssize_t {
    answer(call::readable_bytes(s))
}

/// `struct viaduct_msg`.
#[derive(Debug)]
#[repr(C)]
pub struct Message {
    /// Its tag.
    pub tag: u32,
    /// Number of the socket it came from.
    pub source: c_int,
    /// Bytes of its payload.
    pub len: size_t,
}

impl From<Envelope> for Message {
    fn from(envelope: Envelope) -> Self {
        Self {
            tag: envelope.tag,
            source: c_int::try_from(envelope.source).unwrap_or(c_int::MAX),
            len: envelope.len,
        }
    }
}

/// A socket by its number; `None` for numbers that are none.
fn borrow<'a>(s: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: the program vouches that it stays open for the call; any other number is refused by the kernel.
    (s >= 0).then(|| unsafe { BorrowedFd::borrow_raw(s) })
}

fn refuse(errno: c_int) -> c_int {
    sys::set_errno(errno);
    -1
}

/// Whether memory can have so many bytes: no slice may be longer, and no call could answer with it.
fn can_be_slice(len: size_t) -> bool {
    isize::try_from(len).is_ok()
}

/// What is wanted; -1 is any. `None` for numbers that are neither.
fn wanted(tag: i64, source: c_int) -> Option<Match> {
    let tag = if tag == -1 {
        None
    } else {
        Some(u32::try_from(tag).ok()?)
    };
    let source = if source == -1 {
        None
    } else {
        Some(usize::try_from(source).ok()?)
    };
    Some(Match { tag, source })
}

/// A time in milliseconds; below 0 for ever.
fn limit(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// `viaduct_msg_send(3)`.
///
/// # Safety
/// `len` bytes at `payload` must be readable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn viaduct_msg_send(s: c_int, tag: u32, payload: *const c_void, len: size_t) -> c_int {
    let Some(socket) = borrow(s) else {
        return refuse(libc::EBADF);
    };
    if payload.is_null() && len > 0 {
        return refuse(libc::EFAULT);
    }
    if !can_be_slice(len) {
        return refuse(libc::EMSGSIZE);
    }
    let bytes = if len == 0 {
        &[]
    } else {
        // SAFETY: the program's bytes, which it leaves alone meanwhile.
        unsafe { core::slice::from_raw_parts(payload.cast::<u8>(), len) }
    };
    match message::send(socket, tag, bytes) {
        Ok(()) => 0,
        Err(error) => refuse(error.errno()),
    }
}

/// `viaduct_inbox_open(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn viaduct_inbox_open(longest: size_t, store: size_t) -> *mut Inbox {
    let usual = Limits::default();
    let limits = Limits {
        longest: if longest == 0 { usual.longest } else { longest },
        store: if store == 0 { usual.store } else { store },
    };
    match keep(|| Inbox::with_limits(limits)) {
        Ok(inbox) => Box::into_raw(Box::new(inbox)),
        Err(error) => {
            sys::set_errno(error.raw_os_error().unwrap_or(libc::EIO));
            core::ptr::null_mut()
        }
    }
}

/// `viaduct_inbox_close(3)`.
///
/// # Safety
/// `inbox` is null or from `viaduct_inbox_open`, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_inbox_close(inbox: *mut Inbox) {
    if !inbox.is_null() {
        // SAFETY: made by `Box::into_raw`.
        let inbox = unsafe { Box::from_raw(inbox) };
        keep(|| drop(inbox));
    }
}

/// `viaduct_inbox_add(3)`.
///
/// # Safety
/// `inbox` is null or from `viaduct_inbox_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_inbox_add(inbox: *const Inbox, s: c_int) -> c_int {
    // SAFETY: as above.
    let (Some(inbox), Some(socket)) = (unsafe { inbox.as_ref() }, borrow(s)) else {
        return refuse(if inbox.is_null() { libc::EINVAL } else { libc::EBADF });
    };
    match keep(|| inbox.add(socket)) {
        Ok(source) => c_int::try_from(source).unwrap_or(c_int::MAX),
        Err(error) => refuse(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// `viaduct_inbox_remove(3)`.
///
/// # Safety
/// `inbox` is null or from `viaduct_inbox_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_inbox_remove(inbox: *const Inbox, source: c_int) -> c_int {
    // SAFETY: as above.
    match (unsafe { inbox.as_ref() }, usize::try_from(source)) {
        (Some(inbox), Ok(source)) => keep(|| inbox.remove(source)).map_or_else(|error| refuse(error.errno()), |()| 0),
        _ => refuse(libc::EINVAL),
    }
}

/// `viaduct_inbox_fd(3)`.
///
/// # Safety
/// `inbox` is null or from `viaduct_inbox_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_inbox_fd(inbox: *const Inbox) -> c_int {
    // SAFETY: as above.
    match unsafe { inbox.as_ref() } {
        Some(inbox) => inbox.as_waitable().as_raw_fd(),
        None => refuse(libc::EINVAL),
    }
}

/// `viaduct_msg_cancel(3)`.
///
/// # Safety
/// `inbox` is null or from `viaduct_inbox_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_msg_cancel(inbox: *const Inbox) -> c_int {
    // SAFETY: as above.
    match unsafe { inbox.as_ref() } {
        Some(inbox) => {
            keep(|| inbox.cancel());
            0
        }
        None => refuse(libc::EINVAL),
    }
}

/// Hands an answer over.
///
/// # Safety
/// `info` is null or writable.
unsafe fn hand_over(found: Result<Envelope, Error>, info: *mut Message) -> ssize_t {
    match found {
        Ok(envelope) => {
            if !info.is_null() {
                // SAFETY: the program's own.
                unsafe { info.write(envelope.into()) };
            }
            envelope.len.cast_signed()
        }
        Err(error) => {
            if !info.is_null() {
                let about = Message {
                    tag: 0,
                    source: error
                        .source()
                        .map_or(-1, |source| c_int::try_from(source).unwrap_or(c_int::MAX)),
                    len: match error {
                        Error::NoRoom { len } | Error::TooLong { len, .. } => len,
                        _ => 0,
                    },
                };
                // SAFETY: the program's own.
                unsafe { info.write(about) };
            }
            sys::fail(error.errno())
        }
    }
}

/// `viaduct_msg_recv(3)`.
///
/// # Safety
/// `inbox` is null or from `viaduct_inbox_open`; `len` bytes at `buffer` are writable; `info` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn viaduct_msg_recv(
    inbox: *const Inbox,
    tag: i64,
    source: c_int,
    buffer: *mut c_void,
    len: size_t,
    timeout_ms: c_int,
    info: *mut Message,
) -> ssize_t {
    // SAFETY: as above.
    let (Some(inbox), Some(wanted)) = (unsafe { inbox.as_ref() }, wanted(tag, source)) else {
        return sys::fail(libc::EINVAL);
    };
    if buffer.is_null() && len > 0 {
        return sys::fail(libc::EFAULT);
    }
    if !can_be_slice(len) {
        return sys::fail(libc::EINVAL);
    }
    let place = if len == 0 {
        &mut []
    } else {
        // SAFETY: the program's room.
        unsafe { core::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) }
    };
    let found = inbox.receive(wanted, place, limit(timeout_ms));
    // SAFETY: passed on to the caller.
    unsafe { hand_over(found, info) }
}

/// `viaduct_msg_probe(3)`.
///
/// # Safety
/// `inbox` is null or from `viaduct_inbox_open`; `info` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn viaduct_msg_probe(
    inbox: *const Inbox,
    tag: i64,
    source: c_int,
    timeout_ms: c_int,
    info: *mut Message,
) -> ssize_t {
    // SAFETY: as above.
    let (Some(inbox), Some(wanted)) = (unsafe { inbox.as_ref() }, wanted(tag, source)) else {
        return sys::fail(libc::EINVAL);
    };
    let found = inbox.probe(wanted, limit(timeout_ms));
    // SAFETY: passed on to the caller.
    unsafe { hand_over(found, info) }
}
