//! Programs in network namespaces of one machine: over a virtual cable, with equal addresses in two networks at once, and
//! behind address translation. Only a privileged viaductd pairs them, by the kernel's ticket.

use std::net::Ipv4Addr;
use std::time::Duration;
use viaduct_testkit::{Host, Instance, Launch, Mode, Program, can_run};

const PATIENCE: Duration = Duration::from_secs(20);
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

fn client<'a>(mode: Mode<'a>, host: &'a Host, to: &str, seed: u64) -> Program {
    Launch::testpeer(mode, &format!("connect {to} --seconds 2 --connections 2 --seed {seed}"))
        .on(host)
        .spawn()
}

/// Waits until both connections of the client are fast both ways.
fn assert_fast(instance: &Instance, client: &Program) {
    let fast = instance.wait_for_status(Duration::from_secs(5), |rows| {
        rows.iter()
            .filter(|row| row.pid == client.pid() && row.is_fast_both_ways())
            .count()
            == 2
    });
    assert!(fast.is_ok(), "{fast:#?}\n{}", client.errors());
}

#[test]
fn two_hosts_over_a_cable() {
    if !can_run(true, &["ip", "nsenter"]) {
        return;
    }
    let (left, right) = cable();
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let _server = server(mode, &right);
    let client = client(mode, &left, &format!("{RIGHT}:{PORT}"), 1);
    assert_fast(&instance, &client);
    client.finish(PATIENCE).success();
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
    let clients = [
        client(mode, &left, &format!("{RIGHT}:{PORT}"), 1),
        client(mode, &other_left, &format!("{RIGHT}:{PORT}"), 2),
    ];
    for client in &clients {
        assert_fast(&instance, client);
    }
    // A byte of the other network's stream would be a wrong byte.
    for client in clients {
        client.finish(PATIENCE).success();
    }
    for server in servers {
        assert!(!server.output().contains("wrong"), "{}", server.output());
    }
}

#[test]
fn through_address_translation() {
    if !can_run(true, &["ip", "nsenter", "nft"]) {
        return;
    }
    let (left, right) = cable();
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let _server = server(mode, &right);
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

    let client = client(mode, &left, "10.99.0.9:80", 1);
    assert_fast(&instance, &client);
    client.finish(PATIENCE).success();
}

#[test]
fn a_viaductd_of_one_user_leaves_other_networks_alone() {
    if !can_run(true, &["ip", "nsenter"]) {
        return;
    }
    let (left, right) = cable();
    let instance = Instance::start_with(&["--same-user"]);
    let mode = Mode::Accelerated(&instance);
    let _server = server(mode, &right);
    let client = client(mode, &left, &format!("{RIGHT}:{PORT}"), 1);
    std::thread::sleep(Duration::from_secs(1));
    let rows = instance.status();
    assert!(!rows.is_empty());
    assert!(rows.iter().all(|row| !row.is_fast()), "{rows:#?}");
    client.finish(PATIENCE).success();
}
