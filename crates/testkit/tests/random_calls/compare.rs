//! What runs of the program have printed, seed by seed, and where two differ.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Lines of a report before the first that differs.
const BEFORE: usize = 10;

/// What was printed of each seed.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    seeds: BTreeMap<u64, Vec<String>>,
    sent: u64,
}

/// Whether the program has played all its seeds.
pub(crate) fn is_whole(output: &str) -> bool {
    let last = output.lines().next_back().unwrap_or_default();
    output.ends_with('\n') && last.starts_with("sent ")
}

impl Transcript {
    pub(crate) fn read(output: &str) -> Self {
        let mut transcript = Self::default();
        let mut lines = &mut Vec::new();
        for line in output.lines() {
            if let Some(seed) = line.strip_prefix("seed ") {
                lines = transcript.seeds.entry(seed.parse().unwrap()).or_default();
            } else if let Some(sent) = line.strip_prefix("sent ") {
                transcript.sent = sent.parse().unwrap();
            } else {
                lines.push(line.to_owned());
            }
        }
        transcript
    }

    /// Bytes that the program's sends have taken.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }
}

/// Where `run` differs from `native`, a report for each seed.
pub(crate) fn differences(way: &str, native: &Transcript, run: &Transcript) -> Vec<String> {
    let none = Vec::new();
    let reports = native.seeds.iter().filter_map(|(seed, right)| {
        let seen = run.seeds.get(seed).unwrap_or(&none);
        (seen != right).then(|| report(*seed, way, right, seen))
    });
    reports.collect()
}

fn report(seed: u64, way: &str, right: &[String], seen: &[String]) -> String {
    let same = right.iter().zip(seen).take_while(|(right, seen)| right == seen).count();
    let mut text = format!("seed {seed} (CALLS_SEEDS={seed},1), {way}:\n");
    for line in &right[same.saturating_sub(BEFORE)..same] {
        let _ = writeln!(text, "          {line}");
    }
    let next = |lines: &[String]| lines.get(same).cloned().unwrap_or_else(|| "nothing".to_owned());
    let _ = writeln!(text, "natively  {}\nhere      {}", next(right), next(seen));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_shown_with_what_came_before() {
        let lines = |last: &str| {
            let calls: String = (0..12).map(|call| format!("{call} a send\n")).collect();
            Transcript::read(&format!("seed 7\n{calls}12 b {last}\nseed 8\n0 a close\nsent 5\n"))
        };
        let (native, run) = (lines("recv = 1"), lines("recv = 2"));
        assert_eq!(native.sent(), 5);
        assert!(differences("", &native, &native).is_empty());
        let reports = differences("on lanes", &native, &run);
        assert_eq!(reports.len(), 1);
        let lines: Vec<&str> = reports[0].lines().map(str::trim_start).collect();
        assert_eq!(lines[0], "seed 7 (CALLS_SEEDS=7,1), on lanes:");
        assert_eq!(lines[1], "2 a send");
        assert_eq!(lines[11..], ["natively  12 b recv = 1", "here      12 b recv = 2"]);
        // Nor is one that has ended too soon the same.
        assert_eq!(differences("", &native, &Transcript::read("seed 7\n")).len(), 2);
    }
}
