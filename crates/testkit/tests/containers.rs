//! Programs in containers, given what docs/containers.md says.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use viaduct_testkit::processes::family;
use viaduct_testkit::{Container, Host, Instance, Launch, Mode, Program, binaries, can_run};

const PATIENCE: Duration = Duration::from_secs(40);
const LEFT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const PORT: u16 = 5002;

/// A viaductd of root's, whose directory all users may enter.
fn instance() -> Instance {
    let instance = Instance::start();
    std::fs::set_permissions(instance.dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
    instance
}

fn start(container: &Container<'_>, instance: &Instance, arguments: &str) -> Program {
    let library = binaries::binary("libviaduct_preload.so");
    let launch = Launch::testpeer(Mode::Native, arguments)
        .variable("LD_PRELOAD", &format!("/$LIB/../../../..{}", library.display()))
        .variable("VIADUCT_DIR", &instance.dir().to_string_lossy())
        .variable("VIADUCT_OFFER", "now");
    container.spawn(&launch, &[instance.dir(), library.parent().unwrap()])
}

/// Two containers, each on its host, talk; every byte is checked, and the outside sees that they go over shared memory.
fn talk(left: &Container<'_>, right: &Container<'_>, address: Ipv4Addr) {
    let instance = instance();
    let server = start(right, &instance, &format!("listen 0.0.0.0:{PORT} --mode epoll")).listening(PORT);
    let mut client = start(
        left,
        &instance,
        &format!("connect {address}:{PORT} --connections 2 --seconds 100 --seed 1"),
    );
    let fast = instance.wait_for_status(PATIENCE, |rows| {
        let inside = family(client.pid());
        let fast = |row: &&viaduct_testkit::status::Row| row.is_fast_both_ways() && row.bytes_received > 4_000_000;
        rows.iter().filter(|row| inside.contains(&row.pid)).filter(fast).count() == 2
    });
    assert!(fast.is_ok(), "{fast:#?}\n{}\n{}", client.output(), client.errors());
    assert!(client.is_running(), "{}", client.output());
    assert!(!server.output().contains("wrong"), "{}", server.output());
}

#[test]
fn on_networks_of_their_own() {
    if !can_run(true, &["ip", "nsenter", "crun"]) {
        return;
    }
    let (left, right) = (Host::new(), Host::new());
    left.join(LEFT, &right, RIGHT);
    talk(&Container::new(&left, false), &Container::new(&right, false), RIGHT);
}

#[test]
fn with_users_of_their_own() {
    if !can_run(true, &["ip", "nsenter", "crun"]) {
        return;
    }
    let (left, right) = (Host::new(), Host::new());
    left.join(LEFT, &right, RIGHT);
    talk(&Container::new(&left, true), &Container::new(&right, true), RIGHT);
}

#[test]
fn of_one_pod() {
    if !can_run(true, &["ip", "nsenter", "crun"]) {
        return;
    }
    let host = Host::new();
    talk(
        &Container::new(&host, false),
        &Container::new(&host, true),
        Ipv4Addr::LOCALHOST,
    );
}
