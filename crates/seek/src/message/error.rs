//! Why calls of an inbox fail.

use std::fmt;
use std::io;

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
    /// So much of the source is kept already that no more can be, and what is wanted has not come:
    /// [`Limits::store`](super::Limits::store). Goes on once other messages of the source are received; the first of
    /// them always can be.
    Full {
        /// The source.
        source: usize,
    },
    /// A call on the source's socket failed. Nothing more can be received from it.
    Failed {
        /// The source.
        source: usize,
        /// Why.
        error: io::Error,
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
    /// A signal was caught while the call waited, so that a program may act on it. The call can be made again.
    Interrupted,
    /// [`Inbox::cancel`](super::Inbox::cancel) was called.
    Cancelled,
    /// Another call failed.
    Io(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { source } => write!(f, "source {source} sent what is no message"),
            Self::TooLong { source, len } => write!(f, "source {source} announced a message of {len} bytes"),
            Self::Truncated { source } => write!(f, "source {source} ended within a message"),
            Self::Full { source } => write!(f, "no more of source {source} can be kept"),
            Self::Failed { source, error } => write!(f, "source {source}: {error}"),
            Self::NoRoom { len } => write!(f, "the message has {len} bytes, more than there is room for"),
            Self::Ended => write!(f, "no source is left that could send such a message"),
            Self::NoSource => write!(f, "no such source"),
            Self::TimedOut => write!(f, "no such message in time"),
            Self::Interrupted => write!(f, "a signal was caught"),
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
            Self::Full { .. } => libc::ENOBUFS,
            Self::NoRoom { .. } => libc::EMSGSIZE,
            Self::Ended => libc::ENOTCONN,
            Self::NoSource => libc::EINVAL,
            Self::TimedOut => libc::ETIMEDOUT,
            Self::Interrupted => libc::EINTR,
            Self::Cancelled => libc::ECANCELED,
            Self::Failed { error, .. } | Self::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    /// The source it tells of, if it does of one.
    pub fn source(&self) -> Option<usize> {
        match self {
            Self::Malformed { source }
            | Self::TooLong { source, .. }
            | Self::Truncated { source }
            | Self::Full { source }
            | Self::Failed { source, .. } => Some(*source),
            Self::NoRoom { .. }
            | Self::Ended
            | Self::NoSource
            | Self::TimedOut
            | Self::Interrupted
            | Self::Cancelled
            | Self::Io(_) => None,
        }
    }
}
