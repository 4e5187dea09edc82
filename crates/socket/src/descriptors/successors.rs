//! Connections that go to other programs and processes, or to code and rings whose work is not seen.

use crate::conn::{self, Conn, Phase, records};
use crate::descriptors::lifecycle::{begin_early, is_tcp, to_background};
use crate::descriptors::table::{self, Entry};
use crate::epoll::{back, shelf};
use crate::path::{demote, recall};
use crate::process::{self, lodgers, unseen};
use crate::sys::{self, raw};
use crate::{lock, search};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use viaduct_control::Reason;

/// The process is about to become another program, which may not run under Viaduct.
pub fn executing() {
    if lodgers::is_one() {
        // The descriptors are the child's, the records its parent's.
        let is_standard = |fd, _: &Conn| fd <= libc::STDERR_FILENO && is_kept(fd) && is_tcp(fd);
        return hand_over_many(Reason::ForeignProcess, true, is_standard);
    }
    shelf::empty();
    await_parent();
    hand_over_many(Reason::ForeignProcess, true, is_for_successor);
    // Any of them may be read in the program to come.
    records::all().for_each(search::hand_over);
    lock::TURNS.end(true);
    records::all().for_each(Conn::leave);
}

/// The program loads code whose calls are not seen.
pub fn loading_unseen() {
    go_unseen(Reason::UnseenCalls);
}

/// The program is about to have a ring of which nothing is seen; false if one of its connections is still on a lane.
pub fn making_ring() -> bool {
    go_unseen(Reason::UnseenRing)
}

/// Whether it may have one, all its connections being on TCP.
pub fn has_ring() -> bool {
    unseen::has_ring()
}

/// Something is to happen to the process's connections that is not seen; false if one of them is still on a lane.
fn go_unseen(reason: Reason) -> bool {
    // The counters that tell of it are one process's.
    process::start_with_sockets();
    // A C library of such code's own counts its own threads, and nobody counts the kernel's.
    sys::threads::several();
    unseen::come(reason, || {
        hand_over_many(reason, false, |_, _| true);
        table::connections().all(|(_, conn)| conn.phase() != Phase::Attached || conn.flag(conn::GIVEN_AWAY))
    })
}

fn hand_over_many(reason: Reason, leaves: bool, concerned: impl Fn(c_int, &'static Conn) -> bool) {
    demote::hand_over_many(reason, leaves, || {
        let concerned = |(fd, conn): &(c_int, &'static Conn)| !conn.is_early() && concerned(*fd, conn);
        table::connections().filter(concerned).map(|(_, conn)| conn)
    });
}

/// How long a child waits for its parent to let go of connections. A parent that does does so at once.
const LETTING_GO_NS: u64 = 2_000_000;

/// Who makes a child that becomes another program with a connection mostly closes it then; it is a matter of chance
/// which comes first. Once a process, which may look for the program in many places.
fn await_parent() {
    static WAITED: AtomicU32 = AtomicU32::new(0);
    let may_be_closed = || left_open().any(|conn| !conn.alone());
    if !may_be_closed() || WAITED.swap(lock::name(), Relaxed) == lock::name() {
        return;
    }
    let until = sys::now_ns() + LETTING_GO_NS;
    while may_be_closed() && sys::now_ns() < until {
        sys::wait_quietly(-1, 0, LETTING_GO_NS / 20);
    }
}

/// Connections on lanes that the program which this process becomes has, though nobody has said so.
fn left_open() -> impl Iterator<Item = &'static Conn> {
    let concerned = |(fd, conn): &(c_int, &'static Conn)| {
        conn.has_lane() && !conn.flag(conn::HANDED_OVER) && !conn.is_meant_for_successors() && is_kept(*fd)
    };
    table::connections().filter(concerned).map(|(_, conn)| conn)
}

/// Whether the program that this process becomes is meant to have the connection by `fd`: as its standard input or
/// output, because somebody has said so, or because nobody else has it any more. A socket that the process has in
/// common with others is else most often left open by oversight.
fn is_for_successor(fd: c_int, conn: &'static Conn) -> bool {
    fd <= libc::STDERR_FILENO || (conn.alone() || conn.is_meant_for_successors()) && is_kept(fd)
}

/// Whether `fd` is a connection that would be closed at `exec`: the program means what it does to have it stay open.
pub fn is_closed_by_exec(fd: c_int) -> bool {
    table::connection(fd).is_some() && !is_kept(fd)
}

/// Whether a copy of `fd` that stays open at `exec` is for a successor, and no mere change of its number.
pub fn is_copied_for_successor(fd: c_int) -> bool {
    table::connection(fd).is_some_and(|conn| conn.flag(conn::FORKED) || !is_kept(fd))
}

/// The program has seen to it that `fd` stays open in programs that its processes become.
pub fn keeping(fd: c_int) {
    // A child on the same memory has descriptors of its own by these numbers.
    if !lodgers::is_one()
        && let Some(conn) = table::connection(fd)
    {
        conn.mean_for_successors();
    }
}

/// None has been made.
pub fn spawning_failed() {
    records::all().for_each(withdraw_hand_over);
}

/// What has been answered is done, or on its way.
fn withdraw_hand_over(conn: &'static Conn) {
    if conn.flag(conn::HANDED_OVER) {
        recall::withdraw(conn, conn.id());
    }
}

/// The process is about to make one that becomes another program before anything is seen of it.
pub fn spawning() {
    if !lodgers::is_one() {
        let is_meant = |fd, conn: &'static Conn| conn.has_lane() && conn.is_meant_for_successors() && is_kept(fd);
        hand_over_many(Reason::ForeignProcess, true, is_meant);
    }
}

/// Whether the program that this process becomes has the descriptor.
fn is_kept(fd: c_int) -> bool {
    raw::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0)
}

/// The process did not become another program.
pub fn executing_failed() {
    for conn in records::all() {
        conn.stay();
        withdraw_hand_over(conn);
    }
    lock::TURNS.end(false);
}

/// The program gives the socket to another process, which may not run under Viaduct.
pub fn handing_over(fd: c_int) {
    // Either may connect it.
    begin_early(fd);
    shelf::empty();
    match table::lookup(fd) {
        Entry::Connection(conn) => {
            demote::hand_over(conn, Reason::ForeignProcess, true);
        }
        // Whoever gets it may know nothing of our registrations.
        Entry::Epoll(index) => back::nest(index),
        Entry::Unknown | Entry::Private | Entry::Socket => {}
    }
}

/// The program has the kernel do something with `fd` by a ring or an asynchronous request, unseen; false if it is a
/// connection that is still on a lane.
pub fn to_kernel(fd: c_int) -> bool {
    // What is asked for, or registered, may stand longer than it takes to connect it.
    begin_early(fd);
    match table::lookup(fd) {
        // On TCP for good, as it mostly is by the second time.
        Entry::Connection(conn) if conn.phase() != Phase::Attached && conn.flag(conn::BANNED) && !conn.searched() => {
            true
        }
        Entry::Connection(conn) => to_background(conn),
        Entry::Epoll(index) => {
            back::nest(index);
            true
        }
        Entry::Unknown | Entry::Private | Entry::Socket => true,
    }
}
