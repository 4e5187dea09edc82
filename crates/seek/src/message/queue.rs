//! The messages of a source that have been seen and not received, in order of arrival.
//!
//! Each has a number. Those of one tag are linked, and a Fenwick tree sums up what the socket has of each, so that no
//! call walks along messages that it does not ask for, of which there may be a million. One that is received leaves its
//! number empty; once more are empty than not, all are numbered anew.

use super::FRAME;
use std::collections::HashMap;

/// A message that has been seen and not received.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) tag: u32,
    pub(super) len: usize,
    /// What has been taken off the socket of its payload; `None`: not even its frame.
    pub(super) kept: Option<Vec<u8>>,
}

impl Message {
    /// What a message counts of which so many bytes are kept: no less than knowing of it takes, so that empty ones have
    /// a bound too.
    pub(super) const fn cost(len: usize) -> usize {
        let around = size_of::<Slot>() + size_of::<usize>() + size_of::<(u32, Chain)>();
        around.saturating_add(len)
    }

    /// Bytes of it in the socket.
    fn outside(&self) -> usize {
        self.kept
            .as_ref()
            .map_or(FRAME + self.len, |kept| self.len.saturating_sub(kept.len()))
    }

    pub(super) fn is_kept(&self) -> bool {
        self.kept.is_some() && self.outside() == 0
    }
}

/// The place of a number.
#[derive(Debug)]
struct Slot {
    message: Option<Message>,
    /// The number of the next of its tag.
    next: usize,
}

/// First and last of the messages of a tag.
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: usize,
    last: usize,
}

/// So many empty numbers do no harm.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Queue {
    slots: Vec<Slot>,
    /// Of each number, the bytes in the socket of it and of as many before it as its place in the tree says.
    sums: Vec<usize>,
    tags: HashMap<u32, Chain>,
    count: usize,
    /// All before this number have been received.
    first: usize,
    /// All before this number are kept whole, or have been received.
    inside: usize,
    outside: usize,
}

impl Queue {
    /// Appends a message, all of which is in the socket.
    pub(super) fn push(&mut self, tag: u32, len: usize) {
        self.append(Message { tag, len, kept: None });
    }

    /// Appends one whose frame has been taken off the socket, which has nothing of those before it.
    pub(super) fn push_payload(&mut self, tag: u32, len: usize) {
        let kept = Some(Vec::new());
        self.append(Message { tag, len, kept });
    }

    fn append(&mut self, message: Message) {
        let (number, tag, bytes) = (self.slots.len(), message.tag, message.outside());
        self.slots.push(Slot {
            message: Some(message),
            next: usize::MAX,
        });
        // The nodes that are below the new one.
        let (place, mut step, mut sum) = (number + 1, 1, bytes);
        while step < place & place.wrapping_neg() {
            sum += self.sums.get(number - step).copied().unwrap_or(0);
            step <<= 1;
        }
        self.sums.push(sum);
        self.link(number, tag);
        self.count += 1;
        self.outside += bytes;
        self.advance();
    }

    fn link(&mut self, number: usize, tag: u32) {
        let only = Chain {
            first: number,
            last: number,
        };
        let chain = self.tags.entry(tag).or_insert(only);
        let last = core::mem::replace(&mut chain.last, number);
        if let Some(slot) = self.slots.get_mut(last).filter(|_| last != number) {
            slot.next = number;
        }
    }

    pub(super) fn get(&self, number: usize) -> Option<&Message> {
        self.slots.get(number)?.message.as_ref()
    }

    /// The number of the first message of a tag, or of any. It stays until a message is removed or appended.
    pub(super) fn first(&self, tag: Option<u32>) -> Option<usize> {
        match tag {
            Some(tag) => self.tags.get(&tag).map(|chain| chain.first),
            None => (self.count > 0).then_some(self.first),
        }
    }

    /// The first message of which the socket has bytes.
    pub(super) fn first_outside(&self) -> Option<(usize, &Message)> {
        self.get(self.inside).map(|message| (self.inside, message))
    }

    /// Bytes in the socket.
    pub(super) fn outside(&self) -> usize {
        self.outside
    }

    /// Bytes in the socket before message `number`.
    pub(super) fn offset(&self, number: usize) -> usize {
        let (mut place, mut sum) = (number, 0);
        while let Some(before) = place.checked_sub(1) {
            sum += self.sums.get(before).copied().unwrap_or(0);
            place &= before;
        }
        sum
    }

    /// Changes what is kept of message `number`, to more than before.
    pub(super) fn change<R>(&mut self, number: usize, change: impl FnOnce(&mut Message) -> R) -> Option<R> {
        let message = self.slots.get_mut(number)?.message.as_mut()?;
        let before = message.outside();
        let result = change(message);
        let gone = before.saturating_sub(message.outside());
        self.subtract(number, gone);
        self.advance();
        Some(result)
    }

    /// So many bytes of message `number` have left the socket.
    fn subtract(&mut self, number: usize, bytes: usize) {
        self.outside -= bytes;
        let mut place = number + 1;
        while let Some(sum) = self.sums.get_mut(place - 1) {
            *sum -= bytes;
            place += place & place.wrapping_neg();
        }
    }

    /// Takes out message `number`, the first of its tag.
    pub(super) fn remove(&mut self, number: usize) -> Option<Message> {
        let slot = self.slots.get_mut(number)?;
        let (message, next) = (slot.message.take()?, slot.next);
        match self.tags.get_mut(&message.tag) {
            Some(chain) if chain.last != number => chain.first = next,
            _ => drop(self.tags.remove(&message.tag)),
        }
        self.count -= 1;
        self.subtract(number, message.outside());
        if self.slots.len() - self.count > self.count + FEW {
            self.renumber();
        } else {
            self.advance();
        }
        Some(message)
    }

    /// Takes out all messages of which the socket has bytes. The numbers of the others stay.
    pub(super) fn remove_outside(&mut self) {
        self.slots.truncate(self.inside);
        self.sums.truncate(self.inside);
        self.tags.clear();
        (self.count, self.outside) = (0, 0);
        for number in 0..self.slots.len() {
            if let Some(tag) = self.get(number).map(|message| message.tag) {
                self.count += 1;
                self.link(number, tag);
            }
        }
    }

    fn renumber(&mut self) {
        let old = core::mem::take(self);
        for message in old.slots.into_iter().filter_map(|slot| slot.message) {
            self.append(message);
        }
    }

    /// Passes over what has been received, and what is kept.
    fn advance(&mut self) {
        let is_empty = |slot: &Slot| slot.message.is_none();
        while self.slots.get(self.first).is_some_and(is_empty) {
            self.first += 1;
        }
        let is_inside = |slot: &Slot| slot.message.as_ref().is_none_or(Message::is_kept);
        while self.slots.get(self.inside).is_some_and(is_inside) {
            self.inside += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// The same in the simplest way.
    #[derive(Default)]
    struct Naive(VecDeque<Message>);

    impl Naive {
        fn first(&self, tag: Option<u32>) -> Option<usize> {
            self.0
                .iter()
                .position(|message| tag.is_none_or(|tag| tag == message.tag))
        }

        fn first_outside(&self) -> Option<usize> {
            self.0.iter().position(|message| !message.is_kept())
        }

        fn offset(&self, index: usize) -> usize {
            self.0.iter().take(index).map(Message::outside).sum()
        }
    }

    fn draw(seed: &mut u64, below: usize) -> usize {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(*seed >> 33).unwrap() % below
    }

    /// What tells messages apart.
    fn identity(message: &Message) -> (u32, usize, Option<Vec<u8>>) {
        (message.tag, message.len, message.kept.clone())
    }

    fn compare(queue: &Queue, naive: &Naive, tags: usize) {
        assert_eq!(queue.outside(), naive.offset(usize::MAX));
        for tag in core::iter::once(None).chain((0..=tags).map(|tag| u32::try_from(tag).ok())) {
            let (number, index) = (queue.first(tag), naive.first(tag));
            assert_eq!(number.is_some(), index.is_some());
            if let (Some(number), Some(index)) = (number, index) {
                assert_eq!(identity(queue.get(number).unwrap()), identity(&naive.0[index]));
                assert_eq!(queue.offset(number), naive.offset(index));
            }
        }
        let outside = queue.first_outside().map(|(_, message)| identity(message));
        assert_eq!(outside, naive.first_outside().map(|index| identity(&naive.0[index])));
    }

    #[test]
    fn it_does_what_a_list_does() {
        for seed in 0..60_u64 {
            let (mut random, mut queue, mut naive) = (seed, Queue::default(), Naive::default());
            let tags = [1, 3, 20, 300][draw(&mut random, 4)];
            let (growth, losses) = (30 + draw(&mut random, 40), draw(&mut random, 3));
            for _ in 0..1500 {
                match draw(&mut random, 100) {
                    action if action < growth => {
                        let (tag, len) = (u32::try_from(draw(&mut random, tags)).unwrap(), draw(&mut random, 9));
                        queue.push(tag, len);
                        naive.0.push_back(Message { tag, len, kept: None });
                    }
                    // As much of the first in the socket as may have come.
                    action if action < growth + 15 => {
                        let Some(index) = naive.first_outside() else { continue };
                        let number = queue.first_outside().unwrap().0;
                        let message = &mut naive.0[index];
                        let kept = message.kept.get_or_insert_default();
                        let more = draw(&mut random, message.len + 1 - kept.len());
                        kept.resize(kept.len() + more, 7);
                        let grown = |message: &mut Message| message.kept = Some(kept.clone());
                        queue.change(number, grown).unwrap();
                    }
                    action if action < growth + 15 + losses => {
                        queue.remove_outside();
                        let end = naive.first_outside().unwrap_or(naive.0.len());
                        naive.0.truncate(end);
                    }
                    _ => {
                        let tag = match draw(&mut random, 3) {
                            0 => None,
                            _ => u32::try_from(draw(&mut random, tags)).ok(),
                        };
                        let Some(index) = naive.first(tag) else { continue };
                        let removed = queue.remove(queue.first(tag).unwrap()).unwrap();
                        assert_eq!(identity(&removed), identity(&naive.0.remove(index).unwrap()));
                    }
                }
                compare(&queue, &naive, tags.min(25));
            }
        }
    }

    /// What is received leaves nothing behind, however long the first stays.
    #[test]
    fn it_takes_no_more_room_than_its_messages() {
        let mut queue = Queue::default();
        queue.push(0, 1);
        for len in 0..100_000 {
            queue.push(1, len);
            assert_eq!(queue.offset(queue.first(Some(1)).unwrap()), FRAME + 1);
            assert_eq!(queue.remove(queue.first(Some(1)).unwrap()).unwrap().len, len);
            assert!(queue.slots.len() < 2 * FEW && queue.sums.len() == queue.slots.len());
        }
        assert_eq!((queue.outside(), queue.first(None)), (FRAME + 1, Some(0)));
    }
}
