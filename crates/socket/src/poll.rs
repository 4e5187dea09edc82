//! `poll` and `select` over connections that may be on lanes.

use crate::conn::pace::{Bound, Naps};
use crate::conn::{self, Conn, Phase};
use crate::descriptors::table;
use crate::epoll::{Set, polled};
use crate::lock::Guard;
use crate::path::{announce, behind, marks, recall, switch};
use crate::ready::{self, Kernel};
use crate::sys;
use crate::wait::spin::Spinner;
use crate::wait::{self, asleep, bell, cancel};
use crate::{agent, real};
use core::cell::Cell;
use libc::{POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM, c_int, pollfd};
use viaduct_stream::Outgoing;

/// Both names of what there is to receive, and of room to send.
pub(crate) const IN: i16 = POLLIN | POLLRDNORM;
const OUT: i16 = POLLOUT | POLLWRNORM;
/// Entries handled without the heap.
pub const ENTRIES: usize = 128;
/// Entries for the thread's bell: its eventfd and its outer bell.
const PLACES_OF_BELL: usize = 2;

/// One that stands for nothing.
pub const NONE: pollfd = pollfd {
    fd: -1,
    events: 0,
    revents: 0,
};

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Nanoseconds; `None`: for ever.
    pub timeout_ns: Option<u64>,
    /// Signal mask during the wait, or null.
    pub mask: *const libc::sigset_t,
}

/// Whether any of the descriptors is on a lane or about to be; if not, the program's own call will do.
pub fn concerns(fds: impl Iterator<Item = c_int>) -> bool {
    if agent::has_mail() {
        agent::deliver();
    }
    let mut attached = false;
    for fd in fds {
        if let Some(index) = table::epoll_set(fd) {
            attached |= polled::is_ours(index);
        } else if let Some(conn) = table::connection(fd) {
            attached |= conn.phase() == Phase::Attached;
        }
    }
    if attached {
        cancel::point();
    }
    attached
}

fn attached(fd: c_int) -> Option<&'static Conn> {
    table::connection(fd).filter(|conn| conn.phase() == Phase::Attached)
}

/// How often at most, in microseconds, the kernel is asked for connections that are not ready beside others that are,
const CHECK_US: u64 = 20;
/// and the part of a thread's time that this may take, one in so many,
const CHECK_SHARE: u64 = 16;
/// but for this many microseconds at most.
const LONGEST_CHECK_US: u64 = 20_000;

thread_local! {
    /// When the kernel is to be asked again, in ticks. A clock that was set back has gone far on.
    static NEXT_CHECK: Cell<u64> = const { Cell::new(0) };
}

/// How long a wait sleeps that only hears of ends it has not asked for.
const END_NAP_NS: u64 = 1_000_000;

/// Who is asked beside the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// Nobody: the kernel is asked by the sleep that comes next, or was by the one that has ended. Of an entry that
    /// does not wait for input it is.
    Nobody,
    /// The kernel, for descriptors that are not on lanes, so that nobody is starved.
    ForOthers,
    /// The kernel, for all.
    ForAll,
}

impl Ask {
    /// Whether a look at a connection on a lane needs what only the kernel knows. A sleep hears of marks if it is one
    /// for input.
    fn asks(self, events: i16) -> bool {
        match self {
            Self::Nobody => events & IN == 0,
            Self::ForOthers => events & (POLLRDHUP | POLLPRI) != 0,
            Self::ForAll => true,
        }
    }
}

/// Looks at one connection; `None` if it is closed meanwhile. `told`: what the kernel has said of it in a sleep.
/// `is_quiet`: it has just been asked for news, and had none.
fn look(conn: &'static Conn, events: i16, ask: Ask, told: i16, is_quiet: bool) -> Option<i16> {
    let interest = u32::from(events.cast_unsigned());
    let news = if ask.asks(events) {
        if is_quiet {
            marks::has_news(conn)
        } else {
            !marks::is_quiet(conn)
        }
    } else {
        told & !IN != 0 || ask == Ask::Nobody && marks::has_news(conn)
    };
    if told != 0 && !news {
        conn.heard();
    }
    behind::put_owed_now_and_then(conn);
    let find = |proof: &Guard<'_>| {
        let knows = if news || told == 0 && !ready::receives_on_lane(conn, proof) {
            Kernel::Anything
        } else if told != 0 {
            Kernel::Bytes
        } else {
            Kernel::Nothing
        };
        ready::look(conn, proof, interest, knows)
    };
    let mut mask = with_proof(conn, find)?;
    if ask != Ask::ForOthers {
        switch::serve(conn);
        let was_dead = conn.flag(conn::DEAD);
        behind::look_behind_fin(conn);
        if !was_dead && conn.flag(conn::DEAD) {
            // The end that has been found is no end of the stream.
            mask = with_proof(conn, find)?;
        }
    }
    i16::try_from(mask & 0x7fff).ok()
}

/// Runs `body` while the sending direction is owned, so that the lane stays.
fn with_proof<R>(conn: &'static Conn, body: impl FnOnce(&Guard<'static>) -> R) -> Option<R> {
    let guard = conn.own_send(conn.id())?;
    conn.segment(&guard)?;
    Some(body(&guard))
}

/// Waits until an entry is ready, as `poll` does, and fills in `revents`. The program's entries are only read and
/// written here.
///
/// # Errors
/// As `poll`.
pub fn poll(entries: &mut [pollfd], how: Wait) -> Result<usize, sys::Errno> {
    let mut small = [NONE; ENTRIES + PLACES_OF_BELL];
    match small.get_mut(..entries.len() + PLACES_OF_BELL) {
        Some(shadow) => wait_loop(entries, shadow, how),
        None => wait_loop(entries, &mut vec![NONE; entries.len() + PLACES_OF_BELL], how),
    }
}

/// The same until an entry is ready that `counts`: `poll` tells of ends to who has not asked, and `select` does not.
///
/// # Errors
/// As `poll`.
pub fn poll_until(entries: &mut [pollfd], how: Wait, counts: impl Fn(&pollfd) -> bool) -> Result<usize, sys::Errno> {
    let deadline = how.timeout_ns.map(|ns| sys::now_ns().saturating_add(ns));
    loop {
        let timeout_ns = deadline.map(|deadline| deadline.saturating_sub(sys::now_ns()));
        let ready = poll(entries, Wait { timeout_ns, ..how })?;
        let over = deadline.is_some_and(|deadline| sys::now_ns() >= deadline);
        if ready == 0 || over || entries.iter().any(&counts) {
            return Ok(ready);
        }
        // The kernel tells of an end again and again.
        real::ppoll_masked(&mut [], Some(&sys::timespec(END_NAP_NS)), how.mask)?;
    }
}

fn wait_loop(entries: &mut [pollfd], shadow: &mut [pollfd], how: Wait) -> Result<usize, sys::Errno> {
    if how.timeout_ns == Some(0) {
        return look_and_sleep(entries, shadow, how);
    }
    for (conn, _) in receivers(entries) {
        announce::take_back(conn);
    }
    let result = look_and_sleep(entries, shadow, how);
    let mut late = false;
    for (conn, found) in receivers(entries) {
        late |= announce::renew(conn, result.is_err() || found & IN == 0);
    }
    if late && result.is_ok() {
        glance(entries, shadow, Ask::ForAll)
    } else {
        result
    }
}

/// The connections on lanes whose bytes are waited for, and what has been found of them.
fn receivers(entries: &[pollfd]) -> impl Iterator<Item = (&'static Conn, i16)> {
    let wanted = entries.iter().filter(|entry| entry.events & IN != 0);
    wanted.filter_map(|entry| attached(entry.fd).map(|conn| (conn, entry.revents)))
}

/// The epoll set with members on lanes that an entry asks for.
fn set_asked(entry: &pollfd) -> Option<&'static Set> {
    polled::set_of(entry.fd).filter(|_| entry.events & IN != 0)
}

fn sets(entries: &[pollfd]) -> impl Iterator<Item = &'static Set> {
    entries.iter().filter_map(set_asked)
}

fn look_and_sleep(entries: &mut [pollfd], shadow: &mut [pollfd], how: Wait) -> Result<usize, sys::Errno> {
    let deadline = how.timeout_ns.map(|ns| sys::now_ns().saturating_add(ns));
    let mut spinner = Spinner::new();
    let mut naps = Naps::new();
    // A sleep that comes at once asks by itself.
    while spinner.polls() || how.timeout_ns == Some(0) || heed(entries, &[]) > 0 {
        let ready = glance(entries, shadow, Ask::ForOthers)?;
        if ready > 0 || how.timeout_ns == Some(0) {
            return if ready > 0 {
                Ok(ask_for_others(entries, shadow, ready))
            } else {
                at_once(entries, shadow, how.mask)
            };
        }
        // Each time that the core has been given up there is a look before it is again.
        let mut stirred = false;
        while !stirred && spinner.again() {
            stirred = entries
                .iter()
                .any(|entry| attached(entry.fd).is_some_and(|conn| stirs(conn, entry.events)))
                || sets(entries).any(Set::stirs);
        }
        if !stirred {
            break;
        }
        spinner.paid();
    }
    let mut recalled = false;
    loop {
        let by_mark = |conn: &&'static Conn| wait::may_be_marked(conn, wait::bit_for(conn));
        sets(entries).for_each(polled::hear_again);
        let conns = receivers(entries).map(|(conn, _)| conn).filter(by_mark);
        let all_known = asleep::fall_asleep_polling(conns, sets(entries));
        let bound = arm(entries).map(|bound| if all_known { bound } else { bound.max(Bound::UnrungRoom) });
        let Some(bound) = bound.filter(|_| heed(entries, &[]) == 0) else {
            asleep::wake_up();
            match glance(entries, shadow, Ask::ForAll)? {
                0 if deadline.is_none_or(|deadline| sys::now_ns() < deadline) => continue,
                ready => return Ok(ready),
            }
        };
        let bound = if recalled { Bound::UnrungRoom } else { bound };
        let left = deadline.map(|deadline| deadline.saturating_sub(sys::now_ns()));
        let nap = naps.next(bound, left);
        let (watched, bells) = prepare(entries, shadow);
        let mut woken = real::ppoll_masked(watched, nap.map(sys::timespec).as_ref(), how.mask);
        if woken == Err(libc::EINVAL) && bells > 0 {
            // As many as the kernel takes at once, so that the bells have to be left out.
            let nap = naps.next(Bound::UnrungRoom, left);
            let (watched, _) = watched.split_at_mut(watched.len() - bells);
            woken = real::ppoll_masked(watched, nap.map(sys::timespec).as_ref(), how.mask);
        }
        asleep::wake_up();
        if let Some(bell) = bell::known_of_thread() {
            let rang = watched.iter().rev().take(bells).filter(|place| place.revents != 0);
            rang.for_each(|place| bell.heard(place.fd));
        }
        let rang = woken? > 0;
        if bound == Bound::Room {
            let asked = entries.iter().filter(|entry| entry.events & OUT != 0);
            asked
                .filter_map(|entry| attached(entry.fd))
                .for_each(|conn| ready::mind_bell(conn, wait::bit_for(conn), rang, bell::rings_for_thread));
        }
        sets(entries).for_each(|set| polled::disarm(set, bound, rang));
        if bound != Bound::Program {
            entries
                .iter()
                .filter_map(|entry| attached(entry.fd))
                .for_each(ready::relieve);
        }
        if agent::has_mail() {
            agent::deliver();
        }
        let ready = heed(entries, watched);
        if ready > 0 || deadline.is_some_and(|deadline| sys::now_ns() >= deadline) {
            return Ok(ready);
        }
        recalled = recall::serve_all();
    }
}

/// What a poll that does not wait answers where no lane has anything to say.
fn at_once(entries: &mut [pollfd], shadow: &mut [pollfd], mask: *const libc::sigset_t) -> Result<usize, sys::Errno> {
    let ready = glance(entries, shadow, Ask::ForAll)?;
    if ready == 0 && !mask.is_null() {
        // Signals that the mask lets through come first even so.
        real::ppoll_masked(&mut [], Some(&sys::timespec(0)), mask)?;
    }
    Ok(ready)
}

/// Where entries are ready nobody sleeps, and as long as that goes on only this tells of ends of other connections, and
/// of what comes by TCP after a lane: the kernel is asked for those without bytes, now and then. Answers how many
/// entries are ready then; so far `ready` are.
fn ask_for_others(entries: &mut [pollfd], shadow: &mut [pollfd], ready: usize) -> usize {
    let began = sys::ticks();
    let left = NEXT_CHECK.get().wrapping_sub(began);
    if left <= LONGEST_CHECK_US * sys::ticks_per_us() {
        return ready;
    }
    let mut any = false;
    for (place, entry) in shadow.iter_mut().zip(entries.iter()) {
        let quiet = entry.revents & IN == 0 && attached(entry.fd).is_some() && may_be_told_of(entry.fd);
        any |= quiet;
        *place = pollfd {
            fd: if quiet { entry.fd } else { -1 },
            events: entry.events & (IN | POLLPRI | POLLRDHUP),
            revents: 0,
        };
    }
    let shadow = shadow.get_mut(..entries.len()).unwrap_or(&mut []);
    let told = any && real::ppoll_masked(shadow, Some(&sys::timespec(0)), core::ptr::null()).unwrap_or(0) > 0;
    let now = sys::ticks();
    let took = now.wrapping_sub(began).saturating_mul(CHECK_SHARE);
    let rest = took.clamp(CHECK_US * sys::ticks_per_us(), LONGEST_CHECK_US * sys::ticks_per_us());
    NEXT_CHECK.set(now.wrapping_add(rest));
    if !told {
        return ready;
    }
    for (entry, place) in entries.iter_mut().zip(shadow) {
        if place.revents != 0
            && let Some(conn) = attached(entry.fd)
        {
            // What has been found so far stays: another thread may have taken it meanwhile, as it may after any wait.
            entry.revents |= look(conn, entry.events, Ask::ForAll, 0, false).unwrap_or(0);
        }
    }
    entries.iter().filter(|entry| entry.revents != 0).count()
}

fn stirs(conn: &'static Conn, events: i16) -> bool {
    look(conn, events & (IN | OUT), Ask::ForOthers, 0, false).is_none_or(|mask| mask != 0)
}

/// Whether the kernel may say anything of a descriptor that the program is to be told.
fn may_be_told_of(fd: c_int) -> bool {
    fd >= 0 && !attached(fd).is_some_and(|conn| conn.flag(conn::QUIET_END))
}

/// The kernel's view of the entries: connections on lanes are only watched for marks and the end. Those that stand for
/// nothing are left out, since the kernel takes only so many. The thread's bell comes last, in as many places as are
/// answered.
fn prepare<'s>(entries: &[pollfd], shadow: &'s mut [pollfd]) -> (&'s mut [pollfd], usize) {
    let mut count = 0;
    for (place, entry) in shadow
        .iter_mut()
        .zip(entries.iter().filter(|entry| may_be_told_of(entry.fd)))
    {
        // An end is something to read, so it wakes in any case; what the kernel tells of bytes alone counts as telling
        // that there is none.
        let end = if entry.events & IN != 0 { POLLRDHUP } else { 0 };
        let events = match attached(entry.fd) {
            // Room on the kernel connection only counts where it carries the bytes.
            Some(conn) if crate::path::demote::sends_raw(conn, conn.id()) => entry.events | end,
            Some(conn) if switch::owes(conn) => entry.events | POLLOUT | end,
            Some(_) => entry.events & (IN | POLLPRI | POLLRDHUP) | end,
            None => entry.events,
        };
        *place = pollfd {
            fd: entry.fd,
            events,
            revents: 0,
        };
        count += 1;
    }
    let watched = count;
    let bells = bell::known_of_thread().map_or([-1; 2], bell::Bell::descriptors);
    for fd in bells.into_iter().filter(|fd| *fd >= 0) {
        if let Some(place) = shadow.get_mut(count) {
            *place = pollfd {
                fd,
                events: POLLIN,
                revents: 0,
            };
            count += 1;
        }
    }
    (shadow.get_mut(..count).unwrap_or_default(), count - watched)
}

/// Computes `revents` of all entries without waiting, and asks the kernel, in one call for all of which it is asked.
/// Answers how many are ready.
fn glance(entries: &mut [pollfd], shadow: &mut [pollfd], ask: Ask) -> Result<usize, sys::Errno> {
    let shadow = shadow.get_mut(..entries.len()).unwrap_or(&mut []);
    for (place, entry) in shadow.iter_mut().zip(entries.iter()) {
        let (fd, events) = match attached(entry.fd) {
            Some(_) if ask.asks(entry.events) => (entry.fd, marks::NEWS),
            Some(_) => (-1, 0),
            None => (entry.fd, entry.events),
        };
        *place = pollfd { fd, events, revents: 0 };
    }
    let mut is_interrupted = false;
    if shadow.iter().any(|place| place.fd >= 0) {
        match real::ppoll_masked(shadow, Some(&sys::timespec(0)), core::ptr::null()) {
            // By a signal, where the kernel finds nothing, which knows nothing of lanes.
            Err(libc::EINTR) => is_interrupted = true,
            result => drop(result?),
        }
    }
    let mut ready = 0;
    for (entry, place) in entries.iter_mut().zip(shadow.iter()) {
        entry.revents = match attached(entry.fd) {
            Some(conn) => {
                let is_quiet = place.fd == entry.fd && place.events == marks::NEWS && place.revents == 0;
                look(conn, entry.events, ask, 0, is_quiet).unwrap_or(0)
            }
            None if place.events == entry.events => polled::answer(entry.fd, entry.events, place.revents),
            // Attached until just now.
            None => 0,
        };
        ready += usize::from(entry.revents != 0);
    }
    if is_interrupted && ready == 0 {
        return Err(libc::EINTR);
    }
    Ok(ready)
}

/// Computes `revents` of all entries from the lanes and what a sleep has `told`, in the order of the entries; without
/// one nothing is known but of lanes. Answers how many are ready.
fn heed(entries: &mut [pollfd], told: &[pollfd]) -> usize {
    let mut told = told.iter().peekable();
    let mut ready = 0;
    for entry in entries {
        // Some have been left out.
        let said = told
            .next_if(|place| place.fd == entry.fd)
            .map_or(0, |place| place.revents);
        entry.revents = match attached(entry.fd) {
            // Closed by a call that was not seen.
            Some(_) if said & POLLNVAL != 0 => POLLNVAL,
            Some(conn) => look(conn, entry.events, Ask::Nobody, said, false).unwrap_or(0),
            None if entry.fd >= 0 => polled::answer(entry.fd, entry.events, said),
            None => 0,
        };
        ready += usize::from(entry.revents != 0);
    }
    ready
}

/// Arms all entries for a sleep; answers what it must not exceed, or `None` if one is ready after all.
fn arm(entries: &[pollfd]) -> Option<Bound> {
    let mut bound = Bound::Program;
    for entry in entries {
        let Some(conn) = attached(entry.fd) else {
            match set_asked(entry) {
                Some(set) if polled::arm(set, &mut bound) => return None,
                _ => continue,
            }
        };
        behind::put_owed(conn);
        let bit = wait::bit_for(conn);
        let ready = with_proof(conn, |proof| {
            let Some(segment) = conn.segment(proof) else {
                return false;
            };
            if entry.events & IN != 0 {
                segment.receiver(conn.side()).arm(bit);
            }
            let lane = segment.sender(conn.side());
            if recall::is_pending(conn, &Outgoing::new(lane)) {
                bound = bound.max(Bound::UnrungRoom);
                return false;
            }
            if entry.events & OUT == 0 || ready::roomy(&lane) {
                return false;
            }
            // Only who asks for input hears of a mark.
            if bit == bell::BY_BELL || entry.events & IN != 0 {
                lane.arm_credit_for(bit, ready::share(&lane));
                bound = bound.max(ready::bound_of_room(conn, segment, bit));
            } else {
                bound = bound.max(Bound::UnrungRoom);
            }
            ready::roomy(&lane)
        });
        if ready == Some(true) {
            return None;
        }
    }
    Some(bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::records;
    use viaduct_channel::Side;
    use viaduct_stream::Incoming;

    #[test]
    fn who_waits_for_input_hears_of_the_end_whatever_carries_the_bytes() {
        let (conn, _sockets) = records::on_the_heap();
        conn.set_phase(Phase::Attached);
        let asked = |events| {
            let entry = pollfd {
                fd: conn.fd(),
                events,
                revents: 0,
            };
            prepare(&[entry], &mut [NONE; 2]).0[0].events
        };
        let moves = |change: fn(&Outgoing<'_>)| {
            let guard = conn.own_send(conn.id()).unwrap();
            let segment = conn.segment(&guard).unwrap();
            Incoming::new(segment.receiver(Side::Second)).set_ready();
            change(&Outgoing::new(segment.sender(conn.side())));
        };
        assert_eq!(asked(POLLIN), POLLIN | POLLRDHUP, "by TCP");
        assert_eq!(asked(POLLOUT), POLLOUT);
        moves(|out| assert!(out.promote(0)));
        assert_eq!(asked(POLLIN | POLLOUT), POLLIN | POLLRDHUP, "by the lane");
        assert_eq!(asked(POLLOUT), 0);
        moves(|out| out.demote());
        assert_eq!(asked(POLLIN), POLLIN | POLLOUT | POLLRDHUP, "on the way back");
        assert_eq!(asked(POLLOUT), POLLOUT);
    }
}
