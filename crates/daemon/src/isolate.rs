//! What viaductd gives up once it is set up: every capability it does not need, the way to new ones, and all system
//! calls but those of its loop.
//!
//! It opens no file, makes no socket but for pairs of connected ones, and starts no process from then on. What it says
//! about itself to others is worth something only if that is so; a viaductd of root that cannot do it must not serve.

use crate::ticket::Tickets;
use anyhow::Context;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use std::collections::BTreeMap;

/// `bpf(2)` commands on the map of guests.
const MAP_UPDATE: u64 = 2;
const MAP_DELETE: u64 = 3;

/// The domain of Unix sockets.
const UNIX: u64 = libc::AF_UNIX as u64;

/// What the loop needs, and leaving it.
const CALLS: &[libc::c_long] = &[
    // Guests.
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_ctl,
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_statx,
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
    // Programs without connections.
    libc::SYS_flock,
    // Counters, segments and bells.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    // Memory, nonces, time, the log.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_futex,
    libc::SYS_write,
    // Signals and the end.
    libc::SYS_sendto,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_restart_syscall,
    libc::SYS_sigaltstack,
    libc::SYS_unlinkat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // A panic's way out.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
];

/// Older spellings of some of these.
#[cfg(target_arch = "x86_64")]
const OLDER_CALLS: &[libc::c_long] = &[libc::SYS_epoll_wait, libc::SYS_readlink, libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_CALLS: &[libc::c_long] = &[];

/// Gives up everything that is not needed to serve, for good.
///
/// # Errors
/// What could not be given up; the rest has been.
pub(crate) fn isolate(tickets: Option<&mut Tickets>) -> anyhow::Result<()> {
    // Read from a file at the first call, which must not be the one in the loop.
    rustix::param::page_size();
    let capabilities = drop_capabilities(tickets).context("capabilities");
    let privileges = set_no_new_privs(true).context("no_new_privs");
    let calls = filter().and_then(|filter| apply_filter(&filter)).context("seccomp");
    capabilities.and(privileges).and(calls)
}

fn drop_capabilities(tickets: Option<&mut Tickets>) -> Result<(), Errno> {
    let held = rustix::thread::capabilities(None)?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for number in 0..CapabilitySet::all().bits().count_ones() {
            let capability = CapabilitySet::from_bits_retain(1 << number);
            match remove_capability_from_bounding_set(capability) {
                // Past the last one that this kernel knows.
                Err(Errno::INVAL) => break,
                other => other?,
            }
        }
    }
    let hold = |effective, permitted| {
        let inheritable = CapabilitySet::empty();
        set_capabilities(
            None,
            CapabilitySets {
                effective,
                permitted,
                inheritable,
            },
        )
    };
    hold(CapabilitySet::empty(), held.permitted)?;
    let kept = match tickets.map(Tickets::can_admit) {
        Some(true) => CapabilitySet::empty(),
        // Before Linux 5.19 every use of a map takes the right to make one, on most systems.
        Some(false) => CapabilitySet::BPF,
        // Tickets name the user namespace of a guest. Without them viaductd looks it up, which takes the right to look.
        None => CapabilitySet::SYS_PTRACE,
    };
    hold(kept & held.permitted, kept & held.permitted)
}

fn filter() -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = CALLS
        .iter()
        .chain(OLDER_CALLS)
        .map(|call| (*call, Vec::new()))
        .collect();
    let first_is = |number| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, number)
            .and_then(|condition| SeccompRule::new(vec![condition]))
    };
    rules.insert(libc::SYS_bpf, vec![first_is(MAP_UPDATE)?, first_is(MAP_DELETE)?]);
    // Outer bells.
    rules.insert(libc::SYS_socketpair, vec![first_is(UNIX)?]);
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?;
    Ok(filter.try_into()?)
}
