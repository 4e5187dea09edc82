//! One socket of an inbox.
//!
//! Messages that have been seen and not received stay in the socket while it can hold them. Where it cannot, they are
//! taken off the head of the stream and kept here: the buffer is full of messages that nobody has asked for, one is
//! larger than it, there are too many holes, or the socket cannot be searched. What is kept has a bound.
//!
//! So [`Source::messages`] has three runs, in order of arrival: those kept whole, at most one of which a part is kept,
//! and those in the socket. Of a frame, too, a part is kept where the socket has no room for the rest beside it.

mod frames;

use super::attention::Attention;
use super::frame::Frame;
use super::instant::Instant;
use super::queue::{Message, Queue};
use super::{Error, FRAME, Limits, wait};
use crate::call::{Flags, peek_all, seek_recv};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes to take off the head of a stream at once, so that its sender may go on.
const WAY: usize = 64 << 10;

/// Whether a call may find more another time.
fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Takes bytes off the head.
fn read(fd: &OwnedFd, searched: bool, buffer: &mut [u8]) -> io::Result<usize> {
    if searched {
        seek_recv(fd, buffer, Flags::DONT_WAIT, 0)
    } else {
        crate::recv(fd, buffer, Flags::DONT_WAIT)
    }
}

/// What can be expected of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// More messages.
    Open,
    /// None before one of those kept is received.
    Full,
    /// None beyond those that have been seen.
    Ended,
    Truncated,
    Malformed,
    TooLong(usize),
    /// With this error number.
    Failed(i32),
}

/// Where a payload is to go.
#[derive(Debug)]
pub(super) enum Place<'a> {
    /// It stays.
    Nowhere,
    /// Here, if it fits.
    Slice(&'a mut [u8]),
    /// Here, in place of what there is.
    Vector(&'a mut Vec<u8>),
}

/// A socket, and what is known of its messages.
#[derive(Debug)]
pub(super) struct Source {
    fd: OwnedFd,
    searched: bool,
    messages: Queue,
    /// What has been taken off the socket of the frame behind them. If any, the socket has nothing of them.
    begun: Frame,
    /// What they count: each for what is known of it, and those kept for their payloads.
    stored: usize,
    state: State,
    /// The state has been reported.
    told: bool,
    /// The number of a message not all of which had come at the last look.
    partial: Option<usize>,
    /// Part of a frame had come then.
    lacking: bool,
    attention: Attention,
}

impl Source {
    /// # Errors
    /// It is no connected stream socket.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        // Not at the head, where a search does no harm to another thread that is inside a receive.
        let searched = match seek_recv(&fd, &mut [0; 1], Flags::PEEK | Flags::DONT_WAIT, 1) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                if !wait::is_stream(fd.as_fd())? {
                    return Err(error);
                }
                wait::check_connected(fd.as_fd())?;
                false
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            fd,
            searched,
            messages: Queue::default(),
            begun: Frame::default(),
            stored: 0,
            state: State::Open,
            told: false,
            partial: None,
            lacking: false,
            attention: Attention::new(),
        })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// An edge has come.
    pub(super) fn note(&mut self) {
        self.attention.note();
    }

    /// Whether a call may find something, or has something to tell or to wait for other than an edge.
    pub(super) fn is_ready(&self) -> bool {
        let untold = !self.told && !matches!(self.state, State::Open | State::Ended);
        untold || self.attention.is_due() || self.messages.first(None).is_some()
    }

    /// When it is to be looked at again without news.
    pub(super) fn due(&self) -> Option<Instant> {
        self.attention.due()
    }

    /// Whether the last look has left bytes in the socket.
    fn leaves_bytes(&self) -> bool {
        self.lacking || self.messages.outside() > 0
    }

    /// Whether messages may come that have not been seen.
    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Why none come, other than that the stream has ended in order. Unless `again`, only if that has not been asked
    /// for yet.
    pub(super) fn trouble(&mut self, source: usize, again: bool) -> Option<Error> {
        let error = match self.state {
            State::Open | State::Ended => return None,
            State::Full => Error::Full { source },
            State::Truncated => Error::Truncated { source },
            State::Malformed => Error::Malformed { source },
            State::TooLong(len) => Error::TooLong { source, len },
            State::Failed(errno) => Error::Failed {
                source,
                error: io::Error::from_raw_os_error(errno),
            },
        };
        (!core::mem::replace(&mut self.told, true) || again).then_some(error)
    }

    /// Whether room in the store is all it lacks.
    pub(super) fn is_full(&self) -> bool {
        self.state == State::Full
    }

    fn turn(&mut self, state: State) {
        if matches!(self.state, State::Open | State::Full | State::Ended) && self.state != state {
            self.state = state;
            self.told = false;
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.turn(State::Failed(error.raw_os_error().unwrap_or(libc::EIO)));
    }

    /// Hands over the first message of a tag, or of any, if all of it has come: its tag and its length.
    ///
    /// # Errors
    /// [`Error::NoRoom`].
    pub(super) fn receive(
        &mut self,
        tag: Option<u32>,
        place: &mut Place<'_>,
        limits: Limits,
        now: Instant,
    ) -> Result<Option<(u32, usize)>, Error> {
        let mut found = self.messages.first(tag);
        let looks = found.is_none() || found == self.partial;
        let left = self.leaves_bytes();
        if looks && !self.attention.begin(self.fd.as_fd(), left, now) {
            return Ok(None);
        }
        self.partial = None;
        if found.is_none() {
            self.lacking = false;
            self.scan(tag, limits);
            found = self.messages.first(tag);
        }
        let taken = found.map_or(Ok(None), |number| self.take(number, place, limits));
        if matches!(taken, Ok(None)) {
            self.partial = found;
            // Where there is no search, bytes that are left keep none back.
            let waits = self.searched && self.state == State::Open && self.leaves_bytes();
            self.attention.rest(waits, now);
        } else {
            // It has stopped at what was wanted.
            self.attention.forget();
        }
        taken
    }

    /// Bytes that stand `offset` bytes after the head, fewer where no more have come; `None` at the end of the stream.
    fn peek(&self, buffer: &mut [u8], offset: usize) -> io::Result<Option<usize>> {
        let flags = Flags::PEEK | Flags::DONT_WAIT;
        let got = if self.searched {
            seek_recv(&self.fd, buffer, flags, offset)
        } else {
            crate::recv(&self.fd, buffer, flags)
        };
        match got {
            Ok(0) => Ok(None),
            Ok(len) => Ok(Some(len)),
            Err(error) if is_not_now(&error) => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    fn lacks_room(&self, bytes: usize, limits: Limits) -> bool {
        bytes > limits.store.saturating_sub(self.stored)
    }

    /// Takes the first message that is in the socket off it, as far as it has come. Whether all of it is kept now.
    fn keep(&mut self, limits: Limits) -> bool {
        let Some((number, message)) = self.messages.first_outside() else {
            return true;
        };
        let len = message.len;
        if message.kept.is_none() {
            if self.lacks_room(len, limits) {
                self.turn(State::Full);
                return false;
            }
            // It has been peeked.
            match read(&self.fd, self.searched, &mut [0; FRAME]) {
                Ok(FRAME) => {}
                Ok(_) => {
                    self.lose(State::Truncated);
                    return false;
                }
                Err(error) if is_not_now(&error) => return false,
                Err(error) => {
                    self.fail(&error);
                    return false;
                }
            }
            self.stored += len;
            self.attention.forget();
        }
        let mut grows = false;
        let (fd, searched) = (&self.fd, self.searched);
        let stopped = self.messages.change(number, |message| {
            let kept = message.kept.get_or_insert_default();
            while kept.len() < len {
                let from = kept.len();
                kept.resize((from + WAY).min(len), 0);
                let got = read(fd, searched, kept.get_mut(from..).unwrap_or_default());
                let bytes = got.as_ref().map_or(0, |bytes| *bytes);
                kept.truncate(from + bytes);
                if bytes == 0 {
                    return Some(got);
                }
                grows = true;
            }
            None
        });
        if grows {
            self.attention.forget();
        }
        match stopped.flatten() {
            None => return true,
            Some(Ok(_)) => self.turn(State::Truncated),
            Some(Err(error)) if is_not_now(&error) => {}
            Some(Err(error)) => self.fail(&error),
        }
        false
    }

    /// A search has failed: whether there is something to be had from another. Takes messages off the head if the
    /// buffer is what it lacked.
    fn recover(&mut self, error: &io::Error, limits: Limits) -> bool {
        let before = self.messages.outside();
        if error.raw_os_error() != Some(libc::ENOBUFS) || before == 0 {
            self.fail(error);
            return false;
        }
        let left = |source: &Self| source.messages.outside();
        while left(self) > 0 && before - left(self) < WAY && self.keep(limits) {}
        left(self) != before
    }

    /// Whether all of message `number` has come.
    fn is_whole(&mut self, number: usize, limits: Limits) -> bool {
        let mut again = false;
        loop {
            let Some(message) = self.messages.get(number) else {
                return false;
            };
            let len = message.len;
            if message.is_kept() {
                return true;
            }
            if message.kept.is_some() || !self.searched {
                // All before it are kept.
                return self.keep(limits);
            }
            // Its frame has been peeked.
            let from = self.messages.offset(number) + FRAME;
            let there = match len {
                0 => Ok(0),
                _ => peek_all(&self.fd, len, from),
            };
            let error = match there {
                Ok(there) if there == len => return true,
                Err(error) if !is_not_now(&error) => error,
                _ => match self.peek(&mut [0; 1], from + len - 1) {
                    // It may have come just now.
                    Ok(Some(1)) if !core::mem::replace(&mut again, true) => continue,
                    // What came by another path came first: what is missing may not find room.
                    Ok(Some(1)) => {
                        self.recover(&io::Error::from_raw_os_error(libc::ENOBUFS), limits);
                        return false;
                    }
                    Ok(Some(_)) => return false,
                    Ok(None) => {
                        self.turn(State::Truncated);
                        return false;
                    }
                    Err(error) => error,
                },
            };
            if !self.recover(&error, limits) {
                return false;
            }
        }
    }

    fn take(&mut self, number: usize, place: &mut Place<'_>, limits: Limits) -> Result<Option<(u32, usize)>, Error> {
        while self.is_whole(number, limits) {
            let Some(message) = self.messages.get(number) else {
                break;
            };
            let (tag, len) = (message.tag, message.len);
            match place {
                Place::Nowhere => return Ok(Some((tag, len))),
                Place::Slice(slice) if slice.len() < len => return Err(Error::NoRoom { len }),
                _ => {}
            }
            if message.is_kept() {
                let message = self.messages.remove(number);
                let kept = message.and_then(|message| message.kept).unwrap_or_default();
                match place {
                    Place::Vector(vector) => **vector = kept,
                    Place::Slice(slice) => slice.iter_mut().zip(&kept).for_each(|(to, from)| *to = *from),
                    Place::Nowhere => {}
                }
                self.stored -= len;
            } else {
                let room = match place {
                    Place::Vector(vector) => {
                        vector.resize(len, 0);
                        vector.as_mut_slice()
                    }
                    Place::Slice(slice) => slice,
                    Place::Nowhere => &mut [],
                };
                let offset = self.messages.offset(number);
                match self.search(offset, room.get_mut(..len).unwrap_or_default()) {
                    Ok(()) => drop(self.messages.remove(number)),
                    Err(error) if self.recover(&error, limits) => continue,
                    Err(_) => break,
                }
            }
            self.stored -= Message::cost(0);
            self.partial = None;
            if self.state == State::Full {
                self.state = State::Open;
                self.attention.note();
            }
            return Ok(Some((tag, len)));
        }
        Ok(None)
    }

    /// Receives the message at `offset`, all of which is there.
    fn search(&mut self, offset: usize, payload: &mut [u8]) -> io::Result<()> {
        let now = Flags::DONT_WAIT | Flags::WAIT_ALL;
        seek_recv(&self.fd, &mut [0; FRAME], now | Flags::DISCARD, offset)?;
        if payload.is_empty() {
            return Ok(());
        }
        match seek_recv(&self.fd, payload, now, offset) {
            Ok(got) if got == payload.len() => Ok(()),
            Ok(_) => {
                self.lose(State::Truncated);
                Err(ErrorKind::UnexpectedEof.into())
            }
            Err(error) => {
                self.lose(State::Failed(error.raw_os_error().unwrap_or(libc::EIO)));
                Err(error)
            }
        }
    }

    /// The stream has been left within a message: nothing more of the socket is received.
    fn lose(&mut self, state: State) {
        self.messages.remove_outside();
        self.turn(state);
    }
}
