//! Processes that want what is not theirs, or want too much.

mod support;

use rustix::event::{EventfdFlags, eventfd};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Stdio;
use std::time::Duration;
use support::driver::join;
use support::{
    Daemon, Driver, Event, Guest, Host, command, connect, connection, is_root, link, listener, receive, send, until,
};
use viaduct_channel::Mapping;
use viaduct_control::message::{
    Detach, Hello, Kind, MODE_TICKET, Offer, Packet, Refuse, Welcome, Withdraw, decode, kind_of,
};
use viaduct_control::{PROTOCOL_VERSION, Reason, counters};

const NOBODY: Option<u32> = Some(65534);

/// A viaductd with tickets, a victim that is root and whose peer does not offer itself, and their connection.
struct Scene {
    daemon: Daemon,
    victim: Driver,
    peer: Driver,
    at: String,
}

impl Scene {
    fn new() -> Option<Self> {
        if !is_root() {
            return None;
        }
        let daemon = Daemon::start(&[]);
        assert_eq!(daemon.stats().mode, MODE_TICKET);
        let (mut victim, mut peer) = (Driver::new(), Driver::new());
        victim.hello(daemon.dir());
        peer.hello(daemon.dir());
        let at = victim.ask("listen 127.0.0.1:0");
        peer.ask(&format!("connect {at}"));
        victim.ask("accept");
        Some(Self {
            daemon,
            victim,
            peer,
            at,
        })
    }

    /// The victim and its peer still find each other, so what the attacker did had no effect.
    fn still_works(mut self, waiting: &str) {
        self.peer.ask("offer 0 1");
        self.peer.expect("pair 1");
        self.victim.expect(&format!("pair {waiting} segment"));
    }
}

fn attacker(daemon: &Daemon) -> Driver {
    let mut attacker = Driver::at(None, NOBODY);
    attacker.hello(daemon.dir());
    attacker
}

#[test]
fn the_addresses_of_anothers_connection_get_nothing() {
    let Some(mut scene) = Scene::new() else { return };
    scene.victim.ask("offer 0 1");
    let mut attacker = attacker(&scene.daemon);
    attacker.ask(&format!("connect {}", scene.at));
    let peer = scene.peer.ask("address 0");
    // With a true ticket for a connection of its own.
    attacker.ask(&format!("offer 0 1 local={peer} remote={}", scene.at));
    attacker.expect_nothing();
    // And with none.
    attacker.ask(&format!("offer 0 2 local={peer} remote={} sequence=9", scene.at));
    attacker.expect("refuse 2 no-ticket");
    scene.victim.expect_nothing();
    scene.still_works("1");
}

#[test]
fn anothers_socket_cookie_gets_nothing() {
    let Some(mut scene) = Scene::new() else { return };
    scene.victim.ask("offer 0 1");
    let cookie = scene.peer.ask("cookie 0");
    let mut attacker = attacker(&scene.daemon);
    attacker.ask(&format!("connect {}", scene.at));
    attacker.ask(&format!("offer 0 1 cookie={cookie}"));
    attacker.expect_nothing();
    scene.victim.expect_nothing();
    scene.still_works("1");
}

#[test]
fn a_ticket_serves_once_and_its_taker_only() {
    let Some(mut scene) = Scene::new() else { return };
    let nonce = scene
        .victim
        .hello(scene.daemon.dir())
        .split(' ')
        .nth(1)
        .unwrap()
        .to_owned();
    assert_eq!(scene.victim.ask(&format!("ticket 0 {nonce} 77")), "taken");
    let mut attacker = attacker(&scene.daemon);
    attacker.ask(&format!("connect {}", scene.at));
    attacker.ask("offer 0 1 sequence=77");
    attacker.expect("refuse 1 no-ticket");
    assert!(
        attacker.ask(&format!("ticket 0 {nonce} 78")).starts_with("error"),
        "a stolen nonce"
    );

    attacker.ask("offer 0 2");
    attacker.expect_nothing();
    attacker.ask("again");
    attacker.expect("refuse 2 no-ticket");
    let sequence = scene.victim.ask("offer 0 1");
    attacker.ask(&format!("offer 0 3 sequence={sequence}"));
    attacker.expect("refuse 3 no-ticket");
    scene.still_works("1");
}

/// In a namespace of one's own one may make a socket that shows any sequence numbers. The kernel gives it no ticket.
#[test]
fn forged_sequence_numbers_get_no_ticket() {
    let Some(mut scene) = Scene::new() else { return };
    scene.victim.ask("offer 0 1");
    // The peer's own next numbers are what a forger must show; there has been no data.
    let numbers = scene.peer.ask("repaired 0");
    let own_host = Host::new();
    let mut forger = Driver::at(Some(&own_host.name), None);
    let nonce = forger.hello(scene.daemon.dir()).split(' ').nth(1).unwrap().to_owned();
    let peer = scene.peer.ask("address 0");
    assert_eq!(forger.ask(&format!("forge {peer} {} {numbers}", scene.at)), numbers);
    assert!(forger.ask(&format!("ticket 0 {nonce} 5")).starts_with("error"));
    forger.ask("offer 0 1 sequence=5");
    forger.expect("refuse 1 no-ticket");
    scene.victim.expect_nothing();
}

#[test]
fn same_user_mode_turns_other_users_away() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&["--same-user"]);
    let (mut victim, mut peer, mut thief) = (Driver::new(), Driver::new(), Driver::at(None, NOBODY));
    for guest in [&mut victim, &mut peer, &mut thief] {
        guest.hello(daemon.dir());
    }
    let at = victim.ask("listen 127.0.0.1:0");
    peer.ask(&format!("connect {at}"));
    victim.ask("accept");
    thief.ask(&format!("connect {at}"));
    let (peer_at, cookie) = (peer.ask("address 0"), peer.ask("cookie 0"));
    victim.ask("offer 0 1");
    thief.ask(&format!("offer 0 1 local={peer_at} remote={at} cookie={cookie}"));
    thief.expect_nothing();
    victim.expect_nothing();
    peer.ask("offer 0 1");
    victim.expect("pair 1");
    peer.expect("pair 1");
}

fn start() -> Daemon {
    Daemon::start(&["--same-user"])
}

#[test]
fn nonsense_is_answered_by_hanging_up_and_hurts_nobody_else() {
    let daemon = start();
    let mut bystander = Guest::hello(daemon.dir());
    let welcome = Packet::new(&Welcome {
        version: 1,
        mode: 1,
        nonce: 1,
        reserved: 0,
        instance: 0,
    });
    let long = [0; 1000];
    let offer = Packet::new(&offer());
    let nonsense: [&[u8]; 5] = [&[1], &[0; 256], &long, &offer.as_bytes()[..20], welcome.as_bytes()];
    for bytes in nonsense {
        let guest = Guest::hello(daemon.dir());
        send(&guest.socket, bytes, &[]).unwrap();
        guest.expect_hang_up();
    }
    let (opener, accepter) = connection(&listener());
    bystander.offer(1, &opener);
    bystander.offer(2, &accepter);
    bystander.expect_pair();
}

fn offer() -> Offer {
    let guestless: std::net::SocketAddr = "127.0.0.1:1".parse().unwrap();
    Offer {
        offer: 1,
        cookie: 1,
        netns: 1,
        bell: 0,
        local: guestless.into(),
        remote: guestless.into(),
        ticket_sequence: 0,
        flags: 0,
    }
}

#[test]
fn an_offer_before_the_hello_is_a_violation() {
    let daemon = start();
    let socket = connect(daemon.dir()).unwrap();
    send(&socket, Packet::new(&offer()).as_bytes(), &[]).unwrap();
    assert!(receive(&socket, support::PATIENCE).is_ok_and(|packet| packet.is_some_and(|(bytes, _)| bytes.is_empty())));
}

/// Well-formed packets with senseless contents, from several processes at once.
#[test]
fn noise_does_no_harm() {
    let daemon = start();
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut guests: Vec<Guest> = (0..4).map(|_| Guest::hello(daemon.dir())).collect();
    let mut names = 0;
    for _ in 0..20_000 {
        let number = usize::try_from(random() % 4).unwrap();
        // Small numbers, so that offers meet, replace and mirror each other.
        let address =
            |number: u64| std::net::SocketAddr::from(([127, 0, 0, 1], 1 + u16::try_from(number % 3).unwrap()));
        let packet = match random() % 8 {
            0 => Packet::new(&Withdraw { offer: random() % 50 }),
            1 => Packet::new(&Detach {
                segment: names | (random() % 100),
            }),
            _ => Packet::new(&Offer {
                offer: random() % 50,
                cookie: random() % 4,
                netns: random() % 2,
                bell: random() % 3,
                local: address(random()).into(),
                remote: address(random()).into(),
                ticket_sequence: u32::try_from(random() % 9).unwrap(),
                flags: u32::try_from(random() % 4).unwrap(),
            }),
        };
        if send(&guests[number].socket, packet.as_bytes(), &[]).is_err() || random() % 500 == 0 {
            guests[number] = Guest::hello(daemon.dir());
        }
        loop {
            match guests[number].event(Duration::ZERO) {
                Event::Nothing | Event::HangUp => break,
                Event::Pair(pair, _) => names = pair.segment & !u64::from(u32::MAX),
                Event::Refuse(..) => {}
            }
        }
    }
    drop(guests);
    until("all is given back", || {
        let stats = daemon.stats();
        (
            stats.processes,
            stats.segments,
            stats.segment_bytes,
            stats.offers_waiting,
        ) == (0, 0, 0, 0)
    });
    assert!(daemon.stats().pairs > 100);
}

fn hello(version: u32) -> Packet {
    Packet::new(&Hello {
        version,
        pid: 1,
        program: [0; 64],
    })
}

#[test]
fn another_version_is_told_ours_and_let_go() {
    let daemon = start();
    let socket = connect(daemon.dir()).unwrap();
    let bytes = counters::REGION_WORDS * size_of::<u64>();
    let (_region, fd) = Mapping::create(c"viaduct-counters", bytes).unwrap();
    send(&socket, hello(PROTOCOL_VERSION + 1).as_bytes(), &[fd.as_fd()]).unwrap();
    let (bytes, _) = receive(&socket, support::PATIENCE).unwrap().unwrap();
    assert_eq!(kind_of(&bytes), Some(Kind::Welcome));
    assert_eq!(decode::<Welcome>(&bytes).unwrap().version, PROTOCOL_VERSION);
    assert!(receive(&socket, support::PATIENCE).unwrap().unwrap().0.is_empty());
}

#[test]
fn counters_that_could_fault_are_not_mapped() {
    let daemon = start();
    let bytes = counters::REGION_WORDS * size_of::<u64>();
    let unsealed = rustix::fs::memfd_create(c"viaduct-counters", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, bytes as u64).unwrap();
    let (_short, short) = Mapping::create(c"viaduct-counters", bytes - 4096).unwrap();
    let file: std::os::fd::OwnedFd = tempfile::tempfile().unwrap().into();
    rustix::fs::ftruncate(&file, bytes as u64).unwrap();
    let bell = eventfd(0, EventfdFlags::empty()).unwrap();
    for region in [Some(&unsealed), Some(&short), Some(&file), Some(&bell), None] {
        let socket = connect(daemon.dir()).unwrap();
        let descriptors: Vec<_> = region.iter().map(|fd| fd.as_fd()).collect();
        send(&socket, hello(PROTOCOL_VERSION).as_bytes(), &descriptors).unwrap();
        let answer = receive(&socket, support::PATIENCE);
        assert!(
            answer.is_ok_and(|packet| packet.is_some_and(|(bytes, _)| bytes.is_empty())),
            "{region:?}"
        );
    }
    assert_eq!(daemon.stats().processes, 0);
}

/// A process that never reads is dropped before it costs much; others are served all the while.
#[test]
fn a_process_that_reads_no_mail_is_dropped() {
    let daemon = start();
    let mut lazy = Guest::hello(daemon.dir());
    let (opener, _accepter) = connection(&listener());
    let template = lazy.honest_offer(1, &opener);
    rustix::net::sockopt::set_socket_timeout(
        &lazy.socket,
        rustix::net::sockopt::Timeout::Send,
        Some(Duration::from_secs(1)),
    )
    .unwrap();
    // Each offer is refused at once, because it is its own mirror.
    let selfish = Offer {
        remote: template.local,
        ..template
    };
    let dropped = (0..20_000).any(|_| send(&lazy.socket, Packet::new(&selfish).as_bytes(), &[]).is_err());
    assert!(dropped);
    let mut other = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    other.offer(1, &opener);
    other.offer(2, &accepter);
    other.expect_pair();
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").trim().parse().unwrap();
    assert!(kib < 32 << 10, "{kib} KiB resident");
}

#[test]
fn a_user_may_connect_so_many_processes_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, "[daemon]\nprocesses_per_user = 3\n").unwrap();
    let daemon = Daemon::start(&["--same-user", "--config", file.to_str().unwrap()]);
    let guests: Vec<Guest> = (0..3).map(|_| Guest::hello(daemon.dir())).collect();
    let bytes = counters::REGION_WORDS * size_of::<u64>();
    let (_region, fd) = Mapping::create(c"viaduct-counters", bytes).unwrap();
    let answer = || {
        let socket = connect(daemon.dir()).unwrap();
        send(&socket, hello(PROTOCOL_VERSION).as_bytes(), &[fd.as_fd()]).unwrap();
        let (bytes, _) = receive(&socket, support::PATIENCE).unwrap().unwrap();
        (socket, bytes)
    };
    for _ in 0..10 {
        let (fourth, refusal) = answer();
        let refusal = decode::<Refuse>(&refusal).unwrap();
        assert_eq!((refusal.offer, refusal.reason()), (0, Some(Reason::LimitProcesses)));
        assert!(receive(&fourth, support::PATIENCE).unwrap().unwrap().0.is_empty());
        // The command line is answered all the same.
        assert_eq!(daemon.stats().processes, 3);
    }
    drop(guests);
    until("there is room again", || kind_of(&answer().1) == Some(Kind::Welcome));
}

/// Connections that say nothing are bounded as well.
#[test]
fn a_user_may_hold_so_many_silent_connections_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, "[daemon]\nprocesses_per_user = 3\n").unwrap();
    let daemon = Daemon::start(&["--same-user", "--config", file.to_str().unwrap()]);
    let silent: Vec<_> = (0..6).map(|_| connect(daemon.dir()).unwrap()).collect();
    let seventh = connect(daemon.dir()).unwrap();
    assert!(receive(&seventh, support::PATIENCE).unwrap().unwrap().0.is_empty());
    assert!(receive(&silent[0], Duration::from_millis(20)).unwrap().is_none());
    drop(silent);
    until("there is room again", || {
        let socket = connect(daemon.dir()).unwrap();
        matches!(receive(&socket, Duration::from_millis(20)), Ok(None))
    });
}

/// A program in a loop, or one that is started again and again, is not to fill the disk.
#[test]
fn who_is_let_go_again_and_again_is_told_of_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, "[daemon]\nprocesses_per_user = 2\n").unwrap();
    let options = ["--same-user", "--log", "info", "--config", file.to_str().unwrap()];
    let mut viaductd = command(dir.path(), &options);
    viaductd.stderr(Stdio::piped());
    let mut daemon = Daemon::start_as(dir, viaductd);
    let let_go = |packet: &[u8], files: &[BorrowedFd<'_>]| {
        let socket = connect(daemon.dir()).unwrap();
        send(&socket, packet, files).unwrap();
        while receive(&socket, support::PATIENCE).is_ok_and(|packet| !packet.unwrap().0.is_empty()) {}
    };
    let (_region, region) = Mapping::create(c"viaduct-counters", counters::REGION_WORDS * size_of::<u64>()).unwrap();
    let full: Vec<Guest> = (0..2).map(|_| Guest::hello(daemon.dir())).collect();
    for _ in 0..20 {
        let_go(&[1], &[]);
        let_go(hello(PROTOCOL_VERSION + 1).as_bytes(), &[region.as_fd()]);
        let_go(hello(PROTOCOL_VERSION).as_bytes(), &[region.as_fd()]);
    }
    let silent: Vec<_> = (0..2).map(|_| connect(daemon.dir()).unwrap()).collect();
    for _ in 0..20 {
        let socket = connect(daemon.dir()).unwrap();
        assert!(receive(&socket, support::PATIENCE).unwrap().unwrap().0.is_empty());
    }
    drop((full, silent));
    daemon.child.kill().unwrap();
    let mut said = String::new();
    daemon.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    for what in [
        "a malformed packet",
        "another version",
        "too many processes",
        "too many connections",
    ] {
        assert_eq!(said.matches(what).count(), 1, "{what}: {said}");
    }
}

#[test]
fn offers_that_wait_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, "[daemon]\noffers_per_user = 2\n").unwrap();
    let daemon = Daemon::start(&["--same-user", "--config", file.to_str().unwrap()]);
    let mut guest = Guest::hello(daemon.dir());
    let listener = listener();
    let ends: Vec<_> = (0..3).map(|_| connection(&listener)).collect();
    for (number, (opener, _)) in ends.iter().enumerate() {
        guest.offer(number as u64, opener);
    }
    assert_eq!(guest.expect_refusal(), (2, Reason::LimitOffers, 5000));
    assert!(matches!(guest.event(support::MOMENT), Event::Nothing));
}

#[test]
fn a_third_process_on_the_connections_host_gets_nothing() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let (a, b) = (Host::new(), Host::new());
    link((&a, "eth0", "10.9.0.1/24"), (&b, "eth0", "10.9.0.2/24"));
    let mut server = Driver::at(Some(&a.name), None);
    let mut client = Driver::at(Some(&b.name), None);
    let mut thief = Driver::at(Some(&b.name), NOBODY);
    for guest in [&mut server, &mut client, &mut thief] {
        guest.hello(daemon.dir());
    }
    join(&mut server, "10.9.0.1:80", &mut client, "10.9.0.1:80");
    server.ask("offer 0 1");
    let (address, cookie) = (client.ask("address 0"), client.ask("cookie 0"));
    thief.ask("connect 10.9.0.1:80");
    thief.ask(&format!("offer 0 1 local={address} remote=10.9.0.1:80 cookie={cookie}"));
    thief.expect_nothing();
    server.expect_nothing();
    client.ask("offer 0 1");
    client.expect("pair 1");
    server.expect("pair 1");
}
