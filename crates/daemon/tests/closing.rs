//! Processes that send viaductd what is not easily closed.

mod support;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::SendFlags;
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use support::{Daemon, Driver, Guest, PATIENCE, connect, connection, is_root, listener, receive, send, until};
use viaduct_control::PROTOCOL_VERSION;
use viaduct_control::message::{OFFER_HAS_BELL, Packet, Query, Withdraw};

fn start() -> Daemon {
    Daemon::start(&["--same-user"])
}

/// Both ends of a connection of which the first has sent more than is taken, and lets who closes it wait half a minute
/// for that, far longer than any answer is waited for.
fn lingering() -> (OwnedFd, TcpStream) {
    let (end, other) = connection(&listener());
    while rustix::net::send(&end, &[0; 65536], SendFlags::DONTWAIT).is_ok() {}
    set_socket_linger(&end, Some(Duration::from_secs(30))).unwrap();
    (end.into(), other)
}

/// Connections that are closed without having been read, and sockets that are received.
#[test]
fn nobody_waits_for_a_socket_that_somebody_else_has_sent() {
    let daemon = start();
    let viaductd = Pid::from_child(&daemon.child);
    // By the time it goes on nobody else has what was sent.
    let unseen = |send_and_drop: &mut dyn FnMut()| {
        kill_process(viaductd, Signal::STOP).unwrap();
        send_and_drop();
        kill_process(viaductd, Signal::CONT).unwrap();
    };
    // A packet that ends the connection, and behind it what nobody reads any more.
    let (end, _other) = lingering();
    let (mut end, hostile) = (Some(end), connect(daemon.dir()).unwrap());
    unseen(&mut || {
        send(&hostile, b"?", &[]).unwrap();
        send(&hostile, b"?", &[end.take().unwrap().as_fd()]).unwrap();
    });
    // As the bell of an offer, and as what no packet has.
    let mut guest = Guest::hello(daemon.dir());
    let (opener, _accepter) = connection(&listener());
    let mut offer = guest.honest_offer(1, &opener);
    (offer.bell, offer.flags) = (7, OFFER_HAS_BELL);
    for packet in [Packet::new(&offer), Packet::new(&Withdraw { offer: 1 })] {
        let (end, _other) = lingering();
        let mut end = Some(end);
        unseen(&mut || {
            send(&guest.socket, packet.as_bytes(), &[end.take().unwrap().as_fd()]).unwrap();
        });
        assert_eq!(daemon.stats().processes, 1);
    }
    // It is an odd guest, but does no harm.
    guest.expect_nothing();
}

/// Of all that one packet can bring, nothing stays with viaductd.
#[test]
fn as_many_descriptors_as_a_packet_can_bring_are_closed() {
    let daemon = start();
    let open = || {
        std::fs::read_dir(format!("/proc/{}/fd", daemon.child.id()))
            .unwrap()
            .count()
    };
    let guest = Guest::hello(daemon.dir());
    daemon.stats();
    let before = open();
    let bell = eventfd(0, EventfdFlags::empty()).unwrap();
    let many: Vec<BorrowedFd<'_>> = vec![bell.as_fd(); 253];
    send(&guest.socket, Packet::new(&Withdraw { offer: 1 }).as_bytes(), &many).unwrap();
    guest.expect_nothing();
    until("they are closed", || open() <= before);
}

/// Whether viaductd lets this user in: it answers then.
fn is_served(daemon: &Daemon) -> bool {
    let socket = connect(daemon.dir()).unwrap();
    let query = Query {
        version: PROTOCOL_VERSION,
        reserved: 0,
    };
    // It may have hung up already.
    let asked = send(&socket, Packet::new(&query).as_bytes(), &[]).is_ok();
    asked && matches!(receive(&socket, PATIENCE), Ok(Some((bytes, _))) if !bytes.is_empty())
}

/// Any file of a file system may be one of which another process has to say when it is closed.
#[test]
fn who_sends_files_loses_viaductd_but_others_keep_it() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let file = std::fs::File::open("/proc/version").unwrap();
    let kept = || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap();
        let named = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        named.filter(|name| name.as_os_str() == "/proc/version").count()
    };
    let mut bystander = Driver::at(None, Some(65534));
    // However many connections there are by then.
    let guests: Vec<Guest> = (0..20).map(|_| Guest::hello(daemon.dir())).collect();
    for (number, guest) in guests.iter().enumerate() {
        assert_eq!(is_served(&daemon), number < 16, "after {number}");
        let _ = send(
            &guest.socket,
            Packet::new(&Withdraw { offer: 1 }).as_bytes(),
            &[file.as_fd()],
        );
        guest.expect_hang_up();
        assert_eq!(kept(), 16.min(number + 1));
    }
    assert!(!is_served(&daemon));
    bystander.hello(daemon.dir());
    bystander.ask("listen 127.0.0.1:0");
}
