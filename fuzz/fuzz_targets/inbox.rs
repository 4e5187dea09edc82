//! Senders of tagged messages that send anything in any order.

#![no_main]

#[path = "../../crates/seek/tests/support/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|script: &[u8]| hostile::run(script));
