//! Epoll sets whose members may be on lanes.
//!
//! The program's set stays a kernel set with the program's registrations. When a member is attached to a segment, its
//! kernel registration is replaced by an edge-triggered one whose data is a tag of ours, so that the kernel still tells
//! us of marks, FIN, RST and room for raw bytes, and readiness as the program sees it is computed here: `crate::ready`.
//! A bell is added to the set, so that peers can wake whoever sleeps in it.
//!
//! Members with recent traffic are *hot*: they are looked at by polling and, before sleeping, armed to ring the bell. A
//! member without traffic for a while becomes *cold*: it is armed for a mark on its kernel connection, which costs its
//! next message a system call and everybody else nothing.
//!
//! A set is owned (as in `crate::lock`) while its lists are used, never while waiting. Order: a set before a direction.

mod arm;
pub(crate) mod back;
pub mod ctl;
pub(crate) mod inner;
pub(crate) mod inside;
mod list;
pub(crate) mod lone;
mod look;
mod place;
pub(crate) mod polled;
pub(crate) mod set;
pub(crate) mod share;
pub(crate) mod shelf;
pub mod wait;

use crate::conn::{self, Conn, Phase};
use crate::descriptors::table;
pub(crate) use crate::epoll::inside::{jumping, wake_elsewhere};
pub(crate) use crate::epoll::set::{
    BYTES, EDGE, EMULATED, FIRED, FRESH, KERNEL, MEMBER, MEMBER_TURNS, MEMBERS, Member, PARKED, ROOM, SET, Set, Tagged,
    UNSEEN, member, set, set_links, tag, whose,
};
use crate::extent::Extent;
use crate::path::demote;
use crate::process::{self, lodgers};
use crate::ready;
use crate::sys::{Errno, raw};
use crate::wait::bell::{self, Bell};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
use libc::{EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP};
use viaduct_control::Reason;

static EXTENT: Extent = Extent::none();

/// The places that sets have been in.
fn places() -> &'static [Set] {
    EXTENT.of(&SET)
}

/// Before a set is in the place `index`.
pub(crate) fn reach(index: usize) {
    EXTENT.reach(index);
}

/// A new epoll set `fd`.
pub fn created(fd: i32) {
    if lodgers::has_own_table() {
        return;
    }
    // First: a child shares the set with us, though neither of us may have had a socket by then. Not where that could
    // take a forbidden system call.
    if !process::is_confined() {
        process::start();
    }
    for (index, set) in SET.iter().enumerate() {
        if set.used.load(Relaxed) {
            continue;
        }
        reach(index);
        if set.used.swap(true, AcqRel) {
            continue;
        }
        set.fd.store(fd, Relaxed);
        set.references.store(1, Relaxed);
        set.generation
            .store(set.generation.load(Relaxed).wrapping_add(1), Relaxed);
        set.bell.store(0, Relaxed);
        set.members.clear();
        set.hot.clear();
        set.emulated.store(0, Relaxed);
        set.sleepers.store(0, Relaxed);
        set.begin_outside();
        set.foreign_edges.store(false, Relaxed);
        set.waited.store(false, Relaxed);
        set.nested.store(false, Relaxed);
        set.shared.store(false, Relaxed);
        set.inherited.store(false, Relaxed);
        set.crowded.store(false, Relaxed);
        set.unheard.store(false, Relaxed);
        set.kernel_looked.store(0, Relaxed);
        if !table::set_epoll(fd, index) {
            set.end(None);
        }
        return;
    }
}

/// One more descriptor for the set.
pub(crate) fn hold(index: usize) {
    if let Some(set) = set(index) {
        set.references.fetch_add(1, Relaxed);
    }
}

/// The descriptor `fd` less; with the last the set is gone.
pub(crate) fn release(index: usize, fd: i32) {
    let Some(set) = set(index) else { return };
    if set.references.fetch_sub(1, AcqRel) != 1 {
        if set.fd() == fd
            && let Some(other) = table::find_set(index)
        {
            set.fd.store(other, Relaxed);
        }
        return;
    }
    inner::leave(index, false);
    inner::empty(index, false, |_| ());
    let owner = set.own();
    if owner.is_some() {
        while let Some(number) = set.members.first() {
            remove(set, number);
        }
        if let Some(bell) = bell::numbered(set.bell.swap(0, Relaxed)) {
            bell.abandon();
        }
    }
    set.end(owner);
}

/// Takes a member out of its set and its connection's list. The set is owned.
pub(crate) fn remove(set: &Set, number: u32) {
    let Some(gone) = member(number) else { return };
    set.cool(number, gone);
    set.members.remove(number, set_links);
    // An event that the kernel has given out already must not find it any more.
    if gone.change(u32::MAX, 0) & EMULATED != 0 {
        set.emulated.fetch_sub(1, Relaxed);
    }
    if let Some(conn) = gone.conn() {
        let mut place = &conn.memberships;
        while let Some(other) = member(place.load(Relaxed)) {
            if core::ptr::eq(other, gone) {
                place.store(gone.next_of_connection.load(Relaxed), Relaxed);
                break;
            }
            place = &other.next_of_connection;
        }
    }
    gone.connection.store(0, Relaxed);
    gone.used.store(false, Release);
}

fn claim() -> Option<(u32, &'static Member)> {
    let free = |place: u32| {
        let member = MEMBER.get(place as usize);
        member.is_some_and(|member| !member.used.load(Relaxed) && !member.used.swap(true, AcqRel))
    };
    let number = MEMBER_TURNS.claim(MEMBERS, free)? + 1;
    Some((number, member(number)?))
}

/// The members of a connection, in all sets. Nobody owns all of the list: who meets a member that has left it begins
/// anew, and may see others twice. One that is met again and again is passed over; those behind it may then be missed.
fn memberships(conn: &Conn) -> impl Iterator<Item = (u32, &'static Member)> {
    let id = conn.id();
    let mut next = if id == 0 { 0 } else { conn.memberships.load(Acquire) };
    let mut patience = 8;
    // Nor do lists end that two threads have changed at once.
    let mut left = MEMBERS;
    core::iter::from_fn(move || {
        loop {
            left = left.checked_sub(1)?;
            let number = next;
            let found = member(number)?;
            let known = found.connection.load(Acquire) == id;
            if known || patience == 0 {
                next = found.next_of_connection.load(Relaxed);
            } else {
                patience -= 1;
                next = conn.memberships.load(Acquire);
            }
            if known {
                return Some((number, found));
            }
        }
    })
}

pub(crate) fn find(conn: &Conn, set_index: usize, fd: i32) -> Option<(u32, &'static Member)> {
    memberships(conn)
        .find(|(_, member)| member.set.load(Relaxed) as usize == set_index + 1 && member.fd.load(Relaxed) == fd)
}

/// Takes our registration of a parked member out of the kernel's set. The set is owned.
pub(crate) fn unregister(set: &Set, member: &Member) {
    if member.change(EMULATED, 0) & EMULATED != 0 {
        set.emulated.fetch_sub(1, Relaxed);
        let _ = raw::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, member.fd.load(Relaxed), 0, 0);
    }
}

/// A new record of a member; `None`: there are no more. The set is owned.
pub(crate) fn record(
    set: &'static Set,
    set_index: usize,
    conn: &'static Conn,
    fd: i32,
) -> Option<(u32, &'static Member)> {
    let set_number = u32::try_from(set_index + 1).ok()?;
    let (number, member) = claim()?;
    member.set.store(set_number, Relaxed);
    member.fd.store(fd, Relaxed);
    member.flags.store(0, Relaxed);
    member.next_of_connection.store(conn.memberships.load(Relaxed), Relaxed);
    // Release, here and below, pairs with the acquire in `memberships`.
    member.connection.store(conn.id(), Release);
    conn.memberships.store(number, Release);
    set.members.push(number, set_links);
    Some((number, member))
}

/// A registration begins. The set is owned.
pub(crate) fn begin(set: &'static Set, number: u32, member: &'static Member, events: u32, data: u64) {
    set.cool(number, member);
    if member.change(u32::MAX, 0) & EMULATED != 0 {
        // The kernel had lost our registration: the descriptor was closed and opened unseen.
        set.emulated.fetch_sub(1, Relaxed);
    }
    member.reported.store(0, Relaxed);
    member.idle.store(0, Relaxed);
    member.register(events, data);
}

/// The kernel has the program's registration of the connection no more. The set is owned.
pub(crate) fn removed(set: &Set, number: u32, member: &Member) {
    set.cool(number, member);
    if member.change(u32::MAX, PARKED) & EMULATED != 0 {
        set.emulated.fetch_sub(1, Relaxed);
    }
}

/// The kernel has the program's registration of the connection. The set is owned.
pub(crate) fn added(
    set: &'static Set,
    number: u32,
    member: &'static Member,
    conn: &'static Conn,
    events: u32,
    data: u64,
) {
    begin(set, number, member, events, data);
    let attached = conn.phase() == Phase::Attached;
    if set.nested.load(Relaxed) || set.inherited.load(Relaxed) || attached && set.is_kernels() {
        demote::ban(conn, Reason::UnseenWait);
    } else if attached {
        emulate(set, number, member);
    }
}

/// A registration as the kernel has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// The program has taken it back.
    pub(crate) parked: bool,
}

/// A registration that the kernel has had for a while becomes a member of its set; false: there is no room. Who
/// attaches the connection takes it over. The set is owned.
pub(crate) fn join(set: &'static Set, index: usize, conn: &'static Conn, registration: Registration) -> bool {
    let Registration {
        fd,
        events,
        data,
        parked,
    } = registration;
    let known = find(conn, index, fd);
    let Some((number, member)) = known.or_else(|| record(set, index, conn, fd)) else {
        return false;
    };
    if known.is_some() && !member.has(PARKED) {
        member.register(events, data);
    } else {
        begin(set, number, member, events, data);
    }
    if parked {
        removed(set, number, member);
    } else if set.nested.load(Relaxed) {
        demote::ban(conn, Reason::UnseenWait);
    }
    true
}

/// What may be asked for together with exclusive wake-ups. The kernel refuses the rest.
pub(crate) const MAY_BE_EXCLUSIVE: u32 =
    (EPOLLIN | EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE)
        .cast_unsigned();

/// With any of these the kernel does not tell again of what it has told.
pub(crate) const TOLD_ONCE: u32 = (EPOLLET | EPOLLONESHOT).cast_unsigned();

/// What our own registrations ask for.
pub(crate) const OUR_EVENTS: u32 = (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET).cast_unsigned();

/// Changes what the kernel has of a member. The set is owned.
pub(crate) fn register(set: &Set, member: &Member, events: u32, data: u64) -> Result<(), Errno> {
    // By what has the number now, the kernel may know a registration that is another's.
    if !member.is_named() {
        return Err(libc::EBADF);
    }
    let control = |operation| raw::epoll_ctl(set.fd(), operation, member.fd.load(Relaxed), events, data);
    match control(libc::EPOLL_CTL_MOD) {
        // What is exclusive is not changed, nor made so.
        Err(libc::EINVAL) if member.events.load(Relaxed) & EPOLLEXCLUSIVE.cast_unsigned() != 0 => {
            control(libc::EPOLL_CTL_DEL).and_then(|()| control(libc::EPOLL_CTL_ADD))
        }
        result => result,
    }
}

/// Takes the kernel registration over. The set is owned.
pub(crate) fn emulate(set: &Set, number: u32, member: &'static Member) {
    let data = tag() | u64::from(number);
    let unnamed = || member.conn().filter(|_| !member.is_named());
    if let Some(conn) = unnamed() {
        return demote::ban(conn, Reason::UnseenWait);
    }
    set.ensure_bell();
    if register(set, member, OUR_EVENTS, data).is_err() {
        if let Some(conn) = unnamed() {
            return demote::ban(conn, Reason::UnseenWait);
        }
        // The kernel knows no such registration: the descriptor was closed and opened unseen.
        return remove(set, number);
    }
    taken_over(set, number, member);
}

/// The kernel registration is ours. The set is owned.
pub(crate) fn taken_over(set: &Set, number: u32, member: &'static Member) {
    if member.change(BYTES, EMULATED | FRESH | KERNEL) & EMULATED == 0 {
        set.emulates_one_more();
        if set.emulated.load(Relaxed) == 1 {
            set.tell_outside();
        }
    }
    set.heat(number, member);
    set.nudge();
}

/// A connection has been attached: takes over its registrations. A one-shot registration is left until the program arms
/// it again, since only the kernel knows whether it has fired.
pub(crate) fn attached(conn: &'static Conn) {
    // Pairs with `lone::begin`: either it sees the phase, or we see that the registration is owned.
    fence(SeqCst);
    if !lone::settle(conn) {
        demote::ban(conn, Reason::UnseenWait);
    }
    for_each_membership(conn, |set, number, member| {
        let oneshot = member.events.load(Relaxed) & EPOLLONESHOT.cast_unsigned() != 0;
        // Another thread may have closed it meanwhile: then the record may be that of a connection without a lane, of
        // which only the kernel knows.
        if conn.phase() != Phase::Attached || member.has(PARKED) {
            return;
        }
        if set.is_kernels() {
            demote::ban(conn, Reason::UnseenWait);
        } else if !oneshot {
            emulate(set, number, member);
        }
    });
}

/// The program has been told that the connection is full, and may wait for room without saying so again: sleepers are
/// to look for it, which they do at hot members only.
pub(crate) fn wants_room(conn: &'static Conn) {
    if conn.flag(conn::OUT_WANTED) {
        return;
    }
    conn.set_flag(conn::OUT_WANTED, true);
    tell_again(conn, ready::OUT, ROOM);
}

/// The program has shut a direction down: as with TCP, sets are told anew of all there is.
pub(crate) fn shut_down(conn: &'static Conn) {
    tell_again(conn, u32::MAX, FRESH);
}

/// What is asked for any of `events` may have something to tell.
fn tell_again(conn: &'static Conn, events: u32, flag: u32) {
    for_each_membership(conn, |set, number, member| {
        if member.has(EMULATED) && !member.has(PARKED) && member.events.load(Relaxed) & events != 0 {
            member.change(0, flag);
            set.heat(number, member);
            set.nudge();
        }
    });
}

/// A connection ends: leaves its sets. The kernel removes the registrations by itself, but keeps one whose socket
/// another process holds. `stale`: the descriptor may stand for something else already.
pub(crate) fn forget(conn: &'static Conn, stale: bool) {
    lone::forget(conn);
    for_each_membership(conn, |set, number, member| {
        if !stale && member.has(PARKED) && conn.flag(conn::FORKED | conn::HANDED_OVER) {
            unregister(set, member);
        }
        remove(set, number);
    });
}

/// One of several descriptors of the connection is about to go. The kernel keeps registrations made with it, which the
/// program can no longer name, and neither can we; parked ones it must not find.
pub(crate) fn descriptor_gone(conn: &'static Conn, fd: i32, stale: bool) {
    let lone = &conn.lone;
    let mut kernels = lone.is_registered() && lone.registration().fd == fd;
    for_each_membership(conn, |set, number, member| {
        if member.fd.load(Relaxed) != fd {
            return;
        }
        if member.has(PARKED) {
            if !stale {
                unregister(set, member);
            }
            remove(set, number);
        } else {
            kernels |= !member.has(EMULATED);
        }
    });
    if kernels {
        demote::ban(conn, Reason::UnseenWait);
    }
}

pub(crate) fn for_each_membership(conn: &'static Conn, mut visit: impl FnMut(&'static Set, u32, &'static Member)) {
    for (number, member) in memberships(conn) {
        if let Some(set) = member.set()
            && let Some(_owner) = set.own()
            && member.connection.load(Relaxed) == conn.id()
        {
            visit(set, number, member);
        }
    }
}

/// What the program has registered the connection with, the registrations that it has taken back left out.
pub(crate) fn registrations(conn: &Conn) -> impl Iterator<Item = &'static Member> {
    memberships(conn)
        .map(|(_, member)| member)
        .filter(|member| !member.has(PARKED))
}

/// Whether every wait for the connection that is known of looks at its lane: if not, its next bytes must announce
/// themselves on the kernel connection.
pub(crate) fn covers(conn: &Conn) -> bool {
    registrations(conn).next().is_some() && !is_left_to_kernel(conn)
}

/// Whether the kernel watches the connection for a set.
pub(crate) fn is_left_to_kernel(conn: &Conn) -> bool {
    registrations(conn).any(|found| !found.has(EMULATED))
}

/// The bell of the set the connection is in, if it is in one.
pub(crate) fn bell_of(conn: &Conn) -> Option<&'static Bell> {
    let its_set = || match memberships(conn).next() {
        Some((_, member)) => member.set(),
        None => conn.lone.in_set(),
    };
    let set = its_set()?;
    let _owner = set.own()?;
    // Another thread may have closed it meanwhile, and its place be another's.
    let still = its_set().is_some_and(|of| core::ptr::eq(of, set));
    if still { set.ensure_bell() } else { None }
}

/// A bell has got another outer bell: the set whose it is, if it is a set's, is to hear that as well. No set is owned.
pub(crate) fn hear_outside(bell: &Bell) {
    let has_bell = |set: &&'static Set| set.used.load(Relaxed) && set.bell.load(SeqCst) == bell.number();
    for set in places().iter().filter(has_bell) {
        let Some(_owner) = set.own() else {
            // A handler has interrupted a wait of its own thread.
            bell.lose_outer();
            continue;
        };
        // It may have been closed meanwhile.
        if has_bell(&set) {
            set.hear_outside(bell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::records;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_connection_that_came_in_the_place_of_the_attached_one_stays_the_kernels() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = stream.as_raw_fd();
        let conn = records::begin(fd, 0).unwrap();
        // No other test uses it. It has no kernel set, so that to take anything over there would fail, and end the
        // membership.
        let index = crate::epoll::set::SETS - 4;
        let set = &SET[index];
        set.used.store(true, Relaxed);
        set.fd.store(-1, Relaxed);
        let (number, member) = record(set, index, conn, fd).unwrap();
        begin(set, number, member, EPOLLIN.cast_unsigned(), 0);
        attached(conn);
        assert_eq!(conn.phase(), Phase::Plain);
        assert!(find(conn, index, fd).is_some_and(|(_, member)| !member.has(EMULATED)));
    }
}
