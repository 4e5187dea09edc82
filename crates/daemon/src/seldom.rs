//! What may recur all the time is logged once a minute.

use std::time::{Duration, Instant};

const QUIET: Duration = Duration::from_secs(60);

/// Of one kind of event, when it was last told.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    told: Option<Instant>,
}

impl Seldom {
    /// Whether it is to be told now, which then counts as done.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = self.told.is_none_or(|told| told.elapsed() >= QUIET);
        if due {
            self.told = Some(Instant::now());
        }
        due
    }
}
