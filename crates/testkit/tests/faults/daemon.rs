//! viaductd killed and restarted: what runs goes on, and what comes later is accelerated again.

use crate::{PATIENCE, PROMPTLY, moment, settle, until_hit};
use nix::sys::signal::Signal;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use viaduct_control::message::Stats;
use viaduct_control::runtime::socket_path;
use viaduct_testkit::pattern::Random;
use viaduct_testkit::processes::{connections_to, free_port, signal, wait_until};
use viaduct_testkit::{Instance, Launch, Mode, Program, Server, can_run};

/// How often viaductd is killed or stopped, and how often while it pairs.
const ROUNDS: u64 = 60;
const PAIRING_ROUNDS: usize = 20;

pub(crate) const FAULTS: u64 = ROUNDS + PAIRING_ROUNDS as u64;

/// Stream bytes that the connections of process `pid` have carried.
fn carried(instance: &Instance, pid: u32) -> u64 {
    let rows = instance.status();
    let own = rows.iter().filter(|row| row.pid == pid);
    own.map(|row| row.bytes_sent + row.bytes_received).sum()
}

#[test]
fn viaductd_may_die_and_come_back() {
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let mut random = Random::new(3);
    let mut server = Server::start(mode, "epoll");
    let before = settle(&mut server, mode);
    let mut lasting = server.client(mode, "--seconds 1000 --connections 2 --seed 5").spawn();
    let fast = instance.wait_for_status(PATIENCE, |rows| {
        let mut own = rows.iter().filter(|row| row.pid == lasting.pid());
        own.clone().count() == 2 && own.all(|row| row.is_fast_both_ways())
    });
    assert!(fast.is_ok(), "{fast:#?}");

    for round in 0..ROUNDS {
        // Asked to end, it leaves in order, which must look no different.
        if round % 4 == 3 {
            instance.stop_daemon();
        } else {
            instance.kill_daemon();
        }
        let sent = carried(&instance, lasting.pid());
        // Connections that begin while nobody pairs them go over TCP.
        let early = (round % 6 == 0).then(|| begins_on_tcp(&instance, &server, round));
        moment(&mut random, 60);
        let moves = wait_until(PATIENCE, || carried(&instance, lasting.pid()) > sent + 1_000_000);
        assert!(moves, "round {round}: running connections stand still without viaductd");
        instance.start_daemon();
        if let Some(early) = early {
            assert_becomes_fast(&instance, &early, round);
        }
        moment(&mut random, 40);
        server.assert_sound();
        assert!(lasting.is_running(), "round {round}: {}", lasting.output());
        if round % 6 == 5 {
            let arguments = format!("--seconds 100 --seed {}", 1000 + round);
            assert_becomes_fast(&instance, &server.client(mode, &arguments).spawn(), round);
        }
    }
    lasting.kill();
    assert_eq!(server.returns_to(before, PROMPTLY), Ok(()));
}

/// What a viaductd has matched and not yet handed to both ends dies with it; the next one is to match it again.
#[test]
fn viaductd_may_die_while_it_pairs() {
    const CONNECTIONS: usize = 8;
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let mut random = Random::new(19);
    let mut server = Server::start(mode, "epoll");
    let before = settle(&mut server, mode);
    let mut last = None;
    until_hit(PAIRING_ROUNDS, |round| {
        let Stats { pairs, offers, .. } = instance.stats();
        let standing = connections_to(server.program.pid(), server.port);
        let arguments = format!("--seconds 100 --connections {CONNECTIONS} --seed {round}");
        let client = server.client(mode, &arguments).spawn();
        let mut hit = true;
        if round % 2 == 0 {
            // With mail underway in both directions.
            let paired = wait_until(PATIENCE, || instance.stats().pairs > pairs);
            assert!(paired, "round {round}: {:?}", instance.stats());
            signal(instance.daemon_pid(), Signal::SIGSTOP);
            moment(&mut random, 10);
        } else {
            let connected = || connections_to(server.program.pid(), server.port) > standing;
            assert!(
                wait_until(PATIENCE, connected),
                "round {round}: the client does not connect"
            );
            moment(&mut random, 40);
            // Paired, or about to be.
            hit = instance.stats().offers > offers;
        }
        instance.kill_daemon();
        moment(&mut random, 10);
        instance.start_daemon();
        let fast = instance.wait_for_status(Duration::from_secs(10), |rows| {
            let own = rows.iter().filter(|row| row.pid == client.pid());
            own.filter(|row| row.is_fast_both_ways()).count() == CONNECTIONS
        });
        assert!(
            fast.is_ok(),
            "round {round}: not accelerated though viaductd is back: {fast:#?}"
        );
        server.assert_sound();
        // Until now that of the viaductd before, so that what the server knows from two of them meets in it.
        last = Some(client);
        hit
    });
    drop(last);
    assert_eq!(server.returns_to(before, PROMPTLY), Ok(()));
}

/// A client that is started while viaductd is away, and runs on.
fn begins_on_tcp(instance: &Instance, server: &Server, round: u64) -> Program {
    let mode = Mode::Accelerated(instance);
    let arguments = format!("--bytes 500000 --seed {round}");
    server.client(mode, &arguments).run(PATIENCE).success();
    let arguments = format!("--seconds 100 --seed {}", 2000 + round);
    let client = server.client(mode, &arguments).spawn();
    let moves = wait_until(PATIENCE, || carried(instance, client.pid()) > 1_000_000);
    let totals = instance.totals_of(client.pid());
    assert!(moves && totals.fast_bytes() == 0, "round {round}: {totals:?}");
    client
}

/// Fails if no bytes of `client` go over shared memory both ways soon.
fn assert_becomes_fast(instance: &Instance, client: &Program, round: u64) {
    let fast = instance.wait_for_status(PATIENCE, |rows| {
        rows.iter()
            .any(|row| row.pid == client.pid() && row.is_fast_both_ways())
    });
    assert!(
        fast.is_ok(),
        "round {round}: not accelerated though viaductd is back: {fast:#?}"
    );
}

#[test]
fn programs_started_before_viaductd_are_accelerated_once_it_is_there() {
    let instance = Instance::without_daemon();
    let server = Server::start(Mode::Accelerated(&instance), "epoll");
    let client = begins_on_tcp(&instance, &server, 0);
    instance.start_daemon();
    assert_becomes_fast(&instance, &client, 0);
    // Their viaductd is the one that was started, and nobody has started another.
    assert_eq!(instance.stats().processes, 2);
    instance.kill_daemon();
}

/// Who asks while viaductd is on its way asks again when it is there, not a second later. The server has a connection
/// to the viaductd that has gone.
#[test]
fn a_restart_delays_what_begins_meanwhile_by_little_more_than_it_takes() {
    for options in [&[][..], &["--same-user"]] {
        let instance = Instance::start_with(options);
        let mode = Mode::Accelerated(&instance);
        let server = Server::start(mode, "epoll");
        let mut delays: Vec<_> = (0..5)
            .map(|round| {
                instance.kill_daemon();
                let gone = Instant::now();
                let client = begins_on_tcp(&instance, &server, round);
                instance.start_daemon();
                let ready = Instant::now();
                assert_becomes_fast(&instance, &client, round);
                // Who is away for long is looked for as seldom.
                (ready.elapsed().saturating_sub(ready - gone), ready - gone)
            })
            .collect();
        delays.sort();
        // Of a busy machine, which starts viaductd late, the middle one: the best would hide all others.
        assert!(delays[2].0 < Duration::from_millis(300), "{options:?}: {delays:?}");
    }
}

/// The server's first offer after that finds the connection to the old one.
#[test]
fn the_first_connection_after_a_restart_waits_for_no_second() {
    for options in [&[][..], &["--same-user"]] {
        let instance = Instance::start_with(options);
        let mode = Mode::Accelerated(&instance);
        let server = Server::start(mode, "epoll");
        let becomes_fast = |round| {
            let begun = Instant::now();
            let client = server.client(mode, "--seconds 100").spawn();
            assert_becomes_fast(&instance, &client, round);
            begun.elapsed()
        };
        becomes_fast(0);
        let mut delays: Vec<_> = (1..6)
            .map(|round| {
                instance.kill_daemon();
                instance.start_daemon();
                becomes_fast(round)
            })
            .collect();
        delays.sort();
        assert!(delays[2] < Duration::from_millis(900), "{options:?}: {delays:?}");
    }
}

const ECHO: &str = "import socket, sys, threading
def serve(c):
    while d := c.recv(1):
        c.sendall(d)
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

/// Has a second connection once there is a file, and asks seldom on it.
const ASK_SELDOM: &str = "import os, socket, sys, time
def connect():
    return socket.create_connection(('127.0.0.1', int(sys.argv[1])))
def ask(s):
    s.sendall(b'x')
    assert s.recv(1) == b'x'
first = connect()
while not os.path.exists(sys.argv[2]):
    ask(first)
    time.sleep(0.01)
second = connect()
while True:
    ask(second)
    time.sleep(0.2)
";

/// Such a connection carries eight messages in a second.
#[test]
fn what_was_offered_to_a_viaductd_that_dies_is_offered_anew_soon_though_little_is_sent() {
    if !can_run(false, &["python3"]) {
        return;
    }
    for options in [&[][..], &["--same-user"]] {
        let instance = Instance::start_with(options);
        let mode = Mode::Accelerated(&instance);
        let (port, told) = (free_port(), instance.scratch("told"));
        let start = |code: &str, more: &[&str]| {
            let number = port.to_string();
            let words = [&["-c", code, &number], more].concat();
            Launch::new(mode, "python3", words).options("--offer now").spawn()
        };
        let _server = start(ECHO, &[]).listening(port);
        let client = start(ASK_SELDOM, &[told.to_str().unwrap()]);
        let expect = |fast: usize, offered: usize| {
            let found = instance.wait_for_status(PATIENCE, |rows| {
                rows.iter().filter(|row| row.is_fast_both_ways()).count() == fast
                    && rows.iter().filter(|row| row.reason == "offered").count() == offered
            });
            assert!(found.is_ok(), "{options:?}: {found:#?} {}", client.errors());
        };
        // Both have said hello.
        expect(2, 0);
        signal(instance.daemon_pid(), Signal::SIGSTOP);
        File::create(&told).unwrap();
        expect(2, 2);
        instance.kill_daemon();
        instance.start_daemon();
        let ready = Instant::now();
        expect(4, 0);
        assert!(
            ready.elapsed() < Duration::from_secs(10),
            "{options:?}: {:?}",
            ready.elapsed()
        );
    }
}

/// A program that only waits leaves a child behind, which has neither run another program nor kept any descriptor of
/// its parent's.
#[test]
fn viaductd_stays_as_long_as_programs_run_without_connections() {
    if !can_run(true, &["bash", "mkfifo"]) {
        return;
    }
    let instance = Instance::start_with(&["--idle-exit", "1"]);
    let over = instance.scratch("over");
    let script = r#"mkfifo "$0"; (exec 1>&- 2>&-; read <>"$0") & exit 0"#;
    let arguments = ["-c", script, over.to_str().unwrap()];
    Launch::new(Mode::Accelerated(&instance), Path::new("bash"), arguments)
        .run(PATIENCE)
        .success();
    let serves = || socket_path(instance.dir()).exists();
    std::thread::sleep(Duration::from_secs(3));
    assert!(serves(), "viaductd has left a program alone");
    // Opened so that nobody has to be there.
    let mut over = File::options().read(true).write(true).open(over).unwrap();
    over.write_all(b"\n").unwrap();
    assert!(
        wait_until(PATIENCE, || !serves()),
        "viaductd stays though nobody is left"
    );
}
