//! A peer that is stopped looks like one that does not read; then it goes on, or is killed.

use crate::{
    NATIVE_ROUNDS, PATIENCE, PROMPTLY, WAITING, any_of, connected, ended, moment, seeds_of, settle, until_hit,
};
use nix::sys::signal::Signal;
use std::time::Duration;
use viaduct_testkit::pattern::Random;
use viaduct_testkit::processes::wait_until;
use viaduct_testkit::{Instance, Mode, Server};

/// Ends stopped that go on, and ends stopped that are killed.
const GO_ON: usize = 40;
const KILLED: usize = 20;

pub(crate) const FAULTS: usize = GO_ON + KILLED;

fn stop_and_go_on(mode: Mode<'_>, faults: usize) {
    let mut random = Random::new(11);
    let server_waits = any_of(&mut random, &WAITING);
    let mut server = Server::start(mode, server_waits);
    settle(&mut server, mode);
    until_hit(faults, |round| {
        let waiting = any_of(&mut random, &WAITING);
        let arguments = format!("--seconds 0.5 --mode {waiting} --connections 2 --seed {round}");
        let seeds = seeds_of(round as u64, 2);
        let mut client = server.client(mode, &arguments).spawn();
        connected(&server, &mut client);
        moment(&mut random, 40);
        let stopped = if random.below(2) == 0 { &client } else { &server.program };
        for _ in 0..3 {
            stopped.signal(Signal::SIGSTOP);
            moment(&mut random, 50);
            stopped.signal(Signal::SIGCONT);
            moment(&mut random, 10);
        }
        // A transfer that is over may have been over before the last stop.
        let hit = client.is_running() && ended(&server, &seeds) == 0;
        client.finish(PATIENCE).success();
        let reported = wait_until(PROMPTLY, || ended(&server, &seeds) == seeds.len());
        assert!(reported, "round {round} ({waiting}): {:#?}", server.reports());
        server.assert_sound();
        hit
    });
}

fn stop_and_kill(mode: Mode<'_>, rounds: usize) {
    let mut random = Random::new(13);
    let mut server = Server::start(mode, "epoll");
    let before = settle(&mut server, mode);
    for round in 0..rounds {
        let waiting = any_of(&mut random, &WAITING);
        let arguments = format!("--seconds 20 --mode {waiting} --seed {round}");
        let mut client = server.client(mode, &arguments).spawn();
        connected(&server, &mut client);
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
