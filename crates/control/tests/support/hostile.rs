//! Reads bytes as everything that other processes may hand over, and checks what must hold of whatever comes out.
//! Shared with the fuzz target.

use viaduct_control::counters::{State, Wanted};
use viaduct_control::message::{
    Address, Body, Detach, Header, Hello, MAGIC, MAX_PACKET, Offer, Packet, Pair, Query, Refuse, Stats, Welcome,
    Withdraw, decode, kind_of,
};
use viaduct_control::policy::{OFFER_VARIABLE, PATH_VARIABLE, Policy, RULES_VARIABLE, SPIN_VARIABLE};

/// The bodies that `bytes` decode to: never more than one, since a packet is of one kind.
pub(crate) fn run(bytes: &[u8]) {
    let decoded = [
        encoded_again::<Hello>(bytes),
        encoded_again::<Welcome>(bytes),
        encoded_again::<Offer>(bytes),
        encoded_again::<Withdraw>(bytes),
        encoded_again::<Pair>(bytes),
        encoded_again::<Refuse>(bytes),
        encoded_again::<Detach>(bytes),
        encoded_again::<Query>(bytes),
        encoded_again::<Stats>(bytes),
    ];
    let count = decoded.iter().flatten().count();
    assert!(count <= 1, "read as {count} kinds");
    if let Some(packet) = decoded.into_iter().flatten().next() {
        assert_eq!(packet.as_bytes(), bytes, "something was lost or added");
        assert!(bytes.len() <= MAX_PACKET);
    }
    if kind_of(bytes).is_some() {
        assert!(bytes.len() >= size_of::<Header>() && bytes[..4] == MAGIC.to_ne_bytes());
    }
    if let Some(offer) = decode::<Offer>(bytes) {
        addresses_agree(offer.local);
        addresses_agree(offer.remote);
    }
    for word in bytes.as_chunks::<8>().0 {
        let word = u64::from_ne_bytes(*word);
        if let Some(state) = State::unpack(word) {
            assert_eq!(State::unpack(state.pack()), Some(state));
        }
        let _ = Wanted::from_number(word);
    }
    settings(bytes);
}

fn encoded_again<B: Body>(bytes: &[u8]) -> Option<Packet> {
    let body = decode::<B>(bytes)?;
    assert_eq!(kind_of(bytes), Some(B::KIND));
    Some(Packet::new(&body))
}

/// Both spellings of an IPv4 end stay one, whatever the rest of the address holds.
fn addresses_agree(address: Address) {
    let shown = address.to_socket_addr();
    assert_eq!(shown.port(), address.port);
    let again = Address::from(shown);
    assert_eq!(again.to_socket_addr(), shown);
    assert_eq!(again.ip, address.ip);
}

/// The environment of a program, one variable a line.
fn settings(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    let mut lines = text.lines();
    let values = [PATH_VARIABLE, SPIN_VARIABLE, OFFER_VARIABLE, RULES_VARIABLE].map(|name| (name, lines.next()));
    let find = |name: &str| {
        values
            .iter()
            .find(|(known, _)| *known == name)
            .and_then(|(_, value)| *value)
    };
    if let Ok(policy) = Policy::parse("program", find) {
        let end = |port| Address {
            ip: [1; 16],
            port,
            reserved: 0,
            scope: 0,
        };
        let _ = policy.offer_for(&end(1), &end(65535));
    }
}
