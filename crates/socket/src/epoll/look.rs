//! What a set has to tell, and sleeping until it has, for who waits in it, in its outer set, or polls it.

use crate::conn::pace::Bound;
use crate::epoll::arm::Heard;
use crate::epoll::set::Set;
use crate::epoll::{EMULATED, PARKED, TOLD_ONCE, arm, member, set_links, whose};
use crate::lock::Guard;
use crate::ready;
use crate::sys::raw;
use crate::wait::bell;
use core::sync::atomic::Ordering::Relaxed;

/// Events of an inner set that are taken from the kernel at once.
const TAKEN: usize = 16;
/// How often at most, one after the other.
const TAKES: usize = 256;
/// Members that are looked at, to find out whether they can be taken.
const FEW: u32 = 256;

impl Set {
    /// Whether there is something to report of a hot member, or of an inner set.
    pub(crate) fn has_events(&'static self) -> bool {
        let Some(owner) = self.own() else { return true };
        self.is_due(&owner) || self.asked_sets().any(|inner| inner.is_ready_inside(self))
    }

    /// Whether there is something to report of a hot member. The set is owned.
    pub(crate) fn is_due(&self, owner: &Guard<'_>) -> bool {
        self.hot_members()
            .any(|(_, member)| member.conn().is_some_and(|conn| ready::is_due(owner, member, conn)))
    }

    /// Whether there is something to report of a member, or of what is no connection, the kernel having told of the
    /// set. It is owned.
    pub(crate) fn is_ready(&'static self, owner: &Guard<'_>) -> bool {
        if self.is_due(owner) {
            return true;
        }
        let is_foreign = self.has_foreign_tidings();
        // What has rung for others is heard now.
        if self.has_sleepers() && arm::are_due_for_others(self, owner, &mut Bound::Program) {
            self.ring();
        }
        is_foreign || self.is_due(owner)
    }

    /// The kernel has a registration that is not ours, for these events, of what is no member.
    pub(crate) fn note_foreign(&self, events: u32) {
        if events & TOLD_ONCE != 0 {
            self.foreign_edges.store(true, Relaxed);
        }
    }

    /// Whether the kernel has something to tell by a registration of the program's; notes what it tells by ours. The
    /// set is owned.
    fn has_foreign_tidings(&'static self) -> bool {
        if !self.tells_again() {
            // Rings are all that can be taken without the rest.
            if let Some(bell) = bell::numbered(self.bell_number()) {
                bell.registered().into_iter().for_each(|fd| bell.heard(fd));
            }
            return self.has_tidings();
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; TAKEN];
        // One after the other they tell of all inner sets, again and again.
        let mut again = self.inner_sets.load(Relaxed) as usize / TAKEN + 1;
        for _ in 0..TAKES {
            self.begin_to_hear();
            let count = raw::epoll_now(self.fd(), &mut events).unwrap_or(0);
            let (mut is_foreign, mut is_news) = (false, false);
            for event in events.iter().take(count) {
                let heard = arm::hear(self, whose(event.u64), event.events, true);
                is_foreign |= heard == Heard::Theirs;
                is_news |= heard == Heard::Ours;
            }
            self.has_heard();
            again -= usize::from(!is_news);
            if is_foreign || count < TAKEN || again == 0 {
                return is_foreign;
            }
        }
        true
    }

    /// Whether the kernel tells again of whatever it has told by a registration of the program's.
    fn tells_again(&self) -> bool {
        let members = || self.members.iter(set_links).filter_map(member);
        !self.foreign_edges.load(Relaxed)
            && self.members.len() <= FEW
            && members().all(|member| member.has(EMULATED | PARKED) || member.events.load(Relaxed) & TOLD_ONCE == 0)
    }

    /// Whether a lane of a hot member has moved, here or in an inner set; a glance without reporting.
    #[inline]
    pub(crate) fn stirs(&'static self) -> bool {
        let Some(owner) = self.own() else { return true };
        let stirs = |set: &Self, owner: &Guard<'_>| {
            set.hot_members()
                .any(|(_, member)| member.conn().is_some_and(|conn| ready::stirs(owner, member, conn)))
        };
        stirs(self, &owner)
            || self
                .asked_sets()
                .any(|inner| inner.own_inside().is_some_and(|owner| stirs(inner, &owner)))
    }

    /// Arms every hot member, here and in inner sets, for a sleep; answers whether one is ready after all. `bound` is
    /// raised to what the sleep must not exceed. The set is owned, and counts the sleeper already: an inner set's
    /// members may change as soon as they are armed.
    pub(crate) fn arm_all(&self, owner: &Guard<'_>, bound: &mut Bound) -> bool {
        if arm::arm(self, owner, bound) {
            return true;
        }
        self.armed_sets().any(|inner| match inner.own_inside() {
            Some(_) if inner.has_been_left() => true,
            Some(owner) if inner.is_asked() => inner.has_been_told_of() || arm::arm(inner, &owner, bound),
            Some(owner) => {
                if arm::arm(inner, &owner, bound) {
                    // The kernel knows whether it is to be told of.
                    inner.ring();
                }
                false
            }
            // It is looked at again soon.
            None => {
                *bound = (*bound).max(Bound::UnrungRoom);
                false
            }
        })
    }

    /// Arms the hot members, here and in inner sets, on behalf of others who sleep in the set; true if one of them is
    /// to look again. The set is owned.
    pub(crate) fn arm_all_for_others(&self, owner: &Guard<'_>) -> bool {
        arm::arm_for_others(self, owner)
            || self.armed_sets().any(|inner| {
                inner
                    .own_inside()
                    .is_none_or(|owner| arm::arm_for_others(inner, &owner))
            })
    }

    /// After a sleep that was not to exceed `bound`: what it armed is disarmed where nobody else sleeps. `rang`:
    /// something has ended it, or the set's bell has been heard. The set is owned.
    pub(crate) fn disarm_all(&self, owner: &Guard<'_>, bound: Bound, rang: bool) {
        self.disarm(owner, bound, rang);
        for inner in self.armed_sets() {
            if let Some(owner) = inner.own_inside() {
                inner.disarm(&owner, bound, rang);
            }
        }
    }

    fn disarm(&self, owner: &Guard<'_>, bound: Bound, rang: bool) {
        let others = self.has_sleepers();
        if bound == Bound::Room {
            self.mind_bells(rang);
        }
        for conn in self.hot_members().filter_map(|(_, member)| member.conn()) {
            if !others {
                ready::disarm(self, owner, conn);
            }
            if bound != Bound::Program {
                ready::relieve(conn);
            }
        }
    }

    /// After a sleep for room that might not last for ever: see [`ready::mind_bell`]. The set is owned.
    pub(crate) fn mind_bells(&self, rang: bool) {
        let waiting = self.hot_members().filter(|(_, member)| ready::asks_for_room(member));
        for conn in waiting.filter_map(|(_, member)| member.conn()) {
            ready::mind_bell(conn, self.bit_for(conn), rang, || self.has_tidings());
        }
    }
}
