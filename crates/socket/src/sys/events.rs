//! The buffers of programs that wait.

use super::Errno;

/// The buffer a program gave `epoll_wait`, filled from the front.
#[derive(Debug)]
pub struct Events {
    at: *mut libc::epoll_event,
    room: usize,
    used: usize,
}

impl Events {
    /// The buffer of `room` events at `at`.
    ///
    /// # Safety
    /// `at` must be valid for writing `room` events until the call it came with returns.
    pub unsafe fn new(at: *mut libc::epoll_event, room: usize) -> Self {
        Self { at, room, used: 0 }
    }

    /// Events in it.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Events it still has room for.
    pub(crate) fn room(&self) -> usize {
        self.room - self.used
    }

    /// Where the next event goes, and room for how many.
    pub(crate) fn free(&self) -> (*mut libc::epoll_event, usize) {
        (self.at.wrapping_add(self.used), self.room())
    }

    /// The kernel has written `count` more.
    pub(crate) fn filled_by_kernel(&mut self, count: usize) {
        self.used = (self.used + count).min(self.room);
    }

    pub(crate) fn push(&mut self, events: u32, data: u64) {
        if self.used < self.room {
            // SAFETY: within the program's buffer.
            unsafe {
                self.at
                    .add(self.used)
                    .write_unaligned(libc::epoll_event { events, u64: data })
            };
            self.used += 1;
        }
    }

    /// Has the kernel write events behind those there are; answers how many it wrote.
    pub(crate) fn fetch(&mut self, wait: impl FnOnce(&mut [libc::epoll_event]) -> Result<usize, Errno>) -> usize {
        if self.room() == 0 {
            return 0;
        }
        // SAFETY: within the program's buffer, which no one else has a reference to; an event is valid whatever its
        // bits.
        let free = unsafe { core::slice::from_raw_parts_mut(self.at.add(self.used), self.room()) };
        let count = wait(free).unwrap_or(0);
        self.filled_by_kernel(count);
        count
    }

    /// Puts the events from `from` on before the others.
    pub(crate) fn bring_forward(&mut self, from: usize) {
        if (1..self.used).contains(&from) {
            // SAFETY: within the program's buffer, which no one else has a reference to, and written.
            let events = unsafe { core::slice::from_raw_parts_mut(self.at, self.used) };
            events.rotate_left(from);
        }
    }

    /// Keeps, of the events from `from` on, those that `keep` accepts, by what they are and by their data.
    pub(crate) fn retain(&mut self, from: usize, mut keep: impl FnMut(u32, u64) -> bool) {
        let mut kept = from;
        for index in from..self.used {
            // SAFETY: within the program's buffer, written by the kernel.
            let event = unsafe { self.at.add(index).read_unaligned() };
            if keep(event.events, event.u64) {
                if kept != index {
                    // SAFETY: as above, before `index`.
                    unsafe { self.at.add(kept).write_unaligned(event) };
                }
                kept += 1;
            }
        }
        self.used = kept;
    }
}
