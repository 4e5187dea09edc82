//! Arming the members of a set for a sleep, and what the kernel says of them after it.

use crate::conn::Conn;
use crate::conn::pace::Bound;
use crate::epoll::set::{BYTES, EDGE, EMULATED, FRESH, HOT, KERNEL, Member, PARKED, Set, hot_links, member};
use crate::epoll::{Tagged, inner, unregister};
use crate::lock::Guard;
use crate::ready;
use crate::wait::bell;
use core::sync::atomic::Ordering::Relaxed;

/// Whether that is all: our registration asks for everything, and of what comes later the kernel tells again.
fn tells_of_bytes_only(told: u32) -> bool {
    told & !(ready::IN | ready::OUT) == 0
}

/// The flags that go and come for what the kernel is still to be asked, where it `was` to be asked already.
fn to_ask(was: bool, only_bytes: bool) -> (u32, u32) {
    match only_bytes {
        // For whatever it was.
        true if was => (0, 0),
        true => (0, BYTES),
        false => (BYTES, 0),
    }
}

/// What an event of the kernel's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The program's.
    Theirs,
    Ours,
    /// Ours, and the kernel goes on telling it.
    Again,
}

/// Notes what the kernel has told by a registration of ours, `told` in all. What is told of a member can only be noted
/// where the set is `owned`.
pub(crate) fn hear(set: &Set, whose: Tagged, told: u32, owned: bool) -> Heard {
    match whose {
        Tagged::Foreign => return Heard::Theirs,
        Tagged::Bell => {
            set.rings.fetch_add(1, Relaxed);
        }
        Tagged::OuterBell => {
            set.rings.fetch_add(1, Relaxed);
            if let Some(bell) = bell::numbered(set.bell_number()) {
                bell.heard_outside(told & !libc::EPOLLIN.cast_unsigned() != 0);
            }
        }
        Tagged::Inner(index) if inner::told(set, index) => {}
        Tagged::Inner(_) => return Heard::Again,
        Tagged::Member(number) if owned => signalled(set, number, told),
        Tagged::Member(_) => {}
    }
    Heard::Ours
}

/// Notes what the kernel said of a member. The set is owned.
fn signalled(set: &Set, number: u32, told: u32) {
    if let Some(member) = member(number)
        && member.has(EMULATED)
        && member.set().is_some_and(|of| core::ptr::eq(of, set))
    {
        if member.has(PARKED) {
            // One spurious wake, not one for every byte that the program does not wait for.
            return unregister(set, member);
        }
        // As with TCP, an end is an event for everybody.
        let ends = member.conn().is_some_and(|conn| member.ends(conn, told));
        let fresh = if ends { FRESH } else { 0 };
        let only_bytes = tells_of_bytes_only(told);
        let (gone, bytes) = to_ask(member.has(KERNEL), only_bytes);
        member.change(gone, KERNEL | EDGE | bytes | fresh);
        if let Some(conn) = member.conn().filter(|_| only_bytes) {
            conn.heard();
        }
        set.heat(number, member);
    }
}

/// Arms every hot member for a sleep; answers whether one is ready after all. `bound` is raised to what the sleep must
/// not exceed. The set is owned.
pub(crate) fn arm(set: &Set, owner: &Guard<'_>, bound: &mut Bound) -> bool {
    let crowded = set.hot.len() > 64;
    let mut number = set.hot.first();
    while let Some(current) = number {
        number = set.hot.after(current, hot_links);
        let Some(member) = member(current) else { break };
        let Some(conn) = member.conn() else { continue };
        let mut room = Bound::Program;
        let ready = ready::arm(set, owner, member, conn, &mut room);
        *bound = (*bound).max(room);
        // Somebody else may have heard of it, or registered anew, since it was last looked at.
        let told = || member.has(KERNEL | FRESH | EDGE) && ready::is_due(owner, member, conn);
        if ready || told() {
            return true;
        }
        if room != Bound::Program {
            // A bell that rings for room does not say for whom: only looking finds out.
            continue;
        }
        set.grow_idle(current, member, crowded);
        if !member.has(HOT) && ready::arm_cold(owner, conn) {
            set.heat(current, member);
            return true;
        }
    }
    false
}

/// Arms the hot members on behalf of others who sleep in the set: a wait bit goes with the first bytes, and bell and
/// kernel wake one of them. True if one of them is to look again. The set is owned.
pub(crate) fn arm_for_others(set: &Set, owner: &Guard<'_>) -> bool {
    let mut bound = Bound::Program;
    are_due_for_others(set, owner, &mut bound) || bound != Bound::Program
}

/// The same; true if there is something to report. `bound` is raised to what their sleep must not exceed.
pub(crate) fn are_due_for_others(set: &Set, owner: &Guard<'_>, bound: &mut Bound) -> bool {
    set.hot_members().any(|(_, member)| {
        let conn = member.conn();
        conn.is_some_and(|conn| is_due_for_others(set, owner, member, conn, bound))
    })
}

fn is_due_for_others(set: &Set, owner: &Guard<'_>, member: &Member, conn: &'static Conn, bound: &mut Bound) -> bool {
    ready::arm(set, owner, member, conn, bound) || ready::is_due(owner, member, conn)
}

/// The program has changed a member's interest: armed on behalf of others who sleep in the set, who look again only if
/// that makes it ready. The set is owned.
pub(crate) fn tell_others(set: &Set, owner: &Guard<'_>, member: &Member, conn: &'static Conn) {
    if !set.has_sleepers() {
        return;
    }
    let mut bound = Bound::Program;
    if is_due_for_others(set, owner, member, conn, &mut bound) || bound != Bound::Program {
        set.nudge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP};

    #[test]
    fn who_is_told_of_bytes_alone_does_not_ask_for_more() {
        let told = |told: i32| tells_of_bytes_only(told.cast_unsigned());
        assert!(told(EPOLLIN) && told(EPOLLOUT) && told(EPOLLIN | EPOLLOUT));
        for more in [EPOLLPRI, EPOLLRDHUP, EPOLLERR, EPOLLHUP] {
            assert!(!told(EPOLLIN | EPOLLOUT | more));
        }
        assert_eq!(to_ask(false, true), (0, BYTES));
        assert_eq!(to_ask(true, true), (0, 0), "what was to be asked still is");
        assert_eq!(to_ask(true, false), (BYTES, 0));
    }
}
