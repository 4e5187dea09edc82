//! `viaduct path` and `viaduct explain` on counters that the test writes itself.

mod common;

use common::{Guest, connection, stderr, stdout, succeed, viaduct};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use viaduct_control::Reason;
use viaduct_control::counters::{self, Path, State, Wanted};

const SHM: State = State {
    fd: 0,
    sending: Path::Shm,
    receiving: Path::Shm,
    reason: Reason::Accelerated,
};

const TCP: State = State {
    fd: 0,
    sending: Path::Tcp,
    receiving: Path::Tcp,
    reason: Reason::Requested,
};

fn path(guest: &Guest, arguments: &[&str]) -> Output {
    viaduct(&guest.dir.path).arg("path").args(arguments).output().unwrap()
}

fn own_pid() -> String {
    std::process::id().to_string()
}

#[test]
fn the_wish_is_written_into_the_right_slot() {
    let guest = Guest::new();
    let (client, server) = connection();
    guest.show(0, &client, SHM);
    guest.show(3, &server, SHM);
    let fd = server.as_raw_fd().to_string();
    for (word, wanted) in [("tcp", Wanted::Tcp), ("shm", Wanted::Shm), ("auto", Wanted::Auto)] {
        let output = path(&guest, &["--no-wait", &own_pid(), &fd, word]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(guest.wanted(3), wanted as u64);
        assert_eq!(guest.wanted(0), 0);
    }
}

#[test]
fn an_address_means_every_end_that_has_it() {
    let guest = Guest::new();
    let (client, server) = connection();
    let (other, _peer) = connection();
    guest.show(0, &client, SHM);
    guest.show(1, &server, SHM);
    guest.show(2, &other, SHM);
    let address = server.local_addr().unwrap();
    assert!(
        path(&guest, &["--no-wait", &address.to_string(), "tcp"])
            .status
            .success()
    );
    assert_eq!([guest.wanted(0), guest.wanted(1), guest.wanted(2)], [1, 1, 0]);
    assert!(
        path(&guest, &["--no-wait", &format!(":{}", address.port()), "shm"])
            .status
            .success()
    );
    assert_eq!([guest.wanted(0), guest.wanted(1), guest.wanted(2)], [2, 2, 0]);
}

#[test]
fn a_move_is_awaited() {
    let guest = Guest::new();
    let (client, _server) = connection();
    guest.show(0, &client, SHM);
    let fd = client.as_raw_fd();
    let output = thread::scope(|scope| {
        let program = scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while guest.wanted(0) != Wanted::Tcp as u64 && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            guest.show_state(
                0,
                State {
                    fd,
                    receiving: Path::Shm,
                    ..TCP
                },
            );
            thread::sleep(Duration::from_millis(50));
            guest.show_state(0, State { fd, ..TCP });
        });
        let output = path(&guest, &[&own_pid(), &fd.to_string(), "tcp"]);
        assert!(program.is_finished(), "half a move is no move");
        output
    });
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("now on tcp"), "{}", stdout(&output));
}

/// What stands still here is the command alone, as it does beside the program on a virtual machine.
#[test]
fn time_in_which_the_command_stood_still_does_not_count() {
    let guest = Guest::new();
    let (client, _server) = connection();
    guest.show(0, &client, SHM);
    let fd = client.as_raw_fd();
    let words = [own_pid(), fd.to_string(), "tcp".to_owned()];
    let mut child = viaduct(&guest.dir.path)
        .arg("path")
        .args(words)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while guest.wanted(0) != Wanted::Tcp as u64 {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
    // Until it has begun to wait.
    thread::sleep(Duration::from_millis(200));
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).unwrap();
    thread::sleep(Duration::from_millis(2500));
    kill_process(pid, Signal::CONT).unwrap();
    thread::sleep(Duration::from_millis(50));
    guest.show_state(0, State { fd, ..TCP });
    let output = child.wait_with_output().unwrap();
    assert!(stdout(&output).contains("now on tcp"), "{}", stdout(&output));
}

#[test]
fn a_program_that_does_not_move_is_told_of() {
    let guest = Guest::new();
    let (client, _server) = connection();
    let fd = client.as_raw_fd();
    guest.show(
        0,
        &client,
        State {
            reason: Reason::Offered,
            ..TCP
        },
    );
    let output = path(&guest, &[&own_pid(), &fd.to_string(), "shm"]);
    assert_eq!(output.status.code(), Some(3));
    let text = stdout(&output);
    assert!(
        text.contains(Reason::Offered.text()) && text.contains("next socket call"),
        "{text}"
    );
}

#[test]
fn of_a_stream_that_goes_one_way_the_other_is_not_waited_for() {
    let guest = Guest::new();
    let (client, _server) = connection();
    let fd = client.as_raw_fd().to_string();
    guest.show(
        0,
        &client,
        State {
            receiving: Path::Tcp,
            reason: Reason::OneWay,
            ..SHM
        },
    );
    let output = path(&guest, &[&own_pid(), &fd, "shm"]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let text = stdout(&output);
    assert!(
        text.contains("now sending by shm, receiving by tcp; the other way moves when its end sends next"),
        "{text}"
    );
    // Back to TCP, there is something to wait for.
    assert_eq!(path(&guest, &[&own_pid(), &fd, "tcp"]).status.code(), Some(3));
}

#[test]
fn what_is_not_there_cannot_be_moved() {
    let guest = Guest::new();
    let (client, _server) = connection();
    let fd = client.as_raw_fd().to_string();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["4294967290", &fd, "tcp"], 1, "no process"),
        (&[&own_pid(), "987654", "tcp"], 1, "descriptor 987654"),
        (&["203.0.113.1:9", "tcp"], 1, "203.0.113.1:9"),
        (&[&own_pid(), "tcp"], 2, "which descriptor"),
        (&[&own_pid(), &fd, "udp"], 2, "tcp, shm or auto"),
        (&["nonsense", "tcp"], 2, "ADDR:PORT"),
    ];
    for (arguments, code, word) in cases {
        let output = path(&guest, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(stderr(&output).contains(word), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn processes_of_others_are_not_said_to_have_no_connection() {
    use std::os::unix::process::CommandExt;
    let guest = Guest::new();
    let as_nobody = |arguments: &[&str]| {
        let mut command = viaduct(&guest.dir.path);
        // Who is not root may not look into the first process anyway.
        if rustix::process::geteuid().is_root() {
            command.uid(65534);
        }
        let output = command.arg("path").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        stderr(&output)
    };
    let said = as_nobody(&["1", "3", "tcp"]);
    assert!(
        said.contains("may not be looked into") && said.contains("root"),
        "{said}"
    );
    let said = as_nobody(&["203.0.113.1:9", "tcp"]);
    assert!(
        said.contains("that you may look into") && said.contains("root"),
        "{said}"
    );
}

fn explain(guest: &Guest, target: &str) -> String {
    succeed(viaduct(&guest.dir.path).args(["explain", target]))
}

fn address(stream: &TcpStream) -> String {
    stream.local_addr().unwrap().to_string()
}

#[test]
fn the_reason_and_the_other_end_are_explained() {
    let guest = Guest::new();
    let (client, _server) = connection();
    guest.show(
        0,
        &client,
        State {
            reason: Reason::Offered,
            ..TCP
        },
    );
    let text = explain(&guest, &address(&client));
    for part in [
        "testprog",
        "tcp for sending, tcp for receiving",
        Reason::Offered.text(),
        "[offered]",
        Reason::Offered.advice(),
        "as the same user unless viaductd is root's",
        "does not run under Viaduct",
        "none. Paired connections go on",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn ends_in_different_runtime_directories_are_noticed() {
    let (one, other) = (Guest::new(), Guest::new());
    let (client, server) = connection();
    one.show(
        0,
        &client,
        State {
            reason: Reason::Offered,
            ..TCP
        },
    );
    other.show(
        0,
        &server,
        State {
            reason: Reason::Offered,
            ..TCP
        },
    );
    let text = explain(&one, &address(&client));
    assert!(text.contains("another runtime directory"), "{text}");
}

#[test]
fn a_fast_connection_needs_no_advice() {
    let guest = Guest::new();
    let (client, server) = connection();
    guest.show(0, &client, SHM);
    guest.show(1, &server, SHM);
    // By its address: the tests beside this one are the same process.
    let text = explain(&guest, &address(&client));
    assert!(text.contains("Other end: testprog"), "{text}");
    assert!(text.contains("shm for sending, shm for receiving"), "{text}");
    assert!(!text.contains("does not run under Viaduct"), "{text}");
}

#[test]
fn a_plain_program_is_told_how_to_join() {
    let guest = Guest::new();
    let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
    let text = explain(&guest, &child.id().to_string());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        text.contains("sleep does not run under Viaduct. Start it with `viaduct run`."),
        "{text}"
    );
    let (client, _server) = connection();
    let text = explain(&guest, &address(&client));
    assert!(text.contains("Carried by: tcp"), "{text}");
}

#[test]
fn what_has_ended_and_the_kernels_own_are_no_programs_to_be_started() {
    let guest = Guest::new();
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", ended.id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = explain(&guest, &ended.id().to_string());
    ended.wait().unwrap();
    assert!(
        text.contains("true has ended") && !text.contains("Start it with"),
        "{text}"
    );
}

#[test]
fn a_program_with_the_library_of_another_version_is_not_said_to_have_no_connection() {
    let guest = Guest::new();
    guest.set(counters::MAGIC_WORD, counters::MAGIC + 1);
    // This process itself is of this version.
    let _own = Guest::new();
    let mut child = guest.child();
    let pid = child.id().to_string();
    let text = explain(&guest, &pid);
    let moved = path(&guest, &[&pid, "3", "tcp"]);
    let [table, totals] = ["status", "status --json --totals"].map(|words| {
        let words = words.split(' ');
        viaduct(&guest.dir.path).args(words).output().unwrap()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(text.contains("the library of another version"), "{text}");
    assert!(
        stderr(&moved).contains("the library of another version"),
        "{}",
        stderr(&moved)
    );
    for output in [table, totals] {
        let told = format!("sleep ({pid}) has the library of another version");
        assert!(
            output.status.success() && stderr(&output).contains(&told),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn what_cannot_be_written_is_told_by_the_status() {
    let guest = Guest::new();
    let (client, _server) = connection();
    guest.show(0, &client, SHM);
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let unread = || Stdio::from(std::io::pipe().unwrap().1);
    for (out, errors, expected) in [(full(), full(), 1), (unread(), unread(), 0)] {
        let mut command = viaduct(&guest.dir.path);
        command.args(["path", &address(&client), "shm"]);
        let status = command.stdout(out).stderr(errors).status().unwrap();
        assert_eq!(status.code(), Some(expected));
    }
}

#[test]
fn a_listener_is_named() {
    let guest = Guest::new();
    for bound in ["127.0.0.1:0", "0.0.0.0:0"] {
        let listener = std::net::TcpListener::bind(bound).unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = explain(&guest, &format!("127.0.0.1:{port}"));
        assert!(text.contains(&format!("{port}, not connected")), "{text}");
        assert!(text.contains("does not run under Viaduct"), "{text}");
    }
}

#[test]
fn nothing_there_is_an_error() {
    let guest = Guest::new();
    for target in ["4294967290", "203.0.113.1:9"] {
        let output = viaduct(&guest.dir.path).args(["explain", target]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{target}");
    }
    let output = viaduct(&guest.dir.path).args(["explain", "nonsense"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
