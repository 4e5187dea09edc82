//! Arming the members of a set for a sleep, and what the kernel says of them after it.

use crate::conn::pace::Bound;
use crate::epoll::set::{EDGE, EMULATED, FRESH, HOT, KERNEL, PARKED, Set, hot_links, member};
use crate::epoll::unregister;
use crate::lock::Guard;
use crate::ready;

/// Notes what the kernel said of a member, `told` in all. The set is owned.
pub(crate) fn signalled(set: &Set, number: u32, told: u32) {
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
        member.change(0, KERNEL | EDGE | fresh);
        set.heat(number, member);
    }
}

/// Arms every hot member for a sleep; answers whether one is ready after all. `bound` is raised to what the sleep must not exceed. The set is owned.
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

/// Arms the hot members on behalf of others who sleep in the set: a wait bit goes with the first bytes, and bell and kernel wake one of them. True if
/// one of them is to look again. The set is owned.
pub(crate) fn arm_for_others(set: &Set, owner: &Guard<'_>) -> bool {
    let mut bound = Bound::Program;
    let due = set.hot_members().any(|(_, member)| {
        member
            .conn()
            .is_some_and(|conn| ready::arm(set, owner, member, conn, &mut bound) || ready::is_due(owner, member, conn))
    });
    due || bound != Bound::Program
}
