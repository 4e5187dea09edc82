//! `dprintf` and its kin: the C library writes to the descriptor by itself, unseen, so on a connection the text is made
//! first and written after.

use crate::transfer::write;
use core::ffi::{c_char, c_int, c_void};
use viaduct_socket::descriptors::table;
use viaduct_socket::{real, sys};

/// A list of variable arguments as the x86-64 calling convention lays it out.
#[repr(C)]
pub struct List {
    integers_at: u32,
    floats_at: u32,
    stacked: *const c_void,
    saved: *const Registers,
}

/// Where a function with variable arguments saves the registers they may be in.
#[repr(C, align(16))]
struct Registers {
    integers: [u64; 6],
    floats: [[f64; 2]; 8],
}

/// Arguments on the stack, of which as many are there as the caller has passed.
#[repr(C, align(8))]
pub struct Stacked {
    words: [u64; 64],
}

unsafe extern "C" {
    fn __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, list: *mut List) -> c_int;
}

/// Writes the formatted text to `fd`. What is printed with `%n` and the like is checked if `flag` is above 0.
unsafe fn print(fd: c_int, flag: c_int, format: *const c_char, list: *mut List) -> c_int {
    if table::connection(fd).is_none() {
        // SAFETY: the program's own call.
        return unsafe { real::__vdprintf_chk(fd, flag, format, list.cast()) };
    }
    let mut text = core::ptr::null_mut();
    // SAFETY: the program's format and arguments.
    let len = unsafe { __vasprintf_chk(&raw mut text, flag, format, list) };
    let Ok(count) = usize::try_from(len) else { return -1 };
    let mut done = 0;
    while done < count {
        // SAFETY: within the text.
        let written = unsafe { write(fd, text.add(done).cast(), count - done) };
        match usize::try_from(written) {
            Ok(written) => done += written,
            Err(_) => break,
        }
    }
    let errno = sys::errno();
    // SAFETY: made by the C library for the caller to free.
    unsafe { libc::free(text.cast()) };
    sys::set_errno(errno);
    if done < count { -1 } else { len }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, list: *mut List) -> c_int {
    // SAFETY: the program's own call.
    unsafe { print(fd, 0, format, list) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: *mut List,
) -> c_int {
    // SAFETY: the program's own call.
    unsafe { print(fd, flag, format, list) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dprintf(
    fd: c_int,
    format: *const c_char,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
    f0: f64,
    f1: f64,
    f2: f64,
    f3: f64,
    f4: f64,
    f5: f64,
    f6: f64,
    f7: f64,
    stacked: Stacked,
) -> c_int {
    let saved = Registers {
        integers: [0, 0, c, d, e, f],
        floats: [f0, f1, f2, f3, f4, f5, f6, f7].map(|value| [value, 0.0]),
    };
    let mut list = List {
        integers_at: 2 * 8,
        floats_at: 6 * 8,
        stacked: (&raw const stacked).cast(),
        saved: &raw const saved,
    };
    // SAFETY: the program's own call.
    unsafe { print(fd, 0, format, &raw mut list) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __dprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    d: u64,
    e: u64,
    f: u64,
    f0: f64,
    f1: f64,
    f2: f64,
    f3: f64,
    f4: f64,
    f5: f64,
    f6: f64,
    f7: f64,
    stacked: Stacked,
) -> c_int {
    let saved = Registers {
        integers: [0, 0, 0, d, e, f],
        floats: [f0, f1, f2, f3, f4, f5, f6, f7].map(|value| [value, 0.0]),
    };
    let mut list = List {
        integers_at: 3 * 8,
        floats_at: 6 * 8,
        stacked: (&raw const stacked).cast(),
        saved: &raw const saved,
    };
    // SAFETY: the program's own call.
    unsafe { print(fd, flag, format, &raw mut list) }
}
