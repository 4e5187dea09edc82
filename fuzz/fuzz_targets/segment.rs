//! A peer that writes anything anywhere in a segment while this side uses it.

#![no_main]

#[path = "../../crates/channel/tests/support/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|script: &[u8]| hostile::run(script));
