//! What `fork` does to the records of connections.

use crate::conn::{ASKED, BANNED, FORKED, Phase, READY_OWED};
use crate::records::all;
use crate::{epoll_share, lone, sys};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use core::sync::atomic::fence;

/// Before a fork: there will be one more process that holds each connection.
pub(crate) fn before_fork() {
    epoll_share::before_fork();
    // Pairs with `lone::begin`: either it sees that the set is kept, or we see an owner.
    fence(SeqCst);
    all().for_each(lone::before_fork);
    // What either process will search later, both must see.
    crate::search::area::share();
    crate::worth::share();
    for conn in all() {
        if let Some(locks) = conn.locks() {
            locks.holders.fetch_add(1, AcqRel);
        }
    }
}

/// In a forked child: every record is a copy, offers belong to the parent.
pub(crate) fn after_fork_in_child() {
    lone::after_fork();
    for conn in all() {
        conn.set_flag(FORKED, true);
        let changing = conn.lone.disown();
        let direct = conn.direct_receives.load(Relaxed) != 0 || conn.direct_sends.load(Relaxed) != 0;
        if conn.flag(READY_OWED) || direct || changing {
            // The parent has a call inside the kernel that this process will not see return.
            conn.set_flag(READY_OWED, false);
            conn.set_flag(BANNED, true);
        }
        // What was asked for stands in the parent's counters.
        conn.set_flag(ASKED, false);
        conn.direct_receives.store(0, Relaxed);
        conn.direct_sends.store(0, Relaxed);
        conn.peeks.store(0, Relaxed);
        conn.own_bell.store(0, Relaxed);
        if conn.phase() == Phase::Offered {
            conn.set_phase(Phase::Plain);
        }
    }
}

/// In a process that has forked: offers are taken back, since the child may be the one to use the socket.
pub(crate) fn after_fork_in_parent() {
    epoll_share::after_fork_in_parent();
    for conn in all() {
        conn.set_flag(FORKED, true);
        if conn.phase() == Phase::Offered {
            conn.end_offer();
            conn.retry_at_ns.store(sys::now_ns() + 20_000_000, Relaxed);
        }
    }
}
