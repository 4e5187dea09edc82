use super::*;
use proptest::prelude::*;
use std::net::SocketAddr;

const BYTES: u64 = 100;
const LIMITS: Limits = Limits {
    segments: 4,
    memory: 1000,
    offers: 8,
};

fn address(port: u16) -> Address {
    SocketAddr::from(([127, 0, 0, 1], port)).into()
}

fn addresses(user: u32, netns: u64, local: u16, remote: u16) -> Proof {
    Proof::Addresses {
        user,
        netns,
        local: address(local),
        remote: address(remote),
    }
}

/// The proofs of the opening and the accepting end of a connection with these first sequence numbers.
fn sequences(opener: u32, accepter: u32) -> (Proof, Proof) {
    let opening = Proof::Sequence {
        sent: opener,
        received: accepter.wrapping_add(1),
    };
    let accepting = Proof::Sequence {
        sent: accepter.wrapping_add(1),
        received: opener.wrapping_add(1),
    };
    (opening, accepting)
}

fn claim(guest: u64, offer: u64, user: u32, cookie: u64, proof: Proof) -> Claim {
    Claim {
        guest: GuestId(guest),
        offer,
        user,
        cookie,
        proof,
        netns: 1,
        user_ns: None,
        bell: 0,
    }
}

fn is_matched(decision: &Decision, guests: (u64, u64)) -> bool {
    match decision {
        Decision::Matched(matched, None) => (matched.first.guest.0, matched.second.guest.0) == guests,
        _ => false,
    }
}

fn reasons(decision: &Decision) -> Vec<(u64, Reason)> {
    match decision {
        Decision::Refused(refusals) => refusals
            .iter()
            .map(|refusal| (refusal.guest.0, refusal.reason))
            .collect(),
        _ => Vec::new(),
    }
}

#[test]
fn mirrored_addresses_are_a_pair_and_the_earlier_end_is_first() {
    let mut registry = Registry::new(LIMITS, 1);
    let first = registry.offer(claim(1, 1, 7, 11, addresses(7, 1, 80, 5000)), BYTES);
    assert_eq!(first, Decision::Wait(None));
    let second = registry.offer(claim(2, 1, 7, 12, addresses(7, 1, 5000, 80)), BYTES);
    assert!(is_matched(&second, (1, 2)), "{second:?}");
    assert_eq!(registry.waiting(), 0);
}

#[test]
fn another_namespace_user_or_port_is_no_pair() {
    let mut registry = Registry::new(LIMITS, 1);
    registry.offer(claim(1, 1, 7, 11, addresses(7, 1, 80, 5000)), BYTES);
    for other in [
        addresses(7, 2, 5000, 80),
        addresses(8, 1, 5000, 80),
        addresses(7, 1, 5001, 80),
    ] {
        assert_eq!(
            registry.offer(claim(2, 1, 7, 12, other), BYTES),
            Decision::Wait(None),
            "{other:?}"
        );
    }
}

#[test]
fn two_ends_with_one_proof_are_both_refused() {
    let mut registry = Registry::new(LIMITS, 1);
    registry.offer(claim(1, 1, 7, 11, addresses(7, 1, 80, 5000)), BYTES);
    let rival = registry.offer(claim(2, 1, 7, 12, addresses(7, 1, 80, 5000)), BYTES);
    assert_eq!(reasons(&rival), [(1, Reason::Ambiguous), (2, Reason::Ambiguous)]);
    assert_eq!(registry.waiting(), 0);
}

#[test]
fn a_repeated_offer_replaces_the_older_one() {
    let mut registry = Registry::new(LIMITS, 1);
    registry.offer(claim(1, 1, 7, 11, addresses(7, 1, 80, 5000)), BYTES);
    let child = registry.offer(claim(2, 1, 7, 11, addresses(7, 1, 80, 5000)), BYTES);
    let Decision::Wait(Some(refusal)) = child else {
        panic!("{child:?}")
    };
    assert_eq!((refusal.guest, refusal.reason), (GuestId(1), Reason::SharedEnd));
    let peer = registry.offer(claim(3, 1, 7, 12, addresses(7, 1, 5000, 80)), BYTES);
    assert!(is_matched(&peer, (2, 3)), "{peer:?}");
}

#[test]
fn an_unknown_cookie_replaces_nothing() {
    let mut registry = Registry::new(LIMITS, 1);
    registry.offer(claim(1, 1, 7, 0, addresses(7, 1, 80, 5000)), BYTES);
    let rival = registry.offer(claim(2, 1, 7, 0, addresses(7, 1, 80, 5000)), BYTES);
    assert_eq!(reasons(&rival).len(), 2);
}

#[test]
fn sequence_numbers_mirror_whoever_opened_and_whoever_offers_first() {
    for (opener, accepter) in [(1000, 2000), (u32::MAX, 1), (1, u32::MAX), (u32::MAX - 1, u32::MAX)] {
        let (opening, accepting) = sequences(opener, accepter);
        for (one, other) in [(opening, accepting), (accepting, opening)] {
            let mut registry = Registry::new(LIMITS, 1);
            registry.offer(claim(1, 1, 7, 11, one), BYTES);
            let decision = registry.offer(claim(2, 1, 8, 12, other), BYTES);
            assert!(is_matched(&decision, (1, 2)), "{opener} {accepter} {decision:?}");
        }
    }
}

#[test]
fn ends_that_opened_at_once_mirror() {
    let end = |own: u32, peer: u32| Proof::Sequence {
        sent: own,
        received: peer + 1,
    };
    let mut registry = Registry::new(LIMITS, 1);
    registry.offer(claim(1, 1, 7, 11, end(100, 200)), BYTES);
    let decision = registry.offer(claim(2, 1, 7, 12, end(200, 100)), BYTES);
    assert!(is_matched(&decision, (1, 2)), "{decision:?}");
}

#[test]
fn the_syn_counts_at_ends_that_opened() {
    for (opener, accepter) in [(1, 9), (u32::MAX, 9), (9, u32::MAX)] {
        let (opening, accepting) = sequences(opener, accepter);
        assert!(opening.counts_syn(accepting) && !accepting.counts_syn(opening));
        let (other, _) = sequences(accepter, opener);
        assert!(opening.counts_syn(other) && other.counts_syn(opening), "both at once");
    }
}

#[test]
fn a_segment_stands_in_the_way_of_others_at_the_same_end() {
    let mut registry = Registry::new(LIMITS, 1);
    let (opening, accepting) = sequences(1000, 2000);
    registry.offer(claim(1, 1, 7, 11, opening), BYTES);
    let Decision::Matched(matched, _) = registry.offer(claim(2, 1, 7, 12, accepting), BYTES) else {
        panic!("not matched")
    };
    let joined = |registry: &Registry, guest| registry.is_joined_by_another(accepting, GuestId(guest));
    assert!(registry.detach(GuestId(2), matched.segment));
    assert!(joined(&registry, 3), "the other end still has it");
    assert!(!joined(&registry, 2), "its own");
    assert!(registry.detach(GuestId(1), matched.segment));
    assert!(!joined(&registry, 3));
}

#[test]
fn sequence_numbers_that_are_nearly_right_are_wrong() {
    let (opening, _) = sequences(1000, 2000);
    for (sent, received) in [(2001, 1000), (2001, 1002), (2002, 1001), (1999, 1001), (2001, 999)] {
        let mut registry = Registry::new(LIMITS, 1);
        registry.offer(claim(1, 1, 7, 11, opening), BYTES);
        let decision = registry.offer(claim(2, 1, 7, 12, Proof::Sequence { sent, received }), BYTES);
        assert_eq!(decision, Decision::Wait(None), "{sent} {received}");
    }
}

#[test]
fn of_two_candidates_none_is_taken() {
    let mut registry = Registry::new(LIMITS, 1);
    let mirrors = addresses(7, 1, 80, 5000).mirrors();
    assert_eq!(mirrors.iter().flatten().count(), 1);
    let own = Proof::Sequence {
        sent: 500,
        received: 900,
    };
    for (guest, proof) in own.mirrors().into_iter().flatten().take(2).enumerate() {
        registry.offer(claim(guest as u64, 1, 7, 1 + guest as u64, proof), BYTES);
    }
    let decision = registry.offer(claim(9, 1, 7, 9, own), BYTES);
    assert_eq!(reasons(&decision).len(), 3);
    assert_eq!(registry.waiting(), 0);
}

#[test]
fn a_socket_connected_to_itself_is_not_paired() {
    let mut registry = Registry::new(LIMITS, 1);
    let alone = Proof::Sequence { sent: 77, received: 78 };
    for proof in [addresses(7, 1, 80, 80), alone] {
        let decision = registry.offer(claim(1, 1, 7, 11, proof), BYTES);
        assert_eq!(reasons(&decision), [(1, Reason::Ambiguous)], "{proof:?}");
    }
}

fn pair(registry: &mut Registry, number: u16, users: (u32, u32)) -> Decision {
    let (opening, accepting) = sequences(u32::from(number) * 100, 7);
    let number = u64::from(number);
    registry.offer(
        claim(users.0.into(), 2 * number, users.0, 2 * number + 1, opening),
        BYTES,
    );
    registry.offer(
        claim(users.1.into(), 2 * number + 1, users.1, 2 * number + 2, accepting),
        BYTES,
    )
}

#[test]
fn a_user_is_charged_once_for_a_segment_between_its_own_processes() {
    let mut registry = Registry::new(LIMITS, 1);
    for number in 0..4 {
        assert!(is_matched(&pair(&mut registry, number, (7, 7)), (7, 7)), "{number}");
    }
    let fifth = pair(&mut registry, 4, (7, 7));
    assert_eq!(
        reasons(&fifth),
        [(7, Reason::LimitSegments), (7, Reason::LimitSegments)]
    );
}

#[test]
fn both_users_of_a_segment_are_charged_until_they_let_go() {
    let mut registry = Registry::new(LIMITS, 1);
    for number in 0..4 {
        assert!(is_matched(&pair(&mut registry, number, (7, 8)), (7, 8)));
    }
    assert_eq!(reasons(&pair(&mut registry, 4, (7, 9))).len(), 2);
    assert_eq!(reasons(&pair(&mut registry, 5, (9, 8))).len(), 2);
    assert!(registry.detach(GuestId(7), 1));
    assert!(is_matched(&pair(&mut registry, 6, (7, 9)), (7, 9)));
    assert_eq!(reasons(&pair(&mut registry, 7, (9, 8))).len(), 2);
    registry.hang_up(GuestId(8));
    assert!(is_matched(&pair(&mut registry, 8, (9, 8)), (9, 8)));
}

#[test]
fn memory_is_limited_too() {
    let limits = Limits {
        memory: 3 * BYTES - 1,
        ..LIMITS
    };
    let mut registry = Registry::new(limits, 1);
    for number in 0..2 {
        assert!(is_matched(&pair(&mut registry, number, (7, 8)), (7, 8)));
    }
    assert_eq!(
        reasons(&pair(&mut registry, 2, (7, 8))),
        [(7, Reason::LimitMemory), (8, Reason::LimitMemory)]
    );
}

#[test]
fn waiting_offers_are_limited() {
    let mut registry = Registry::new(LIMITS, 1);
    for number in 0..8 {
        let decision = registry.offer(claim(1, number.into(), 7, 1, addresses(7, 1, number, 9)), BYTES);
        assert_eq!(decision, Decision::Wait(None));
    }
    let ninth = registry.offer(claim(1, 9, 7, 1, addresses(7, 1, 50, 9)), BYTES);
    assert_eq!(reasons(&ninth), [(1, Reason::LimitOffers)]);
    registry.withdraw(GuestId(1), 3);
    let again = registry.offer(claim(1, 9, 7, 1, addresses(7, 1, 50, 9)), BYTES);
    assert_eq!(again, Decision::Wait(None));
}

#[test]
fn nobody_detaches_for_another() {
    let mut registry = Registry::new(LIMITS, 1);
    pair(&mut registry, 1, (7, 8));
    assert!(!registry.detach(GuestId(9), 1));
    assert!(!registry.detach(GuestId(7), 2));
    assert_eq!(registry.segments(), 1);
    assert!(registry.detach(GuestId(7), 1) && !registry.detach(GuestId(7), 1));
    assert!(registry.detach(GuestId(8), 1));
    assert_eq!((registry.segments(), registry.totals().segment_bytes), (0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Offer {
        guest: u64,
        offer: u64,
        connection: u32,
        opens: bool,
    },
    Withdraw {
        guest: u64,
        offer: u64,
    },
    Detach {
        guest: u64,
        segment: u64,
    },
    HangUp {
        guest: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..6u64, 0..20u64, 0..12u32, any::<bool>())
            .prop_map(|(guest, offer, connection, opens)| Step::Offer { guest, offer, connection, opens }),
        1 => (0..6u64, 0..20u64).prop_map(|(guest, offer)| Step::Withdraw { guest, offer }),
        3 => (0..6u64, 0..30u64).prop_map(|(guest, segment)| Step::Detach { guest, segment }),
        1 => (0..6u64).prop_map(|guest| Step::HangUp { guest }),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// Whatever guests do: only mirrored proofs are paired, accounts equal what is held, and limits hold.
    #[test]
    fn accounts_always_balance(steps in steps()) {
        let mut registry = Registry::new(LIMITS, 1);
        for step in steps {
            match step {
                Step::Offer { guest, offer, connection, opens } => {
                    let (opening, accepting) = sequences(connection * 10, connection * 1000);
                    let proof = if opens { opening } else { accepting };
                    let user = u32::try_from(guest / 2).unwrap();
                    let cookie = u64::from(connection) * 2 + u64::from(opens) + 1;
                    if let Decision::Matched(matched, _) = registry.offer(claim(guest, offer, user, cookie, proof), BYTES) {
                        prop_assert!(matched.first.proof != matched.second.proof);
                        prop_assert!(matched.first.proof.mirrors().contains(&Some(matched.second.proof)));
                    }
                }
                Step::Withdraw { guest, offer } => registry.withdraw(GuestId(guest), offer),
                Step::Detach { guest, segment } => { registry.detach(GuestId(guest), segment); }
                Step::HangUp { guest } => registry.hang_up(GuestId(guest)),
            }
            check(&registry)?;
        }
        for guest in 0..6 {
            registry.hang_up(GuestId(guest));
        }
        prop_assert!(registry.accounts.is_empty() && registry.segments.is_empty() && registry.held.is_empty());
        prop_assert!(registry.joined.is_empty());
        prop_assert!(registry.waiting.is_empty() && registry.offers.is_empty());
        prop_assert_eq!(registry.totals().segment_bytes, 0);
    }
}

fn check(registry: &Registry) -> Result<(), TestCaseError> {
    let mut accounts: HashMap<u32, Account> = HashMap::new();
    for holding in registry.segments.values() {
        let users: HashSet<u32> = holding.holders.iter().flatten().map(|(_, user)| *user).collect();
        prop_assert!(!users.is_empty());
        for user in users {
            let account = accounts.entry(user).or_default();
            account.segments += 1;
            account.bytes += holding.bytes;
        }
    }
    for claim in registry.waiting.values() {
        accounts.entry(claim.user).or_default().offers += 1;
    }
    for account in accounts.values() {
        prop_assert!(account.segments <= LIMITS.segments && account.bytes <= LIMITS.memory);
        prop_assert!(account.offers <= LIMITS.offers);
    }
    prop_assert_eq!(&accounts, &registry.accounts);
    let named: usize = registry.offers.values().map(HashMap::len).sum();
    prop_assert_eq!(named, registry.waiting.len());
    Ok(())
}
