//! An end killed at a random moment.

use crate::{
    DaemonCheck, NATIVE_ROUNDS, PATIENCE, PROMPTLY, WAITING, any_of, connected, ended, moment, seeds_of, settle,
    until_hit,
};
use std::time::Duration;
use viaduct_testkit::pattern::Random;
use viaduct_testkit::processes::{descriptors, free_port, wait_until};
use viaduct_testkit::{Instance, Mode, Server};

/// Clients killed of blocking and event-driven servers, and servers killed of clients.
const OF_BLOCKING: usize = 100;
const OF_EVENT_DRIVEN: [(&str, usize); 3] = [("epoll", 40), ("edge", 40), ("poll", 20)];
const SERVERS: usize = 150;
const HALF_CLOSED: usize = 5;

pub(crate) const FAULTS: usize =
    OF_BLOCKING + OF_EVENT_DRIVEN[0].1 + OF_EVENT_DRIVEN[1].1 + OF_EVENT_DRIVEN[2].1 + SERVERS + HALF_CLOSED;

/// Waits until more bytes of the server's have gone over shared memory, so that it is a lane that the fault hits.
fn becomes_fast(mode: Mode<'_>, server: &Server) {
    let Mode::Accelerated(instance) = mode else { return };
    let fast = || instance.totals_of(server.program.pid()).fast_bytes();
    let before = fast();
    assert!(
        wait_until(Duration::from_secs(10), || fast() > before),
        "not accelerated: {:#?}",
        instance.status()
    );
}

/// Kills clients of one server amidst connections, `faults` of them: the server must see each go and keep nothing of
/// it.
fn kill_clients(mode: Mode<'_>, server_waits: &str, faults: usize) {
    let mut random = Random::new(faults as u64);
    let mut server = Server::start(mode, server_waits);
    let before = settle(&mut server, mode);
    until_hit(faults, |round| {
        let waiting = any_of(&mut random, &WAITING);
        let connections = 1 + random.below(3);
        let direction = any_of(&mut random, &["both", "both", "up", "down"]);
        let arguments =
            format!("--seconds 20 --mode {waiting} --connections {connections} --direction {direction} --seed {round}");
        let mut client = server.client(mode, &arguments).spawn();
        connected(&server, &mut client);
        moment(&mut random, 120);
        // A connection of which one direction is shut down at once stays on TCP.
        if round % 8 == 0 && direction == "both" {
            becomes_fast(mode, &server);
        }
        client.kill();
        if let Err(holds) = server.returns_to(before, PROMPTLY) {
            let open = descriptors(server.program.pid());
            panic!("round {round} ({arguments}): the server holds {holds:?}, before {before:?}: {open:#?}");
        }
        server.assert_sound();
        // One that died before it had said which it is was not amidst a transfer.
        let seeds = seeds_of(round as u64, connections);
        wait_until(Duration::from_millis(300), || ended(&server, &seeds) > 0)
    });
    settle(&mut server, mode);
    let after = server.holdings();
    let grown = after.resident_kib.saturating_sub(before.resident_kib);
    assert!(
        grown < 16 << 10,
        "the server has grown by {grown} KiB: {before:?}, {after:?}"
    );
}

/// Kills servers amidst connections, `faults` of them, which their clients must see.
fn kill_servers(mode: Mode<'_>, faults: usize) {
    let mut random = Random::new(7);
    until_hit(faults, |round| {
        let server_waits = any_of(&mut random, &WAITING);
        let waiting = any_of(&mut random, &WAITING);
        let mut server = Server::start_on(mode, server_waits, free_port());
        let arguments = format!("--seconds 20 --mode {waiting} --connections 2 --seed {round}");
        let mut client = server.client(mode, &arguments).spawn();
        connected(&server, &mut client);
        moment(&mut random, 120);
        if round % 8 == 0 {
            becomes_fast(mode, &server);
        }
        server.assert_sound();
        server.program.kill();
        let status = client.wait(PROMPTLY);
        let code = status.and_then(|status| status.code());
        // Lost; or refused, if it had not yet connected; or ended, if that came as an end of file only.
        assert!(
            matches!(code, Some(0 | 1 | 3)),
            "round {round}, server {server_waits}, client {waiting}: {status:?}\n{}\n{}",
            client.output(),
            client.errors()
        );
        // Who is refused had no transfer.
        code != Some(1)
    });
}

#[test]
fn a_blocking_server_survives_killed_clients() {
    kill_clients(Mode::Native, "blocking", NATIVE_ROUNDS);
    let instance = Instance::start();
    let daemon = DaemonCheck::new(&instance);
    kill_clients(Mode::Accelerated(&instance), "blocking", OF_BLOCKING);
    daemon.assert_clean();
}

#[test]
fn an_event_driven_server_survives_killed_clients() {
    for (waiting, faults) in OF_EVENT_DRIVEN {
        kill_clients(Mode::Native, waiting, NATIVE_ROUNDS);
        let instance = Instance::start();
        let daemon = DaemonCheck::new(&instance);
        kill_clients(Mode::Accelerated(&instance), waiting, faults);
        daemon.assert_clean();
    }
}

#[test]
fn clients_see_their_server_killed() {
    kill_servers(Mode::Native, NATIVE_ROUNDS);
    let instance = Instance::start();
    let daemon = DaemonCheck::new(&instance);
    kill_servers(Mode::Accelerated(&instance), SERVERS);
    daemon.assert_clean();
}

#[test]
fn a_client_whose_peer_speaks_half_closed_dies_quietly() {
    // The peer's stream goes on while this end has long finished its own.
    for mode in [None, Some(Instance::start())] {
        let mode = mode.as_ref().map_or(Mode::Native, Mode::Accelerated);
        let mut server = Server::start(mode, "epoll");
        let before = settle(&mut server, mode);
        for seed in 0..HALF_CLOSED {
            let arguments = format!("--seconds 20 --direction down --seed {seed}");
            let mut client = server.client(mode, &arguments).spawn();
            std::thread::sleep(Duration::from_millis(80));
            client.kill();
            assert_eq!(server.returns_to(before, PROMPTLY), Ok(()));
        }
        server
            .client(mode, "--bytes 3000000 --direction down")
            .run(PATIENCE)
            .success();
        server.assert_sound();
    }
}
