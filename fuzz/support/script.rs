//! What the tests and fuzz targets that bytes drive have in common.

#![allow(dead_code, reason = "each uses its part")]

use std::fs;
use std::path::Path;

/// A generator good enough to vary scripts, the same in every run.
pub(crate) fn scramble(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Runs what the fuzzer found worth keeping for a target.
pub(crate) fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut scripts = 0;
    for entry in fs::read_dir(&corpus).expect("the corpus is committed") {
        run(&fs::read(entry.expect("readable").path()).expect("readable"));
        scripts += 1;
    }
    assert!(scripts > 0, "{} is empty", corpus.display());
}

/// The bytes that decide what happens; zeros once they have run out.
pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl Script<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    pub(crate) fn short(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    pub(crate) fn word(&mut self) -> u32 {
        (0..4).fold(0, |value, _| value << 8 | u32::from(self.byte()))
    }

    pub(crate) fn long(&mut self) -> u64 {
        (0..8).fold(0, |value, _| value << 8 | u64::from(self.byte()))
    }

    pub(crate) fn some(&mut self, most: usize) -> Vec<u8> {
        let (now, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        now.to_vec()
    }

    /// One of so many things, or any of them.
    pub(crate) fn choice(&mut self, count: u8) -> Option<u8> {
        let byte = self.byte();
        (byte < 192).then_some(byte % count)
    }
}
