//! Direct system calls, answering `Err(errno)`.

use super::Errno;
use core::ffi::{c_int, c_long};
use core::sync::atomic::AtomicU32;
use viaduct_channel::Dest;

/// Enters the kernel.
///
/// # Safety
/// As for the system call: pointers among the arguments must be valid for what the kernel does with them.
#[cfg(target_arch = "x86_64")]
#[inline]
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

/// Blocks all signals of the calling thread; answers which were blocked before.
pub(crate) fn block_signals() -> u64 {
    let (all, mut before) = (u64::MAX, 0_u64);
    let set = core::ptr::from_ref(&all).expose_provenance();
    let old = core::ptr::from_mut(&mut before).expose_provenance();
    // SAFETY: the kernel's sets are of eight bytes, and both outlive the call.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, [libc::SIG_BLOCK as usize, set, old, 8, 0, 0]) };
    before
}

/// Has only these signals blocked.
pub(crate) fn restore_signals(blocked: u64) {
    let set = core::ptr::from_ref(&blocked).expose_provenance();
    // SAFETY: as above.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, set, 0, 8, 0, 0]) };
}

/// `close`.
pub fn close(fd: c_int) {
    // SAFETY: no pointers; callers only close descriptors of our own.
    let _ = unsafe { call(libc::SYS_close, [fd_arg(fd), 0, 0, 0, 0, 0]) };
}

/// `exit_group`.
pub fn exit(status: c_int) -> ! {
    loop {
        // SAFETY: no pointers, and nothing runs after it.
        let _ = unsafe { call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// `sched_yield`.
#[inline]
pub fn sched_yield() {
    // SAFETY: no arguments.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Opens a file for reading: not what a link leads to, and without waiting, whatever it is.
pub fn open_file(path: &core::ffi::CStr) -> Result<c_int, Errno> {
    open_for_reading(path, libc::O_NOFOLLOW)
}

/// The same for what a link of the kernel's leads to.
pub fn open_link(path: &core::ffi::CStr) -> Result<c_int, Errno> {
    open_for_reading(path, 0)
}

fn open_for_reading(path: &core::ffi::CStr, flags: c_int) -> Result<c_int, Errno> {
    let place = path.as_ptr().expose_provenance();
    let flags = (flags | libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY) as usize;
    // SAFETY: a C string.
    unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as usize, place, flags, 0, 0, 0]) }.map(|fd| fd as c_int)
}

/// Holds a shared lock on an open file from now until the last that refers to it is gone, if nobody holds it alone.
pub fn lock_shared(fd: c_int) -> Result<(), Errno> {
    let operation = (libc::LOCK_SH | libc::LOCK_NB) as usize;
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_flock, [fd as usize, operation, 0, 0, 0, 0]) }.map(drop)
}

/// Keeps a file open without a descriptor until this process and all its forked children have ended or begun others.
pub fn keep_open(fd: c_int) -> Result<(), Errno> {
    let page = [
        0,
        1,
        libc::PROT_NONE as usize,
        libc::MAP_PRIVATE as usize,
        fd as usize,
        0,
    ];
    // SAFETY: a new mapping where the kernel likes, which nobody may touch.
    unsafe { call(libc::SYS_mmap, page) }.map(drop)
}

/// Opens a directory for reading.
pub fn open_directory(path: &core::ffi::CStr) -> Result<c_int, Errno> {
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    let place = path.as_ptr().expose_provenance();
    // SAFETY: a C string.
    unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as usize, place, flags, 0, 0, 0]) }.map(|fd| fd as c_int)
}

/// `getdents64`: entries of a directory; answers how many bytes they take, 0 at its end.
pub fn read_directory(fd: c_int, entries: &mut [u8]) -> Result<usize, Errno> {
    let place = entries.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes at most `entries.len()` bytes of `entries`.
    unsafe { call(libc::SYS_getdents64, [fd_arg(fd), place, entries.len(), 0, 0, 0]) }
}

/// `gettid`.
pub fn gettid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_gettid, [0; 6]) }.map_or(1, |tid| tid as u32)
}

/// `getpid`.
pub fn getpid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.map_or(1, |pid| pid as u32)
}

/// `getppid`: 0 if the parent is in another namespace of processes, where this one cannot see it.
pub fn getppid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getppid, [0; 6]) }.map_or(1, |pid| pid as u32)
}

/// Whether the thread `tid` exists, as far as this process may see. That of a process which was killed does until its
/// parent has asked for it.
pub fn thread_exists(tid: u32) -> bool {
    // SAFETY: signal 0 sends nothing.
    let result = unsafe { call(libc::SYS_tkill, [tid as usize, 0, 0, 0, 0, 0]) };
    result != Err(libc::ESRCH)
}

/// Whether it may run again, as far as can be told.
pub fn thread_alive(tid: u32) -> bool {
    if !thread_exists(tid) {
        return false;
    }
    if thread_is_ours(tid) {
        return true;
    }
    // Most often only a process's first thread outlives its end, and only that can be asked for. A child's needs no
    // descriptor, which another thread of the program's might meet.
    if let Some(has_ended) = child_has_ended(tid) {
        return !has_ended;
    }
    // SAFETY: no pointers.
    let Ok(fd) = (unsafe { call(libc::SYS_pidfd_open, [tid as usize, 0, 0, 0, 0, 0]) }) else {
        return true;
    };
    let has_ended = poll_now(fd as c_int, libc::POLLIN) & libc::POLLIN != 0;
    // SAFETY: a descriptor that nobody else knows.
    let _ = unsafe { call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
    !has_ended
}

/// Whether a child of this process has ended, which stays to be waited for; `None` if it is no child.
fn child_has_ended(pid: u32) -> Option<bool> {
    let mut about = core::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let place = about.as_mut_ptr().expose_provenance();
    let options = (libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) as usize;
    // SAFETY: the kernel writes one siginfo, of which zeroes are a valid value too: that nobody has ended.
    unsafe {
        let arguments = [libc::P_PID as usize, pid as usize, place, options, 0, 0];
        call(libc::SYS_waitid, arguments).ok()?;
        Some(about.assume_init().si_pid() != 0)
    }
}

/// Whether the thread `tid` exists and is one of this process.
pub fn thread_is_ours(tid: u32) -> bool {
    // SAFETY: signal 0 sends nothing.
    let result = unsafe { call(libc::SYS_tgkill, [getpid() as usize, tid as usize, 0, 0, 0, 0]) };
    result != Err(libc::ESRCH)
}

/// `eventfd2(0, EFD_NONBLOCK | EFD_CLOEXEC)`.
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
    // SAFETY: FIONREAD, SIOCOUTQ and SIOCATMARK write one int.
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

/// The process at the other end of a connected Unix socket, where this one can see it.
pub fn peer_pid(fd: c_int) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut peer).ok()?;
    u32::try_from(peer.pid).ok().filter(|pid| *pid != 0)
}

/// A socket's number, which no other has or will have (`SO_COOKIE`).
pub fn cookie(fd: c_int) -> Option<u64> {
    let mut cookie = 0_u64;
    getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, &mut cookie).ok()?;
    Some(cookie)
}

/// Breaks a connection for all who hold it: the next call of any of them, and of the peer, fails with `ECONNRESET`.
pub fn disconnect(fd: c_int) -> Result<(), Errno> {
    let nowhere = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as libc::sa_family_t,
        sa_data: [0; 14],
    };
    let place = core::ptr::from_ref(&nowhere).expose_provenance();
    let arguments = [fd_arg(fd), place, size_of_val(&nowhere), 0, 0, 0];
    // SAFETY: the kernel reads the address.
    unsafe { call(libc::SYS_connect, arguments) }.map(drop)
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

/// Places that [`pread_at_once`] fills at most.
const PLACES: usize = 32;

/// Reads what is in memory of a file from `at` on, without waiting for more (`RWF_NOWAIT`).
pub fn pread_at_once(fd: c_int, places: &[Dest<'_>], at: libc::off_t) -> Result<usize, Errno> {
    const NONE: libc::iovec = libc::iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    };
    let mut parts = [NONE; PLACES];
    for (part, place) in parts.iter_mut().zip(places) {
        part.iov_base = place.as_mut_ptr().cast();
        part.iov_len = place.len();
    }
    let (begin, count) = (parts.as_ptr().expose_provenance(), places.len().min(PLACES));
    let flags = libc::RWF_NOWAIT as usize;
    // SAFETY: the kernel writes at most as many bytes to each place as it has room for. The position is given in
    // halves, of which 64-bit kernels read the first alone.
    unsafe { call(libc::SYS_preadv2, [fd_arg(fd), begin, count, at as usize, 0, flags]) }
}

/// Writes `bytes`; answers how many.
pub fn write(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    let place = bytes.as_ptr().expose_provenance();
    // SAFETY: the kernel reads at most `bytes.len()` bytes of `bytes`.
    unsafe { call(libc::SYS_write, [fd_arg(fd), place, bytes.len(), 0, 0, 0]) }
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

/// `ppoll` of one descriptor, for ever without a timeout; answers its events, 0 when time is up.
pub fn poll_until(fd: c_int, events: i16, timeout: Option<libc::timespec>) -> Result<i16, Errno> {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let place = (&raw mut entry).expose_provenance();
    let timeout = timeout
        .as_ref()
        .map_or(0, |timeout| core::ptr::from_ref(timeout).expose_provenance());
    // SAFETY: one pollfd and a timeout, or none, that outlive the call.
    unsafe { call(libc::SYS_ppoll, [place, 1, timeout, 0, 8, 0]) }?;
    Ok(entry.revents)
}

/// Sleeps while `word` holds `value`, until somebody wakes its sleepers, for so many nanoseconds at most; true if over.
pub fn sleep_while(word: &AtomicU32, value: u32, ns: u64) -> bool {
    let time = super::timespec(ns);
    let time = core::ptr::from_ref(&time).expose_provenance();
    let place = word.as_ptr().expose_provenance();
    // SAFETY: a word and a timeout that outlive the call.
    let result = unsafe {
        call(
            libc::SYS_futex,
            [place, libc::FUTEX_WAIT as usize, value as usize, time, 0, 0],
        )
    };
    result == Err(libc::ETIMEDOUT)
}

/// Wakes one who sleeps while `word` holds some value, in whatever process.
pub fn wake_one(word: &AtomicU32) {
    let place = word.as_ptr().expose_provenance();
    // SAFETY: the kernel does not look at what the word holds.
    let _ = unsafe { call(libc::SYS_futex, [place, libc::FUTEX_WAKE as usize, 1, 0, 0, 0]) };
}

/// Number of the inode of an open file: a socket's is its own for as long as any socket lives that was made near the
/// same time.
pub fn inode(fd: c_int) -> Result<u64, Errno> {
    Ok(fstat(fd)?.st_ino)
}

/// Whether an open file is a socket.
pub fn is_socket(fd: c_int) -> Result<bool, Errno> {
    Ok(fstat(fd)?.st_mode & libc::S_IFMT == libc::S_IFSOCK)
}

fn fstat(fd: c_int) -> Result<libc::stat, Errno> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    let place = stat.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes one stat, of which zeroes are a valid value too.
    unsafe {
        call(libc::SYS_fstat, [fd_arg(fd), place, 0, 0, 0, 0])?;
        Ok(stat.assume_init())
    }
}

/// Writes to the program's memory where that can be written; the kernel checks.
pub fn write_if_possible(place: *mut libc::timespec, time: &libc::timespec) -> Result<(), Errno> {
    let part = |base: *mut libc::c_void| libc::iovec {
        iov_base: base,
        iov_len: size_of::<libc::timespec>(),
    };
    let (from, to) = (part(core::ptr::from_ref(time).cast_mut().cast()), part(place.cast()));
    let (from, to) = (
        (&raw const from).expose_provenance(),
        (&raw const to).expose_provenance(),
    );
    // SAFETY: the kernel reads the time and answers EFAULT where it cannot write.
    unsafe { call(libc::SYS_process_vm_writev, [getpid() as usize, from, 1, to, 1, 0]) }.map(drop)
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

/// Zeroed memory that children share which are made from now on; what nobody touches costs nothing.
pub fn anonymous_shared(len: usize) -> Result<*mut u8, Errno> {
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a new mapping where the kernel likes.
    let fresh = unsafe { call(libc::SYS_mmap, [0, len, access, flags, usize::MAX, 0])? };
    Ok(core::ptr::with_exposed_provenance_mut(fresh))
}
