//! What viaductd tells the command line about itself.

use crate::server::Server;
use viaduct_control::PROTOCOL_VERSION;
use viaduct_control::message::Stats;

impl Server {
    /// How viaductd is.
    pub(crate) fn stats(&self) -> Stats {
        let totals = self.registry.totals();
        Stats {
            version: PROTOCOL_VERSION,
            mode: self.mode(),
            pid: std::process::id(),
            processes: u32::try_from(self.introduced).unwrap_or(u32::MAX),
            uptime_s: self.started.elapsed().as_secs(),
            offers_waiting: self.registry.waiting() as u64,
            offers: totals.offers,
            pairs: totals.pairs,
            refused: totals.refused,
            segments: self.registry.segments() as u64,
            segment_bytes: totals.segment_bytes,
            segments_per_user: self.settings.limits.segments,
            mode_reason: zero_padded(self.tickets.as_ref().err().map_or("", String::as_str)),
        }
    }
}

/// As much of `text` as fits, in whole characters.
fn zero_padded<const N: usize>(text: &str) -> [u8; N] {
    let end = text.floor_char_boundary(N);
    let mut bytes = [0; N];
    for (place, byte) in bytes.iter_mut().zip(text.bytes().take(end)) {
        *place = byte;
    }
    bytes
}
