//! How a process lets go of a connection: descriptor by descriptor, and as one of several processes.

use crate::agent::{self, counters, worth};
use crate::conn::records::disclaim;
use crate::conn::{Conn, FORKED, LEFT, Phase};
use crate::descriptors::table;
use crate::epoll::{self, lone};
use crate::lock::Locks;
use crate::process::{self, forks};
use crate::search::area;
use crate::sys;
use crate::wait::{bell, peer_bells};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

impl Conn {
    /// Whether no other process holds the connection, whose calls on the kernel connection would not be seen here.
    pub(crate) fn alone(&self) -> bool {
        !self.flag(FORKED) || self.locks().is_some_and(|locks| locks.holders.load(Relaxed) == 1)
    }

    /// Whether no other thread or process can be using the connection's words, which holds on if so.
    fn is_nobody_elses(&self) -> bool {
        // Not by the flag, which others that are told of a fork may not find set yet.
        let one = |locks: &Locks| locks.holders.load(Acquire) == 1;
        sys::single_threaded() && self.locks().is_some_and(one)
    }

    /// This process lets go of the connection, once.
    pub(crate) fn leave(&self) {
        let alone = self.is_nobody_elses();
        let before = if alone {
            let flags = self.flags.load(Relaxed);
            self.flags.store(flags | LEFT, Relaxed);
            flags
        } else {
            self.flags.fetch_or(LEFT, AcqRel)
        };
        if before & LEFT == 0 {
            forks::left(self);
            // Before a child has come to itself, the place is its parent's.
            if let Some(locks) = self.locks()
                && let reference @ 1.. = locks.area.load(Acquire)
                && process::owns_records()
            {
                area::leave(reference);
            }
        }
        match self.locks() {
            Some(locks) if before & LEFT == 0 && alone => locks.holders.store(0, Release),
            Some(locks) if before & LEFT == 0 => drop(locks.holders.fetch_sub(1, AcqRel)),
            _ => {}
        }
    }

    /// This process holds the connection after all.
    pub(crate) fn stay(&self) {
        if self.flags.fetch_and(!LEFT, AcqRel) & LEFT != 0
            && let Some(locks) = self.locks()
        {
            locks.holders.fetch_add(1, AcqRel);
            area::add(locks.area.load(Acquire));
        }
    }

    /// A descriptor that referred to the socket is about to go (`fd`), or, if `stale`, has gone unseen and the number
    /// may stand for another socket by now. With the last one the record ends.
    pub(crate) fn release(&'static self, fd: i32, stale: bool) {
        // The last one need not be taken off indivisibly: there is no other.
        if self.references.load(Acquire) != 1 && self.references.fetch_sub(1, AcqRel) != 1 {
            epoll::descriptor_gone(self, fd, stale);
            if self.fd() == fd
                && let Some(other) = table::find(self)
            {
                self.fd.store(other, Relaxed);
                self.show();
            }
            return;
        }
        self.end(stale);
    }

    fn end(&'static self, stale: bool) {
        let id = self.id();
        if id == 0 {
            // A child's copy of a table and of a record need not be of the same moment.
            return;
        }
        let index = self.index();
        let in_sets = self.memberships.load(Relaxed) != 0 || self.lone.was_registered();
        epoll::forget(self, stale);
        self.end_offer();
        let attached = self.phase() == Phase::Attached;
        let late = || sys::now_ns() + crate::path::demote::PATIENCE_NS;
        if attached && !stale && self.alone() && !crate::path::switch::finish(self, late()) {
            crate::path::closing::reset_on_close(self);
        }
        {
            let used = attached || !self.is_nobody_elses();
            let send = used.then(|| self.own_send(id)).flatten();
            let receive = used.then(|| self.own_receive(id)).flatten();
            if self.phase() == Phase::Attached {
                let (Some(_), Some(receive)) = (&send, &receive) else {
                    // Closed by a signal handler that interrupted a call on this very connection: that call still needs
                    // the segment and the record, which are given up.
                    self.fd.store(-1, Relaxed);
                    counters::close(self);
                    // The call finds out when it owns its direction anew.
                    self.id.store(0, Release);
                    return;
                };
                if !stale {
                    crate::path::closing::settle(self, receive);
                }
                self.segment.clear();
                agent::detached(self.segment_name());
                peer_bells::release(self.peer_bell());
            }
            if self.phase() != Phase::Plain {
                self.set_phase(Phase::Plain);
            }
            worth::learn(self);
            counters::close(self);
            self.id.store(0, Release);
        }
        lone::forget_again(self);
        if let Some(locks) = self.locks()
            && locks.holders.load(Relaxed) == 1
        {
            area::release(&locks.area);
        }
        // Only now: whoever claims the words next must not have them given up by the guards above.
        self.leave();
        if !in_sets {
            bell::wake_other_thread(self.own_bell());
        }
        disclaim(index);
    }
}
