//! The only registration in an epoll set that a connection without a lane has: it is kept with the connection, and becomes a member of its set
//! when the connection gets a lane or is registered a second time. Until then nobody asks for it, and many programs register around every
//! message, or for connections that carry one.
//!
//! Whoever changes it holds it meanwhile, through the kernel's call too, so that it is as the kernel has it. Nobody holds it for long; but a thread may
//! jump out of a signal handler and leave it held, or be asked for it by the handler: such a connection stays on TCP.

use crate::conn::{Conn, Phase};
use crate::epoll_ctl::Asked;
use crate::epoll_set::{SET, Set};
use crate::sys::{self, raw};
use crate::{demote, epoll};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, compiler_fence};
use viaduct_control::Reason;

/// In [`Lone::set`]: somebody holds it.
const HELD: u64 = u64::MAX;
/// Who meets one that is held waits so many nanoseconds.
const PATIENCE_NS: u64 = 20_000_000;

/// What the kernel has been asked to watch the connection for.
#[derive(Debug)]
pub(crate) struct Lone {
    /// See [`name`]; 0: there is no registration.
    set: AtomicU64,
    data: AtomicU64,
    events: AtomicU32,
    fd: AtomicI32,
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
    let found = SET.get(index).filter(|found| found.used.load(Relaxed))?;
    (name(index, found) == set).then_some((index, found))
}

/// The kernel is being asked; the registration is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    conn: &'static Conn,
    id: u64,
    before: u64,
    name: u64,
}

impl Lone {
    pub(crate) const fn none() -> Self {
        Self {
            set: AtomicU64::new(0),
            data: AtomicU64::new(0),
            events: AtomicU32::new(0),
            fd: AtomicI32::new(0),
        }
    }

    pub(crate) fn clear(&self) {
        self.set.store(0, Relaxed);
    }

    #[inline]
    pub(crate) fn is_there(&self) -> bool {
        self.set.load(Relaxed) != 0
    }

    /// The set, if there is one.
    pub(crate) fn in_set(&self) -> Option<&'static Set> {
        named(self.set.load(Relaxed)).map(|(_, set)| set)
    }

    #[inline]
    fn hold(&self, before: u64) -> bool {
        if sys::single_threaded() {
            self.set.store(HELD, Relaxed);
            // As far as handlers are concerned, what follows comes after.
            compiler_fence(AcqRel);
            return true;
        }
        self.set.compare_exchange(before, HELD, AcqRel, Relaxed).is_ok()
    }
}

/// Begins what the program asks for; `None`: it is not about the only registration of a connection without a lane.
#[inline]
pub(crate) fn begin(conn: &'static Conn, set: &Set, asked: Asked) -> Option<Change> {
    let (id, lone) = (conn.id(), &conn.lone);
    let name = name(asked.set, set);
    let before = lone.set.load(Acquire);
    let another = before != 0 && (before != name || lone.fd.load(Relaxed) != asked.fd);
    if another || !lone.hold(before) {
        return None;
    }
    // Looked at only now: whoever attaches it either is seen here, or finds the registration held and waits.
    let lone_still = conn.phase() != Phase::Attached && conn.memberships.load(Relaxed) == 0;
    if !lone_still || set.nested.load(Relaxed) || set.inherited.load(Relaxed) {
        lone.set.store(before, Release);
        return None;
    }
    Some(Change { conn, id, before, name })
}

impl Change {
    /// The kernel has answered, `done`: that it did what was `asked`.
    #[inline]
    pub(crate) fn end(self, done: bool, asked: Asked) {
        let Self { conn, id, before, name } = self;
        if conn.id() != id {
            // Another thread has closed it.
            return;
        }
        let lone = &conn.lone;
        let after = match asked.operation {
            _ if !done => before,
            libc::EPOLL_CTL_DEL => 0,
            // A change may be the first that is seen of a registration.
            _ => {
                lone.fd.store(asked.fd, Relaxed);
                lone.events.store(asked.events, Relaxed);
                lone.data.store(asked.data, Relaxed);
                name
            }
        };
        lone.set.store(after, Release);
    }
}

/// Makes the connection's only registration a member of its set.
#[inline]
pub(crate) fn settle(conn: &'static Conn) {
    if conn.lone.is_there() {
        settle_now(conn);
    }
}

#[cold]
fn settle_now(conn: &'static Conn) {
    let lone = &conn.lone;
    let mut until = None;
    loop {
        let name = lone.set.load(Acquire);
        if name == 0 {
            return;
        }
        if name == HELD {
            let now = sys::now_ns();
            if now > *until.get_or_insert(now + PATIENCE_NS) {
                lone.clear();
                return demote::ban(conn, Reason::UnseenWait);
            }
            raw::sched_yield();
            continue;
        }
        if lone.set.compare_exchange(name, HELD, AcqRel, Relaxed).is_err() {
            continue;
        }
        if let Some((index, set)) = named(name) {
            let (events, data) = (lone.events.load(Relaxed), lone.data.load(Relaxed));
            if !epoll::join(set, index, conn, lone.fd.load(Relaxed), events, data) {
                demote::ban(conn, Reason::Resources);
            }
        }
        return lone.set.store(0, Release);
    }
}
