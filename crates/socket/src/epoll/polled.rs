//! Epoll sets that are polled or selected.

use crate::conn::pace::Bound;
use crate::descriptors::table;
use crate::epoll::inner;
use crate::epoll::set::{Set, set};
use crate::poll::IN;
use core::sync::atomic::Ordering::Relaxed;

/// Before the set with this index is polled: whether it has something to tell of which only we know.
pub(crate) fn is_ours(index: usize) -> bool {
    inner::watch(index);
    set(index).is_some_and(is_looked_into)
}

fn is_looked_into(set: &Set) -> bool {
    set.may_ring() && !set.nested.load(Relaxed)
}

/// The set that the descriptor stands for, if it has something to tell of which only we know.
pub(crate) fn set_of(fd: i32) -> Option<&'static Set> {
    set(table::epoll_set(fd)?).filter(|set| is_looked_into(set))
}

/// What a poll for `events` of a descriptor is to be told, of which the kernel has `said` this.
pub(crate) fn answer(fd: i32, events: i16, said: i16) -> i16 {
    let Some(set) = set_of(fd).filter(|_| said & !IN == 0) else {
        return said;
    };
    let asked = events & IN;
    let has_more = || said != 0 && (set.own().is_none_or(|owner| set.is_ready(&owner)) || set.has_events());
    if asked != 0 && (set.has_events() || has_more()) {
        asked
    } else {
        0
    }
}

/// Has the kernel asked again where a thread has left the set, or one in it, amid what it was told.
pub(crate) fn hear_again(set: &'static Set) {
    set.hear_again();
    inner::hear_left_again(set);
}

/// Arms the set for a sleep of who polls it, and is counted already; answers whether it is ready after all. `bound` is
/// raised to what the sleep must not exceed.
pub(crate) fn arm(set: &'static Set, bound: &mut Bound) -> bool {
    match set.own() {
        Some(owner) => set.arm_all(&owner, bound) || set.has_been_left(),
        // A handler has interrupted a call on it.
        None => {
            *bound = (*bound).max(Bound::UnrungRoom);
            false
        }
    }
}

/// After such a sleep that was not to exceed `bound`; something may have ended it.
pub(crate) fn disarm(set: &'static Set, bound: Bound, ended: bool) {
    if let Some(owner) = set.own() {
        set.disarm_all(&owner, bound, ended);
    }
}
