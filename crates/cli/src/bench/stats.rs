//! Figures of repeated runs in one figure.

use serde::Serialize;

/// What several runs of one thing gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// The middle one; the mean of the middle two of an even number.
    pub(crate) median: f64,
    /// The smallest.
    pub(crate) low: f64,
    /// The largest.
    pub(crate) high: f64,
}

impl Summary {
    /// Of `values`; `None` if none of them is a number.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let (before, after) = values.split_at(values.len() / 2);
        let median = match (before.last(), after.first()) {
            (Some(before), Some(after)) if values.len().is_multiple_of(2) => f64::midpoint(*before, *after),
            (_, after) => *after?,
        };
        Some(Self { median, low, high })
    }
}

/// The median of `values`, if any of them is a number.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Summary::of(values).map(|summary| summary.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([7.0]), Some(7.0));
        assert_eq!(median([]), None);
    }

    #[test]
    fn what_is_not_a_number_does_not_count() {
        let summary = Summary::of([f64::NAN, 5.0, f64::INFINITY, 1.0, 3.0]).unwrap();
        assert_eq!((summary.low, summary.median, summary.high), (1.0, 3.0, 5.0));
        assert_eq!(Summary::of([f64::NAN]), None);
    }
}
