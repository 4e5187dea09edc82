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

    /// Puts the last events in the order of their `keys`.
    pub(crate) fn sort(&mut self, keys: &mut [u64]) {
        if keys.is_sorted() || keys.len() > self.used {
            return;
        }
        // SAFETY: within the program's buffer, which no one else has a reference to, and written.
        let events = unsafe { core::slice::from_raw_parts_mut(self.at.add(self.used - keys.len()), keys.len()) };
        // By insertion: they are few, and most are in order.
        for index in 1..keys.len() {
            let place = keys[..index].partition_point(|key| *key <= keys[index]);
            keys[place..=index].rotate_right(1);
            events[place..=index].rotate_right(1);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_sorted_and_equal_ones_stay_as_they_are() {
        const COUNT: usize = 64;
        let mut buffer = [libc::epoll_event { events: 0, u64: 0 }; COUNT + 2];
        // SAFETY: the buffer outlives what writes to it.
        let mut events = unsafe { Events::new(buffer.as_mut_ptr(), buffer.len()) };
        let mut keys: Vec<u64> = (0..COUNT as u64).map(|index| index * 37 % 16).collect();
        events.push(0, 1000);
        (0..).zip(&keys).for_each(|(index, _)| events.push(1, index));
        events.sort(&mut keys);
        let mut expected: Vec<u64> = (0..COUNT as u64).collect();
        expected.sort_by_key(|index| index * 37 % 16);
        let told = |buffer: &[libc::epoll_event]| buffer.iter().map(|event| event.u64).collect::<Vec<_>>();
        assert_eq!({ buffer[0].u64 }, 1000);
        assert_eq!(told(&buffer[1..=COUNT]), expected);
    }
}
