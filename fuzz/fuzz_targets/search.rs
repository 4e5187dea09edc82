//! Searches while a connection changes its path, and a peer that writes anything anywhere while they run.

#![no_main]

#[path = "../../crates/socket/tests/support/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|script: &[u8]| hostile::run(script));
