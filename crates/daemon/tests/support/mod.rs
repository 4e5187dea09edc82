//! Fake guests, processes under remote control, and hosts made of network namespaces.
#![allow(dead_code, unused_imports, reason = "every test file uses its own part")]
#![allow(unreachable_pub, reason = "one module of several test files")]

pub mod driver;
mod net;

pub use driver::Driver;
pub use net::{Host, link, nft, run, take_ticket, take_ticket_by};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with, sockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use viaduct_channel::Mapping;
use viaduct_control::message::{
    Body, Detach, Hello, Kind, MAX_PACKET, OFFER_CAME, OFFER_HAS_BELL, OFFER_HAS_TICKET, Offer, Packet, Pair, Query,
    Refuse, Stats, Welcome, Withdraw, decode, kind_of,
};
use viaduct_control::{PROTOCOL_VERSION, Reason, counters, runtime};

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough to believe that nothing comes.
pub const MOMENT: Duration = Duration::from_millis(150);

/// Whether this test can run; says so when not.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

/// A viaductd in a directory of its own.
#[derive(Debug)]
pub struct Daemon {
    pub child: Child,
    dir: TempDir,
}

impl Daemon {
    pub fn start(args: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), args)
    }

    pub fn start_in(dir: TempDir, args: &[&str]) -> Self {
        let command = command(dir.path(), args);
        Self::start_as(dir, command)
    }

    pub fn start_as(dir: TempDir, mut command: Command) -> Self {
        let child = command.spawn().unwrap();
        let daemon = Self { child, dir };
        until("viaductd listens", || connect(daemon.dir()).is_ok());
        daemon
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Kills viaductd without giving it time to clean up; its directory is returned.
    pub fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }

    pub fn exit_status(&mut self) -> ExitStatus {
        let mut status = None;
        until("viaductd exits", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub fn stats(&self) -> Stats {
        let socket = connect(self.dir()).unwrap();
        let query = Query {
            version: PROTOCOL_VERSION,
            reserved: 0,
        };
        send(&socket, Packet::new(&query).as_bytes(), &[]).unwrap();
        let (bytes, _) = receive(&socket, PATIENCE).unwrap().unwrap();
        decode(&bytes).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_viaductd"));
    // Settings of the machine or the user must not change what is tested.
    command.env("XDG_CONFIG_HOME", dir).env_remove(runtime::DIR_VARIABLE);
    command.env_remove("VIADUCT_CONFIG");
    command.arg("--dir").arg(dir).args(args);
    command
}

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn connect(dir: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(runtime::socket_path(dir))?)?;
    Ok(socket)
}

pub fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// The next packet; `None` if none comes in time.
pub fn receive(socket: &OwnedFd, patience: Duration) -> rustix::io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    if patience.is_zero() {
        flags |= RecvFlags::DONTWAIT;
    } else {
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(patience))?;
    }
    let mut bytes = vec![0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let len = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Err(rustix::io::Errno::AGAIN) => return Ok(None),
        outcome => outcome?.bytes,
    };
    bytes.truncate(len);
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    Ok(Some((bytes, descriptors)))
}

/// What viaductd says to a guest.
#[derive(Debug)]
pub enum Event {
    Pair(Pair, Vec<OwnedFd>),
    Refuse(u64, Reason, u32),
    HangUp,
    Nothing,
}

/// A connection to viaductd that says what a test wants.
#[derive(Debug)]
pub struct Guest {
    pub socket: OwnedFd,
    pub counters: Mapping,
    pub counters_fd: OwnedFd,
    pub welcome: Welcome,
    tickets: u32,
}

impl Guest {
    pub fn hello(dir: &Path) -> Self {
        let socket = connect(dir).unwrap();
        let (counters, counters_fd) =
            Mapping::create(c"viaduct-counters", counters::REGION_WORDS * size_of::<u64>()).unwrap();
        let hello = Hello {
            version: PROTOCOL_VERSION,
            pid: std::process::id(),
            program: [0; 64],
        };
        send(&socket, Packet::new(&hello).as_bytes(), &[counters_fd.as_fd()]).unwrap();
        let (bytes, _) = receive(&socket, PATIENCE).unwrap().expect("no welcome");
        Self {
            welcome: decode(&bytes).expect("no welcome"),
            socket,
            counters,
            counters_fd,
            // Apart from other processes', so that one's number is never by chance another's.
            tickets: std::process::id() * 100 % 60_000,
        }
    }

    /// What an honest guest offers: in ticket mode with a fresh ticket.
    pub fn honest_offer(&mut self, name: u64, end: &impl AsFd) -> Offer {
        let mut offer = Offer {
            offer: name,
            cookie: sockopt::socket_cookie(end).unwrap(),
            netns: net::netns_cookie(end),
            bell: 0,
            local: net::local(end).into(),
            remote: net::remote(end).into(),
            ticket_sequence: 0,
            flags: 0,
        };
        if self.welcome.nonce != 0 {
            self.tickets += 1;
            offer.ticket_sequence = self.tickets;
            if take_ticket(end, self.welcome.nonce, self.tickets).is_ok() {
                offer.flags |= OFFER_HAS_TICKET;
            }
        }
        offer
    }

    /// One that came from another process.
    pub fn offer_that_came(&mut self, name: u64, end: &impl AsFd) {
        let mut offer = self.honest_offer(name, end);
        offer.flags |= OFFER_CAME;
        self.send(&offer);
    }

    /// The same until it is matched: other tests start processes, which for a moment have a copy of every descriptor.
    pub fn offer_that_came_until_matched(&mut self, name: u64, end: &impl AsFd) -> Pair {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.offer_that_came(name, end);
            match self.event(PATIENCE) {
                Event::Pair(pair, _) => return pair,
                Event::Refuse(_, Reason::PassedOn, 1..) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => panic!("no pair but {other:?}"),
            }
        }
    }

    pub fn offer(&mut self, name: u64, end: &impl AsFd) {
        let offer = self.honest_offer(name, end);
        self.send(&offer);
    }

    pub fn offer_with_bell(&mut self, name: u64, end: &impl AsFd, bell: u64, eventfd: Option<&OwnedFd>) {
        let mut offer = self.honest_offer(name, end);
        offer.bell = bell;
        let descriptors: Vec<_> = eventfd.iter().map(|fd| fd.as_fd()).collect();
        if eventfd.is_some() {
            offer.flags |= OFFER_HAS_BELL;
        }
        send(&self.socket, Packet::new(&offer).as_bytes(), &descriptors).unwrap();
    }

    pub fn send<B: Body>(&self, body: &B) {
        send(&self.socket, Packet::new(body).as_bytes(), &[]).unwrap();
    }

    pub fn withdraw(&self, offer: u64) {
        self.send(&Withdraw { offer });
    }

    pub fn detach(&self, segment: u64) {
        self.send(&Detach { segment });
    }

    pub fn event(&self, patience: Duration) -> Event {
        let (bytes, descriptors) = match receive(&self.socket, patience) {
            Ok(Some((bytes, _))) if bytes.is_empty() => return Event::HangUp,
            Ok(Some(received)) => received,
            Ok(None) => return Event::Nothing,
            Err(_) => return Event::HangUp,
        };
        match kind_of(&bytes) {
            Some(Kind::Pair) => Event::Pair(decode(&bytes).unwrap(), descriptors),
            Some(Kind::Refuse) => {
                let refuse: Refuse = decode(&bytes).unwrap();
                let reason = u16::try_from(refuse.reason).ok().and_then(Reason::from_number);
                Event::Refuse(refuse.offer, reason.unwrap(), refuse.retry_ms)
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    pub fn expect_pair(&self) -> (Pair, Vec<OwnedFd>) {
        match self.event(PATIENCE) {
            Event::Pair(pair, descriptors) => (pair, descriptors),
            other => panic!("no pair but {other:?}"),
        }
    }

    pub fn expect_refusal(&self) -> (u64, Reason, u32) {
        match self.event(PATIENCE) {
            Event::Refuse(offer, reason, retry_ms) => (offer, reason, retry_ms),
            other => panic!("no refusal but {other:?}"),
        }
    }

    pub fn expect_nothing(&self) {
        let event = self.event(MOMENT);
        assert!(matches!(event, Event::Nothing), "{event:?}");
    }

    pub fn expect_hang_up(&self) {
        let event = self.event(PATIENCE);
        assert!(matches!(event, Event::HangUp), "{event:?}");
    }

    pub fn mail(&self) -> u64 {
        self.counters.words()[counters::MAIL].load(Ordering::Acquire)
    }
}

/// A listener on loopback.
pub fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// Both ends of a new connection: the opener's and the accepter's.
pub fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let opener = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (opener, listener.accept().unwrap().0)
}

/// Name of the file behind a descriptor.
pub fn file_of(fd: &impl AsFd) -> String {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    std::fs::read_link(path).unwrap().to_string_lossy().into_owned()
}
