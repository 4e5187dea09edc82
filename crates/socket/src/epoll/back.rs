//! Registrations that the kernel gets back as the program made them: of sets that are waited for unseen, and of
//! connections that end before their sockets do.

use crate::conn::Conn;
use crate::epoll::set::{EMULATED, FIRED, Member, NOBODY, PARKED, Set, member, set, set_links, tag};
use crate::epoll::{for_each_membership, inner, lone, register, registrations, remove, unregister};
use crate::path::demote;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use libc::EPOLLONESHOT;
use viaduct_control::Reason;

/// The set is waited for in a way that Viaduct cannot look into (through several others, by edges of another, by a
/// ring, in another process that was passed it): its members, and those of sets in it, stay on TCP.
pub(crate) fn nest(index: usize) {
    let Some(set) = set(index) else { return };
    inner::watch(index);
    // A handler that has interrupted a call on the set leaves it to the next one that asks, whole.
    let Some(owner) = set.own() else { return };
    if set.nested.swap(true, AcqRel) {
        return;
    }
    // An outer set comes before it.
    drop(owner);
    inner::leave(index, true);
    inner::empty(index, true, nest);
    let Some(_owner) = set.own() else { return };
    for (number, member) in set
        .members
        .iter(set_links)
        .filter_map(|number| Some((number, member(number)?)))
    {
        if member.has(PARKED) {
            unregister(set, member);
            continue;
        }
        hand_back(set, number, member);
        if let Some(conn) = member.conn() {
            demote::ban(conn, Reason::UnseenWait);
        }
    }
    // Who sleeps there may have been rung just now, and is to find out.
    if !set.has_sleepers() {
        set.give_up_bell();
    }
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

/// The connection ends, and its socket goes on without: only the kernel has its registrations from now on. Answers
/// whether there are any.
pub(crate) fn leave(conn: &'static Conn) -> bool {
    let lone = conn.lone.is_registered();
    let _ = lone::settle(conn);
    let any = lone || registrations(conn).next().is_some();
    for_each_membership(conn, |set, number, member| {
        if member.has(PARKED) {
            unregister(set, member);
        } else {
            hand_back(set, number, member);
            set.note_foreign(member.events.load(Relaxed));
        }
        remove(set, number);
    });
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoll::reach;
    use crate::epoll::set::{HOT, MEMBERS, SET, SETS};
    use crate::sys::raw;
    use crate::wait::bell;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_set_that_is_in_use_is_not_left_half_nested() {
        // No other test uses it.
        let index = SETS - 5;
        let set = &SET[index];
        set.used.store(true, Relaxed);
        let interrupted = set.own();
        nest(index);
        assert!(!set.nested.load(Relaxed), "nothing in it has been handed back");
        drop(interrupted);
        nest(index);
        assert!(set.nested.load(Relaxed));
    }

    #[test]
    fn the_bells_of_a_set_are_not_in_it_once_it_is_nested() {
        // No other test uses it.
        let index = SETS - 10;
        let set = &SET[index];
        reach(index);
        let file = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::empty()).unwrap();
        set.fd.store(file.as_raw_fd(), Relaxed);
        set.used.store(true, Relaxed);
        let bell = set.ensure_bell().unwrap();
        let _sender = bell::tests::make_outer(bell);
        let [eventfd, outer] = bell.descriptors();
        let has = |fd| raw::epoll_ctl(set.fd(), libc::EPOLL_CTL_MOD, fd, 0, 0).is_ok();
        assert!(has(eventfd) && has(outer));
        nest(index);
        assert!(!has(eventfd) && !has(outer));
        assert!(set.ensure_bell().is_none());
        set.used.store(false, Relaxed);
    }

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
