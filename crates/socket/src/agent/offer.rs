//! When a connection is offered to viaductd, and what comes of it.

use crate::agent::{self, counters, policy, worth};
use crate::conn::{ACTIVE, BANNED, CAME, Conn, EARLY, HELD_BACK, PEER_FIN, Phase, READY_OWED, SHUT_WRITE};
use crate::epoll::lone;
use crate::lock::Guard;
use crate::process::{own_waits, unseen};
use crate::sys::{self, raw};
use crate::wait::bell;
use crate::wait::peer_bells::Ringer;
use crate::{kernel, options};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use viaduct_channel::{Segment, Side};
use viaduct_control::Reason;
use viaduct_control::counters::{Wanted, slot};
use viaduct_control::message::{PAIR_COUNTS_SYN, Pair};
use viaduct_control::policy::{OfferPolicy, PathPolicy};
use viaduct_stream::{Incoming, Outgoing};

/// Which way traffic has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Sent,
    Received,
}

/// The longest that a connection which somebody else holds is not offered again.
const LONGEST_PAUSE_NS: u64 = 60_000_000_000;

/// How long a connection of that age is not. Who passes one on mostly closes it at once, and else goes on with it: it
/// is asked ever more seldom.
fn pause(age_ns: Option<u64>) -> u64 {
    age_ns.map_or(LONGEST_PAUSE_NS, |age| age.min(LONGEST_PAUSE_NS))
}

/// When a thread that has just received may offer it, which others may at `retry_at`. A call that is inside the kernel
/// holds the descriptor as somebody else would: who sends while another thread waits to receive is always refused.
fn sooner(retry_at: u64, age_ns: u64, now: u64) -> u64 {
    // At the last refusal it was half as old as it will be then, or older.
    let left = retry_at.saturating_sub(now);
    let pause = pause(Some((age_ns + left) / 2));
    retry_at - (pause / 4).min(retry_at)
}

impl Conn {
    /// Whether the connection does not stand yet, as far as is known.
    #[inline]
    pub fn is_early(&self) -> bool {
        self.flag(EARLY)
    }

    /// Whether it has a lane, which only streams have.
    #[inline]
    pub fn has_lane(&self) -> bool {
        self.phase() == Phase::Attached
    }

    /// The connection stands; false if that was known.
    pub(crate) fn stands(&self) -> bool {
        let early = self.flags.fetch_and(!EARLY, Relaxed) & EARLY != 0;
        if early {
            if let Some(reason) = unseen::bar() {
                // It may never be seen to carry anything, nor be about to be offered.
                self.set_flag(BANNED, true);
                self.set_reason(reason);
            }
            counters::open(self);
        }
        early
    }

    /// Counts traffic of a connection that is not attached and offers it when it has shown itself worth it.
    #[inline]
    pub(crate) fn note_traffic(&self, way: Way, bytes: usize) {
        // Not indivisible, which would cost more than the rest of this: two threads that count at once may count as
        // one.
        let messages = self.messages.load(Relaxed).wrapping_add(1);
        let volume = self.volume.load(Relaxed).wrapping_add(bytes as u64);
        self.messages.store(messages, Relaxed);
        self.volume.store(volume, Relaxed);
        if self.flag(BANNED | EARLY) {
            return;
        }
        match self.phase() {
            Phase::Plain => self.consider_offer(way, messages, volume),
            // Not at each: most plain connections stand here, and a look at the clock costs as much as all of this.
            Phase::Offered if messages.is_multiple_of(8) && agent::is_due_for_look(self.offered_in.load(Relaxed)) => {
                self.check_offer();
            }
            _ => {}
        }
    }

    #[cold]
    fn check_offer(&self) {
        // viaductd is gone, and the offer with it.
        if agent::probe() != self.offered_in.load(Relaxed) {
            self.end_offer();
            self.retry_at_ns.store(0, Relaxed);
        }
    }

    #[inline]
    fn consider_offer(&self, way: Way, messages: u32, volume: u64) {
        if self.flag(HELD_BACK) {
            // Nothing else is asked, nor told again, before that has changed.
            if self.is_held_back() {
                return;
            }
            self.set_flag(HELD_BACK, false);
        }
        let policy = policy::policy();
        // A connection that has carried this much has paid for an offer; rules may say otherwise, and need addresses.
        let eager = policy.offer != OfferPolicy::Auto || policy.path == PathPolicy::Shm || policy.has_rules();
        if eager || worth::is_shown(messages, volume) || self.wanted() == Wanted::Shm {
            self.offer(way, messages, volume);
        }
    }

    #[cold]
    fn offer(&self, way: Way, messages: u32, volume: u64) {
        let now = sys::now_ns();
        let retry_at = self.retry_at_ns.load(Relaxed);
        if now < retry_at && (way == Way::Sent || now < self.sooner(retry_at, now)) {
            return;
        }
        let own = now + 1_000_000_000;
        self.retry_at_ns.store(own, Relaxed);
        let wanted = self.wanted();
        if wanted == Wanted::Tcp {
            return;
        }
        if !self.alone() {
            return self.set_reason(Reason::SharedEnd);
        }
        if self.is_banned() {
            // By a process that has let go of it since.
            return self.set_flag(BANNED, true);
        }
        if self.is_held_back() {
            // Not for a second: the first wait is often about to come.
            self.retry_at_ns.store(0, Relaxed);
            self.set_flag(HELD_BACK, true);
            return self.set_reason(Reason::UnseenWait);
        }
        match agent::offer(self, (messages, volume)) {
            Ok(true) => {
                // A limit stays the reason until it is overcome.
                let limits = [
                    Reason::LimitSegments,
                    Reason::LimitMemory,
                    Reason::NoMemory,
                    Reason::NoDescriptors,
                ];
                if !limits.contains(&self.reason()) {
                    self.set_reason(Reason::Offered);
                }
            }
            // Not yet worth it: ask again soon. Where another thread was first, and has been answered, stands by when.
            Ok(false) => {
                let _ = self.retry_at_ns.compare_exchange(own, 0, Relaxed, Relaxed);
            }
            Err(reason) => {
                let again = agent::asks_again_at();
                // Not where it stands, and only this could not be sent to it.
                if reason == Reason::NoDaemon && again > sys::now_ns() {
                    let _ = self.retry_at_ns.compare_exchange(own, again, Relaxed, Relaxed);
                }
                self.set_reason(reason);
            }
        }
    }

    /// When it may be offered again by who has received.
    fn sooner(&self, retry_at: u64, now: u64) -> u64 {
        let is_held = self.flag(CAME) && self.reason() == Reason::PassedOn;
        match counters::age_ns(self).filter(|_| is_held) {
            Some(age) => sooner(retry_at, age, now),
            None => retry_at,
        }
    }

    /// Whether it is watched where the program may wait unseen.
    fn is_held_back(&self) -> bool {
        // With `wait` the first byte comes before the first wait, and a second set may never be waited in.
        let waits_later = || policy::policy().offer != OfferPolicy::Wait && lone::is_watched_plainly(self);
        lone::is_watched_unseen(self) && (waits_later() || own_waits::are_made())
    }

    /// Whether the kernel counts what the program has sent and received by it.
    pub(crate) fn is_counted(&self) -> bool {
        counters::by_kernel(self).is_none_or(|bytes| kernel::counts(self.fd(), self.flag(ACTIVE), bytes))
    }

    /// The offer was refused; it may be repeated after `retry_ms`, or never if that is 0.
    pub(crate) fn refused(&self, reason: Reason, retry_ms: u32) {
        let (offered, plain) = (Phase::Offered as u8, Phase::Plain as u8);
        if self.phase.compare_exchange(offered, plain, SeqCst, SeqCst).is_err() {
            return;
        }
        if retry_ms == 0 {
            self.set_flag(BANNED, true);
        } else {
            let mut after_ns = u64::from(retry_ms) * 1_000_000;
            if reason == Reason::PassedOn {
                after_ns = after_ns.max(pause(counters::age_ns(self)));
            }
            self.retry_at_ns.store(sys::now_ns() + after_ns, Relaxed);
        }
        self.set_reason(reason);
    }

    /// The pair stands: takes the segment in. False if the connection is not the one offered any more, or is not to
    /// have a lane.
    pub(crate) fn attach(&self, pair: &Pair, segment: Segment, side: Side, peer_bell: Ringer) -> bool {
        let (Some(send), Some(receive)) = (self.own_send(pair.offer), self.own_receive(pair.offer)) else {
            return false;
        };
        if !self.may_attach() {
            return false;
        }
        self.side.store(u8::from(side == Side::Second), Relaxed);
        self.segment.fill(segment);
        self.segment_name.store(pair.segment, Relaxed);
        self.set_peer_bell(peer_bell);
        self.rung.begin(bell::rung_by(pair, self.own_bell()));
        self.set_flag(READY_OWED, true);
        let (offered, attached) = (Phase::Offered as u8, Phase::Attached as u8);
        if self.phase.compare_exchange(offered, attached, SeqCst, SeqCst).is_err() {
            self.segment.clear();
            return false;
        }
        if self.flag(CAME) {
            // Nobody here has seen who opened it.
            self.set_flag(ACTIVE, pair.flags & PAIR_COUNTS_SYN != 0);
        }
        // For marks.
        crate::search::peek_at_front(self);
        // Marks may not be held back.
        let (zero, one): (i32, i32) = (0, 1);
        let _ = raw::setsockopt(self.fd(), libc::IPPROTO_TCP, libc::TCP_CORK, &zero);
        let _ = raw::setsockopt(self.fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, &one);
        options::limit_lane(self, &send);
        options::tell_of_resets(self, &send);
        self.tell_of_ends(&send);
        if let Some(words) = counters::slot_of(self) {
            words[slot::PEER_PID].store(pair.peer_pid.into(), Relaxed);
        }
        self.pay_ready(&receive);
        self.set_reason(Reason::Pairing);
        true
    }

    /// Either direction may have been shut down before: tells the peer that this end's own has been, and notes that its
    /// has, which calls that were made on the kernel connection did not.
    fn tell_of_ends(&self, send: &Guard<'_>) {
        self.learn_what_has_ended();
        if self.flag(SHUT_WRITE)
            && let Some(segment) = self.segment(send)
        {
            Outgoing::new(segment.sender(self.side())).set_ending();
        }
        if raw::poll_now(self.fd(), libc::POLLRDHUP) & libc::POLLRDHUP != 0 {
            self.set_flag(PEER_FIN, true);
        }
    }

    /// Tells the peer that promotions may come, unless a call of ours is inside the kernel and might take a mark for
    /// data.
    pub(crate) fn pay_ready(&self, receive: &Guard<'_>) {
        // SeqCst pairs with `DirectCall::begin`: either we see the call, or it sees the phase and turns back.
        if self.flag(READY_OWED)
            && self.direct_receives.load(SeqCst) == 0
            && self.peeks.load(SeqCst) == 0
            && let Some(segment) = self.segment(receive)
            && let Some(locks) = self.locks()
            && let Ok(position) = kernel::receive_position(self.fd(), || kernel::queued_in_all(self.fd(), locks))
        {
            self.set_position(position);
            self.know_raw(0);
            self.set_flag(READY_OWED, false);
            Incoming::new(segment.receiver(self.side())).set_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::{self, records};
    use crate::epoll;
    use crate::epoll::set::{SET, SETS};
    use crate::receive::plain;

    #[test]
    fn who_has_received_offers_a_little_sooner_at_any_age() {
        const MS: u64 = 1_000_000;
        for age in [10 * MS, 800 * MS, 59_000 * MS, 180_000 * MS, 3_600_000 * MS] {
            let refused = 5_000_000 * MS;
            let pause = pause(Some(age));
            let retry_at = refused + pause;
            for passed in [0, pause / 2, pause] {
                let at = sooner(retry_at, age + passed, refused + passed);
                assert!(at >= refused + pause * 3 / 4 && at < retry_at, "{age} {passed}: {at}");
            }
        }
    }

    /// The kernel counts bytes up to urgent data alone, also once that has been received.
    #[test]
    fn bytes_behind_urgent_data_that_has_been_received_are_counted() {
        use rustix::net::{RecvFlags, SendFlags, recv, send};
        let (conn, [own, peer]) = records::on_the_heap();
        send(&peer, b"abc", SendFlags::empty()).unwrap();
        send(&peer, b"U", SendFlags::OOB).unwrap();
        send(&peer, b"def", SendFlags::empty()).unwrap();
        let receive = conn.own_receive(conn.id()).unwrap();
        while kernel::queued_in_all(conn.fd(), conn.locks().unwrap()) < 7 {
            std::thread::yield_now();
        }
        assert_eq!(recv(&own, &mut [0; 1], RecvFlags::OOB).unwrap().0, 1);
        conn.set_position(99);
        conn.set_flag(READY_OWED, true);
        conn.pay_ready(&receive);
        assert!(!conn.flag(READY_OWED));
        assert_eq!(
            plain::own_position(conn),
            Some(0),
            "nothing of the stream has been received"
        );
    }

    #[test]
    fn what_holds_an_offer_back_is_told_once_until_it_is_over() {
        own_waits::tests::in_a_program_that_makes_them(|| {
            let (conn, _sockets) = records::on_the_heap();
            // No other test uses it.
            let index = SETS - 8;
            let set = &SET[index];
            set.used.store(true, Relaxed);
            epoll::record(set, index, conn, conn.fd()).unwrap();
            conn.note_traffic(Way::Sent, 1 << 30);
            assert_eq!(conn.reason(), Reason::UnseenWait);
            conn.set_reason(Reason::NotYet);
            conn.note_traffic(Way::Sent, 1);
            assert_eq!(conn.reason(), Reason::NotYet);
            set.waited.store(true, Relaxed);
            // An objection that comes before.
            let holders = &conn.locks().unwrap().holders;
            holders.store(2, Relaxed);
            conn.set_flag(conn::FORKED, true);
            conn.note_traffic(Way::Sent, 1);
            assert_eq!(conn.reason(), Reason::SharedEnd);
            holders.store(1, Relaxed);
        });
    }
}
