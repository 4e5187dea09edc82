//! Holes against the simplest thing that does the same: one flag a byte.

use proptest::prelude::*;
use std::collections::VecDeque;
use viaduct_stream::{Full, HOLES, Holes};

/// A stream of which each byte that has arrived is unread or taken. The front is the head.
#[derive(Debug, Default)]
struct Reference {
    head: u64,
    /// Whether each byte from the head on has been taken.
    taken: VecDeque<bool>,
}

impl Reference {
    fn unread(&self) -> usize {
        self.taken.iter().filter(|taken| !**taken).count()
    }

    /// Index of the unread byte at `offset`.
    fn index(&self, offset: usize) -> Option<usize> {
        let unread = self.taken.iter().enumerate().filter(|(_, taken)| !**taken);
        unread.map(|(index, _)| index).nth(offset)
    }

    fn take(&mut self, offset: usize, len: usize) {
        for _ in 0..len {
            if let Some(index) = self.index(offset) {
                self.taken[index] = true;
            }
        }
        while self.taken.front() == Some(&true) {
            self.taken.pop_front();
            self.head += 1;
        }
    }

    fn holes(&self) -> Vec<(u64, u64)> {
        let mut holes: Vec<(u64, u64)> = Vec::new();
        for (index, _) in self.taken.iter().enumerate().filter(|(_, taken)| **taken) {
            let at = self.head + index as u64;
            match holes.last_mut() {
                Some(hole) if hole.1 == at => hole.1 += 1,
                _ => holes.push((at, at + 1)),
            }
        }
        holes
    }
}

/// What a receiver does with [`Holes`]: takes `len` unread bytes from `offset` on, over the holes between them.
fn take(holes: &Holes, offset: u64, len: u64) -> Result<(u64, u64), Full> {
    let from = holes.position(offset);
    holes.take(from, holes.position(offset + len - 1) + 1)
}

fn all(holes: &Holes) -> Vec<(u64, u64)> {
    let mut at = 0;
    core::iter::from_fn(|| {
        let hole = holes.next(at)?;
        at = hole.1;
        Some(hole)
    })
    .collect()
}

fn compare(holes: &Holes, reference: &Reference) {
    assert!(holes.is_intact());
    assert_eq!(holes.head(), reference.head);
    let expected = reference.holes();
    assert_eq!(all(holes), expected);
    assert_eq!(holes.count(), expected.len());
    assert_eq!(holes.bytes(), expected.iter().map(|hole| hole.1 - hole.0).sum::<u64>());
    for at in (0..4).map(|index| reference.head + index * reference.taken.len() as u64 / 3) {
        let before = expected.iter().map(|hole| hole.1.min(at).saturating_sub(hole.0));
        assert_eq!(holes.bytes_before(at), before.sum::<u64>());
    }
    assert_eq!(
        holes.run(),
        expected.first().map_or(u64::MAX, |hole| hole.0 - reference.head)
    );
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive(usize),
    Take(usize, usize),
    Read(usize),
    ReadAll,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..200_usize).prop_map(Step::Arrive),
        8 => (0..300_usize, 1..40_usize).prop_map(|(offset, len)| Step::Take(offset, len)),
        3 => (1..60_usize).prop_map(Step::Read),
        1 => Just(Step::ReadAll),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn holes_do_what_flags_do(steps in prop::collection::vec(steps(), 1..200)) {
        let (holes, mut reference) = (Box::new(Holes::new()), Reference::default());
        for step in steps {
            let (offset, len) = match step {
                Step::Arrive(bytes) => {
                    reference.taken.extend(std::iter::repeat_n(false, bytes));
                    continue;
                }
                Step::Take(offset, len) => (offset, len),
                Step::Read(len) => (0, len),
                Step::ReadAll => (0, usize::MAX),
            };
            let len = len.min(reference.unread().saturating_sub(offset));
            if len == 0 {
                continue;
            }
            let index = reference.index(offset).unwrap() as u64;
            prop_assert_eq!(holes.position(offset as u64), reference.head + index);
            let short = offset == 0 && (len as u64) <= holes.run() && len % 2 == 0;
            let hole = if short {
                // The short way does the same.
                (0, holes.advance(holes.head() + len as u64))
            } else {
                take(&holes, offset as u64, len as u64).unwrap()
            };
            reference.take(offset, len);
            let known = reference.holes();
            prop_assert!(known.contains(&hole) || hole.1 == reference.head);
            compare(&holes, &reference);
        }
    }
}

/// A small generator, so that millions of operations follow from a seed.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[test]
fn millions_of_operations_agree() {
    // The reference keeps the holes as a plain sorted list here: slow, but not as slow as flags.
    let holes = Box::new(Holes::new());
    let (mut head, mut list): (u64, Vec<(u64, u64)>) = (0, Vec::new());
    // What has come, how many of it are unread, and whether no more will come.
    let (mut end, mut unread, mut over) = (0, 0, false);
    let mut seed = 1;
    let (mut refused, mut ended, mut lacking) = (0, 0, 0);
    for step in 0..2_000_000_u64 {
        // Phases of many holes and of few.
        let deep = if step % 400_000 < 200_000 { 60_000 } else { 300 };
        if !over && (unread < deep || random(&mut seed, 8) == 0) {
            let more = random(&mut seed, if unread < deep { deep } else { 40 });
            end += more;
            unread += more;
        }
        over |= random(&mut seed, 30_000) == 0;
        if over && unread == 0 {
            // All has been received: the one hole that is left is at the head, so there is none.
            assert_eq!((head, holes.count(), holes.bytes()), (end, 0, 0));
            holes.clear(step);
            (head, end, over) = (0, 0, false);
            ended += 1;
            continue;
        }
        let offset = match random(&mut seed, 8) {
            0 => 0,
            // About where the stream ends by now.
            1 => (unread + random(&mut seed, 3)).saturating_sub(random(&mut seed, 30)),
            _ => random(&mut seed, deep),
        };
        let position = |offset: u64| {
            let mut at = head + offset;
            for hole in &list {
                if hole.0 > at {
                    break;
                }
                at += hole.1 - hole.0;
            }
            at
        };
        let from = position(offset);
        assert_eq!(holes.position(offset), from);
        if offset >= unread {
            // Has not come: it stands behind all that has.
            assert_eq!(from, end + offset - unread);
            lacking += 1;
            continue;
        }
        let len = (1 + random(&mut seed, 30)).min(unread - offset);
        let to = position(offset + len - 1) + 1;
        assert!(to <= end);
        let touches = list.iter().any(|hole| hole.0 <= to && hole.1 >= from) || from == head;
        match holes.take(from, to) {
            Err(Full) => {
                assert!(list.len() == HOLES && !touches);
                refused += 1;
                // The program takes data off the head.
                let taken = unread.min(50_000);
                let to = position(taken - 1) + 1;
                holes.take(head, to).unwrap();
                unread -= taken;
                list.retain(|hole| hole.1 > to);
                head = match list.first() {
                    Some(hole) if hole.0 <= to => list.remove(0).1,
                    _ => to,
                };
            }
            Ok(hole) => {
                unread -= len;
                let first = list.partition_point(|hole| hole.1 < from);
                let last = list.partition_point(|hole| hole.0 <= to);
                let begin = list.get(first).map_or(from, |hole| hole.0.min(from));
                let end = list[..last].last().map_or(to, |hole| hole.1.max(to));
                list.splice(first..last, [(begin, end)]);
                assert_eq!(hole, (begin, end));
                if list[0].0 == head {
                    head = list.remove(0).1;
                }
            }
        }
        assert_eq!((holes.head(), holes.count()), (head, list.len()));
        assert_eq!(end - head - holes.bytes(), unread);
        if step % 50_000 == 0 {
            assert_eq!(all(&holes), list);
        }
    }
    assert!(
        refused > 0 && ended > 20 && lacking > 20_000,
        "{refused} refused, {ended} ended, {lacking} lacking"
    );
    assert!(holes.is_intact());
}

#[test]
fn a_full_set_changes_nothing_and_recovers() {
    let holes = Box::new(Holes::new());
    for number in 0..HOLES as u64 {
        holes.take(2 * number + 1, 2 * number + 2).unwrap();
    }
    let far = 2 * HOLES as u64 + 10;
    assert_eq!(holes.take(far, far + 1), Err(Full));
    assert!(!holes.has_room(far, far + 1) && holes.has_room(2, 3));
    assert_eq!((holes.count(), holes.bytes()), (HOLES, HOLES as u64));
    // Between two holes there is room, and at the head.
    assert_eq!(holes.take(2, 3), Ok((1, 4)));
    assert_eq!(holes.take(0, 1), Ok((0, 4)));
    assert_eq!(holes.count(), HOLES - 2);
    holes.take(far, far + 1).unwrap();
    holes.clear(1);
    assert_eq!(
        (holes.count(), holes.bytes(), holes.head(), holes.position(7)),
        (0, 0, 0, 7)
    );
}

#[test]
fn positions_near_the_end_of_numbers_do_not_overflow() {
    let holes = Box::new(Holes::new());
    holes.take(u64::MAX - 1, u64::MAX).unwrap();
    holes.take(5, 10).unwrap();
    assert_eq!(holes.position(u64::MAX), u64::MAX);
    assert_eq!(holes.take(0, u64::MAX), Ok((0, u64::MAX)));
    assert_eq!(holes.count(), 0);
}
