//! Memory that connections have taken for a burst and give back when they are idle.

use std::fs;
use std::process::Command;
use std::time::Duration;
use viaduct_testkit::binaries::binary;
use viaduct_testkit::processes::{free_port, wait_until};
use viaduct_testkit::{Instance, Launch, Mode, Program, can_run};

const PATIENCE: Duration = Duration::from_secs(60);
/// KiB of a segment whose connection is idle: the header page, larger tables of both lanes, and a block each.
const IDLE_KIB: u64 = 4 + 2 * 8 + 2 * 4;

/// Sends bursts of eight megabytes both ways, one whenever the server has been told to. The server reads late, so that
/// lanes fill. `WAIT`: how it waits in between. Each burst's bytes are checked.
const SCRIPT: &str = r#"
import os, select, socket, sys, threading, time
role, way, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
BURST = 8 << 20
def bytes_of(n, m):
    return bytes((n * 7 + m + i) % 251 for i in range(251)) * (BURST // 251 + 1)
def idle(s):
    if way == "block":
        return
    if way == "poll":
        p = select.poll(); p.register(s, select.POLLIN); p.poll()
    elif way == "epoll":
        e = select.epoll(); e.register(s, select.EPOLLIN); e.poll()
    else:
        select.select([s], [], [])
def exactly(s, n):
    got = bytearray()
    while len(got) < n:
        piece = s.recv(min(n - len(got), 1 << 20))
        assert piece, "ended early"
        got += piece
    return bytes(got)
def burst(s, n, mine, theirs):
    sender = threading.Thread(target=s.sendall, args=(bytes_of(n, mine)[:BURST],))
    sender.start()
    time.sleep(0.3)
    got = exactly(s, BURST // 2)
    # Until the test has looked at what the rest takes.
    while not os.path.exists(sys.argv[4] + "-seen" + str(n)):
        time.sleep(0.01)
    assert got + exactly(s, BURST // 2) == bytes_of(n, theirs)[:BURST], "wrong bytes"
    sender.join()
if role == "serve":
    listener = socket.create_server(("127.0.0.1", port))
    s, _ = listener.accept()
    for n in range(2):
        idle(s)
        exactly(s, 1)
        burst(s, n, 1, 2)
    idle(s)
    assert s.recv(1) == b""
else:
    s = socket.create_connection(("127.0.0.1", port))
    for n in range(2):
        s.sendall(b"!")
        burst(s, n, 2, 1)
        print(n, flush=True)
        # Until the test has looked: waiting for bytes that do not come.
        go = sys.argv[4] + str(n)
        while not os.path.exists(go):
            s.settimeout(4)
            try:
                s.recv(1)
            except TimeoutError:
                pass
            s.settimeout(None)
"#;

/// KiB of memory that segments of the program have.
fn segments_kib(program: &Program) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{}/smaps", program.pid())).unwrap_or_default();
    let mut ours = false;
    let mut kib = 0;
    for line in maps.lines() {
        if line.contains("viaduct-segment") {
            ours = true;
        } else if let Some(rest) = line.strip_prefix("Rss:").filter(|_| ours) {
            kib += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            ours = false;
        }
    }
    kib
}

fn burst_and_idle(way: &str) {
    if !can_run(false, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let script = instance.scratch("bursts.py");
    fs::write(&script, SCRIPT).unwrap();
    let port = free_port();
    let go = instance.scratch("go");
    let peer = |role: &str| {
        let words = [
            script.to_str().unwrap(),
            role,
            way,
            &port.to_string(),
            go.to_str().unwrap(),
        ]
        .map(str::to_owned);
        Launch::new(mode, "python3", words).spawn()
    };
    let server = peer("serve").listening(port);
    let client = peer("talk");
    for round in 0..2 {
        let both = || segments_kib(&server).max(segments_kib(&client));
        let mut burst = 0;
        let grown = wait_until(PATIENCE, || {
            burst = both();
            burst > 1024
        });
        assert!(grown, "{way}: {burst} KiB in round {round}: no lane has grown");
        fs::write(format!("{}-seen{round}", go.display()), "").unwrap();
        let done = wait_until(PATIENCE, || client.output().lines().count() > round);
        assert!(done, "{way}: {}{}", client.errors(), server.errors());
        let idle = wait_until(Duration::from_secs(20), || both() <= IDLE_KIB);
        assert!(idle, "{way}: {burst} KiB have become {} in round {round}", both());
        fs::write(format!("{}{round}", go.display()), "").unwrap();
    }
    client.finish(PATIENCE).success();
    server.finish(PATIENCE).success();
}

/// Locks its memory, then exchanges messages on several connections, in one process. With `limited` it may lock less
/// than a lane takes, and locks what it maps from then on.
const LOCKED: &str = "import ctypes, resource, socket, sys, time
libc, flags = ctypes.CDLL(None), 3
if sys.argv[1] == 'limited':
    head, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(head, sets)
    sets[0] &= ~(1 << 14)
    if libc.capset(head, sets):
        raise SystemExit('still may lock what it likes')
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (4 << 20, 4 << 20))
    flags = 2
if libc.mlockall(flags):
    raise SystemExit('not locked')
listener = socket.create_server(('127.0.0.1', 0))
pairs = []
for n in range(4):
    near = socket.create_connection(listener.getsockname())
    pairs.append((near, listener.accept()[0]))
for n in range(1000):
    for near, far in pairs:
        near.sendall(b'x')
        far.sendall(far.recv(1))
        near.recv(1)
print('done', flush=True)
time.sleep(100)
";

fn lock_and_talk(way: &str) {
    if !can_run(true, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let program = Launch::new(Mode::Accelerated(&instance), "python3", ["-c", LOCKED, way])
        .options("--offer now")
        .spawn();
    let ended = || program.output().ends_with('\n') || !program.errors().is_empty();
    assert!(wait_until(PATIENCE, ended));
    let rows = instance.wait_for_status(PATIENCE, |rows| {
        rows.iter().filter(|row| row.path == "shm").count() == 8
    });
    assert!(rows.is_ok(), "{}: {rows:#?}", program.errors());
    let kib = segments_kib(&program);
    // Both ends map them.
    assert!(kib <= 8 * IDLE_KIB, "{kib} KiB");
}

#[test]
fn lanes_of_a_program_that_locks_its_memory_take_what_they_use() {
    lock_and_talk("all");
}

#[test]
fn lanes_of_a_program_that_may_lock_little_take_nothing_of_that() {
    lock_and_talk("limited");
}

/// What `readelf` says of the preload library.
fn read_library(option: &str) -> String {
    let library = binary("libviaduct_preload.so");
    let output = Command::new("readelf").arg(option).arg(library).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Every program would load it too.
#[test]
fn the_library_needs_none_but_the_c_library() {
    if !can_run(false, &["readelf"]) {
        return;
    }
    let text = read_library("-dW");
    let needed: Vec<_> = text.lines().filter(|line| line.contains("(NEEDED)")).collect();
    let is_c = |line: &&str| line.contains("[libc.so") || line.contains("[ld-linux");
    assert!(!needed.is_empty() && needed.iter().all(is_c), "{needed:#?}");
}

/// What is not zero there every program would map from the file, and the file be as long as the tables.
#[test]
fn the_library_s_tables_are_not_in_its_file() {
    if !can_run(false, &["readelf"]) {
        return;
    }
    let text = read_library("-SW");
    // Number, name, type, address, offset and size of each section.
    let size_of = |section: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(']'));
        let (_, line) = lines
            .find(|(_, line)| line.split_whitespace().next() == Some(section))
            .unwrap();
        usize::from_str_radix(line.split_whitespace().nth(4).unwrap(), 16).unwrap()
    };
    assert!(size_of(".bss") > 16 << 20, "{text}");
    assert!(size_of(".data") < 16 << 10, "{text}");
}

#[test]
fn blocking_calls_give_it_back() {
    burst_and_idle("block");
}

#[test]
fn poll_gives_it_back() {
    burst_and_idle("poll");
}

#[test]
fn select_gives_it_back() {
    burst_and_idle("select");
}

#[test]
fn epoll_gives_it_back() {
    burst_and_idle("epoll");
}
