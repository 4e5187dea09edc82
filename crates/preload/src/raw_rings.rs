//! `io_uring` by `syscall`: nothing is seen of what such a ring is asked to do, so all connections of a program that
//! has one stay on TCP, but for the rings of liburing. Who has another way to its sockets, which is seen, is told that
//! the kernel has no rings, and takes that.

use crate::imports::{Object, object_with, read_own};
use crate::scopes;
use core::ffi::{CStr, c_int, c_long, c_uint};
use core::ops::Range;
use core::ptr::with_exposed_provenance;
use std::sync::Mutex;
use viaduct_socket::descriptors::{lifecycle, successors};
use viaduct_socket::real;
use viaduct_socket::sys::{self, raw};

/// How code is answered that asks for a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// There are none.
    NoRings,
    /// Here it is; what it is asked to do is seen.
    Seen,
}

/// Code that is known when it asks for a ring.
struct Known {
    is: fn(&Object<'_>) -> bool,
    /// For so many entries; `None`: for any number.
    asks: Option<c_long>,
    answer: Answer,
}

/// libuv, which has rings for files and for what is registered in its epoll set; monoio's `FusionDriver`, which tries a
/// small one, as its `IoUringDriver`, which has no other way, does not; and liburing up to 2.1, of which `rings` sees
/// what it hands over.
const KNOWN: [Known; 3] = [
    Known {
        is: |code| exports(code, c"uv_loop_init") || contains(code, b"UV_USE_IO_URING"),
        asks: None,
        answer: Answer::NoRings,
    },
    Known {
        is: |code| contains(code, b"MONOIO_FORCE_LEGACY_DRIVER"),
        asks: Some(2),
        answer: Answer::NoRings,
    },
    Known {
        is: |code| contains(code, b"LIBURING_2.0") && code.defines(c"io_uring_queue_init"),
        asks: None,
        answer: Answer::Seen,
    },
];

/// Memory that is looked through at a time, and how far the next part reaches into it, in machine words: whatever is
/// looked for is whole in one of them.
const WORDS: usize = 8192;
const LAP: usize = 4;

/// What `caller` asks for by `syscall` with the number of `io_uring_setup`.
///
/// # Safety
/// The program's own call.
pub(crate) unsafe extern "C-unwind" fn make(caller: usize, entries: c_long, parameters: c_long) -> c_long {
    let ask = |entries, parameters| {
        // SAFETY: the program's own call, or one for nothing.
        unsafe { real::syscall(libc::SYS_io_uring_setup, entries, parameters, 0, 0, 0, 0) }
    };
    let before = sys::errno();
    // Where the kernel has none to give nothing has to be found out: it looks at the parameters last.
    if ask(0, 0) < 0 && sys::errno() != libc::EFAULT {
        return ask(entries, parameters);
    }
    let answer = answer(caller, entries);
    if answer == Some(Answer::NoRings) {
        sys::set_errno(libc::ENOSYS);
        return -1;
    }
    let ring = ask(entries, parameters);
    if ring < 0 {
        return ring;
    }
    // SAFETY: the kernel has just filled it in.
    let has_descriptor = unsafe { has_descriptor(with_exposed_provenance(parameters as usize)) };
    if has_descriptor {
        lifecycle::fresh(ring as c_int);
    }
    // Only now: what the kernel refuses costs no lanes. Nobody else knows the ring yet.
    if answer.is_none() && !successors::making_ring() {
        give_up(ring, has_descriptor);
        sys::set_errno(libc::EAGAIN);
        return -1;
    }
    sys::set_errno(before);
    ring
}

/// Closes a ring that has just been made.
fn give_up(ring: c_long, has_descriptor: bool) {
    /// `IORING_UNREGISTER_RING_FDS`, by a registered number (`IORING_REGISTER_USE_REGISTERED_RING`).
    const UNREGISTER: c_long = 21 | 1 << 31;
    if has_descriptor {
        return raw::close(ring as c_int);
    }
    // `struct io_uring_rsrc_update`, whose first half is the number.
    let which = [ring as u64, 0];
    // SAFETY: one such structure.
    unsafe {
        real::syscall(
            libc::SYS_io_uring_register,
            ring,
            UNREGISTER,
            which.as_ptr().addr() as c_long,
            1,
            0,
            0,
        )
    };
}

/// Whether a ring that was made with these parameters (`struct io_uring_params`) is known by a descriptor.
///
/// # Safety
/// They are there.
unsafe fn has_descriptor(parameters: *const c_uint) -> bool {
    const FLAGS: usize = 2;
    const REGISTERED_FD_ONLY: c_uint = 1 << 15;
    // SAFETY: the caller's.
    unsafe { parameters.add(FLAGS).read_unaligned() & REGISTERED_FD_ONLY == 0 }
}

/// How code that is known is answered.
fn answer(caller: usize, entries: c_long) -> Option<Answer> {
    // SAFETY: it stays loaded until the call is over.
    let code = unsafe { object_with(caller) }?;
    let known = KNOWN.get(number_of(&code))?;
    known.asks.is_none_or(|asked| asked == entries).then_some(known.answer)
}

/// The number of this code among those that are known; as many as there are: none of them.
fn number_of(code: &Object<'_>) -> usize {
    /// Where the code lies that asked last, how many libraries had gone by then, and its number: programs ask for a
    /// ring a thread. Whoever cannot have it at once, as in a signal handler, does without.
    static LAST: Mutex<Option<((usize, u64), usize)>> = Mutex::new(None);
    let place = code.loads().map(|(text, _)| text.start).min().unwrap_or(0);
    // The code that asks stays meanwhile; once any has gone, other code may lie there.
    let asks = (place, scopes::libraries_gone());
    let last = LAST.try_lock().ok().and_then(|last| *last);
    if let Some((_, number)) = last.filter(|(asked, _)| *asked == asks) {
        return number;
    }
    let number = KNOWN.iter().position(|known| (known.is)(code)).unwrap_or(KNOWN.len());
    if let Ok(mut last) = LAST.try_lock() {
        *last = Some((asks, number));
    }
    number
}

/// Whether the first function of this name is the object's.
fn exports(object: &Object<'_>, name: &CStr) -> bool {
    // SAFETY: a C string.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
    // What was not found is no error of the program's.
    // SAFETY: no arguments.
    unsafe { libc::dlerror() };
    object.loads().any(|(text, _)| text.contains(&function))
}

/// Whether the object's code and constants hold this word.
fn contains(object: &Object<'_>, word: &[u8]) -> bool {
    let mut constant = object.loads().filter(|(_, is_writable)| !is_writable);
    constant.any(|(text, _)| holds(&text, word))
}

/// Whether this part of memory holds these bytes, as far as it can be read.
fn holds(text: &Range<usize>, bytes: &[u8]) -> bool {
    let mut words = vec![0_usize; WORDS + LAP];
    let first = text.start & !(size_of::<usize>() - 1);
    (first..text.end).step_by(WORDS * size_of::<usize>()).any(|place| {
        let left = (text.end - place).div_ceil(size_of::<usize>());
        let part = words.get_mut(..left.min(WORDS + LAP)).unwrap_or_default();
        read_own(place, part).is_ok() && {
            let (all, len) = (part.as_ptr().cast(), size_of_val(part));
            // SAFETY: bytes of both, as many as are said.
            !unsafe { libc::memmem(all, len, bytes.as_ptr().cast(), bytes.len()) }.is_null()
        }
    })
}
