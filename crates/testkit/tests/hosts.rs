//! Programs in network namespaces of one machine: over a virtual cable, with equal addresses in two networks at once,
//! and behind address translation. Only a privileged viaductd pairs them, by the kernel's ticket.

use std::net::Ipv4Addr;
use std::time::Duration;
use viaduct_testkit::{Host, Instance, Launch, Mode, Program, can_run};

const PATIENCE: Duration = Duration::from_secs(40);
const LEFT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const PORT: u16 = 5001;

/// Two hosts, each with one end of a cable.
fn cable() -> (Host, Host) {
    let (left, right) = (Host::new(), Host::new());
    left.join(LEFT, &right, RIGHT);
    (left, right)
}

fn server<'a>(mode: Mode<'a>, host: &'a Host) -> Program {
    Launch::testpeer(mode, &format!("listen 0.0.0.0:{PORT} --mode epoll"))
        .on(host)
        .spawn()
        .listening(PORT)
}

fn client<'a>(mode: Mode<'a>, host: &'a Host, to: &str, options: &str) -> Program {
    Launch::testpeer(mode, &format!("connect {to} --connections 2 {options}"))
        .on(host)
        .spawn()
}

/// A client that lasts until its test is over.
fn lasting<'a>(mode: Mode<'a>, host: &'a Host, to: &str, seed: u64) -> Program {
    client(mode, host, to, &format!("--seconds 100 --seed {seed}"))
}

/// Waits until both connections of a lasting client are fast both ways and have carried a few megabytes, and ends it. A
/// wrong byte would have ended it before.
fn assert_fast(instance: &Instance, mut client: Program) {
    let fast = instance.wait_for_status(PATIENCE, |rows| {
        rows.iter()
            .filter(|row| row.pid == client.pid() && row.is_fast_both_ways() && row.bytes_received > 4_000_000)
            .count()
            == 2
    });
    assert!(fast.is_ok(), "{fast:#?}\n{}\n{}", client.output(), client.errors());
    assert!(client.is_running(), "{}", client.output());
    client.kill();
}

/// Fails if the server has met a wrong byte.
fn assert_sound(server: &Program) {
    assert!(!server.output().contains("wrong"), "{}", server.output());
}

#[test]
fn two_hosts_over_a_cable() {
    if !can_run(true, &["ip", "nsenter"]) {
        return;
    }
    let (left, right) = cable();
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let server = server(mode, &right);
    let to = format!("{RIGHT}:{PORT}");
    assert_fast(&instance, lasting(mode, &left, &to, 1));
    client(mode, &left, &to, "--bytes 3000000").finish(PATIENCE).success();
    assert_sound(&server);
}

#[test]
fn two_networks_with_the_same_addresses_and_ports() {
    if !can_run(true, &["ip", "nsenter"]) {
        return;
    }
    let ((left, right), (other_left, other_right)) = (cable(), cable());
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let servers = [server(mode, &right), server(mode, &other_right)];
    let to = format!("{RIGHT}:{PORT}");
    // A byte of the other network's stream would be a wrong byte.
    let clients = [lasting(mode, &left, &to, 1), lasting(mode, &other_left, &to, 2)];
    for client in clients {
        assert_fast(&instance, client);
    }
    servers.iter().for_each(assert_sound);
}

#[test]
fn through_address_translation() {
    if !can_run(true, &["ip", "nsenter", "nft"]) {
        return;
    }
    let (left, right) = cable();
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let server = server(mode, &right);
    // The client calls an address that nobody has; its own host sends that elsewhere, from elsewhere.
    let rules = format!(
        "table ip viaduct {{
             chain out {{ type nat hook output priority -100; ip daddr 10.99.0.9 tcp dport 80 dnat to {RIGHT}:{PORT}; }}
             chain post {{ type nat hook postrouting priority 100; tcp dport {PORT} snat to {LEFT}:40000-50000; }}
         }}"
    );
    let file = instance.scratch("rules.nft");
    std::fs::write(&file, rules).unwrap();
    let arguments = ["-f".into(), file.into_os_string()];
    Launch::new(Mode::Native, "nft", arguments)
        .on(&left)
        .run(PATIENCE)
        .success();
    left.ip(&["route", "add", "default", "via", &RIGHT.to_string()]);

    assert_fast(&instance, lasting(mode, &left, "10.99.0.9:80", 1));
    client(mode, &left, "10.99.0.9:80", "--bytes 3000000")
        .finish(PATIENCE)
        .success();
    assert_sound(&server);
}

#[test]
fn a_viaductd_of_one_user_leaves_other_networks_alone() {
    if !can_run(true, &["ip", "nsenter"]) {
        return;
    }
    let (left, right) = cable();
    let instance = Instance::start_with(&["--same-user"]);
    let mode = Mode::Accelerated(&instance);
    let server = server(mode, &right);
    client(mode, &left, &format!("{RIGHT}:{PORT}"), "--seconds 1")
        .finish(PATIENCE)
        .success();
    let server = instance.totals_of(server.pid());
    assert_eq!((server.open + server.ended, server.fast_bytes()), (2, 0), "{server:?}");
    // What was offered stayed alone.
    let stats = instance.stats();
    assert_eq!(stats.pairs, 0, "{stats:?}");
    assert!(stats.offers > 0, "{stats:?}");
}
