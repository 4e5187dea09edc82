//! What stands in the way of whoever runs programs under Viaduct is told, not left to be guessed.

use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use viaduct_control::Reason;
use viaduct_testkit::binaries::{binary, compile};
use viaduct_testkit::processes::{free_port, signal, wait_until};
use viaduct_testkit::status::Row;
use viaduct_testkit::{Instance, Launch, Mode, Program, Server, can_run};

const PATIENCE: Duration = Duration::from_secs(20);

/// A viaductd with so much in its `[daemon]` table.
fn limited(table: &str) -> (TempDir, Instance) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("viaduct.toml");
    std::fs::write(&file, format!("[daemon]\n{table}\n")).unwrap();
    let instance = Instance::start_with(&["--config", file.to_str().unwrap()]);
    (dir, instance)
}

/// Waits until so many connection ends of the instance show `reason`.
fn expect(instance: &Instance, reason: &str, count: usize) -> Vec<Row> {
    let told = instance.wait_for_status(PATIENCE, |rows| {
        rows.iter().filter(|row| row.reason == reason).count() == count
    });
    let mut rows = told.unwrap_or_else(|rows| panic!("{count} times {reason}: {rows:#?}"));
    rows.retain(|row| row.reason == reason);
    rows
}

fn explain(instance: &Instance, pid: u32) -> String {
    let output = Command::new(binary("viaduct"))
        .arg("explain")
        .arg(pid.to_string())
        .arg("--dir")
        .arg(instance.dir())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_program_too_many_is_told_of_the_limit_until_there_is_room() {
    let (_dir, instance) = limited("processes_per_user = 1");
    let mode = Mode::Accelerated(&instance);
    let server = Server::start(Mode::Native, "epoll");
    let first = server.client(mode, "--seconds 100").spawn();
    expect(&instance, "offered", 1);
    let second = server.client(mode, "--seconds 100").spawn();
    let rows = expect(&instance, "limit-processes", 1);
    assert_eq!(rows[0].pid, second.pid());
    assert_eq!(instance.stats().processes, 1);
    let text = explain(&instance, second.pid());
    assert!(text.contains("`processes_per_user`"), "{text}");
    drop(first);
    assert_eq!(expect(&instance, "offered", 1)[0].pid, second.pid());
}

#[test]
fn offers_that_are_too_many_are_told_of_the_limit() {
    let (_dir, instance) = limited("offers_per_user = 2");
    let server = Server::start(Mode::Native, "epoll");
    let arguments = "--connections 5 --seconds 100";
    let client = server.client(Mode::Accelerated(&instance), arguments).spawn();
    expect(&instance, "limit-offers", 3);
    expect(&instance, "offered", 2);
    let text = explain(&instance, client.pid());
    assert!(text.contains("`offers_per_user`"), "{text}");
}

/// Containers set variables themselves, so nobody has read them before the library does.
#[test]
fn a_misspelt_variable_is_told() {
    let instance = Instance::start();
    let server = Server::start(Mode::Accelerated(&instance), "epoll");
    let client = server
        .client(Mode::Native, "--seconds 100")
        .variable("LD_PRELOAD", binary("libviaduct_preload.so").to_str().unwrap())
        .variable("VIADUCT_DIR", instance.dir().to_str().unwrap())
        .variable("VIADUCT_OFFER", "now")
        .variable("VIADUCT_SPIN", "somtimes")
        .spawn();
    let rows = expect(&instance, "misspelt", 1);
    assert_eq!((rows[0].pid, rows[0].path.as_str()), (client.pid(), "tcp"));
    let text = explain(&instance, client.pid());
    assert!(
        text.contains("VIADUCT_SPIN: expected auto, never or always, found 'somtimes'"),
        "{text}"
    );
}

/// One that is there is not said to be missing, and what was offered in vain is matched once it answers.
#[test]
fn a_viaductd_that_does_not_answer_in_time_is_told() {
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let server = Server::start(mode, "epoll");
    signal(instance.daemon_pid(), Signal::SIGSTOP);
    let client = server.client(mode, "--seconds 100").spawn();
    let rows = instance.wait_for_status(PATIENCE, |rows| {
        let own = || rows.iter().filter(|row| row.pid == client.pid());
        own().next().is_some() && own().all(|row| row.reason == "daemon-slow")
    });
    let explained = explain(&instance, client.pid());
    signal(instance.daemon_pid(), Signal::SIGCONT);
    assert!(rows.is_ok(), "{rows:#?}");
    assert!(explained.contains("did not answer in time"), "{explained}");
    let fast = instance.wait_for_status(PATIENCE, |rows| rows.iter().any(Row::is_fast_both_ways));
    assert!(fast.is_ok(), "{fast:#?}");
}

fn is_loaded(program: &Program) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.pid())).unwrap();
    maps.contains("libviaduct_preload.so")
}

#[test]
fn a_program_that_is_never_to_be_accelerated_has_no_library_if_started_by_viaduct_run() {
    const RULE: &str = "never,program=viaduct-testpeer";
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let server = Server::start(mode, "epoll");
    let arguments = "--connections 3 --seconds 100";
    let client = server.client(mode, arguments).variable("VIADUCT_RULES", RULE).spawn();
    // The server's ends wait for others that do not come.
    expect(&instance, "offered", 3);
    assert!(is_loaded(&server.program) && !is_loaded(&client));
    assert!(instance.status().iter().all(|row| row.pid == server.program.pid()));
    drop(client);

    // Started by another program it has the library, and leaves its connections alone.
    let words = server.client(Mode::Native, arguments).words();
    let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
    let script = format!("{} & wait", words.join(" "));
    let shell = Launch::new(mode, Path::new("/bin/sh"), ["-c", &script])
        .variable("VIADUCT_RULES", RULE)
        .spawn();
    let rows = expect(&instance, "rule-tcp", 3);
    assert!(
        rows.iter().all(|row| row.path == "tcp" && row.pid != shell.pid()),
        "{rows:#?}"
    );
}

/// The kernel kills who makes a longer file than it may, and counters are one.
#[test]
fn a_program_that_may_write_no_files_runs() {
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let server = Server::start(mode, "epoll");
    let words = server.client(Mode::Native, "--connections 3 --bytes 100000").words();
    let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
    // For the program alone: its output would be a file as well.
    let script = format!("ulimit -f 0; exec {} >/dev/null", words.join(" "));
    let client = Launch::new(mode, Path::new("/bin/sh"), ["-c", &script]).spawn();
    let outcome = client.finish(PATIENCE);
    assert!(outcome.status.success(), "{:?}: {}", outcome.status, outcome.errors);
}

/// `viaductd` and `viaduct`, each on its own, with a configuration that names a directory.
#[test]
fn a_viaductd_started_by_hand_serves_the_configured_directory() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("configured");
    std::fs::write(home.path().join("viaduct.toml"), format!("dir = {dir:?}\n")).unwrap();
    let command = |name: &str| {
        let path: PathBuf = binary(name);
        let mut command = Command::new(path);
        command.env("XDG_CONFIG_HOME", home.path());
        for variable in ["VIADUCT_DIR", "VIADUCT_CONFIG"] {
            command.env_remove(variable);
        }
        command
    };
    let mut viaductd = command("viaductd").spawn().unwrap();
    let found = wait_until(PATIENCE, || {
        let output = command("viaduct").args(["doctor", "--json"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains(&format!("running as process {}", viaductd.id()))
    });
    viaductd.kill().unwrap();
    viaductd.wait().unwrap();
    assert!(found);
}

/// Serves one connection in four ways, as told by the first byte: by itself in a forked child (f), likewise and keeps
/// it (k), by a program that it becomes (x), and by a process that it is passed to, which has made a pair of Unix
/// sockets (p), or accepted one (a).
const SERVE: &str = "import os, socket, sys
ways = {}
for way in b'p', b'a':
    if way == b'p':
        ways[way], far = socket.socketpair()
    else:
        accepting, ways[way] = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        accepting.bind('')
        accepting.listen()
        ways[way].connect(accepting.getsockname())
    if os.fork() == 0:
        ways[way].close()
        if way == b'a':
            far = accepting.accept()[0]
        word, fds, _, _ = socket.recv_fds(far, 1, 2)
        c = socket.socket(fileno=fds[0])
        os.close(fds[1])
        while d := c.recv(100):
            c.sendall(d)
        sys.exit()
    far.close()
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
kept = []
while True:
    c = listener.accept()[0]
    for _ in range(64):
        c.sendall(c.recv(1))
    way = c.recv(1)
    if way in ways:
        socket.send_fds(ways[way], [b'.'], [c.fileno(), c.fileno()])
    elif os.fork() == 0:
        if way == b'x':
            os.dup2(c.fileno(), 0)
            os.dup2(c.fileno(), 1)
            c.close()
            os.execvp('cat', ['cat'])
        while d := c.recv(100):
            c.sendall(d)
        sys.exit()
    if way == b'k':
        kept.append(c)
    else:
        c.close()
";

/// Has its connection served as told by its second argument.
const USE: &str = "import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
for n in range(64):
    s.sendall(b'0')
    s.recv(1)
s.sendall(sys.argv[2].encode())
for n in range(1000):
    s.sendall(b'%03d' % n)
    answer = b''
    while len(answer) < 3:
        answer += s.recv(3 - len(answer))
    assert answer == b'%03d' % n, answer
print('done', flush=True)
while True:
    s.sendall(b'x')
    assert s.recv(1) == b'x'
";

#[test]
fn whoever_goes_on_with_a_connection_is_shown() {
    if !can_run(false, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let port = free_port();
    let start = |code: &str, arguments: &[&str]| {
        let all = ["-c", code].into_iter().chain(arguments.iter().copied());
        Launch::new(mode, "python3", all).options("--offer now").spawn()
    };
    let server = start(SERVE, &[&port.to_string()]).listening(port);
    for (way, path, reason) in [
        ("f", "shm", "accelerated"),
        ("k", "shm", "accelerated"),
        ("x", "tcp", "stdio"),
        ("p", "tcp", "passed-on"),
        ("a", "tcp", "passed-on"),
    ] {
        let client = start(USE, &[&port.to_string(), way]);
        let done = wait_until(PATIENCE, || client.output().ends_with('\n'));
        assert!(done, "{way}: {}", client.errors());
        let local = format!("127.0.0.1:{port}");
        let is_served = |row: &&Row| row.local == local && row.pid != server.pid() && row.bytes_sent >= 3000;
        let told = instance.wait_for_status(PATIENCE, |rows| {
            rows.iter()
                .filter(is_served)
                .any(|row| (row.path.as_str(), row.reason.as_str()) == (path, reason))
        });
        let rows = told.unwrap_or_else(|rows| panic!("{way}: {rows:#?}"));
        let served: Vec<_> = rows.iter().filter(is_served).collect();
        assert_eq!(served.len(), 1, "{way}: {served:#?}");
        if way == "k" {
            let shared = format!(
                "Other end: python3 ({}) descriptor {}, shared with process {}",
                served[0].pid,
                served[0].fd,
                server.pid()
            );
            let text = explain(&instance, client.pid());
            assert!(text.contains(&shared), "{text}");
        } else if way == "f" {
            for path in ["tcp", "shm"] {
                instance.move_connection(served[0].pid, served[0].fd, path).unwrap();
                let moved = instance.wait_for_status(PATIENCE, |rows| {
                    rows.iter()
                        .any(|row| (row.pid, row.path.as_str()) == (served[0].pid, path))
                });
                assert!(moved.is_ok(), "to {path}: {moved:#?}");
            }
        } else {
            let other = format!(
                "({}) descriptor {}: {}",
                served[0].pid,
                served[0].fd,
                if way == "x" { Reason::Stdio } else { Reason::PassedOn }.text()
            );
            // One that was passed on is offered again now and then, which for a moment is what is shown.
            let mut text = String::new();
            let told = wait_until(PATIENCE, || {
                text = explain(&instance, client.pid());
                text.contains(&other) && !text.contains(Reason::Offered.advice())
            });
            assert!(told, "{way}: {text}");
        }
    }
}

/// Two questions at once for each answer, which repeats the second; behind a greeting where there is one. Slowly enough
/// for a viaductd that is held up to pair them meanwhile.
const ASK_TWICE: &str = "import socket, sys, time
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
stream = bytes((n * 31 + n // 256) % 256 for n in range(200))
if 'greets' in sys.argv:
    assert s.recv(1) == b'g'
for n in range(0, 200, 2):
    s.sendall(stream[n:n + 2])
    answer = s.recv(1)
    assert answer == stream[n + 1:n + 2], (n, answer)
    time.sleep(0.002)
s.settimeout(0.01)
try:
    raise SystemExit('more than was asked for: %r' % s.recv(1))
except TimeoutError:
    print('done', flush=True)
time.sleep(100)
";
/// What whoever answers has counted.
const ALL_ANSWERED: &str = "200 received, 100 answered\n";

/// Plays it against a client that asks twice for each answer; answers what went by lanes.
fn play_unseen_waits(program: &Path, options: &str, ways: &[&str]) -> u64 {
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let port = free_port();
    let number = port.to_string();
    let server = Launch::new(mode, program, [&[&*number], ways].concat()).options(options);
    let server = server.spawn().listening(port);
    let words = [&["-c", ASK_TWICE, &number], ways].concat();
    let client = Launch::new(mode, "python3", words).options(options).spawn();
    let done = wait_until(PATIENCE, || client.output().ends_with('\n'));
    assert!(
        done,
        "{options} {ways:?}: {:#?} {} {}",
        instance.status(),
        client.errors(),
        server.errors()
    );
    assert_eq!(
        expect(&instance, "unseen-wait", 1)[0].pid,
        server.pid(),
        "{options} {ways:?}"
    );
    let fast = instance.totals_of(server.pid()).fast_bytes();
    drop(client);
    assert_eq!(server.finish(PATIENCE).success(), ALL_ANSWERED, "{options} {ways:?}");
    fast
}

#[test]
fn a_set_of_the_c_librarys_that_is_waited_in_unseen_keeps_its_connections_on_tcp() {
    if !can_run(false, &["python3", "cc"]) {
        return;
    }
    let instance = Instance::start();
    let program = compile("operator", &["unseen_waits"], instance.scratch("unseen_waits"));
    for ways in [&[][..], &["edges"], &["twice"]] {
        assert_eq!(play_unseen_waits(&program, "--offer now", ways), 0, "{ways:?}");
    }
    // These have a lane before it is known where they are waited for.
    for (options, ways) in [
        ("--offer now", &["greets"][..]),
        ("--offer now", &["late"]),
        ("", &["late"]),
        ("--offer wait", &[]),
        ("--offer wait", &["edges"]),
        ("--offer wait", &["twice"]),
    ] {
        play_unseen_waits(&program, options, ways);
    }
}

/// Answers once it has a ring that it has asked for by its number.
const ANSWER_WITH_A_RING: &str = "import ctypes, socket, sys
parameters = ctypes.create_string_buffer(120)
assert ctypes.CDLL(None).syscall(425, 4, parameters) >= 0
s, _ = socket.create_server(('127.0.0.1', int(sys.argv[1]))).accept()
received, answered = b'', 0
while question := s.recv(2, socket.MSG_WAITALL):
    received += question
    s.sendall(question[1:])
    answered += 1
assert received == bytes((n * 31 + n // 256) % 256 for n in range(len(received)))
print(len(received), 'received,', answered, 'answered')
";

#[test]
fn a_ring_of_which_nothing_is_seen_keeps_connections_on_tcp() {
    if !can_run(false, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let port = free_port();
    let number = port.to_string();
    let start = |code| {
        let launch = Launch::new(Mode::Accelerated(&instance), "python3", ["-c", code, &number]);
        launch.options("--offer now").spawn()
    };
    let server = start(ANSWER_WITH_A_RING).listening(port);
    // Before there is a connection, too.
    let text = explain(&instance, server.pid());
    assert!(text.contains(Reason::UnseenRing.text()), "{text}");
    let client = start(ASK_TWICE);
    let done = wait_until(PATIENCE, || client.output().ends_with('\n'));
    assert!(done, "{:#?} {}", instance.status(), client.errors());
    assert_eq!(expect(&instance, Reason::UnseenRing.code(), 1)[0].pid, server.pid());
    assert_eq!(instance.totals_of(client.pid()).fast_bytes(), 0);
    drop(client);
    assert_eq!(server.finish(PATIENCE).success(), ALL_ANSWERED);
}

/// Accepts past the library, by the C library's own functions, after loading code for which that is so if it is to be
/// `barred`.
const ACCEPT_UNSEEN: &str = "import ctypes, os, socket, sys
if sys.argv[2] == 'barred':
    assert ctypes.CDLL(None).dlopen(b'libc.so.6', os.RTLD_NOW | os.RTLD_DEEPBIND)
libc = ctypes.CDLL('libc.so.6')
l = socket.create_server(('127.0.0.1', int(sys.argv[1])))
fd = libc.accept(l.fileno(), None, None)
bytes = ctypes.create_string_buffer(2)
while libc.recv(fd, bytes, 2, socket.MSG_WAITALL) == 2:
    libc.send(fd, ctypes.byref(bytes, 1), 1, 0)
";

#[test]
fn who_runs_under_viaduct_already_is_not_to_be_started_so() {
    if !can_run(false, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let accelerated = Mode::Accelerated(&instance);
    for (mode, way) in [
        (accelerated, "barred"),
        (accelerated, "unseen"),
        (Mode::Native, "unseen"),
    ] {
        let port = free_port();
        let number = port.to_string();
        let server = Launch::new(mode, "python3", ["-c", ACCEPT_UNSEEN, &number, way]).spawn();
        let server = server.listening(port);
        let client = Launch::new(accelerated, "python3", ["-c", ASK_TWICE, &number]);
        let client = client.options("--offer now").spawn();
        let done = wait_until(PATIENCE, || client.output().ends_with('\n'));
        assert!(done, "{way}: {} {}", client.errors(), server.errors());
        let text = explain(&instance, client.pid());
        assert!(text.contains(Reason::Offered.text()), "{way}: {text}");
        let other = format!("Other end: python3 ({})", server.pid());
        let is_told = !matches!(mode, Mode::Native);
        assert_eq!(text.contains(&other), is_told, "{way}: {text}");
        assert_eq!(text.contains(Reason::UnseenCalls.text()), way == "barred", "{text}");
        assert_eq!(text.contains(Reason::Offered.advice()), !is_told, "{way}: {text}");
    }
}

/// Forty processes, each with a connection that stays.
const CROWD: &str = "import os, socket, sys, time
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])), backlog=64)
for n in range(40):
    if os.fork() == 0:
        near = socket.create_connection(listener.getsockname())
        near.sendall(b'x')
        near.recv(1)
        os._exit(0)
far = [listener.accept()[0] for n in range(40)]
time.sleep(100)
";

#[test]
fn connections_of_more_programs_than_descriptors_are_moved_at_once() {
    if !can_run(false, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let port = free_port().to_string();
    let _crowd = Launch::new(Mode::Accelerated(&instance), "python3", ["-c", CROWD, &port]).spawn();
    let all = instance.wait_for_status(PATIENCE, |rows| {
        rows.iter().filter(|row| row.bytes_sent == 1).count() == 40
    });
    assert!(all.is_ok(), "{all:#?}");
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -S -n 20; exec \"$0\" path --no-wait --dir \"$1\" \":$2\" tcp",
        ])
        .arg(binary("viaduct"))
        .arg(instance.dir())
        .arg(&port)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
