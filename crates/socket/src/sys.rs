//! The system-call corner: the only module of this crate with `unsafe`, beside the thread-locals and fork hooks it offers.
//!
//! Two ways to the kernel: `real` calls the C library's own function, found behind ours, and is for calls the program asked for
//! (they are cancellation points and set `errno`); [`raw`] enters the kernel directly, leaves `errno` alone and cannot be
//! intercepted, and is for calls of our own.

use core::ffi::{c_int, c_long, c_void};
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
pub fn fail(errno: Errno) -> isize {
    set_errno(errno);
    -1
}

/// Finds the function behind ours, once; null if there is none.
pub fn next_symbol(slot: &AtomicPtr<c_void>, name: &'static core::ffi::CStr) -> *mut c_void {
    let known = slot.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: RTLD_NEXT with a valid C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    slot.store(found, Relaxed);
    found
}

/// Direct system calls, answering `Err(errno)`.
pub mod raw {
    use super::{Errno, c_int, c_long};

    /// Enters the kernel.
    ///
    /// # Safety
    /// As for the system call: pointers among the arguments must be valid for what the kernel does with them.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the kernel takes six")]
    unsafe fn enter(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
        let result: isize;
        // SAFETY: the calling convention of the kernel; the caller vouches for the arguments.
        unsafe {
            core::arch::asm!("syscall", inlateout("rax") number as isize => result,
                in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
                lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        result
    }

    /// Enters the kernel.
    ///
    /// # Safety
    /// As for the system call: pointers among the arguments must be valid for what the kernel does with them.
    #[cfg(target_arch = "aarch64")]
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the kernel takes six")]
    unsafe fn enter(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
        let result: isize;
        // SAFETY: the calling convention of the kernel; the caller vouches for the arguments.
        unsafe {
            core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a => result,
                in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f, options(nostack));
        }
        result
    }

    /// A system call by number.
    ///
    /// # Safety
    /// As for the system call.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "error numbers are below 4096")]
    pub unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize, Errno> {
        let [a, b, c, d, e, f] = args;
        // SAFETY: passed on to the caller.
        let result = unsafe { enter(number, a, b, c, d, e, f) };
        if (-4095..0).contains(&result) {
            Err(-result as Errno)
        } else {
            Ok(result.cast_unsigned())
        }
    }

    #[inline]
    fn fd_arg(fd: c_int) -> usize {
        fd as usize
    }

    /// `close`.
    pub fn close(fd: c_int) {
        // SAFETY: no pointers; callers only close descriptors of our own.
        let _ = unsafe { call(libc::SYS_close, [fd_arg(fd), 0, 0, 0, 0, 0]) };
    }

    /// `sched_yield`.
    #[inline]
    pub fn sched_yield() {
        // SAFETY: no arguments.
        let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
    }

    /// `gettid`.
    #[expect(clippy::cast_possible_truncation, reason = "thread numbers are below 2^22")]
    pub fn gettid() -> u32 {
        // SAFETY: no arguments.
        unsafe { call(libc::SYS_gettid, [0; 6]) }.map_or(1, |tid| tid as u32)
    }

    /// `getpid`.
    #[expect(clippy::cast_possible_truncation, reason = "process numbers are below 2^22")]
    pub fn getpid() -> u32 {
        // SAFETY: no arguments.
        unsafe { call(libc::SYS_getpid, [0; 6]) }.map_or(1, |pid| pid as u32)
    }

    /// Whether the thread `tid` exists, as far as this process may see.
    pub fn thread_alive(tid: u32) -> bool {
        // SAFETY: signal 0 sends nothing.
        let result = unsafe { call(libc::SYS_tkill, [tid as usize, 0, 0, 0, 0, 0]) };
        result != Err(libc::ESRCH)
    }

    /// `eventfd2(0, EFD_NONBLOCK | EFD_CLOEXEC)`.
    #[expect(clippy::cast_possible_truncation, reason = "descriptors are small")]
    pub fn eventfd() -> Result<c_int, Errno> {
        let flags = (libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) as usize;
        // SAFETY: no pointers.
        unsafe { call(libc::SYS_eventfd2, [0, flags, 0, 0, 0, 0]) }.map(|fd| fd as c_int)
    }

    /// Adds one to an eventfd.
    #[inline]
    pub fn eventfd_ring(fd: c_int) -> Result<(), Errno> {
        let one = 1_u64;
        // SAFETY: the kernel reads eight bytes of `one`.
        unsafe {
            call(
                libc::SYS_write,
                [fd_arg(fd), (&raw const one).expose_provenance(), 8, 0, 0, 0],
            )
        }
        .map(drop)
    }

    /// Sets an eventfd to zero.
    pub fn eventfd_reset(fd: c_int) {
        let mut value = 0_u64;
        // SAFETY: the kernel writes eight bytes of `value`.
        let _ = unsafe {
            call(
                libc::SYS_read,
                [fd_arg(fd), (&raw mut value).expose_provenance(), 8, 0, 0, 0],
            )
        };
    }

    /// `fcntl` with an integer argument.
    pub fn fcntl(fd: c_int, command: c_int, argument: usize) -> Result<usize, Errno> {
        // SAFETY: only commands without pointer arguments are used by this crate.
        unsafe { call(libc::SYS_fcntl, [fd_arg(fd), command as usize, argument, 0, 0, 0]) }
    }

    /// `ioctl` that answers one integer.
    pub fn ioctl_get(fd: c_int, request: c_long) -> Result<c_int, Errno> {
        let mut value: c_int = 0;
        let place = (&raw mut value).expose_provenance();
        // SAFETY: FIONREAD and SIOCOUTQ write one int.
        unsafe {
            call(
                libc::SYS_ioctl,
                [fd_arg(fd), request.cast_unsigned() as usize, place, 0, 0, 0],
            )
        }
        .map(|_| value)
    }

    /// `getsockopt` into a plain value; answers the length the kernel wrote.
    pub fn getsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &mut T) -> Result<usize, Errno> {
        let mut length = size_of::<T>() as u32;
        let value = core::ptr::from_mut(value).expose_provenance();
        let place = (&raw mut length).expose_provenance();
        // SAFETY: the kernel writes at most `length` bytes of `value`; callers pass plain integers and byte structures.
        unsafe {
            call(
                libc::SYS_getsockopt,
                [fd_arg(fd), level as usize, name as usize, value, place, 0],
            )
        }
        .map(|_| length as usize)
    }

    /// `setsockopt` from a plain value.
    pub fn setsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &T) -> Result<(), Errno> {
        let place = core::ptr::from_ref(value).expose_provenance();
        // SAFETY: the kernel reads `size_of::<T>()` bytes of `value`.
        unsafe {
            call(
                libc::SYS_setsockopt,
                [fd_arg(fd), level as usize, name as usize, place, size_of::<T>(), 0],
            )
        }
        .map(drop)
    }

    /// `recv` into memory of our own.
    #[inline]
    pub fn recv(fd: c_int, buffer: &mut [u8], flags: c_int) -> Result<usize, Errno> {
        let place = buffer.as_mut_ptr().expose_provenance();
        // SAFETY: the kernel writes at most `buffer.len()` bytes of `buffer`.
        unsafe {
            call(
                libc::SYS_recvfrom,
                [fd_arg(fd), place, buffer.len(), flags as usize, 0, 0],
            )
        }
    }

    /// Drops `len` received bytes (`MSG_TRUNC`).
    pub fn discard(fd: c_int, len: usize) -> Result<usize, Errno> {
        let flags = (libc::MSG_TRUNC | libc::MSG_DONTWAIT) as usize;
        // SAFETY: with MSG_TRUNC a TCP socket writes nothing.
        unsafe { call(libc::SYS_recvfrom, [fd_arg(fd), 0, len, flags, 0, 0]) }
    }

    /// `send` of memory of our own.
    #[inline]
    pub fn send(fd: c_int, buffer: &[u8], flags: c_int) -> Result<usize, Errno> {
        let place = buffer.as_ptr().expose_provenance();
        // SAFETY: the kernel reads `buffer.len()` bytes of `buffer`.
        unsafe {
            call(
                libc::SYS_sendto,
                [fd_arg(fd), place, buffer.len(), flags as usize, 0, 0],
            )
        }
    }

    /// `pread`.
    pub fn pread(fd: c_int, buffer: &mut [u8], at: libc::off_t) -> Result<usize, Errno> {
        let place = buffer.as_mut_ptr().expose_provenance();
        // SAFETY: the kernel writes at most `buffer.len()` bytes of `buffer`.
        unsafe { call(libc::SYS_pread64, [fd_arg(fd), place, buffer.len(), at as usize, 0, 0]) }
    }

    /// `poll` of one descriptor without waiting; answers its events.
    pub fn poll_now(fd: c_int, events: i16) -> i16 {
        let mut entry = libc::pollfd { fd, events, revents: 0 };
        let place = (&raw mut entry).expose_provenance();
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = (&raw const zero).expose_provenance();
        // SAFETY: one pollfd and a timeout that outlive the call.
        let _ = unsafe { call(libc::SYS_ppoll, [place, 1, timeout, 0, 8, 0]) };
        entry.revents
    }

    /// `epoll_ctl`.
    pub fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, events: u32, data: u64) -> Result<(), Errno> {
        let event = libc::epoll_event { events, u64: data };
        let place = (&raw const event).expose_provenance();
        // SAFETY: the kernel reads one epoll_event.
        unsafe {
            call(
                libc::SYS_epoll_ctl,
                [fd_arg(set), operation as usize, fd_arg(fd), place, 0, 0],
            )
        }
        .map(drop)
    }

    /// `epoll_wait` without waiting, into memory of our own.
    pub fn epoll_now(set: c_int, events: &mut [libc::epoll_event]) -> Result<usize, Errno> {
        let place = events.as_mut_ptr().expose_provenance();
        // SAFETY: the kernel writes at most `events.len()` entries.
        unsafe { call(libc::SYS_epoll_pwait, [fd_arg(set), place, events.len(), 0, 0, 8]) }
    }

    /// Asks that pages of a shared mapping exist, so that touching them cannot fault fatally.
    pub fn anonymous_shared(len: usize) -> Result<*mut u8, Errno> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
        // SAFETY: a new mapping where the kernel likes.
        unsafe { call(libc::SYS_mmap, [0, len, protection, flags, usize::MAX, 0]) }
            .map(core::ptr::with_exposed_provenance_mut)
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the C library writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// A cheap, monotonic enough clock in units of [`ticks_per_us`].
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    now_ns()
}

/// Ticks in a microsecond, measured once over about 50 us.
#[inline]
pub fn ticks_per_us() -> u64 {
    use core::sync::atomic::AtomicU64;
    static TICKS: AtomicU64 = AtomicU64::new(0);
    let known = TICKS.load(Relaxed);
    if known != 0 {
        return known;
    }
    let (from, from_ns) = (ticks(), now_ns());
    let mut to_ns = from_ns;
    while to_ns.saturating_sub(from_ns) < 50_000 {
        to_ns = now_ns();
    }
    let measured = (ticks().wrapping_sub(from) * 1000 / (to_ns - from_ns).max(1)).max(1);
    TICKS.store(measured, Relaxed);
    measured
}

/// A variable of the environment, if it is valid UTF-8. Read before the program can have changed it underneath us.
pub fn environment(name: &core::ffi::CStr) -> Option<&'static str> {
    // SAFETY: a valid C string; the answer lives as long as the environment, which programs change rarely and never free.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the C library's strings end with zero.
    unsafe { core::ffi::CStr::from_ptr(value) }.to_str().ok()
}

/// The record `index` of an array in a region from [`raw::anonymous_shared`], which is never unmapped and long enough.
pub(crate) fn shared_record<T: Sync>(region: *mut T, index: usize) -> &'static T {
    // SAFETY: callers pass a region of theirs and an index within it; zeroed memory is a valid T for the records of atomics
    // that are kept there.
    unsafe { &*region.add(index) }
}

/// A place for the segment of a connection, in a static record.
#[derive(Debug)]
pub(crate) struct SegmentCell {
    full: core::sync::atomic::AtomicBool,
    place: core::cell::UnsafeCell<core::mem::MaybeUninit<viaduct_channel::Segment>>,
}

// SAFETY: the place is written by `fill` before `full` is set and dropped by `clear` after it is reset, and the callers of those
// hold both ownership words of the connection; `get` asks for the proof that one is held.
unsafe impl Sync for SegmentCell {}

impl SegmentCell {
    pub(crate) const fn empty() -> Self {
        Self {
            full: core::sync::atomic::AtomicBool::new(false),
            place: core::cell::UnsafeCell::new(core::mem::MaybeUninit::uninit()),
        }
    }

    /// The segment, while a direction of the connection is owned (or its epoll set is, which keeps it from being closed).
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

/// `getrlimit(RLIMIT_NOFILE)`.
pub(crate) fn descriptor_limit(limit: &mut libc::rlimit) {
    // SAFETY: the C library writes one rlimit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, core::ptr::from_mut(limit)) };
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

/// Room for the descriptors that accompany a packet.
const PACKET_DESCRIPTORS: usize = 2;

#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// Connects a packet socket to the Unix address `path`, without waiting.
#[expect(clippy::cast_possible_truncation, reason = "descriptors and lengths are small")]
pub(crate) fn connect_packet_socket(path: &[u8]) -> Result<c_int, Errno> {
    // SAFETY: all zero is a valid address structure.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    if path.len() >= address.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    for (place, byte) in address.sun_path.iter_mut().zip(path) {
        *place = byte.cast_signed();
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { raw::call(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0])? } as c_int;
    let place = (&raw const address).expose_provenance();
    // SAFETY: the kernel reads one sockaddr_un.
    let connected = unsafe { raw::call(libc::SYS_connect, [fd as usize, place, size_of_val(&address), 0, 0, 0]) };
    connected.map(|_| fd).inspect_err(|_| raw::close(fd))
}

/// Sends one packet and perhaps a descriptor, without waiting.
pub(crate) fn send_packet(fd: c_int, packet: &[u8], descriptor: Option<c_int>) -> Result<(), Errno> {
    let mut part = libc::iovec {
        iov_base: packet.as_ptr().cast_mut().cast(),
        iov_len: packet.len(),
    };
    let mut control = ControlBuffer([0; 64]);
    // SAFETY: all zero is a valid message header.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: plain arithmetic; the buffer has room for one header and one descriptor.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(descriptor);
        }
    }
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    // SAFETY: the header and all it points to outlive the call.
    unsafe {
        raw::call(
            libc::SYS_sendmsg,
            [fd as usize, (&raw const message).expose_provenance(), flags, 0, 0, 0],
        )
    }
    .map(drop)
}

/// Receives one packet and up to two descriptors (-1 where there is none), without waiting. Length 0: the other side is gone.
pub(crate) fn receive_packet(fd: c_int, packet: &mut [u8]) -> Result<(usize, [c_int; PACKET_DESCRIPTORS]), Errno> {
    let mut part = libc::iovec {
        iov_base: packet.as_mut_ptr().cast(),
        iov_len: packet.len(),
    };
    let mut control = ControlBuffer([0; 64]);
    // SAFETY: all zero is a valid message header.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: plain arithmetic.
    message.msg_controllen = unsafe { libc::CMSG_SPACE((PACKET_DESCRIPTORS * size_of::<c_int>()) as u32) } as usize;
    let flags = (libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) as usize;
    let place = (&raw mut message).expose_provenance();
    // SAFETY: the header and all it points to outlive the call.
    let len = unsafe { raw::call(libc::SYS_recvmsg, [fd as usize, place, flags, 0, 0, 0]) }?;
    let mut descriptors = [-1; PACKET_DESCRIPTORS];
    // SAFETY: the kernel has filled the control buffer and set its length; one header of ours fits.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
            let bytes = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            for (index, place) in descriptors.iter_mut().enumerate().take(bytes / size_of::<c_int>()) {
                *place = libc::CMSG_DATA(header).cast::<c_int>().add(index).read_unaligned();
            }
        }
    }
    Ok((len, descriptors))
}

/// Owns a descriptor number the kernel has just given us.
pub(crate) fn own_descriptor(fd: c_int) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: callers pass numbers received by `receive_packet`, which nobody else owns.
    (fd >= 0).then(|| unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
}

/// Own and peer address of a TCP socket; `None` where it has none.
pub(crate) fn addresses(fd: c_int) -> Option<(viaduct_control::message::Address, viaduct_control::message::Address)> {
    Some((address(fd, libc::SYS_getsockname)?, address(fd, libc::SYS_getpeername)?))
}

fn address(fd: c_int, call: c_long) -> Option<viaduct_control::message::Address> {
    #[repr(C)]
    #[derive(Default)]
    struct Storage {
        family: u16,
        port: [u8; 2],
        v4: [u8; 4],
        v6: [u8; 16],
        scope: u32,
    }
    let mut storage = Storage::default();
    let mut length = size_of::<Storage>() as u32;
    let (place, length) = (
        (&raw mut storage).expose_provenance(),
        (&raw mut length).expose_provenance(),
    );
    // SAFETY: the kernel writes at most the structure's size into it.
    unsafe { raw::call(call, [fd as usize, place, length, 0, 0, 0]) }.ok()?;
    let ip = match c_int::from(storage.family) {
        libc::AF_INET => core::net::Ipv4Addr::from(storage.v4).to_ipv6_mapped().octets(),
        libc::AF_INET6 => storage.v6,
        _ => return None,
    };
    Some(viaduct_control::message::Address {
        ip,
        port: u16::from_be_bytes(storage.port),
        reserved: 0,
        scope: if c_int::from(storage.family) == libc::AF_INET6 {
            storage.scope
        } else {
            0
        },
    })
}

/// Waits until `fd` is readable or `ns` nanoseconds are over, in short steps that signals cannot be lost in: an interrupted
/// step just ends early, and the caller looks again.
pub(crate) fn wait_readable_quietly(fd: c_int, ns: u64) {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout = timespec(ns);
    let (place, timeout) = (
        (&raw mut entry).expose_provenance(),
        (&raw const timeout).expose_provenance(),
    );
    // SAFETY: one pollfd and a timeout that outlive the call.
    let _ = unsafe { raw::call(libc::SYS_ppoll, [place, 1, timeout, 0, 8, 0]) };
}

/// `ns` nanoseconds as the kernel takes them.
pub(crate) fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

/// Has `action` called with `value` when the calling thread ends. One action serves the whole process.
pub(crate) fn at_thread_exit(value: u32, action: fn(u32)) {
    use core::sync::atomic::{AtomicU32, Ordering};
    static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
    static ACTION: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    extern "C" fn run(value: *mut c_void) {
        let action = ACTION.load(Ordering::Acquire);
        if !action.is_null() {
            // SAFETY: only `action` values, of this type, are stored there.
            let action = unsafe { core::mem::transmute::<*mut c_void, fn(u32)>(action) };
            action(u32::try_from(value.addr()).unwrap_or(0));
        }
    }
    ACTION.store(action as *mut c_void, Ordering::Release);
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
    // SAFETY: a valid key; the value is a plain number.
    unsafe { libc::pthread_setspecific(key, core::ptr::without_provenance(value as usize)) };
}

/// `recvmsg` or `sendmsg` on buffers of the program's, without entering the C library.
pub(crate) fn message_call(call: c_long, fd: c_int, message: &mut libc::msghdr, flags: c_int) -> Result<usize, Errno> {
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

/// The buffer a program gave `epoll_wait`, filled from the front.
#[derive(Debug)]
pub struct Events {
    at: *mut libc::epoll_event,
    room: usize,
    used: usize,
}

impl Events {
    /// The buffer of `room` events at `at`.
    ///
    /// # Safety
    /// `at` must be valid for writing `room` events until the call it came with returns.
    pub unsafe fn new(at: *mut libc::epoll_event, room: usize) -> Self {
        Self { at, room, used: 0 }
    }

    /// Events in it.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Events it still has room for.
    pub(crate) fn room(&self) -> usize {
        self.room - self.used
    }

    /// Where the next event goes, and room for how many.
    pub(crate) fn free(&self) -> (*mut libc::epoll_event, usize) {
        (self.at.wrapping_add(self.used), self.room())
    }

    /// The kernel has written `count` more.
    pub(crate) fn filled_by_kernel(&mut self, count: usize) {
        self.used = (self.used + count).min(self.room);
    }

    pub(crate) fn push(&mut self, events: u32, data: u64) {
        if self.used < self.room {
            // SAFETY: within the program's buffer.
            unsafe {
                self.at
                    .add(self.used)
                    .write_unaligned(libc::epoll_event { events, u64: data })
            };
            self.used += 1;
        }
    }

    /// Has the kernel write events behind those there are; answers how many it wrote.
    pub(crate) fn fetch(&mut self, wait: impl FnOnce(&mut [libc::epoll_event]) -> Result<usize, Errno>) -> usize {
        if self.room() == 0 {
            return 0;
        }
        // SAFETY: within the program's buffer, which no one else has a reference to; an event is valid whatever its bits.
        let free = unsafe { core::slice::from_raw_parts_mut(self.at.add(self.used), self.room()) };
        let count = wait(free).unwrap_or(0);
        self.filled_by_kernel(count);
        count
    }

    /// Keeps, of the events from `from` on, those whose data `keep` accepts.
    pub(crate) fn retain(&mut self, from: usize, mut keep: impl FnMut(u64) -> bool) {
        let mut kept = from;
        for index in from..self.used {
            // SAFETY: within the program's buffer, written by the kernel.
            let event = unsafe { self.at.add(index).read_unaligned() };
            if keep(event.u64) {
                // SAFETY: as above, at or before `index`.
                unsafe { self.at.add(kept).write_unaligned(event) };
                kept += 1;
            }
        }
        self.used = kept;
    }
}

/// A random number, good enough to be unlike any other.
pub(crate) fn random() -> u64 {
    let mut value = 0_u64;
    let place = (&raw mut value).expose_provenance();
    // SAFETY: the kernel writes eight bytes of `value`.
    let _ = unsafe { raw::call(libc::SYS_getrandom, [place, 8, 1, 0, 0, 0]) };
    value ^ ticks()
}

/// Has `parent` and `child` called in the respective process after each `fork`.
pub(crate) fn at_fork(parent: fn(), child: fn()) {
    use core::sync::atomic::Ordering::{Acquire, Release};
    static HOOKS: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];
    fn run(index: usize) {
        let hook = HOOKS
            .get(index)
            .map_or(core::ptr::null_mut(), |hook| hook.load(Acquire));
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
    HOOKS[0].store(parent as *mut c_void, Release);
    HOOKS[1].store(child as *mut c_void, Release);
    // SAFETY: two functions with the right signature, valid for ever.
    unsafe { libc::pthread_atfork(None, Some(in_parent), Some(in_child)) };
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

/// Ends the process with SIGABRT.
pub fn abort() -> ! {
    // SAFETY: always allowed.
    unsafe { libc::abort() }
}
