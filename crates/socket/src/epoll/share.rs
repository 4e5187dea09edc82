//! Epoll sets that several processes have.
//!
//! Their registrations are the kernel's, and so common to all; our records are each process's own.

use crate::epoll::set::{PARKED, Set, member, set_links, tag};
use crate::epoll::{inner, places, unregister};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, Release};

/// By how many forks, one amid the other, links are kept.
static LINKS_KEPT: AtomicU32 = AtomicU32::new(0);

fn all_sets() -> impl Iterator<Item = &'static Set> {
    places().iter().filter(|set| set.used.load(Relaxed))
}

/// Takes parked registrations out of the kernel's set, which goes to another process. The set is owned.
fn share(set: &Set) {
    set.shared.store(true, Relaxed);
    for member in set.members.iter(set_links).filter_map(member) {
        if member.has(PARKED) {
            unregister(set, member);
        }
    }
}

/// Before a fork: shares the sets and keeps other threads from changing their lists, of which the child is to get whole
/// copies.
pub(crate) fn before_fork() {
    // Both processes are to know each other's tags.
    tag();
    if inner::keep_links() || LINKS_KEPT.load(Relaxed) != 0 {
        LINKS_KEPT.fetch_add(1, Relaxed);
    }
    // Outer sets first, as by who looks into them.
    let outer = all_sets().filter(|set| set.has_inner_sets());
    for set in outer.chain(all_sets().filter(|set| !set.has_inner_sets())) {
        if let Some(owner) = set.own()
            // It may have been closed meanwhile.
            && set.used.load(Relaxed)
        {
            share(set);
            set.forks.store(true, Relaxed);
            owner.keep();
        }
    }
}

/// In a process that has forked.
pub(crate) fn after_fork_in_parent() {
    if LINKS_KEPT.load(Relaxed) != 0 && LINKS_KEPT.fetch_sub(1, Relaxed) == 1 {
        inner::release_links();
    }
    // Also one that has come or gone meanwhile.
    for set in places().iter().filter(|set| set.forks.load(Relaxed)) {
        set.forks.store(false, Relaxed);
        // Release pairs with the acquire of the next owner.
        set.owner.store(0, Release);
    }
}

/// In a forked child: the sets are shared with the parent, the bells are not.
pub(crate) fn after_fork() {
    // Whoever owned them, by whatever it was interrupted.
    LINKS_KEPT.store(0, Relaxed);
    inner::release_links();
    for set in places() {
        // Also of one that has come or gone meanwhile: nothing is written where there has been none.
        if set.owner.load(Relaxed) != 0 || set.forks.load(Relaxed) {
            set.owner.store(0, Relaxed);
            set.forks.store(false, Relaxed);
        }
    }
    for set in all_sets() {
        set.bell.store(0, Relaxed);
        set.sleepers.store(0, Relaxed);
        set.inherited.store(true, Relaxed);
    }
}
