//! Ends matched by the kernel's own word.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;
use support::driver::join;
use support::{
    Daemon, Driver, Event, Guest, Host, MOMENT, PATIENCE, connection, is_root, link, listener, nft, take_ticket,
    take_ticket_by, until,
};
use viaduct_control::Reason;
use viaduct_control::message::{MODE_TICKET, OFFER_CAME, Offer, PAIR_COUNTS_SYN};

/// A viaductd that takes tickets; `None` where it cannot, which is said.
fn start(args: &[&str]) -> Option<Daemon> {
    if !is_root() {
        return None;
    }
    let daemon = Daemon::start(args);
    assert_eq!(
        daemon.stats().mode,
        MODE_TICKET,
        "viaductd could not attach its BPF program"
    );
    Some(daemon)
}

/// Two hosts on one wire, 10.9.0.1 and 10.9.0.2.
fn two_hosts() -> (Host, Host) {
    let (a, b) = (Host::new(), Host::new());
    link((&a, "eth0", "10.9.0.1/24"), (&b, "eth0", "10.9.0.2/24"));
    (a, b)
}

fn greeted(daemon: &Daemon, netns: Option<&str>, user: Option<u32>) -> Driver {
    let mut driver = Driver::at(netns, user);
    driver.hello(daemon.dir());
    driver
}

#[test]
fn a_connection_within_one_process() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    guest.offer(1, &opener);
    guest.offer(2, &accepter);
    let pairs = [guest.expect_pair().0, guest.expect_pair().0];
    let told = pairs.map(|pair| (pair.offer, pair.side, pair.flags & PAIR_COUNTS_SYN != 0));
    assert_eq!(told, [(1, 0, true), (2, 1, false)], "the opener's SYN counts");
}

/// Whatever has been sent, read or closed, and in whatever order the ends offer themselves.
#[test]
fn a_connection_is_known_at_any_time_of_its_life() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = Guest::hello(daemon.dir());
    let listener = listener();
    let mut name = 0;
    let send_unread = |a: &mut TcpStream, b: &mut TcpStream| {
        a.write_all(&[1; 50_000]).unwrap();
        b.write_all(&[2; 7]).unwrap();
    };
    let exchange = |a: &mut TcpStream, b: &mut TcpStream| {
        let mut buffer = [0; 1000];
        for _ in 0..50 {
            a.write_all(&buffer).unwrap();
            b.read_exact(&mut buffer).unwrap();
            b.write_all(&buffer[..10]).unwrap();
            a.read_exact(&mut buffer[..10]).unwrap();
        }
    };
    let half_close = |a: &mut TcpStream, _: &mut TcpStream| a.shutdown(Shutdown::Write).unwrap();
    let other_half = |_: &mut TcpStream, b: &mut TcpStream| b.shutdown(Shutdown::Write).unwrap();
    type Act<'a> = &'a dyn Fn(&mut TcpStream, &mut TcpStream);
    let nothing = |_: &mut TcpStream, _: &mut TcpStream| ();
    let befores: [Act<'_>; 3] = [&nothing, &send_unread, &exchange];
    let betweens: [Act<'_>; 4] = [&nothing, &send_unread, &half_close, &other_half];
    for before in befores {
        for between in betweens {
            for opener_first in [true, false] {
                let (mut opener, mut accepter) = connection(&listener);
                before(&mut opener, &mut accepter);
                let (first, second) = if opener_first { (1, 2) } else { (2, 1) };
                for (place, number) in [first, second].into_iter().enumerate() {
                    let end: &TcpStream = if number == 1 { &opener } else { &accepter };
                    guest.offer(name + number, end);
                    if place == 0 {
                        between(&mut opener, &mut accepter);
                    }
                }
                let pairs = [guest.expect_pair().0.offer, guest.expect_pair().0.offer];
                assert_eq!(pairs, [name + first, name + second]);
                name += 2;
            }
        }
    }
}

#[test]
fn gigabytes_of_sequence_numbers_later() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = Guest::hello(daemon.dir());
    let (mut opener, mut accepter) = connection(&listener());
    // More than 2^32 bytes, so that the 32-bit numbers have wrapped and the 64-bit counts have not.
    const CHUNK: usize = 1 << 20;
    const CHUNKS: usize = 4097;
    let sender = std::thread::spawn(move || {
        let chunk = vec![0; CHUNK];
        for _ in 0..CHUNKS {
            accepter.write_all(&chunk).unwrap();
        }
        accepter
    });
    let mut buffer = vec![0; CHUNK];
    for _ in 0..CHUNKS {
        opener.read_exact(&mut buffer).unwrap();
    }
    let accepter = sender.join().unwrap();
    guest.offer(1, &opener);
    guest.offer(2, &accepter);
    assert_eq!(guest.expect_pair().0.offer, 1);
    assert_eq!(guest.expect_pair().0.offer, 2);
}

/// An offer of `end`'s whose ticket has not been taken yet.
fn ahead(guest: &mut Guest, name: u64, end: &TcpStream) -> Offer {
    let mut offer = guest.honest_offer(name, end);
    offer.ticket_sequence += 1000;
    offer
}

/// The ring is read in order: a ticket that another process was interrupted in writing hides those behind it.
#[test]
fn an_offer_may_come_ahead_of_its_ticket() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    guest.offer(1, &opener);
    let mut attempt = |name| {
        let offer = ahead(&mut guest, name, &accepter);
        guest.send(&offer);
        std::thread::sleep(Duration::from_millis(3));
        take_ticket(&accepter, guest.welcome.nonce, offer.ticket_sequence).unwrap();
        guest.event(PATIENCE)
    };
    // On a busy machine the ticket may come too late now and then.
    let event = (2..30)
        .map(&mut attempt)
        .find(|event| !matches!(event, Event::Refuse(..)));
    let Some(Event::Pair(pair, _)) = event else {
        panic!("{event:?}")
    };
    assert_eq!((pair.offer, pair.side), (1, 0));
    assert_eq!(guest.expect_pair().0.side, 1);
}

#[test]
fn an_offer_ahead_of_its_ticket_may_be_withdrawn() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    let offer = ahead(&mut guest, 1, &opener);
    guest.send(&offer);
    guest.withdraw(1);
    take_ticket(&opener, guest.welcome.nonce, offer.ticket_sequence).unwrap();
    guest.offer(2, &accepter);
    // It may have been refused before it was withdrawn.
    let mut event = guest.event(MOMENT);
    if matches!(event, Event::Refuse(1, ..)) {
        event = guest.event(MOMENT);
    }
    assert!(matches!(event, Event::Nothing), "{event:?}");
    assert_eq!(daemon.stats().offers_waiting, 1);
}

/// One that never gets any is refused, and those after it are not held up.
#[test]
fn an_offer_whose_ticket_does_not_come_is_refused() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    let bare = ahead(&mut guest, 1, &opener);
    guest.send(&bare);
    guest.offer(2, &opener);
    guest.offer(3, &accepter);
    let (mut paired, mut refused) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        match guest.event(PATIENCE) {
            Event::Pair(pair, _) => paired.push(pair.offer),
            Event::Refuse(offer, reason, retry_ms) => refused.push((offer, reason, retry_ms > 0)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(paired, [2, 3]);
    assert_eq!(refused, [(1, Reason::NoTicket, true)]);
}

/// Who else holds a socket is for the kernel to say: by another number, in another process, or on its way to one.
#[test]
fn a_socket_that_came_from_elsewhere_is_matched_once_nobody_else_holds_it() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = Guest::hello(daemon.dir());
    let listener = listener();
    let (near, far) = UnixStream::pair().unwrap();
    let (near, far) = (OwnedFd::from(near), OwnedFd::from(far));
    type Hold<'a> = &'a dyn Fn(OwnedFd) -> Box<dyn FnOnce()>;
    let ways: [Hold<'_>; 3] = [
        &|other| Box::new(|| drop(other)),
        &|other| {
            let mut child = Command::new("sleep").arg("1000").stdin(other).spawn().unwrap();
            Box::new(move || {
                child.kill().unwrap();
                child.wait().unwrap();
            })
        },
        &|other| {
            support::send(&near, b"x", &[other.as_fd()]).unwrap();
            drop(other);
            let far = far.try_clone().unwrap();
            Box::new(move || drop(support::receive(&far, PATIENCE).unwrap().unwrap()))
        },
    ];
    let mut name = 0;
    for hold in ways {
        let (opener, accepter) = connection(&listener);
        guest.offer(name + 1, &opener);
        let let_go = hold(accepter.try_clone().unwrap().into());
        guest.offer_that_came(name + 2, &accepter);
        let (offer, reason, retry_ms) = guest.expect_refusal();
        assert_eq!((offer, reason, retry_ms > 0), (name + 2, Reason::PassedOn, true));
        let_go();
        let first = guest.offer_that_came_until_matched(name + 3, &accepter);
        let pairs = [first.offer, guest.expect_pair().0.offer];
        assert_eq!(pairs, [name + 1, name + 3]);
        name += 3;
    }
}

/// The other end goes on with the lanes that it had with another process, and does not offer itself again.
#[test]
fn a_socket_that_came_from_elsewhere_is_refused_as_long_as_its_other_end_has_lanes() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    guest.offer(1, &opener);
    guest.offer(2, &accepter);
    let segment = guest.expect_pair().0.segment;
    guest.expect_pair();
    guest.detach(segment);
    // Its next hello, by which it is another guest.
    let mut after = Guest::hello(daemon.dir());
    after.offer_that_came(3, &accepter);
    let (offer, reason, retry_ms) = after.expect_refusal();
    assert_eq!((offer, reason, retry_ms > 0), (3, Reason::PassedOn, true));
    guest.detach(segment);
    until("the segment is gone", || daemon.stats().segments == 0);
    after.offer(4, &opener);
    let first = after.offer_that_came_until_matched(5, &accepter);
    assert_eq!([first.offer, after.expect_pair().0.offer], [4, 5]);
}

/// A number that stands for another socket counts nobody.
#[test]
fn who_holds_another_socket_is_not_counted() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = Guest::hello(daemon.dir());
    let listener = listener();
    let (opener, accepter) = connection(&listener);
    guest.offer(1, &opener);
    for (name, number) in (2..).zip([opener.as_raw_fd(), 0, 1 << 20, i32::MAX]) {
        let mut offer = ahead(&mut guest, name, &accepter);
        offer.ticket_sequence += 1000;
        offer.flags |= OFFER_CAME;
        take_ticket_by(&accepter, number, guest.welcome.nonce, offer.ticket_sequence).unwrap();
        guest.send(&offer);
        assert_eq!(guest.expect_refusal(), (name, Reason::PassedOn, 0), "{number}");
    }
}

#[test]
fn ipv6_counts_too() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = Guest::hello(daemon.dir());
    let Ok(listener) = std::net::TcpListener::bind("[::1]:0") else {
        eprintln!("skipped: no IPv6");
        return;
    };
    let (opener, accepter) = connection(&listener);
    guest.offer(1, &opener);
    guest.offer(2, &accepter);
    guest.expect_pair();
    guest.expect_pair();
}

#[test]
fn two_namespaces_over_a_wire() {
    let Some(daemon) = start(&[]) else { return };
    let (a, b) = two_hosts();
    let mut server = greeted(&daemon, Some(&a.name), None);
    let mut client = greeted(&daemon, Some(&b.name), None);
    join(&mut server, "10.9.0.1:80", &mut client, "10.9.0.1:80");
    client.ask("offer 0 1 bell 1");
    client.expect_nothing();
    server.ask("offer 0 5 bell 1");
    // Another namespace: nobody gets the other's eventfd.
    let pids = (client.pid(), server.pid());
    for (end, offer, side, peer) in [(&mut client, 1, 0, pids.1), (&mut server, 5, 1, pids.0)] {
        let event = end.expect(&format!("pair {offer} segment 1 side {side} outer bell "));
        assert!(
            event.ends_with(&format!(" peer {peer} 0 descriptors 3 rung by outer bell 1")),
            "{event}"
        );
    }
}

#[test]
fn eventfds_are_given_within_one_user_and_namespace_only() {
    let Some(daemon) = start(&[]) else { return };
    for (user, equal) in [(None, true), (Some(65534), false)] {
        let mut server = greeted(&daemon, None, None);
        let mut client = greeted(&daemon, None, user);
        let at = server.ask("listen 127.0.0.1:0");
        client.ask(&format!("connect {at}"));
        server.ask("accept");
        client.ask("offer 0 1 bell 1");
        server.ask("offer 0 1 bell 1");
        for end in [&mut client, &mut server] {
            let event = end.expect("pair 1");
            let expected = if equal {
                "descriptors 2 rung by bell 1"
            } else {
                "descriptors 3 rung by outer bell 1"
            };
            assert!(event.ends_with(expected), "{event}");
        }
    }
}

/// Both are user 0 to the kernel, but one is so in a namespace of its own only.
#[test]
fn eventfds_are_not_given_across_user_namespaces() {
    let Some(daemon) = start(&[]) else { return };
    let mut server = greeted(&daemon, None, None);
    let mut client = Driver::within("unshare", &["--user", "--map-root-user"]);
    client.hello(daemon.dir());
    let at = server.ask("listen 127.0.0.1:0");
    client.ask(&format!("connect {at}"));
    server.ask("accept");
    client.ask("offer 0 1 bell 1");
    server.ask("offer 0 2 bell 1");
    let pids = (client.pid(), server.pid());
    for (end, offer, peer) in [(&mut client, 1, pids.1), (&mut server, 2, pids.0)] {
        let event = end.expect(&format!("pair {offer} segment 1"));
        assert!(
            event.contains(" outer bell ") && event.contains(&format!(" peer {peer} 0 descriptors 3 rung by outer")),
            "{event}"
        );
    }
}

/// Two clients of another user hold the server's outer bell: each can ring it, neither can keep it from being heard,
/// and one that breaks it is found out.
#[test]
fn who_holds_an_outer_bell_can_ring_it_and_not_silence_it() {
    let Some(daemon) = start(&[]) else { return };
    let mut server = greeted(&daemon, None, None);
    let at = server.ask("listen 127.0.0.1:0");
    let mut events = Vec::new();
    let mut clients = [1, 2].map(|name| {
        let mut client = greeted(&daemon, None, Some(65534));
        client.ask(&format!("connect {at}"));
        let end = server.ask("accept");
        client.ask("offer 0 1 bell 1");
        // A bell accompanies the first offer that names it.
        server.ask(&format!("offer {end} {name} bell 1"));
        client.expect("pair 1");
        events.push(server.expect(&format!("pair {name}")));
        client
    });
    // Its own end comes once.
    assert!(events[0].ends_with("descriptors 3 rung by outer bell 1"), "{events:?}");
    assert!(events[1].ends_with("descriptors 2 rung by outer bell 1"), "{events:?}");
    assert_eq!(
        server.ask("heard"),
        "error Resource temporarily unavailable (os error 11)"
    );
    for client in &mut clients {
        assert_eq!(client.ask("ring"), "done");
        assert_eq!(client.ask("silence"), "0", "it is one that only sends");
    }
    assert_eq!(server.ask("heard"), "2");
    let broken = "error Broken pipe (os error 32)";
    // What it sent might have viaductd wait, which has the other end too.
    assert_eq!(server.ask("answer"), broken);
    clients[0].ask("break");
    assert_eq!(clients[1].ask("ring"), broken);
    assert_eq!(server.ask("heard"), "0");
}

/// Two pairs of hosts, isolated from each other, whose connections have the same four addresses and ports at once.
#[test]
fn equal_addresses_in_other_namespaces_are_not_confused() {
    let Some(daemon) = start(&[]) else { return };
    let mut ends = Vec::new();
    let hosts = [two_hosts(), two_hosts()];
    for (a, b) in &hosts {
        let mut server = greeted(&daemon, Some(&a.name), None);
        let mut client = greeted(&daemon, Some(&b.name), None);
        b.sysctl("net.ipv4.ip_local_port_range=40000 40001");
        join(&mut server, "10.9.0.1:80", &mut client, "10.9.0.1:80");
        assert_eq!(client.ask("address 0"), "10.9.0.2:40000");
        ends.push((server, client));
    }
    let (second, first) = (ends.pop().unwrap(), ends.pop().unwrap());
    let ((mut server1, mut client1), (mut server2, mut client2)) = (first, second);
    client1.ask("offer 0 11");
    server2.ask("offer 0 22");
    server2.expect_nothing();
    client1.expect_nothing();
    server1.ask("offer 0 12");
    client1.expect(&format!("pair 11 segment 1 side 0 bell 0 peer {}", server1.pid()));
    server1.expect(&format!("pair 12 segment 1 side 1 bell 0 peer {}", client1.pid()));
    client2.ask("offer 0 21");
    server2.expect(&format!("pair 22 segment 2 side 0 bell 0 peer {}", client2.pid()));
    client2.expect(&format!("pair 21 segment 2 side 1 bell 0 peer {}", server2.pid()));
}

/// Destination and source both rewritten on the way, as for a published container port.
#[test]
fn address_translation_does_not_hide_a_connection() {
    let Some(daemon) = start(&[]) else { return };
    let (client_host, router, server_host) = (Host::new(), Host::new(), Host::new());
    link((&client_host, "eth0", "10.1.0.2/24"), (&router, "left", "10.1.0.1/24"));
    link((&router, "right", "10.2.0.1/24"), (&server_host, "eth0", "10.2.0.2/24"));
    router.sysctl("net.ipv4.ip_forward=1");
    nft(
        &router,
        "table ip nat {
            chain pre { type nat hook prerouting priority -100; tcp dport 8080 dnat to 10.2.0.2:80; }
            chain post { type nat hook postrouting priority 100; oifname right masquerade; }
        }",
    );
    let mut server = greeted(&daemon, Some(&server_host.name), None);
    let mut client = greeted(&daemon, Some(&client_host.name), None);
    join(&mut server, "10.2.0.2:80", &mut client, "10.1.0.1:8080");
    server.ask("offer 0 2");
    server.expect_nothing();
    client.ask("offer 0 1");
    server.expect(&format!("pair 2 segment 1 side 0 bell 0 peer {}", client.pid()));
    client.expect(&format!("pair 1 segment 1 side 1 bell 0 peer {}", server.pid()));
}

/// The accepting end comes into being in another way then.
#[test]
fn cookies_instead_of_a_backlog_make_no_difference() {
    let Some(daemon) = start(&[]) else { return };
    let host = Host::new();
    host.sysctl("net.ipv4.tcp_syncookies=2");
    let mut both = greeted(&daemon, Some(&host.name), None);
    let at = both.ask("listen 127.0.0.1:0");
    both.ask(&format!("connect {at}"));
    both.ask("accept");
    both.ask("offer 0 1");
    both.ask("offer 1 2");
    both.expect("pair 1");
    both.expect("pair 2");
}

/// Both first SYNs are lost, so that the second one of either meets an end that is opening itself: no end accepts.
#[test]
fn ends_that_open_at_once_are_a_pair_and_one_socket_is_none() {
    let Some(daemon) = start(&[]) else { return };
    let host = Host::new();
    let mut one = greeted(&daemon, Some(&host.name), None);
    let mut other = greeted(&daemon, Some(&host.name), None);
    nft(
        &host,
        "table ip lossy { chain out { type filter hook output priority 0; tcp dport 4001-4002 drop; }; }",
    );
    let dialled = std::thread::scope(|scope| {
        let one = scope.spawn(|| one.ask("dial 127.0.0.1:4001 127.0.0.1:4002"));
        let other = scope.spawn(|| other.ask("dial 127.0.0.1:4002 127.0.0.1:4001"));
        std::thread::sleep(std::time::Duration::from_millis(300));
        nft(&host, "delete table ip lossy");
        (one.join().unwrap(), other.join().unwrap())
    });
    assert_eq!(dialled, ("0".to_owned(), "0".to_owned()));
    one.ask("offer 0 1");
    other.ask("offer 0 2");
    one.expect("pair 1");
    other.expect("pair 2");
    assert_eq!(one.ask("dial 127.0.0.1:4003 127.0.0.1:4003"), "1");
    one.ask("offer 1 3");
    one.expect("refuse 3 ambiguous");
}

#[test]
fn users_are_paired_and_each_is_charged() {
    let Some(daemon) = start(&["--segments-per-user", "1"]) else {
        return;
    };
    let mut server = greeted(&daemon, None, None);
    let mut one = greeted(&daemon, None, Some(65533));
    let mut other = greeted(&daemon, None, Some(65534));
    let at = server.ask("listen 127.0.0.1:0");
    one.ask(&format!("connect {at}"));
    server.ask("accept");
    other.ask(&format!("connect {at}"));
    server.ask("accept");
    server.ask("offer 0 1");
    server.expect_nothing();
    one.ask("offer 0 1");
    one.expect(&format!("pair 1 segment 1 side 1 bell 0 peer {} 0", server.pid()));
    server.expect(&format!("pair 1 segment 1 side 0 bell 0 peer {} 65533", one.pid()));
    other.ask("offer 0 1");
    server.ask("offer 1 2");
    other.expect("refuse 1 limit-segments 5000");
    server.expect("refuse 2 limit-segments 5000");
    server.ask("detach 1");
    until("the segment counts for one end only", || {
        other.ask("offer 0 1");
        server.ask("offer 1 2");
        let events = (other.event(), server.event());
        events.0.starts_with("pair 1") && events.1.starts_with("pair 2")
    });
}

#[test]
fn viaductd_may_be_killed_and_started_again() {
    let Some(daemon) = start(&[]) else { return };
    let guest = Guest::hello(daemon.dir());
    let first_run = guest.welcome.instance;
    let (opener, accepter) = connection(&listener());
    let dir = daemon.kill();
    guest.expect_hang_up();
    assert!(
        take_ticket(&opener, guest.welcome.nonce, 1).is_err(),
        "the program outlived viaductd"
    );
    let daemon = Daemon::start_in(dir, &[]);
    let mut guest = Guest::hello(daemon.dir());
    assert_ne!(guest.welcome.instance, first_run);
    guest.offer(1, &opener);
    guest.offer(2, &accepter);
    guest.expect_pair();
    guest.expect_pair();
}

#[test]
fn two_viaductds_do_not_disturb_each_other() {
    let (Some(one), Some(other)) = (start(&[]), start(&[])) else {
        return;
    };
    let (opener, accepter) = connection(&listener());
    for daemon in [&one, &other] {
        let mut guest = Guest::hello(daemon.dir());
        guest.offer(1, &opener);
        guest.offer(2, &accepter);
        guest.expect_pair();
        guest.expect_pair();
    }
}

#[test]
fn sockets_that_are_no_tcp_connection_get_no_ticket() {
    let Some(daemon) = start(&[]) else { return };
    let guest = Guest::hello(daemon.dir());
    let listener = listener();
    let udp: OwnedFd = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into();
    for end in [listener.as_fd(), udp.as_fd(), guest.socket.as_fd()] {
        assert!(take_ticket(&end, guest.welcome.nonce, 1).is_err());
    }
}

#[test]
fn an_offer_without_a_ticket_is_refused() {
    let Some(daemon) = start(&[]) else { return };
    let mut guest = Guest::hello(daemon.dir());
    let (opener, _accepter) = connection(&listener());
    let mut offer = guest.honest_offer(1, &opener);
    offer.flags = 0;
    guest.send(&offer);
    assert_eq!(guest.expect_refusal(), (1, Reason::NoTicket, 0));
}
