//! Tagged messages on stream sockets, received in any order.
//!
//! A message is a frame of twelve bytes and the payload. An [`Inbox`] receives from one socket or several, matches by
//! tag and source, with wildcards, and keeps the order of arrival within a tag of a source. What has not been asked for
//! stays where it is: on a TCP socket it is passed over by direct search. What the socket cannot hold, and all that
//! comes on another stream socket, is kept here, up to [`Limits::store`] of each source, what is known of messages in
//! the socket included.
//!
//! A source that breaks does not disturb the others: one call tells of it, and after that only those that want it by
//! name.
//!
//! | bytes | of the frame, little-endian |
//! |---|---|
//! | 0..4 | `VMSG` |
//! | 4..8 | tag |
//! | 8..12 | bytes of the payload |

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

mod attention;
mod error;
mod frame;
mod instant;
mod queue;
mod source;
mod wait;

use crate::cancel::Kept;
use attention::LONGEST_NAP;
use frame::Frame;
use instant::Instant;
use queue::Message;
use source::{Place, Source};
use wait::{Call, Taken, Turn, Waiter};

pub use error::Error;

/// Bytes before each payload.
pub const FRAME: usize = 12;

/// What an inbox takes and keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the longest payload it takes.
    pub longest: usize,
    /// Bytes it keeps of each source: payloads, and some 80 bytes for each message that has been seen and not received,
    /// wherever its payload is. Enough for the longest message in any case.
    pub store: usize,
}

impl Default for Limits {
    /// 64 MiB each.
    fn default() -> Self {
        Self {
            longest: 64 << 20,
            store: 64 << 20,
        }
    }
}

/// A message, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Number of the socket it came from, as [`Inbox::add`] gave it.
    pub source: usize,
    /// Its tag.
    pub tag: u32,
    /// Bytes of its payload.
    pub len: usize,
}

/// Which messages are wanted; `None` is any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Of this tag.
    pub tag: Option<u32>,
    /// From this source.
    pub source: Option<usize>,
}

/// Sends a message, all of it. Several threads that send on one socket must take turns.
///
/// # Errors
/// [`Error::NoRoom`] for a payload of 4 GiB or more; `EOPNOTSUPP` for what is no stream socket; what `send` reports.
/// Of these nothing was sent but for the last.
pub fn send(socket: impl AsFd, tag: u32, payload: &[u8]) -> Result<(), Error> {
    let len = u32::try_from(payload.len()).map_err(|_| Error::NoRoom { len: payload.len() })?;
    wait::send_all(socket.as_fd(), Frame::new(tag, len).bytes(), payload)?;
    Ok(())
}

#[derive(Debug, Default)]
struct Sources {
    all: BTreeMap<usize, Source>,
    /// How many have been added: numbers are not used again.
    added: usize,
    /// How many of them may send messages that have not been seen.
    open: usize,
    /// Those of which a call may find something: no others are looked at.
    ready: BTreeSet<usize>,
    /// When the next of those that have just been looked at is due.
    due: Option<Instant>,
    /// When the descriptor of the waiter is readable for one that is due.
    alarm: Option<Instant>,
    cancelled: u64,
}

impl Sources {
    fn note(&mut self, news: &[usize]) {
        for number in news {
            if let Some(source) = self.all.get_mut(number) {
                source.note();
                self.ready.insert(*number);
            }
        }
    }

    /// When the next of all is due. One that is already has not been looked at, and may be nobody's concern: that is
    /// not told again and again.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        let ready = self.ready.iter().filter_map(|number| self.all.get(number));
        let due = ready.filter_map(Source::due);
        due.map(|due| if due > now { due } else { now + LONGEST_NAP }).min()
    }
}

enum Step {
    Found(Envelope),
    /// For a time, or for as long as it takes.
    Wait(Turn, Option<Duration>),
}

/// Receives tagged messages from one stream socket or several. Threads may share it.
#[derive(Debug)]
pub struct Inbox {
    sources: Mutex<Sources>,
    waiter: Waiter,
    limits: Limits,
}

impl Inbox {
    /// An inbox without sources.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new() -> io::Result<Self> {
        Self::with_limits(Limits::default())
    }

    /// One with limits of its own.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn with_limits(limits: Limits) -> io::Result<Self> {
        // No frame tells of more.
        let longest = limits.longest.min(u32::MAX as usize);
        Ok(Self {
            sources: Mutex::default(),
            waiter: Waiter::new()?,
            limits: Limits {
                longest,
                store: limits.store.max(Message::cost(longest)),
            },
        })
    }

    /// Adds a connected stream socket, from which nobody else receives from now on. Answers its number.
    ///
    /// # Errors
    /// It is no stream socket or is not connected, or no descriptors or no numbers (`EOVERFLOW`) are left.
    pub fn add(&self, socket: impl AsFd) -> io::Result<usize> {
        let source = Source::new(socket.as_fd().try_clone_to_owned()?)?;
        let mut sources = self.sources();
        let number = sources.added;
        // No larger one can be told to a C program.
        if libc::c_int::try_from(number).is_err() {
            return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
        }
        self.waiter.add(source.as_fd(), number)?;
        sources.added += 1;
        sources.open += 1;
        sources.all.insert(number, source);
        sources.ready.insert(number);
        Ok(number)
    }

    /// Takes a source out. What it has sent and nobody has received stays in the socket, frames and all, as far as it
    /// is not kept here.
    ///
    /// # Errors
    /// [`Error::NoSource`].
    pub fn remove(&self, source: usize) -> Result<(), Error> {
        let mut sources = self.sources();
        let gone = sources.all.remove(&source).ok_or(Error::NoSource)?;
        sources.open -= usize::from(gone.is_open());
        sources.ready.remove(&source);
        self.waiter.remove(gone.as_fd());
        // Who waits for it is to know.
        self.waiter.wake();
        drop(sources);
        Ok(())
    }

    /// Receives the first message that matches into `buffer`. Waits for it, for at most `limit`.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn receive(&self, wanted: Match, buffer: &mut [u8], limit: Option<Duration>) -> Result<Envelope, Error> {
        self.find(wanted, limit, &mut Place::Slice(buffer))
    }

    /// Receives the first message that matches into a vector of its length.
    ///
    /// # Errors
    /// Any [`Error`] but [`Error::NoRoom`].
    pub fn receive_vec(&self, wanted: Match, limit: Option<Duration>) -> Result<(Envelope, Vec<u8>), Error> {
        let mut payload = Vec::new();
        let envelope = self.find(wanted, limit, &mut Place::Vector(&mut payload))?;
        Ok((envelope, payload))
    }

    /// Tells of the first message that matches, all of which has come, without receiving it.
    ///
    /// # Errors
    /// Any [`Error`] but [`Error::NoRoom`].
    pub fn probe(&self, wanted: Match, limit: Option<Duration>) -> Result<Envelope, Error> {
        self.find(wanted, limit, &mut Place::Nowhere)
    }

    /// Has every call that waits now give up with [`Error::Cancelled`].
    pub fn cancel(&self) {
        let mut sources = self.sources();
        sources.cancelled += 1;
        self.waiter.wake();
    }

    /// Readable when messages may have come since the last call that received or probed, or a socket may have become
    /// full of others, for event loops: call with no time to wait until [`Error::TimedOut`], then wait. Nothing else is
    /// to be done with it.
    pub fn as_waitable(&self) -> BorrowedFd<'_> {
        self.waiter.as_fd()
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A point of cancellation.
    fn find(&self, wanted: Match, limit: Option<Duration>, place: &mut Place<'_>) -> Result<Envelope, Error> {
        let kept = Kept::begin();
        let found = self.find_kept(&kept, wanted, limit, place);
        kept.end();
        found
    }

    fn find_kept(
        &self,
        kept: &Kept,
        wanted: Match,
        limit: Option<Duration>,
        place: &mut Place<'_>,
    ) -> Result<Envelope, Error> {
        // A time too far away to be told is for ever.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let cancelled = self.sources().cancelled;
        let mut taken = None;
        loop {
            self.note(taken)?;
            kept.point();
            match self.attempt(wanted, place, until, cancelled)? {
                Step::Found(envelope) => return Ok(envelope),
                Step::Wait(turn, limit) => taken = Some(self.waiter.wait(&turn, limit)),
            }
        }
    }

    /// Notes what a wait has taken, or what there is to take.
    fn note(&self, taken: Option<Taken>) -> Result<(), Error> {
        let mut sources = self.sources();
        let taken = taken.unwrap_or_else(|| self.waiter.take());
        if let Ok(news) = &taken.news {
            sources.note(news);
        }
        match taken.call {
            Call::None => {}
            Call::Followers => self.waiter.call_followers(),
            Call::All => self.waiter.call_others(),
        }
        taken.news.map(drop).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => Error::Interrupted,
            _ => Error::Io(error),
        })
    }

    /// Looks once. What comes after that counts as news for the wait.
    fn attempt(
        &self,
        wanted: Match,
        place: &mut Place<'_>,
        until: Option<Instant>,
        cancelled: u64,
    ) -> Result<Step, Error> {
        let mut sources = self.sources();
        if sources.cancelled != cancelled {
            return Err(Error::Cancelled);
        }
        sources.due = None;
        let found = self.look(&mut sources, wanted, place);
        let now = Instant::now();
        let is_over = matches!(found, Ok(None)) && until.is_some_and(|until| until <= now);
        // What has rung may have been for another source than this call is.
        if is_over || sources.alarm.is_some_and(|alarm| alarm <= now) {
            self.tell_when_due(&mut sources, now);
        }
        if let Some(found) = found? {
            return Ok(Step::Found(found));
        }
        if is_over {
            return Err(Error::TimedOut);
        }
        let next = until.into_iter().chain(sources.due).min();
        let limit = next.map(|next| next.since(now));
        Ok(Step::Wait(self.waiter.turn(now), limit))
    }

    /// Who waits by the descriptor now looks again when one of those that have just been looked at is due, or one of
    /// those before: each call may have been for another.
    fn tell_when_due(&self, sources: &mut Sources, now: Instant) {
        let before = match sources.alarm {
            Some(alarm) if alarm <= now => sources.next_due(now),
            alarm => alarm,
        };
        sources.alarm = before.into_iter().chain(sources.due).min();
        let Some(next) = sources.alarm else { return };
        // Even if it is the same: it may have passed, and been taken, meanwhile.
        self.waiter.ring_after(next.since(now));
    }

    fn look(&self, sources: &mut Sources, wanted: Match, place: &mut Place<'_>) -> Result<Option<Envelope>, Error> {
        if let Some(number) = wanted.source {
            if !sources.all.contains_key(&number) {
                return Err(Error::NoSource);
            }
            // It is asked each time what is wrong with it.
            sources.ready.insert(number);
        }
        let now = Instant::now();
        let (mut next, end) = wanted.source.map_or((0, usize::MAX), |only| (only, only + 1));
        // One that is full has messages, so it is ready.
        let mut full = None;
        while let Some(number) = sources.ready.range(next..end).next().copied() {
            next = number + 1;
            let Some(source) = sources.all.get_mut(&number) else {
                continue;
            };
            let before = usize::from(source.is_open());
            let found = source.receive(wanted.tag, place, self.limits, now);
            sources.open = sources.open + usize::from(source.is_open()) - before;
            if let Some((tag, len)) = found? {
                return Ok(Some(Envelope {
                    source: number,
                    tag,
                    len,
                }));
            }
            if let Some(error) = source.trouble(number, wanted.source.is_some()) {
                return Err(error);
            }
            full = full.or_else(|| source.is_full().then_some(number));
            sources.due = sources.due.into_iter().chain(source.due()).min();
            if !source.is_ready() {
                sources.ready.remove(&number);
            }
        }
        let is_open = match wanted.source {
            Some(only) => sources.all.get(&only).is_some_and(Source::is_open),
            None => sources.open > 0,
        };
        match full {
            _ if is_open => Ok(None),
            Some(source) => Err(Error::Full { source }),
            None => Err(Error::Ended),
        }
    }
}

impl AsRawFd for Inbox {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.as_waitable().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    const ANY: Match = Match {
        tag: None,
        source: None,
    };

    fn probe(inbox: &Inbox, source: Option<usize>) -> Result<Envelope, Error> {
        inbox.probe(Match { source, ..ANY }, Some(Duration::ZERO))
    }

    /// However many have come and gone, a call passes only those that are there.
    #[test]
    fn sources_that_have_gone_leave_nothing() {
        let inbox = Inbox::new().unwrap();
        let (_near, far) = UnixStream::pair().unwrap();
        for number in 0..1000 {
            assert_eq!(inbox.add(&far).unwrap(), number);
            assert!(matches!(probe(&inbox, None), Err(Error::TimedOut)));
            inbox.remove(number).unwrap();
            assert!(matches!(probe(&inbox, Some(number)), Err(Error::NoSource)));
        }
        assert_eq!(inbox.add(&far).unwrap(), 1000);
        let mut sources = inbox.sources();
        assert_eq!((sources.all.len(), sources.ready.len(), sources.open), (1, 1, 1));
        sources.added = i32::MAX as usize + 1;
        drop(sources);
        assert_eq!(inbox.add(&far).unwrap_err().raw_os_error(), Some(libc::EOVERFLOW));
    }

    /// Whatever becomes of sources, those that are open are counted right: a call waits for as long as there is one.
    #[test]
    fn open_sources_are_counted() {
        let inbox = Inbox::with_limits(Limits { longest: 8, store: 0 }).unwrap();
        let is = |open: usize| {
            let sources = inbox.sources();
            let counted = sources.all.values().filter(|source| source.is_open()).count();
            assert_eq!((sources.open, counted), (open, open));
        };
        let (mut pairs, mut open) = (Vec::new(), 0);
        for _ in 0..4 {
            pairs.push(UnixStream::pair().unwrap());
            open += 1;
            inbox.add(&pairs.last().unwrap().1).unwrap();
            is(open);
        }
        let [first, second, third, _] = &mut pairs[..] else {
            panic!()
        };
        first.0.write_all(b"no message").unwrap();
        assert!(matches!(probe(&inbox, None), Err(Error::Malformed { source: 0 })));
        is(3);
        second.0.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(matches!(probe(&inbox, Some(1)), Err(Error::Ended)));
        is(2);
        send(&third.0, 1, &[1; 8]).unwrap();
        send(&third.0, 2, &[2; 8]).unwrap();
        let second_of_it = Match {
            tag: Some(2),
            source: Some(2),
        };
        let full = inbox.probe(second_of_it, Some(Duration::ZERO));
        assert!(matches!(full, Err(Error::Full { source: 2 })));
        is(1);
        // A buffer that is too short leaves it as it was.
        let short = inbox.receive(ANY, &mut [0; 7], Some(Duration::ZERO));
        assert!(matches!(short, Err(Error::NoRoom { len: 8 })));
        is(1);
        inbox.remove(3).unwrap();
        is(0);
        let full = inbox.probe(Match { tag: Some(2), ..ANY }, None);
        assert!(matches!(full, Err(Error::Full { source: 2 })));
        assert_eq!(inbox.receive_vec(ANY, None).unwrap().0.tag, 1);
        is(1);
        assert_eq!(inbox.receive_vec(ANY, None).unwrap().0.tag, 2);
        for source in 0..3 {
            inbox.remove(source).unwrap();
        }
        is(0);
        assert!(matches!(probe(&inbox, None), Err(Error::Ended)));
    }
}
