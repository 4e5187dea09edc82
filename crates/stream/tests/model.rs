//! Every byte of a stream arrives once and in order, however its direction is moved about.

mod support;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use support::{Deed, Glance, Listener, Pipe, Step, Talker, scramble};
use viaduct_channel::{Segment, Side};

/// Something one of the four halves of a connection does.
#[derive(Clone, Copy, Debug)]
enum Event {
    Talk(Deed),
    Listen(Glance),
    RequestRaw(bool),
    NeedRaw(bool),
    Recall,
    Withdraw,
}

/// One direction: who talks, who listens.
struct Direction<'a> {
    talker: Talker<'a>,
    listener: Listener<'a>,
}

impl<'a> Direction<'a> {
    /// The direction in which `side` talks.
    fn new(near: &'a Segment, far: &'a Segment, side: Side, pipe: &'a Pipe) -> Self {
        let direction = Self {
            talker: Talker::new(near, side, pipe),
            listener: Listener::new(far, side.other(), pipe),
        };
        direction.listener.incoming.set_ready();
        direction
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Talk(deed) => self.talker.act(deed),
            Event::Listen(glance) => {
                assert_ne!(self.listener.step(glance), Step::Violation);
                self.check();
            }
            Event::RequestRaw(raw) => self.listener.request_raw(raw),
            Event::NeedRaw(raw) => self.listener.need_raw(raw),
            Event::Recall => self.listener.recall(),
            Event::Withdraw => self.listener.withdraw(),
        }
    }

    fn check(&self) {
        assert_eq!(self.listener.garbled, 0, "{self}");
        assert!(self.listener.received <= self.talker.sent, "{self}");
    }

    /// The talker does nothing new, but what it owes; the listener receives until nothing comes.
    fn settle(&mut self) {
        let glance = Glance {
            room: 5000,
            batch: 64,
            marks_first: false,
        };
        let mut idle = 0;
        for _ in 0..1_000_000 {
            self.talker.act(Deed::Send(0));
            let before = self.listener.received;
            match self.listener.step(glance) {
                Step::Violation => panic!("violation: {self}"),
                _ if self.listener.received != before => idle = 0,
                Step::Idle => idle += 1,
                Step::Moved => {}
            }
            if idle > 64 || self.listener.ran_out_of_room() {
                break;
            }
        }
        self.check();
        if self.listener.ran_out_of_room() {
            return;
        }
        assert_eq!(self.listener.received, self.talker.sent, "{self}");
        assert_eq!(self.talker.pipe.queued(), 0, "{self}");
    }
}

impl std::fmt::Display for Direction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#?}\n{:#?}", self.talker, self.listener)
    }
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => (1usize..100).prop_map(Deed::Send),
        1 => (1usize..12_000).prop_map(Deed::Send),
        4 => Just(Deed::Promote),
        2 => Just(Deed::Demote),
        3 => Just(Deed::Bell),
    ]
}

fn glance() -> impl Strategy<Value = Glance> {
    let room = prop_oneof![1usize..20, 1usize..9000];
    (room, 1usize..12, any::<bool>()).prop_map(|(room, batch, marks_first)| Glance {
        room,
        batch,
        marks_first,
    })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        50 => deed().prop_map(Event::Talk),
        60 => glance().prop_map(Event::Listen),
        3 => any::<bool>().prop_map(Event::RequestRaw),
        1 => any::<bool>().prop_map(Event::NeedRaw),
    ]
}

fn events() -> impl Strategy<Value = Vec<(bool, Event)>> {
    prop::collection::vec((any::<bool>(), event()), 0..600)
}

/// What the talker does, and what the listener does without it: it stands still as the listener leaves.
fn left_by(direction: &mut Direction<'_>) {
    direction.happen(Event::Recall);
    direction.listener.leave(true);
    // It goes on, whatever the listener has come to.
    for _ in 0..10_000 {
        if direction.listener.has_handed_over() || direction.listener.ran_out_of_room() {
            break;
        }
        direction.talker.act(Deed::Send(0));
        direction.talker.pipe.hold_back(false);
        direction.listener.leave(true);
    }
    direction.talker.pipe.hold_back(false);
    if direction.listener.ran_out_of_room() {
        return;
    }
    assert!(direction.listener.has_handed_over(), "{direction}");
    for _ in 0..50 {
        direction.talker.act(Deed::Send(0));
        if direction.talker.broken {
            return;
        }
    }
    direction.settle();
}

proptest! {
    #[test]
    fn both_directions_deliver_every_byte_once_and_in_order(
        capacities in (1usize..80, 1usize..80),
        events in events(),
    ) {
        let (first, second) = support::segment();
        let (there, back) = (Pipe::new(capacities.0), Pipe::new(capacities.1));
        let mut directions = [
            Direction::new(&first, &second, Side::First, &there),
            Direction::new(&second, &first, Side::Second, &back),
        ];
        for (which, event) in events {
            directions[usize::from(which)].happen(event);
        }
        directions.iter_mut().for_each(Direction::settle);
    }

    #[test]
    fn what_is_recalled_arrives_once_and_in_order(
        capacity in 1usize..200,
        before in prop::collection::vec(event(), 0..300),
        after in prop::collection::vec(event(), 0..100),
    ) {
        let (first, second) = support::segment();
        let pipe = Pipe::new(capacity);
        let mut direction = Direction::new(&first, &second, Side::First, &pipe);
        let events = before.into_iter().chain([Event::Recall]).chain(after);
        events.for_each(|event| direction.happen(event));
        direction.settle();
        prop_assert!(direction.listener.has_handed_over() || direction.listener.ran_out_of_room());
    }

    #[test]
    fn a_recall_that_is_withdrawn_has_changed_nothing(
        capacity in 1usize..200,
        before in prop::collection::vec(event(), 0..200),
        between in prop::collection::vec(event(), 0..6),
        after in prop::collection::vec(event(), 0..200),
    ) {
        let (first, second) = support::segment();
        let pipe = Pipe::new(capacity);
        let mut direction = Direction::new(&first, &second, Side::First, &pipe);
        let events = before.into_iter().chain([Event::Recall]).chain(between).chain([Event::Withdraw]).chain(after);
        events.for_each(|event| direction.happen(event));
        direction.settle();
    }

    #[test]
    fn what_is_left_arrives_once_and_in_order_once_the_talker_goes_on(
        capacity in 1usize..200,
        before in prop::collection::vec(event(), 0..300),
        held_back in prop::collection::vec(event(), 0..6),
    ) {
        let (first, second) = support::segment();
        let pipe = Pipe::new(capacity);
        let mut direction = Direction::new(&first, &second, Side::First, &pipe);
        before.into_iter().for_each(|event| direction.happen(event));
        pipe.hold_back(true);
        held_back.into_iter().for_each(|event| direction.happen(event));
        left_by(&mut direction);
    }

    #[test]
    fn an_idle_direction_does_not_notice_the_other(events in prop::collection::vec(event(), 0..200)) {
        let (first, second) = support::segment();
        let (there, back) = (Pipe::new(16), Pipe::new(16));
        let mut busy = Direction::new(&first, &second, Side::First, &there);
        let mut idle = Direction::new(&second, &first, Side::Second, &back);
        events.into_iter().for_each(|event| busy.happen(event));
        prop_assert_eq!(idle.talker.out.mode(), viaduct_stream::Mode::Raw);
        prop_assert!(idle.talker.out.may_promote());
        prop_assert!(!idle.talker.out.peer_wants_raw());
        prop_assert_eq!(idle.listener.incoming.source(), viaduct_stream::Source::Raw);
        prop_assert_eq!(idle.listener.lane.readable(), Ok(0));
        idle.settle();
    }
}

fn drawn_deed(state: &mut u64) -> Deed {
    let number = scramble(state);
    let len = usize::try_from(number >> 40).expect("24 bits");
    match number % 16 {
        0..6 => Deed::Send(len % 100),
        6 => Deed::Send(len % 12_000),
        7..11 => Deed::Promote,
        11..13 => Deed::Demote,
        _ => Deed::Bell,
    }
}

fn drawn_glance(state: &mut u64) -> Glance {
    let number = scramble(state);
    let len = usize::try_from(number >> 40).expect("24 bits");
    Glance {
        room: 1 + len % if number & 2 == 0 { 20 } else { 9000 },
        batch: 1 + len % 12,
        marks_first: number & 1 == 0,
    }
}

#[test]
fn nothing_is_lost_over_thousands_of_switches() {
    let (first, second) = support::segment();
    let pipe = Pipe::new(24);
    let mut direction = Direction::new(&first, &second, Side::First, &pipe);
    let mut state = 7;
    for _ in 0..400_000 {
        if scramble(&mut state) & 1 == 0 {
            direction.happen(Event::Talk(drawn_deed(&mut state)));
        } else {
            direction.happen(Event::Listen(drawn_glance(&mut state)));
        }
    }
    direction.settle();
    // The run has been through what it is for.
    assert!(direction.talker.switches > 5000, "{direction}");
    assert!(direction.listener.entered > 2500, "{direction}");
    assert!(direction.talker.refused > 100, "{direction}");
    assert!(direction.listener.full_batches > 100, "{direction}");
    assert!(direction.listener.ahead > 100, "{direction}");
    assert!(direction.talker.sent > 1 << 20, "{direction}");
}

#[test]
fn a_recall_sends_again_what_was_left_and_what_is_given_back() {
    let (mut again, mut returned, mut fetches, mut full, mut withdrawn) = (0, 0, 0, 0, 0);
    for seed in 0..1000 {
        let (first, second) = support::segment();
        let pipe = Pipe::new(64);
        let mut direction = Direction::new(&first, &second, Side::First, &pipe);
        let mut state = seed;
        for _ in 0..100 {
            direction.happen(Event::Talk(drawn_deed(&mut state)));
            direction.happen(Event::Listen(drawn_glance(&mut state)));
        }
        direction.happen(Event::Recall);
        if seed % 4 == 0 {
            direction.happen(Event::Withdraw);
            withdrawn += direction.listener.withdrawn;
            direction.happen(Event::Recall);
        }
        direction.settle();
        again += direction.talker.again;
        returned += direction.talker.returned;
        fetches += direction.talker.fetches;
        full += u32::from(direction.listener.ran_out_of_room());
    }
    // The runs have been through what they are for.
    assert!(again > 50_000, "{again}");
    assert!(returned > 10_000, "{returned}");
    assert!(fetches > 20, "{fetches}");
    assert!(full < 100, "{full}");
    assert!(withdrawn > 100, "{withdrawn}");
}

#[test]
fn who_leaves_a_talker_that_stands_still_leaves_no_mark_and_no_byte() {
    let (mut at_once, mut gone, mut unread, mut raw, mut withheld, mut returned) = (0, 0, 0, 0, 0, 0);
    let (mut broken, mut came_back) = (0, 0);
    for seed in 0..6000 {
        let (first, second) = support::segment();
        let pipe = Pipe::new(64);
        let mut direction = Direction::new(&first, &second, Side::First, &pipe);
        let mut state = seed;
        for round in 0..100 {
            // What has not come is unknown to the listener.
            pipe.hold_back(seed % 4 == 0 && round > 95);
            direction.happen(Event::Talk(drawn_deed(&mut state)));
            direction.happen(Event::Listen(drawn_glance(&mut state)));
        }
        if seed % 2 == 0 {
            direction.happen(Event::Recall);
            direction.listener.leave(false);
            direction.listener.withdraw();
            came_back += direction.listener.withdrawn * direction.listener.gone;
            if seed % 8 < 6 {
                pipe.hold_back(false);
                direction.settle();
                continue;
            }
        }
        left_by(&mut direction);
        let Direction { talker, listener } = direction;
        at_once += u32::from(listener.gone > 0 && talker.again + talker.withheld == 0);
        gone += listener.gone;
        unread += listener.gone_unread;
        raw += listener.gone_raw;
        withheld += talker.withheld;
        returned += talker.returned;
        broken += u32::from(talker.broken);
    }
    // The runs have been through what they are for.
    assert!(gone > 1000, "{gone}");
    assert!(unread > 500, "{unread}");
    assert!(raw > 20, "{raw}");
    assert!(withheld > 500, "{withheld}");
    assert!(returned > 1000, "{returned}");
    assert!(at_once > 100, "{at_once}");
    assert!(broken < 100, "{broken}");
    assert!(came_back > 200, "{came_back}");
}

#[test]
fn what_is_to_be_given_back_is_known_before_anything_is() {
    let (mut handed_over, mut full) = (0, 0);
    for seed in 0..1500 {
        let (first, second) = support::segment();
        // Holds more than there is room for.
        let pipe = Pipe::new(100_000);
        let mut direction = Direction::new(&first, &second, Side::First, &pipe);
        let mut state = seed;
        for round in 0..100 {
            if round == 30 {
                direction.happen(Event::Recall);
            }
            let deed = match drawn_deed(&mut state) {
                Deed::Send(len) => Deed::Send(len * 100 % 12_000),
                deed => deed,
            };
            direction.happen(Event::Talk(deed));
            direction.happen(Event::Listen(drawn_glance(&mut state)));
        }
        direction.settle();
        handed_over += u32::from(direction.listener.has_handed_over());
        full += u32::from(direction.listener.ran_out_of_room());
    }
    assert!(handed_over > 100 && full > 100, "{handed_over} {full}");
}

/// What the threads have for what takes them less than a second; a half whose other half has failed would go on for
/// ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// Talks until `total` bytes have been sent, and then does what it owes until all has been received. Returns the
/// switches.
fn talk(segment: &Segment, side: Side, pipe: &Pipe, total: u64, received: &AtomicBool) -> u64 {
    let mut talker = Talker::new(segment, side, pipe);
    let mut state = total;
    let started = Instant::now();
    while !received.load(Relaxed) {
        assert!(started.elapsed() < PATIENCE, "{talker:#?}");
        let before = talker.sent;
        talker.act(if before < total {
            drawn_deed(&mut state)
        } else {
            Deed::Demote
        });
        if talker.sent == before {
            thread::yield_now();
        }
    }
    talker.switches
}

/// Listens until the `total` bytes and perhaps some of the last call have been received.
fn listen(segment: &Segment, side: Side, pipe: &Pipe, total: u64, received: &AtomicBool) {
    let mut listener = Listener::new(segment, side, pipe);
    listener.incoming.set_ready();
    let mut state = !total;
    let started = Instant::now();
    while listener.received < total {
        assert!(started.elapsed() < PATIENCE, "{listener:#?}");
        match listener.step(drawn_glance(&mut state)) {
            Step::Moved => assert_eq!(listener.garbled, 0, "{listener:#?}"),
            Step::Idle => thread::yield_now(),
            Step::Violation => panic!("violation: {listener:#?}"),
        }
    }
    received.store(true, Relaxed);
}

/// Listens for a while, hands the connection over in whatever state it is then, and goes on as the successor.
fn listen_and_hand_over(segment: &Segment, side: Side, pipe: &Pipe, total: u64, when: u64, received: &AtomicBool) {
    let mut listener = Listener::new(segment, side, pipe);
    listener.incoming.set_ready();
    let mut state = when;
    let started = Instant::now();
    while listener.received < total || !listener.has_handed_over() {
        assert!(started.elapsed() < PATIENCE, "{listener:#?}");
        if listener.received >= when {
            listener.recall();
        }
        match listener.step(drawn_glance(&mut state)) {
            Step::Moved => assert_eq!(listener.garbled, 0, "{listener:#?}"),
            Step::Idle => thread::yield_now(),
            Step::Violation => panic!("violation: {listener:#?}"),
        }
    }
    received.store(true, Relaxed);
}

#[test]
fn a_hand_over_loses_nothing_while_the_talker_goes_on() {
    const TOTAL: u64 = 1 << 13;
    for when in 0..100 {
        let (first, second) = support::segment();
        let pipe = Pipe::new(300);
        let received = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| talk(&first, Side::First, &pipe, TOTAL, &received));
            scope.spawn(|| listen_and_hand_over(&second, Side::Second, &pipe, TOTAL, when * 71, &received));
        });
    }
}

#[test]
fn four_threads_lose_nothing() {
    const TOTAL: u64 = 1 << 18;
    let (first, second) = support::segment();
    let (there, back) = (Pipe::new(300), Pipe::new(300));
    let received = [AtomicBool::new(false), AtomicBool::new(false)];
    thread::scope(|scope| {
        let talkers = [
            scope.spawn(|| talk(&first, Side::First, &there, TOTAL, &received[0])),
            scope.spawn(|| talk(&second, Side::Second, &back, TOTAL + 1, &received[1])),
        ];
        scope.spawn(|| listen(&second, Side::Second, &there, TOTAL, &received[0]));
        scope.spawn(|| listen(&first, Side::First, &back, TOTAL + 1, &received[1]));
        for talker in talkers {
            let switches = talker.join().expect("no panic");
            assert!(switches > 50, "{switches}");
        }
    });
}
