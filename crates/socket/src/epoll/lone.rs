//! The only registration in an epoll set that a connection without a lane has: it is kept with the connection, and
//! becomes a member of its set when the connection gets a lane or is registered a second time. Until then nobody asks
//! for it, and many programs register around every message, or for connections that carry one.
//!
//! It is owned (as in `crate::lock`) while it is used, and through the kernel's call that changes it, so that it is as
//! the kernel has it; by the only thread of a process not through that call, which nobody but a signal handler
//! interrupts. Order: after a set, which nobody keeps who waits for it.

use crate::conn::{Conn, Phase};
use crate::epoll::ctl::Asked;
use crate::epoll::set::{SET, Set};
use crate::epoll::{self, EMULATED, PARKED, Registration, shelf};
use crate::lock::{self, Guard};
use crate::path::demote;
use crate::sys::{self, raw};
use core::hint::cold_path;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, fence};
use viaduct_control::Reason;

/// Whether this process is a forked child, which may have words that threads of its parent owned.
static CHILD: AtomicBool = AtomicBool::new(false);

const WAITS_BEFORE_FORK: u32 = 4096;

/// Events of which the kernel tells as long as they last.
const LASTING: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLERR | libc::EPOLLHUP)
        .cast_unsigned();

/// What the kernel has been asked to watch the connection for.
#[derive(Debug)]
pub(crate) struct Lone {
    owner: AtomicU32,
    fd: AtomicI32,
    /// See [`name`]; 0: there has been no registration.
    set: AtomicU64,
    data: AtomicU64,
    events: AtomicU32,
    /// The program has taken it back.
    parked: AtomicBool,
}

/// What tells a set from all that have been or will be in its place; never 0.
#[inline]
fn name(index: usize, set: &Set) -> u64 {
    u64::from(set.generation.load(Relaxed)) << 32 | (index as u64 + 1)
}

/// The set with this name, if it still is.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
fn named(set: u64) -> Option<(usize, &'static Set)> {
    let index = (set as u32 as usize).checked_sub(1)?;
    let found = SET.get(index).filter(|found| found.used.load(Acquire))?;
    (name(index, found) == set).then_some((index, found))
}

/// The kernel is being asked.
#[derive(Debug)]
pub struct Change {
    guard: Option<Guard<'static>>,
    conn: &'static Conn,
    id: u64,
    /// What was registered before.
    known: u64,
    name: u64,
    /// Another process has the set too, and may change it.
    shared: bool,
}

/// Whether the program has the connection watched in a set of which no wait has been seen, so that it may be asked by
/// system calls of the program's own (see `crate::process::own_waits`).
pub(crate) fn is_watched_unseen(conn: &Conn) -> bool {
    let lone = &conn.lone;
    !lone.is_parked() && named(lone.set.load(Acquire)).is_some_and(|(_, set)| set.is_unseen())
        || epoll::registrations(conn).any(|member| member.set().is_some_and(Set::is_unseen))
}

/// Whether that is by level and in one set alone, where the first wait is mostly about to come.
pub(crate) fn is_watched_plainly(conn: &Conn) -> bool {
    conn.lone.was_registered() && conn.lone.events.load(Relaxed) & libc::EPOLLET.cast_unsigned() == 0
}

/// What is left to be done of what the program has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    /// The kernel has been asked: to note it.
    Note,
    /// The program's own call, and to note it.
    Call,
}

impl Lone {
    pub(crate) const fn none() -> Self {
        Self {
            owner: AtomicU32::new(0),
            fd: AtomicI32::new(0),
            set: AtomicU64::new(0),
            data: AtomicU64::new(0),
            events: AtomicU32::new(0),
            parked: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn own(&'static self) -> Option<Guard<'static>> {
        lock::acquire_local(&self.owner)
    }

    fn clear(&self) {
        self.set.store(0, Relaxed);
    }

    /// For a new connection, whose record nobody else has claimed.
    pub(crate) fn reset(&self) {
        let owner = self.owner.load(Relaxed);
        if owner != 0 && CHILD.load(Relaxed) && !lock::is_ours(owner) {
            // A thread of the parent came too late for the record's last connection.
            self.owner.store(0, Relaxed);
        }
        self.clear();
    }

    /// Whether the program has registered the connection, though it may have taken that back.
    #[inline]
    pub(crate) fn was_registered(&self) -> bool {
        self.set.load(Relaxed) != 0
    }

    /// Whether the program has registered the connection, in a set that still is.
    #[cold]
    pub(crate) fn is_registered(&self) -> bool {
        !self.is_parked() && self.in_set().is_some()
    }

    /// Whether the program has taken the registration back.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked.load(Relaxed)
    }

    pub(crate) fn registration(&self) -> Registration {
        Registration {
            fd: self.fd.load(Relaxed),
            events: self.events.load(Relaxed),
            data: self.data.load(Relaxed),
            parked: self.parked.load(Relaxed),
        }
    }

    /// In a forked child: whoever changed the registration then is not here. True if somebody did.
    pub(crate) fn disown(&self) -> bool {
        self.owner.swap(0, Relaxed) != 0
    }

    /// Whether the set has the registration, or may be about to get it.
    pub(crate) fn may_be_in(&self, set: &Set) -> bool {
        self.owner.load(Acquire) != 0 || self.in_set().is_some_and(|of| core::ptr::eq(of, set))
    }

    /// The set, though the program may have taken the registration back.
    pub(crate) fn in_set(&self) -> Option<&'static Set> {
        named(self.set.load(Relaxed)).map(|(_, set)| set)
    }
}

/// Begins what the program asks of the set with this index; `None`: it is not about the only registration of a
/// connection without a lane.
#[inline(always)]
pub(crate) fn begin(conn: &'static Conn, set: &Set, index: usize, fd: i32) -> Option<Change> {
    let lone = &conn.lone;
    if is_member(conn) {
        // As everything here that leads elsewhere: what is left fits in few cache lines.
        cold_path();
        return None;
    }
    // Owned all the same: a handler has interrupted whoever settles it.
    let guard = if !sys::single_threaded() || lone.owner.load(Relaxed) != 0 {
        cold_path();
        Some(own_for_change(conn)?)
    } else {
        None
    };
    // A thread that forks waits for whoever has begun, within limits; who comes later waits for the set.
    if set.watched.load(Relaxed) || set.inherited.load(Relaxed) || set.forks.load(Relaxed) {
        cold_path();
        return None;
    }
    let (id, name, known) = (conn.id(), name(index, set), lone.set.load(Relaxed));
    let other = known != name || lone.fd.load(Relaxed) != fd;
    if id == 0 || known != 0 && other && lone.is_registered() {
        cold_path();
        return None;
    }
    Some(Change {
        guard,
        conn,
        id,
        known,
        name,
        shared: set.shared.load(Relaxed),
    })
}

#[inline(never)]
fn own_for_change(conn: &'static Conn) -> Option<Guard<'static>> {
    let guard = conn.lone.own()?;
    // Pairs with `epoll::attached`. What takes the word there is a barrier already.
    if !cfg!(target_arch = "x86_64") {
        fence(SeqCst);
    }
    // Again: whoever attaches it either is seen here, or waits for the registration.
    (!is_member(conn)).then_some(guard)
}

/// Whether sets know the connection.
#[inline]
fn is_member(conn: &Conn) -> bool {
    conn.phase() == Phase::Attached || conn.memberships.load(Relaxed) != 0
}

impl Change {
    /// Asks the kernel by the program's own call, if it has to be asked.
    #[inline(always)]
    pub fn make(self, asked: Asked, direct: impl Fn() -> i32) -> i32 {
        match self.need(asked) {
            Need::Nothing => return 0,
            Need::Note => {}
            Need::Call => {
                let result = direct();
                if result != 0 {
                    return result;
                }
            }
        }
        self.done(asked);
        0
    }

    #[inline(always)]
    fn need(&self, asked: Asked) -> Need {
        let lone = &self.conn.lone;
        let known = self.known == self.name && lone.fd.load(Relaxed) == asked.fd;
        if shelf::holds(self.conn) {
            return self.need_of_shelved(asked, known);
        }
        if !known || self.shared || lone.is_parked() {
            return Need::Call;
        }
        let changes_nothing = || {
            let lasting = asked.events & !LASTING == 0;
            lasting && asked.events == lone.events.load(Relaxed) && asked.data == lone.data.load(Relaxed)
        };
        match asked.operation {
            // The kernel tells of these as long as they last, whoever asks again.
            libc::EPOLL_CTL_MOD if changes_nothing() => Need::Nothing,
            libc::EPOLL_CTL_DEL if self.guard.is_none() && self.is_seen_waiting() => {
                // In this order: a handler registers it anew where it finds it.
                lone.parked.store(true, Relaxed);
                shelf::put(self.conn);
                Need::Nothing
            }
            _ => Need::Call,
        }
    }

    /// Whether the program waits in the set by calls that are seen, and for what the kernel lets be changed.
    #[inline(always)]
    fn is_seen_waiting(&self) -> bool {
        let exclusive = libc::EPOLLEXCLUSIVE.cast_unsigned();
        self.conn.lone.events.load(Relaxed) & exclusive == 0
            && named(self.name).is_some_and(|(_, set)| set.waited.load(Relaxed))
    }

    /// The kernel still has what the program has taken back: where it would be added, it is changed.
    #[inline]
    fn need_of_shelved(&self, asked: Asked, known: bool) -> Need {
        let exclusive = asked.events & libc::EPOLLEXCLUSIVE.cast_unsigned() != 0;
        let adds = known && !exclusive && asked.operation == libc::EPOLL_CTL_ADD;
        let Some((_, set)) = named(self.name).filter(|_| adds) else {
            cold_path();
            shelf::empty();
            return Need::Call;
        };
        // Before the call, at whose end signals come: a handler that empties the shelf would take back what the call
        // has made.
        shelf::take(self.conn);
        if raw::epoll_ctl(set.fd(), libc::EPOLL_CTL_MOD, asked.fd, asked.events, asked.data).is_ok() {
            return Need::Note;
        }
        cold_path();
        let _ = raw::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, asked.fd, 0, 0);
        Need::Call
    }

    /// The kernel has done it.
    #[inline(always)]
    fn done(self, asked: Asked) {
        let lone = &self.conn.lone;
        if self.conn.id() != self.id {
            // A handler has ended the connection.
            cold_path();
            return;
        }
        if self.guard.is_none() && lone.set.load(Relaxed) != self.known {
            // A handler has registered it elsewhere.
            cold_path();
            settle(self.conn);
        }
        if asked.operation == libc::EPOLL_CTL_DEL {
            lone.parked.store(true, Relaxed);
        } else {
            // A change may be the first that is seen of a registration.
            lone.fd.store(asked.fd, Relaxed);
            lone.events.store(asked.events, Relaxed);
            lone.data.store(asked.data, Relaxed);
            lone.parked.store(false, Relaxed);
            lone.set.store(self.name, Release);
        }
        // By a handler, or because it has been attached.
        if is_member(self.conn) {
            self.overtaken(asked.fd, asked.events);
        }
    }

    /// Sets have come to know the connection meanwhile: the registration is to be settled.
    #[cold]
    fn overtaken(self, fd: i32, events: u32) {
        drop(self.guard);
        let Some((index, set)) = named(self.name) else { return };
        let settled = settle(self.conn);
        let (true, Some(_owner)) = (settled, set.own()) else {
            return demote::ban(self.conn, Reason::UnseenWait);
        };
        // Whoever has attached it may have taken the kernel's registration over before it became the program's again. A
        // one-shot one stays the kernel's, which may have told of it already.
        let oneshot = events & libc::EPOLLONESHOT.cast_unsigned() != 0;
        if let Some((number, member)) = epoll::find(self.conn, index, fd)
            && self.conn.phase() == Phase::Attached
            && !member.has(PARKED)
        {
            if set.is_kernels() {
                demote::ban(self.conn, Reason::UnseenWait);
            } else if member.has(EMULATED) || !oneshot {
                epoll::emulate(set, number, member);
            }
        }
    }
}

/// Makes the connection's only registration a member of its set; false if this very thread is about to change it, or
/// uses the set.
#[inline]
pub(crate) fn settle(conn: &'static Conn) -> bool {
    let lone = &conn.lone;
    // One that begins has an owner. Asked first: who has given it up has stored the set before.
    let none = lone.owner.load(Acquire) == 0 && !lone.was_registered();
    none || settle_now(conn)
}

#[cold]
fn settle_now(conn: &'static Conn) -> bool {
    let lone = &conn.lone;
    if shelf::holds(conn) {
        shelf::empty();
    }
    loop {
        let name = lone.set.load(Acquire);
        let found = named(name);
        let owner = found.map(|(_, set)| set.own());
        if matches!(owner, Some(None)) {
            return false;
        }
        let _owned = match own_after(conn, owner.flatten()) {
            Ok(owned) => owned,
            Err(Busy::Later) => continue,
            Err(Busy::Ours) => return false,
        };
        // Another thread may have changed the registration, or closed either.
        if lone.set.load(Relaxed) != name || found.is_some() != named(name).is_some() {
            continue;
        }
        if let Some((index, set)) = found
            && conn.id() != 0
            && !epoll::join(set, index, conn, lone.registration())
        {
            demote::ban(conn, Reason::Resources);
        }
        lone.clear();
        return true;
    }
}

/// Why the registration is not owned.
#[derive(Debug)]
pub(crate) enum Busy {
    /// It has been waited for, the set being given up.
    Later,
    /// This very thread is about to change it.
    Ours,
}

/// Owns the registration after the set, if there is one. The set is not kept while the registration is waited for:
/// whoever changes it may have been interrupted by a handler that wants the set. Nor is the set waited for the other
/// way round: a thread that forks keeps all of them for long, and may close the connection meanwhile.
pub(crate) fn own_after(
    conn: &'static Conn,
    set: Option<Guard<'static>>,
) -> Result<(Guard<'static>, Option<Guard<'static>>), Busy> {
    if let Some(registration) = lock::try_acquire(&conn.lone.owner) {
        return Ok((registration, set));
    }
    drop(set);
    match conn.lone.own() {
        Some(_waited) => Err(Busy::Later),
        None => Err(Busy::Ours),
    }
}

/// In a forked child.
pub(crate) fn after_fork() {
    CHILD.store(true, Relaxed);
}

/// Before a fork, the sets being kept: waits for whoever changes the connection's registration, of which the child is
/// to get a whole copy. Not for ever: a handler may have interrupted it, and want one of the sets. What is not whole
/// the child gives up.
pub(crate) fn before_fork(conn: &'static Conn) {
    for _ in 0..WAITS_BEFORE_FORK {
        let word = conn.lone.owner.load(Acquire);
        let owner = lock::owner(word);
        if owner == 0 || owner == lock::name() {
            return;
        }
        if lock::lives(owner) {
            raw::sched_yield();
        } else {
            let _ = conn.lone.owner.compare_exchange(word, 0, Acquire, Relaxed);
        }
    }
}

/// The connection ends: whoever changes its registration does so before. To be repeated when its number is gone, for
/// who came in between.
pub(crate) fn forget(conn: &'static Conn) {
    // A handler that interrupted the change clears what it has interrupted.
    let _guard = conn.lone.own();
    // Its descriptor, if it is not gone, has been closed unseen.
    shelf::take(conn);
    conn.lone.clear();
}

/// The same, the connection's number being gone.
#[inline]
pub(crate) fn forget_again(conn: &'static Conn) {
    if !sys::single_threaded() {
        forget(conn);
    }
}
