//! Calls that move bytes between files, pipes and sockets inside the kernel.

use core::ffi::{c_int, c_uint};
use libc::{off_t, size_t, ssize_t};
use viaduct_socket::descriptors::table;
use viaduct_socket::{file, is_nowhere, real};

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::sendfile(out, input, offset, count) };
    if let Some(conn) = table::connection(input)
        && table::connection(out).is_none()
        && offset.is_null()
    {
        // Into a pipe, the only thing that takes them, as by `splice`.
        return file::splice(conn, out, count, 0, direct);
    }
    match table::connection(out) {
        Some(conn) if offset.is_null() || !is_nowhere(offset) => {
            // SAFETY: the program's offset, or null.
            file::send(conn, input, unsafe { offset.as_mut() }, count, direct)
        }
        // An offset that is nowhere the kernel refuses before it sends anything.
        _ => direct(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: as for `sendfile`.
    unsafe { sendfile(out, input, offset, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    input: c_int,
    input_offset: *mut off_t,
    output: c_int,
    output_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the program's own call.
    let direct = move || unsafe { real::splice(input, input_offset, output, output_offset, len, flags) };
    if let Some(conn) = table::connection(input)
        && input_offset.is_null()
    {
        return file::splice(conn, output, len, flags, direct);
    }
    match table::connection(output) {
        Some(conn) => file::splice_out(conn, input, direct),
        None => direct(),
    }
}
