//! Two ends of a connection without a kernel: a pipe that counts positions, a talker that moves its direction about,
//! and a listener that follows the receivers' law. Both do one small step at a time, so that a test can put anything
//! between two.

#![allow(dead_code, reason = "each test uses its part")]

mod pipe;
#[path = "../../../../fuzz/support/script.rs"]
mod script;

pub(crate) use pipe::Pipe;
pub(crate) use script::scramble;
use viaduct_channel::{Geometry, Receiver, Returns, Segment, Sender, Side};
use viaduct_stream::{Incoming, Leave, MARK_BACK, MARK_BELL, Mode, Outgoing, Recall, Source};

/// Bytes that a lane of [`segment`] holds, and that there is room for to give back.
const ROOM: u64 = 8 << 12;

/// The smallest segment there is.
pub(crate) fn segment() -> (Segment, Segment) {
    Segment::heap(Geometry::new(12, 8).expect("permitted"))
}

/// The byte at a position of every stream here. Often one that could be a mark.
pub(crate) fn byte_at(position: u64) -> u8 {
    let mut state = position;
    let [kind, byte, ..] = scramble(&mut state).to_le_bytes();
    if kind < 96 { kind & 1 } else { byte }
}

fn bytes_at(position: u64, len: usize) -> Vec<u8> {
    (position..).take(len).map(byte_at).collect()
}

/// What a talker may be told to do; it does what its mode allows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    /// Send bytes of the stream, at most so many.
    Send(usize),
    /// Move to the lane.
    Promote,
    /// Move back to the kernel connection.
    Demote,
    /// Put a mark on the kernel connection.
    Bell,
}

/// A switch that is half done.
#[derive(Clone, Copy, Debug)]
enum Switch {
    None,
    Positioned(u64),
    BellOwed,
    /// A mark is about to be put, if it may be.
    Putting(u8, bool),
    /// The mark has been handed to the pipe; whether that took it, and whether nothing is left to be done.
    Put(u8, bool, bool),
    BackSent,
}

/// The sending half of one end.
#[derive(Debug)]
pub(crate) struct Talker<'a> {
    pub(crate) out: Outgoing<'a>,
    pub(crate) lane: Sender<'a>,
    /// The peer's side of the lane, for what the peer has recalled.
    far: Receiver<'a>,
    returns: Returns<'a>,
    pub(crate) pipe: &'a Pipe,
    switch: Switch,
    has_answered: bool,
    /// Stream bytes sent.
    pub(crate) sent: u64,
    /// Stream bytes sent a second time, because the peer recalled them.
    pub(crate) again: u64,
    /// Those of them that the peer gave back.
    pub(crate) returned: u64,
    /// Stretches begun for what the peer gave back.
    pub(crate) fetches: u64,
    /// Changes of path.
    pub(crate) switches: u64,
    /// Times that [`MARK_BACK`] met a full pipe.
    pub(crate) refused: u64,
    /// Marks that were not put, since the peer had left.
    pub(crate) withheld: u64,
    /// The peer has left without bytes that have been sent since: the connection is reset.
    pub(crate) broken: bool,
}

impl<'a> Talker<'a> {
    pub(crate) fn new(segment: &'a Segment, side: Side, pipe: &'a Pipe) -> Self {
        let lane = segment.sender(side);
        Self {
            out: Outgoing::new(lane),
            lane,
            far: segment.receiver(side.other()),
            returns: segment.returns(side).expect("on the heap"),
            pipe,
            switch: Switch::None,
            has_answered: false,
            sent: 0,
            again: 0,
            returned: 0,
            fetches: 0,
            switches: 0,
            refused: 0,
            withheld: 0,
            broken: false,
        }
    }

    /// One step. Steps of a switch that has begun go before the deed.
    pub(crate) fn act(&mut self, deed: Deed) {
        match self.switch {
            Switch::Positioned(until) => {
                self.switch = if self.out.promote(until) {
                    Switch::BellOwed
                } else {
                    Switch::None
                };
            }
            Switch::BellOwed => self.put(MARK_BELL),
            Switch::Putting(mark, may) => {
                // A full pipe wakes its reader anyway.
                let taken = may && self.pipe.send(&[mark]) == 1;
                self.withheld += u64::from(!may);
                self.refused += u64::from(mark == MARK_BACK && may && !taken);
                self.switch = Switch::Put(mark, taken, taken || !may);
            }
            Switch::Put(mark, taken, done) => {
                self.out.end_put(taken);
                // None is put to a peer that has left, which may come back until it has been answered.
                let done = done && (taken || self.out.has_answered());
                self.switch = if mark == MARK_BACK && done {
                    Switch::BackSent
                } else {
                    Switch::None
                };
            }
            Switch::BackSent => {
                self.out.back_sent();
                self.switch = Switch::None;
            }
            Switch::None => self.act_freely(deed),
        }
    }

    fn act_freely(&mut self, deed: Deed) {
        match (self.out.mode(), deed) {
            (_, _)
                if self.out.peer_wants_raw() && !self.has_answered && self.out.answer(|| self.pipe.send_position()) =>
            {
                self.has_answered = true;
            }
            _ if self.broken => {}
            (Mode::Raw, _) if self.out.must_fetch() => {
                let position = self.pipe.send_position();
                self.broken = self.out.left_at().is_some_and(|left| left != position);
                self.out.fetch(Some(position));
                self.fetches += 1;
            }
            (Mode::Raw, _) if self.out.awaits_receiver() => {}
            (Mode::Raw, Deed::Send(len)) => {
                let sent = self.pipe.send(&bytes_at(self.sent, len));
                self.sent += sent as u64;
            }
            (Mode::Raw, Deed::Promote) if !self.out.peer_wants_raw() && self.out.may_promote() => {
                self.switch = Switch::Positioned(self.pipe.send_position());
                self.switches += 1;
            }
            (Mode::Lane, _) if self.out.peer_wants_raw() => self.demote(),
            (Mode::Lane, Deed::Demote) => self.demote(),
            (Mode::Lane, Deed::Send(len)) => {
                // An honest peer gives no violation; a hostile one ends the connection, which is not this model's.
                let appended = self
                    .lane
                    .append(bytes_at(self.sent, len).as_slice().into())
                    .unwrap_or(0);
                self.sent += appended as u64;
            }
            (Mode::Lane, Deed::Bell) => self.put(MARK_BELL),
            (Mode::BackPending, _) => self.put(MARK_BACK),
            (Mode::Recalling, _) => self.send_again(),
            (Mode::Raw | Mode::Lane, _) => {}
        }
    }

    fn put(&mut self, mark: u8) {
        self.switch = Switch::Putting(mark, self.out.begin_put());
    }

    fn demote(&mut self) {
        self.out.demote();
        self.switches += 1;
    }

    fn send_again(&mut self) {
        if self.out.awaits_receiver() {
            return;
        }
        let mut bytes = [0; 100];
        let returned = self.out.returned();
        if !returned.is_empty() {
            let left = usize::try_from(returned.end - returned.start).unwrap_or(100).min(100);
            let len = self.returns.copy_out(returned.start, (&mut bytes[..left]).into());
            let sent = self.pipe.send(&bytes[..len]);
            self.out.sent_again(sent);
            self.again += sent as u64;
            self.returned += sent as u64;
            return;
        }
        let readable = self.far.readable().unwrap_or(0);
        let len = self.far.copy_out((&mut bytes[..]).into(), 0);
        if readable == 0 || len == 0 {
            self.out.recalled();
            return;
        }
        let sent = self.pipe.send(&bytes[..len]);
        self.far.consume(sent);
        self.again += sent as u64;
    }
}

/// How a listener looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glance {
    /// Bytes it has room for.
    pub(crate) room: usize,
    /// Marks it peeks at.
    pub(crate) batch: usize,
    /// Looks at the marks although the lane may have bytes.
    pub(crate) marks_first: bool,
}

/// A look that is half done.
#[derive(Clone, Copy, Debug)]
enum Look {
    Begin,
    /// What waits is to be counted.
    Count,
    /// So many bytes waited before the epoch was looked at again.
    Counted(usize),
    /// So many bytes are surely raw.
    Take(usize),
    /// So many marks have been understood.
    Discard(usize),
}

/// How far a listener is with giving the connection to a successor that knows no lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandOver {
    No,
    Begun,
    /// The successor receives.
    Done,
    /// There was no room for what had to be given back.
    Failed,
}

/// What a step of a listener did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something; there may be more.
    Moved,
    /// Nothing; the peer must do something first.
    Idle,
    /// The peer's words make no sense.
    Violation,
}

/// The receiving half of one end.
#[derive(Debug)]
pub(crate) struct Listener<'a> {
    pub(crate) incoming: Incoming<'a>,
    pub(crate) lane: Receiver<'a>,
    returns: Returns<'a>,
    pub(crate) pipe: &'a Pipe,
    look: Look,
    handing_over: HandOver,
    /// Stream bytes received.
    pub(crate) received: u64,
    /// Bytes received that are not those of the stream.
    pub(crate) garbled: u64,
    /// Times that a lane stretch was entered.
    pub(crate) entered: u64,
    /// Peeks that found more marks than they could hold.
    pub(crate) full_batches: u64,
    /// Recalls taken back.
    pub(crate) withdrawn: u64,
    /// Ends of lane stretches that were seen before the lane had been read.
    pub(crate) ahead: u64,
    /// Times that it left without the talker, those of them with bytes unread in the lane, and those in which raw bytes
    /// were behind what was unread there.
    pub(crate) gone: u64,
    pub(crate) gone_unread: u64,
    pub(crate) gone_raw: u64,
}

impl<'a> Listener<'a> {
    pub(crate) fn new(segment: &'a Segment, side: Side, pipe: &'a Pipe) -> Self {
        let lane = segment.receiver(side);
        let incoming = Incoming::new(lane);
        Self {
            incoming,
            lane,
            returns: segment.returns(side.other()).expect("on the heap"),
            pipe,
            look: Look::Begin,
            handing_over: HandOver::No,
            received: 0,
            garbled: 0,
            entered: 0,
            full_batches: 0,
            withdrawn: 0,
            ahead: 0,
            gone: 0,
            gone_unread: 0,
            gone_raw: 0,
        }
    }

    /// Begins to hand the connection over, in any state. No look is half done then.
    pub(crate) fn recall(&mut self) {
        if let Look::Discard(marks) = core::mem::replace(&mut self.look, Look::Begin) {
            self.pipe.receive(marks);
        }
        self.incoming.set_unready();
        self.incoming.recall();
        if self.handing_over == HandOver::No {
            self.handing_over = HandOver::Begun;
        }
    }

    /// Goes on by itself if the recall can be taken back.
    pub(crate) fn withdraw(&mut self) {
        let may = self.handing_over == HandOver::Begun || self.incoming.has_left();
        if may && self.incoming.withdraw_recall() {
            self.handing_over = HandOver::No;
            self.withdrawn += 1;
        }
    }

    pub(crate) fn has_handed_over(&self) -> bool {
        self.handing_over == HandOver::Done
    }

    pub(crate) fn ran_out_of_room(&self) -> bool {
        self.handing_over == HandOver::Failed
    }

    pub(crate) fn request_raw(&self, raw: bool) {
        self.incoming.request_raw(raw);
    }

    pub(crate) fn need_raw(&self, raw: bool) {
        self.incoming.need_raw(raw);
    }

    /// One step.
    pub(crate) fn step(&mut self, glance: Glance) -> Step {
        match core::mem::replace(&mut self.look, Look::Begin) {
            Look::Begin => self.begin(glance),
            Look::Count => match self.pipe.queued() {
                0 => Step::Idle,
                waiting => {
                    self.look = Look::Counted(waiting);
                    Step::Moved
                }
            },
            Look::Counted(waiting) => {
                // Second, where the bytes come from. Anything but raw: what was counted may be marks.
                if self.incoming.source() == Source::Raw {
                    self.look = Look::Take(waiting);
                }
                Step::Moved
            }
            Look::Take(surely_raw) => {
                let bytes = self.pipe.receive(surely_raw.min(glance.room));
                self.accept(&bytes)
            }
            Look::Discard(marks) => {
                self.pipe.receive(marks);
                Step::Moved
            }
        }
    }

    fn begin(&mut self, glance: Glance) -> Step {
        match self.handing_over {
            HandOver::No => self.receive(glance),
            HandOver::Begun => self.hand_over(glance),
            // Somebody who knows lanes may receive beside the successor.
            HandOver::Done if glance.marks_first => self.receive(glance),
            HandOver::Done => match self.pipe.receive(glance.room) {
                bytes if bytes.is_empty() => Step::Idle,
                bytes => self.accept(&bytes),
            },
            HandOver::Failed => Step::Idle,
        }
    }

    /// Hands the connection over without the talker, as far as that is possible while it does nothing.
    pub(crate) fn leave(&mut self, for_good: bool) {
        let glance = Glance {
            room: 5000,
            batch: 64,
            marks_first: false,
        };
        // The first may make it possible to give bytes back.
        for _ in 0..4 {
            while self.handing_over == HandOver::Begun && self.step(glance) == Step::Moved {}
            if self.handing_over != HandOver::Begun {
                return;
            }
            let had_room = match self.incoming.leave(for_good) {
                Leave::NotNow => continue,
                Leave::Marks if self.incoming.source() == Source::Lane => {
                    while self.incoming.source() == Source::Lane && self.take_marks(glance.batch) == Step::Moved {
                        self.step(glance);
                    }
                    true
                }
                Leave::Marks => true,
                Leave::Raw => {
                    let come = self.pipe.queued();
                    let fits = self.incoming.given_back() + come as u64 <= ROOM;
                    if fits {
                        let bytes = self.pipe.receive(come);
                        self.give_back(&bytes);
                        self.gone_raw += 1;
                    }
                    fits
                }
            };
            let position = self.pipe.receive_position();
            if had_room && (self.incoming.source() == Source::Raw || self.incoming.has_all_marks(position)) {
                self.incoming.has_gone(position);
                self.gone += 1;
                self.gone_unread += u64::from(self.lane.has_bytes());
            }
        }
    }

    fn hand_over(&mut self, glance: Glance) -> Step {
        match self.incoming.recalling() {
            // The pipe may be full until the successor receives.
            Recall::Done | Recall::Sending => {
                if self.incoming.leaves() && !self.incoming.has_left() {
                    self.incoming.has_gone(self.pipe.receive_position());
                }
                self.handing_over = HandOver::Done;
            }
            Recall::Wait => return Step::Idle,
            Recall::Marks => return self.take_marks(glance.batch),
            Recall::RawUntil(until) => {
                let Some(left) = until.checked_sub(self.pipe.receive_position()) else {
                    return Step::Violation;
                };
                let left = usize::try_from(left).expect("64 bits");
                if left == 0 {
                    self.incoming.enter_lane();
                    self.entered += 1;
                    return Step::Moved;
                }
                if !self.incoming.may_give_back() || self.pipe.queued() == 0 {
                    return Step::Idle;
                }
                if self.fits() {
                    let bytes = self.pipe.receive(left.min(glance.room));
                    self.give_back(&bytes);
                }
            }
            Recall::Ended => self.incoming.lane_drained(),
            Recall::Lane if !self.fits() => {}
            Recall::Lane => {
                let Ok(readable) = self.lane.readable() else {
                    return Step::Violation;
                };
                let mut bytes = vec![0; readable.min(glance.room)];
                let copied = self.lane.copy_out(bytes.as_mut_slice().into(), 0);
                self.give_back(&bytes[..copied]);
                self.lane.consume(copied);
                if copied == readable {
                    self.incoming.lane_drained();
                }
            }
        }
        Step::Moved
    }

    /// Whether there is room for all that is to be given back; else the hand-over has failed, before anything has been.
    fn fits(&mut self) -> bool {
        let given_back = self.incoming.given_back();
        let bytes = self.incoming.to_give_back(|| self.pipe.receive_position());
        if given_back + bytes > ROOM {
            assert_eq!(given_back, 0, "{bytes} more bytes have no room");
            self.handing_over = HandOver::Failed;
        }
        self.handing_over != HandOver::Failed
    }

    fn give_back(&mut self, bytes: &[u8]) {
        assert_eq!(
            self.returns.write(self.incoming.given_back(), bytes.into()),
            bytes.len()
        );
        self.incoming.give_back(bytes.len());
    }

    fn receive(&mut self, glance: Glance) -> Step {
        match self.incoming.source() {
            // The sender may promote before what waits is counted.
            Source::Raw => {
                self.look = Look::Count;
                Step::Moved
            }
            Source::RawUntil(until) => {
                let position = self.pipe.receive_position();
                if position == until {
                    self.incoming.enter_lane();
                    self.entered += 1;
                    return Step::Moved;
                }
                let Some(left) = until.checked_sub(position) else {
                    return Step::Violation;
                };
                self.look = Look::Take(usize::try_from(left).expect("64 bits"));
                if self.pipe.queued() == 0 {
                    Step::Idle
                } else {
                    Step::Moved
                }
            }
            Source::Lane if glance.marks_first => match self.take_marks(glance.batch) {
                Step::Idle => self.read_lane(glance.room),
                step => step,
            },
            Source::Lane => match self.read_lane(glance.room) {
                Step::Idle => self.take_marks(glance.batch),
                step => step,
            },
            Source::LaneThenRaw => match self.read_lane(glance.room) {
                Step::Idle => {
                    self.incoming.lane_drained();
                    Step::Moved
                }
                step => step,
            },
        }
    }

    fn take_marks(&mut self, batch: usize) -> Step {
        let marks = self.pipe.peek(batch);
        let taken = self.incoming.marks(&marks);
        if taken == 0 {
            return Step::Idle;
        }
        self.ahead += u64::from(self.incoming.source() == Source::LaneThenRaw && self.lane.has_bytes());
        if taken == batch && self.pipe.queued() > batch {
            self.full_batches += 1;
        }
        self.look = Look::Discard(taken);
        Step::Moved
    }

    fn read_lane(&mut self, room: usize) -> Step {
        let Ok(readable) = self.lane.readable() else {
            return Step::Violation;
        };
        let mut bytes = vec![0; readable.min(room)];
        let copied = self.lane.copy_out(bytes.as_mut_slice().into(), 0);
        self.lane.consume(copied);
        if copied == 0 {
            return Step::Idle;
        }
        self.accept(&bytes[..copied])
    }

    fn accept(&mut self, bytes: &[u8]) -> Step {
        let right = bytes_at(self.received, bytes.len());
        self.garbled += bytes.iter().zip(&right).filter(|(byte, right)| byte != right).count() as u64;
        self.received += bytes.len() as u64;
        Step::Moved
    }
}
