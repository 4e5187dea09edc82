//! A process under remote control: another user, another namespace, a process number of its own.
//!
//! It is this very test program, told by an environment variable to run [`driver`], which obeys one line after the
//! other.

use super::net::{self, forged, take_ticket};
use super::{Event, Guest};
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use viaduct_control::message::{OFFER_HAS_TICKET, Offer, PAIR_BELL_IS_OUTER, PAIR_HAS_OWN_OUTER, PAIR_IS_RUNG_OUTSIDE};

const VARIABLE: &str = "VIADUCT_TEST_DRIVER";

/// The other process.
#[derive(Debug)]
pub struct Driver {
    child: Child,
    wire: BufReader<UnixStream>,
}

impl Driver {
    pub fn new() -> Self {
        Self::started_by(Command::new("/proc/self/exe"))
    }

    /// Started by another program, which gets this program's name and arguments after its own.
    pub fn within(program: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args).arg(std::env::current_exe().unwrap());
        Self::started_by(command)
    }

    fn started_by(mut command: Command) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = command
            .args(["--exact", "support::driver::driver", "--test-threads=1", "--nocapture"])
            .env(VARIABLE, "1")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        ours.set_read_timeout(Some(super::PATIENCE)).unwrap();
        Self {
            child,
            wire: BufReader::new(ours),
        }
    }

    /// In a namespace, as a user.
    pub fn at(netns: Option<&str>, user: Option<u32>) -> Self {
        let mut driver = Self::new();
        if let Some(netns) = netns {
            driver.ask(&format!("netns {netns}"));
        }
        if let Some(user) = user {
            driver.ask(&format!("user {user}"));
        }
        driver
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order and returns the answer.
    pub fn ask(&mut self, order: &str) -> String {
        writeln!(self.wire.get_mut(), "{order}").unwrap();
        let mut answer = String::new();
        self.wire.read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "the driver failed at {order}");
        answer.trim_end().to_owned()
    }

    pub fn hello(&mut self, dir: &Path) -> String {
        self.ask(&format!("hello {}", dir.display()))
    }

    /// The next word from viaductd, within what [`super::PATIENCE`] allows.
    pub fn event(&mut self) -> String {
        self.ask("event 8000")
    }

    pub fn expect(&mut self, beginning: &str) -> String {
        let event = self.event();
        assert!(event.starts_with(beginning), "{event}, not {beginning}");
        event
    }

    pub fn expect_nothing(&mut self) {
        assert_eq!(self.ask("event 150"), "nothing");
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects `client` to `server`, which listens at `at`; `to` is what the client dials. Both get a new end.
pub fn join(server: &mut Driver, at: &str, client: &mut Driver, to: &str) {
    server.ask(&format!("listen {at}"));
    client.ask(&format!("connect {to}"));
    server.ask("accept");
}

#[test]
fn driver() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let wire = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut answers = wire.try_clone().unwrap();
    let mut state = State::default();
    for order in BufReader::new(wire).lines() {
        let order = order.unwrap();
        let words: Vec<&str> = order.split(' ').collect();
        let answer = state.obey(&words);
        writeln!(answers, "{answer}").unwrap();
    }
}

/// How many bytes have come.
fn received(socket: &OwnedFd) -> String {
    match rustix::net::recv(socket, &mut [0; 16], RecvFlags::DONTWAIT) {
        Ok((count, _)) => count.to_string(),
        Err(error) => format!("error {error}"),
    }
}

#[derive(Default)]
struct State {
    guest: Option<Guest>,
    listener: Option<TcpListener>,
    ends: Vec<TcpStream>,
    offer: Option<Offer>,
    eventfds: Vec<OwnedFd>,
    /// What came with the last pair, but for the own outer bell, which stays.
    descriptors: Vec<OwnedFd>,
    outer: Option<OwnedFd>,
    /// What all names of this viaductd have in common.
    names: u64,
}

impl State {
    fn obey(&mut self, words: &[&str]) -> String {
        match *words {
            ["netns", name] => {
                let file = std::fs::File::open(format!("/run/netns/{name}")).unwrap();
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                "done".to_owned()
            }
            ["user", user] => {
                let (user, group) = (user.parse().unwrap(), user.parse().unwrap());
                let (user, group) = (
                    rustix::process::Uid::from_raw(user),
                    rustix::process::Gid::from_raw(group),
                );
                rustix::thread::set_thread_groups(&[]).unwrap();
                rustix::thread::set_thread_res_gid(group, group, group).unwrap();
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                "done".to_owned()
            }
            ["hello", dir] => {
                let guest = Guest::hello(Path::new(dir));
                let answer = format!("{} {}", guest.welcome.mode, guest.welcome.nonce);
                self.guest = Some(guest);
                answer
            }
            ["listen", at] => {
                let listener = TcpListener::bind(at).unwrap();
                let address = listener.local_addr().unwrap().to_string();
                self.listener = Some(listener);
                address
            }
            ["connect", to] => match TcpStream::connect(to) {
                Ok(end) => self.keep(end),
                Err(error) => format!("error {error}"),
            },
            ["dial", local, remote] => match net::dial(local.parse().unwrap(), remote.parse().unwrap()) {
                Ok(end) => self.keep(end),
                Err(error) => format!("error {error}"),
            },
            ["accept"] => {
                let end = self.listener.as_ref().unwrap().accept().unwrap().0;
                self.keep(end)
            }
            ["forge", local, remote, sent, received] => {
                let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
                let end = forged(local, remote, sent.parse().unwrap(), received.parse().unwrap()).unwrap();
                let _ = self.keep(end);
                let (sent, received) = net::repaired(self.ends.last().unwrap()).unwrap();
                format!("{sent} {received}")
            }
            ["close", end] => {
                drop(self.ends.remove(end.parse().unwrap()));
                "done".to_owned()
            }
            ["address", end] => net::local(&self.ends[end.parse::<usize>().unwrap()]).to_string(),
            ["cookie", end] => rustix::net::sockopt::socket_cookie(&self.ends[end.parse::<usize>().unwrap()])
                .unwrap()
                .to_string(),
            ["repaired", end] => {
                let (sent, received) = net::repaired(&self.ends[end.parse::<usize>().unwrap()]).unwrap();
                format!("{sent} {received}")
            }
            ["ticket", end, nonce, sequence] => {
                let end = &self.ends[end.parse::<usize>().unwrap()];
                match take_ticket(end, nonce.parse().unwrap(), sequence.parse().unwrap()) {
                    Ok(()) => "taken".to_owned(),
                    Err(error) => format!("error {error}"),
                }
            }
            ["offer", end, name, ref lies @ ..] => self.offer(end, name, lies),
            ["again"] => {
                self.guest.as_ref().unwrap().send(&self.offer.unwrap());
                "done".to_owned()
            }
            ["detach", segment] => {
                let segment = self.names | segment.parse::<u64>().unwrap();
                self.guest.as_ref().unwrap().detach(segment);
                "done".to_owned()
            }
            ["ring"] => {
                match rustix::net::send(&self.descriptors[1], &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                    Ok(_) => "done".to_owned(),
                    Err(error) => format!("error {error}"),
                }
            }
            ["answer"] => match rustix::net::send(
                self.outer.as_ref().unwrap(),
                &[1],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(_) => "done".to_owned(),
                Err(error) => format!("error {error}"),
            },
            ["silence"] => received(&self.descriptors[1]),
            ["heard"] => received(self.outer.as_ref().unwrap()),
            ["break"] => {
                rustix::net::shutdown(&self.descriptors[1], Shutdown::Both).unwrap();
                "done".to_owned()
            }
            ["event", ms] => self.event(Duration::from_millis(ms.parse().unwrap())),
            _ => panic!("no such order: {words:?}"),
        }
    }

    fn keep(&mut self, end: TcpStream) -> String {
        self.ends.push(end);
        (self.ends.len() - 1).to_string()
    }

    /// Offers an end honestly but for the `lies`, which replace what they name.
    fn offer(&mut self, end: &str, name: &str, lies: &[&str]) -> String {
        let guest = self.guest.as_mut().unwrap();
        let end = &self.ends[end.parse::<usize>().unwrap()];
        if let ["bell", number] = *lies {
            let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
            guest.offer_with_bell(name.parse().unwrap(), end, number.parse().unwrap(), Some(&eventfd));
            self.eventfds.push(eventfd);
            return "done".to_owned();
        }
        let mut offer = guest.honest_offer(name.parse().unwrap(), end);
        for lie in lies {
            match lie.split_once('=').unwrap() {
                ("local", address) => offer.local = address.parse::<std::net::SocketAddr>().unwrap().into(),
                ("remote", address) => offer.remote = address.parse::<std::net::SocketAddr>().unwrap().into(),
                ("cookie", cookie) => offer.cookie = cookie.parse().unwrap(),
                ("sequence", sequence) => {
                    offer.ticket_sequence = sequence.parse().unwrap();
                    offer.flags |= OFFER_HAS_TICKET;
                }
                other => panic!("no such lie: {other:?}"),
            }
        }
        guest.send(&offer);
        self.offer = Some(offer);
        offer.ticket_sequence.to_string()
    }

    fn event(&mut self, patience: Duration) -> String {
        let number = |name: u64| name & u64::from(u32::MAX);
        match self.guest.as_ref().unwrap().event(patience) {
            Event::Pair(pair, mut descriptors) => {
                self.names = pair.segment - number(pair.segment);
                let count = descriptors.len();
                if pair.flags & PAIR_HAS_OWN_OUTER != 0 {
                    self.outer = descriptors.pop();
                }
                self.descriptors = descriptors;
                let outer = |flag| if pair.flags & flag == 0 { "" } else { "outer " };
                format!(
                    "pair {} segment {} side {} {}bell {} peer {} {} descriptors {count} rung by {}bell {}",
                    pair.offer,
                    number(pair.segment),
                    pair.side,
                    outer(PAIR_BELL_IS_OUTER),
                    number(pair.bell),
                    pair.peer_pid,
                    pair.peer_uid,
                    outer(PAIR_IS_RUNG_OUTSIDE),
                    pair.own_bell
                )
            }
            Event::Refuse(offer, reason, retry_ms) => format!("refuse {offer} {} {retry_ms}", reason.code()),
            Event::HangUp => "hang-up".to_owned(),
            Event::Nothing => "nothing".to_owned(),
        }
    }
}
