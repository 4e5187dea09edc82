//! Code that is loaded into a scope of symbols of its own, and whose calls would go past ours.

use crate::imports::{Loaded, each_object};
use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ops::ControlFlow::{Break, Continue};
use core::ptr::NonNull;
use core::sync::atomic::AtomicPtr;
use viaduct_socket::descriptors::successors;
use viaduct_socket::sys;

/// Goes on with the C library's function that `{ready}` answers, as if the program had called it: it looks for
/// libraries where its caller's say.
macro_rules! jump_behind {
    ($ready:path) => {
        naked_asm!(
            "push rdi",
            "push rsi",
            "push rdx",
            "call {ready}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp rax",
            ready = sym $ready,
        )
    };
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn dlopen(path: *const c_char, mode: c_int) -> *mut c_void {
    jump_behind!(ready_to_open)
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn dlmopen(space: c_long, path: *const c_char, mode: c_int) -> *mut c_void {
    jump_behind!(ready_to_open_in)
}

extern "C" fn ready_to_open(path: *const c_char, mode: c_int) -> *mut c_void {
    let loads_deep = mode & libc::RTLD_DEEPBIND != 0 && mode & libc::RTLD_NOLOAD == 0 && !path.is_null();
    // SAFETY: the program's name of a library.
    if loads_deep && sys::single_threaded() && is_place(unsafe { CStr::from_ptr(path) }) {
        return open_deep as *mut c_void;
    }
    if loads_deep {
        successors::loading_unseen();
    }
    found(next_dlopen())
}

fn next_dlopen() -> *mut c_void {
    static SLOT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    sys::next_symbol(&SLOT, c"dlopen")
}

type Open = unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void;

/// The C library's `dlopen`, as if this library called it.
fn real_dlopen() -> Open {
    // SAFETY: a function of this type, whichever it is.
    unsafe { core::mem::transmute::<*mut c_void, Open>(found(next_dlopen())) }
}

/// Opens a library for good, wherever this one would find it.
pub(crate) fn open_for_us(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: a C string.
    NonNull::new(unsafe { real_dlopen()(name.as_ptr(), libc::RTLD_NOW) })
}

/// Whether a library's name means the same whoever opens it.
fn is_place(path: &CStr) -> bool {
    path.to_bytes().contains(&b'/') && !path.to_bytes().contains(&b'$')
}

/// Opens a library by its place in a scope of its own. No other thread may be there: it could call what has been opened
/// before that is led here, or open and close libraries at the same places meanwhile.
unsafe extern "C-unwind" fn open_deep(path: *const c_char, mode: c_int) -> *mut c_void {
    let before = Loaded::now();
    // SAFETY: as the program has called it.
    let handle = unsafe { real_dlopen()(path, mode) };
    // Its constructors may have made threads.
    let is_led = || sys::single_threaded() && before.lead_others_here(handle);
    if !handle.is_null() && !is_led() {
        successors::loading_unseen();
    }
    handle
}

extern "C" fn ready_to_open_in(space: c_long, _path: *const c_char, mode: c_int) -> *mut c_void {
    static SLOT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    // In another space than the first there is a C library of its own, and nothing of ours.
    if space != libc::LM_ID_BASE || mode & libc::RTLD_DEEPBIND != 0 {
        successors::loading_unseen();
    }
    found(sys::next_symbol(&SLOT, c"dlmopen"))
}

/// How many libraries have been closed for good so far.
pub(crate) fn libraries_gone() -> u64 {
    let mut gone = 0;
    // Each object tells so of all.
    each_object(&mut |info| {
        gone = info.dlpi_subs;
        Break(())
    });
    gone
}

/// Room for the paths of all libraries of most programs, in bytes.
const PATHS: usize = 64 << 10;

/// A function that any library has, in whatever scope it was opened, and that is not `ours`; null if none has.
pub(crate) fn find_anywhere(name: &CStr, ours: *const c_void) -> *mut c_void {
    // Made before the loader's lock is held: see `imports`.
    let mut paths = Vec::with_capacity(PATHS);
    each_object(&mut |info| {
        // SAFETY: the loader's name of a library, valid during the call. The program's own is empty.
        let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes_with_nul();
        if path.len() > 1 && path.len() <= paths.capacity() - paths.len() {
            paths.extend_from_slice(path);
        }
        Continue(())
    });
    let found = paths.split_inclusive(|byte| *byte == 0).find_map(|path| {
        let path = CStr::from_bytes_with_nul(path).ok()?;
        // SAFETY: a C string; nothing is loaded by it.
        let handle = unsafe { real_dlopen()(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        let handle = NonNull::new(handle)?;
        // SAFETY: a handle, and a C string. Whoever calls the function keeps its library meanwhile.
        let function = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
        // SAFETY: it was opened here.
        unsafe { libc::dlclose(handle.as_ptr()) };
        (!function.is_null() && function.cast_const() != ours).then_some(function)
    });
    // What was not found is no error of the program's.
    // SAFETY: no arguments.
    unsafe { libc::dlerror() };
    found.unwrap_or(core::ptr::null_mut())
}

extern "C" fn missing() -> *mut c_void {
    core::ptr::null_mut()
}

/// An old C library has these functions in another library, which a program that calls them has loaded.
fn found(function: *mut c_void) -> *mut c_void {
    if function.is_null() {
        missing as *mut c_void
    } else {
        function
    }
}
