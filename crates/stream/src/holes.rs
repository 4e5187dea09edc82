//! Holes: bytes that direct search has taken out of the middle of a stream.
//!
//! Stream positions are counted from wherever the owner began to count. [`Holes::head`] is the position of the first
//! byte that has not been received; beyond it lie unread bytes and holes in turn. Neighbouring holes are one hole, and
//! a hole that the head reaches is gone. Offsets count unread bytes only, as if the bytes of holes had never been
//! there.
//!
//! The holes are a treap in a fixed array: a search tree by position that is also a heap by a number drawn from each
//! place's index and from a seed, so that its depth is logarithmic. The peer has a say in the order in which holes are
//! made; it knows no seed, so it makes the tree no deeper. Each node knows the bytes of the holes below it, which makes
//! finding the byte at an offset a walk down. All of it is atomic words, zero is the empty set, and nothing is a
//! pointer: the value may lie in memory that processes share. One user at a time; who shares it sees to that. A user
//! killed midway leaves [`Holes::is_intact`] false: walks still end, but what they find means nothing.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::compiler_fence;

/// Holes that a stream can have at one time.
pub const HOLES: usize = 2047;
/// Deeper than any tree of [`HOLES`] nodes gets; a damaged one is walked no further.
const DEEPEST: u32 = 128;

/// There are [`HOLES`] holes already, and the bytes to be taken touch none of them. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

#[derive(Debug)]
#[repr(C)]
struct Node {
    from: AtomicU64,
    to: AtomicU64,
    /// Bytes of the holes in the tree below this node, its own included.
    bytes: AtomicU64,
    /// One more than the index of the node; 0 for none. The free list goes through `left`.
    left: AtomicU32,
    right: AtomicU32,
}

/// The head and the holes of one direction.
#[derive(Debug)]
#[repr(C)]
pub struct Holes {
    head: AtomicU64,
    /// Where the first hole begins; 0 while there is none.
    first: AtomicU64,
    changing: AtomicU32,
    root: AtomicU32,
    free: AtomicU32,
    /// Nodes that have ever been in use.
    used: AtomicU32,
    count: AtomicU32,
    /// Changes with [`clear`](Self::clear) only: a node keeps its place among the others for as long as it is one.
    seed: AtomicU64,
    nodes: [Node; HOLES],
}

impl Default for Holes {
    fn default() -> Self {
        Self::new()
    }
}

/// A number that looks random, the same for the same node and seed.
const fn priority(seed: u64, node: u32) -> u64 {
    let mut z = seed.wrapping_add((node as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Holes {
    /// No holes, the head at 0.
    pub const fn new() -> Self {
        Self {
            head: AtomicU64::new(0),
            first: AtomicU64::new(0),
            changing: AtomicU32::new(0),
            root: AtomicU32::new(0),
            free: AtomicU32::new(0),
            used: AtomicU32::new(0),
            count: AtomicU32::new(0),
            seed: AtomicU64::new(0),
            nodes: [const {
                Node {
                    from: AtomicU64::new(0),
                    to: AtomicU64::new(0),
                    bytes: AtomicU64::new(0),
                    left: AtomicU32::new(0),
                    right: AtomicU32::new(0),
                }
            }; HOLES],
        }
    }

    /// Forgets everything; the head is at 0 again. `seed`: a number that the peer cannot know.
    pub fn clear(&self, seed: u64) {
        self.head.store(0, Relaxed);
        self.first.store(0, Relaxed);
        self.seed.store(seed, Relaxed);
        for word in [&self.root, &self.free, &self.used, &self.count, &self.changing] {
            word.store(0, Relaxed);
        }
    }

    /// Position of the first byte that has not been received.
    #[inline]
    pub fn head(&self) -> u64 {
        self.head.load(Relaxed)
    }

    /// Unread bytes from the head up to the first hole; `u64::MAX` if there is none.
    #[inline]
    pub fn run(&self) -> u64 {
        match self.first.load(Relaxed) {
            0 => u64::MAX,
            first => first.saturating_sub(self.head()),
        }
    }

    /// Takes the bytes from the head up to position `to`, as [`take`](Self::take) does, and answers where the head is
    /// then: there, or behind the holes that it has reached.
    #[inline(always)]
    pub fn advance(&self, to: u64) -> u64 {
        if to.saturating_sub(self.head()) < self.run() {
            self.head.store(to, Relaxed);
            return to;
        }
        self.move_over_holes(to)
    }

    /// Bytes in holes beyond the head.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes_below(self.root.load(Relaxed))
    }

    /// Those of them before position `at`.
    pub fn bytes_before(&self, at: u64) -> u64 {
        let mut bytes = 0_u64;
        let mut node = self.root.load(Relaxed);
        for _ in 0..DEEPEST {
            let Some(this) = self.node(node) else { break };
            let from = this.from.load(Relaxed);
            if from < at {
                let own = this.to.load(Relaxed).min(at).saturating_sub(from);
                let left = self.bytes_below(this.left.load(Relaxed));
                bytes = bytes.saturating_add(left).saturating_add(own);
                node = this.right.load(Relaxed);
            } else {
                node = this.left.load(Relaxed);
            }
        }
        bytes
    }

    /// Holes beyond the head.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed) as usize
    }

    /// False once a user was killed, or has jumped away, while it changed the set.
    pub fn is_intact(&self) -> bool {
        self.changing.load(Acquire) == 0
    }

    /// The set is not intact until [`end_change`](Self::end_change): also for who changes something else that goes with
    /// it.
    #[inline(always)]
    pub fn begin_change(&self) {
        self.changing.store(1, Relaxed);
        // A handler may interrupt the change, and leave it by a jump.
        compiler_fence(SeqCst);
    }

    /// The set and what goes with it are as they should be.
    #[inline(always)]
    pub fn end_change(&self) {
        self.changing.store(0, Release);
    }

    /// Position of the unread byte that `offset` unread bytes lie before.
    #[inline]
    pub fn position(&self, offset: u64) -> u64 {
        let plain = self.head().saturating_add(offset);
        if offset < self.run() {
            return plain;
        }
        let mut before = 0_u64;
        let mut at = self.root.load(Relaxed);
        for _ in 0..DEEPEST {
            let Some(node) = self.node(at) else { break };
            let left = node.left.load(Relaxed);
            let skipped = before.saturating_add(self.bytes_below(left));
            let from = node.from.load(Relaxed);
            if from <= plain.saturating_add(skipped) {
                before = skipped.saturating_add(node.to.load(Relaxed).saturating_sub(from));
                at = node.right.load(Relaxed);
            } else {
                at = left;
            }
        }
        plain.saturating_add(before)
    }

    /// The first hole that begins at or after position `at`.
    pub fn next(&self, at: u64) -> Option<(u64, u64)> {
        let mut found = None;
        let mut node = self.root.load(Relaxed);
        for _ in 0..DEEPEST {
            let Some(this) = self.node(node) else { break };
            if this.from.load(Relaxed) >= at {
                found = Some((this.from.load(Relaxed), this.to.load(Relaxed)));
                node = this.left.load(Relaxed);
            } else {
                node = this.right.load(Relaxed);
            }
        }
        found
    }

    /// The last hole that begins before position `at`.
    fn last_before(&self, at: u64) -> Option<(u64, u64)> {
        let mut found = None;
        let mut node = self.root.load(Relaxed);
        for _ in 0..DEEPEST {
            let Some(this) = self.node(node) else { break };
            if this.from.load(Relaxed) < at {
                found = Some((this.from.load(Relaxed), this.to.load(Relaxed)));
                node = this.right.load(Relaxed);
            } else {
                node = this.left.load(Relaxed);
            }
        }
        found
    }

    /// Whether the bytes from `from` to `to` can be taken: so unless every place is used and they touch no hole and not
    /// the head.
    #[inline(always)]
    pub fn has_room(&self, from: u64, to: u64) -> bool {
        (self.used.load(Relaxed) as usize) < HOLES
            || self.free.load(Relaxed) != 0
            || from <= self.head()
            || self.touches(from, to)
    }

    #[cold]
    fn touches(&self, from: u64, to: u64) -> bool {
        self.last_before(from).is_some_and(|hole| hole.1 >= from) || self.next(from).is_some_and(|hole| hole.0 <= to)
    }

    /// Takes the bytes from position `from` to `to`, which may reach over holes. Answers the hole they are part of now;
    /// where it ends at the head, it is gone.
    ///
    /// # Errors
    /// [`Full`].
    #[inline(always)]
    pub fn take(&self, from: u64, to: u64) -> Result<(u64, u64), Full> {
        let head = self.head();
        let from = from.max(head);
        if to <= from {
            return Ok((from, from));
        }
        if from == head {
            return Ok((head, self.advance(to)));
        }
        if self.root.load(Relaxed) == 0 {
            // The only one, as it mostly is; so there is a place.
            self.begin_change();
            self.root.store(self.make(from, to), Relaxed);
            self.first.store(from, Relaxed);
            self.end_change();
            return Ok((from, to));
        }
        self.take_among(from, to)
    }

    /// The same where there are holes, beyond the head.
    #[inline(never)]
    fn take_among(&self, from: u64, to: u64) -> Result<(u64, u64), Full> {
        let before = self.last_before(from).filter(|hole| hole.1 >= from);
        let after = self.next(from).filter(|hole| hole.0 <= to);
        match (before, after) {
            // In order behind a hole, which is how most are taken.
            (Some(hole), None) if hole.1 == from => {
                self.lengthen(hole.0, to - from, to);
                Ok((hole.0, to))
            }
            _ => self.insert(from, to, before),
        }
    }

    /// Moves the head to `to`, where or before which there is a hole.
    #[inline(always)]
    fn move_over_holes(&self, to: u64) -> u64 {
        self.begin_change();
        let root = self.root.load(Relaxed);
        if self.count() == 1
            && let Some(only) = self.node(root)
        {
            // As it mostly is: the head has reached it.
            let head = to.max(only.to.load(Relaxed));
            self.root.store(0, Relaxed);
            self.free_one(root, only);
            self.head.store(head, Relaxed);
            self.first.store(0, Relaxed);
            self.end_change();
            return head;
        }
        self.move_among_holes(to)
    }

    /// The same where there are several. They are being changed.
    #[inline(never)]
    fn move_among_holes(&self, to: u64) -> u64 {
        let mut head = to;
        while let Some((from, end)) = self.next(0)
            && from <= head
        {
            head = head.max(end);
            let (first, rest) = self.split(self.root.load(Relaxed), from.saturating_add(1), DEEPEST);
            self.root.store(rest, Relaxed);
            self.give_up(first);
        }
        self.head.store(head, Relaxed);
        self.first.store(self.next(0).map_or(0, |hole| hole.0), Relaxed);
        self.end_change();
        head
    }

    /// The hole that begins at `from` ends at `to` now, `more` bytes later than before.
    fn lengthen(&self, from: u64, more: u64, to: u64) {
        self.begin_change();
        let mut at = self.root.load(Relaxed);
        for _ in 0..DEEPEST {
            let Some(node) = self.node(at) else { break };
            node.bytes.store(node.bytes.load(Relaxed).saturating_add(more), Relaxed);
            let here = node.from.load(Relaxed);
            if here == from {
                node.to.store(to, Relaxed);
                break;
            }
            at = if from < here { &node.left } else { &node.right }.load(Relaxed);
        }
        self.end_change();
    }

    /// Makes one hole of `from..to` and all it touches. `before`: the hole that begins before it and touches it.
    fn insert(&self, from: u64, to: u64, before: Option<(u64, u64)>) -> Result<(u64, u64), Full> {
        if !self.has_room(from, to) {
            return Err(Full);
        }
        self.begin_change();
        let from = before.map_or(from, |hole| hole.0);
        let mut to = before.map_or(to, |hole| hole.1.max(to));
        let (left, rest) = self.split(self.root.load(Relaxed), from, DEEPEST);
        let (touched, right) = self.split(rest, to.saturating_add(1), DEEPEST);
        let mut last = touched;
        for _ in 0..DEEPEST {
            let Some(node) = self.node(last) else { break };
            to = to.max(node.to.load(Relaxed));
            last = node.right.load(Relaxed);
        }
        self.give_up(touched);
        let made = self.make(from, to);
        let joined = self.join(left, made, DEEPEST);
        self.root.store(self.join(joined, right, DEEPEST), Relaxed);
        self.first.store(self.next(0).map_or(0, |hole| hole.0), Relaxed);
        self.end_change();
        Ok((from, to))
    }

    #[inline]
    fn node(&self, number: u32) -> Option<&Node> {
        self.nodes.get((number as usize).wrapping_sub(1))
    }

    #[inline]
    fn bytes_below(&self, number: u32) -> u64 {
        self.node(number).map_or(0, |node| node.bytes.load(Relaxed))
    }

    /// A free place, filled; 0 if there is none.
    #[inline(always)]
    fn make(&self, from: u64, to: u64) -> u32 {
        let mut number = self.free.load(Relaxed);
        if number == 0 {
            number = self.used.load(Relaxed).saturating_add(1);
            if number as usize > HOLES {
                return 0;
            }
            self.used.store(number, Relaxed);
        } else if let Some(node) = self.node(number) {
            self.free.store(node.left.load(Relaxed), Relaxed);
        }
        if let Some(node) = self.node(number) {
            node.from.store(from, Relaxed);
            node.to.store(to, Relaxed);
            node.bytes.store(to.saturating_sub(from), Relaxed);
            node.left.store(0, Relaxed);
            node.right.store(0, Relaxed);
        }
        self.count.store(self.count.load(Relaxed).saturating_add(1), Relaxed);
        number
    }

    /// Frees a whole tree.
    fn give_up(&self, tree: u32) {
        let mut tree = tree;
        // Each node is taken off the top; what was below it is joined again.
        for _ in 0..HOLES {
            let Some(node) = self.node(tree) else { return };
            let rest = self.join(node.left.load(Relaxed), node.right.load(Relaxed), DEEPEST);
            self.free_one(tree, node);
            tree = rest;
        }
    }

    #[inline]
    fn free_one(&self, number: u32, node: &Node) {
        node.left.store(self.free.load(Relaxed), Relaxed);
        self.free.store(number, Relaxed);
        self.count.store(self.count.load(Relaxed).saturating_sub(1), Relaxed);
    }

    fn sum_up(&self, node: &Node) {
        let own = node.to.load(Relaxed).saturating_sub(node.from.load(Relaxed));
        let below = self.bytes_below(node.left.load(Relaxed)) + self.bytes_below(node.right.load(Relaxed));
        node.bytes.store(own.saturating_add(below), Relaxed);
    }

    /// Parts a tree into the holes that begin before `at` and the others.
    fn split(&self, tree: u32, at: u64, deep: u32) -> (u32, u32) {
        let (Some(node), Some(deep)) = (self.node(tree), deep.checked_sub(1)) else {
            return (0, 0);
        };
        if node.from.load(Relaxed) < at {
            let (left, right) = self.split(node.right.load(Relaxed), at, deep);
            node.right.store(left, Relaxed);
            self.sum_up(node);
            (tree, right)
        } else {
            let (left, right) = self.split(node.left.load(Relaxed), at, deep);
            node.left.store(right, Relaxed);
            self.sum_up(node);
            (left, tree)
        }
    }

    /// One tree of two, all holes of the first before those of the second.
    fn join(&self, left: u32, right: u32, deep: u32) -> u32 {
        let (Some(first), Some(second), Some(deep)) = (self.node(left), self.node(right), deep.checked_sub(1)) else {
            return left | right;
        };
        let seed = self.seed.load(Relaxed);
        if priority(seed, left) > priority(seed, right) {
            let below = self.join(first.right.load(Relaxed), right, deep);
            first.right.store(below, Relaxed);
            self.sum_up(first);
            left
        } else {
            let below = self.join(left, second.left.load(Relaxed), deep);
            second.left.store(below, Relaxed);
            self.sum_up(second);
            right
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes on the longest way down, which no call walks more than a few times.
    fn depth(holes: &Holes, tree: u32) -> u32 {
        holes.node(tree).map_or(0, |node| {
            let [left, right] = [&node.left, &node.right].map(|below| depth(holes, below.load(Relaxed)));
            1 + left.max(right)
        })
    }

    /// The deepest that the tree of `count` holes made in this order ever is, if each makes way for another `again`
    /// times.
    fn deepest(seed: u64, count: u64, again: u64, order: impl Fn(u64) -> u64) -> u32 {
        let holes = Holes::new();
        holes.clear(seed);
        let mut most = 0;
        for index in 0..count {
            let at = 10 * (1 + order(index));
            assert!(holes.take(at, at + 1).is_ok());
            most = most.max(depth(&holes, holes.root.load(Relaxed)));
        }
        assert_eq!(holes.count() as u64, count);
        for index in 0..again {
            let first = holes.next(0).map_or(0, |hole| hole.0);
            assert!(holes.take(0, first).is_ok());
            let at = 10 * (1 + count + order(index % count) + index / count * count);
            assert!(holes.take(at, at + 1).is_ok());
            most = most.max(depth(&holes, holes.root.load(Relaxed)));
        }
        most
    }

    #[test]
    fn the_tree_is_as_deep_as_the_logarithm_of_its_holes() {
        const MOST: u64 = HOLES as u64;
        for count in [15, 127, 511, MOST] {
            // Of a random search tree: 4.3 natural logarithms, and some places.
            let bound = 3 * count.ilog2() + 6;
            let orders: [(&str, &dyn Fn(u64) -> u64); 5] = [
                ("ascending", &|index| index),
                ("descending", &|index| count - 1 - index),
                ("from both ends", &|index| {
                    if index % 2 == 0 {
                        index / 2
                    } else {
                        count - 1 - index / 2
                    }
                }),
                // Both of these are permutations of an odd number of places that is no multiple of what they step by.
                ("by steps", &|index| index * 64 % count),
                ("bit by bit", &|index| index * (count / 2) % count),
            ];
            for (name, order) in orders {
                let deep = deepest(0, count, 3 * count, order);
                assert!(deep <= bound, "{count} holes {name}: {deep} deep");
            }
        }
        assert!(3 * HOLES.ilog2() + 6 < DEEPEST);
    }

    /// An order in which whoever knows the seed has so many holes made that the tree is a list.
    fn order_against(seed: u64, count: u64) -> impl Fn(u64) -> u64 {
        let mut numbers: Vec<u32> = (1..).take(usize::try_from(count).unwrap()).collect();
        numbers.sort_unstable_by_key(|number| priority(seed, *number));
        let mut ranks = vec![0; numbers.len()];
        for (rank, number) in numbers.iter().enumerate() {
            ranks[*number as usize - 1] = rank as u64;
        }
        move |index| ranks[usize::try_from(index).unwrap()]
    }

    #[test]
    fn a_peer_that_does_not_know_the_seed_makes_no_deep_tree() {
        const MOST: u64 = HOLES as u64;
        let few = u64::from(DEEPEST) - 1;
        for known in 0..20 {
            let order = order_against(known, few);
            assert_eq!(u64::from(deepest(known, few, 0, order)), few, "else it proves nothing");
            let order = order_against(known, MOST);
            let deep = deepest(!known, MOST, MOST, &order);
            assert!(deep <= 3 * MOST.ilog2() + 6, "seed {known}: {deep} deep");
        }
    }
}
