//! A lane against a plain queue.

use std::collections::{BTreeSet, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;

use crate::{Geometry, Receiver, Segment, Sender, Side, Source, Stores};

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<usize>),
    Read(usize),
    Peek { offset: usize, len: usize },
    Consume(usize),
    Release { from: usize, len: usize },
    Shrink,
    Want(usize),
}

fn step(most: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => vec(0..most, 1..4).prop_map(Step::Append),
        3 => (0..most).prop_map(Step::Read),
        1 => (0..most, 0..most).prop_map(|(offset, len)| Step::Peek { offset, len }),
        1 => (0..most).prop_map(Step::Consume),
        2 => (0..most, 0..most).prop_map(|(from, len)| Step::Release { from, len }),
        1 => Just(Step::Shrink),
        1 => (0..most).prop_map(Step::Want),
    ]
}

/// A geometry, and steps of sizes that matter to it.
fn story() -> impl Strategy<Value = (Geometry, Vec<Step>)> {
    (1u32..5, 0u32..5).prop_flat_map(|(shift, blocks)| {
        let geometry = Geometry::new(shift, 1 << blocks).expect("tests allow tiny blocks");
        let most = geometry.capacity() * 5 / 4 + 2;
        (Just(geometry), vec(step(most), 1..200))
    })
}

/// What a lane should be: bytes between head and tail, `None` where released.
struct Model {
    geometry: Geometry,
    head: usize,
    bytes: VecDeque<Option<u8>>,
    released: BTreeSet<usize>,
    next: u8,
    wanted: Option<usize>,
    since: usize,
}

impl Model {
    fn tail(&self) -> usize {
        self.head + self.bytes.len()
    }

    /// Blocks that the lane may have now. What it has been let grow to stays, and how far that is, is for other tests
    /// to say.
    fn blocks(&self, tx: Sender<'_>, kept: usize) -> usize {
        let (size, pool) = (self.geometry.block_size(), self.geometry.blocks());
        let blocks = tx.capacity() / size;
        let earned = ((self.tail() - self.since) / size / 2 / 2 * 2).max(8).min(pool);
        match self.wanted {
            None => assert_eq!(blocks, earned),
            Some(wanted) => {
                let wanted = wanted.max(self.tail()).div_ceil(size) - self.tail().div_ceil(size);
                assert_eq!(blocks, earned.max(tx.grown()).max((kept + wanted).min(pool)));
            }
        }
        blocks
    }

    fn space(&self, tx: Sender<'_>) -> usize {
        let size = self.geometry.block_size();
        let first = self.head / size;
        let next = self.tail().div_ceil(size);
        let kept = (first..next).filter(|block| !self.released.contains(block)).count();
        let reach = self.geometry.logical().saturating_sub(next - first);
        next * size - self.tail() + (self.blocks(tx, kept) - kept).min(reach) * size
    }

    fn append(&mut self, tx: Sender<'_>, pieces: &[usize]) {
        let space = self.space(tx);
        assert_eq!(tx.space(), space);
        assert_eq!(tx.has_space(), space != 0);
        let total: usize = pieces.iter().sum();
        let bytes: Vec<u8> = (0..=255).cycle().skip(self.next.into()).take(total).collect();
        let mut rest = &bytes[..];
        let sources = pieces.iter().map(|&len| {
            let (piece, after) = rest.split_at(len);
            rest = after;
            Source::from(piece)
        });
        let done = match pieces {
            [_] => tx.append(bytes.as_slice().into()),
            _ => tx.append_many(
                sources.collect::<Vec<_>>(),
                [Stores::Cached, Stores::PastCache][total % 2],
            ),
        };
        assert_eq!(done, Ok(total.min(space)));
        let done = total.min(space);
        if let Some(last) = bytes[..done].last() {
            self.next = last.wrapping_add(1);
        }
        self.bytes.extend(bytes[..done].iter().copied().map(Some));
        assert_eq!(tx.tail(), self.tail() as u64);
        assert_eq!(tx.in_flight(), self.bytes.len());
    }

    fn peek(&self, rx: Receiver<'_>, offset: usize, len: usize) -> usize {
        assert_eq!(rx.readable(), Ok(self.bytes.len()));
        let mut bytes = vec![0xA5; len + 1];
        let done = rx.copy_out(bytes.as_mut_slice()[..len].as_mut().into(), offset);
        assert_eq!(done, len.min(self.bytes.len().saturating_sub(offset)));
        for (got, expected) in bytes.iter().zip(self.bytes.iter().skip(offset)).take(done) {
            if let Some(expected) = expected {
                assert_eq!(got, expected);
            }
        }
        assert!(bytes[done..].iter().all(|&byte| byte == 0xA5));
        done
    }

    fn consume(&mut self, rx: Receiver<'_>, len: usize) {
        assert_eq!(rx.readable(), Ok(self.bytes.len()));
        let len_done = len.min(self.bytes.len());
        let size = self.geometry.block_size();
        let left = (self.head + len_done) / size - self.head / size;
        assert_eq!(rx.consume(len), left);
        self.bytes.drain(..len_done);
        self.head += len_done;
        let first = self.head / size;
        self.released.retain(|&block| block >= first);
        assert_eq!(rx.head(), self.head as u64);
    }

    fn want(&mut self, rx: Receiver<'_>, len: usize) {
        let until = self.head + len;
        assert_eq!(rx.want(until as u64), 0);
        self.wanted = self.wanted.max(Some(until));
    }

    fn release(&mut self, rx: Receiver<'_>, from: usize, len: usize) {
        assert_eq!(rx.readable(), Ok(self.bytes.len()));
        let (from, to) = (self.head + from, (self.head + from + len).min(self.tail()));
        let size = self.geometry.block_size();
        let mut given = 0;
        for block in from.div_ceil(size)..(to / size).max(from.div_ceil(size)) {
            given += usize::from(self.released.insert(block));
            for at in block * size..(block + 1) * size {
                self.bytes[at - self.head] = None;
            }
        }
        assert_eq!(rx.release(from as u64, to as u64), given);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 400 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_lane_is_a_queue_with_holes((geometry, steps) in story()) {
        let (a, b) = Segment::heap(geometry);
        let (tx, rx) = (a.sender(Side::Second), b.receiver(Side::First));
        let mut model = Model {
            geometry,
            head: 0,
            bytes: VecDeque::new(),
            released: BTreeSet::new(),
            next: 0,
            wanted: None,
            since: 0,
        };
        for step in steps {
            match step {
                Step::Append(pieces) => model.append(tx, &pieces),
                Step::Read(len) => {
                    let done = model.peek(rx, 0, len);
                    model.consume(rx, done);
                }
                Step::Peek { offset, len } => {
                    model.peek(rx, offset, len);
                }
                Step::Consume(len) => model.consume(rx, len),
                Step::Release { from, len } => model.release(rx, from, len),
                Step::Shrink => {
                    prop_assert_eq!(tx.shrink(), model.bytes.is_empty());
                    if model.bytes.is_empty() {
                        model.since = model.tail();
                    }
                }
                Step::Want(len) => model.want(rx, len),
            }
        }
        let rest = model.bytes.len();
        model.peek(rx, 0, rest);
        model.consume(rx, rest);
        let partly = geometry.offset_of(tx.tail());
        let idle = model.blocks(tx, usize::from(partly != 0)) * geometry.block_size() - partly;
        prop_assert_eq!(tx.space(), idle);
    }
}
