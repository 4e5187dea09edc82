//! `io_uring` by liburing: the kernel moves the bytes, unseen, so a connection that a program is about to hand to it
//! goes back to TCP first.
//!
//! liburing enters the kernel by instructions of its own, but programs reach it through the few functions that are
//! here, each of which may hand over what has been queued. Layouts: `struct io_uring` of liburing.h, the same since 2.0
//! up to the fields that are read, and `struct io_uring_sqe` of linux/io_uring.h. What came before 2.0 has another
//! layout, and rings of which nothing is seen (`raw_rings`).

use crate::control::hand_over_passed;
use crate::scopes;
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::mem::{offset_of, transmute};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64};
use libc::msghdr;
use viaduct_socket::descriptors::{lifecycle, successors};
use viaduct_socket::{is_nowhere, sys};

/// The queue of what is to be handed over, and where the ring's flags are behind the other queue.
#[repr(C)]
pub struct Ring {
    kernel: [*const c_uint; 7],
    entries: *const Entry,
    head: c_uint,
    tail: c_uint,
    size: usize,
    memory: *const c_void,
    numbers: [c_uint; 4],
    completions: [u64; 11],
    flags: c_uint,
}

/// Which of the kernel's words is the mask of indices.
const MASK: usize = 2;
const _: () = assert!(offset_of!(Ring, flags) == 192);

/// What the kernel is asked for.
#[repr(C)]
struct Entry {
    code: u8,
    flags: u8,
    priority: u16,
    fd: c_int,
    offset: u64,
    address: u64,
    len: c_uint,
    code_flags: c_uint,
    user_data: u64,
    buffer: u16,
    personality: u16,
    other_fd: c_int,
    more: [u64; 2],
}

const _: () = assert!(size_of::<Entry>() == 64);

/// Entries are twice as long (`IORING_SETUP_SQE128`).
const LONG: c_uint = 1 << 10;
/// Some entries take two places (`IORING_SETUP_SQE_MIXED`).
const MIXED: c_uint = 1 << 19;
/// The descriptor is a number among those registered (`IOSQE_FIXED_FILE`).
const FIXED: u8 = 1;
/// The next one waits for this one, and may be cancelled with it (`IOSQE_IO_LINK`, `IOSQE_IO_HARDLINK`).
const LINKS: u8 = 1 << 2 | 1 << 3;
/// So is the other one (`SPLICE_F_FD_IN_FIXED`).
const OTHER_FIXED: c_uint = 1 << 31;

/// Codes of requests, as linux/io_uring.h has them (`IORING_OP_*`).
mod code {
    pub(super) const SENDMSG: u8 = 9;
    pub(super) const CLOSE: u8 = 19;
    pub(super) const REGISTER: u8 = 20;
    pub(super) const EPOLL: u8 = 29;
    pub(super) const SPLICE: u8 = 30;
    pub(super) const TEE: u8 = 33;
    pub(super) const SENDMSG_WITHOUT_COPY: u8 = 48;
    /// Where entries are mixed: `NOP128` and `URING_CMD128`.
    pub(super) const TAKE_TWO: [u8; 2] = [63, 64];
    /// Whether the descriptor is one that bytes or events come by: reads and writes of every kind, polls, messages,
    /// connects, sends and receives, shutdowns, commands to sockets, and waits for sets.
    pub(super) const fn uses_descriptor(code: u8) -> bool {
        matches!(
            code,
            1 | 2 | 4..=6 | SENDMSG | 10 | 16 | 22 | 23 | 26 | 27 | 34 | 46 | 47 | SENDMSG_WITHOUT_COPY | 49 | 58..=61 | 64
        )
    }
}

/// Whether everything that is queued may be handed over.
///
/// # Safety
/// `ring` is the program's, in use by this thread alone.
unsafe fn prepare(ring: *const Ring) -> bool {
    // One of another layout, most likely, where there are rings of which nothing is seen.
    if is_nowhere(ring) || successors::has_ring() {
        return true;
    }
    // SAFETY: the caller's. The queue has as many entries as the mask says and one more.
    unsafe {
        let queue = &*ring;
        if is_nowhere(queue.kernel[MASK]) || is_nowhere(queue.entries) {
            return true;
        }
        let mask = *queue.kernel[MASK];
        let scale = 1 + usize::from(queue.flags & LONG != 0);
        let waiting = queue.tail.wrapping_sub(queue.head).min(mask.wrapping_add(1));
        let (mut index, mut follows) = (0, false);
        while index < waiting {
            let at = queue.head.wrapping_add(index) & mask;
            let entry = &*queue.entries.add(at as usize * scale);
            if !prepare_one(entry, follows) {
                return false;
            }
            follows = entry.flags & LINKS != 0;
            index += 1 + c_uint::from(queue.flags & MIXED != 0 && code::TAKE_TWO.contains(&entry.code));
        }
        true
    }
}

/// Whether this may be handed over, which `follows` what may fail.
///
/// # Safety
/// What it points to is as its code says.
unsafe fn prepare_one(entry: &Entry, follows: bool) -> bool {
    let known = entry.flags & FIXED == 0;
    match entry.code {
        // SAFETY: the caller's: so many descriptors.
        code::REGISTER => unsafe { prepare_all(entry.address as *const c_int, entry.len) },
        // Else it closes one that is registered, and says 0 here.
        code::CLOSE if known && entry.other_fd == 0 => {
            // It may be cancelled, and the connection go on where nobody looks after it.
            let may_go = !follows || successors::to_kernel(entry.fd);
            if may_go {
                lifecycle::closing(entry.fd);
            }
            may_go
        }
        // From here on the kernel alone knows what the set has.
        code::EPOLL => successors::to_kernel(entry.fd) && successors::to_kernel(entry.offset as c_int),
        code::SPLICE | code::TEE => {
            let other_known = entry.code_flags & OTHER_FIXED == 0;
            (!other_known || successors::to_kernel(entry.other_fd)) && (!known || successors::to_kernel(entry.fd))
        }
        code if code::uses_descriptor(code) => {
            if matches!(code, code::SENDMSG | code::SENDMSG_WITHOUT_COPY) {
                // SAFETY: the caller's: a message.
                unsafe { hand_over_passed(entry.address as *const msghdr) };
            }
            !known || successors::to_kernel(entry.fd)
        }
        _ => true,
    }
}

/// Whether all these descriptors may be registered.
///
/// # Safety
/// There are so many, or `fds` is null.
unsafe fn prepare_all(fds: *const c_int, count: c_uint) -> bool {
    // SAFETY: the caller's.
    is_nowhere(fds) || (0..count as usize).all(|index| successors::to_kernel(unsafe { *fds.add(index) }))
}

/// What is known of a function that a library has which few programs have.
pub(crate) struct Behind {
    function: AtomicPtr<c_void>,
    /// How many libraries had gone when it was found in one that may go.
    gone: AtomicU64,
}

impl Behind {
    pub(crate) const fn new() -> Self {
        Self {
            function: AtomicPtr::new(core::ptr::null_mut()),
            gone: AtomicU64::new(0),
        }
    }
}

/// The function is where it stays.
const FOR_GOOD: u64 = u64::MAX;

/// The library's own function behind `ours`; null if there is none. Asked for when it is called.
pub(crate) fn find(behind: &Behind, name: &'static CStr, ours: *const c_void) -> *mut c_void {
    // In this order: who sees the count sees no function from before it.
    let gone = behind.gone.load(Acquire);
    let known = behind.function.load(Relaxed);
    if !known.is_null() && (gone == FOR_GOOD || gone == scopes::libraries_gone()) {
        return known;
    }
    behind.function.store(core::ptr::null_mut(), Relaxed);
    let next = sys::next_symbol(&behind.function, name);
    if !next.is_null() {
        behind.gone.store(FOR_GOOD, Release);
        return next;
    }
    // Whoever calls us has it in a scope of its own: a plug-in's library, or what a plug-in was linked with.
    behind.gone.store(scopes::libraries_gone(), Release);
    let elsewhere = scopes::find_anywhere(name, ours);
    behind.function.store(elsewhere, Relaxed);
    elsewhere
}

/// Functions of liburing that may hand over what the second part of each says; they answer with negative error numbers.
macro_rules! rings {
    ($($name:ident($($argument:ident: $type:ty),*) after $ready:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
                type Function = unsafe extern "C-unwind" fn($($type),*) -> c_int;
                static BEHIND: Behind = Behind::new();
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                let function = find(&BEHIND, NAME, $name as Function as *const c_void);
                if function.is_null() {
                    return -libc::ENOSYS;
                }
                // SAFETY: the program's own call, of a function of this type.
                unsafe {
                    if !$ready {
                        return -libc::EAGAIN;
                    }
                    transmute::<*mut c_void, Function>(function)($($argument),*)
                }
            }
        )*
    };
}

rings! {
    io_uring_submit(ring: *mut Ring) after prepare(ring);
    io_uring_submit_and_get_events(ring: *mut Ring) after prepare(ring);
    io_uring_submit_and_wait(ring: *mut Ring, count: c_uint) after prepare(ring);
    io_uring_submit_and_wait_timeout(ring: *mut Ring, event: *mut c_void, count: c_uint, timeout: *mut c_void, mask: *mut c_void) after prepare(ring);
    io_uring_submit_and_wait_min_timeout(ring: *mut Ring, event: *mut c_void, count: c_uint, timeout: *mut c_void, least: c_uint, mask: *mut c_void) after prepare(ring);
    io_uring_submit_and_wait_reg(ring: *mut Ring, event: *mut c_void, count: c_uint, number: c_int) after prepare(ring);
    io_uring_wait_cqes_min_timeout(ring: *mut Ring, event: *mut c_void, count: c_uint, timeout: *mut c_void, least: c_uint, mask: *mut c_void) after prepare(ring);
    io_uring_wait_cqes(ring: *mut Ring, event: *mut c_void, count: c_uint, timeout: *mut c_void, mask: *mut c_void) after prepare(ring);
    io_uring_wait_cqe_timeout(ring: *mut Ring, event: *mut c_void, timeout: *mut c_void) after prepare(ring);
    __io_uring_get_cqe(ring: *mut Ring, event: *mut c_void, submit: c_uint, count: c_uint, mask: *mut c_void) after prepare(ring);
    io_uring_register_files(ring: *mut Ring, fds: *const c_int, count: c_uint) after prepare_all(fds, count);
    io_uring_register_files_tags(ring: *mut Ring, fds: *const c_int, tags: *const c_void, count: c_uint) after prepare_all(fds, count);
    io_uring_register_files_update(ring: *mut Ring, from: c_uint, fds: *const c_int, count: c_uint) after prepare_all(fds, count);
    io_uring_register_files_update_tag(ring: *mut Ring, from: c_uint, fds: *const c_int, tags: *const c_void, count: c_uint) after prepare_all(fds, count);
}
