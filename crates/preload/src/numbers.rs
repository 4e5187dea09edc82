//! System calls by number.

use crate::{descriptors, exec, files, messages, options, process, raw_rings, requests, select, transfer, wait};
use core::arch::naked_asm;
use core::ffi::{c_int, c_long, c_ulong, c_void};
use viaduct_socket::descriptors::lifecycle;
use viaduct_socket::process::lodgers;
use viaduct_socket::{is_nowhere, real};

/// The address that a word holds.
fn place<T>(word: c_long) -> *mut T {
    core::ptr::with_exposed_provenance_mut(word as usize)
}

/// Whether the word is an address where nothing is, but not null.
fn is_bad(word: c_long) -> bool {
    word != 0 && is_nowhere(place::<c_void>(word))
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    naked_asm!(
        "cmp rdi, {setup}",
        "jne {other}",
        // Who asks for a ring, in place of the number.
        "mov rdi, [rsp]",
        "jmp {make_ring}",
        setup = const libc::SYS_io_uring_setup,
        other = sym by_number,
        make_ring = sym raw_rings::make,
    )
}

/// Raw system calls that programs make of socket calls take the same way as these.
unsafe extern "C-unwind" fn by_number(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let fd = a as c_int;
    let at = place::<c_void>(b);
    // SAFETY: the program's own call.
    unsafe {
        match number {
            libc::SYS_close => descriptors::close(fd).into(),
            libc::SYS_close_range => descriptors::close_range(a as u32, b as u32, c as c_int).into(),
            libc::SYS_dup => descriptors::dup(fd).into(),
            libc::SYS_dup3 => descriptors::dup3(fd, b as c_int, c as c_int).into(),
            libc::SYS_read => transfer::read(fd, at, c as usize) as c_long,
            libc::SYS_write => transfer::write(fd, at, c as usize) as c_long,
            libc::SYS_readv => transfer::readv(fd, at.cast(), c as c_int) as c_long,
            libc::SYS_writev => transfer::writev(fd, at.cast(), c as c_int) as c_long,
            libc::SYS_recvfrom => transfer::recvfrom(fd, at, c as usize, d as c_int, place(e), place(f)) as c_long,
            libc::SYS_sendto => transfer::sendto(fd, at, c as usize, d as c_int, place(e), f as u32) as c_long,
            libc::SYS_recvmsg => messages::recvmsg(fd, at.cast(), c as c_int) as c_long,
            libc::SYS_sendmsg => messages::sendmsg(fd, at.cast(), c as c_int) as c_long,
            libc::SYS_recvmmsg => messages::recvmmsg(fd, at.cast(), c as u32, d as c_int, place(e)).into(),
            libc::SYS_sendmmsg => messages::sendmmsg(fd, at.cast(), c as u32, d as c_int).into(),
            // The offset comes in two halves, of which a 64-bit machine uses the first.
            libc::SYS_preadv2 => transfer::preadv2(fd, at.cast(), c as c_int, d, f as c_int) as c_long,
            libc::SYS_pwritev2 => transfer::pwritev2(fd, at.cast(), c as c_int, d, f as c_int) as c_long,
            libc::SYS_sendfile => files::sendfile(fd, b as c_int, place(c), d as usize) as c_long,
            libc::SYS_splice => files::splice(fd, place(b), c as c_int, place(d), e as usize, f as u32) as c_long,
            libc::SYS_socket => descriptors::socket(fd, b as c_int, c as c_int).into(),
            libc::SYS_connect => descriptors::connect(fd, at.cast(), c as u32).into(),
            libc::SYS_accept => descriptors::accept(fd, at.cast(), place(c)).into(),
            libc::SYS_accept4 => descriptors::accept4(fd, at.cast(), place(c), d as c_int).into(),
            libc::SYS_shutdown => descriptors::shutdown(fd, b as c_int).into(),
            libc::SYS_dup2 => descriptors::dup2(fd, b as c_int).into(),
            libc::SYS_fcntl => descriptors::fcntl(fd, b as c_int, c as u64).into(),
            libc::SYS_ioctl => options::ioctl(fd, b as u64, c as u64).into(),
            libc::SYS_getsockopt => options::getsockopt(fd, b as c_int, c as c_int, place(d), place(e)).into(),
            libc::SYS_setsockopt => options::setsockopt(fd, b as c_int, c as c_int, place(d), e as u32).into(),
            libc::SYS_poll => wait::poll(place(a), b as u64, c as c_int).into(),
            // The C library would read the time before the kernel can refuse it.
            libc::SYS_ppoll if is_bad(c) => real::syscall(number, a, b, c, d, e, f),
            libc::SYS_select | libc::SYS_pselect6 if is_bad(e) => real::syscall(number, a, b, c, d, e, f),
            libc::SYS_ppoll => {
                wait::telling_what_is_left(place(c), |time| wait::ppoll(place(a), b as u64, time, place(d))).into()
            }
            libc::SYS_select => select::select(fd, place(b), place(c), place(d), place(e)).into(),
            libc::SYS_pselect6 => {
                let mask = place::<*const libc::sigset_t>(f);
                let mask = if is_nowhere(mask) { core::ptr::null() } else { *mask };
                wait::telling_what_is_left(place(e), |time| {
                    select::pselect(fd, place(b), place(c), place(d), time, mask)
                })
                .into()
            }
            libc::SYS_epoll_create => wait::epoll_create(fd).into(),
            libc::SYS_epoll_create1 => wait::epoll_create1(fd).into(),
            libc::SYS_epoll_ctl => wait::epoll_ctl(fd, b as c_int, c as c_int, place(d)).into(),
            libc::SYS_epoll_wait => wait::epoll_wait(fd, at.cast(), c as c_int, d as c_int).into(),
            libc::SYS_epoll_pwait => wait::epoll_pwait(fd, at.cast(), c as c_int, d as c_int, place(e)).into(),
            libc::SYS_epoll_pwait2 => wait::epoll_pwait2(fd, at.cast(), c as c_int, place(d), place(e)).into(),
            libc::SYS_io_submit => requests::submit(a, b, c),
            libc::SYS_pipe => descriptors::pipe(place(a)).into(),
            libc::SYS_pipe2 => descriptors::pipe2(place(a), b as c_int).into(),
            libc::SYS_socketpair => descriptors::socketpair(fd, b as c_int, c as c_int, place(d)).into(),
            libc::SYS_pidfd_getfd => descriptors::pidfd_getfd(fd, b as c_int, c as u32).into(),
            libc::SYS_fork | libc::SYS_vfork => process::_Fork().into(),
            libc::SYS_clone => cloning(a as u64, || real::syscall(number, a, b, c, d, e, f)),
            // The flags come first among its arguments.
            libc::SYS_clone3 if !is_nowhere(place::<u64>(a)) => {
                cloning(*place::<u64>(a), || real::syscall(number, a, b, c, d, e, f))
            }
            libc::SYS_prctl => process::prctl(fd, b as c_ulong, c as c_ulong, d as c_ulong, e as c_ulong).into(),
            libc::SYS_mlockall => process::mlockall(fd).into(),
            libc::SYS_munlockall => process::munlockall().into(),
            libc::SYS_seccomp => {
                viaduct_socket::process::confining();
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_exit_group => process::_exit(fd),
            libc::SYS_execve => exec::execve(place(a), place(b), place(c)).into(),
            libc::SYS_execveat => exec::execveat(fd, place(b), place(c), place(d), e as c_int).into(),
            _ => {
                let result = real::syscall(number, a, b, c, d, e, f);
                if makes_a_descriptor(number) {
                    lifecycle::fresh(result as c_int);
                }
                result
            }
        }
    }
}

/// Makes a child, or a thread, by a call that tells nobody.
fn cloning(flags: u64, call: impl FnOnce() -> c_long) -> c_long {
    if process::has_own_memory(flags) {
        return viaduct_socket::process::forking(|| call() as isize) as c_long;
    }
    lodgers::expect(flags);
    call()
}

/// Whether the call answers with a new descriptor of a kind that is none of ours.
fn makes_a_descriptor(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_open
            | libc::SYS_openat
            | libc::SYS_openat2
            | libc::SYS_creat
            | libc::SYS_eventfd
            | libc::SYS_eventfd2
            | libc::SYS_timerfd_create
            | libc::SYS_memfd_create
            | libc::SYS_inotify_init
            | libc::SYS_inotify_init1
            | libc::SYS_pidfd_open
            | libc::SYS_signalfd
            | libc::SYS_signalfd4
            | libc::SYS_perf_event_open
            | libc::SYS_userfaultfd
            | libc::SYS_mq_open
    )
}
