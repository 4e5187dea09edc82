//! Which connection a thread sends on.

use super::Guard;

impl Guard<'_> {
    /// The owner is about to send on connection `id`: calls `turns` first if it has sent on another since it did so
    /// last.
    #[inline(always)]
    pub(crate) fn turn_to(&self, id: u64, turns: impl FnOnce()) {
        if self.own.sent_on.get() != id {
            turns();
            // Afterwards: a handler that interrupts it may send elsewhere, or not come back.
            self.own.sent_on.set(id);
        }
    }

    /// The owner does something else that peers are to know the order of.
    pub(crate) fn turn_away(&self) {
        self.own.sent_on.set(0);
    }
}
