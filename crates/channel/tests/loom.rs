//! Every order of events that loom can think of, within three preemptions.
//!
//! loom watches each byte of the payload and each plain word for races, finds values that
//! relaxed orderings permit and hardware seldom shows, and reports a deadlock where a
//! wake is lost. Run with `RUSTFLAGS="--cfg loom" cargo test -p viaduct-channel --release`.

#![cfg(loom)]

use loom::model::Builder;
use loom::sync::{Arc, Notify};
use loom::thread;
use viaduct_channel::{Geometry, Receiver, Segment, Sender, Side};

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Blocks of two bytes.
fn geometry(blocks: u32) -> Geometry {
    Geometry::new(1, blocks).expect("models allow tiny blocks")
}

/// What each side sleeps on.
#[derive(Clone)]
struct Bells {
    receiver: Arc<Notify>,
    sender: Arc<Notify>,
}

impl Bells {
    fn new() -> Self {
        Self {
            receiver: Arc::new(Notify::new()),
            sender: Arc::new(Notify::new()),
        }
    }

    /// Appends all bytes, sleeping while the lane is full.
    fn send(&self, tx: Sender<'_>, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let n = tx.append(bytes[done..].into()).expect("honest peer");
            done += n;
            if n != 0 {
                if tx.take_wait() != 0 {
                    self.receiver.notify();
                }
                continue;
            }
            tx.arm_credit(1);
            // Bits that are gone were taken by a receiver, which rings for them.
            if !tx.has_space() || tx.disarm_credit(1) == 0 {
                self.sender.wait();
            }
        }
    }

    /// Sleeps until at least `n` bytes are readable.
    fn await_bytes(&self, rx: Receiver<'_>, n: usize) {
        while rx.readable().expect("honest peer") < n {
            rx.arm(1);
            if rx.readable().expect("honest peer") < n || rx.disarm(1) == 0 {
                self.receiver.wait();
            }
        }
    }

    fn gained(&self, rx: Receiver<'_>, blocks: usize) {
        if blocks != 0 && rx.take_credit_wait() != 0 {
            self.sender.notify();
        }
    }

    /// Reads exactly `n` bytes.
    fn receive(&self, rx: Receiver<'_>, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        let mut done = 0;
        while done < n {
            self.await_bytes(rx, 1);
            let got = rx.copy_out(bytes[done..].as_mut().into(), 0);
            self.gained(rx, rx.consume(got));
            done += got;
        }
        bytes
    }

    /// Takes `len` bytes, which are there, `offset` after the head; they are part of `hole` then. Returns them and how
    /// many blocks were given back.
    fn search(&self, rx: Receiver<'_>, offset: usize, len: usize, hole: (u64, u64)) -> (Vec<u8>, usize) {
        let mut bytes = vec![0; len];
        assert_eq!(rx.copy_out(bytes.as_mut_slice().into(), offset), len);
        let blocks = rx.release(hole.0, hole.1);
        self.gained(rx, blocks);
        (bytes, blocks)
    }
}

#[test]
fn no_wake_of_a_receiver_is_lost() {
    check(|| {
        let (a, b) = Segment::heap(geometry(4));
        let bells = Bells::new();
        let receiver = {
            let bells = bells.clone();
            thread::spawn(move || bells.receive(b.receiver(Side::Second), 2))
        };
        bells.send(a.sender(Side::First), b"x");
        bells.send(a.sender(Side::First), b"y");
        assert_eq!(receiver.join().unwrap(), b"xy");
    });
}

#[test]
fn no_wake_of_a_receiver_that_waits_for_more_is_lost() {
    check(|| {
        let (a, b) = Segment::heap(geometry(4));
        let bells = Bells::new();
        let sender = {
            let bells = bells.clone();
            thread::spawn(move || {
                bells.send(a.sender(Side::First), b"x");
                bells.send(a.sender(Side::First), b"y");
            })
        };
        let rx = b.receiver(Side::Second);
        // The model wakes sleepers for no reason, too.
        while rx.readable() != Ok(2) {
            rx.arm_until(1, 2);
            if rx.published() < 2 || rx.disarm(1) == 0 {
                bells.receiver.wait();
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn who_waits_for_more_keeps_nobody_else_asleep() {
    check(|| {
        let (a, b) = Segment::heap(geometry(4));
        let bells = Bells::new();
        let sender = {
            let bells = bells.clone();
            thread::spawn(move || {
                let tx = a.sender(Side::First);
                for _ in 0..2 {
                    assert_eq!(tx.append(b"x"[..].into()), Ok(1));
                    if tx.take_wait() & 1 != 0 {
                        bells.receiver.notify();
                    }
                }
            })
        };
        let rx = b.receiver(Side::Second);
        // Another thread's, which sleeps if it has to.
        rx.arm_until(2, 2);
        let sleeps = rx.published() < 2;
        bells.await_bytes(rx, 1);
        sender.join().unwrap();
        assert!(!sleeps || rx.disarm(2) == 0, "its bell was not rung");
    });
}

#[test]
fn no_wake_of_a_sender_is_lost_and_no_byte_overwritten() {
    check(|| {
        let (a, b) = Segment::heap(geometry(1));
        let bells = Bells::new();
        let sender = {
            let bells = bells.clone();
            thread::spawn(move || bells.send(a.sender(Side::First), b"abcdef"))
        };
        assert_eq!(bells.receive(b.receiver(Side::Second), 6), b"abcdef");
        sender.join().unwrap();
    });
}

/// Sleeps until there are at least `room` bytes of space.
fn await_room(bells: &Bells, tx: Sender<'_>, bits: u32, room: usize) {
    while tx.space() < room {
        tx.arm_credit_for(bits, room);
        if tx.space() < room || tx.disarm_credit(bits) == 0 {
            bells.sender.wait();
        }
    }
}

#[test]
fn no_wake_of_a_sender_that_waits_for_more_is_lost() {
    check(|| {
        let (a, b) = Segment::heap(geometry(2));
        let bells = Bells::new();
        bells.send(a.sender(Side::First), b"abcd");
        let receiver = {
            let bells = bells.clone();
            thread::spawn(move || {
                let rx = b.receiver(Side::Second);
                [bells.receive(rx, 2), bells.receive(rx, 2)].concat()
            })
        };
        await_room(&bells, a.sender(Side::First), 1, 4);
        assert_eq!(receiver.join().unwrap(), b"abcd");
    });
}

#[test]
fn a_sender_that_waits_for_more_keeps_nobody_else_asleep() {
    check(|| {
        let (a, b) = Segment::heap(geometry(2));
        let bells = Bells::new();
        bells.send(a.sender(Side::First), b"abcd");
        let tx = a.sender(Side::First);
        // Another thread's, which sleeps if it has to.
        tx.arm_credit_for(2, 4);
        let receiver = {
            let bells = bells.clone();
            thread::spawn(move || {
                let rx = b.receiver(Side::Second);
                assert_eq!(rx.readable(), Ok(4));
                bells.gained(rx, rx.consume(2));
                bells.gained(rx, rx.consume(2));
            })
        };
        await_room(&bells, tx, 1, 2);
        receiver.join().unwrap();
        assert_eq!(tx.disarm_credit(2), 0, "its bell was not rung");
    });
}

#[test]
fn what_a_receiver_needs_wakes_a_sender_that_waits_for_more() {
    check(|| {
        let (a, b) = Segment::heap(geometry(4));
        let bells = Bells::new();
        bells.send(a.sender(Side::First), b"abcdef");
        let receiver = {
            let bells = bells.clone();
            thread::spawn(move || {
                let rx = b.receiver(Side::Second);
                if rx.want(7) != 0 {
                    bells.sender.notify();
                }
            })
        };
        let tx = a.sender(Side::First);
        while !tx.has_space() {
            tx.arm_credit_for(1, 6);
            if !tx.has_space() || tx.disarm_credit(1) == 0 {
                bells.sender.wait();
            }
        }
        receiver.join().unwrap();
    });
}

#[test]
fn blocks_go_round_while_both_sides_work() {
    check(|| {
        let (a, b) = Segment::heap(geometry(2));
        let bells = Bells::new();
        let sender = {
            let bells = bells.clone();
            thread::spawn(move || {
                for piece in [&b"abc"[..], b"de", b"fgh"] {
                    bells.send(a.sender(Side::First), piece);
                }
            })
        };
        let rx = b.receiver(Side::Second);
        assert_eq!(bells.receive(rx, 3), b"abc");
        assert_eq!(bells.receive(rx, 5), b"defgh");
        sender.join().unwrap();
    });
}

#[test]
fn a_block_released_in_the_middle_is_used_again_and_nothing_garbled() {
    check(|| {
        let (a, b) = Segment::heap(geometry(4));
        let bells = Bells::new();
        assert_eq!(b.receiver(Side::Second).want(8), 0);
        bells.send(a.sender(Side::First), b"aabbccdd");
        let sender = {
            let bells = bells.clone();
            thread::spawn(move || bells.send(a.sender(Side::First), b"eeff"))
        };
        let rx = b.receiver(Side::Second);
        bells.await_bytes(rx, 8);
        bells.gained(rx, rx.release(2, 6));
        assert_eq!(rx.release(2, 6), 0);
        assert_eq!(bells.receive(rx, 2), b"aa");
        bells.gained(rx, rx.consume(4));
        assert_eq!(bells.receive(rx, 6), b"ddeeff");
        sender.join().unwrap();
    });
}

/// The sender writes over a block as soon as it has it. So it must not get one of which anything is to be read: not
/// while a piece is copied out of it, and not while a byte of it, before the hole or behind, is left for later.
#[test]
fn a_block_is_given_back_when_all_of_it_has_been_read_and_not_before() {
    check(|| {
        let (a, b) = Segment::heap(geometry(4));
        let bells = Bells::new();
        assert_eq!(b.receiver(Side::Second).want(8), 0);
        bells.send(a.sender(Side::First), b"abcdefgh");
        let sender = {
            let bells = bells.clone();
            thread::spawn(move || bells.send(a.sender(Side::First), b"ijklmn"))
        };
        let rx = b.receiver(Side::Second);
        bells.await_bytes(rx, 8);
        // Of blocks 1 and 3, one byte each is unread.
        assert_eq!(bells.search(rx, 3, 4, (3, 7)), (b"defg".to_vec(), 1));
        assert_eq!(bells.search(rx, 2, 1, (2, 7)), (b"c".to_vec(), 1));
        assert_eq!(bells.receive(rx, 2), b"ab");
        bells.gained(rx, rx.consume(5));
        assert_eq!(bells.receive(rx, 7), b"hijklmn");
        sender.join().unwrap();
    });
}

/// The first block stays unread, so the sender may not go beyond the table's last entry
/// however many blocks come back, and goes on when the head moves. So does block `kept`, if
/// it is one, which the sender is not to lose meanwhile.
fn the_table_is_not_overrun(blocks: u32, entries: usize, kept: usize) {
    check(move || {
        let (a, b) = Segment::heap(geometry(blocks));
        let bells = Bells::new();
        let tx = a.sender(Side::First);
        bells.send(tx, b"aa");
        for n in 1..entries {
            let rx = b.receiver(Side::Second);
            bells.send(tx, if n == kept { b"kk" } else { b".." });
            bells.await_bytes(rx, 2 * (n + 1));
            if n != kept {
                assert_eq!(rx.release(2 * n as u64, 2 * n as u64 + 2), 1);
            }
        }
        assert!(!tx.has_space());
        let receiver = {
            let bells = bells.clone();
            thread::spawn(move || {
                let rx = b.receiver(Side::Second);
                assert_eq!(bells.receive(rx, 2), b"aa");
                if kept < entries {
                    bells.gained(rx, rx.consume(2 * kept - 2));
                    assert_eq!(bells.receive(rx, 2), b"kk");
                }
                bells.gained(
                    rx,
                    rx.consume(2 * (entries - 1) - if kept < entries { 2 * kept } else { 0 }),
                );
                assert_eq!(bells.receive(rx, 2), b"bb");
            })
        };
        assert!(tx.tail() == 2 * entries as u64);
        bells.send(tx, b"bb");
        receiver.join().unwrap();
    });
}

#[test]
fn the_table_is_not_overrun_by_blocks_released_in_the_middle() {
    the_table_is_not_overrun(2, 4, usize::MAX);
}

/// Here the table's last entry is reached twice: first the small one's.
#[test]
fn the_larger_table_is_not_overrun_by_blocks_released_in_the_middle() {
    the_table_is_not_overrun(4, 8, usize::MAX);
}

/// Lanes are enlarged once: an edge that moves on leaves published blocks behind it.
#[test]
fn the_larger_table_keeps_its_blocks() {
    the_table_is_not_overrun(4, 8, 4);
}

/// Two blocks fit the small tables here.
#[test]
fn a_lane_goes_on_in_larger_tables_while_both_sides_work() {
    check(|| {
        let (a, b) = Segment::heap(geometry(4));
        let bells = Bells::new();
        bells.send(a.sender(Side::First), b"abc");
        let sender = {
            let bells = bells.clone();
            thread::spawn(move || {
                bells.send(a.sender(Side::First), b"defgh");
                bells.send(a.sender(Side::First), b"ijkl");
            })
        };
        let rx = b.receiver(Side::Second);
        assert_eq!(bells.receive(rx, 3), b"abc");
        bells.await_bytes(rx, 3);
        // Block 2, of which the larger table tells.
        bells.gained(rx, rx.release(4, 6));
        assert_eq!(bells.receive(rx, 1), b"d");
        bells.gained(rx, rx.consume(2));
        assert_eq!(bells.receive(rx, 6), b"ghijkl");
        sender.join().unwrap();
    });
}

/// Three blocks a lane may have at once, and four if its receiver needs what is in them.
#[test]
fn a_sender_without_space_hears_of_a_receiver_that_needs_more() {
    check(|| {
        let (a, b) = Segment::heap(geometry(4));
        let bells = Bells::new();
        let tx = a.sender(Side::First);
        bells.send(tx, b"abcde");
        let receiver = {
            let bells = bells.clone();
            thread::spawn(move || {
                let rx = b.receiver(Side::Second);
                while rx.readable() != Ok(8) {
                    rx.arm_until(1, 8);
                    if rx.want(8) != 0 {
                        bells.sender.notify();
                    }
                    if rx.published() < 8 || rx.disarm(1) == 0 {
                        bells.receiver.wait();
                    }
                }
                assert_eq!(bells.receive(rx, 8), b"abcdefgh");
            })
        };
        bells.send(tx, b"fgh");
        receiver.join().unwrap();
    });
}

/// What a lane gives back when all of it has been consumed is written over in models, so that a receiver that still
/// reads there is found out, as is one that still looks at the entry of the block that is being filled.
#[test]
fn a_drained_lane_is_made_smaller_while_its_receiver_works() {
    check(|| {
        let (a, b) = Segment::heap(geometry(2));
        let bells = Bells::new();
        let receiver = {
            let bells = bells.clone();
            thread::spawn(move || bells.receive(b.receiver(Side::Second), 6))
        };
        let tx = a.sender(Side::First);
        bells.send(tx, b"ab");
        bells.send(tx, b"c");
        tx.shrink();
        bells.send(tx, b"def");
        assert_eq!(receiver.join().unwrap(), b"abcdef");
    });
}

#[test]
fn both_directions_at_once() {
    check(|| {
        let (a, b) = Segment::heap(geometry(2));
        let there = Bells::new();
        let back = Bells::new();
        let peer = {
            let (there, back) = (there.clone(), back.clone());
            thread::spawn(move || {
                let bytes = there.receive(b.receiver(Side::Second), 3);
                back.send(b.sender(Side::Second), &bytes);
            })
        };
        there.send(a.sender(Side::First), b"abc");
        assert_eq!(back.receive(a.receiver(Side::First), 3), b"abc");
        peer.join().unwrap();
    });
}
