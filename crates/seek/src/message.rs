//! Tagged messages on stream sockets, received in any order.
//!
//! A message is a frame of twelve bytes and the payload. An [`Inbox`] receives from one socket or several, matches by tag and source,
//! with wildcards, and keeps the order of arrival within a tag of a source. What has not been asked for stays where it is: on a TCP
//! socket it is passed over by direct search, on another stream socket it is kept here.
//!
//! | bytes | of the frame, little-endian |
//! |---|---|
//! | 0..4 | `VMSG` |
//! | 4..8 | tag |
//! | 8..12 | bytes of the payload |

use crate::call::{Flags, seek_recv};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

mod wait;

use wait::Waiter;

/// Bytes before each payload.
pub const FRAME: usize = 12;
const MAGIC: [u8; 4] = *b"VMSG";
/// The longest payload an inbox takes, unless told otherwise: 64 MiB.
pub const LONGEST: usize = 64 << 20;

/// Why a message could not be sent or received.
#[derive(Debug)]
pub enum Error {
    /// What came is no frame. Nothing more can be received from the source.
    Malformed {
        /// The source.
        source: usize,
    },
    /// A frame announces more than the inbox takes. Nothing more can be received from the source.
    TooLong {
        /// The source.
        source: usize,
        /// Bytes of its payload.
        len: usize,
    },
    /// The stream ended within a message.
    Truncated {
        /// The source.
        source: usize,
    },
    /// The message does not fit the buffer. It is still there.
    NoRoom {
        /// Bytes of its payload.
        len: usize,
    },
    /// Every source that could still send such a message has ended.
    Ended,
    /// There is no such source.
    NoSource,
    /// None has come in time.
    TimedOut,
    /// [`Inbox::cancel`] was called.
    Cancelled,
    /// A socket call failed.
    Io(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { source } => write!(f, "source {source} sent what is no message"),
            Self::TooLong { source, len } => write!(f, "source {source} announced a message of {len} bytes"),
            Self::Truncated { source } => write!(f, "source {source} ended within a message"),
            Self::NoRoom { len } => write!(f, "the message has {len} bytes, more than there is room for"),
            Self::Ended => write!(f, "no source is left that could send such a message"),
            Self::NoSource => write!(f, "no such source"),
            Self::TimedOut => write!(f, "no such message in time"),
            Self::Cancelled => write!(f, "cancelled"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Error {
    /// The error number the C functions give for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Malformed { .. } => libc::EBADMSG,
            Self::TooLong { .. } => libc::EOVERFLOW,
            Self::Truncated { .. } => libc::EPROTO,
            Self::NoRoom { .. } => libc::EMSGSIZE,
            Self::Ended => libc::ENOTCONN,
            Self::NoSource => libc::EINVAL,
            Self::TimedOut => libc::ETIMEDOUT,
            Self::Cancelled => libc::ECANCELED,
            Self::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
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
/// [`Error::NoRoom`] for a payload of 4 GiB or more; what `send` reports.
pub fn send(socket: impl AsFd, tag: u32, payload: &[u8]) -> Result<(), Error> {
    let len = u32::try_from(payload.len()).map_err(|_| Error::NoRoom { len: payload.len() })?;
    let mut frame = [0; FRAME];
    let words = [MAGIC, tag.to_le_bytes(), len.to_le_bytes()];
    frame
        .iter_mut()
        .zip(words.iter().flatten())
        .for_each(|(place, byte)| *place = *byte);
    wait::send_all(socket.as_fd(), &frame, payload)?;
    Ok(())
}

/// A socket of an inbox.
#[derive(Debug)]
struct Source {
    fd: OwnedFd,
    /// Messages that have been seen and not received, in order of arrival.
    waiting: VecDeque<(u32, usize)>,
    /// Bytes of those, with their frames.
    passed: usize,
    /// What has been read of a socket that cannot be searched; `None` for one that can.
    kept: Option<Vec<u8>>,
    /// No more will come, and why.
    over: Option<Over>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    End,
    Truncated,
    Malformed,
    TooLong(usize),
}

#[derive(Debug, Default)]
struct Sources {
    all: Vec<Option<Source>>,
    cancelled: u64,
}

/// Receives tagged messages from one stream socket or several. Threads may share it.
#[derive(Debug)]
pub struct Inbox {
    sources: Mutex<Sources>,
    waiter: Waiter,
    longest: usize,
}

impl Inbox {
    /// An inbox without sources that takes payloads of at most [`LONGEST`] bytes.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new() -> io::Result<Self> {
        Self::with_longest(LONGEST)
    }

    /// One that takes payloads of at most `longest` bytes.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn with_longest(longest: usize) -> io::Result<Self> {
        Ok(Self {
            sources: Mutex::default(),
            waiter: Waiter::new()?,
            longest,
        })
    }

    /// Adds a connected stream socket, from which nobody else receives from now on. Answers its number.
    ///
    /// # Errors
    /// It is no stream socket, or no descriptors are left.
    pub fn add(&self, socket: impl AsFd) -> io::Result<usize> {
        let fd = socket.as_fd().try_clone_to_owned()?;
        let searched = match seek_recv(&fd, &mut [0; 1], Flags::PEEK | Flags::DONT_WAIT, 0) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                if !wait::is_stream(&fd)? {
                    return Err(error);
                }
                false
            }
            Err(error) => return Err(error),
        };
        let mut sources = self.sources();
        self.waiter.add(fd.as_fd())?;
        sources.all.push(Some(Source {
            fd,
            waiting: VecDeque::new(),
            passed: 0,
            kept: (!searched).then(Vec::new),
            over: None,
        }));
        Ok(sources.all.len() - 1)
    }

    /// Takes a source out. What it has sent and nobody has received stays in the socket, frames and all.
    ///
    /// # Errors
    /// [`Error::NoSource`].
    pub fn remove(&self, source: usize) -> Result<(), Error> {
        let mut sources = self.sources();
        let gone = sources
            .all
            .get_mut(source)
            .and_then(Option::take)
            .ok_or(Error::NoSource)?;
        self.waiter.remove(gone.fd.as_fd());
        drop(sources);
        // Who waits for it is to know.
        self.waiter.wake();
        Ok(())
    }

    /// Receives the first message that matches into `buffer`. Waits for it, for at most `limit`.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn receive(&self, wanted: Match, buffer: &mut [u8], limit: Option<Duration>) -> Result<Envelope, Error> {
        self.find(wanted, limit, |source, number, index| {
            source.take(number, index, Some(buffer))
        })
    }

    /// Receives the first message that matches into a vector of its length.
    ///
    /// # Errors
    /// Any [`Error`] but [`Error::NoRoom`].
    pub fn receive_vec(&self, wanted: Match, limit: Option<Duration>) -> Result<(Envelope, Vec<u8>), Error> {
        let mut payload = Vec::new();
        let envelope = self.find(wanted, limit, |source, number, index| {
            payload.resize(source.waiting.get(index).map_or(0, |message| message.1), 0);
            source.take(number, index, Some(&mut payload))
        })?;
        Ok((envelope, payload))
    }

    /// Tells of the first message that matches, all of which has come, without receiving it.
    ///
    /// # Errors
    /// Any [`Error`] but [`Error::NoRoom`].
    pub fn probe(&self, wanted: Match, limit: Option<Duration>) -> Result<Envelope, Error> {
        self.find(wanted, limit, |source, number, index| source.take(number, index, None))
    }

    /// Has every call that waits now give up with [`Error::Cancelled`].
    pub fn cancel(&self) {
        self.sources().cancelled += 1;
        self.waiter.wake();
    }

    /// Becomes readable when a message may have come, for event loops: level-triggered until the next call that receives or probes.
    pub fn as_waitable(&self) -> BorrowedFd<'_> {
        self.waiter.as_fd()
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(
        &self,
        wanted: Match,
        limit: Option<Duration>,
        mut take: impl FnMut(&mut Source, usize, usize) -> Result<Option<Envelope>, Error>,
    ) -> Result<Envelope, Error> {
        let until = limit.map(|limit| Instant::now() + limit);
        let cancelled = self.sources().cancelled;
        loop {
            // Before the look: what comes after it counts as news for the wait.
            let news = self.waiter.news()?;
            {
                let mut sources = self.sources();
                if sources.cancelled != cancelled {
                    return Err(Error::Cancelled);
                }
                if let Some(found) = self.look(&mut sources, wanted, &mut take)? {
                    return Ok(found);
                }
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::TimedOut);
            }
            self.waiter.wait(news, left)?;
        }
    }

    fn look(
        &self,
        sources: &mut Sources,
        wanted: Match,
        take: &mut impl FnMut(&mut Source, usize, usize) -> Result<Option<Envelope>, Error>,
    ) -> Result<Option<Envelope>, Error> {
        if let Some(number) = wanted.source
            && sources.all.get(number).is_none_or(Option::is_none)
        {
            return Err(Error::NoSource);
        }
        let (mut alive, mut broken) = (false, None);
        for (number, source) in sources.all.iter_mut().enumerate() {
            let Some(source) = source
                .as_mut()
                .filter(|_| wanted.source.is_none_or(|only| only == number))
            else {
                continue;
            };
            source.scan(self.longest)?;
            let matching = |message: &(u32, usize)| wanted.tag.is_none_or(|tag| tag == message.0);
            if let Some(index) = source.waiting.iter().position(matching)
                && let Some(found) = take(source, number, index)?
            {
                return Ok(Some(found));
            }
            match source.over {
                None => alive = true,
                Some(Over::End) => {}
                Some(over) => broken = broken.or(Some((number, over))),
            }
        }
        match broken {
            // A broken source hides nothing that others can still send.
            Some((source, over)) if wanted.source.is_some() || !alive => Err(match over {
                Over::Malformed => Error::Malformed { source },
                Over::TooLong(len) => Error::TooLong { source, len },
                Over::Truncated | Over::End => Error::Truncated { source },
            }),
            _ if alive => Ok(None),
            _ => Err(Error::Ended),
        }
    }
}

impl Source {
    /// Copies bytes that stand `offset` bytes after the head without taking them; fewer where no more have come.
    fn peek(&mut self, buffer: &mut [u8], offset: usize) -> io::Result<Option<usize>> {
        if let Some(kept) = &mut self.kept {
            let over = wait::read_all(self.fd.as_fd(), kept)?;
            let there = kept.get(offset..).unwrap_or_default();
            let len = there.len().min(buffer.len());
            buffer.iter_mut().zip(there).for_each(|(place, byte)| *place = *byte);
            return Ok((len > 0 || !over).then_some(len));
        }
        match seek_recv(&self.fd, buffer, Flags::PEEK | Flags::DONT_WAIT, offset) {
            Ok(0) => Ok(None),
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// Looks at the frames that have come since the last look.
    fn scan(&mut self, longest: usize) -> Result<(), Error> {
        while self.over.is_none() {
            let mut frame = [0; FRAME];
            let len = match self.peek(&mut frame, self.passed)? {
                Some(len) => len,
                None => {
                    self.over = Some(Over::End);
                    return Ok(());
                }
            };
            let known = len.min(MAGIC.len());
            if frame.get(..known) != MAGIC.get(..known) {
                self.over = Some(Over::Malformed);
                return Ok(());
            }
            if len < FRAME {
                if len > 0 && wait::has_ended(self.fd.as_fd()) && self.peek(&mut frame, self.passed)? == Some(len) {
                    self.over = Some(Over::Truncated);
                }
                return Ok(());
            }
            let word = |from: usize| {
                let bytes = frame.get(from..).and_then(|bytes| bytes.first_chunk());
                u32::from_le_bytes(bytes.copied().unwrap_or_default())
            };
            let (tag, payload) = (word(4), word(8) as usize);
            if payload > longest {
                self.over = Some(Over::TooLong(payload));
                return Ok(());
            }
            self.waiting.push_back((tag, payload));
            self.passed += FRAME + payload;
        }
        Ok(())
    }

    /// Receives message `index`, if all of it has come, or only tells of it without a buffer.
    fn take(&mut self, number: usize, index: usize, buffer: Option<&mut [u8]>) -> Result<Option<Envelope>, Error> {
        let Some((tag, len)) = self.waiting.get(index).copied() else {
            return Ok(None);
        };
        let offset: usize = self.waiting.iter().take(index).map(|message| FRAME + message.1).sum();
        // The last byte tells of all before it.
        let mut last = [0; 1];
        match self.peek(&mut last, offset + FRAME + len - 1)? {
            Some(1) => {}
            Some(_) => return Ok(None),
            None => {
                self.over = Some(Over::Truncated);
                return Err(Error::Truncated { source: number });
            }
        }
        let envelope = Envelope {
            source: number,
            tag,
            len,
        };
        let Some(buffer) = buffer else {
            return Ok(Some(envelope));
        };
        let place = buffer.get_mut(..len).ok_or(Error::NoRoom { len })?;
        if let Some(kept) = &mut self.kept {
            let bytes = kept.drain(offset..offset + FRAME + len).skip(FRAME);
            place.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        } else {
            let now = Flags::DONT_WAIT | Flags::WAIT_ALL;
            seek_recv(&self.fd, &mut [0; FRAME], now | Flags::DISCARD, offset)?;
            if len > 0 && seek_recv(&self.fd, place, now, offset)? != len {
                return Err(Error::Truncated { source: number });
            }
        }
        self.waiting.remove(index);
        self.passed -= FRAME + len;
        Ok(Some(envelope))
    }
}

impl AsRawFd for Inbox {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.as_waitable().as_raw_fd()
    }
}
