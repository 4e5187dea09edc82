//! Packets, counters and settings of which every byte may be anything.

#![no_main]

#[path = "../../crates/control/tests/support/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::run(bytes));
