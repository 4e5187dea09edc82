//! Direct search, for `libviaduct` to find: a program that runs under Viaduct has its connections here.

use crate::transfer::one;
use core::ffi::{c_int, c_void};
use libc::{size_t, ssize_t};
use viaduct_socket::{Vector, options, real, search, sys};

/// `viaduct_seek_recv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn viaduct_preload_seek_recv(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    offset: size_t,
) -> ssize_t {
    if buffer.is_null() && len > 0 {
        return sys::fail(libc::EFAULT);
    }
    let conn = match search::connection(fd) {
        Ok(conn) => conn,
        Err(errno) => return sys::fail(errno),
    };
    let parts = one(buffer.cast_const(), len);
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::recv(fd, buffer, len, flags) };
    // SAFETY: the program's buffer.
    search::seek_receive(conn, unsafe { Vector::new(&parts) }, flags, offset, direct)
}

/// `viaduct_readable(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn viaduct_preload_readable(fd: c_int) -> ssize_t {
    let conn = match search::connection(fd) {
        Ok(conn) => conn,
        Err(errno) => return sys::fail(errno),
    };
    match options::readable_bytes(conn) {
        Some(bytes) => bytes as ssize_t,
        None => options::queued_bytes(conn),
    }
}
