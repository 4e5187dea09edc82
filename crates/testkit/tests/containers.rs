//! Programs in containers, given what docs/containers.md says, and on networks that short-cut TCP.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use viaduct_control::Reason;
use viaduct_testkit::processes::{family, free_port};
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

/// A cgroup within which BPF moves what is sent straight to its receiver, past TCP, as some networks of containers do.
struct Shortcut {
    holder: Child,
    answers: BufReader<ChildStdout>,
    cgroup: String,
}

impl Shortcut {
    /// `None` where that is not possible.
    fn begin() -> Option<Self> {
        let mut holder = Command::new(binaries::binary("viaduct-rivals"))
            .arg("sockmap")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut answers = BufReader::new(holder.stdout.take().unwrap());
        let mut cgroup = String::new();
        answers.read_line(&mut cgroup).unwrap();
        let cgroup = cgroup.trim_end().to_owned();
        let shortcut = Self {
            holder,
            answers,
            cgroup,
        };
        (!shortcut.cgroup.is_empty()).then_some(shortcut)
    }

    fn testpeer(&self, instance: &Instance, arguments: &str) -> Program {
        let enter = "echo $$ > $0/cgroup.procs && exec \"$@\"";
        let mut words = vec!["-c".into(), enter.into(), self.cgroup.clone().into()];
        words.extend(Launch::testpeer(Mode::Accelerated(instance), arguments).words());
        Launch::new(Mode::Native, "sh", words).spawn()
    }

    /// The bytes that went past TCP.
    fn carried(&mut self) -> u64 {
        writeln!(self.holder.stdin.as_ref().unwrap()).unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().parse().unwrap()
    }
}

impl Drop for Shortcut {
    /// With its input it ends, and the cgroup with it.
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Nobody can tell where in such a stream a lane would begin.
#[test]
fn short_cut_connections_stay_as_they_are() {
    if !can_run(true, &["sh"]) {
        return;
    }
    let Some(mut shortcut) = Shortcut::begin() else {
        return eprintln!("skipped: no BPF, or no cgroups of version 2");
    };
    let instance = Instance::start();
    for direction in ["up", "down", "both"] {
        let port = free_port();
        let server = shortcut.testpeer(&instance, &format!("listen 127.0.0.1:{port} --mode epoll"));
        let server = server.listening(port);
        // A blocking receive may say EAGAIN on such a connection.
        let options = format!("--connections 4 --mode epoll --bytes 3000000 --max-chunk 5000 --direction {direction}");
        let before = shortcut.carried();
        let client = shortcut.testpeer(&instance, &format!("connect 127.0.0.1:{port} {options}"));
        client.finish(PATIENCE).success();
        assert!(shortcut.carried() - before >= 12_000_000, "{direction}");
        assert!(!server.output().contains("wrong"), "{}", server.output());
        assert_eq!(instance.totals_of(server.pid()).fast_bytes(), 0, "{direction}");
        let mut lasting = shortcut.testpeer(
            &instance,
            &format!("connect 127.0.0.1:{port} --mode epoll --seconds 100"),
        );
        let told = instance.wait_for_status(PATIENCE, |rows| {
            rows.iter().any(|row| row.reason == Reason::Uncounted.code()) && rows.iter().all(|row| row.path == "tcp")
        });
        assert!(told.is_ok(), "{direction}: {told:#?}");
        lasting.kill();
    }
}
