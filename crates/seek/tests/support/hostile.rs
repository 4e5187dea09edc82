//! An inbox whose senders send what they like, driven by bytes, beside a model of what it may answer. Shared by the test with generated
//! bytes, the replay of the fuzzer's corpus, and the fuzz target.

#[path = "../../../../fuzz/support/script.rs"]
pub(crate) mod script;

use script::Script;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use viaduct::message::{Envelope, Error, FRAME, Inbox, Limits, Match};

/// Longer than it takes what has been sent to arrive.
const SOON: Duration = Duration::from_secs(5);
/// What the kernel is to hold at a time, so that its buffers get full too.
const BUFFER: libc::c_int = 8 << 10;
/// Tags in use.
const TAGS: u8 = 4;

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write(bytes),
            Self::Unix(socket) => socket.write(bytes),
        }
    }
}

/// How a sender's stream goes on after its whole messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// With so many bytes of another.
    Part(usize),
    Malformed,
    TooLong(usize),
}

/// A message that the inbox has all of, and has not handed over.
#[derive(Debug)]
struct Whole {
    tag: u32,
    payload: Vec<u8>,
}

/// A sender, and what the inbox must make of it.
#[derive(Debug)]
struct Sender {
    socket: Option<Socket>,
    /// Not taken by the kernel yet.
    pending: Vec<u8>,
    /// What follows the whole messages among what has been sent.
    begun: Vec<u8>,
    messages: Vec<Whole>,
    rest: Rest,
    /// No more will come.
    ended: bool,
    /// What was in the socket may be lost.
    broken: bool,
    /// The inbox has said that it keeps no more of it.
    full: bool,
    removed: bool,
}

impl Sender {
    fn new(socket: Socket) -> Self {
        Self {
            socket: Some(socket),
            pending: Vec::new(),
            begun: Vec::new(),
            messages: Vec::new(),
            rest: Rest::Part(0),
            ended: false,
            broken: false,
            full: false,
            removed: false,
        }
    }

    fn flush(&mut self, longest: usize) {
        // The other end of one that has been taken out is closed.
        while !self.removed
            && !self.pending.is_empty()
            && let Some(socket) = &mut self.socket
        {
            match socket.write(&self.pending) {
                Ok(sent) => self.begun.extend(self.pending.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.break_off(),
            }
        }
        self.read(longest);
    }

    /// Reads as the inbox must.
    fn read(&mut self, longest: usize) {
        while let Rest::Part(_) = self.rest {
            let known = self.begun.len().min(4);
            self.rest = if self.begun[..known] != b"VMSG"[..known] {
                Rest::Malformed
            } else {
                Rest::Part(self.begun.len())
            };
            let Some((frame, payload)) = self.begun.split_first_chunk::<FRAME>() else {
                return;
            };
            let word = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().expect("four bytes"));
            let (tag, len) = (word(4), word(8) as usize);
            if self.rest == Rest::Malformed {
            } else if len > longest {
                self.rest = Rest::TooLong(len);
            } else if payload.len() < len {
                return;
            } else {
                let payload = payload[..len].to_vec();
                self.messages.push(Whole { tag, payload });
                self.begun.drain(..FRAME + len);
            }
        }
    }

    fn shut_down(&mut self) {
        // What waits for room would be lost, which is another case.
        if self.pending.is_empty()
            && let Some(socket) = self.socket.take()
        {
            drop(socket);
            self.ended = true;
        }
    }

    /// As a killed peer, or one that has not read what was sent to it.
    fn break_off(&mut self) {
        if let Some(socket) = self.socket.take() {
            if let Socket::Tcp(socket) = &socket {
                linger_no_longer(socket);
            }
            drop(socket);
            (self.ended, self.broken) = (true, true);
        }
    }

    fn first(&self, tag: Option<u32>) -> Option<usize> {
        self.messages
            .iter()
            .position(|message| tag.is_none_or(|tag| tag == message.tag))
    }

    /// Whether a call must find the message that it asks for.
    fn has(&self, tag: Option<u32>) -> bool {
        !self.removed && !self.broken && !self.full && self.first(tag).is_some()
    }
}

fn set<T>(fd: &impl AsRawFd, name: libc::c_int, value: T) {
    let len = libc::socklen_t::try_from(size_of::<T>()).expect("small");
    // SAFETY: the value is of the option's type, which the callers see to.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const value).cast(), len) };
    assert_eq!(done, 0);
}

fn linger_no_longer(socket: &TcpStream) {
    let now = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    set(socket, libc::SO_LINGER, now);
}

/// A sender's end, which never waits, and the inbox's.
fn connect(tcp: bool, inbox: &Inbox) -> Sender {
    if tcp {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        set(&listener, libc::SO_RCVBUF, BUFFER);
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        set(&near, libc::SO_SNDBUF, BUFFER);
        near.set_nonblocking(true).expect("a socket");
        near.set_nodelay(true).expect("a socket");
        inbox.add(listener.accept().expect("connected").0).expect("a stream");
        Sender::new(Socket::Tcp(near))
    } else {
        let (near, far) = UnixStream::pair().expect("two sockets");
        set(&near, libc::SO_SNDBUF, BUFFER);
        near.set_nonblocking(true).expect("a socket");
        inbox.add(far).expect("a stream");
        Sender::new(Socket::Unix(near))
    }
}

/// An inbox and what is known of it.
struct Run {
    inbox: Inbox,
    limits: Limits,
    senders: Vec<Sender>,
}

/// Runs a script; panics where a promise of the inbox is broken.
pub(crate) fn run(script: &[u8]) {
    let mut script = Script(script);
    let shape = usize::from(script.byte());
    let limits = Limits {
        longest: [16, 200, 5000, 40_000][shape % 4],
        store: [0, 100, 1000, 1 << 20][shape / 4 % 4],
    };
    let inbox = Inbox::with_limits(limits).expect("descriptors");
    let kinds = script.byte();
    let senders = (0..1 + shape / 16 % 3)
        .map(|index| connect(kinds >> index & 1 == 0, &inbox))
        .collect();
    let mut run = Run { inbox, limits, senders };
    while !script.0.is_empty() {
        run.step(&mut script);
    }
    run.receive_the_rest();
}

impl Run {
    fn step(&mut self, script: &mut Script<'_>) {
        let action = script.byte();
        let number = usize::from(script.byte()) % self.senders.len();
        let sender = &mut self.senders[number];
        match action % 16 {
            0..5 => {
                let len = script.word() as usize % (self.limits.longest + 1);
                let tag = script.byte() % TAGS;
                let seed = script.byte();
                sender.pending.extend(b"VMSG");
                sender.pending.extend(u32::from(tag).to_le_bytes());
                sender.pending.extend(u32::try_from(len).expect("short").to_le_bytes());
                let step = 7 + u8::from(len > 256);
                let bytes = std::iter::successors(Some(seed), |byte| Some(byte.wrapping_add(step)));
                sender.pending.extend(bytes.take(len));
            }
            5 => {
                let (tag, len) = (script.word(), script.word());
                sender.pending.extend(b"VMSG");
                sender.pending.extend(tag.to_le_bytes());
                sender.pending.extend(len.to_le_bytes());
            }
            6 => {
                let count = usize::from(script.byte() % 32);
                sender.pending.extend(script.some(count));
            }
            7 => {
                sender.flush(self.limits.longest);
                sender.shut_down();
            }
            8 if script.byte() < 32 => sender.break_off(),
            9 if script.byte() < 32 => {
                assert_eq!(self.inbox.remove(number).is_ok(), !sender.removed);
                sender.removed = true;
            }
            10 => self.inbox.cancel(),
            11 => self.ask(script, true),
            _ => self.ask(script, false),
        }
    }

    fn flush(&mut self) {
        for sender in &mut self.senders {
            sender.flush(self.limits.longest);
        }
    }

    fn ask(&mut self, script: &mut Script<'_>, probe: bool) {
        let source = script.choice(u8::try_from(self.senders.len() + 1).expect("few"));
        let wanted = Match {
            tag: script.choice(TAGS).map(u32::from),
            source: source.map(usize::from),
        };
        let room = match script.byte() {
            byte @ 0..64 => usize::from(byte),
            _ => self.limits.longest,
        };
        self.flush();
        if probe {
            let told = self.inbox.probe(wanted, Some(self.patience(wanted)));
            self.check(wanted, told.map(|envelope| (envelope, None)), usize::MAX);
        } else {
            self.receive(wanted, room);
        }
    }

    /// How long a call may take to find what has been sent.
    fn patience(&self, wanted: Match) -> Duration {
        if self.concerned(wanted).any(|(_, sender)| sender.has(wanted.tag)) {
            SOON
        } else {
            Duration::ZERO
        }
    }

    fn concerned(&self, wanted: Match) -> impl Iterator<Item = (usize, &Sender)> {
        let senders = self.senders.iter().enumerate();
        senders.filter(move |(number, sender)| !sender.removed && wanted.source.is_none_or(|only| only == *number))
    }

    /// True once nothing more can be had of what is wanted.
    fn receive(&mut self, wanted: Match, room: usize) -> bool {
        let mut buffer = vec![0xA5; room + 8];
        let got = self
            .inbox
            .receive(wanted, &mut buffer[..room], Some(self.patience(wanted)));
        assert!(
            buffer[room..].iter().all(|byte| *byte == 0xA5),
            "written beyond the buffer"
        );
        let got = got.map(|envelope| {
            buffer.truncate(envelope.len);
            (envelope, Some(buffer))
        });
        self.check(wanted, got, room)
    }

    /// Holds an answer against the model.
    fn check(&mut self, wanted: Match, answer: Result<(Envelope, Option<Vec<u8>>), Error>, room: usize) -> bool {
        let missed = self.concerned(wanted).any(|(_, sender)| sender.has(wanted.tag));
        let known = |source: usize| wanted.source.is_none_or(|only| only == source) && !self.senders[source].removed;
        match answer {
            Ok((Envelope { source, tag, len }, payload)) => {
                assert!(known(source));
                let sender = &mut self.senders[source];
                let index = sender.first(wanted.tag).expect("a message that was sent");
                let message = &sender.messages[index];
                assert_eq!((message.tag, message.payload.len()), (tag, len));
                if let Some(payload) = payload {
                    assert!(message.payload == payload, "the payload of another");
                    sender.messages.remove(index);
                    sender.full = false;
                }
                return false;
            }
            Err(Error::NoRoom { len }) => {
                let mut first = self.concerned(wanted).filter_map(|(_, sender)| {
                    let index = sender.first(wanted.tag)?;
                    Some(sender.messages[index].payload.len())
                });
                assert!(len > room && first.any(|there| there == len));
            }
            Err(Error::Malformed { source }) => assert!(known(source) && self.senders[source].rest == Rest::Malformed),
            Err(Error::TooLong { source, len }) => {
                assert!(known(source) && self.senders[source].rest == Rest::TooLong(len));
            }
            Err(Error::Truncated { source }) => {
                let sender = &self.senders[source];
                let partly = matches!(sender.rest, Rest::Part(1..)) && sender.ended;
                assert!(known(source) && (partly || sender.broken));
            }
            Err(Error::Full { source }) => {
                assert!(known(source) && !self.senders[source].messages.is_empty());
                self.senders[source].full = true;
                return false;
            }
            Err(Error::Failed { source, .. }) => assert!(known(source) && self.senders[source].broken),
            Err(Error::Ended) => {
                let over = |sender: &Sender| sender.ended || !matches!(sender.rest, Rest::Part(_));
                assert!(!missed && self.concerned(wanted).all(|(_, sender)| over(sender)));
                // Who asks for one source is told each time what is wrong with it.
                let in_order = |sender: &Sender| sender.rest == Rest::Part(0) || sender.broken;
                assert!(wanted.source.is_none() || self.concerned(wanted).all(|(_, sender)| in_order(sender)));
            }
            Err(Error::NoSource) => assert!(wanted.source.is_some() && self.concerned(wanted).next().is_none()),
            Err(Error::TimedOut) => assert!(!missed, "sent and not received"),
            Err(error @ (Error::Interrupted | Error::Cancelled | Error::Io(_))) => panic!("{error}"),
        }
        true
    }

    /// What has been sent whole can be had, whatever came before and after.
    fn receive_the_rest(&mut self) {
        for source in 0..self.senders.len() {
            let wanted = Match {
                tag: None,
                source: Some(source),
            };
            loop {
                self.flush();
                let had = !self.senders[source].has(None);
                if self.receive(wanted, self.limits.longest) && had {
                    break;
                }
            }
            let sender = &self.senders[source];
            assert!(sender.removed || sender.broken || sender.messages.is_empty());
            if let Some(Socket::Tcp(socket)) = &sender.socket {
                // Many scripts are run, and no port is to wait after each.
                let _ = socket.shutdown(Shutdown::Both);
                linger_no_longer(socket);
            }
        }
    }
}
