//! What may recur all the time is logged once a minute.

use std::collections::HashMap;
use std::time::{Duration, Instant};

const QUIET: Duration = Duration::from_secs(60);

/// Of one kind of event, when each of its errors was last told.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    told: HashMap<Option<i32>, Instant>,
}

impl Seldom {
    /// Whether the error, by its number, is to be told now, which then counts as done.
    pub(crate) fn is_due(&mut self, error: Option<i32>) -> bool {
        let due = self.told.get(&error).is_none_or(|told| told.elapsed() >= QUIET);
        if due {
            self.told.insert(error, Instant::now());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_does_not_hide_another() {
        let mut seldom = Seldom::default();
        let told = [Some(1), Some(2), Some(1), None, Some(2), None].map(|error| seldom.is_due(error));
        assert_eq!(told, [true, true, false, true, false, false]);
    }
}
