//! What unwinds the stack, where a thread is cancelled amidst a call or C++ throws through one. It is found then:
//! linked with, every program would load its library, which those written in C do without, at a quarter of what ours
//! costs to load.

use crate::scopes;
use core::arch::{global_asm, naked_asm};
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

/// Defines the functions of these names, for this library alone. Each leads to the real one, which must find the stack
/// and the registers as its caller has them.
macro_rules! functions {
    ($($index:literal $name:literal;)*) => {
        const NAMES: &[&CStr] = &[$(
            match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            }
        ),*];
        static FUNCTION: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

        $(
            global_asm!(
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!(".type ", $name, ", @function"),
                concat!($name, ":"),
                "mov rax, [rip + {functions} + 8 * {index}]",
                "test rax, rax",
                "jz 2f",
                "jmp rax",
                "2: mov eax, {index}",
                "jmp {find_and_go_on}",
                concat!(".size ", $name, ", . - ", $name),
                functions = sym FUNCTION,
                index = const $index,
                find_and_go_on = sym find_and_go_on,
            );
        )*
    };
}

functions! {
    0 "_Unwind_Backtrace";
    1 "_Unwind_GetDataRelBase";
    2 "_Unwind_GetIP";
    3 "_Unwind_GetIPInfo";
    4 "_Unwind_GetLanguageSpecificData";
    5 "_Unwind_GetRegionStart";
    6 "_Unwind_GetTextRelBase";
    7 "_Unwind_RaiseException";
    8 "_Unwind_Resume";
    9 "_Unwind_SetGR";
    10 "_Unwind_SetIP";
}

/// Goes on with the function whose number is in `eax`, as if it had been called. None has more than four arguments.
#[unsafe(naked)]
unsafe extern "C" fn find_and_go_on() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "sub rsp, 8",
        "mov edi, eax",
        "call {find}",
        "add rsp, 8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        find = sym find,
    )
}

extern "C" fn find(number: usize) -> *mut c_void {
    find_in(library(), number)
}

fn library() -> Option<NonNull<c_void>> {
    scopes::open_for_us(c"libgcc_s.so.1")
}

fn find_in(library: Option<NonNull<c_void>>, number: usize) -> *mut c_void {
    let function = library.map_or(core::ptr::null_mut(), |library| {
        // SAFETY: a library that is open, and a C string.
        unsafe { libc::dlsym(library.as_ptr(), NAMES[number].as_ptr()) }
    });
    if function.is_null() {
        // As the C library does that cannot unwind.
        // SAFETY: no arguments.
        unsafe { libc::abort() };
    }
    FUNCTION[number].store(function, Relaxed);
    function
}

/// A thread is about to be cancelled, or ends itself: finds them now, as the C library does, with the first. It could
/// wait for ever for the dynamic linker amidst its end, where another is about to unload a library and waits for it.
pub(crate) fn prepare() {
    // Once: a later caller may be waited for by whoever has the linker's lock.
    let found = |function: &AtomicPtr<c_void>| !function.load(Relaxed).is_null();
    if FUNCTION.iter().all(found) {
        return;
    }
    let library = library();
    if library.is_some() {
        for number in 0..NAMES.len() {
            find_in(library, number);
        }
    }
}
