//! Asynchronous requests to the kernel (`io_submit`): it moves the bytes, unseen, so a connection that a program is
//! about to hand to it goes back to TCP first. Layout: `struct iocb` of linux/aio_abi.h.

use crate::imports::object_of;
use crate::rings::{Behind, find};
use crate::scopes;
use core::arch::naked_asm;
use core::ffi::{c_int, c_long, c_void};
use core::ptr::with_exposed_provenance as place;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU64};
use libc::iovec;
use viaduct_socket::descriptors::successors;
use viaduct_socket::process::is_confined;
use viaduct_socket::{real, sys};

/// Where a request has its descriptor, in bytes.
const DESCRIPTOR: usize = 20;
/// Requests that are looked at in one go.
const ROOM: usize = 32;

/// Reads what the program says is there, as far as the kernel could, from several places; answers from how many.
fn read<T: Copy>(from: impl Iterator<Item = usize> + Clone, to: &mut [T; ROOM]) -> usize {
    if let Some(count) = read_by_kernel(from.clone(), to) {
        return count;
    }
    let mut count = 0;
    for (to, address) in to.iter_mut().zip(from) {
        // SAFETY: the program vouches for it, where the kernel does not look.
        *to = unsafe { place::<T>(address).read_unaligned() };
        count += 1;
    }
    count
}

/// The same by a call that some may not make: `None`.
fn read_by_kernel<T: Copy>(from: impl Iterator<Item = usize>, to: &mut [T; ROOM]) -> Option<usize> {
    if is_confined() {
        return None;
    }
    let nothing = iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    };
    let mut parts = [nothing; ROOM];
    let mut count = 0;
    for (part, address) in parts.iter_mut().zip(from) {
        part.iov_base = place::<c_void>(address).cast_mut();
        part.iov_len = size_of::<T>();
        count += 1;
    }
    let here = iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: count * size_of::<T>(),
    };
    // SAFETY: the kernel writes to the array, and checks what it reads.
    let bytes = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, parts.as_ptr(), count as u64, 0) };
    match usize::try_from(bytes) {
        Ok(bytes) => Some(bytes / size_of::<T>()),
        Err(_) => (sys::errno() == libc::EFAULT).then_some(0),
    }
}

/// How many of these requests, from the first on, may be handed to the kernel; what is wrong with one is for the kernel
/// to say.
fn ready(count: usize, list: usize) -> usize {
    let (mut requests, mut descriptors) = ([0_usize; ROOM], [0 as c_int; ROOM]);
    let mut done = 0;
    while done < count {
        let asked = ROOM.min(count - done);
        let at = |index: usize| list.wrapping_add((done + index).wrapping_mul(size_of::<usize>()));
        let listed = read((0..asked).map(at), &mut requests);
        let requests = requests.iter().take(listed);
        let known = read(requests.map(|at| at.wrapping_add(DESCRIPTOR)), &mut descriptors);
        for fd in descriptors.iter().take(known) {
            if !successors::to_kernel(*fd) {
                return done;
            }
            done += 1;
        }
        if known < asked {
            return count;
        }
    }
    count
}

/// The system call. Of several requests it takes those before one that cannot be taken now, as the kernel does.
pub(crate) unsafe fn submit(context: c_long, count: c_long, list: c_long) -> c_long {
    let before = sys::errno();
    let ready = usize::try_from(count).map_or(count, |count| ready(count, list as usize) as c_long);
    if ready == 0 && count > 0 {
        sys::set_errno(libc::EAGAIN);
        return -1;
    }
    sys::set_errno(before);
    // SAFETY: the program's own call.
    unsafe { real::syscall(libc::SYS_io_submit, context, ready, list, 0, 0, 0) }
}

/// In place of libaio's, which enters the kernel by itself and answers with an error's number below zero.
unsafe extern "C-unwind" fn submit_by_libaio(context: c_long, count: c_long, list: c_long) -> c_int {
    let before = sys::errno();
    // SAFETY: the program's own call.
    let taken = unsafe { submit(context, count, list) } as c_int;
    if taken >= 0 {
        return taken;
    }
    let error = sys::errno();
    sys::set_errno(before);
    -error
}

extern "C" fn is_missing() -> c_int {
    -libc::ENOSYS
}

/// Where a call of `io_submit` goes on: here if it is libaio's, else in the function of this name that it means.
extern "C" fn find_function() -> *const c_void {
    static SUBMIT: Behind = Behind::new();
    static GET_EVENTS: Behind = Behind::new();
    /// The last functions that were found to be libaio's and another library's,
    static LIBAIO: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    static OTHERS: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// and how many libraries had gone by then.
    static GONE: AtomicU64 = AtomicU64::new(0);
    let function = find(&SUBMIT, c"io_submit", io_submit as *const c_void);
    if function.is_null() {
        return is_missing as *const c_void;
    }
    let gone = scopes::libraries_gone();
    if GONE.swap(gone, Relaxed) != gone {
        LIBAIO.store(core::ptr::null_mut(), Relaxed);
        OTHERS.store(core::ptr::null_mut(), Relaxed);
    }
    if OTHERS.load(Relaxed) == function {
        return function;
    }
    if LIBAIO.load(Relaxed) != function {
        let other = find(&GET_EVENTS, c"io_getevents", core::ptr::null());
        if other.is_null() || object_of(function) != object_of(other) {
            OTHERS.store(function, Relaxed);
            return function;
        }
        LIBAIO.store(function, Relaxed);
    }
    submit_by_libaio as *const c_void
}

/// Other libraries have functions of this name with other arguments, which these are left for.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C-unwind" fn io_submit() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "call {find}",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp r11",
        find = sym find_function,
    )
}
