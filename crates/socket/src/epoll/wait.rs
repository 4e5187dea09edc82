//! Waiting in an epoll set.

use crate::conn::Conn;
use crate::conn::pace::{Bound, Naps};
use crate::epoll::arm::Heard;
use crate::epoll::set::Member;
use crate::epoll::{self, Set, Tagged, arm, inner, shelf};
use crate::lock::Guard;
use crate::path::recall;
use crate::sys::{self, Events, raw};
use crate::wait::cancel;
use crate::wait::spin::{self, Spinner};
use crate::{agent, ready, real};
use core::sync::atomic::Ordering::Relaxed;

/// While lanes keep a set busy, the kernel's own events are fetched at least this often, in microseconds.
const KERNEL_LOOK_US: u64 = 20;
/// And at least once in this many waits.
const KERNEL_LOOK_WAITS: u32 = 32;
/// How often the kernel is asked again at once, its answer having been about registrations of ours.
const FETCHES: u32 = 64;
/// So many events of lanes are put in order at most. Where more are there at once, nobody counts on it.
const SORTED: usize = 64;

/// Until when to wait, as the program said.
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    /// Nanoseconds; `None`: for ever.
    pub ns: Option<u64>,
    /// Whether the program thinks in nanoseconds (`epoll_pwait2`), else in milliseconds.
    pub fine: bool,
}

/// How a wait of the program's is to be made.
#[derive(Debug)]
pub enum Wait {
    /// By its own call, in a set that is not known.
    Unknown,
    /// By its own call.
    Plain(PlainWait),
    /// By us.
    Ours(OurWait),
}

/// A wait in a set none of whose members is on a lane. Nothing of ours is open meanwhile (see [`crate::epoll::ctl`]).
#[derive(Debug)]
pub struct PlainWait(&'static Set);

/// A wait in a set with members on lanes.
#[derive(Debug)]
pub struct OurWait(&'static Set);

/// Before a wait in set `index`.
#[inline]
pub fn begin(index: usize) -> Wait {
    if agent::has_mail() {
        agent::deliver();
    }
    shelf::empty();
    let Some(set) = epoll::set(index) else {
        return Wait::Unknown;
    };
    set.waited.store(true, Relaxed);
    if set.emulated.load(Relaxed) != 0 {
        cancel::point();
        return Wait::Ours(OurWait(set));
    }
    // Of interest to other threads only. What a handler of this one brings onto a lane it registers anew, of which the
    // kernel tells.
    if !sys::single_threaded() {
        set.fall_asleep();
        // Since the look above, a thread's first sleep taking a while: whoever took the first registration over has not
        // seen this one sleep.
        if set.is_emulated_now() {
            set.wake_up();
            set.has_heard();
            cancel::point();
            return Wait::Ours(OurWait(set));
        }
    }
    Wait::Plain(PlainWait(set))
}

impl PlainWait {
    /// The call had this result, and wrote to `events`.
    ///
    /// # Errors
    /// There is nothing to tell yet: the first connection was attached meanwhile.
    #[inline]
    pub fn end(self, result: isize, events: &mut Events) -> Result<isize, OurWait> {
        let Self(set) = self;
        let alone = sys::single_threaded();
        if !alone {
            set.wake_up();
        }
        let mut only_ours = false;
        if let Ok(count @ 1..) = usize::try_from(result) {
            events.filled_by_kernel(count);
            translate(set, None, events, 0);
            only_ours = events.used() == 0;
        }
        if !alone {
            set.has_heard();
        }
        if only_ours {
            return Err(OurWait(set));
        }
        wake_others(set);
        Ok(if result > 0 {
            events.used().cast_signed()
        } else {
            result
        })
    }
}

impl OurWait {
    /// Waits for events of the kernel and of lanes.
    pub fn make(self, events: &mut Events, timeout: Timeout, mask: *const libc::sigset_t) -> isize {
        let result = emulated(self.0, events, timeout, mask);
        wake_others(self.0);
        result
    }
}

/// A wait in the set has ended: whoever else sleeps there is to be told of what comes next.
#[inline]
fn wake_others(set: &'static Set) {
    if set.has_sleepers()
        && set.emulated.load(Relaxed) > 0
        && let Some(owner) = set.own()
        && set.arm_all_for_others(&owner)
    {
        set.nudge();
    }
}

fn emulated(set: &'static Set, events: &mut Events, timeout: Timeout, mask: *const libc::sigset_t) -> isize {
    let deadline = timeout.ns.map(|ns| sys::now_ns().saturating_add(ns));
    let mut naps = Naps::new();
    let mut woken = false;
    let mut slept = true;
    // What is ours may have hidden a signal that the mask lets in.
    let mut again = if mask.is_null() { 0 } else { FETCHES };
    loop {
        set.hear_again();
        inner::hear_left_again(set);
        // A sleep that comes at once asks the kernel by itself.
        let off = timeout.ns != Some(0) && slept && spin::is_off() && !set.has_events();
        let spinner = off.then(Spinner::new);
        if spinner.as_ref().is_none_or(Spinner::polls) {
            collect(set, events, timeout.ns == Some(0));
            if events.used() > 0 || timeout.ns == Some(0) {
                return events.used().cast_signed();
            }
        }
        let mut spinner = spinner.unwrap_or_else(Spinner::new);
        let polls = spinner.polls();
        while spinner.again() {
            if set.stirs() {
                spinner.paid();
                break;
            }
        }
        if polls {
            collect(set, events, true);
            if events.used() > 0 {
                return events.used().cast_signed();
            }
        }
        let bound = if woken && recall::serve_all() {
            Bound::UnrungRoom
        } else {
            Bound::Program
        };
        match sleep(set, events, bound, deadline, &mut naps, timeout.fine, mask) {
            Ok(Slept::Woken) => (woken, slept) = (true, true),
            Ok(Slept::Ready) => (woken, slept) = (true, false),
            Ok(Slept::TimeUp) => return 0,
            Err(errno) => return sys::fail(errno),
        }
        if events.used() > 0 {
            if let Some(owner) = set.own() {
                put_lanes_first(set, &owner, events);
                inner::report(set, events);
            }
            return events.used().cast_signed();
        }
        // Somebody may ring without end.
        if is_over(deadline) {
            collect(set, events, true);
            if events.used() > 0 || again == 0 {
                return events.used().cast_signed();
            }
            again -= 1;
        }
        if agent::has_mail() {
            agent::deliver();
        }
    }
}

/// Takes the kernel's events, if it is time to ask for them, and those of the lanes. Where the program takes few at a
/// time, either may leave no room for the other, so they take turns in coming first.
fn collect(set: &'static Set, events: &mut Events, ask: bool) {
    // Nobody takes a registration over in between, whose event would then be given twice.
    let owner = set.own();
    let now = sys::ticks();
    let turn = set.waits.fetch_add(1, Relaxed).is_multiple_of(KERNEL_LOOK_WAITS);
    let asks = ask || turn || now.wrapping_sub(set.kernel_looked.load(Relaxed)) > KERNEL_LOOK_US * sys::ticks_per_us();
    if let Some(owner) = owner.as_ref().filter(|_| set.has_inner_sets()) {
        if asks {
            set.kernel_looked.store(now, Relaxed);
        }
        return take_turns(set, owner, events, asks);
    }
    let lanes_turn = set.crowded.swap(false, Relaxed);
    let lanes_first = !asks || lanes_turn;
    if lanes_first && let Some(owner) = &owner {
        from_lanes(set, owner, events);
    }
    if asks {
        set.kernel_looked.store(now, Relaxed);
        from_kernel(set, owner.as_ref(), events);
    }
    if !lanes_first && let Some(owner) = &owner {
        put_lanes_first(set, owner, events);
    }
}

/// The same of kernel, lanes and inner sets.
fn take_turns(set: &'static Set, owner: &Guard<'_>, events: &mut Events, asks: bool) {
    let kernel_first = asks && !set.crowded.swap(false, Relaxed);
    if kernel_first {
        from_kernel(set, Some(owner), events);
        set.crowded.store(events.room() == 0, Relaxed);
    }
    let room = events.room();
    if set.place.are_inner_sets_first() {
        inner::report(set, events);
        from_lanes(set, owner, events);
    } else {
        from_lanes(set, owner, events);
        inner::report(set, events);
    }
    if room > 0 && events.room() == 0 {
        set.place.take_turn();
    }
    if asks && !kernel_first {
        from_kernel(set, Some(owner), events);
        if events.used() == 0 {
            // Perhaps of what it has told just now.
            inner::report(set, events);
        }
    }
}

/// Takes the lanes' events as well, and tells of them before what the kernel has told. Of two connections it tells in
/// the order in which they stirred: whoever may have so many clients only is to hear of those that have gone before it
/// is asked to accept others.
fn put_lanes_first(set: &'static Set, owner: &Guard<'_>, events: &mut Events) {
    let from = events.used();
    set.crowded.store(events.room() == 0, Relaxed);
    from_lanes(set, owner, events);
    events.bring_forward(from);
}

/// Takes the kernel's events. Those of our own registrations leave room for more, which may have waited behind them.
fn from_kernel(set: &'static Set, owner: Option<&Guard<'_>>, events: &mut Events) {
    for _ in 0..FETCHES {
        let (from, room) = (events.used(), events.room());
        set.begin_to_hear();
        let full = room > 0 && events.fetch(|room| raw::epoll_now(set.fd(), room)) == room;
        let ours = events.used() > from && translate(set, owner, events, from);
        set.has_heard();
        // Not where something is kept: the kernel might tell of it again.
        if !(full && ours && events.used() == from) {
            return;
        }
    }
}

/// Takes the lanes' events. Served members go to the end of the list, so everyone gets a turn even where the program
/// takes few events at a time. Those that are taken at once are in the order in which their senders turned to them:
/// what a client asks on one connection after another a server with one thread does in this order, and some count on
/// it.
fn from_lanes(set: &'static Set, owner: &Guard<'_>, events: &mut Events) {
    let count = set.hot.len();
    if count < 2 {
        take(set, owner, events, count, |_, _| true, |_, _| ());
        return;
    }
    let mut taken = Taken {
        keys: [0; SORTED],
        count: 0,
        last: 0,
        passed: 0,
    };
    take(
        set,
        owner,
        events,
        count,
        |_, _| true,
        |conn, passed| {
            taken.note(owner, conn, passed);
        },
    );
    // What has come to them meanwhile may have come before that.
    if taken.passed > 0 && taken.count <= SORTED {
        let (last, passed) = (taken.last, taken.passed);
        let is_missing = |member: &Member, conn: &'static Conn| {
            ready::turned_at(owner, conn) <= last
                && (ready::stirs(owner, member, conn) || ready::has_ended(owner, conn))
        };
        take(set, owner, events, passed, is_missing, |conn, _| {
            taken.note(owner, conn, 0)
        });
    }
    if let Some(keys) = taken.keys.get_mut(..taken.count) {
        events.sort(keys);
    }
}

/// When the senders of connections turned to them, in the order in which these were taken.
struct Taken {
    keys: [u64; SORTED],
    count: usize,
    /// The latest.
    last: u64,
    /// Members that were passed before it.
    passed: u32,
}

impl Taken {
    #[inline]
    fn note(&mut self, owner: &Guard<'_>, conn: &Conn, passed: u32) {
        let at = ready::turned_at(owner, conn);
        if let Some(key) = self.keys.get_mut(self.count) {
            *key = at;
        }
        self.count += 1;
        if at >= self.last {
            (self.last, self.passed) = (at, passed);
        }
    }
}

/// Takes events of those of the first `count` hot members that `may` be taken, and tells `taken` of each, and how many
/// have been passed before: they are the first now.
#[inline]
fn take(
    set: &'static Set,
    owner: &Guard<'_>,
    events: &mut Events,
    count: u32,
    may: impl Fn(&Member, &'static Conn) -> bool,
    mut taken: impl FnMut(&Conn, u32),
) {
    let mut next = set.hot.first();
    let mut passed = 0;
    for _ in 0..count {
        let Some(number) = next.filter(|_| events.room() > 0) else {
            return;
        };
        next = set.hot_after(number);
        let Some(member) = epoll::member(number) else { return };
        if let Some(conn) = member.conn().filter(|conn| may(member, conn))
            && let mask @ 1.. = ready::report(owner, member, conn)
        {
            events.push(mask, member.data());
            set.serve(number, member);
            taken(conn, passed);
        } else {
            passed += 1;
        }
    }
}

fn is_over(deadline: Option<u64>) -> bool {
    deadline.is_some_and(|at| sys::now_ns() >= at)
}

/// What became of a sleep.
enum Slept {
    Woken,
    /// There was none: a member is ready, though perhaps not by a glance at its lane.
    Ready,
    TimeUp,
}

/// Sleeps in the kernel, no longer than `bound` allows.
fn sleep(
    set: &'static Set,
    events: &mut Events,
    mut bound: Bound,
    deadline: Option<u64>,
    naps: &mut Naps,
    fine: bool,
    mask: *const libc::sigset_t,
) -> Result<Slept, sys::Errno> {
    {
        let Some(owner) = set.own() else {
            return Err(libc::EINTR);
        };
        // Before inner sets are armed, which others may change as soon as that is done.
        set.fall_asleep();
        if set.arm_all(&owner, &mut bound) || set.has_been_left() {
            set.wake_up();
            set.has_heard();
            return Ok(Slept::Ready);
        }
    }
    // Where it is over by now: signals that the program lets in for the wait would be left if that did not wait at all.
    let least = u64::from(!mask.is_null());
    let left = deadline.map(|deadline| deadline.saturating_sub(sys::now_ns()).max(least));
    let for_room = bound != Bound::Program;
    let from = events.used();
    let rings = set.rings.load(Relaxed);
    let result = real::epoll_sleep(set.fd(), events, naps.next(bound, left), fine || for_room, mask);
    {
        let owner = set.own();
        set.wake_up();
        let Some(owner) = owner else {
            return Err(libc::EINTR);
        };
        // While the set is owned: who arms it next is still counted.
        set.disarm_all(&owner, bound, has_rung(set, result != Ok(0), rings));
    }
    let told = result.is_ok_and(|count| count > 0);
    if told {
        set.kernel_looked.store(sys::ticks(), Relaxed);
        translate(set, None, events, from);
    }
    set.has_heard();
    result?;
    Ok(if !told && is_over(deadline) {
        Slept::TimeUp
    } else {
        Slept::Woken
    })
}

/// After a sleep that something `ended` or that has run out, in a set whose bell had been heard `rings` times: whether
/// it has rung. Of several threads another may have heard it. The set is owned.
fn has_rung(set: &Set, ended: bool, rings: u32) -> bool {
    ended || set.rings.load(Relaxed) != rings
}

/// Takes our own registrations' events out of what the kernel wrote from `from` on; true if there were any that it does
/// not go on telling. `owned`: the caller owns the set.
fn translate(set: &'static Set, owned: Option<&Guard<'_>>, events: &mut Events, from: usize) -> bool {
    let mut ours = false;
    let mut owner = None;
    events.retain(from, |told, data| {
        let whose = epoll::whose(data);
        if owned.is_none() && owner.is_none() && matches!(whose, Tagged::Member(_)) {
            owner = set.own();
        }
        let heard = arm::hear(set, whose, told, owned.is_some() || owner.is_some());
        ours |= heard == Heard::Ours;
        heard == Heard::Theirs
    });
    ours
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::{Phase, records};
    use crate::epoll::set::{SET, SETS};
    use crate::wait::bell;
    use core::sync::atomic::AtomicU32;
    use core::time::Duration;
    use libc::{EPOLLET, EPOLLOUT};
    use rustix::event::{Timespec, epoll as kernel};
    use std::os::fd::AsRawFd;
    use std::sync::Barrier;
    use viaduct_stream::{Incoming, Outgoing};

    /// The registration is taken over at any moment of a thread's way to its sleep.
    #[test]
    fn who_falls_asleep_sees_the_first_registration_that_is_ours_or_is_seen() {
        // No other test uses it.
        let index = SETS - 12;
        let set = &SET[index];
        set.used.store(true, Relaxed);
        let (both, go) = (Barrier::new(2), AtomicU32::new(0));
        for round in 1..=4_000_u32 {
            set.emulated.store(0, Relaxed);
            // In a thread of its own, whose first sleep takes longest.
            let (sleeps, seen) = std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| {
                    both.wait();
                    while go.load(Relaxed) != round {
                        core::hint::spin_loop();
                    }
                    let sleeps = matches!(begin(index), Wait::Plain(_));
                    both.wait();
                    sleeps
                });
                both.wait();
                go.store(round, Relaxed);
                for _ in 0..round % 128 {
                    core::hint::spin_loop();
                }
                set.emulates_one_more();
                let seen = set.has_sleepers();
                both.wait();
                (sleeper.join().unwrap(), seen)
            });
            assert!(seen || !sleeps, "round {round}");
        }
        set.used.store(false, Relaxed);
    }

    /// By a far end that has no place for it, say: whatever others have rung before, and however many threads may wait.
    #[test]
    fn the_bell_of_a_set_that_is_not_rung_for_room_is_not_counted_on() {
        let (conn, _sockets) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        // No other test uses it.
        let index = SETS - 11;
        let set = &SET[index];
        let file = kernel::create(kernel::CreateFlags::empty()).unwrap();
        set.fd.store(file.as_raw_fd(), Relaxed);
        set.used.store(true, Relaxed);
        set.waited.store(true, Relaxed);
        raw::epoll_ctl(set.fd(), libc::EPOLL_CTL_ADD, conn.fd(), 0, 0).unwrap();
        let (number, member) = epoll::record(set, index, conn, conn.fd()).unwrap();
        epoll::added(set, number, member, conn, (EPOLLOUT | EPOLLET).cast_unsigned(), 7);
        let bell = bell::numbered(set.bell_number()).unwrap();
        conn.set_own_bell(bell.number());
        conn.rung.begin(bell::RUNG_BY_EVENTFD);
        let segment = conn.segment(&conn).unwrap();
        let (own, far) = (segment.sender(conn.side()), segment.receiver(conn.side().other()));
        Incoming::new(far).set_ready();
        assert!(Outgoing::new(own).promote(0));
        let hear = || {
            let mut told = Vec::with_capacity(8);
            kernel::wait(
                &file,
                rustix::buffer::spare_capacity(&mut told),
                Some(&Timespec::default()),
            )
            .unwrap();
        };
        // As others do, whose rings a set leaves in the bell.
        raw::eventfd_ring(bell.fd()).unwrap();
        hear();
        // Room is made for who sleeps; `heard`: another thread hears the bell meanwhile.
        let sleep_for_room = |rings: bool, heard: bool| {
            let bytes = [0; 4096];
            while own.append(bytes.as_slice().into()).is_ok_and(|sent| sent > 0) || own.grant() {}
            let owner = set.own().unwrap();
            let mut bound = Bound::Program;
            assert!(!arm::arm(set, &owner, &mut bound));
            assert_eq!((bound, set.bit_for(conn)), (Bound::Room, bell::BY_BELL));
            let before = set.rings.load(Relaxed);
            while far.readable().is_ok_and(|bytes| bytes > 0) {
                far.consume(far.readable().unwrap());
            }
            assert_eq!(far.take_credit_wait(), bell::BY_BELL);
            if rings {
                raw::eventfd_ring(bell.fd()).unwrap();
            }
            if heard {
                set.rings.fetch_add(1, Relaxed);
            }
            set.mind_bells(has_rung(set, false, before));
            hear();
            // As long as such sleeps are.
            std::thread::sleep(Duration::from_millis(20));
        };
        sleep_for_room(false, false);
        sleep_for_room(true, false);
        sleep_for_room(false, false);
        sleep_for_room(false, true);
        sleep_for_room(false, false);
        assert_eq!(conn.known_bell(), bell.number());
        sleep_for_room(false, false);
        assert_eq!((conn.known_bell(), set.bit_for(conn)), (0, bell::BY_SOCKET));
        set.used.store(false, Relaxed);
    }
}
