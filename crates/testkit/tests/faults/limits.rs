//! Descriptors and memory that run out: of the programs, of their control group, of viaductd.

use crate::{NATIVE_ROUNDS, PATIENCE, settle};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use viaduct_control::runtime::socket_path;
use viaduct_testkit::binaries::{REQUIRE_VARIABLE, binary};
use viaduct_testkit::peer::reports;
use viaduct_testkit::processes::{free_port, holdings, wait_until};
use viaduct_testkit::status::Row;
use viaduct_testkit::{Instance, Launch, Mode, Program, Server, can_run};

/// How often each is exhausted.
const ROUNDS: u64 = 10;

/// Descriptors of a program and of viaductd, address space, and memory of a control group.
pub(crate) const FAULTS: u64 = 4 * ROUNDS;

/// Changes a limit of a running process.
fn limit(pid: u32, what: &str, value: u64) {
    let output = Command::new("prlimit")
        .arg(format!("--pid={pid}"))
        .arg(format!("--{what}={value}:{value}"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn server_out_of_descriptors(mode: Mode<'_>, rounds: u64) {
    for round in 0..rounds {
        // Blocking servers wait with `accept` for descriptors to come back; event loops would turn in vain.
        let mut server = Server::start(mode, "blocking");
        settle(&mut server, mode);
        let open = holdings(server.program.pid()).descriptors as u64;
        limit(server.program.pid(), "nofile", open + 4 + round);
        // More connections than descriptors: some wait in the backlog until others have ended.
        let arguments = format!("--connections 24 --bytes 200000 --seed {round}");
        server.client(mode, &arguments).run(PATIENCE).success();
        server.assert_sound();
    }
}

#[test]
fn a_server_without_descriptors_serves_when_some_come_back() {
    server_out_of_descriptors(Mode::Native, NATIVE_ROUNDS as u64);
    let instance = Instance::start();
    server_out_of_descriptors(Mode::Accelerated(&instance), ROUNDS);
}

#[test]
fn viaductd_without_descriptors_leaves_connections_on_tcp() {
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let mut server = Server::start(mode, "epoll");
    settle(&mut server, mode);
    for round in 0..ROUNDS {
        let open = holdings(instance.daemon_pid()).descriptors as u64;
        limit(instance.daemon_pid(), "nofile", open + round % 3);
        let arguments = format!("--connections 8 --bytes 500000 --seed {round}");
        server.client(mode, &arguments).run(PATIENCE).success();
        server.assert_sound();
        instance.kill_daemon();
        // It is up when it has opened everything it will need.
        instance.start_daemon();
    }
}

/// Sets `VmSize` of a process as its limit, and a little more.
fn limit_address_space(pid: u32, more: u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib: u64 = size.unwrap().split_whitespace().next().unwrap().parse().unwrap();
    limit(pid, "as", kib * 1024 + more);
}

fn server_out_of_address_space(mode: Mode<'_>, rounds: u64) {
    for round in 0..rounds {
        let mut server = Server::start(mode, "epoll");
        settle(&mut server, mode);
        limit_address_space(server.program.pid(), (round % 4) * 2_900_000);
        let arguments = format!("--connections 6 --bytes 1000000 --max-chunk 16384 --seed {round}");
        server.client(mode, &arguments).run(PATIENCE).success();
        if let Mode::Accelerated(instance) = mode {
            says_no_memory(instance, &server, round);
        }
        server.assert_sound();
    }
}

/// Connections for which there is no room go on over TCP, and `viaduct status` says why.
fn says_no_memory(instance: &Instance, server: &Server, round: u64) {
    let arguments = format!("--connections 6 --seconds 100 --seed {}", 100 + round);
    let client = server.client(Mode::Accelerated(instance), &arguments).spawn();
    let told = instance.wait_for_status(PATIENCE, |rows| {
        let own = || rows.iter().filter(|row| row.pid == server.program.pid());
        own().any(|row| row.path == "tcp" && row.reason == "no-memory" && row.bytes_received > 1_000_000)
    });
    assert!(told.is_ok(), "round {round}: {told:#?}");
    drop(client);
}

#[test]
fn a_program_without_address_space_stays_on_tcp() {
    server_out_of_address_space(Mode::Native, NATIVE_ROUNDS as u64);
    let instance = Instance::start();
    server_out_of_address_space(Mode::Accelerated(&instance), ROUNDS);
}

#[test]
fn limits_of_a_user_leave_connections_on_tcp_and_say_so() {
    for (option, value, reason) in [
        ("--segments-per-user", "3", "limit-segments"),
        ("--memory-per-user", "24000000", "limit-memory"),
    ] {
        let instance = Instance::start_with(&[option, value]);
        let mode = Mode::Accelerated(&instance);
        let mut server = Server::start(mode, "epoll");
        settle(&mut server, mode);
        for round in 0..5 {
            let arguments = format!("--connections 10 --seconds 100 --seed {round}");
            let mut client = server.client(mode, &arguments).spawn();
            let told = instance.wait_for_status(PATIENCE, |rows| {
                let own = rows.iter().filter(|row| row.pid == client.pid());
                own.clone().any(|row| row.is_fast()) && own.clone().any(|row| row.reason == reason)
            });
            assert!(told.is_ok(), "{option}, round {round}: {told:#?}");
            client.kill();
            // What the next client needs is given back when both ends have noticed.
            let free = wait_until(PATIENCE, || instance.stats().segments == 0);
            assert!(free, "{option}, round {round}: {:?}", instance.stats());
            let arguments = format!("--connections 10 --bytes 200000 --seed {}", 100 + round);
            server.client(mode, &arguments).run(PATIENCE).success();
            server.assert_sound();
        }
    }
}

/// Starts the words that follow where nothing more can be written to `/dev/shm`.
const WITH_FULL_SHM: &str = "mount -t tmpfs -o size=4k full /dev/shm && head -c 4096 /dev/zero >/dev/shm/full || exit 9
    echo more 2>/dev/null >/dev/shm/more && exit 9
    exec \"$@\"";

fn with_full_shm(words: impl IntoIterator<Item = OsString>) -> Program {
    let script = ["--mount", "sh", "-c", WITH_FULL_SHM, "sh"].map(OsString::from);
    Launch::new(Mode::Native, "unshare", script.into_iter().chain(words)).spawn()
}

/// Neither viaductd nor programs need it: segments are memory files without names.
#[test]
fn a_full_dev_shm_keeps_no_connection_on_tcp() {
    if !can_run(true, &["unshare", "mount"]) {
        return;
    }
    let instance = Instance::without_daemon();
    let words = [binary("viaductd").into(), "--dir".into(), instance.dir().into()];
    let viaductd = with_full_shm(words);
    let serves = wait_until(PATIENCE, || socket_path(instance.dir()).exists());
    assert!(serves, "{}", viaductd.errors());
    let peer = |arguments: &str| with_full_shm(Launch::testpeer(Mode::Accelerated(&instance), arguments).words());
    let port = free_port();
    let server = peer(&format!("listen 127.0.0.1:{port} --mode epoll")).listening(port);
    let client = peer(&format!("connect 127.0.0.1:{port} --connections 2 --seconds 100"));
    let fast = instance.wait_for_status(PATIENCE, |rows| {
        let is_fast = |row: &&Row| row.is_fast_both_ways() && row.bytes_received > 4_000_000;
        rows.iter()
            .filter(|row| row.pid == client.pid())
            .filter(is_fast)
            .count()
            == 2
    });
    assert!(fast.is_ok(), "{fast:#?} {}{}", server.errors(), client.errors());
    peer(&format!("connect 127.0.0.1:{port} --bytes 3000000"))
        .finish(PATIENCE)
        .success();
    assert!(!server.output().contains("wrong"), "{}", server.output());
}

/// A control group with a memory limit, of either version; gone on drop.
struct Group(PathBuf);

impl Group {
    /// `None` where no hierarchy with memory limits can be written.
    fn new(name: &str, bytes: u64) -> Option<Self> {
        let name = format!("viaduct-test-{}-{name}", std::process::id());
        for (root, file) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ] {
            let dir = Path::new(root).join(&name);
            if !Path::new(root).join("cgroup.procs").exists() || fs::create_dir(&dir).is_err() {
                continue;
            }
            let group = Self(dir);
            if fs::write(group.0.join(file), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }

    /// Where its limit and its use are told.
    fn files(&self) -> String {
        let names = match self.0.join("memory.max").exists() {
            true => ["memory.max", "memory.current"],
            false => ["memory.limit_in_bytes", "memory.usage_in_bytes"],
        };
        names.map(|name| self.0.join(name).display().to_string()).join(" ")
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group can be removed when the last of its processes is reaped.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn no_group() {
    let required = std::env::var_os(REQUIRE_VARIABLE).is_some();
    assert!(!required, "no control group with a memory limit can be made");
    eprintln!("skipped: no control group with a memory limit can be made");
}

#[test]
fn a_control_group_without_memory_harms_nobody_else() {
    if !can_run(true, &[]) {
        return;
    }
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    for round in 0..ROUNDS {
        let mut server = Server::start(mode, "epoll");
        settle(&mut server, mode);
        let Some(group) = Group::new(&round.to_string(), 3 << 20) else {
            return no_group();
        };
        let arguments = format!("--connections 30 --seconds 2 --idle-ms 60000 --seed {round}");
        let mut client = server.client(mode, &arguments).spawn();
        std::thread::sleep(Duration::from_millis(20));
        assert!(client.is_running(), "round {round}: {}", client.errors());
        group.add(client.pid());
        // It goes on within its limit or the kernel kills it; the server must not mind either.
        let ended = client.wait(Duration::from_secs(20));
        assert!(ended.is_some(), "round {round}: the client hangs: {}", client.output());
        assert_ne!(ended.and_then(|status| status.code()), Some(2), "{}", client.output());
        server.client(mode, "--bytes 500000 --seed 77").run(PATIENCE).success();
        server.assert_sound();
        drop(client);
    }
}

/// A busy end in a group of so many MiB, which has no memory for so many lanes as large as they may be; they carry more
/// than so many all the same. `chunk`: bytes that the end has for each connection itself.
fn busy_in_a_small_group(mode: Mode<'_>, rounds: u64, [mib, connections, bytes, chunk, least]: [u64; 5]) {
    for round in 0..rounds {
        let Some(group) = Group::new(&format!("busy-{connections}-{round}"), mib << 20) else {
            return no_group();
        };
        let mut server = Server::start(mode, "epoll");
        let script = format!(
            "echo $$ > {} && exec {} connect 127.0.0.1:{} --connections {connections} --bytes {bytes} \
             --max-chunk {chunk} --seed {round}",
            group.0.join("cgroup.procs").display(),
            binary("viaduct-testpeer").display(),
            server.port
        );
        let output = Launch::new(mode, "sh", ["-c", &script]).run(PATIENCE).success();
        let carried: u64 = reports(&output).iter().map(|report| report.received).sum();
        assert_eq!(carried, connections * bytes, "round {round}: {output}");
        server.assert_sound();
        if let Mode::Accelerated(instance) = mode {
            let fast = instance.totals_of(server.program.pid()).fast_bytes();
            // Lanes that stall leave the rest to TCP.
            assert!(fast > least << 20, "round {round}: {fast} bytes on lanes");
        }
    }
}

/// The receiver looks until all of a message is there, and takes nothing before; the sender's group is nearly full, and
/// it waits by `poll`.
const LOOKS: &str = r#"
import select, socket, sys, time
role, port = sys.argv[1], int(sys.argv[2])
MESSAGE = bytes(i * 7 // 3 % 256 for i in range(600000))
def bounce(s, first):
    for _ in range(50):
        if first:
            s.sendall(b"!")
        assert s.recv(1) == b"!"
        if not first:
            s.sendall(b"!")
if role == "look":
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    s, _ = listener.accept()
    bounce(s, False)
    for n in range(3):
        until = time.monotonic() + 10
        while len(s.recv(len(MESSAGE), socket.MSG_PEEK)) < len(MESSAGE):
            assert time.monotonic() < until, "message %d does not come" % n
            time.sleep(0.001)
        assert s.recv(len(MESSAGE), socket.MSG_WAITALL) == MESSAGE, "wrong bytes"
        s.sendall(b"!")
else:
    s = socket.create_connection(("127.0.0.1", port))
    bounce(s, True)
    limit, used = (int(open(name).read()) for name in sys.argv[3:])
    fill = bytearray(limit - used - (1 << 20))
    fill[::4096] = b"x" * len(fill[::4096])
    for _ in range(3):
        s.setblocking(False)
        rest = memoryview(MESSAGE)
        while rest:
            try:
                rest = rest[s.send(rest[:20000]):]
            except BlockingIOError:
                p = select.poll()
                p.register(s, select.POLLOUT)
                p.poll()
        s.setblocking(True)
        assert s.recv(1) == b"!"
"#;

fn looks_at_a_full_group(mode: Mode<'_>) {
    let Some(group) = Group::new("looks", 64 << 20) else {
        return no_group();
    };
    let port = free_port();
    let receiver = Launch::new(mode, "python3", ["-c", LOOKS, "look", &port.to_string()]);
    let receiver = receiver.spawn().listening(port);
    let procs = group.0.join("cgroup.procs");
    let script = format!(
        "echo $$ > {} && exec python3 -c \"$0\" send {port} {}",
        procs.display(),
        group.files()
    );
    Launch::new(mode, "sh", ["-c", &script, LOOKS]).run(PATIENCE).success();
    receiver.finish(PATIENCE).success();
}

#[test]
fn whoever_looks_at_a_lane_that_may_not_grow_sees_all_of_a_message() {
    if !can_run(true, &["sh", "python3"]) {
        return;
    }
    looks_at_a_full_group(Mode::Native);
    let instance = Instance::start();
    looks_at_a_full_group(Mode::Accelerated(&instance));
}

#[test]
fn a_control_group_without_memory_for_large_lanes_kills_nobody() {
    if !can_run(true, &["sh"]) {
        return;
    }
    // Few streams that would fill it; many threads that begin together, and find the same memory free: they need more
    // than half for themselves, and leave lanes next to nothing; or little, and lanes carry more than it could hold.
    for sizes in [
        [48, 24, 40_000_000, 131_072, 96],
        [64, 120, 6_000_000, 131_072, 0],
        [64, 120, 6_000_000, 16_384, 64],
    ] {
        busy_in_a_small_group(Mode::Native, NATIVE_ROUNDS as u64, sizes);
        let instance = Instance::start();
        busy_in_a_small_group(Mode::Accelerated(&instance), 4, sizes);
    }
}
