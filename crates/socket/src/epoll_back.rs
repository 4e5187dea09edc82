//! Registrations that the kernel gets back as the program made them: of sets that are waited for unseen, and of connections that end before their
//! sockets do.

use crate::conn::{Conn, Phase};
use crate::epoll::{emulate, for_each_membership, register, registrations, remove, unregister};
use crate::epoll_set::{EMULATED, FIRED, Member, NOBODY, PARKED, SET, Set, member, set, set_links, tag};
use crate::sys::raw;
use crate::{announce, bell, demote, lone, ready, receive, records};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use libc::EPOLLONESHOT;
use viaduct_control::Reason;

/// Some set may have members that [`keep`] kept.
static KEPT: AtomicBool = AtomicBool::new(false);

/// The set is waited for in a way that Viaduct cannot look into (through another set, or by poll): its members stay on TCP. Called before each such
/// wait that is seen.
pub(crate) fn nest(index: usize) {
    let Some(set) = set(index) else { return };
    if set.nested.swap(true, AcqRel) {
        return tell_kernel(set);
    }
    records::all()
        .filter(|conn| conn.lone.may_be_in(set))
        .for_each(|conn| _ = lone::settle(conn));
    let Some(owner) = set.own() else { return };
    for (number, member) in members(set) {
        if member.has(PARKED) {
            unregister(set, member);
            continue;
        }
        match member.conn() {
            Some(conn) => {
                demote::ban(conn, Reason::UnseenWait);
                keep(set, number, member, conn);
            }
            None => hand_back(set, number, member),
        }
    }
    drop(owner);
    tell_kernel(set);
}

/// A member of a nested set whose connection has been banned: its registration is the kernel's from now on, but as long as the lane has bytes, which
/// only the peer could bring to the kernel, it is ours. The set is owned.
pub(crate) fn keep(set: &'static Set, number: u32, member: &'static Member, conn: &'static Conn) {
    let id = conn.id();
    let unread = || {
        // Those that were put for bytes of the lane would look like bytes to the kernel. First: the next one is wanted.
        receive::clear_marks(conn, id);
        announce::ask(conn, id)
    };
    if conn.phase() != Phase::Attached || !unread() {
        return hand_back(set, number, member);
    }
    set.kept.store(true, Relaxed);
    KEPT.store(true, Release);
    if member.has(EMULATED) {
        set.heat(number, member);
    } else {
        emulate(set, number, member);
    }
}

/// Before a wait that may be for a set which is in another one.
#[inline]
pub(crate) fn tell_of_kept() {
    if KEPT.load(Relaxed) {
        tell_of_all();
    }
}

#[cold]
fn tell_of_all() {
    KEPT.store(false, SeqCst);
    SET.iter()
        .filter(|set| set.used.load(Relaxed) && set.nested.load(Relaxed))
        .for_each(tell_kernel);
}

/// Has the kernel show a nested set as readable just when a member that is ours is ready, by the set's bell, and gives those back that are read.
fn tell_kernel(set: &'static Set) {
    if !set.kept.load(Relaxed) {
        return;
    }
    let Some(owner) = set.own() else { return };
    set.kept.store(false, Relaxed);
    let bell = bell::numbered(set.bell_number());
    if let Some(bell) = bell {
        // First: a peer may ring it any time.
        raw::eventfd_reset(bell.fd());
    }
    let mut due = false;
    for (number, member) in members(set).filter(|(_, member)| member.has(EMULATED)) {
        let Some(conn) = member.conn() else { continue };
        keep(set, number, member, conn);
        due |= member.has(EMULATED) && ready::is_due(&owner, member, conn);
    }
    if let Some(bell) = bell.filter(|_| due) {
        let _ = raw::eventfd_ring(bell.fd());
    }
}

fn members(set: &'static Set) -> impl Iterator<Item = (u32, &'static Member)> {
    let numbers = set.members.iter(set_links);
    numbers.filter_map(|number| Some((number, member(number)?)))
}

/// The kernel has the program's registration again. The set is owned.
fn hand_back(set: &Set, number: u32, member: &Member) {
    // Whoever waits already would tell of it as well.
    set.cool(number, member);
    if member.change(EMULATED, 0) & EMULATED != 0 {
        set.emulated.fetch_sub(1, Relaxed);
        let (events, data) = if member.has(FIRED) {
            // The kernel adds errors and a hang-up to whatever it is asked for: the program is not told of them.
            (EPOLLONESHOT.cast_unsigned(), tag() | NOBODY)
        } else {
            (member.events.load(Relaxed), member.data())
        };
        // If it fails, the kernel has lost it: the descriptor was closed unseen.
        let _ = register(set, member, events, data);
    }
}

/// The connection ends, and its socket goes on without: only the kernel has its registrations from now on. Answers whether there are any.
pub(crate) fn leave(conn: &'static Conn) -> bool {
    let lone = conn.lone.is_registered();
    let _ = lone::settle(conn);
    let any = lone || registrations(conn).next().is_some();
    for_each_membership(conn, |set, number, member| {
        if member.has(PARKED) {
            unregister(set, member);
        } else {
            hand_back(set, number, member);
        }
        remove(set, number);
    });
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoll_set::{HOT, MEMBERS, SETS};

    #[test]
    fn what_the_kernel_gets_back_is_not_told_from_the_lane_as_well() {
        // No other test uses these.
        let (set, number) = (&SET[SETS - 3], MEMBERS);
        let member = member(number).unwrap();
        set.fd.store(-1, Relaxed);
        set.emulated.store(1, Relaxed);
        member.change(u32::MAX, EMULATED);
        set.heat(number, member);
        assert_eq!(set.hot_members().count(), 1);
        hand_back(set, number, member);
        assert_eq!(set.hot_members().count(), 0, "whoever waits looks at hot members");
        assert!(!member.has(HOT | EMULATED));
        assert_eq!(set.emulated.load(Relaxed), 0);
    }
}
