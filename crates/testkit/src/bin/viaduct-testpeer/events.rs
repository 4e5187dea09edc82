//! Many connections in one thread: epoll in level and edge mode, and poll.

use crate::Peer;
use crate::calls::{self, Received};
use crate::options::{Common, Mode};
use crate::stream::{End, HELLO_LEN, Hello, Incoming, Outgoing, Progress, streams};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::HashMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use viaduct_testkit::pattern::Random;

/// Calls on one connection before the others have their turn.
const TURN: usize = 16;
const LISTENER: u64 = u64::MAX;
const TICK_MS: u16 = 100;

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    greeting: Greeting,
    readable: bool,
    writable: bool,
    /// Interest last told to epoll.
    registered: EpollFlags,
}

#[derive(Debug)]
enum Greeting {
    /// The accepting end still reads the other's first bytes.
    Reading([u8; HELLO_LEN], usize),
    /// The connecting end still writes them.
    Writing(Hello, usize),
    Done(Box<Transfer>),
}

#[derive(Debug)]
struct Transfer {
    progress: Arc<Progress>,
    outgoing: Outgoing,
    incoming: Incoming,
    sending: Sending,
    receiving: bool,
    random: Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Yes,
    /// All is sent; the connection is held open until then.
    Holding(Instant),
    Over,
}

/// What a turn of a connection came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Continue,
    Over,
    /// Closed before it said what it wants.
    Nothing,
}

enum Waiter {
    Epoll(Epoll, bool),
    Poll,
}

/// Serves `listener`, if any, and the connections opened; returns when there is nothing left to serve.
pub(crate) fn run(
    peer: &Arc<Peer>,
    listener: Option<&TcpListener>,
    opened: Vec<(TcpStream, Hello)>,
) -> std::io::Result<()> {
    let waiter = match peer.common.mode {
        Mode::Poll => Waiter::Poll,
        mode => Waiter::Epoll(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?, mode == Mode::Edge),
    };
    let mut state = Loop {
        peer,
        waiter,
        connections: HashMap::new(),
        next: 0,
        buffer: vec![0; usize::try_from(peer.common.max_chunk).unwrap_or(1 << 16)],
    };
    if let Some(listener) = listener {
        listener.set_nonblocking(true)?;
        if let Waiter::Epoll(epoll, _) = &state.waiter {
            epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        }
    }
    for (stream, hello) in opened {
        let progress = peer.watch(hello.seed);
        state.add(stream, Greeting::Writing(hello, 0), Some(progress))?;
    }
    while listener.is_some() || !state.connections.is_empty() {
        if state.wait(listener)? {
            state.accept(listener)?;
        }
        state.turns()?;
    }
    Ok(())
}

struct Loop<'a> {
    peer: &'a Arc<Peer>,
    waiter: Waiter,
    connections: HashMap<u64, (Connection, Option<Arc<Progress>>)>,
    next: u64,
    buffer: Vec<u8>,
}

impl Loop<'_> {
    fn add(&mut self, stream: TcpStream, greeting: Greeting, watched: Option<Arc<Progress>>) -> std::io::Result<()> {
        stream.set_nonblocking(true)?;
        let mut connection = Connection {
            stream,
            greeting,
            readable: false,
            writable: false,
            registered: EpollFlags::empty(),
        };
        if let Waiter::Epoll(epoll, edge) = &self.waiter {
            connection.registered = connection.interest(*edge);
            epoll.add(&connection.stream, EpollEvent::new(connection.registered, self.next))?;
        }
        self.connections.insert(self.next, (connection, watched));
        self.next += 1;
        Ok(())
    }

    fn accept(&mut self, listener: Option<&TcpListener>) -> std::io::Result<()> {
        while let Some(Ok((stream, _))) = listener.map(TcpListener::accept) {
            self.add(stream, Greeting::Reading([0; HELLO_LEN], 0), None)?;
        }
        Ok(())
    }

    /// Waits for readiness; true if the listener has some.
    fn wait(&mut self, listener: Option<&TcpListener>) -> std::io::Result<bool> {
        // Edges already seen and not used up need no waiting.
        let ready = self.connections.values().any(|(connection, _)| connection.has_work());
        let timeout = if ready { 0 } else { TICK_MS };
        match &self.waiter {
            Waiter::Epoll(epoll, edge) => {
                let mut events = [EpollEvent::empty(); 64];
                let count = match epoll.wait(&mut events, EpollTimeout::from(timeout)) {
                    Err(Errno::EINTR) => 0,
                    other => other?,
                };
                let mut accept = false;
                for event in &events[..count] {
                    if event.data() == LISTENER {
                        accept = true;
                    } else if let Some((connection, _)) = self.connections.get_mut(&event.data()) {
                        let gone = EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR | EpollFlags::EPOLLRDHUP;
                        connection.readable |= event.events().intersects(EpollFlags::EPOLLIN | gone);
                        connection.writable |= event.events().intersects(EpollFlags::EPOLLOUT | gone);
                    }
                }
                // Level mode tells a change of interest; edge mode has told everything once.
                if !edge {
                    for (key, (connection, _)) in &mut self.connections {
                        let interest = connection.interest(false);
                        if interest != connection.registered {
                            connection.registered = interest;
                            epoll.modify(&connection.stream, &mut EpollEvent::new(interest, *key))?;
                        }
                    }
                }
                Ok(accept)
            }
            Waiter::Poll => {
                let keys: Vec<u64> = self.connections.keys().copied().collect();
                let mut files: Vec<PollFd<'_>> = keys
                    .iter()
                    .filter_map(|key| self.connections.get(key))
                    .map(|(connection, _)| PollFd::new(connection.stream.as_fd(), connection.poll_interest()))
                    .collect();
                if let Some(listener) = listener {
                    files.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
                }
                match nix::poll::poll(&mut files, PollTimeout::from(timeout)) {
                    Err(Errno::EINTR) => return Ok(false),
                    other => other?,
                };
                let found: Vec<PollFlags> = files
                    .iter()
                    .map(|file| file.revents().unwrap_or(PollFlags::empty()))
                    .collect();
                for (key, found) in keys.iter().zip(&found) {
                    if let Some((connection, _)) = self.connections.get_mut(key) {
                        let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
                        connection.readable |= found.intersects(PollFlags::POLLIN | gone);
                        connection.writable |= found.intersects(PollFlags::POLLOUT | gone);
                    }
                }
                Ok(listener.is_some() && found.last().is_some_and(|found| !found.is_empty()))
            }
        }
    }

    fn turns(&mut self) -> std::io::Result<()> {
        let mut over = Vec::new();
        for (key, (connection, watched)) in &mut self.connections {
            let turn = connection.turn(self.peer, watched, &mut self.buffer);
            match turn {
                Turn::Continue => {}
                Turn::Nothing => over.push(*key),
                Turn::Over => {
                    if let Some(progress) = watched {
                        self.peer.finished(progress);
                    }
                    over.push(*key);
                }
            }
        }
        for key in over {
            self.connections.remove(&key);
        }
        Ok(())
    }
}

impl Connection {
    fn interest(&self, edge: bool) -> EpollFlags {
        if edge {
            return EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        }
        let mut interest = EpollFlags::empty();
        interest.set(EpollFlags::EPOLLIN, self.wants_read());
        interest.set(EpollFlags::EPOLLOUT, self.wants_write());
        interest
    }

    fn poll_interest(&self) -> PollFlags {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::POLLIN, self.wants_read());
        interest.set(PollFlags::POLLOUT, self.wants_write());
        interest
    }

    fn wants_read(&self) -> bool {
        match &self.greeting {
            Greeting::Reading(..) => true,
            Greeting::Writing(..) => false,
            Greeting::Done(transfer) => transfer.receiving,
        }
    }

    fn wants_write(&self) -> bool {
        match &self.greeting {
            Greeting::Reading(..) => false,
            Greeting::Writing(..) => true,
            Greeting::Done(transfer) => transfer.sending == Sending::Yes,
        }
    }

    fn has_work(&self) -> bool {
        self.readable && self.wants_read() || self.writable && self.wants_write()
    }

    fn turn(&mut self, peer: &Arc<Peer>, watched: &mut Option<Arc<Progress>>, buffer: &mut [u8]) -> Turn {
        loop {
            let outcome = match &mut self.greeting {
                Greeting::Done(transfer) => {
                    return transfer.turn(
                        &self.stream,
                        &mut self.readable,
                        &mut self.writable,
                        &peer.common,
                        buffer,
                    );
                }
                Greeting::Reading(..) if !self.readable => return Turn::Continue,
                Greeting::Writing(..) if !self.writable => return Turn::Continue,
                Greeting::Reading(bytes, done) => {
                    nix::unistd::read(&self.stream, &mut bytes[*done..]).inspect(|count| *done += count)
                }
                Greeting::Writing(hello, done) => {
                    nix::unistd::write(&self.stream, &hello.encode()[*done..]).inspect(|count| *done += count)
                }
            };
            match outcome {
                Ok(0) => return Turn::Nothing,
                Ok(_) => {}
                Err(Errno::EAGAIN) => {
                    self.readable = false;
                    self.writable = false;
                    return Turn::Continue;
                }
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    let Some(progress) = watched else { return Turn::Nothing };
                    progress.note(End::Reset, format!("greeting: {error}"));
                    return Turn::Over;
                }
            }
            let (hello, connecting) = match &self.greeting {
                Greeting::Reading(bytes, HELLO_LEN) => match Hello::decode(bytes) {
                    Some(hello) => (hello, false),
                    None => {
                        peer.nonsense();
                        return Turn::Nothing;
                    }
                },
                Greeting::Writing(hello, HELLO_LEN) => (*hello, true),
                _ => continue,
            };
            let progress = Arc::clone(watched.get_or_insert_with(|| peer.watch(hello.seed)));
            let (outgoing, incoming) = streams(&hello, connecting, peer.common.max_chunk);
            self.greeting = Greeting::Done(Box::new(Transfer {
                random: calls::order(hello.seed, peer.common.seed ^ u64::from(connecting)),
                progress,
                outgoing,
                incoming,
                sending: Sending::Yes,
                receiving: true,
            }));
        }
    }
}

impl Transfer {
    fn turn(
        &mut self,
        stream: &TcpStream,
        readable: &mut bool,
        writable: &mut bool,
        common: &Common,
        buffer: &mut [u8],
    ) -> Turn {
        for _ in 0..TURN {
            if !(self.receiving && *readable) {
                break;
            }
            match calls::receive(stream.as_fd(), buffer, &mut self.random) {
                Ok(Received::Bytes(0)) => {
                    self.incoming.ended(&self.progress);
                    self.receiving = false;
                }
                Ok(Received::Bytes(count)) => {
                    if !self.incoming.received(&buffer[..count], &self.progress) {
                        return Turn::Over;
                    }
                }
                Ok(Received::PeekDiffers) => {
                    self.progress.note(End::Wrong, "MSG_PEEK showed other bytes".to_owned());
                    return Turn::Over;
                }
                Err(Errno::EAGAIN) => *readable = false,
                Err(Errno::EINTR) => {}
                Err(error) => return self.lost("receive", error),
            }
        }
        for _ in 0..TURN {
            if !(self.sending == Sending::Yes && *writable) {
                break;
            }
            let Some(chunk) = self.outgoing.next(&mut self.random, buffer) else {
                self.sending = Sending::Holding(Instant::now() + Duration::from_millis(common.hold_ms));
                break;
            };
            match calls::send(stream.as_fd(), chunk, &mut self.random) {
                Ok(count) => self.outgoing.sent(count, &self.progress),
                Err(Errno::EAGAIN) => *writable = false,
                Err(Errno::EINTR) => {}
                Err(error) => return self.lost("send", error),
            }
        }
        if let Sending::Holding(until) = self.sending
            && Instant::now() >= until
        {
            self.sending = Sending::Over;
            if let Err(error) = stream.shutdown(Shutdown::Write) {
                self.progress.note(End::Reset, format!("shutdown: {error}"));
                return Turn::Over;
            }
        }
        if self.sending == Sending::Over && !self.receiving {
            return Turn::Over;
        }
        Turn::Continue
    }

    fn lost(&self, call: &str, error: Errno) -> Turn {
        self.progress.note(End::Reset, format!("{call}: {error}"));
        Turn::Over
    }
}
