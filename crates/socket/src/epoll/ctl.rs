//! The program's `epoll_ctl`.
//!
//! Most of it is inlined into the hook: kernels that guard their returns against speculation leave the processor
//! without our callers' addresses, so that every function that is open during a system call returns by a misprediction
//! (8 ns each on AMD Zen).

use crate::conn::{Conn, Phase};
pub use crate::epoll::lone::Change;

use crate::descriptors::{lifecycle, table};
use crate::epoll::lone::{self, Busy};
use crate::epoll::{self, EMULATED, MAY_BE_EXCLUSIVE, Member, OUR_EVENTS, PARKED, Set, TOLD_ONCE, arm, inner};
use crate::lock::Guard;
use crate::path::demote;
use crate::sys::{self, raw};
use core::sync::atomic::Ordering::Relaxed;
use libc::EPOLLEXCLUSIVE;
use viaduct_control::Reason;

/// `epoll_ctl(set, operation, fd, {events, data})`.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The set's index.
    pub set: usize,
    /// What to do.
    pub operation: i32,
    /// The descriptor that it is about.
    pub fd: i32,
    /// The events of interest.
    pub events: u32,
    /// The program's own.
    pub data: u64,
}

/// Begins what concerns the only registration of a connection without a lane, in the set with this index: to be done by
/// [`Change::make`].
#[inline(always)]
pub fn begin(set: usize, fd: i32) -> Option<Change> {
    lone::begin(table::connection(fd)?, epoll::set(set)?, set, fd)
}

/// Does what else the program has asked for; `direct` is its own call.
#[inline(always)]
pub fn control(asked: Asked, direct: impl Fn() -> i32 + Copy) -> i32 {
    let (Some(set), Some(conn)) = (epoll::set(asked.set), connection(asked)) else {
        return control_foreign(asked, direct);
    };
    let generation = set.generation.load(Relaxed);
    let unseen = || {
        let result = direct();
        if result == 0 && asked.operation != libc::EPOLL_CTL_DEL {
            set.note_foreign(asked.events);
            demote::ban(conn, Reason::UnseenWait);
        }
        result
    };
    // It may have become a connection only now.
    if let Some(change) = lone::begin(conn, set, asked.set, asked.fd) {
        return change.make(asked, direct);
    }
    let (_registration, owner) = loop {
        // Not by a signal handler within a call on the connection or its set, whose own this is.
        if lone::settle(conn) {
            let Some(owner) = set.own() else { return direct() };
            if conn.phase() == Phase::Attached {
                break (None, Some(owner));
            }
            match lone::own_after(conn, Some(owner)) {
                Ok((registration, owner)) if !conn.lone.was_registered() => break (Some(registration), owner),
                Ok(_) | Err(Busy::Later) => continue,
                Err(Busy::Ours) => {}
            }
        }
        return unseen();
    };
    if set.references.load(Relaxed) == 0 || set.generation.load(Relaxed) != generation {
        // Another thread has closed it meanwhile, and its place may be another's.
        return unseen();
    }
    let known = epoll::find(conn, asked.set, asked.fd);
    let kernels = known.is_none_or(|(_, member)| !member.has(EMULATED | PARKED));
    if (!kernels || conn.phase() == Phase::Attached)
        && let Some(owner) = &owner
        && let Some(result) = without_kernel(set, owner, conn, known, asked)
    {
        return result;
    }
    let result = direct();
    if result == 0 {
        registered(set, conn, known, asked);
    }
    result
}

/// The connection that it is about, or what is to become one: most programs do not register it again once it stands.
#[inline]
fn connection(asked: Asked) -> Option<&'static Conn> {
    let known = table::connection(asked.fd);
    if known.is_none() && asked.operation == libc::EPOLL_CTL_ADD {
        return lifecycle::begin_early(asked.fd);
    }
    known
}

/// The same for what is no connection.
fn control_foreign(asked: Asked, direct: impl Fn() -> i32 + Copy) -> i32 {
    if table::is_private(asked.fd) {
        return sys::fail(libc::EBADF);
    }
    if asked.events & TOLD_ONCE != 0
        && let Some(set) = epoll::set(asked.set)
        && !set.foreign_edges.load(Relaxed)
    {
        // Owned: nobody is taking events from the kernel meanwhile.
        let _owner = set.own();
        set.note_foreign(asked.events);
    }
    match table::epoll_set(asked.fd) {
        Some(inner) => inner::control(asked, inner, direct),
        None => direct(),
    }
}

/// The kernel has done it. The set is owned.
fn registered(set: &'static Set, conn: &'static Conn, known: Option<(u32, &'static Member)>, asked: Asked) {
    let Asked {
        operation,
        fd,
        events,
        data,
        ..
    } = asked;
    match (operation, known) {
        (libc::EPOLL_CTL_MOD, Some((_, member))) if !member.has(PARKED) => member.register(events, data),
        // A change may be the first that is seen of a registration, or of one that another process has made anew.
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, _) => {
            match known.or_else(|| epoll::record(set, asked.set, conn, fd)) {
                Some((number, member)) => epoll::added(set, number, member, conn, events, data),
                None => {
                    set.note_foreign(events);
                    demote::ban(conn, Reason::Resources);
                }
            }
        }
        (libc::EPOLL_CTL_DEL, Some((number, member))) => epoll::removed(set, number, member),
        _ => {}
    }
}

/// What needs no call of the program's, the registration being ours or to be ours from the start; `None`: the kernel is
/// to be asked. The set is owned.
fn without_kernel(
    set: &'static Set,
    owner: &Guard<'_>,
    conn: &'static Conn,
    known: Option<(u32, &'static Member)>,
    asked: Asked,
) -> Option<i32> {
    if let Some((number, member)) = known
        && let Some(result) = change_ours(set, owner, number, member, conn, asked)
    {
        return Some(result);
    }
    let Asked {
        operation,
        fd,
        events,
        data,
        ..
    } = asked;
    // Combined with what it may not be, it is for the kernel to refuse.
    let refused = events & EPOLLEXCLUSIVE.cast_unsigned() != 0 && events & !MAY_BE_EXCLUSIVE != 0;
    if operation != libc::EPOLL_CTL_ADD
        || conn.phase() != Phase::Attached
        || refused
        || set.inherited.load(Relaxed)
        || set.is_kernels()
    {
        return None;
    }
    let (number, member) = known.or_else(|| epoll::record(set, asked.set, conn, fd))?;
    // Who sleeps in the set might else be told by the kernel, and then again by us.
    set.ensure_bell();
    if let Err(errno) = raw::epoll_ctl(set.fd(), operation, fd, OUR_EVENTS, epoll::tag() | u64::from(number)) {
        if known.is_none() {
            epoll::remove(set, number);
        }
        return Some(sys::fail(errno));
    }
    epoll::begin(set, number, member, events, data);
    epoll::taken_over(set, number, member);
    Some(0)
}

/// What of it changes a registration that is ours, or takes one over; `None`: the kernel is to be asked. The set is
/// owned.
fn change_ours(
    set: &'static Set,
    owner: &Guard<'_>,
    number: u32,
    member: &'static Member,
    conn: &'static Conn,
    asked: Asked,
) -> Option<i32> {
    let Asked {
        operation,
        events,
        data,
        ..
    } = asked;
    let flags = member.flags.load(Relaxed);
    // The kernel knows what may be combined with it.
    let exclusive = (events | member.events.load(Relaxed)) & EPOLLEXCLUSIVE.cast_unsigned() != 0;
    match operation {
        libc::EPOLL_CTL_ADD if flags & (EMULATED | PARKED) == EMULATED | PARKED => {
            if exclusive || set.is_kernels() {
                epoll::unregister(set, member);
                return None;
            }
            member.change(PARKED, 0);
        }
        libc::EPOLL_CTL_MOD if flags & PARKED == 0 => {
            if flags & EMULATED == 0 && (conn.phase() != Phase::Attached || set.is_kernels()) {
                return None;
            }
            if exclusive {
                return Some(sys::fail(libc::EINVAL));
            }
        }
        libc::EPOLL_CTL_DEL if flags & (EMULATED | PARKED) == EMULATED => {
            if exclusive || set.shared.load(Relaxed) || set.watched.load(Relaxed) {
                return None;
            }
            member.change(0, PARKED);
            set.cool(number, member);
            return Some(0);
        }
        _ if flags & (EMULATED | PARKED) == EMULATED | PARKED => {
            let changes = operation == libc::EPOLL_CTL_MOD;
            // As with the kernel, what may not be asked is refused first.
            let refused =
                !changes && operation != libc::EPOLL_CTL_DEL || changes && events & EPOLLEXCLUSIVE.cast_unsigned() != 0;
            return Some(sys::fail(if refused { libc::EINVAL } else { libc::ENOENT }));
        }
        _ => return None,
    }
    member.register(events, data);
    if !member.has(EMULATED) {
        epoll::emulate(set, number, member);
    }
    set.heat(number, member);
    arm::tell_others(set, owner, member, conn);
    Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::BANNED;
    use crate::conn::records;
    use crate::epoll::set::{SET, SETS};
    use crate::process::own_waits;
    use core::sync::atomic::AtomicBool;

    /// A set that no other test uses, and that the kernel does not have.
    fn set_of_no_kernel(place: usize) -> (usize, &'static Set) {
        let index = SETS - place;
        let set = &SET[index];
        set.used.store(true, Relaxed);
        set.references.store(1, Relaxed);
        set.fd.store(-1, Relaxed);
        (index, set)
    }

    #[test]
    fn where_waits_may_be_unseen_a_connection_that_has_just_got_its_lane_stays_the_kernels() {
        own_waits::tests::in_a_program_that_makes_them(|| {
            let (conn, [own, _peer]) = records::on_the_heap();
            let ((first, other), (index, set)) = (set_of_no_kernel(6), set_of_no_kernel(7));
            epoll::record(other, first, conn, conn.fd()).unwrap();
            let is_asked = AtomicBool::new(false);
            let asked = Asked {
                set: index,
                operation: libc::EPOLL_CTL_ADD,
                fd: conn.fd(),
                events: libc::EPOLLIN.cast_unsigned(),
                data: 0,
            };
            let user = set.own();
            let used = set.owner.load(Relaxed);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    control(asked, || {
                        is_asked.store(true, Relaxed);
                        0
                    })
                });
                // It waits for the set, and has seen that there is no lane.
                while set.owner.load(Relaxed) == used {
                    std::thread::yield_now();
                }
                conn.set_phase(Phase::Attached);
                epoll::attached(conn);
                drop(user);
            });
            assert!(is_asked.load(Relaxed), "the program's own call");
            let known = epoll::find(conn, index, conn.fd());
            assert!(known.is_some_and(|(_, member)| !member.has(EMULATED)));
            assert!(conn.flag(BANNED));
            drop(own);
        });
    }
}
