//! Which path carried the bytes, from the counters that `viaduct status` shows.

use crate::bench::instance::Instance;
use crate::counters;
use serde::Serialize;
use std::collections::BTreeMap;

/// What the ends of some processes said of their paths during a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Proof {
    /// Connection ends.
    pub(crate) ends: u64,
    /// Those of which shared memory has carried bytes.
    pub(crate) fast_ends: u64,
    /// Stream bytes sent and received by them so far.
    pub(crate) bytes: u64,
    /// Of these, over shared memory.
    pub(crate) fast_bytes: u64,
    /// How many open ends gave which reason.
    pub(crate) reasons: BTreeMap<&'static str, usize>,
}

impl Proof {
    /// Of the processes `pids` now.
    pub(crate) fn take(instance: &Instance, pids: &[u32]) -> Self {
        let mut proof = Self::default();
        for process in counters::read_some(pids, Some(instance.id()))
            .unwrap_or_default()
            .processes
        {
            // Those that have ended count: a program may have done all it does before anybody looks.
            let totals = process.totals;
            let [sent, received, fast_sent, fast_received] = totals.traffic;
            proof.ends += totals.open + totals.ended;
            proof.fast_ends += totals.open_fast + totals.ended_fast;
            proof.bytes = proof.bytes.saturating_add(sent).saturating_add(received);
            proof.fast_bytes = proof.fast_bytes.saturating_add(fast_sent).saturating_add(fast_received);
            for end in process.ends {
                *proof.reasons.entry(end.state.reason.code()).or_default() += 1;
            }
        }
        proof
    }

    /// Whether any byte went over shared memory.
    pub(crate) fn is_fast(&self) -> bool {
        self.fast_bytes > 0
    }

    /// The share of the bytes that went over shared memory, 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        match self.bytes {
            0 => 0.0,
            bytes => self.fast_bytes as f64 / bytes as f64,
        }
    }

    /// In a few words.
    pub(crate) fn text(&self) -> String {
        if self.ends == 0 {
            return "no connection seen".to_owned();
        }
        let ends = format!("{}/{} ends shm", self.fast_ends, self.ends);
        match self.bytes {
            0 => ends,
            _ => format!("{ends}, {:.1}% of bytes", self.share() * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_all_bytes() {
        let mut proof = Proof::default();
        assert_eq!(
            (proof.share(), proof.is_fast(), proof.text().as_str()),
            (0.0, false, "no connection seen")
        );
        proof = Proof {
            ends: 2,
            fast_ends: 1,
            bytes: 1000,
            fast_bytes: 250,
            ..proof
        };
        assert_eq!(proof.share(), 0.25);
        assert_eq!(proof.text(), "1/2 ends shm, 25.0% of bytes");
    }
}
