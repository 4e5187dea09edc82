//! What `viaduct run` is told, on live connections: each option next to what happens without it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use viaduct_control::runtime::socket_path;
use viaduct_testkit::binaries::binary;
use viaduct_testkit::processes::{free_port, wait_until};
use viaduct_testkit::status::Totals;
use viaduct_testkit::{Instance, Launch, Mode, Program, Server, can_run, where_prompt};

const PATIENCE: Duration = Duration::from_secs(20);

/// What is said of a connection that was not matched, or too late.
const NOT_FAST: &str = "it was not fast";

/// Answers each byte, after so many seconds.
const ANSWER: &str = "import socket, sys, time
c = socket.create_server(('127.0.0.1', int(sys.argv[1]))).accept()[0]
while c.recv(1):
    time.sleep(float(sys.argv[2]))
    c.send(b'a')
";

/// Asks so many times; says how much processor time it took to wait for the answers.
const ASK: &str = "import socket, sys, time
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
used = 0
for n in range(int(sys.argv[2])):
    s.send(b'q')
    used -= time.process_time()
    s.recv(1)
    used += time.process_time()
print(used, flush=True)
time.sleep(100)
";

fn python<'a>(mode: Mode<'a>, code: &str, port: u16, argument: &str, options: &str) -> Launch<'a> {
    Launch::new(mode, "python3", ["-c", code, &port.to_string(), argument]).options(options)
}

/// Fails unless the connections of `program` carry bytes, none of them over shared memory, for the given reason.
fn assert_stays_on_tcp(instance: &Instance, program: &Program, reason: &str) {
    let told = instance.wait_for_status(PATIENCE, |rows| {
        let mut own = rows.iter().filter(|row| row.pid == program.pid());
        own.any(|row| row.path == "tcp" && row.reason == reason && row.bytes_sent + row.bytes_received > 10_000_000)
    });
    assert!(told.is_ok(), "{told:#?}");
    assert_eq!(instance.totals_of(program.pid()).fast_bytes(), 0);
}

fn assert_fast(instance: &Instance, program: &Program) {
    let fast = instance.wait_for_status(PATIENCE, |rows| {
        rows.iter()
            .any(|row| row.pid == program.pid() && row.is_fast_both_ways())
    });
    assert!(fast.is_ok(), "{fast:#?}");
}

#[test]
fn a_rule_keeps_its_connections_on_tcp() {
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let [ruled, other] = [(); 2].map(|()| Server::start(mode, "epoll"));
    let rules = instance.scratch("rules.toml");
    std::fs::write(
        &rules,
        format!("[[rules]]\naction = \"tcp\"\nport = \"{}\"\n", ruled.port),
    )
    .unwrap();
    let options = format!("--offer now --rules {}", rules.display());
    let start = |server: &Server| server.client(mode, "--seconds 100").options(&options).spawn();
    let (ruled_client, other_client) = (start(&ruled), start(&other));
    assert_stays_on_tcp(&instance, &ruled_client, "rule-tcp");
    assert_fast(&instance, &other_client);
}

#[test]
fn the_path_may_be_tcp() {
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let server = Server::start(mode, "epoll");
    let client = server.client(mode, "--seconds 100").options("--path tcp --offer now");
    assert_stays_on_tcp(&instance, &client.spawn(), "policy-tcp");
}

#[test]
fn the_path_may_be_shared_memory_before_a_connection_has_shown_itself_worth_it() {
    if !can_run(false, &["python3"]) {
        return;
    }
    // What viaductd does not answer within fifty milliseconds stays on TCP for a second.
    where_prompt(&[NOT_FAST], || {
        let instance = Instance::start();
        let mode = Mode::Accelerated(&instance);
        for (options, exchanges, fast) in [("--path shm", "50", true), ("--path auto", "10", false)] {
            let port = free_port();
            let server = python(mode, ANSWER, port, "0.02", options).spawn().listening(port);
            // How soon the two are matched is the machine's; ten exchanges are not worth it without the option.
            let client = python(mode, ASK, port, exchanges, options).spawn();
            let mut totals = Vec::new();
            let seen = wait_until(PATIENCE, || {
                totals = [client.pid(), server.pid()].map(|pid| instance.totals_of(pid)).into();
                let is_fast = |totals: &Totals| totals.fast_bytes_sent > 0 && totals.fast_bytes_received > 0;
                (fast && totals.iter().all(is_fast)) || client.output().ends_with('\n')
            });
            assert!(seen, "{options}: {totals:#?}");
            for totals in totals {
                if fast {
                    let both_ways = totals.fast_bytes_sent > 0 && totals.fast_bytes_received > 0;
                    assert!(both_ways, "{options}: {NOT_FAST}: {totals:?}");
                } else {
                    assert_eq!(totals.fast_bytes(), 0, "{options}: {totals:?}");
                }
            }
        }
    });
}

/// Forks for each connection; each child echoes and ends, or kills itself when it is told to.
const FORK: &str = "import os, signal, socket, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
l = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while c := l.accept()[0]:
    if os.fork() == 0:
        while d := c.recv(100):
            if d == b'k':
                os.kill(os.getpid(), signal.SIGKILL)
            c.sendall(d)
        {end}
    c.close()
";

/// Has three connections, one after the other, and the last child killed.
const ASK_CHILDREN: &str = "import socket, sys
for last in 0, 0, 1:
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    for n in range(100):
        s.send(b'q' * 50)
        s.recv(50, socket.MSG_WAITALL)
    if last:
        s.send(b'k')
    else:
        s.shutdown(socket.SHUT_WR)
    try:
        s.recv(1)
    except ConnectionResetError:
        pass
print('done', flush=True)
";

#[test]
fn totals_tell_what_children_have_carried_that_have_ended() {
    if !can_run(false, &["python3"]) {
        return;
    }
    // What is not paired within fifty milliseconds begins on TCP.
    where_prompt(&[NOT_FAST], || {
        let instance = Instance::start();
        let mode = Mode::Accelerated(&instance);
        for end in ["os._exit(0)", "sys.exit()", "os.fork() or os._exit(0); os._exit(0)"] {
            let port = free_port();
            let code = FORK.replace("{end}", end);
            let server = python(mode, &code, port, "", "--offer wait").spawn().listening(port);
            let client = python(mode, ASK_CHILDREN, port, "", "--offer wait").spawn();
            let mut totals = Totals::default();
            let seen = wait_until(PATIENCE, || {
                let all = instance.totals();
                totals = instance.totals_of(server.pid());
                client.output().contains("done") && all.iter().filter(|totals| totals.program == "python3").count() == 1
            });
            assert!(seen, "{end}: {}: {:#?}", client.errors(), instance.totals());
            let bytes = (totals.bytes_sent, totals.bytes_received);
            assert_eq!(bytes, (10_000, 10_000), "{end}: {totals:?}");
            assert!(totals.fast_bytes_sent > 9000, "{end}: {NOT_FAST}: {totals:?}");
            // The server has closed three ends itself; two children have ended in order.
            assert_eq!(
                (totals.ended, totals.ended_fast, totals.lost),
                (5, 2, 1),
                "{end}: {totals:?}"
            );
        }
    });
}

/// Listens and becomes another program, as what a service manager starts is given its socket.
const LISTEN: &str = "import os, socket, sys
l = socket.create_server(('127.0.0.1', int(sys.argv[1])))
os.set_inheritable(l.fileno(), True)
os.execvp('python3', ['python3', '-c', sys.argv[2], str(l.fileno())])
";

/// Accepts Unix connections, of which one stays open, and then an echo connection from the listener that it was given.
const ACCEPT_ALL: &str = "import socket, sys
u, ends = socket.socket(socket.AF_UNIX), []
u.bind('')
u.listen()
for last in 0, 1:
    near = socket.socket(socket.AF_UNIX)
    near.connect(u.getsockname())
    ends = [near, u.accept()[0]]
    for n in range(100):
        for sender, receiver in ends, ends[::-1]:
            sender.sendall(b'u' * 50)
            receiver.recv(50, socket.MSG_WAITALL)
    if not last:
        [end.close() for end in ends]
c = socket.socket(fileno=int(sys.argv[1])).accept()[0]
while d := c.recv(100):
    c.sendall(d)
";

#[test]
fn totals_tell_of_tcp_connections_only() {
    if !can_run(false, &["python3"]) {
        return;
    }
    // What is not paired within fifty milliseconds begins on TCP.
    where_prompt(&[NOT_FAST], || {
        let instance = Instance::start();
        let mode = Mode::Accelerated(&instance);
        let port = free_port();
        let server = python(mode, LISTEN, port, ACCEPT_ALL, "--offer wait")
            .spawn()
            .listening(port);
        let client = python(mode, ASK, port, "200", "--offer wait").spawn();
        let done = wait_until(PATIENCE, || client.output().ends_with('\n'));
        assert!(done, "{}{}", client.errors(), server.errors());
        let totals = instance.totals_of(server.pid());
        assert_eq!((totals.open, totals.ended), (1, 0), "{totals:?}");
        assert_eq!((totals.bytes_sent, totals.bytes_received), (200, 200), "{totals:?}");
        assert!(
            totals.open_fast == 1 && totals.fast_bytes_sent > 0,
            "{NOT_FAST}: {totals:?}"
        );
    });
}

/// Seconds of processor time that it takes to wait for answers that come too late for polling to pay.
fn waiting(instance: &Instance, spin: &str) -> f64 {
    let mode = Mode::Accelerated(instance);
    let options = format!("--offer now --spin {spin}");
    let port = free_port();
    let _server = python(mode, ANSWER, port, "0.001", &options).spawn().listening(port);
    let client = python(mode, ASK, port, "1000", &options).spawn();
    let done = wait_until(PATIENCE, || client.output().ends_with('\n'));
    assert!(done, "{}", client.errors());
    let totals = instance.totals_of(client.pid());
    assert!(totals.fast_bytes_received > 900, "{NOT_FAST}: {totals:?}");
    client.output().trim().parse().unwrap()
}

#[test]
fn a_waiter_polls_though_it_never_pays_or_not_at_all() {
    if !can_run(false, &["python3"]) {
        return;
    }
    // What viaductd does not answer within fifty milliseconds stays on TCP for a second.
    where_prompt(&[NOT_FAST, "seconds of polling"], || {
        let instance = Instance::start();
        // A thousand waits, each of which polls for 100 us where it is told to; others may want the processors.
        let mut seen = Vec::new();
        let told = (0..3).any(|_| {
            let [always, auto, never] = ["always", "auto", "never"].map(|spin| waiting(&instance, spin));
            seen.push(format!("always {always}, auto {auto}, never {never}"));
            always > auto + 0.04 && always > never + 0.04
        });
        assert!(told, "seconds of polling: {seen:#?}");
    });
}

/// Says how long `accept` takes with a client that has connected before.
const ACCEPT: &str = "import select, socket, sys, time
l = socket.create_server(('127.0.0.1', int(sys.argv[1])))
p = select.poll(); p.register(l, select.POLLIN); p.poll()
before = time.monotonic()
c = l.accept()[0]
print(time.monotonic() - before, flush=True)
c.send(b'x'); c.recv(1)
";

/// Says how long `connect` takes.
const CONNECT: &str = "import socket, sys, time
s = socket.socket()
before = time.monotonic()
s.connect(('127.0.0.1', int(sys.argv[1])))
print(time.monotonic() - before, flush=True)
s.recv(1); s.send(b'x')
";

/// Seconds that `connect` and `accept` take, each native or accelerated.
fn connect_and_accept(near: Mode<'_>, far: Mode<'_>) -> (f64, f64) {
    let port = free_port();
    let accepting = python(far, ACCEPT, port, "", "--offer wait").spawn().listening(port);
    let connected = python(near, CONNECT, port, "", "--offer wait").run(PATIENCE).success();
    let accepted = accepting.finish(PATIENCE).success();
    let seconds = |output: &str| output.trim().parse().unwrap();
    (seconds(&connected), seconds(&accepted))
}

#[test]
fn whoever_waits_for_a_match_waits_fifty_milliseconds_at_most() {
    if !can_run(false, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let accelerated = Mode::Accelerated(&instance);
    // Nobody will match a connection whose other end is plain. The least of some tries: what is more is the machine's.
    let least = |near, far| {
        let tries: Vec<_> = (0..5).map(|_| connect_and_accept(near, far)).collect();
        println!("seconds of connect and accept: {tries:?}");
        tries
            .into_iter()
            .reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)))
    };
    let held = 0.045..0.1;
    let (connect, accept) = least(accelerated, Mode::Native).unwrap();
    assert!(held.contains(&connect), "connect took {connect} s");
    assert!(accept < 0.04, "a native accept took {accept} s");
    let (connect, accept) = least(Mode::Native, accelerated).unwrap();
    assert!(connect < 0.04, "a native connect took {connect} s");
    assert!(held.contains(&accept), "accept took {accept} s");
    assert_eq!(instance.stats().pairs, 0);
}

/// Connects as event loops do, without waiting, and has so many messages echoed; a blocking server has them from its
/// first byte on.
const CONNECT_AT_ONCE: &str = "import select, socket, sys, time
s = socket.socket()
s.setblocking(False)
s.connect_ex(('127.0.0.1', int(sys.argv[1])))
p = select.poll()
for n in range(int(sys.argv[2])):
    p.register(s, select.POLLOUT); p.poll()
    s.send(b'q')
    p.register(s, select.POLLIN); p.poll()
    s.recv(1)
print('done', flush=True)
time.sleep(100)
";

#[test]
fn whoever_waits_for_a_match_has_every_byte_on_the_fast_path() {
    if !can_run(false, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    for ask in [ASK, CONNECT_AT_ONCE] {
        let mut seen = Vec::new();
        // Fifty milliseconds may be too short where others take the processors.
        let all_fast = (0..5).any(|_| {
            let port = free_port();
            let server = python(mode, ANSWER, port, "0", "--offer wait").spawn().listening(port);
            let client = python(mode, ask, port, "20", "--offer wait").spawn();
            let done = wait_until(PATIENCE, || client.output().ends_with('\n'));
            assert!(done, "{}", client.errors());
            let totals = [client.pid(), server.pid()].map(|pid| instance.totals_of(pid));
            let fast = |totals: &Totals| {
                (totals.bytes_sent, totals.bytes_received) == (20, 20)
                    && (totals.fast_bytes_sent, totals.fast_bytes_received) == (20, 20)
            };
            let is_fast = totals.iter().all(fast);
            seen.push(totals);
            is_fast
        });
        assert!(all_fast, "{seen:#?}");
    }
}

/// The viaductd that `viaduct run` starts, but for the time after which it leaves.
const SOON_IDLE: &str = "#!/bin/sh
[ \"$1 $3 $4 $5\" = '--dir --idle-exit 60 --ready-fd' ] || exit 1
exec \"$VIADUCTD\" --dir \"$2\" --idle-exit 1 --ready-fd \"$6\"
";

#[test]
fn the_first_program_starts_a_viaductd_that_leaves_after_the_last() {
    // A viaductd that leaves so soon may leave before the first program comes to it.
    where_prompt(&["has left before a program came"], || {
        let instance = Instance::without_daemon();
        let mode = Mode::Accelerated(&instance);
        let file = instance.scratch("viaductd");
        std::fs::write(&file, SOON_IDLE).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        let start = |arguments: &str| {
            Launch::testpeer(mode, arguments)
                .variable("VIADUCT_DAEMON", &file.to_string_lossy())
                .variable("VIADUCTD", &binary("viaductd").to_string_lossy())
                .spawn()
        };
        let port = free_port();
        let mut server = start(&format!("listen 127.0.0.1:{port}")).listening(port);
        assert!(
            socket_path(instance.dir()).exists(),
            "viaductd has left before a program came"
        );
        let first = instance.stats();
        let mut client = start(&format!("connect 127.0.0.1:{port} --seconds 100"));
        assert_fast(&instance, &client);
        let both = instance.stats();
        assert_eq!((both.pid, both.processes), (first.pid, 2), "one viaductd serves both");
        client.kill();
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(instance.stats().pid, first.pid, "it has left a program alone");
        server.kill();
        let left = wait_until(PATIENCE, || {
            !socket_path(instance.dir()).exists() && !std::path::Path::new(&format!("/proc/{}", first.pid)).exists()
        });
        assert!(left, "it stays though nobody is left");
    });
}
