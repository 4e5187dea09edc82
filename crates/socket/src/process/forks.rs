//! What `fork` does to the records of connections.
//!
//! Other threads open and close connections until the child is made. So the parent notes for whom it counts the child
//! among the holders, and the child goes by that note, not by what it finds: it gives the count back for what is not
//! what was counted or has no descriptor any more, and forgets what nobody counted.

use crate::conn::records::{self, RECORDS, all};
use crate::conn::{ASKED, BANNED, Conn, FORKED, LEFT, Phase, READY_OWED};
use crate::descriptors::table;
use crate::epoll::{lone, share};
use crate::lock::Locks;
use crate::lock::jump::Jump;
use crate::process::{self, owns_records, thread};
use crate::search::area;
use crate::sys;
use core::cell::Cell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
use viaduct_control::Reason;

/// One bit a record: the child to come has been counted among the holders of [`Conn::counted`].
static COUNTED: [AtomicU64; RECORDS / 64] = [const { AtomicU64::new(0) }; RECORDS / 64];

/// The same of those that were searched by then: whoever searches another first has counted the child as well.
static PLACED: [AtomicU64; RECORDS / 64] = [const { AtomicU64::new(0) }; RECORDS / 64];

/// Forks that have begun: more than one where a handler of the thread that forks forks as well.
static BEGUN: AtomicU32 = AtomicU32::new(0);

/// Where on the stack a thread's forks have begun that are not over: more than one where a handler forks.
#[derive(Debug)]
pub(crate) struct Begun {
    depth: Cell<usize>,
    frames: [Cell<usize>; DEEPEST],
}

/// Deeper ones go with the last of these.
const DEEPEST: usize = 4;

impl Begun {
    pub(crate) const fn none() -> Self {
        Self {
            depth: Cell::new(0),
            frames: [const { Cell::new(0) }; DEEPEST],
        }
    }

    pub(crate) fn begin(&self, frame: usize) {
        let depth = self.depth.get();
        if let Some(place) = self.frames.get(depth) {
            place.set(frame);
        }
        self.depth.set(depth + 1);
    }

    /// Saturating: a handler may have been the first to ask for forks.
    pub(crate) fn end(&self) {
        self.depth.set(self.depth.get().saturating_sub(1));
    }

    /// In a forked child: forks that were interrupted by the one that has made it, and that it goes on with, are its
    /// own.
    pub(crate) fn forget(&self) {
        self.depth.set(0);
    }

    /// Whether the jump leaves the fork that has begun last. The C library calls handlers from the same depth before
    /// and after: a jump within one goes no higher than where the first of them was called.
    pub(crate) fn is_left_by(&self, jump: &Jump) -> bool {
        let last = self.depth.get().checked_sub(1);
        last.and_then(|last| self.frames.get(last.min(DEEPEST - 1)))
            .is_some_and(|frame| jump.leaves(frame.get()))
    }
}

/// The calling thread is about to jump, perhaps out of a handler of forks: that fork is over, in whichever process it
/// is. There may be a child, so what was counted for it stays.
pub(crate) fn jumping(jump: &Jump) {
    while thread::this().forks.is_left_by(jump) {
        if owns_records() {
            process::after_fork_in_parent();
        } else {
            process::after_fork_in_child();
        }
    }
}

/// Forks of this process and of those it descends from, twice: a socket that is made amidst one differs from those
/// before and after.
static SO_FAR: AtomicU32 = AtomicU32::new(0);

pub(crate) fn so_far() -> u32 {
    SO_FAR.load(Relaxed)
}

fn place(bits: &'static [AtomicU64; RECORDS / 64], conn: &Conn) -> (&'static AtomicU64, u64) {
    let index = records::place_of(conn) % RECORDS;
    (&bits[index / 64], 1 << (index % 64))
}

/// Counts the child to come among the connection's holders. `within`: another fork has begun, which goes by what is
/// noted already.
fn count(conn: &Conn, within: bool, child: &mut area::Child) {
    let Some(locks) = conn.locks().filter(|_| !within || was_counted(conn)) else {
        return;
    };
    let (word, bit) = place(&COUNTED, conn);
    locks.holders.fetch_add(1, AcqRel);
    // In this order, see `search::begin`: whoever searches it first meanwhile counts the child, if we do not.
    fence(SeqCst);
    let area = locks.area.load(Acquire);
    child.expect(area);
    if !within {
        let (word, bit) = place(&PLACED, conn);
        match area {
            0 => word.fetch_and(!bit, Relaxed),
            _ => word.fetch_or(bit, Relaxed),
        };
    }
    conn.counted.store(core::ptr::from_ref(locks).cast_mut(), Relaxed);
    word.fetch_or(bit, Relaxed);
    conn.set_flag(FORKED, true);
}

/// The process has let go of the connection. In a child whose own handlers run before ours, this was its count.
pub(crate) fn left(conn: &Conn) {
    let (word, bit) = place(&COUNTED, conn);
    if word.load(Relaxed) & bit != 0 && !owns_records() {
        word.fetch_and(!bit, Relaxed);
    }
}

/// The records counted, and the words they were counted in.
fn counted() -> impl Iterator<Item = (&'static Conn, &'static Locks)> {
    records::marked(&COUNTED).filter_map(|conn| Some((conn, sys::leaked_record(conn.counted.load(Relaxed))?)))
}

/// Whether the record is the connection that was counted.
fn was_counted(conn: &Conn) -> bool {
    let (word, bit) = place(&COUNTED, conn);
    // The words are nobody else's as long as the child counts.
    word.load(Relaxed) & bit != 0 && core::ptr::eq(conn.counted.load(Relaxed), conn.locks.load(Relaxed))
}

fn forget_counts() {
    for word in &COUNTED {
        if word.load(Relaxed) != 0 {
            word.store(0, Relaxed);
        }
    }
}

/// Whether there has been a socket: sets alone have nothing that is to lie in memory of both processes.
static SOCKETS: AtomicBool = AtomicBool::new(false);

/// There is a socket.
#[inline]
pub(crate) fn expect_sockets() {
    if !SOCKETS.load(Relaxed) {
        SOCKETS.store(true, Relaxed);
    }
}

/// Before a fork: there will be one more process that holds each connection.
pub(crate) fn before_fork() {
    SO_FAR.fetch_add(1, Relaxed);
    share::before_fork();
    // Pairs with `lone::begin`: either it sees that the set is kept, or we see an owner.
    fence(SeqCst);
    all().for_each(lone::before_fork);
    if SOCKETS.load(Relaxed) {
        // What either process will search later, both must see.
        area::share();
        crate::agent::worth::share();
    }
    let within = BEGUN.fetch_add(1, Relaxed) != 0;
    let mut child = area::Child::begin();
    all().for_each(|conn| count(conn, within, &mut child));
}

/// There is no child after all.
pub(crate) fn failed() {
    for (_, locks) in counted() {
        locks.holders.fetch_sub(1, AcqRel);
    }
}

/// A descriptor that leads to the connection, as far as the table says.
fn descriptor(conn: &'static Conn) -> Option<i32> {
    let known = |fd: &i32| table::connection(*fd).is_some_and(|found| core::ptr::eq(found, conn));
    Some(conn.fd()).filter(known).or_else(|| table::find(conn))
}

/// In a forked child: see the module's description.
fn go_by_counts() {
    area::after_fork_in_child();
    for (conn, locks) in counted() {
        let area = locks.area.load(Acquire);
        let (word, bit) = place(&PLACED, conn);
        if word.load(Relaxed) & bit != 0 {
            area::arrive(area);
        }
        // A thread of the parent has closed it meanwhile, or is about to.
        if conn.id() == 0 || !was_counted(conn) || descriptor(conn).is_none() {
            area::leave(area);
            locks.holders.fetch_sub(1, AcqRel);
            forget(conn);
        } else {
            // The parent is about to become another program, or to end; not this process.
            conn.set_flag(LEFT, false);
        }
    }
    all().filter(|conn| !was_counted(conn)).for_each(forget);
}

fn forget(conn: &'static Conn) {
    while let Some(fd) = descriptor(conn) {
        table::take(fd);
    }
    records::forget(conn);
}

/// In a forked child: every record is a copy, offers belong to the parent.
pub(crate) fn after_fork_in_child() {
    SO_FAR.fetch_add(1, Relaxed);
    lone::after_fork();
    go_by_counts();
    forget_counts();
    BEGUN.store(0, Relaxed);
    for conn in all() {
        conn.set_flag(FORKED, true);
        let changing = conn.lone.disown();
        let calls = [&conn.direct_receives, &conn.peeks, &conn.direct_sends];
        let direct = calls.iter().any(|calls| calls.load(Relaxed) != 0);
        if conn.flag(READY_OWED) || direct || changing {
            // The parent has a call inside the kernel that this process will not see return.
            conn.set_flag(READY_OWED, false);
            conn.set_flag(BANNED, true);
        }
        // What was asked for stands in the parent's counters.
        conn.set_flag(ASKED, false);
        calls.iter().for_each(|calls| calls.store(0, Relaxed));
        conn.own_bell.store(0, Relaxed);
        if conn.phase() == Phase::Offered {
            conn.set_phase(Phase::Plain);
        }
    }
}

/// In a process that has forked: offers are taken back, since the child may be the one to use the socket.
pub(crate) fn after_fork_in_parent() {
    SO_FAR.fetch_add(1, Relaxed);
    area::after_fork_in_parent();
    share::after_fork_in_parent();
    for conn in all() {
        conn.set_flag(FORKED, true);
        if !was_counted(conn) {
            // The child may have it, and does not know of it. It is not on a lane yet: who forks keeps viaductd's
            // messages to itself.
            conn.set_flag(BANNED, true);
            conn.set_reason(Reason::SharedEnd);
        }
        if conn.phase() == Phase::Offered {
            conn.end_offer();
            conn.retry_at_ns.store(sys::now_ns() + 20_000_000, Relaxed);
        }
    }
    // Saturating: a thread may have asked to be told of forks amidst one.
    let begun = BEGUN.load(Relaxed).saturating_sub(1);
    BEGUN.store(begun, Relaxed);
    if begun == 0 {
        forget_counts();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_ends_the_forks_that_it_leaves() {
        let begun = Begun::none();
        let left_by = |target: usize| {
            let mut count = 0;
            while begun.is_left_by(&Jump::to(target)) {
                begun.end();
                count += 1;
            }
            count
        };
        assert_eq!(left_by(usize::MAX), 0, "there is none");
        for frame in [900, 800, 700] {
            begun.begin(frame);
        }
        assert_eq!(left_by(700), 0, "a handler jumps within itself");
        assert_eq!(left_by(850), 2);
        assert_eq!(left_by(901), 1);
        // Deeper than is noted.
        for depth in 0..10 {
            begun.begin(900 - depth);
        }
        assert_eq!(left_by(897), 0);
        assert_eq!(left_by(901), 10);
        assert_eq!(left_by(901), 0);
    }
}
