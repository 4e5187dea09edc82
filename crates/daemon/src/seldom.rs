//! What may recur all the time is logged once a minute.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

const QUIET: Duration = Duration::from_secs(60);
/// More different ones in that time nobody would read.
const MOST: usize = 1024;

/// Of one kind of event, when each was last told of those that differ, as by the number of an error.
#[derive(Debug)]
pub(crate) struct Seldom<K = Option<i32>> {
    told: HashMap<K, Instant>,
}

impl<K> Default for Seldom<K> {
    fn default() -> Self {
        Self { told: HashMap::new() }
    }
}

impl<K: Eq + Hash> Seldom<K> {
    /// Whether this one is to be told now, which then counts as done.
    pub(crate) fn is_due(&mut self, what: K) -> bool {
        let now = Instant::now();
        let is_fresh = |told: &Instant| now.duration_since(*told) < QUIET;
        if self.told.get(&what).is_some_and(is_fresh) {
            return false;
        }
        if self.told.len() >= MOST {
            self.told.retain(|_, told| is_fresh(told));
        }
        let due = self.told.len() < MOST;
        if due {
            self.told.insert(what, now);
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

    #[test]
    fn no_more_are_kept_than_anybody_reads() {
        let mut seldom = Seldom::default();
        assert_eq!((0..5000).filter(|number| seldom.is_due(*number)).count(), MOST);
        assert_eq!(seldom.told.len(), MOST);
        let long_ago = Instant::now().checked_sub(QUIET).unwrap();
        seldom.told.values_mut().for_each(|told| *told = long_ago);
        assert!(seldom.is_due(5000));
        assert_eq!(seldom.told.len(), 1);
    }
}
