//! Bytes that depend on a seed and a position only, so that a receiver can check any piece of a stream by itself.

/// The next state of a small pseudo-random generator; enough to vary sizes and to make patterns.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number of 64 random bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number().checked_rem(limit).unwrap_or(0)
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(seed: u64, index: u64) -> [u8; 8] {
    mix(seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
}

/// Calls `piece(range of the buffer, bytes that belong there)` for a buffer of `length` bytes at stream position
/// `from`.
fn pieces(seed: u64, from: u64, length: usize, mut piece: impl FnMut(core::ops::Range<usize>, &[u8]) -> bool) {
    let mut at = 0;
    while at < length {
        let position = from + at as u64;
        let skip = (position % 8) as usize;
        let count = (8 - skip).min(length - at);
        if !piece(at..at + count, &word(seed, position / 8)[skip..skip + count]) {
            return;
        }
        at += count;
    }
}

/// Writes the bytes that stand at position `from` of the stream of `seed`.
pub fn fill(seed: u64, from: u64, buffer: &mut [u8]) {
    pieces(seed, from, buffer.len(), |range, bytes| {
        buffer[range].copy_from_slice(bytes);
        true
    });
}

/// Where `buffer` first differs from the bytes at position `from` of the stream of `seed`, as a stream position.
pub fn first_difference(seed: u64, from: u64, buffer: &[u8]) -> Option<u64> {
    let mut wrong = None;
    pieces(seed, from, buffer.len(), |range, bytes| {
        if let Some(offset) = buffer[range.clone()].iter().zip(bytes).position(|(a, b)| a != b) {
            wrong = Some(from + (range.start + offset) as u64);
        }
        wrong.is_none()
    });
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_agrees_with_the_whole() {
        let mut whole = [0; 100];
        fill(7, 1000, &mut whole);
        for from in 0..100 {
            for to in from..100 {
                assert_eq!(first_difference(7, 1000 + from as u64, &whole[from..to]), None);
            }
        }
    }

    #[test]
    fn a_wrong_byte_is_found_where_it_is() {
        let mut bytes = [0; 64];
        fill(1, 3, &mut bytes);
        for index in 0..64 {
            bytes[index] ^= 1;
            assert_eq!(first_difference(1, 3, &bytes), Some(3 + index as u64));
            bytes[index] ^= 1;
        }
        assert!(first_difference(2, 3, &bytes).is_some());
        assert!(first_difference(1, 4, &bytes).is_some());
    }
}
