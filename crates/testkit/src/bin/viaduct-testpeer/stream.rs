//! The two checked streams of a connection, without any waiting.

use crate::options::Direction;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use viaduct_testkit::pattern::{self, Random};

/// What the connecting end says first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hello {
    pub(crate) seed: u64,
    /// Stream bytes each way, 0 where the connecting end's clock decides.
    pub(crate) bytes: u64,
    /// How long each end sends where `bytes` is 0, in microseconds.
    pub(crate) micros: u64,
    pub(crate) direction: Direction,
}

pub(crate) const HELLO_LEN: usize = 32;

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        let words = [self.seed, self.bytes, self.micros, self.direction as u64];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` for bytes that no connecting end writes.
    pub(crate) fn decode(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_le_bytes(word)
        };
        let direction = match word(3) {
            0 => Direction::Both,
            1 => Direction::Up,
            2 => Direction::Down,
            _ => return None,
        };
        Some(Self {
            seed: word(0),
            bytes: word(1),
            micros: word(2),
            direction,
        })
    }
}

/// How a connection ended, worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Eof,
    Short,
    Reset,
    Stuck,
    Wrong,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            Self::Eof => "eof",
            Self::Short => "short",
            Self::Reset => "reset",
            Self::Stuck => "stuck",
            Self::Wrong => "wrong",
        }
    }
}

/// What is known about a connection to those who watch it.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) seed: u64,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    done: AtomicBool,
    end: Mutex<(End, String)>,
}

impl Progress {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            done: AtomicBool::new(false),
            end: Mutex::new((End::Eof, String::new())),
        }
    }

    /// Notes an end; the worst one noted is reported.
    pub(crate) fn note(&self, end: End, detail: String) {
        let mut known = self.end.lock().unwrap();
        if end > known.0 {
            *known = (end, detail);
        }
    }

    /// Reports the connection, once.
    pub(crate) fn report(&self) -> Option<End> {
        if self.done.swap(true, Ordering::Relaxed) {
            return None;
        }
        let (end, detail) = self.end.lock().unwrap().clone();
        let line = serde_json::json!({
            "seed": self.seed,
            "sent": self.sent.load(Ordering::Relaxed),
            "received": self.received.load(Ordering::Relaxed),
            "end": end.name(),
            "detail": detail,
        });
        crate::print_line(&line.to_string());
        Some(end)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

/// The stream this end sends.
#[derive(Debug)]
pub(crate) struct Outgoing {
    seed: u64,
    position: u64,
    limit: u64,
    until: Option<Instant>,
    max_chunk: u64,
}

/// The stream this end receives.
#[derive(Debug)]
pub(crate) struct Incoming {
    seed: u64,
    position: u64,
    /// How many bytes must come, where that is known.
    expected: Option<u64>,
}

/// The streams of the end that connected (`connecting`) or accepted.
pub(crate) fn streams(hello: &Hello, connecting: bool, max_chunk: u64) -> (Outgoing, Incoming) {
    let upward = hello.direction != Direction::Down;
    let downward = hello.direction != Direction::Up;
    let (sends, receives) = if connecting {
        (upward, downward)
    } else {
        (downward, upward)
    };
    let (up, down) = (hello.seed, !hello.seed);
    let timed = hello.bytes == 0;
    let outgoing = Outgoing {
        seed: if connecting { up } else { down },
        position: 0,
        limit: match (sends, timed) {
            (false, _) => 0,
            (true, true) => u64::MAX,
            (true, false) => hello.bytes,
        },
        until: timed.then(|| Instant::now() + Duration::from_micros(hello.micros)),
        max_chunk,
    };
    let incoming = Incoming {
        seed: if connecting { down } else { up },
        position: 0,
        expected: match (receives, timed) {
            (false, _) => Some(0),
            (true, true) => None,
            (true, false) => Some(hello.bytes),
        },
    };
    (outgoing, incoming)
}

impl Outgoing {
    /// The next bytes to send, of a random length; `None` at the end.
    pub(crate) fn next<'a>(&self, random: &mut Random, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let left = self.limit - self.position;
        if left == 0 || self.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        let longest = match random.below(10) {
            0..5 => 64,
            5..9 => 4096,
            _ => self.max_chunk,
        };
        let length = (1 + random.below(longest.min(self.max_chunk)))
            .min(left)
            .min(buffer.len() as u64);
        let chunk = &mut buffer[..usize::try_from(length).unwrap_or(usize::MAX)];
        pattern::fill(self.seed, self.position, chunk);
        Some(chunk)
    }

    pub(crate) fn sent(&mut self, count: usize, progress: &Progress) {
        self.position += count as u64;
        progress.sent.store(self.position, Ordering::Relaxed);
    }
}

impl Incoming {
    /// Checks bytes that came; false if they are wrong.
    pub(crate) fn received(&mut self, bytes: &[u8], progress: &Progress) -> bool {
        if let Some(at) = pattern::first_difference(self.seed, self.position, bytes) {
            let shown = usize::try_from(at - self.position).unwrap_or(0);
            progress.note(
                End::Wrong,
                format!("byte {at} of {} in a call at {}", bytes[shown], self.position),
            );
            return false;
        }
        self.position += bytes.len() as u64;
        progress.received.store(self.position, Ordering::Relaxed);
        if self.expected.is_some_and(|expected| self.position > expected) {
            progress.note(End::Wrong, format!("{} bytes where none was sent", self.position));
            return false;
        }
        true
    }

    /// The peer has ended its stream.
    pub(crate) fn ended(&self, progress: &Progress) {
        if let Some(expected) = self.expected
            && self.position < expected
        {
            progress.note(End::Short, format!("end of file at {} of {expected}", self.position));
        }
    }
}
