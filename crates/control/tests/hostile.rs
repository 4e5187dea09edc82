//! Packets of which every byte may be anything, the same ones in every run.

#[path = "../../../fuzz/support/script.rs"]
mod script;
#[path = "support/hostile.rs"]
mod support;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use viaduct_control::message::{
    Address, Body, Kind, MAGIC, MAX_PACKET, Offer, Packet, Pair, Stats, Welcome, decode, kind_of,
};
use zerocopy::FromBytes;

/// Runs `test` on cases that are the same everywhere.
fn on_cases<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value)) {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(cases)
    };
    let count = std::cell::Cell::new(0);
    let outcome = TestRunner::new_with_rng(config, rng).run(&strategy, |value| {
        test(value);
        count.set(count.get() + 1);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(count.get(), cases);
}

/// A packet with a true header, so that its body is looked at.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    (0..12_u32, vec(any::<u8>(), 0..MAX_PACKET)).prop_map(|(kind, body)| {
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(body);
        bytes
    })
}

#[test]
fn any_bytes_are_read_without_harm() {
    on_cases(20_000, vec(any::<u8>(), 0..2 * MAX_PACKET), |bytes| {
        support::run(&bytes)
    });
}

#[test]
fn any_body_behind_a_true_header_is_read_without_harm() {
    on_cases(40_000, packet(), |bytes| support::run(&bytes));
}

/// Any contents of a body make a packet that is read as just these contents, and at no other length, and with no byte
/// of its header changed.
fn only_whole_packets_are_read<B: Body + FromBytes + PartialEq + core::fmt::Debug>() {
    on_cases(2_000, vec(any::<u8>(), size_of::<B>()..=size_of::<B>()), |contents| {
        let body = B::read_from_bytes(&contents).unwrap();
        let packet = Packet::new(&body);
        let bytes = packet.as_bytes();
        assert_eq!(decode::<B>(bytes), Some(body));
        support::run(bytes);
        for length in 0..bytes.len() {
            assert_eq!(decode::<B>(&bytes[..length]), None);
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert_eq!(decode::<B>(&longer), None);
        for at in 0..8 {
            let mut other = bytes.to_vec();
            other[at] ^= 0x40;
            assert_eq!(decode::<B>(&other), None);
        }
    });
}

#[test]
fn only_whole_packets_of_the_kind_are_read() {
    only_whole_packets_are_read::<Welcome>();
    only_whole_packets_are_read::<Offer>();
    only_whole_packets_are_read::<Pair>();
    only_whole_packets_are_read::<Stats>();
}

#[test]
fn addresses_come_back_as_they_went() {
    let ends = (any::<std::net::IpAddr>(), any::<u16>());
    on_cases(5_000, ends, |(ip, port)| {
        let sent = std::net::SocketAddr::new(ip, port);
        let back = Address::from(sent).to_socket_addr();
        assert_eq!((back.ip(), back.port()), (ip.to_canonical(), port));
    });
}

#[test]
fn kinds_are_what_their_numbers_say() {
    for number in 0..1000 {
        if let Some(kind) = Kind::from_number(number) {
            assert_eq!(kind as u32, number);
            let mut bytes = MAGIC.to_ne_bytes().to_vec();
            bytes.extend(number.to_ne_bytes());
            assert_eq!(kind_of(&bytes), Some(kind));
        }
    }
}

#[test]
fn what_the_fuzzer_found_worth_keeping_still_passes() {
    script::replay("messages", support::run);
}
