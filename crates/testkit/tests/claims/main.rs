//! A process of another user that claims the connections of programs under Viaduct: it gets nothing, is told why, and
//! changes nothing for them.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use viaduct_control::counters::REGION_WORDS;
use viaduct_control::message::MODE_TICKET;
use viaduct_testkit::binaries::binary;
use viaduct_testkit::peer::{Report, reports};
use viaduct_testkit::processes::{free_port, wait_until};
use viaduct_testkit::prompt::Watch;
use viaduct_testkit::status::Row;
use viaduct_testkit::{Instance, Launch, Mode, Program, can_run};

const PATIENCE: Duration = Duration::from_secs(30);

/// Whose connections are claimed, and who claims them.
const VICTIM: u32 = 61_001;
const OTHER: u32 = 61_002;

/// It speaks to viaductd by itself.
const CLAIMS: &str = include_str!("claims.py");

/// Asks and answers 500 times on a connection for each way to wait. Nobody goes on before the other has woken it.
const ECHOES: &str = r#"
import ctypes, os, select, socket, struct, sys

SHUTDOWN = {"x86_64": 48, "aarch64": 210}[os.uname().machine]
libc = ctypes.CDLL(None)

def confine():
    # Is killed from now on if it shuts anything down.
    steps = (0x20, 0, 0, 0), (0x15, 0, 1, SHUTDOWN), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0

def break_bells():
    # What the library has is out of the program's way.
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    assert 0 in [libc.syscall(SHUTDOWN, fd, socket.SHUT_RDWR) for fd in files if fd > 100]

def turns(way, end, asks):
    # What watches a connection when it is offered decides which bell it gets.
    watched = {"poll": select.poll, "epoll": select.epoll}.get(way, lambda: None)()
    if watched:
        watched.register(end, select.POLLIN)
    for turn in range(500):
        if way == "forks" and turn == 250 and os.fork():
            # The bells are not the child's, which goes on.
            assert os.wait()[1] == 0
            return
        if way == "confined" and turn == 250 + asks:
            break_bells() if asks else confine()
        for sends in (asks, not asks):
            if sends:
                end.sendall(b"%8d" % turn)
            else:
                if watched:
                    watched.poll()
                assert end.recv(8) == b"%8d" % turn
    if way == "forks":
        os._exit(0)

address = ("127.0.0.1", int(sys.argv[1]))
asks = len(sys.argv) > 2
listener = None if asks else socket.create_server(address)
ends = []
for way in ("receive", "poll", "epoll", "forks", "confined"):
    ends += [socket.create_connection(address) if asks else listener.accept()[0]]
    turns(way, ends[-1], asks)
# As long as the test looks at how they were woken.
print("done", flush=True)
ends[-1].recv(1) if asks else listener.accept()
"#;

/// The words that start a program as another user.
fn as_user(user: u32, words: &[&str]) -> Vec<String> {
    let other = [
        format!("--reuid={user}"),
        format!("--regid={user}"),
        "--clear-groups".into(),
    ];
    let words = words.iter().map(|word| (*word).to_owned());
    other.into_iter().chain(words).collect()
}

/// A checked peer of the victim's.
fn peer(mode: Mode<'_>, arguments: &str) -> Program {
    peer_of(VICTIM, mode, arguments, "")
}

/// A user's, with more options for Viaduct.
fn peer_of(user: u32, mode: Mode<'_>, arguments: &str, options: &str) -> Program {
    let file = binary("viaduct-testpeer").display().to_string();
    let words: Vec<&str> = [file.as_str()].into_iter().chain(arguments.split(' ')).collect();
    Launch::new(mode, "setpriv", as_user(user, &words))
        .options(options)
        .spawn()
}

/// The other user's process, with the size of its counters as last argument.
fn claims(arguments: &[&str]) -> Program {
    let region = (REGION_WORDS * size_of::<u64>()).to_string();
    let words = [&["python3", "-c", CLAIMS], arguments, &[&region]].concat();
    // Root's own may be where others may not go.
    Launch::new(Mode::Native, "setpriv", as_user(OTHER, &words))
        .variable("PATH", "/usr/local/bin:/usr/bin:/bin")
        .spawn()
}

/// A viaductd for all users of the machine, whose directory they may enter.
fn for_all() -> Instance {
    let instance = Instance::start();
    assert_eq!(instance.stats().mode, MODE_TICKET);
    std::fs::set_permissions(instance.dir(), PermissionsExt::from_mode(0o755)).unwrap();
    instance
}

/// Waits until a process has said that it is done, and holds what it has been answered against what it must be, claim
/// by claim.
fn assert_answers(program: &Program, expected: &[(&str, &str)]) {
    let done = wait_until(PATIENCE, || program.output().contains("done: "));
    let said = program.output();
    assert!(done, "{said}{}", program.errors());
    let told: HashMap<&str, &str> = said.lines().filter_map(|line| line.split_once(": ")).collect();
    for (claim, answer) in expected {
        assert_eq!(told.get(claim), Some(answer), "{claim}: {told:#?}");
    }
}

/// The number by which the kernel knows the socket with these addresses.
fn cookie(local: &str, remote: &str) -> u64 {
    let output = Command::new("ss")
        .args(["-tneH", "src", local, "dst", remote])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let word = text.split_whitespace().find_map(|word| word.strip_prefix("sk:"));
    u64::from_str_radix(word.unwrap_or_else(|| panic!("{text}")), 16).unwrap()
}

/// What `viaduct doctor` tells the other user of the viaductd in a directory.
fn doctor(dir: &Path) -> String {
    let (file, dir) = (binary("viaduct").display().to_string(), dir.display().to_string());
    let words = as_user(OTHER, &[&file, "doctor", "--dir", &dir]);
    let output = Command::new("setpriv").args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text
        .lines()
        .find(|line| line.contains("  viaductd  "))
        .map(str::to_owned);
    line.unwrap_or(text)
}

/// A viaductd that the other user has started for itself; killed on drop.
struct OwnDaemon(std::process::Child);

impl OwnDaemon {
    fn start(dir: &Path) -> Self {
        let (daemon, text) = (binary("viaductd").display().to_string(), dir.display().to_string());
        let words = as_user(OTHER, &[&daemon, "--dir", &text]);
        let mut command = Command::new("setpriv");
        let child = command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let own = Self(child.unwrap());
        let listens = wait_until(PATIENCE, || doctor(dir).contains("running as process"));
        assert!(listens, "{}", doctor(dir));
        own
    }
}

impl Drop for OwnDaemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The reports of both ends of each connection, which have lost nothing.
fn assert_whole(near: &[Report], far: &[Report]) {
    assert!(!near.is_empty());
    for near in near {
        let far = far.iter().find(|far| far.seed == near.seed).unwrap();
        near.assert_whole(far);
        assert!(near.sent > 1_000_000 && near.received > 1_000_000, "{near:?}");
    }
}

#[test]
fn the_other_end_of_anothers_connection() {
    if !can_run(true, &["setpriv", "python3", "ss"]) {
        return;
    }
    let instance = for_all();
    let port = free_port();
    // It is not under Viaduct, so its end is there to be claimed.
    let server = peer(Mode::Native, &format!("listen 127.0.0.1:{port}")).listening(port);
    let client = peer(
        Mode::Accelerated(&instance),
        &format!("connect 127.0.0.1:{port} --seconds 15 --seed 3"),
    );
    let offered = |pid: u32| {
        let told = instance.wait_for_status(PATIENCE, |rows| {
            rows.iter()
                .any(|row| row.pid == pid && row.reason == "offered" && row.bytes_sent > 100_000)
        });
        let rows = told.unwrap_or_else(|rows| panic!("{rows:#?}"));
        rows.into_iter().find(|row| row.pid == pid).unwrap()
    };
    let row = offered(client.pid());
    let number = cookie(&row.remote, &row.local).to_string();
    let victim = row.pid.to_string();
    let dir = instance.dir().display().to_string();
    let refused = instance.stats().refused;
    let other = claims(&[&dir, &row.remote, &row.local, &number, &victim]);
    let expected = [
        ("addresses", "refused 1 no-ticket"),
        ("an invented ticket", "refused 2 no-ticket"),
        ("a ticket of its own", "nothing"),
        ("the same again", "refused 4 no-ticket"),
        ("in the victim's place", "nothing"),
        ("other nonces", "refused"),
        ("sequence numbers", "EPERM"),
        // What is its own is paired, so that nothing else was in the way.
        ("its own connection", "['paired 1000000', 'paired 1000001']"),
        ("withdrawn and detached", "nothing"),
        ("done", "1"),
    ];
    assert_answers(&other, &expected);
    // viaductd has told why, and says how often.
    let stats = instance.stats();
    assert_eq!((stats.refused - refused, stats.pairs), (3, 1));
    let said = doctor(instance.dir());
    assert!(
        said.contains(&format!("1 pairs made, {} offers refused", stats.refused)),
        "{said}"
    );

    // With a viaductd of its own, whose users it is all of, it is believed; that has nothing to give.
    let own_dir = tempfile::tempdir().unwrap();
    nix::unistd::chown(own_dir.path(), Some(OTHER.into()), Some(OTHER.into())).unwrap();
    let own = OwnDaemon::start(own_dir.path());
    let other = claims(&[
        &own_dir.path().display().to_string(),
        &row.remote,
        &row.local,
        &number,
        &victim,
    ]);
    let expected = [
        ("the other end", "nothing"),
        ("another socket", "['refused 1 ambiguous', 'refused 2 ambiguous']"),
        ("both ends", "['paired 3', 'paired 4']"),
        ("its segment", "1, as it was"),
        ("withdrawn and detached", "nothing"),
        ("done", "2"),
    ];
    assert_answers(&other, &expected);
    let said = doctor(own_dir.path());
    assert!(
        said.contains("same-user matching") && said.contains("since: "),
        "{said}"
    );
    drop(own);

    let row = offered(client.pid());
    assert_eq!(
        (row.path.as_str(), row.fast_bytes_sent, row.fast_bytes_received),
        ("tcp", 0, 0)
    );
    assert_eq!(instance.stats().pairs, 1);
    let near = reports(&client.finish(PATIENCE).success());
    assert!(wait_until(PATIENCE, || reports(&server.output()).len() == 1));
    assert_whole(&near, &reports(&server.output()));
}

#[test]
fn both_ends_of_others_connections_while_they_are_paired() {
    const CONNECTIONS: u64 = 5;
    const CLAIMS_OF_EACH: u64 = 24;
    if !can_run(true, &["setpriv", "python3"]) {
        return;
    }
    let instance = for_all();
    let (dir, port) = (instance.dir().display().to_string(), free_port());
    let mode = Mode::Accelerated(&instance);
    let server = peer(mode, &format!("listen 127.0.0.1:{port}")).listening(port);
    let mut other = claims(&[&dir, &port.to_string()]);
    assert!(wait_until(PATIENCE, || other
        .output()
        .contains("its own connection: ['paired")));
    let claimed = || {
        let said = other.output();
        let counts = said.lines().filter_map(|line| line.strip_prefix("claimed: "));
        counts.filter_map(|count| count.parse::<u64>().ok()).max().unwrap_or(0)
    };
    let (mut near, mut made, mut seen) = (Vec::new(), 0, 0);
    for seed in 1..=CONNECTIONS {
        // Where the machine stands still one may be over before it is seen, or claimed often enough.
        for (seconds, again) in [("1.5", true), ("6", true), ("20", false)] {
            let watch = Watch::start();
            made += 1;
            let before = claimed();
            let arguments = format!("connect 127.0.0.1:{port} --seconds {seconds} --seed {seed}0{made}");
            let mut client = peer(mode, &arguments);
            let pids = [client.pid(), server.pid()];
            let mut fast = false;
            let ended = wait_until(PATIENCE, || {
                let rows = instance.status();
                // Each has the other for its peer.
                let is_fast = |pid, peer| {
                    rows.iter().any(|row| {
                        (row.pid, row.peer_pid, row.path.as_str()) == (pid, Some(peer), "shm")
                            && row.is_fast_both_ways()
                    })
                };
                fast |= is_fast(pids[0], pids[1]) && is_fast(pids[1], pids[0]);
                (fast && claimed() > before + CLAIMS_OF_EACH) || !client.is_running()
            });
            assert!(ended, "{:#?}", instance.status());
            near.extend(reports(&client.finish(PATIENCE).success()));
            seen += u64::from(fast);
            let claims = claimed() - before;
            if fast && claims > CLAIMS_OF_EACH {
                break;
            }
            // How often it is claimed is the claimants' affair.
            let excused = again && (fast || watch.held_up().is_some());
            assert!(excused, "fast: {fast}, {claims} claims: {:#?}", instance.totals());
        }
    }
    assert!(wait_until(PATIENCE, || reports(&server.output()).len() as u64 == made));
    assert_whole(&near, &reports(&server.output()));
    // It was there all the while, and had its own connection for itself only.
    assert!(other.is_running(), "{}", other.errors());
    let stats = instance.stats();
    // Of one that was not seen nobody knows.
    assert!(
        (1 + seen..=1 + made).contains(&stats.pairs),
        "{stats:?}, {made} made, {seen} seen"
    );
    assert!(stats.refused > 10 * CONNECTIONS, "{stats:?}");
}

/// Neither may hold what wakes the other, but each can ring.
#[test]
fn who_are_two_users_wake_each_other_without_the_kernel_connection() {
    if !can_run(true, &["setpriv"]) {
        return;
    }
    let instance = for_all();
    let (mode, port) = (Mode::Accelerated(&instance), free_port());
    let options = "--offer now --spin never";
    let mut near = Vec::new();
    let listen = format!("listen 127.0.0.1:{port}");
    let server = peer_of(VICTIM, mode, &listen, options).listening(port);
    for seed in 1..=2 {
        let connect = |how: &str| peer_of(OTHER, mode, &format!("connect 127.0.0.1:{port} {how}"), options);
        let client = connect(&format!("--seconds 100 --seed {seed}50"));
        let woken = instance.wait_for_status(PATIENCE, |rows| {
            let pids = [client.pid(), server.pid()];
            let often = |row: &&Row| pids.contains(&row.pid) && row.path == "shm" && row.bells_sent > 40;
            rows.iter().filter(often).count() == 2
        });
        for row in woken.unwrap_or_else(|rows| panic!("{rows:#?}")) {
            assert!(row.bells_by_socket * 4 < row.bells_sent, "{row:#?}");
        }
        drop(client);
        // Long enough to be paired, whoever else wants the processors.
        let client = connect(&format!("--bytes 300000000 --seed {seed}00"));
        near.extend(reports(&client.finish(PATIENCE).success()));
    }
    // Those that were killed as well, and all of them were on lanes.
    assert!(
        wait_until(PATIENCE, || reports(&server.output()).len() == 4
            && instance.totals_of(server.pid()).ended_fast == 4),
        "{}{:#?}",
        server.output(),
        instance.totals()
    );
    let far = reports(&server.output());
    let is_sound = |report: &Report| report.end != "wrong" && report.end != "stuck";
    assert!(far.iter().all(is_sound), "{far:#?}");
    assert_whole(&near, &far);
}

#[test]
fn who_are_two_users_wait_for_each_other_in_every_way() {
    if !can_run(true, &["setpriv", "python3"]) {
        return;
    }
    let instance = for_all();
    let port = free_port();
    let text = port.to_string();
    let run = |user, arguments: &[&str]| {
        let words = [&["python3", "-c", ECHOES], arguments].concat();
        Launch::new(Mode::Accelerated(&instance), "setpriv", as_user(user, &words))
            .options("--offer now --spin never")
            .variable("PATH", "/usr/local/bin:/usr/bin:/bin")
            .spawn()
    };
    let server = run(VICTIM, &[&text]).listening(port);
    let client = run(OTHER, &[&text, "asks"]);
    assert!(
        wait_until(PATIENCE, || server.output().contains("done")),
        "{}",
        client.errors()
    );
    // Of a child's connections marks may tell.
    let by_bells = |row: &&Row| row.bells_sent > 100 && row.bells_by_socket * 10 < row.bells_sent;
    let rows = instance.status();
    assert!(rows.iter().filter(by_bells).count() >= 6, "{rows:#?}");
    drop(std::net::TcpStream::connect(("127.0.0.1", port)).unwrap());
    client.finish(PATIENCE).success();
    server.finish(PATIENCE).success();
}
