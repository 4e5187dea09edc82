//! A peer that is stopped looks like one that does not read; then it goes on, or is killed.

use crate::{NATIVE_ROUNDS, PATIENCE, PROMPTLY, WAITING, any_of, moment, settle};
use nix::sys::signal::Signal;
use std::time::Duration;
use viaduct_testkit::pattern::Random;
use viaduct_testkit::processes::{connections_to, wait_until};
use viaduct_testkit::{Instance, Mode, Server};

/// Ends stopped that go on, and ends stopped that are killed.
const GO_ON: usize = 40;
const KILLED: usize = 20;

pub(crate) const FAULTS: usize = GO_ON + KILLED;

/// Waits until a client has connected, so that it is a connection that the fault hits.
fn connected(server: &Server) {
    let connected = || connections_to(server.program.pid(), server.port) > 0;
    assert!(wait_until(PATIENCE, connected), "the client does not connect");
}

fn stop_and_go_on(mode: Mode<'_>, rounds: usize) {
    let mut random = Random::new(11);
    let server_waits = any_of(&mut random, &WAITING);
    let mut server = Server::start(mode, server_waits);
    settle(&mut server, mode);
    for round in 0..rounds {
        let waiting = any_of(&mut random, &WAITING);
        let arguments = format!("--seconds 0.5 --mode {waiting} --connections 2 --seed {round}");
        let mut client = server.client(mode, &arguments).spawn();
        connected(&server);
        moment(&mut random, 40);
        let ends_before = server.reports().len();
        let stopped = if random.below(2) == 0 { &client } else { &server.program };
        for _ in 0..3 {
            stopped.signal(Signal::SIGSTOP);
            moment(&mut random, 50);
            stopped.signal(Signal::SIGCONT);
            moment(&mut random, 10);
        }
        assert!(client.is_running(), "round {round}: over before it was stopped");
        assert_eq!(
            server.reports().len(),
            ends_before,
            "round {round}: over before it was stopped"
        );
        client.finish(PATIENCE).success();
        server.assert_sound();
    }
}

fn stop_and_kill(mode: Mode<'_>, rounds: usize) {
    let mut random = Random::new(13);
    let mut server = Server::start(mode, "epoll");
    let before = settle(&mut server, mode);
    for round in 0..rounds {
        let waiting = any_of(&mut random, &WAITING);
        let arguments = format!("--seconds 20 --mode {waiting} --seed {round}");
        let mut client = server.client(mode, &arguments).spawn();
        connected(&server);
        moment(&mut random, 80);
        client.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(40));
        // Others are served meanwhile.
        let other = format!("--bytes 500000 --seed {}", 1000 + round);
        server.client(mode, &other).run(PATIENCE).success();
        client.kill();
        assert_eq!(server.returns_to(before, PROMPTLY), Ok(()), "round {round} ({waiting})");
        server.assert_sound();
    }
}

#[test]
fn a_stopped_end_goes_on() {
    stop_and_go_on(Mode::Native, NATIVE_ROUNDS);
    let instance = Instance::start();
    stop_and_go_on(Mode::Accelerated(&instance), GO_ON);
}

#[test]
fn a_stopped_end_is_killed() {
    stop_and_kill(Mode::Native, NATIVE_ROUNDS);
    let instance = Instance::start();
    stop_and_kill(Mode::Accelerated(&instance), KILLED);
}
