//! The work-horse of the fault and switch tests: a program that checks every byte it receives. It calls the C library's
//! socket functions only, so that it can be accelerated like any other program.
#![forbid(unsafe_code)]

mod blocking;
mod calls;
mod events;
mod options;
mod stream;

use clap::Parser;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, SndBuf};
use options::{Common, Mode, Options, Role};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use stream::{End, Hello, Progress};
use viaduct_testkit::pattern::Random;

/// What all connections of the program share.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) common: Common,
    watched: Mutex<Vec<Arc<Progress>>>,
    /// Exit when this many connections have ended; 0: never.
    accept: u64,
    ended: AtomicU64,
    worst: AtomicU8,
}

impl Peer {
    fn new(common: Common, accept: u64) -> Arc<Self> {
        Arc::new(Self {
            common,
            watched: Mutex::default(),
            accept,
            ended: AtomicU64::new(0),
            worst: AtomicU8::new(0),
        })
    }

    /// Has the watchdog look at a new connection.
    pub(crate) fn watch(&self, seed: u64) -> Arc<Progress> {
        let progress = Arc::new(Progress::new(seed));
        let mut watched = self.watched.lock().unwrap();
        watched.retain(|known| !known.is_done());
        watched.push(Arc::clone(&progress));
        progress
    }

    /// Reports a connection that has ended.
    pub(crate) fn finished(&self, progress: &Progress) {
        if let Some(end) = progress.report() {
            self.worst.fetch_max(exit_status(end), Ordering::Relaxed);
            if self.ended.fetch_add(1, Ordering::Relaxed) + 1 == self.accept {
                std::process::exit(self.status().into());
            }
        }
    }

    /// A connection began with bytes that no peer sends.
    pub(crate) fn nonsense(&self) {
        print_line(r#"{"seed":0,"sent":0,"received":0,"end":"wrong","detail":"hello"}"#);
        self.worst.fetch_max(exit_status(End::Wrong), Ordering::Relaxed);
    }

    fn status(&self) -> u8 {
        self.worst.load(Ordering::Relaxed)
    }

    /// Ends the program if a connection makes no progress.
    fn watchdog(&self) {
        let idle = Duration::from_millis(self.common.idle_ms);
        let mut seen: Vec<(u64, u64, Instant)> = Vec::new();
        loop {
            thread::sleep(idle / 20);
            let watched = self.watched.lock().unwrap().clone();
            let now = Instant::now();
            let before = std::mem::take(&mut seen);
            for progress in watched.iter().filter(|progress| !progress.is_done()) {
                let total = progress.sent.load(Ordering::Relaxed) + progress.received.load(Ordering::Relaxed);
                let since = before
                    .iter()
                    .find(|(seed, known, _)| *seed == progress.seed && *known == total)
                    .map_or(now, |(_, _, since)| *since);
                if now - since > idle + Duration::from_millis(self.common.hold_ms) {
                    progress.note(End::Stuck, format!("no byte for {idle:?}"));
                    progress.report();
                    std::process::exit(exit_status(End::Stuck).into());
                }
                seen.push((progress.seed, total, since));
            }
        }
    }
}

fn exit_status(end: End) -> u8 {
    match end {
        End::Eof => 0,
        End::Wrong => 2,
        End::Short | End::Reset => 3,
        End::Stuck => 4,
    }
}

/// Prints a whole line at once, because several threads do; who does not listen is no reason to fail.
pub(crate) fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes());
    let _ = out.flush();
}

/// Has a socket, or those that it accepts, hold so little; 0: what it holds by itself.
fn limit(socket: &impl AsFd, bytes: usize) -> std::io::Result<()> {
    if bytes != 0 {
        setsockopt(socket, SndBuf, &bytes)?;
        setsockopt(socket, RcvBuf, &bytes)?;
    }
    Ok(())
}

fn open(
    address: SocketAddr,
    mut hello: Hello,
    connections: u64,
    peer: &Peer,
) -> std::io::Result<Vec<(TcpStream, Hello)>> {
    let mut seeds = Random::new(hello.seed);
    (0..connections)
        .map(|_| {
            hello.seed = seeds.number();
            let stream = TcpStream::connect(address)?;
            limit(&stream, peer.common.buffer)?;
            Ok((stream, hello))
        })
        .collect()
}

fn main() -> ExitCode {
    let outcome = match Options::parse().role {
        Role::Listen {
            address,
            accept,
            common,
        } => listen(address, &Peer::new(common, accept)),
        Role::Connect {
            address,
            connections,
            bytes,
            seconds,
            direction,
            common,
        } => {
            let hello = Hello {
                seed: common.seed,
                bytes,
                micros: u64::try_from(Duration::from_secs_f64(seconds).as_micros()).unwrap_or(u64::MAX),
                direction,
            };
            connect(address, hello, connections, &Peer::new(common, 0))
        }
    };
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("viaduct-testpeer: {error}");
            ExitCode::from(1)
        }
    }
}

fn start_watchdog(peer: &Arc<Peer>) {
    let peer = Arc::clone(peer);
    thread::spawn(move || peer.watchdog());
}

fn listen(address: SocketAddr, peer: &Arc<Peer>) -> std::io::Result<u8> {
    let listener = TcpListener::bind(address)?;
    limit(&listener, peer.common.buffer)?;
    print_line(&format!(r#"{{"listening":"{}"}}"#, listener.local_addr()?));
    start_watchdog(peer);
    match peer.common.mode {
        Mode::Blocking => blocking::listen(peer, &listener)?,
        _ => events::run(peer, Some(&listener), Vec::new())?,
    }
    Ok(peer.status())
}

fn connect(address: SocketAddr, hello: Hello, connections: u64, peer: &Arc<Peer>) -> std::io::Result<u8> {
    let streams = open(address, hello, connections, peer)?;
    start_watchdog(peer);
    match peer.common.mode {
        Mode::Blocking => blocking::connect(peer, streams),
        _ => events::run(peer, None, streams)?,
    }
    Ok(peer.status())
}
