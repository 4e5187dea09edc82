//! What the two ends of each case have printed.

use crate::received::same_bytes;
use std::collections::BTreeMap;
use std::fmt;

/// What both ends of one case saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcript {
    near: Vec<String>,
    far: Vec<String>,
}

/// Transcripts by the names of cases.
pub(crate) type Transcripts = BTreeMap<String, Transcript>;

impl Transcript {
    /// The lines that must be the same in every way of running the case.
    pub(crate) fn lines(&self) -> Vec<&str> {
        self.all().filter(|line| !line.starts_with('#')).collect()
    }

    fn all(&self) -> impl Iterator<Item = &str> {
        self.near.iter().chain(&self.far).map(String::as_str)
    }

    /// The paths its connections were on when the case began to use them.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.all().filter_map(|line| line.strip_prefix("#path "))
    }

    /// Whether the machine stood still meanwhile.
    pub(crate) fn was_held_up(&self) -> bool {
        self.all().any(|line| line.starts_with("#held up "))
    }

    /// Whether it saw what `native` is, but for calls that took too long and events that did not come in time.
    pub(crate) fn is_late(&self, native: &Self) -> bool {
        let timeless = |line: &str| {
            if line.starts_with("too late: ") {
                "in time"
            } else {
                line
            }
            .to_owned()
        };
        let lines = self.lines().into_iter();
        lines
            .filter(|line| !(line.starts_with("events ") && line.ends_with(" do not come")))
            .map(timeless)
            .eq(native.lines())
    }

    /// Whether both ends received what they received in `native`, whatever else they saw.
    pub(crate) fn has_bytes_of(&self, native: &Self) -> bool {
        same_bytes(&self.near, &native.near) && same_bytes(&self.far, &native.far)
    }

    /// Whether both ends came to the end of the case in order, and saw something.
    pub(crate) fn is_whole(&self) -> bool {
        let ended = |lines: &[String]| {
            lines
                .last()
                .is_some_and(|line| line.starts_with("end ") && line.ends_with(": 0"))
        };
        ended(&self.near) && ended(&self.far) && self.lines().len() > 2
    }
}

impl fmt::Display for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (end, lines) in [("near", &self.near), ("far", &self.far)] {
            for line in lines {
                writeln!(f, "    {end}: {line}")?;
            }
        }
        Ok(())
    }
}

/// Splits the output of both ends into the cases' transcripts.
pub(crate) fn read(near: &str, far: &str) -> Transcripts {
    let mut found = Transcripts::new();
    let mut split = |text: &str, lines_of: fn(&mut Transcript) -> &mut Vec<String>| {
        let mut name = String::new();
        for line in text.lines() {
            if let Some(next) = line.strip_prefix("case ") {
                next.clone_into(&mut name);
                found.entry(name.clone()).or_default();
            } else if let Some(transcript) = found.get_mut(&name) {
                lines_of(transcript).push(line.to_owned());
            }
        }
    };
    split(near, |transcript| &mut transcript.near);
    split(far, |transcript| &mut transcript.far);
    found
}

#[test]
fn only_lost_time_is_late() {
    let right = read(
        "case one\nin time\nrecv(s, 1): 1 \"a\"\nend one: 0\n",
        "case one\nend one: 0\n",
    );
    let is_late = |near: &str| {
        let seen = read(
            &format!("case one\n{near}"),
            "case one\n#held up for 400 ms\nend one: 0\n",
        );
        assert!(seen["one"].was_held_up());
        seen["one"].is_late(&right["one"])
    };
    assert!(is_late("too late: 1400.0 ms of 900\nrecv(s, 1): 1 \"a\"\nend one: 0\n"));
    assert!(is_late(
        "#path tcp\nin time\nevents 0x1 do not come\nrecv(s, 1): 1 \"a\"\nend one: 0\n"
    ));
    for wrong in [
        "too early: 1.0 ms of 20\nrecv(s, 1): 1 \"a\"\nend one: 0\n",
        "too late: 1400.0 ms of 900\nrecv(s, 1): 1 \"b\"\nend one: 0\n",
        "too late: 1400.0 ms of 900\nrecv(s, 1): -1 EAGAIN\nend one: 0\n",
        "in time\nkilled by ALRM\nend one: 14\n",
        "in time\n",
    ] {
        assert!(!is_late(wrong), "{wrong}");
    }
}
