//! The frame before each payload.

use super::FRAME;

const MAGIC: [u8; 4] = *b"VMSG";

/// A frame, as much of it as has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    bytes: [u8; FRAME],
    len: usize,
}

impl Frame {
    pub(super) fn new(tag: u32, len: u32) -> Self {
        let mut frame = Self {
            len: FRAME,
            ..Self::default()
        };
        let words = [MAGIC, tag.to_le_bytes(), len.to_le_bytes()];
        frame
            .bytes
            .iter_mut()
            .zip(words.iter().flatten())
            .for_each(|(place, byte)| *place = *byte);
        frame
    }

    pub(super) fn bytes(&self) -> &[u8; FRAME] {
        &self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where the rest goes.
    pub(super) fn rest(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.len..).unwrap_or_default()
    }

    pub(super) fn missing(&self) -> usize {
        FRAME.saturating_sub(self.len)
    }

    /// So many bytes of the rest have come.
    pub(super) fn grow(&mut self, bytes: usize) {
        self.len += bytes;
    }

    pub(super) fn is_malformed(&self) -> bool {
        let known = self.len.min(MAGIC.len());
        self.bytes.get(..known) != MAGIC.get(..known)
    }

    fn word(&self, from: usize) -> u32 {
        let bytes = self.bytes.get(from..).and_then(|bytes| bytes.first_chunk());
        u32::from_le_bytes(bytes.copied().unwrap_or_default())
    }

    pub(super) fn tag(&self) -> u32 {
        self.word(4)
    }

    /// Bytes of the payload.
    pub(super) fn payload(&self) -> usize {
        self.word(8) as usize
    }
}
