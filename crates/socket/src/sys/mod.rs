//! The system-call corner: the only module of this crate with `unsafe`, beside the thread-locals and fork hooks it
//! offers.
//!
//! Two ways to the kernel: `real` calls the C library's own function, found behind ours, and is for calls the program
//! asked for (they are cancellation points and set `errno`); [`raw`] enters the kernel directly, leaves `errno` alone
//! and cannot be intercepted, and is for calls of our own.

use core::ffi::{c_int, c_long, c_short, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// An error number.
pub type Errno = c_int;

/// `errno` of the calling thread.
#[inline]
pub fn errno() -> Errno {
    // SAFETY: the C library answers a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`.
#[inline]
pub fn set_errno(errno: Errno) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// Sets `errno` and answers -1, as a C function does.
#[cold]
pub fn fail<T: From<i8>>(errno: Errno) -> T {
    set_errno(errno);
    T::from(-1)
}

/// Finds the function behind ours, once; null if there is none.
#[inline]
pub fn next_symbol(slot: &AtomicPtr<c_void>, name: &'static core::ffi::CStr) -> *mut c_void {
    let known = slot.load(Relaxed);
    if known.is_null() { look_up(slot, name) } else { known }
}

#[cold]
fn look_up(slot: &AtomicPtr<c_void>, name: &'static core::ffi::CStr) -> *mut c_void {
    // SAFETY: RTLD_NEXT with a valid C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    slot.store(found, Relaxed);
    found
}

mod clock;
mod events;
pub(crate) mod listing;
pub(crate) mod memory;
pub(crate) mod outer;
mod packet;
pub mod raw;
mod rest;
mod stack;
pub(crate) mod threads;

pub(crate) use clock::{coarse_now_ns, thread_ns};
pub use clock::{find_clock, now_ns, ticks, ticks_per_us};
pub use events::Events;
pub(crate) use packet::{
    PACKET_DESCRIPTORS, addresses, connect_packet_socket, own_descriptor, receive_packet, send_packet, take_ticket,
};
pub(crate) use rest::peek_at_rest;
pub(crate) use stack::{signal_stack, stack_pointer};
pub use threads::single_threaded;

/// A variable of the environment, if it is valid UTF-8. Read before the program can have changed it underneath us.
pub fn environment(name: &core::ffi::CStr) -> Option<&'static str> {
    // SAFETY: a valid C string; the answer lives as long as the environment, which programs change rarely and never
    // free.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the C library's strings end with zero.
    unsafe { core::ffi::CStr::from_ptr(value) }.to_str().ok()
}

/// The record `index` of an array in a region from [`crate::process::shared::memory`], which is never unmapped and long
/// enough.
pub(crate) fn shared_record<T: Sync>(region: *mut T, index: usize) -> &'static T {
    // SAFETY: callers pass a region of theirs and an index within it; zeroed memory is a valid T for the records of
    // atomics that are kept there.
    unsafe { &*region.add(index) }
}

/// A place for the segment of a connection, in a static record.
#[derive(Debug)]
pub(crate) struct SegmentCell {
    full: core::sync::atomic::AtomicBool,
    place: core::cell::UnsafeCell<core::mem::MaybeUninit<viaduct_channel::Segment>>,
}

// SAFETY: the place is written by `fill` before `full` is set and dropped by `clear` after it is reset, and the callers
// of those hold both ownership words of the connection; `get` asks for the proof that one is held.
unsafe impl Sync for SegmentCell {}

impl SegmentCell {
    pub(crate) const fn empty() -> Self {
        Self {
            full: core::sync::atomic::AtomicBool::new(false),
            place: core::cell::UnsafeCell::new(core::mem::MaybeUninit::uninit()),
        }
    }

    /// The segment, while a direction of the connection is owned (or its epoll set is, which keeps it from being
    /// closed).
    #[inline]
    pub(crate) fn get<'a, P>(&'a self, _proof: &'a P) -> Option<&'a viaduct_channel::Segment> {
        if !self.full.load(core::sync::atomic::Ordering::Acquire) {
            return None;
        }
        // SAFETY: `full` says that the place is initialised, and the proof keeps `clear` away.
        Some(unsafe { (*self.place.get()).assume_init_ref() })
    }

    /// Puts a segment in. The caller owns both directions.
    pub(crate) fn fill(&self, segment: viaduct_channel::Segment) {
        self.clear();
        // SAFETY: nobody else is here while both directions are owned.
        unsafe { (*self.place.get()).write(segment) };
        self.full.store(true, core::sync::atomic::Ordering::Release);
    }

    /// Unmaps the segment. The caller owns both directions.
    pub(crate) fn clear(&self) {
        if self.full.swap(false, core::sync::atomic::Ordering::AcqRel) {
            // SAFETY: it was full, and nobody else is here while both directions are owned.
            unsafe { (*self.place.get()).assume_init_drop() };
        }
    }
}

/// What the process may have of a resource at present, in its unit (getrlimit(2)).
pub(crate) fn limit_of(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the C library writes one rlimit.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    limit.rlim_cur
}

/// A record that [`shared_record`] gave out, from its address; `None` for null.
#[inline]
pub(crate) fn leaked_record<T: Sync>(record: *mut T) -> Option<&'static T> {
    // SAFETY: callers pass null or an address got from a static reference.
    unsafe { record.as_ref() }
}

/// Writes the name the program was called by, without directories, into `name`, leaving at least one zero.
pub(crate) fn program_name(name: &mut [u8; 64]) {
    unsafe extern "C" {
        static program_invocation_short_name: *const core::ffi::c_char;
    }
    // SAFETY: the C library sets it before any code of ours runs.
    let called = unsafe { program_invocation_short_name };
    if called.is_null() {
        return;
    }
    // SAFETY: a C string, part of the program's arguments.
    let called = unsafe { core::ffi::CStr::from_ptr(called) };
    for (place, byte) in name.iter_mut().take(63).zip(called.to_bytes()) {
        *place = *byte;
    }
}

/// Waits until `fd` shows one of `events` or `ns` nanoseconds are over, in short steps that signals cannot be lost in:
/// an interrupted step just ends early, and the caller looks again. Says what it shows.
pub(crate) fn wait_quietly(fd: c_int, events: c_short, ns: u64) -> c_short {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let timeout = timespec(ns);
    let (place, timeout) = (
        (&raw mut entry).expose_provenance(),
        (&raw const timeout).expose_provenance(),
    );
    // SAFETY: one pollfd and a timeout that outlive the call.
    let _ = unsafe { raw::call(libc::SYS_ppoll, [place, 1, timeout, 0, 8, 0]) };
    entry.revents
}

/// `ns` nanoseconds as the kernel takes them.
pub fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

/// The calling thread's value of a thread-local, for as long as the thread is in functions of ours. It cannot be given
/// to other threads, since it is not `Sync`.
#[inline]
pub(crate) fn thread_local<T>(key: &'static std::thread::LocalKey<T>) -> &'static T {
    const { assert!(!core::mem::needs_drop::<T>()) };
    key.with(|value| {
        // SAFETY: a value without a destructor lives as long as its thread.
        unsafe { &*core::ptr::from_ref(value) }
    })
}

/// Has `action` called when the calling thread ends. One action serves the whole process.
pub(crate) fn at_thread_exit(action: fn()) {
    use core::sync::atomic::{AtomicU32, Ordering};
    static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
    extern "C" fn run(action: *mut c_void) {
        // SAFETY: only actions, of this type, are the key's values, and never null ones.
        unsafe { core::mem::transmute::<*mut c_void, fn()>(action)() };
    }
    let mut key = KEY.load(Ordering::Acquire);
    if key == u32::MAX {
        // SAFETY: the key is written before use; `run` has the right signature.
        if unsafe { libc::pthread_key_create(&raw mut key, Some(run)) } != 0 {
            return;
        }
        if let Err(winner) = KEY.compare_exchange(u32::MAX, key, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the key made above, which nobody uses.
            unsafe { libc::pthread_key_delete(key) };
            key = winner;
        }
    }
    // SAFETY: a valid key; the value is the address of a function.
    unsafe { libc::pthread_setspecific(key, action as *const c_void) };
}

/// `recvmsg` or `sendmsg` on buffers of the program's, without entering the C library. The header has buffers only, and
/// is not to be read afterwards: one buffer goes without, which the kernel need not fetch and check then.
pub(crate) fn message_call(call: c_long, fd: c_int, message: &mut libc::msghdr, flags: c_int) -> Result<usize, Errno> {
    if message.msg_iovlen == 1 {
        // SAFETY: the header's list has one entry.
        let part = unsafe { *message.msg_iov };
        let call = match call {
            libc::SYS_recvmsg => libc::SYS_recvfrom,
            _ => libc::SYS_sendto,
        };
        let (place, len) = (part.iov_base.expose_provenance(), part.iov_len);
        // SAFETY: the kernel checks the program's buffer itself.
        return unsafe { raw::call(call, [fd as usize, place, len, flags as usize, 0, 0]) };
    }
    let place = core::ptr::from_mut(message).expose_provenance();
    // SAFETY: the header outlives the call; the kernel checks the program's buffers itself.
    unsafe { raw::call(call, [fd as usize, place, flags as usize, 0, 0, 0]) }
}

/// Sends this thread SIGPIPE, as a send on a broken connection does.
pub(crate) fn raise_sigpipe() {
    // SAFETY: no pointers.
    let _ = unsafe {
        raw::call(
            libc::SYS_tgkill,
            [
                raw::getpid() as usize,
                raw::gettid() as usize,
                libc::SIGPIPE as usize,
                0,
                0,
                0,
            ],
        )
    };
}

/// A number that a peer cannot know. Without a system call: some programs forbid themselves those.
pub(crate) fn random() -> u64 {
    // SAFETY: only reads what the kernel has handed the program.
    let drawn = unsafe { libc::getauxval(libc::AT_RANDOM) };
    let drawn = core::ptr::with_exposed_provenance::<[u64; 2]>(drawn as usize);
    if drawn.is_null() {
        return ticks();
    }
    // SAFETY: sixteen bytes that stay where they are.
    let [one, other] = unsafe { drawn.read_unaligned() };
    // The C library guards stacks and jumps by them, so neither is to be told from what is made of both.
    (one ^ other.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ticks()
}

/// Has `before` called before each `fork`, and `parent` and `child` in the respective process after it. `before` is
/// told where on the stack that is: what other functions are called then, before and after, is deeper.
pub(crate) fn at_fork(before: fn(usize), parent: fn(), child: fn()) {
    use core::sync::atomic::Ordering::{Acquire, Release};
    static HOOKS: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 3];
    fn hook(index: usize) -> *mut c_void {
        let hook = HOOKS.get(index);
        hook.map_or(core::ptr::null_mut(), |hook| hook.load(Acquire))
    }
    fn run(index: usize) {
        let hook = hook(index);
        if !hook.is_null() {
            // SAFETY: only functions of this type are stored there.
            unsafe { core::mem::transmute::<*mut c_void, fn()>(hook)() };
        }
    }
    unsafe extern "C" fn in_parent() {
        run(0);
    }
    unsafe extern "C" fn in_child() {
        run(1);
    }
    extern "C" fn ahead_of(frame: usize) {
        let hook = hook(2);
        if !hook.is_null() {
            // SAFETY: only a function of this type is stored there.
            unsafe { core::mem::transmute::<*mut c_void, fn(usize)>(hook)(frame) };
        }
    }
    #[unsafe(naked)]
    unsafe extern "C" fn ahead() {
        #[cfg(target_arch = "x86_64")]
        core::arch::naked_asm!("lea rdi, [rsp + 8]", "jmp {go_on}", go_on = sym ahead_of);
        #[cfg(target_arch = "aarch64")]
        core::arch::naked_asm!("mov x0, sp", "b {go_on}", go_on = sym ahead_of);
    }
    HOOKS[2].store(before as *mut c_void, Release);
    HOOKS[0].store(parent as *mut c_void, Release);
    HOOKS[1].store(child as *mut c_void, Release);
    // SAFETY: three functions with the right signature, valid for ever.
    unsafe { libc::pthread_atfork(Some(ahead), Some(in_parent), Some(in_child)) };
}

/// `lseek(fd, 0, SEEK_CUR)`.
pub(crate) fn file_position(fd: c_int) -> Result<libc::off_t, Errno> {
    // SAFETY: no pointers.
    unsafe { raw::call(libc::SYS_lseek, [fd as usize, 0, libc::SEEK_CUR as usize, 0, 0, 0]) }
        .map(|at| at as libc::off_t)
}

/// `lseek(fd, position, SEEK_SET)`.
pub(crate) fn set_file_position(fd: c_int, position: libc::off_t) {
    // SAFETY: no pointers.
    let _ = unsafe {
        raw::call(
            libc::SYS_lseek,
            [fd as usize, position as usize, libc::SEEK_SET as usize, 0, 0, 0],
        )
    };
}

/// Whether `fd` is an open descriptor.
pub fn is_open(fd: c_int) -> bool {
    raw::fcntl(fd, libc::F_GETFD, 0).is_ok()
}

/// Whether the process may have a descriptor of this number.
pub fn may_open(fd: c_int) -> bool {
    u64::try_from(fd).is_ok_and(|fd| fd < limit_of(libc::RLIMIT_NOFILE))
}

/// Ends the process with SIGABRT.
pub fn abort() -> ! {
    // SAFETY: always allowed.
    unsafe { libc::abort() }
}
