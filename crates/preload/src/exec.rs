//! The process becomes another program.

use core::ffi::{c_char, c_int};
use viaduct_socket::descriptors::successors;
use viaduct_socket::{real, sys};

type Words = *const *const c_char;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execve(path: *const c_char, arguments: Words, environment: Words) -> c_int {
    successors::executing();
    // SAFETY: the program's own call.
    let result = unsafe { real::execve(path, arguments, environment) };
    successors::executing_failed();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: Words) -> c_int {
    successors::executing();
    // SAFETY: the program's own call.
    let result = unsafe { real::execv(path, arguments) };
    successors::executing_failed();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvp(file: *const c_char, arguments: Words) -> c_int {
    successors::executing();
    // SAFETY: the program's own call.
    let result = unsafe { real::execvp(file, arguments) };
    successors::executing_failed();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvpe(file: *const c_char, arguments: Words, environment: Words) -> c_int {
    successors::executing();
    // SAFETY: the program's own call.
    let result = unsafe { real::execvpe(file, arguments, environment) };
    successors::executing_failed();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fexecve(fd: c_int, arguments: Words, environment: Words) -> c_int {
    successors::executing();
    // SAFETY: the program's own call.
    let result = unsafe { real::fexecve(fd, arguments, environment) };
    successors::executing_failed();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execveat(
    dir: c_int,
    path: *const c_char,
    arguments: Words,
    environment: Words,
    flags: c_int,
) -> c_int {
    successors::executing();
    // SAFETY: the program's own call.
    let result = unsafe { real::execveat(dir, path, arguments, environment, flags) };
    successors::executing_failed();
    result
}

/// Arguments of a call with a list in place of an array. More are refused; nobody writes as many out.
const MOST: usize = 1024;

/// What the x86-64 calling convention passes on the stack, of which as much is there as the caller has passed: it is
/// read no further than the list goes.
#[repr(C)]
pub struct Stacked {
    words: [*const c_char; MOST],
}

/// The list as an array, and the word behind its end.
struct Listed {
    arguments: [*const c_char; MOST],
    behind: *const c_char,
}

/// Gathers a list that begins with `first` in registers and goes on at `rest`. `None`: it is too long.
///
/// # Safety
/// The list ends with a null pointer, and where `with_more` is set a word follows.
unsafe fn gather(first: [*const c_char; 5], rest: *const Stacked, with_more: bool) -> Option<Listed> {
    let rest = rest.cast::<*const c_char>();
    let word = |index: usize| match first.get(index) {
        Some(word) => *word,
        // SAFETY: the caller vouches for the words up to the end of the list and, if asked for, the one behind.
        None => unsafe { *rest.add(index - first.len()) },
    };
    let mut listed = Listed {
        arguments: [core::ptr::null(); MOST],
        behind: core::ptr::null(),
    };
    for (index, place) in listed.arguments.iter_mut().enumerate() {
        *place = word(index);
        if place.is_null() {
            if with_more {
                listed.behind = word(index + 1);
            }
            return Some(listed);
        }
    }
    None
}

fn too_many() -> c_int {
    sys::set_errno(libc::E2BIG);
    -1
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execl(
    path: *const c_char,
    a: *const c_char,
    b: *const c_char,
    c: *const c_char,
    d: *const c_char,
    e: *const c_char,
    rest: Stacked,
) -> c_int {
    // SAFETY: the program's list.
    match unsafe { gather([a, b, c, d, e], &raw const rest, false) } {
        // SAFETY: the program's own call.
        Some(listed) => unsafe { execv(path, listed.arguments.as_ptr()) },
        None => too_many(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execlp(
    file: *const c_char,
    a: *const c_char,
    b: *const c_char,
    c: *const c_char,
    d: *const c_char,
    e: *const c_char,
    rest: Stacked,
) -> c_int {
    // SAFETY: the program's list.
    match unsafe { gather([a, b, c, d, e], &raw const rest, false) } {
        // SAFETY: the program's own call.
        Some(listed) => unsafe { execvp(file, listed.arguments.as_ptr()) },
        None => too_many(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execle(
    path: *const c_char,
    a: *const c_char,
    b: *const c_char,
    c: *const c_char,
    d: *const c_char,
    e: *const c_char,
    rest: Stacked,
) -> c_int {
    // SAFETY: the program's list, behind which stands its environment.
    match unsafe { gather([a, b, c, d, e], &raw const rest, true) } {
        // SAFETY: the program's own call.
        Some(listed) => unsafe { execve(path, listed.arguments.as_ptr(), listed.behind.cast()) },
        None => too_many(),
    }
}
