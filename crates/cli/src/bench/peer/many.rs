//! Many connections in one process, waited for by epoll: an echo, and a load of questions with answers of known length.

use super::orders::say;
use anyhow::{Context, Result, bail};
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Standard input, whose end ends the process.
const INPUT: Token = Token(usize::MAX - 1);
/// The echo's listening socket.
const LISTENER: Token = Token(usize::MAX - 2);
/// Events taken from the kernel at once.
const EVENTS: usize = 256;
/// Connections that may wait to be accepted; the kernel cuts it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// The longest question or answer.
const LONGEST: usize = 1024;
/// How long a load may see no answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(super) struct LoadArgs {
    /// Where to connect to
    addr: SocketAddr,
    /// Connections, each with one question under way
    #[arg(long)]
    connections: usize,
    /// Questions on each connection before the measurement
    #[arg(long, default_value_t = 0)]
    warm_up: u64,
    /// How long to measure
    #[arg(long, default_value_t = 0)]
    millis: u64,
    /// Said once beforehand on the first connection, answered by a line
    #[arg(long, default_value = "")]
    prepare: String,
    /// A question; \r and \n are understood here and in --prepare
    #[arg(long)]
    question: String,
    /// Bytes of its answer
    #[arg(long)]
    answer: usize,
}

/// What a load has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoadResult {
    /// Connections that are open.
    pub(crate) connections: usize,
    /// Questions answered in the measured time.
    pub(crate) answers: u64,
    /// The measured time in seconds.
    pub(crate) seconds: f64,
}

/// A poll that also tells when standard input ends.
fn poll_with_input() -> Result<Poll> {
    let poll = Poll::new()?;
    let input = io::stdin().as_raw_fd();
    poll.registry()
        .register(&mut SourceFd(&input), INPUT, Interest::READABLE)
        .context("standard input must be a pipe")?;
    Ok(poll)
}

/// Echoes whatever comes, on every connection. Says first where it listens.
pub(super) fn echo() -> Result<()> {
    let mut poll = poll_with_input()?;
    let mut listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    // A short queue makes a client that connects faster than this process is woken wait a second for its next try.
    rustix::net::listen(&listener, BACKLOG)?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    say(&listener.local_addr()?.to_string())?;
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    let mut events = Events::with_capacity(EVENTS);
    loop {
        wait(&mut poll, &mut events, None)?;
        for event in &events {
            match event.token() {
                INPUT => return Ok(()),
                LISTENER => accept(&poll, &listener, &mut connections)?,
                Token(number) => {
                    if let Some(connection) = connections.get_mut(number)
                        && !connection.as_mut().is_some_and(echo_all)
                    {
                        *connection = None;
                    }
                }
            }
        }
    }
}

fn accept(poll: &Poll, listener: &TcpListener, connections: &mut Vec<Option<TcpStream>>) -> io::Result<()> {
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nodelay(true)?;
                let token = Token(connections.len());
                poll.registry().register(&mut stream, token, Interest::READABLE)?;
                connections.push(Some(stream));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Sends back all there is; `false` when the connection is over. An echo is never longer than what the peer has asked
/// and not yet been answered, so it always finds room.
fn echo_all(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; LONGEST];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => {
                if stream.write_all(&bytes[..count]).is_err() {
                    return false;
                }
            }
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// Also through a stop: who takes turns with others is stopped again and again.
fn wait(poll: &mut Poll, events: &mut Events, limit: Option<Duration>) -> io::Result<()> {
    loop {
        match poll.poll(events, limit) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// One connection of a load.
struct Asker {
    stream: TcpStream,
    /// Bytes of the answer still to come.
    due: usize,
    /// Questions answered.
    answered: u64,
}

/// Connects, asks, says what came of it, and keeps the connections until standard input ends.
pub(super) fn load(args: &LoadArgs) -> Result<()> {
    if args.answer == 0 || args.answer > LONGEST {
        bail!("an answer has 1 to {LONGEST} bytes");
    }
    let mut load = Load::connect(args)?;
    if args.warm_up > 0 {
        load.run(Until::Each(args.warm_up))?;
    }
    let start = Instant::now();
    let before = load.answers;
    if args.millis > 0 {
        load.run(Until::Time(start + Duration::from_millis(args.millis)))?;
    }
    let result = LoadResult {
        connections: load.askers.len(),
        answers: load.answers - before,
        seconds: start.elapsed().as_secs_f64(),
    };
    say(&serde_json::to_string(&result)?)?;
    while !load.over {
        load.turn(None, |_| false)?;
    }
    Ok(())
}

/// When to stop asking.
#[derive(Clone, Copy)]
enum Until {
    /// Each connection has had that many answers.
    Each(u64),
    /// That time has come.
    Time(Instant),
}

struct Load {
    poll: Poll,
    events: Events,
    askers: Vec<Asker>,
    question: Vec<u8>,
    answer: usize,
    answers: u64,
    over: bool,
}

impl Load {
    fn connect(args: &LoadArgs) -> Result<Self> {
        let poll = poll_with_input()?;
        let mut askers = Vec::with_capacity(args.connections);
        for number in 0..args.connections {
            let mut stream = std::net::TcpStream::connect(args.addr).context("connecting")?;
            stream.set_nodelay(true)?;
            if number == 0 && !args.prepare.is_empty() {
                stream.write_all(&unescape(&args.prepare))?;
                let mut answer = [0; LONGEST];
                let mut count = 0;
                while !answer[..count].ends_with(b"\n") {
                    match stream.read(&mut answer[count..])? {
                        0 => bail!("the server did not like {:?}", args.prepare),
                        more => count += more,
                    }
                }
            }
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry()
                .register(&mut stream, Token(number), Interest::READABLE)?;
            askers.push(Asker {
                stream,
                due: 0,
                answered: 0,
            });
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS),
            askers,
            question: unescape(&args.question),
            answer: args.answer,
            answers: 0,
            over: false,
        })
    }

    /// Asks on every connection until `until`, and waits for the last answers.
    fn run(&mut self, until: Until) -> Result<()> {
        for asker in &mut self.askers {
            asker.stream.write_all(&self.question)?;
            asker.due = self.answer;
        }
        let goes_on = |asker: &Asker| match until {
            Until::Each(answers) => asker.answered < answers,
            Until::Time(end) => Instant::now() < end,
        };
        let mut asking = self.askers.len();
        while asking > 0 && !self.over {
            asking -= self.turn(Some(PATIENCE), goes_on)?;
        }
        Ok(())
    }

    /// Waits for events and deals with them. Connections that have their answer ask again as `goes_on` says; returns
    /// how many did not.
    fn turn(&mut self, limit: Option<Duration>, goes_on: impl Fn(&Asker) -> bool) -> Result<usize> {
        wait(&mut self.poll, &mut self.events, limit)?;
        if limit.is_some() && self.events.is_empty() {
            bail!("no answer for {} s", PATIENCE.as_secs());
        }
        let mut stopped = 0;
        let mut bytes = [0; LONGEST];
        for event in &self.events {
            let Token(number) = event.token();
            let Some(asker) = self.askers.get_mut(number) else {
                self.over |= event.token() == INPUT;
                continue;
            };
            // Edges are reported once, so it reads until there is nothing left.
            loop {
                match asker.stream.read(&mut bytes) {
                    Ok(0) => bail!("the server closed a connection"),
                    Ok(count) if count > asker.due => bail!("an answer is too long"),
                    Ok(count) => asker.due -= count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
                if asker.due > 0 {
                    continue;
                }
                asker.answered += 1;
                self.answers += 1;
                if goes_on(asker) {
                    asker.due = self.answer;
                    asker.stream.write_all(&self.question)?;
                } else {
                    stopped += 1;
                }
            }
        }
        Ok(stopped)
    }
}

fn unescape(text: &str) -> Vec<u8> {
    text.replace("\\r", "\r").replace("\\n", "\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_can_be_written() {
        assert_eq!(unescape("get k\\r\\n"), b"get k\r\n");
    }
}
