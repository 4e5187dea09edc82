//! Start, stop, and what viaductd leaves behind.

mod support;

use rustix::fs::{FlockOperation, flock};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};
use support::{Daemon, Guest, command, connect, connection, is_root, listener, run, until};
use viaduct_control::runtime::{PROGRAMS_NAME, socket_path};

/// Killed when the test ends, however it ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn status_line(child: &Child, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

fn stop(child: &Child) {
    run("kill", &["-TERM", &child.id().to_string()]);
}

fn complaint(child: Child) -> String {
    complaint_of(&child.wait_with_output().unwrap())
}

fn complaint_of(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn of_many_started_at_once_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..6)
        .map(|_| {
            command(dir.path(), &["--same-user", "--idle-exit", "3"])
                .spawn()
                .unwrap()
        })
        .collect();
    until("somebody listens", || connect(dir.path()).is_ok());
    let running = |children: &mut Vec<Child>| {
        children.retain_mut(|child| match child.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success());
                false
            }
            None => true,
        });
        children.len()
    };
    let mut children = children;
    until("one is left", || running(&mut children) == 1);
    let guest = Guest::hello(dir.path());
    assert_eq!(running(&mut children), 1);
    drop(guest);
    until("it has gone, being idle", || running(&mut children) == 0);
}

#[test]
fn a_socket_left_behind_is_replaced() {
    let daemon = Daemon::start(&["--same-user"]);
    let dir = daemon.kill();
    assert!(socket_path(dir.path()).exists() && connect(dir.path()).is_err());
    let daemon = Daemon::start_in(dir, &["--same-user"]);
    Guest::hello(daemon.dir());
}

#[test]
fn a_directory_that_another_gives_up_late_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let lock = std::fs::File::create(dir.path().join("viaductd.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let mut waiting = Running(command(dir.path(), &["--same-user"]).spawn().unwrap());
    std::thread::sleep(Duration::from_secs(4));
    assert!(waiting.0.try_wait().unwrap().is_none(), "it has not waited");
    drop(lock);
    until("it listens", || connect(dir.path()).is_ok());
}

#[test]
fn what_stands_by_takes_the_place_of_one_that_ends() {
    for orderly in [true, false] {
        let mut daemon = Daemon::start(&["--same-user"]);
        let (mut ready, notify) = std::io::pipe().unwrap();
        rustix::io::fcntl_setfd(&notify, rustix::io::FdFlags::empty()).unwrap();
        let number = notify.as_raw_fd().to_string();
        let arguments = ["--same-user", "--stand-by", "--ready-fd", &number];
        let mut waiting = Running(command(daemon.dir(), &arguments).spawn().unwrap());
        drop(notify);
        let mut word = [0];
        ready.read_exact(&mut word).unwrap();
        assert_eq!((word, daemon.stats().pid), (*b"1", daemon.child.id()));
        assert!(waiting.0.try_wait().unwrap().is_none(), "it has not waited");
        if orderly {
            stop(&daemon.child);
        } else {
            daemon.child.kill().unwrap();
        }
        daemon.exit_status();
        until("the other serves", || connect(daemon.dir()).is_ok());
        Guest::hello(daemon.dir());
        assert_eq!(daemon.stats().pid, waiting.0.id());
    }
}

/// One that stands by in the directory of `daemon`, started by `words`, and where it tells how it is.
fn standing_by(daemon: &Daemon, words: &[&str]) -> (Running, UnixDatagram) {
    let notified = UnixDatagram::bind(daemon.dir().join("notify")).unwrap();
    let own = command(daemon.dir(), &["--same-user", "--stand-by"]);
    let mut viaductd = std::process::Command::new("env");
    viaductd.args(words).arg(own.get_program()).args(own.get_args());
    viaductd.env("XDG_CONFIG_HOME", daemon.dir());
    viaductd.env("NOTIFY_SOCKET", daemon.dir().join("notify"));
    let waiting = Running(viaductd.stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(
        notification(&notified),
        "READY=1\nSTATUS=standing by: another viaductd serves"
    );
    (waiting, notified)
}

fn notification(notified: &UnixDatagram) -> String {
    let mut bytes = [0; 100];
    let len = notified.recv(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[test]
fn what_stands_by_tells_how_it_is() {
    let daemon = Daemon::start(&["--same-user"]);
    let (mut waiting, notified) = standing_by(&daemon, &[]);
    stop(&daemon.child);
    assert_eq!(notification(&notified), "READY=1\nSTATUS=serving");
    until("it serves", || connect(daemon.dir()).is_ok());
    stop(&waiting.0);
    let mut log = String::new();
    waiting.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let turn = "the other viaductd has ended, and this one serves it";
    assert!(
        log.lines().any(|line| line.contains("WARN") && line.contains(turn)),
        "{log}"
    );
}

#[test]
fn what_stands_by_stops_though_signals_are_blocked_and_ignored() {
    for signal in ["TERM", "INT"] {
        let mut daemon = Daemon::start(&["--same-user"]);
        let (mut waiting, _notified) = standing_by(&daemon, &["--block-signal=TERM", "--ignore-signal=INT"]);
        run("kill", &[&format!("-{signal}"), &waiting.0.id().to_string()]);
        until("it ends", || waiting.0.try_wait().unwrap().is_some());
        assert!(waiting.0.wait().unwrap().success(), "{signal}");
        assert_eq!(daemon.stats().pid, daemon.child.id());
        assert!(daemon.child.try_wait().unwrap().is_none());
    }
}

#[test]
fn what_stands_by_serves_the_directory_that_has_the_name() {
    for is_made_anew in [true, false] {
        let outer = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start(&["--same-user"]);
        let (waiting, _notified) = standing_by(&daemon, &[]);
        std::fs::rename(daemon.dir(), outer.path().join("moved")).unwrap();
        if is_made_anew {
            std::fs::create_dir(daemon.dir()).unwrap();
        }
        daemon.child.kill().unwrap();
        daemon.exit_status();
        until("the other serves", || connect(daemon.dir()).is_ok());
        assert_eq!(daemon.stats().pid, waiting.0.id());
    }
}

#[test]
fn a_log_that_cannot_be_written_does_not_end_it() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let unread = std::io::pipe().unwrap().1;
    for log in [Stdio::from(full), Stdio::from(unread)] {
        let dir = tempfile::tempdir().unwrap();
        let mut viaductd = command(dir.path(), &["--same-user", "--log", "trace"]);
        viaductd.stderr(log);
        let daemon = Daemon::start_as(dir, viaductd);
        Guest::hello(daemon.dir());
        assert_eq!(daemon.stats().pid, daemon.child.id());
    }
}

#[test]
fn told_to_stop_it_removes_its_socket() {
    for mode in [&["--same-user"][..], &[]] {
        let mut daemon = Daemon::start(mode);
        let guest = Guest::hello(daemon.dir());
        stop(&daemon.child);
        assert!(daemon.exit_status().success());
        guest.expect_hang_up();
        assert!(!socket_path(daemon.dir()).exists());
    }
}

/// Its socket is no name for programs to find any more, and it may make none.
#[test]
fn one_that_cannot_be_found_any_more_ends_and_says_so() {
    for is_made_anew in [false, true] {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("run");
        let own = command(&dir, &["--same-user"]).stderr(Stdio::piped()).spawn();
        let mut own = Running(own.unwrap());
        until("it listens", || connect(&dir).is_ok());
        let guest = Guest::hello(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        let next = is_made_anew.then(|| Running(command(&dir, &["--same-user"]).spawn().unwrap()));
        until("it has ended", || own.0.try_wait().unwrap().is_some());
        guest.expect_hang_up();
        let mut said = String::new();
        own.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let socket = socket_path(&dir);
        let told = format!("{}: somebody has removed or replaced it", socket.display());
        assert!(!own.0.wait().unwrap().success() && said.contains(&told), "{said}");
        if let Some(mut next) = next {
            // Its socket is not taken for the old one's.
            until("the next one listens", || connect(&dir).is_ok());
            assert!(next.0.try_wait().unwrap().is_none());
        }
    }
}

#[test]
fn it_stops_though_the_signal_was_blocked_and_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let own = command(dir.path(), &["--same-user"]);
    let mut confined = std::process::Command::new("env");
    confined.args(["--block-signal=TERM", "--ignore-signal=TERM"]);
    confined.arg(own.get_program()).args(own.get_args());
    let mut daemon = Daemon::start_as(dir, confined);
    stop(&daemon.child);
    assert!(daemon.exit_status().success());
}

#[test]
fn it_exits_when_idle_and_not_before() {
    // Long enough for a guest to come though the machine stands still.
    let mut daemon = Daemon::start(&["--same-user", "--idle-exit", "4"]);
    let guest = Guest::hello(daemon.dir());
    std::thread::sleep(Duration::from_millis(4500));
    assert!(daemon.child.try_wait().unwrap().is_none());
    drop(guest);
    let since = Instant::now();
    // Whoever only asks does not keep it.
    let onlooker = connect(daemon.dir()).unwrap();
    daemon.stats();
    assert!(daemon.exit_status().success());
    assert!(since.elapsed() > Duration::from_millis(3900), "{:?}", since.elapsed());
    drop(onlooker);
}

#[test]
fn idle_for_ever_is_long() {
    let daemon = Daemon::start(&["--same-user", "--idle-exit", &u64::MAX.to_string()]);
    drop(Guest::hello(daemon.dir()));
    assert_eq!(daemon.stats().pid, daemon.child.id());
}

#[test]
fn programs_that_may_yet_connect_keep_it() {
    let mut daemon = Daemon::start(&["--same-user", "--idle-exit", "3"]);
    let program = std::fs::File::open(daemon.dir().join(PROGRAMS_NAME)).unwrap();
    flock(&program, FlockOperation::NonBlockingLockShared).unwrap();
    std::thread::sleep(Duration::from_millis(6500));
    assert!(daemon.child.try_wait().unwrap().is_none());
    assert!(connect(daemon.dir()).is_ok());
    drop(program);
    assert!(daemon.exit_status().success());
}

#[test]
fn readiness_is_told_to_whoever_asks() {
    let dir = tempfile::tempdir().unwrap();
    let notified = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    let (mut ready, notify) = std::io::pipe().unwrap();
    rustix::io::fcntl_setfd(&notify, rustix::io::FdFlags::empty()).unwrap();
    let mut viaductd = command(
        dir.path(),
        &["--same-user", "--ready-fd", &notify.as_raw_fd().to_string()],
    );
    viaductd.env("NOTIFY_SOCKET", dir.path().join("notify"));
    let _child = Running(viaductd.spawn().unwrap());
    let mut word = [0; 1];
    ready.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"1");
    connect(dir.path()).expect("ready, but not listening");
    assert_eq!(notification(&notified), "READY=1\nSTATUS=serving");
}

#[test]
fn whoever_waits_for_readiness_is_told_why_there_will_be_none() {
    let (mut ready, notify) = std::io::pipe().unwrap();
    rustix::io::fcntl_setfd(&notify, rustix::io::FdFlags::empty()).unwrap();
    let number = notify.as_raw_fd().to_string();
    let mut viaductd = command(Path::new("/dev/null/none"), &["--same-user", "--ready-fd", &number]);
    let mut child = viaductd.stderr(Stdio::null()).spawn().unwrap();
    drop((viaductd, notify));
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut word = String::new();
    ready.read_to_string(&mut word).unwrap();
    assert!(
        word.starts_with("0/dev/null/none") && word.contains("Not a directory"),
        "{word}"
    );
}

#[test]
fn a_directory_that_could_be_anothers_is_refused() {
    let outer = tempfile::tempdir().unwrap();
    let (real, link) = (outer.path().join("real"), outer.path().join("link"));
    std::fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    let start = |dir: &Path| command(dir, &["--same-user"]).stderr(Stdio::piped()).spawn().unwrap();
    assert!(complaint(start(&link)).contains("link"));
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(complaint(start(&real)).contains("others may write"));
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o700)).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&real, Some(65534), None).unwrap();
        assert!(complaint(start(&real)).contains("belongs to user 65534"));
    }
}

#[test]
fn modes_let_in_whom_they_should() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("made");
    let _child = Running(command(&dir, &["--same-user"]).spawn().unwrap());
    until("it listens", || connect(&dir).is_ok());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    let expected = if rustix::process::geteuid().is_root() {
        (0o755, 0o666)
    } else {
        (0o700, 0o600)
    };
    assert_eq!((mode(&dir), mode(&socket_path(&dir))), expected);
}

#[test]
fn of_a_mistyped_directory_no_tree_is_made() {
    let outer = tempfile::tempdir().unwrap();
    let child = command(&outer.path().join("run/viaduct"), &["--same-user", "--idle-exit", "5"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let complaint = complaint(child);
    assert!(
        complaint.contains("run/viaduct") && complaint.contains("does not exist"),
        "{complaint}"
    );
    assert!(!outer.path().join("run").exists());
}

/// Started by hand it serves the directory that programs use.
#[test]
fn the_directory_is_found_as_programs_find_it() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let write = |name: &str, dir: &str| {
        std::fs::write(at(name), format!("dir = {:?}\n[daemon]\nsame_user = true\n", at(dir))).unwrap();
    };
    write("viaduct.toml", "of-user");
    write("named.toml", "of-named");
    write("given.toml", "of-given");
    let (named, given) = (at("named.toml"), at("given.toml"));
    let (in_variable, in_option) = (at("of-variable"), at("of-option"));
    let viaductd = |variables: &[(&str, &Path)], arguments: &[&Path]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_viaductd"));
        command.env_remove("VIADUCT_DIR").env_remove("VIADUCT_CONFIG");
        command
            .env("XDG_CONFIG_HOME", home.path())
            .envs(variables.iter().copied());
        Running(command.args(arguments).spawn().unwrap())
    };
    let none = Path::new("");
    let (dir, config) = (Path::new("--dir"), Path::new("--config"));
    type Case<'a> = (&'a [(&'a str, &'a Path)], &'a [&'a Path], &'a str);
    let cases: [Case<'_>; 6] = [
        (&[("VIADUCT_CONFIG", none), ("VIADUCT_DIR", none)], &[], "of-user"),
        (&[("VIADUCT_CONFIG", &named)], &[], "of-named"),
        (&[("VIADUCT_CONFIG", &named)], &[config, &given], "of-given"),
        (&[("VIADUCT_DIR", &in_variable)], &[config, &given], "of-variable"),
        (&[("VIADUCT_DIR", &in_variable)], &[dir, &in_option], "of-option"),
        (&[], &[], "of-user"),
    ];
    for (variables, arguments, expected) in cases {
        let _child = viaductd(variables, arguments);
        until(expected, || connect(&at(expected)).is_ok());
        std::fs::remove_dir_all(at(expected)).unwrap();
    }
}

/// A system that refuses seccomp(2), as some container engines do.
#[test]
fn as_root_it_does_not_serve_with_rights_that_it_could_not_give_up() {
    if !is_root() {
        return;
    }
    let (outer, program) = public_dir();
    std::fs::set_permissions(outer.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let start = |dir: &str, user: u32| {
        let mut command = std::process::Command::new(&program);
        command.arg("--dir").arg(outer.path().join(dir));
        // One that serves is to end as well.
        command.args(["--same-user", "--idle-exit", "5"]);
        command
            .env("XDG_CONFIG_HOME", outer.path())
            .env_remove("VIADUCT_CONFIG");
        command.uid(user).gid(user).stderr(Stdio::piped());
        // A filter holds for the thread that sets it and what it starts.
        let spawn = || {
            seccompiler::apply_filter(&without_seccomp()).unwrap();
            loop {
                match command.spawn() {
                    // A child of another test's may have been made while the program was copied, and has it open for
                    // writing.
                    Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                    spawned => break spawned.unwrap(),
                }
            }
        };
        std::thread::scope(|scope| scope.spawn(spawn).join().unwrap())
    };
    let complaint = complaint(start("of-root", 0));
    assert!(
        complaint.contains("seccomp") && complaint.contains("as root"),
        "{complaint}"
    );
    assert!(connect(&outer.path().join("of-root")).is_err());
    let mut child = Running(start("of-user", 65534));
    until("it listens", || connect(&outer.path().join("of-user")).is_ok());
    let mut said = String::new();
    let mut errors = std::io::BufReader::new(child.0.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut errors, &mut said).unwrap();
    assert!(said.contains("with all rights of user 65534"), "{said}");
}

fn without_seccomp() -> seccompiler::BpfProgram {
    let refused = seccompiler::SeccompAction::Errno(1);
    let calls = [(libc::SYS_seccomp, Vec::new())].into_iter().collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = seccompiler::SeccompFilter::new(calls, seccompiler::SeccompAction::Allow, refused, arch);
    filter.unwrap().try_into().unwrap()
}

#[test]
fn a_directory_that_serves_for_other_things_too_keeps_its_mode() {
    let outer = tempfile::tempdir().unwrap();
    std::fs::write(outer.path().join("diary"), "").unwrap();
    std::fs::set_permissions(outer.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let daemon = Daemon::start_in(outer, &["--same-user"]);
    assert_eq!(std::fs::metadata(daemon.dir()).unwrap().mode() & 0o777, 0o711);
}

#[test]
fn a_users_own_viaductd_serves_that_user() {
    if !is_root() {
        return;
    }
    let (outer, program) = public_dir();
    std::fs::set_permissions(outer.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let dir = outer.path().join("run");
    let mut own_viaductd = std::process::Command::new(&program);
    own_viaductd
        .arg("--dir")
        .arg(&dir)
        .env("XDG_CONFIG_HOME", outer.path())
        .uid(65534)
        .gid(65534)
        .stderr(Stdio::piped());
    let mut child = Running(own_viaductd.spawn().unwrap());
    until("it listens", || connect(&dir).is_ok());
    assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    let mut own = support::Driver::at(None, Some(65534));
    own.hello(&dir);
    let at = own.ask("listen 127.0.0.1:0");
    own.ask(&format!("connect {at}"));
    own.ask("accept");
    own.ask("offer 0 1");
    own.ask("offer 1 2");
    own.expect("pair 1");
    own.expect("pair 2");
    // Root may reach the socket, but is not served, which is told once however often it asks.
    for _ in 0..3 {
        let stranger = connect(&dir).unwrap();
        let answer = support::receive(&stranger, support::PATIENCE);
        assert!(!answer.is_ok_and(|packet| packet.is_none_or(|(bytes, _)| !bytes.is_empty())));
    }
    stop(&child.0);
    let mut said = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.matches("turned away").count(), 1, "{said}");
}

#[test]
fn it_keeps_no_right_that_its_loop_does_not_need() {
    let daemon = Daemon::start(&[]);
    until("it is isolated", || status_line(&daemon.child, "Seccomp") == "2");
    assert_eq!(status_line(&daemon.child, "NoNewPrivs"), "1");
    if is_root() {
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let bits = u64::from_str_radix(&status_line(&daemon.child, set), 16).unwrap();
            assert_eq!(bits, 0, "{set}");
        }
    }
    let mut guest = Guest::hello(daemon.dir());
    let (opener, accepter) = connection(&listener());
    guest.offer(1, &opener);
    guest.offer(2, &accepter);
    guest.expect_pair();
}

#[test]
fn a_mistake_in_the_configuration_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("viaduct.toml");
    writeln!(std::fs::File::create(&file).unwrap(), "[daemon]\nsegments_per_usr = 1").unwrap();
    let complaint = complaint(
        command(dir.path(), &["--same-user"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    assert!(complaint.contains("viaduct.toml:2: unknown field"), "{complaint}");
}

#[test]
fn what_cannot_be_read_or_bound_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let fail = |dir: &Path, options: &[&str]| {
        let daemon = command(dir, options).stderr(Stdio::piped()).spawn().unwrap();
        complaint(daemon)
    };
    std::fs::create_dir(dir.path().join("viaduct.toml")).unwrap();
    let said = fail(dir.path(), &["--same-user"]);
    assert!(said.contains("viaduct.toml: it is a directory"), "{said}");
    std::fs::remove_dir(dir.path().join("viaduct.toml")).unwrap();
    let long = dir.path().join("l".repeat(93));
    let said = fail(&long, &["--same-user"]);
    assert!(said.contains("takes 93 at most") && !long.exists(), "{said}");
    for (name, fault) in [
        ("viaductd.sock", "Is a directory"),
        ("viaductd.lock", "no regular file; remove it"),
        ("programs.lock", "no regular file; remove it"),
    ] {
        let path = dir.path().join(name);
        let _ = std::fs::remove_file(&path);
        std::fs::create_dir(&path).unwrap();
        let said = fail(dir.path(), &["--same-user"]);
        assert!(said.contains(&format!("{name}: ")) && said.contains(fault), "{said}");
        std::fs::remove_dir(&path).unwrap();
    }
    // Which locks as well as a file does, but is not kept open by programs as one is.
    run("mkfifo", &[dir.path().join("programs.lock").to_str().unwrap()]);
    assert!(fail(dir.path(), &["--same-user"]).contains("no regular file"));
}

#[test]
fn help_that_cannot_be_written_is_told() {
    let dir = tempfile::tempdir().unwrap();
    for option in ["--version", "--help", "--man"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command(dir.path(), &[option]).stdout(full).output().unwrap();
        let said = complaint_of(&output);
        assert!(
            said.contains("standard output: No space left on device"),
            "{option}: {said}"
        );
    }
}

/// Without descriptors to spare viaductd goes on serving those it has, and takes new ones when there is room again.
#[test]
fn the_descriptor_limit_is_survived() {
    if !is_root() {
        return;
    }
    let place = public_dir();
    let log = place.0.path().join("log");
    let daemon = limited(place, &format!("-n 24; exec 2>{}", log.display()));
    let mut guest = Guest::hello(daemon.dir());
    // No user alone gets that far.
    let crowd: Vec<_> = (1..10_u32)
        .flat_map(|user| {
            let connect_as = || {
                let user = rustix::process::Uid::from_raw(60_000 + user);
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                (0..6).map(|_| connect(daemon.dir()).unwrap()).collect::<Vec<_>>()
            };
            std::thread::scope(|scope| scope.spawn(connect_as).join().unwrap())
        })
        .collect();
    let (opener, accepter) = connection(&listener());
    guest.offer(1, &opener);
    guest.offer(2, &accepter);
    assert_eq!(guest.expect_refusal().1, viaduct_control::Reason::NoDescriptors);
    guest.expect_refusal();
    let before = busy(&daemon.child);
    std::thread::sleep(Duration::from_millis(500));
    assert!(busy(&daemon.child) - before < 10, "it spins");
    let told = std::fs::read_to_string(log).unwrap();
    assert_eq!(told.matches("accept: Too many open files").count(), 1, "{told}");
    drop(crowd);
    until("it pairs again", || {
        guest.offer(3, &opener);
        guest.offer(4, &accepter);
        let events = [guest.event(support::PATIENCE), guest.event(support::PATIENCE)];
        events.iter().all(|event| matches!(event, support::Event::Pair(..)))
    });
}

/// The kernel lets a user have only so many descriptors under way, and says nothing when there may be more again.
#[test]
fn the_limit_on_descriptors_in_flight_is_survived() {
    if !is_root() {
        return;
    }
    let dir = public_dir();
    // A user of its own, because others' descriptors under way would count too.
    let user = rustix::process::Uid::from_raw(61_000 + std::process::id() % 4000);
    std::os::unix::fs::chown(dir.0.path(), Some(user.as_raw()), None).unwrap();
    let test = || {
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        let daemon = limited(dir, "-n 32");
        let (mut reader, mut sleeper) = (Guest::hello(daemon.dir()), Guest::hello(daemon.dir()));
        let listener = listener();
        let (calm, count) = (32, 36);
        for number in 0..count {
            let (opener, accepter) = connection(&listener);
            reader.offer(number, &opener);
            sleeper.offer(number, &accepter);
            if number < calm {
                reader.expect_pair();
            }
        }
        until("all pairs are made", || daemon.stats().pairs == count);
        let before = busy(&daemon.child);
        std::thread::sleep(Duration::from_millis(500));
        assert!(busy(&daemon.child) - before < 10, "it spins");
        for number in 0..count {
            assert_eq!(sleeper.expect_pair().0.offer, number);
        }
        for number in calm..count {
            assert_eq!(reader.expect_pair().0.offer, number);
        }
    };
    std::thread::scope(|scope| scope.spawn(test).join().unwrap());
}

/// A limit on the size of files counts for segments, too, and a file that would exceed it ends a program that does not
/// expect that.
#[test]
fn a_limit_on_files_refuses_matches_and_a_soft_one_does_not() {
    let (opener, accepter) = connection(&listener());
    let daemon = limited(public_dir(), "-f 8000");
    let mut guest = Guest::hello(daemon.dir());
    for number in [1, 3] {
        guest.offer(number, &opener);
        guest.offer(number + 1, &accepter);
        assert_eq!(guest.expect_refusal().1, viaduct_control::Reason::NoMemory);
        guest.expect_refusal();
    }
    assert_eq!(daemon.stats().segments, 0);
    let daemon = limited(public_dir(), "-S -f 8000");
    let mut guest = Guest::hello(daemon.dir());
    guest.offer(1, &opener);
    guest.offer(2, &accepter);
    guest.expect_pair();
}

/// A directory that all users can reach, with a copy of viaductd, because the build directory may be closed to them.
fn public_dir() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("program");
    std::fs::copy(env!("CARGO_BIN_EXE_viaductd"), &program).unwrap();
    (dir, program)
}

#[test]
fn settings_closed_to_the_user_are_left_out_and_own_ones_are_not() {
    if !is_root() {
        eprintln!("skipped: only root can be shut out by becoming another user");
        return;
    }
    let (dir, program) = public_dir();
    let file = dir.path().join("viaduct.toml");
    std::fs::write(&file, "[daemon]\nnonsense = 1\n").unwrap();
    let permit = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    let run = || {
        let mut command = std::process::Command::new(&program);
        command
            .args(["--idle-exit", "0", "--dir"])
            .arg(format!("/tmp/viaduct-test-{}", std::process::id()))
            .env("XDG_CONFIG_HOME", dir.path())
            .uid(65534)
            .gid(65534);
        command.output().unwrap()
    };
    permit(0o600);
    let output = run();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("left out"), "{said}");
    for (mode, owner) in [(0o644, 0), (0o000, 65534)] {
        permit(mode);
        std::os::unix::fs::chown(&file, Some(owner), None).unwrap();
        assert!(complaint_of(&run()).contains("viaduct.toml"));
    }
    let _ = std::fs::remove_dir_all(format!("/tmp/viaduct-test-{}", std::process::id()));
}

/// A viaductd under a limit, as `ulimit` of a shell takes it.
fn limited((dir, program): (tempfile::TempDir, std::path::PathBuf), limit: &str) -> Daemon {
    let mut limited = std::process::Command::new("sh");
    limited
        .arg("-c")
        .arg(format!("ulimit {limit}; exec \"$0\" --same-user --dir \"$1\""))
        .arg(program)
        .arg(dir.path())
        .env("XDG_CONFIG_HOME", dir.path());
    Daemon::start_as(dir, limited)
}

/// Processor time used so far, in hundredths of a second.
fn busy(child: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    stat.split(' ')
        .skip(13)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum()
}
