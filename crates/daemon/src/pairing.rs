//! From an offer to a segment in the hands of both ends.

use crate::bells::are_equal;
use crate::guest::Farewell;
use crate::registry::{
    Claim, Decision, GuestId, HELD_RETRY_MS, LIMIT_RETRY_MS, Match, Proof, Refusal, TICKET_RETRY_MS,
};
use crate::server::Server;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use viaduct_channel::{Geometry, Segment};
use viaduct_control::Reason;
use viaduct_control::message::{
    OFFER_CAME, OFFER_HAS_BELL, OFFER_HAS_TICKET, Offer, PAIR_BELL_IS_OUTER, PAIR_COUNTS_SYN, PAIR_HAS_BELL,
    PAIR_HAS_OWN_OUTER, PAIR_IS_RUNG_OUTSIDE, Packet, Pair, Refuse,
};

/// How long an offer may be here before its ticket can be read, which comes later only if another process was
/// interrupted while its own was written: the ring is read in order. Less than `--offer wait` holds a connection.
const TICKET_PATIENCE: Duration = Duration::from_millis(20);

/// Between two looks for such tickets.
const TICKET_LOOK: Duration = Duration::from_millis(1);

/// Offers of one user that may be ahead of their tickets at a time.
const EARLY_PER_USER: usize = 64;

/// An offer whose ticket cannot be read yet.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) guest: GuestId,
    user: u32,
    offer: Offer,
    /// viaductd's name of its bell.
    bell: u64,
    since: Instant,
}

impl Server {
    /// Matches an end, with the kernel's word for it in ticket mode.
    pub(crate) fn offer(&mut self, id: GuestId, offer: &Offer, sent: &mut Vec<OwnedFd>) -> Result<(), Farewell> {
        let bell = if offer.flags & OFFER_HAS_BELL == 0 {
            None
        } else {
            self.keep_bell(id, offer.bell, sent)
        };
        let Some(guest) = self.guests.get(&id) else {
            return Ok(());
        };
        if guest.introduced.is_none() {
            return Err(Farewell::Violation("an offer without a hello"));
        }
        let early = Early {
            guest: id,
            user: guest.user,
            offer: *offer,
            bell: bell.or_else(|| guest.bells.get(&offer.bell).copied()).unwrap_or(0),
            since: Instant::now(),
        };
        // One that goes by the same name is replaced.
        self.withdraw(id, offer.offer);
        self.prove(early);
        Ok(())
    }

    /// Forgets an offer, if it still waits.
    pub(crate) fn withdraw(&mut self, id: GuestId, offer: u64) {
        self.early
            .retain(|early| early.guest != id || early.offer.offer != offer);
        self.registry.withdraw(id, offer);
    }

    /// Looks again for the tickets of offers that came ahead of them.
    pub(crate) fn prove_early(&mut self) {
        if self.prove_again.is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.prove_again = None;
        for early in core::mem::take(&mut self.early) {
            self.prove(early);
        }
    }

    /// Matches an offer once its ticket can be read.
    fn prove(&mut self, early: Early) {
        let Early {
            guest: id, offer, bell, ..
        } = early;
        let Some(guest) = self.guests.get(&id) else { return };
        let Some(introduced) = &guest.introduced else { return };
        let stated = Claim {
            guest: id,
            offer: offer.offer,
            user: guest.user,
            cookie: offer.cookie,
            proof: Proof::Addresses {
                user: guest.user,
                netns: offer.netns,
                local: offer.local,
                remote: offer.remote,
            },
            netns: offer.netns,
            user_ns: introduced.user_ns,
            bell,
        };
        let came = offer.flags & OFFER_CAME != 0;
        let claim = match &mut self.tickets {
            // Nobody counts who else holds it.
            Err(_) if came => {
                return self.refuse_unproved(id, offer.offer, (Reason::PassedOn, 0));
            }
            Err(_) => stated,
            Ok(tickets) => {
                let taken = offer.flags & OFFER_HAS_TICKET != 0;
                let ticket = tickets.take(guest.pid, introduced.nonce, offer.ticket_sequence);
                let Some(ticket) = ticket.filter(|_| taken) else {
                    let others = self.early.iter().filter(|other| other.user == early.user).count();
                    if taken && early.since.elapsed() < TICKET_PATIENCE && others < EARLY_PER_USER {
                        self.early.push(early);
                        self.prove_again.get_or_insert_with(|| Instant::now() + TICKET_LOOK);
                        return;
                    }
                    let retry_ms = if taken { TICKET_RETRY_MS } else { 0 };
                    return self.refuse_unproved(id, offer.offer, (Reason::NoTicket, retry_ms));
                };
                let proof = Proof::Sequence {
                    sent: ticket.sent,
                    received: ticket.received,
                };
                if came && (ticket.holders != 1 || self.registry.is_joined_by_another(proof, id)) {
                    let retry_ms = if ticket.holders == 0 { 0 } else { HELD_RETRY_MS };
                    return self.refuse_unproved(id, offer.offer, (Reason::PassedOn, retry_ms));
                }
                // The kernel's word in place of the guest's.
                Claim {
                    user: ticket.user,
                    proof,
                    netns: ticket.netns,
                    user_ns: Some(ticket.user_ns),
                    ..stated
                }
            }
        };
        match self.registry.offer(claim, Geometry::DEFAULT.segment_len() as u64) {
            Decision::Wait(replaced) => self.refuse(replaced),
            Decision::Refused(refusals) => self.refuse(refusals),
            Decision::Matched(matched, replaced) => {
                self.refuse(replaced);
                self.pair(&matched);
            }
        }
    }

    fn refuse_unproved(&mut self, id: GuestId, offer: u64, why: (Reason, u32)) {
        let refusal = self.registry.refuse_unproved(id, offer, why);
        self.refuse([refusal]);
    }

    fn refuse(&mut self, refusals: impl IntoIterator<Item = Refusal>) {
        for refusal in refusals {
            let refuse = Refuse {
                offer: refusal.offer,
                reason: refusal.reason as u32,
                retry_ms: refusal.retry_ms,
            };
            self.post(refusal.guest, Packet::new(&refuse), Vec::new());
        }
    }

    /// Makes the segment of a match and hands it to both ends.
    fn pair(&mut self, matched: &Match) {
        let segment = match Segment::create(matched.segment, Geometry::DEFAULT) {
            Ok(segment) => Rc::new(segment),
            Err(error) => {
                if self.unmade.is_due(error.raw_os_error()) {
                    tracing::warn!("segment: {error}");
                }
                let reason = match Errno::from_io_error(&error) {
                    Some(Errno::MFILE | Errno::NFILE) => Reason::NoDescriptors,
                    _ => Reason::NoMemory,
                };
                self.registry.undo(matched);
                let refusals = [matched.first, matched.second].map(|claim| Refusal {
                    guest: claim.guest,
                    offer: claim.offer,
                    reason,
                    retry_ms: LIMIT_RETRY_MS,
                });
                return self.refuse(refusals);
            }
        };
        tracing::debug!(segment = matched.segment, "paired");
        let equal = are_equal(&matched.first, &matched.second);
        let [first, second] =
            [&matched.first, &matched.second].map(|claim| if equal { None } else { self.make_outer_bell(claim.bell) });
        self.hand_over(matched, 0, equal, &segment, first);
        self.hand_over(matched, 1, equal, &segment, second);
        // Only now, so that a viaductd killed between the two leaves no end with a lane that the other knows nothing
        // of.
        self.announce(matched.first.guest);
        self.announce(matched.second.guest);
    }

    /// Sends one end its part of a pair of equals, or others; `outer` is its end of an outer bell that has just been
    /// made for it.
    fn hand_over(
        &mut self,
        matched: &Match,
        side: u32,
        equal: bool,
        segment: &Rc<OwnedFd>,
        outer: Option<Rc<OwnedFd>>,
    ) {
        let (own, peer) = match side {
            0 => (&matched.first, &matched.second),
            _ => (&matched.second, &matched.first),
        };
        let (peer_pid, peer_uid) = self
            .guests
            .get(&peer.guest)
            .map_or((0, peer.user), |guest| (guest.pid, peer.user));
        let mut descriptors = vec![Rc::clone(segment)];
        let (mut bell, mut own_bell, mut flags) = (0, 0, 0);
        if let Some((name, ringer)) = self.ringer(peer.bell, equal)
            && let Some(guest) = self.guests.get_mut(&own.guest)
        {
            bell = name;
            if guest.given.insert(name) {
                descriptors.push(ringer);
                flags |= PAIR_HAS_BELL;
            }
            if !equal {
                flags |= PAIR_BELL_IS_OUTER;
            }
        }
        if self.ringer(own.bell, equal).is_some() {
            own_bell = self.bells.get(&own.bell).map_or(0, |bell| bell.number);
            if !equal {
                flags |= PAIR_IS_RUNG_OUTSIDE;
            }
        }
        if own.proof.counts_syn(peer.proof) {
            flags |= PAIR_COUNTS_SYN;
        }
        if let Some(outer) = outer {
            descriptors.push(outer);
            flags |= PAIR_HAS_OWN_OUTER;
        }
        let pair = Pair {
            offer: own.offer,
            segment: matched.segment,
            bell,
            own_bell,
            side,
            flags,
            peer_pid,
            peer_uid,
        };
        self.post_unannounced(own.guest, Packet::new(&pair), descriptors);
    }
}
