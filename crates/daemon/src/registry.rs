//! Which ends are the two ends of one connection, and who may have how much. No system calls and no clock.
//!
//! An end shows a [`Proof`]. The other end of the same connection shows the mirrored proof, and only it does: in ticket
//! mode the kernel made the proof, in same-user mode the user's own processes did, who may trust each other. Whenever
//! two ends show the same proof, or two fit one, nobody is paired.
//!
//! Every user is charged for the segments its processes hold, once for a segment between two of its own processes.

use std::collections::{HashMap, HashSet};
use viaduct_control::Reason;
use viaduct_control::message::Address;

/// A connected process, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GuestId(pub(crate) u64);

/// What shows which connection an end belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Proof {
    /// One user's word about its own sockets.
    Addresses {
        user: u32,
        netns: u64,
        local: Address,
        remote: Address,
    },
    /// The kernel's: first sequence numbers as `snd_una - bytes_acked` and `rcv_nxt - bytes_received`.
    ///
    /// An end whose SYN was acknowledged counts it in `bytes_acked`, so its `sent` is one lower than the peer's
    /// `received`; an accepting end's `sent` equals it.
    Sequence { sent: u32, received: u32 },
}

impl Proof {
    /// What the other end may show. For sequence numbers: this end opened, the other end opened, or both did at once.
    fn mirrors(self) -> [Option<Self>; 3] {
        match self {
            Self::Addresses {
                user,
                netns,
                local,
                remote,
            } => {
                let mirrored = Self::Addresses {
                    user,
                    netns,
                    local: remote,
                    remote: local,
                };
                [Some(mirrored), None, None]
            }
            Self::Sequence { sent, received } => {
                let (before, after) = (received.wrapping_sub(1), sent.wrapping_add(1));
                [(received, after), (before, sent), (before, after)]
                    .map(|(sent, received)| Some(Self::Sequence { sent, received }))
            }
        }
    }

    /// Whether the end's SYN counts in what the kernel says has been acknowledged, the other end showing `peer`.
    pub(crate) fn counts_syn(self, peer: Self) -> bool {
        match (self, peer) {
            (Self::Sequence { sent, .. }, Self::Sequence { received, .. }) => received == sent.wrapping_add(1),
            _ => false,
        }
    }

    /// A socket connected to itself is its own other end.
    fn mirrors_itself(self) -> bool {
        self.mirrors().contains(&Some(self))
    }
}

/// One end that asks to be matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Whose end it is.
    pub(crate) guest: GuestId,
    /// The guest's name for it.
    pub(crate) offer: u64,
    /// Who is charged.
    pub(crate) user: u32,
    /// `SO_COOKIE` as the guest states it; only tells a repeated offer from a rival one.
    pub(crate) cookie: u64,
    /// Which connection.
    pub(crate) proof: Proof,
    /// Network namespace cookie.
    pub(crate) netns: u64,
    /// User namespace, if known.
    pub(crate) user_ns: Option<u64>,
    /// viaductd's name for its bell, 0 for none.
    pub(crate) bell: u64,
}

/// What one user may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Segments held.
    pub(crate) segments: u64,
    /// Bytes to which these segments may grow.
    pub(crate) memory: u64,
    /// Offers waiting for their peer.
    pub(crate) offers: u64,
}

/// An offer that came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) guest: GuestId,
    pub(crate) offer: u64,
    pub(crate) reason: Reason,
    pub(crate) retry_ms: u32,
}

/// Two ends of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) segment: u64,
    pub(crate) first: Claim,
    pub(crate) second: Claim,
}

/// What became of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It waits for its peer; a refusal is for an older offer that it replaces.
    Wait(Option<Refusal>),
    /// It found its peer.
    Matched(Box<Match>, Option<Refusal>),
    /// It and perhaps others are refused.
    Refused(Vec<Refusal>),
}

/// Sums since the start and at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) offers: u64,
    pub(crate) pairs: u64,
    pub(crate) refused: u64,
    pub(crate) segment_bytes: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    segments: u64,
    bytes: u64,
    offers: u64,
}

#[derive(Debug)]
struct Holding {
    holders: [Option<(GuestId, u32)>; 2],
    proofs: [Proof; 2],
    bytes: u64,
}

/// Milliseconds after which an end that met a limit may offer itself again.
pub(crate) const LIMIT_RETRY_MS: u32 = 5000;

/// Milliseconds after which an end whose ticket was lost may take another.
pub(crate) const TICKET_RETRY_MS: u32 = 1000;

/// Milliseconds after which an end that somebody else holds may be offered again, at the soonest.
pub(crate) const HELD_RETRY_MS: u32 = 10;

/// Offers, segments and accounts.
#[derive(Debug)]
pub(crate) struct Registry {
    limits: Limits,
    waiting: HashMap<Proof, Claim>,
    offers: HashMap<GuestId, HashMap<u64, Proof>>,
    segments: HashMap<u64, Holding>,
    /// How many segments the ends of a connection have, those that have let go of theirs included, and whose end got
    /// the last.
    joined: HashMap<Proof, (u32, GuestId)>,
    held: HashMap<GuestId, HashSet<u64>>,
    accounts: HashMap<u32, Account>,
    next_segment: u64,
    totals: Totals,
}

impl Registry {
    /// Segments are numbered from `first_segment` on.
    pub(crate) fn new(limits: Limits, first_segment: u64) -> Self {
        Self {
            limits,
            waiting: HashMap::new(),
            offers: HashMap::new(),
            segments: HashMap::new(),
            joined: HashMap::new(),
            held: HashMap::new(),
            accounts: HashMap::new(),
            next_segment: first_segment,
            totals: Totals::default(),
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Refuses an offer that does not show what it has to.
    pub(crate) fn refuse_unproved(&mut self, guest: GuestId, offer: u64, (reason, retry_ms): (Reason, u32)) -> Refusal {
        self.totals.offers += 1;
        self.totals.refused += 1;
        Refusal {
            guest,
            offer,
            reason,
            retry_ms,
        }
    }

    /// Matches `claim`; a segment of its connection will grow to `bytes` at most.
    pub(crate) fn offer(&mut self, claim: Claim, bytes: u64) -> Decision {
        self.totals.offers += 1;
        self.withdraw(claim.guest, claim.offer);
        if claim.proof.mirrors_itself() {
            return self.refuse([claim], Reason::Ambiguous, 0);
        }
        let mut replaced = None;
        if let Some(older) = self.take(claim.proof) {
            if older.cookie == 0 || older.cookie != claim.cookie {
                return self.refuse([older, claim], Reason::Ambiguous, 0);
            }
            if older.guest != claim.guest {
                self.totals.refused += 1;
                replaced = Some(refusal(&older, Reason::SharedEnd, 0));
            }
        }
        let mut peers = claim.proof.mirrors().into_iter().flatten();
        let mut peers = peers.by_ref().filter(|proof| self.waiting.contains_key(proof));
        let (Some(peer), rival) = (peers.next(), peers.next()) else {
            return self.wait(claim, replaced);
        };
        if let Some(rival) = rival {
            let claims = [self.take(peer), self.take(rival), Some(claim)];
            return self.refuse(claims.into_iter().flatten(), Reason::Ambiguous, 0);
        }
        let Some(first) = self.take(peer) else {
            return self.wait(claim, replaced);
        };
        if let Some(reason) = self.exceeded(&first, &claim, bytes) {
            return self.refuse([first, claim], reason, LIMIT_RETRY_MS);
        }
        Decision::Matched(Box::new(self.hold(first, claim, bytes)), replaced)
    }

    /// Forgets an offer, if it still waits.
    pub(crate) fn withdraw(&mut self, guest: GuestId, offer: u64) {
        if let Some(proof) = self.offers.get(&guest).and_then(|offers| offers.get(&offer)) {
            self.take(*proof);
        }
    }

    /// `guest` no longer uses one end of `segment`. False if it never held it.
    pub(crate) fn detach(&mut self, guest: GuestId, segment: u64) -> bool {
        let Some(holding) = self.segments.get_mut(&segment) else {
            return false;
        };
        let Some(place) = holding
            .holders
            .iter_mut()
            .find(|holder| matches!(holder, Some((holder, _)) if *holder == guest))
        else {
            return false;
        };
        let Some((_, user)) = place.take() else { return false };
        let (bytes, proofs) = (holding.bytes, holding.proofs);
        let left: Vec<(GuestId, u32)> = holding.holders.iter().flatten().copied().collect();
        if left.iter().all(|(_, other)| *other != user) {
            self.settle(user, |account| {
                account.segments = account.segments.saturating_sub(1);
                account.bytes = account.bytes.saturating_sub(bytes);
            });
        }
        if left.iter().all(|(other, _)| *other != guest)
            && let Some(held) = self.held.get_mut(&guest)
        {
            held.remove(&segment);
        }
        if left.is_empty() {
            self.segments.remove(&segment);
            self.totals.segment_bytes -= bytes;
            for proof in proofs {
                self.part(proof);
            }
        }
        true
    }

    /// The segment could not be made after all.
    pub(crate) fn undo(&mut self, matched: &Match) {
        self.detach(matched.first.guest, matched.segment);
        self.detach(matched.second.guest, matched.segment);
        self.totals.pairs -= 1;
        self.totals.refused += 2;
    }

    /// The process is gone, or at least its connection to viaductd is.
    pub(crate) fn hang_up(&mut self, guest: GuestId) {
        let offers: Vec<u64> = self
            .offers
            .get(&guest)
            .map(|offers| offers.keys().copied().collect())
            .unwrap_or_default();
        for offer in offers {
            self.withdraw(guest, offer);
        }
        for segment in self.held.remove(&guest).unwrap_or_default() {
            while self.detach(guest, segment) {}
        }
    }

    /// Whether a segment was given for the end that shows `proof` to another than `guest`: the other end does not offer
    /// itself again as long as it holds it.
    pub(crate) fn is_joined_by_another(&self, proof: Proof, guest: GuestId) -> bool {
        self.joined.get(&proof).is_some_and(|(_, last)| *last != guest)
    }

    /// The end that shows `proof` has a segment less.
    fn part(&mut self, proof: Proof) {
        if let Some((count, _)) = self.joined.get_mut(&proof) {
            *count -= 1;
            if *count == 0 {
                self.joined.remove(&proof);
            }
        }
    }

    fn wait(&mut self, claim: Claim, replaced: Option<Refusal>) -> Decision {
        let account = self.accounts.entry(claim.user).or_default();
        if account.offers >= self.limits.offers {
            let mut refusals = vec![refusal(&claim, Reason::LimitOffers, LIMIT_RETRY_MS)];
            refusals.extend(replaced);
            self.totals.refused += 1;
            return Decision::Refused(refusals);
        }
        account.offers += 1;
        self.waiting.insert(claim.proof, claim);
        self.offers
            .entry(claim.guest)
            .or_default()
            .insert(claim.offer, claim.proof);
        Decision::Wait(replaced)
    }

    /// Removes the claim that waits with `proof`.
    fn take(&mut self, proof: Proof) -> Option<Claim> {
        let claim = self.waiting.remove(&proof)?;
        if let Some(offers) = self.offers.get_mut(&claim.guest) {
            offers.remove(&claim.offer);
            if offers.is_empty() {
                self.offers.remove(&claim.guest);
            }
        }
        self.settle(claim.user, |account| account.offers = account.offers.saturating_sub(1));
        Some(claim)
    }

    fn exceeded(&self, first: &Claim, second: &Claim, bytes: u64) -> Option<Reason> {
        [first.user, second.user].into_iter().find_map(|user| {
            let (segments, memory) = self
                .accounts
                .get(&user)
                .map_or((0, 0), |account| (account.segments, account.bytes));
            if segments >= self.limits.segments {
                Some(Reason::LimitSegments)
            } else if memory.saturating_add(bytes) > self.limits.memory {
                Some(Reason::LimitMemory)
            } else {
                None
            }
        })
    }

    fn hold(&mut self, first: Claim, second: Claim, bytes: u64) -> Match {
        let segment = self.next_segment;
        self.next_segment += 1;
        for claim in [&first, &second] {
            self.held.entry(claim.guest).or_default().insert(segment);
        }
        let mut users = vec![first.user, second.user];
        users.dedup();
        for user in users {
            let account = self.accounts.entry(user).or_default();
            account.segments += 1;
            account.bytes += bytes;
        }
        let holders = [Some((first.guest, first.user)), Some((second.guest, second.user))];
        let proofs = [first.proof, second.proof];
        for claim in [&first, &second] {
            let (count, guest) = self.joined.entry(claim.proof).or_insert((0, claim.guest));
            *count += 1;
            *guest = claim.guest;
        }
        self.segments.insert(segment, Holding { holders, proofs, bytes });
        self.totals.pairs += 1;
        self.totals.segment_bytes += bytes;
        Match { segment, first, second }
    }

    fn settle(&mut self, user: u32, change: impl FnOnce(&mut Account)) {
        if let Some(account) = self.accounts.get_mut(&user) {
            change(account);
            if *account == Account::default() {
                self.accounts.remove(&user);
            }
        }
    }

    fn refuse(&mut self, claims: impl IntoIterator<Item = Claim>, reason: Reason, retry_ms: u32) -> Decision {
        let refusals: Vec<Refusal> = claims
            .into_iter()
            .map(|claim| refusal(&claim, reason, retry_ms))
            .collect();
        self.totals.refused += refusals.len() as u64;
        Decision::Refused(refusals)
    }
}

fn refusal(claim: &Claim, reason: Reason, retry_ms: u32) -> Refusal {
    Refusal {
        guest: claim.guest,
        offer: claim.offer,
        reason,
        retry_ms,
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
