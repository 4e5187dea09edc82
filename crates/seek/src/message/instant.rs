//! Points in time.

use std::time::Duration;
use viaduct_socket::sys;

/// As that of `std`, but by the C library's own clock: another library may tell the program a time that stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instant {
    ns: u64,
}

impl Instant {
    pub(super) fn now() -> Self {
        Self { ns: sys::now_ns() }
    }

    pub(super) fn checked_add(self, time: Duration) -> Option<Self> {
        let ns = self.ns.checked_add(u64::try_from(time.as_nanos()).ok()?)?;
        Some(Self { ns })
    }

    /// None at all where `earlier` is not.
    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }
}

impl core::ops::Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        // So far away that it is for ever.
        self.checked_add(time).unwrap_or(Self { ns: u64::MAX })
    }
}
