//! `search` as on kernels that do not peek at offsets, where what is passed over is copied.

#![no_main]

#[path = "../../crates/socket/tests/support/hostile.rs"]
mod hostile;
#[path = "../support/old.rs"]
mod old;

libfuzzer_sys::fuzz_target!(init: old::refuse_peek_offsets(), |script: &[u8]| hostile::run(script));
