//! The process whose records of connections and sets there are: its forks, its threads, what it forbids itself, and its
//! end.

pub(crate) mod apart;
pub(crate) mod forks;
pub mod lodgers;
pub(crate) mod own_waits;
pub(crate) mod shared;
pub(crate) mod thread;
pub(crate) mod unseen;

use crate::agent::{self, counters, worth};
use crate::conn::{Conn, Phase, records};
use crate::epoll::{self, share, shelf};
use crate::memory::group;
use crate::path::{closing, demote, switch};
use crate::sys::{self, raw};
use crate::wait::{asleep, bell, direct};
use crate::{lock, search};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};
use libc::c_int;

/// The process whose connections and sets the records are; 0 before the first socket, set or record.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether the records are the calling process's, which may be a child on the memory of another.
pub(crate) fn owns_records() -> bool {
    PROCESS.load(Relaxed) == raw::getpid()
}

/// Before the first set: has `fork` tell us.
pub(crate) fn start() {
    if PROCESS.load(Relaxed) == 0 && PROCESS.swap(raw::getpid(), Relaxed) == 0 {
        sys::at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
        viaduct_channel::set_gate(group::take);
    }
}

/// The same before the first socket or record.
pub(crate) fn start_with_sockets() {
    forks::expect_sockets();
    start();
}

/// The program makes a child by a call that tells nobody.
pub fn forking(call: impl FnOnce() -> isize) -> isize {
    if PROCESS.load(Relaxed) == 0 {
        return call();
    }
    before_fork(sys::stack_pointer());
    let child = call();
    if child == 0 {
        after_fork_in_child();
        return 0;
    }
    let errno = sys::errno();
    if child < 0 {
        forks::failed();
    }
    after_fork_in_parent();
    sys::set_errno(errno);
    child
}

/// In a child that [`forking`] cannot return in.
pub fn forked() {
    if PROCESS.load(Relaxed) != 0 {
        after_fork_in_child();
    }
}

/// The thread whose next fork is the last thing that its process does, which ends then without telling anybody.
static LAST_FORKER: AtomicU32 = AtomicU32::new(0);

/// The program goes on in a child that `call` makes, which returns there with 0; elsewhere it has failed.
pub fn continuing_in_child(call: impl FnOnce() -> c_int) -> c_int {
    LAST_FORKER.store(lock::tid(), Relaxed);
    let result = call();
    LAST_FORKER.store(0, Relaxed);
    if result != 0 {
        records::all().for_each(Conn::stay);
        lock::TURNS.end(false);
    }
    result
}

static CONFINED: AtomicBool = AtomicBool::new(false);

/// Whether the process has forbidden itself system calls; which, is not known.
pub fn is_confined() -> bool {
    CONFINED.load(Relaxed)
}

/// The process is about to forbid itself system calls: what would take some later, and can be done without, is done now
/// or never.
pub fn confining() {
    if lodgers::is_one() {
        return;
    }
    counters::begin_inherited();
    search::area::confining();
    group::confining();
    CONFINED.store(true, Relaxed);
}

/// The program locks its memory, or unlocks it, by `call`; `later`: what it maps from now on, too.
pub fn locking(later: bool, call: impl FnOnce() -> c_int) -> c_int {
    // While it is not certain, what other threads map is taken for locked, which does no harm.
    let before = viaduct_channel::set_locked(true);
    let result = call();
    viaduct_channel::set_locked(if result == 0 { later } else { before });
    result
}

/// The library is loaded. What threads need later is asked of the C library now: they may need it in a signal handler.
pub fn prepare() {
    thread::this().watch();
}

/// The calling thread ends: gives back what it has of ours.
pub(crate) fn thread_ends() {
    bell::thread_ends();
    direct::thread_ends();
    epoll::wake_elsewhere();
    asleep::wake_up();
}

/// `frame`: where on the stack, with what the program has called then deeper.
fn before_fork(frame: usize) {
    thread::this().forks.begin(frame);
    shelf::empty();
    agent::before_fork();
    forks::before_fork();
}

pub(crate) fn after_fork_in_parent() {
    thread::this().forks.end();
    forks::after_fork_in_parent();
    agent::after_fork_in_parent();
    if LAST_FORKER.load(Relaxed) == lock::tid() {
        lock::TURNS.end(true);
        records::all().for_each(Conn::leave);
    }
}

pub(crate) fn after_fork_in_child() {
    let parent = PROCESS.swap(raw::getpid(), Relaxed);
    apart::after_fork(parent);
    thread::this().forks.forget();
    lodgers::after_fork();
    // What the parent locks its children do not.
    viaduct_channel::set_locked(false);
    lock::after_fork();
    asleep::after_fork();
    agent::after_fork();
    bell::after_fork();
    share::after_fork();
    counters::after_fork();
    forks::after_fork_in_child();
}

/// Before the process ends in order: its connections are closed by the kernel, which is to see what `close` would have
/// shown it.
pub fn exiting() {
    if PROCESS.load(Relaxed) == 0 {
        return;
    }
    // A child that runs on its parent's memory ends nothing of its parent's. Not asked for nothing: programs forbid
    // themselves system calls.
    if lodgers::is_one() {
        return;
    }
    // What is let go of is in use as long as other threads run on.
    lock::TURNS.end(true);
    let is_ours = core::cell::LazyCell::new(owns_records);
    let until = sys::now_ns() + demote::PATIENCE_NS;
    for conn in records::all() {
        if conn.phase() != Phase::Plain {
            if !*is_ours {
                return;
            }
            worth::learn(conn);
        }
        if conn.phase() == Phase::Attached {
            if conn.alone() && !switch::finish(conn, until) {
                closing::reset_on_close(conn);
            }
            if let Some(guard) = conn.own_receive(conn.id()) {
                closing::settle(conn, &guard);
            }
        }
        conn.leave();
    }
    counters::bequeath();
}
