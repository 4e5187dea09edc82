//! `viaduct status` on counters that the test writes itself: what is shown, what is not, and what a hostile process can
//! do.

mod common;

use common::{Dir, Guest, connection, pass_environment, stderr, stdout, succeed, viaduct};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use viaduct_control::Reason;
use viaduct_control::counters::{self, Path, State, slot};
use viaduct_control::runtime::instance_id;

const SHM: State = State {
    fd: 0,
    sending: Path::Shm,
    receiving: Path::Shm,
    reason: Reason::Accelerated,
};

const HALF: State = State {
    fd: 0,
    sending: Path::Tcp,
    receiving: Path::Shm,
    reason: Reason::LaneStall,
};

#[test]
fn a_row_has_every_field() {
    let guest = Guest::new();
    let (client, _server) = connection();
    guest.show(0, &client, HALF);
    let counted = [
        (slot::NETNS, 77),
        (slot::BYTES_SENT, 1000),
        (slot::BYTES_RECEIVED, 1001),
        (slot::FAST_BYTES_SENT, 1002),
        (slot::FAST_BYTES_RECEIVED, 1003),
        (slot::BELLS_SENT, 1004),
        (slot::BELLS_BY_SOCKET, 1005),
        (slot::SWITCHES, 1006),
        (slot::SLEEPS, 1007),
        (slot::PEER_PID, 1008),
    ];
    for (word, value) in counted {
        guest.set_in_slot(0, word, value);
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    guest.set_in_slot(0, slot::CREATED_NS, (now.tv_sec - 10) as u64 * 1_000_000_000);

    let mut rows = guest.rows();
    assert_eq!(rows.len(), 1);
    let row = rows[0].as_object_mut().unwrap();
    let age = row.remove("age_s").unwrap().as_f64().unwrap();
    assert!((9.0..20.0).contains(&age), "{age}");
    let link = std::fs::read_link("/proc/self/ns/net").unwrap();
    let netns: u64 = link.to_str().unwrap()[5..].trim_end_matches(']').parse().unwrap();
    let instance = instance_id(guest.dir.path.as_os_str().as_encoded_bytes());
    let expected = serde_json::json!({
        "pid": std::process::id(),
        "program": "testprog",
        "fd": client.as_raw_fd(),
        "local": client.local_addr().unwrap().to_string(),
        "remote": client.peer_addr().unwrap().to_string(),
        "netns": netns,
        "netns_cookie": 77,
        "path": "tcp/shm",
        "sending": "tcp",
        "receiving": "shm",
        "reason": "lane-stall",
        "bytes_sent": 1000,
        "bytes_received": 1001,
        "fast_bytes_sent": 1002,
        "fast_bytes_received": 1003,
        "bells_sent": 1004,
        "bells_by_socket": 1005,
        "switches": 1006,
        "sleeps": 1007,
        "peer_pid": 1008,
        "instance": format!("{instance:#018x}"),
    });
    assert_eq!(serde_json::Value::Object(row.clone()), expected);

    let table = guest.table();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2);
    for word in [
        "PID", "PROGRAM", "FD", "LOCAL", "REMOTE", "PATH", "REASON", "SENT", "RECEIVED", "BELLS", "AGE",
    ] {
        assert!(lines[0].split_whitespace().any(|head| head == word), "{word}");
    }
    for word in ["testprog", "tcp/shm", "lane-stall", "1004"] {
        assert!(
            lines[1].split_whitespace().any(|cell| cell == word),
            "{word} in {table}"
        );
    }
    assert!(!table.contains('\x1b'), "no colours where no terminal is");
}

#[test]
fn addresses_not_yet_known_come_from_the_kernel() {
    let guest = Guest::new();
    let (client, server) = connection();
    for (at, stream) in [&client, &server].into_iter().enumerate() {
        guest.show(at, stream, SHM);
        guest.hide_addresses(at);
    }
    let rows = guest.rows();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["local"], client.local_addr().unwrap().to_string());
    assert_eq!(rows[0]["remote"], server.local_addr().unwrap().to_string());
    assert_eq!(rows[1]["local"], rows[0]["remote"]);
    assert_eq!(rows[1]["path"], "shm");
}

#[test]
fn ipv6_and_mapped_addresses_are_shown_as_they_are() {
    let guest = Guest::new();
    let listener = std::net::TcpListener::bind("[::1]:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    guest.show(0, &client, SHM);
    assert_eq!(guest.rows()[0]["remote"], listener.local_addr().unwrap().to_string());
    let any = std::net::TcpListener::bind("[::]:0").unwrap();
    let plain = TcpStream::connect(("127.0.0.1", any.local_addr().unwrap().port())).unwrap();
    let (mapped, _) = any.accept().unwrap();
    guest.show(0, &mapped, SHM);
    assert_eq!(guest.rows()[0]["remote"], plain.local_addr().unwrap().to_string());
}

#[test]
fn a_connection_that_is_gone_is_not_shown() {
    let guest = Guest::new();
    let (client, server) = connection();
    guest.show(0, &client, SHM);
    guest.show(1, &server, SHM);
    assert_eq!(guest.rows().len(), 2);
    // A listener and a file where the counters still tell of connections.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    guest.show_state(
        0,
        State {
            fd: listener.as_raw_fd(),
            ..SHM
        },
    );
    let file = std::fs::File::open("/dev/null").unwrap();
    guest.show_state(
        1,
        State {
            fd: file.as_raw_fd(),
            ..SHM
        },
    );
    assert_eq!(guest.rows().len(), 0);
    // A descriptor that by now is another connection.
    let (other, _peer) = connection();
    guest.show_state(
        0,
        State {
            fd: other.as_raw_fd(),
            ..SHM
        },
    );
    assert_eq!(guest.rows().len(), 0);
    // Descriptors that cannot be.
    for fd in [-1, i32::MIN, i32::MAX] {
        guest.show_state(0, State { fd, ..SHM });
        assert_eq!(guest.rows().len(), 0);
    }
}

#[test]
fn only_the_asked_for_instance_is_shown() {
    let (one, other) = (Guest::new(), Guest::new());
    let (client, server) = connection();
    one.show(0, &client, SHM);
    other.show(0, &server, SHM);
    assert_eq!(one.rows().len(), 1);
    let all = succeed(viaduct(&one.dir.path).args(["status", "--json", "--all"]));
    let all: Vec<serde_json::Value> = serde_json::from_str(&all).unwrap();
    for stream in [&client, &server] {
        let local = stream.local_addr().unwrap().to_string();
        assert!(all.iter().any(|row| row["local"] == local));
    }
    let unused = Dir::new();
    let empty = succeed(
        viaduct(&one.dir.path)
            .args(["status", "--json", "--dir"])
            .arg(&unused.path),
    );
    assert_eq!(empty.trim(), "[]");
}

/// What it is, how it is done, and how many rows remain.
type Attack<'a> = (&'static str, &'a dyn Fn(&Guest), usize);

#[test]
fn hostile_counters_harm_nobody() {
    let (client, _server) = connection();
    let hostile: [Attack<'_>; 8] = [
        ("magic", &|guest| guest.set(counters::MAGIC_WORD, 1), 0),
        (
            "more slots than fit",
            &|guest| guest.set(counters::SLOTS_USED, u64::MAX),
            1,
        ),
        ("no header", &|guest| guest.truncate(100), 0),
        (
            "half a slot",
            &|guest| guest.truncate((counters::HEADER_WORDS as u64 + 5) * 8),
            0,
        ),
        ("empty", &|guest| guest.truncate(0), 0),
        ("unknown path", &|guest| guest.set_in_slot(0, slot::STATE, u64::MAX), 0),
        ("port", &|guest| guest.set_in_slot(0, slot::LOCAL + 2, u64::MAX), 0),
        ("future", &|guest| guest.set_in_slot(0, slot::CREATED_NS, u64::MAX), 1),
    ];
    for (name, attack, shown) in hostile {
        let guest = Guest::new();
        guest.show(0, &client, SHM);
        assert_eq!(guest.rows().len(), 1);
        attack(&guest);
        assert_eq!(guest.rows().len(), shown, "{name}");
        assert_eq!(guest.table().lines().count(), 1 + shown, "{name}");
    }
}

#[test]
fn every_word_may_be_anything() {
    let guest = Guest::new();
    let (client, _server) = connection();
    let instance = guest.get(counters::INSTANCE);
    let mut random = 0x1234_5678_9abc_def1_u64;
    for round in 0..20 {
        for word in 0..counters::slot_base(8) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            guest.set(word, if round % 2 == 0 { random } else { u64::MAX });
        }
        guest.set(counters::MAGIC_WORD, counters::MAGIC);
        guest.set(counters::PID, std::process::id().into());
        guest.set(counters::INSTANCE, instance);
        guest.set(counters::UNSHOWN, 0);
        guest.show(0, &client, SHM);
        let rows = guest.rows();
        assert_eq!(rows.len(), 1, "nothing but the one real connection");
        assert_eq!(rows[0]["local"], client.local_addr().unwrap().to_string());
        assert!(guest.table().is_ascii() || !guest.table().contains('\x1b'));
    }
}

#[test]
fn names_cannot_write_on_the_terminal() {
    let guest = Guest::new();
    let (client, _server) = connection();
    guest.show(0, &client, SHM);
    guest.set_program(b"\x1b[2J\nroot\xff");
    let table = guest.table();
    assert_eq!(table.lines().count(), 2);
    assert!(
        !table.contains('\x1b') && table.contains("\\u{1b}[2J\\nroot"),
        "{table}"
    );
    assert_eq!(guest.rows()[0]["program"], "\\u{1b}[2J\\nroot\u{fffd}");
}

#[test]
fn a_child_that_inherited_the_counters_shows_nothing_twice() {
    let guest = Guest::inherited();
    let (client, _server) = connection();
    let _inherited = rustix::io::dup(&client).unwrap();
    guest.show(0, &client, SHM);
    let mut child = Command::new("sleep").arg("10").spawn().unwrap();
    let rows = guest.rows();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["pid"], std::process::id());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_child_whose_parent_is_gone_still_shows_its_connections() {
    let guest = Guest::inherited();
    let (client, _server) = connection();
    let inherited = rustix::io::dup(&client).unwrap();
    guest.show(0, &client, SHM);
    guest.show_state(
        0,
        State {
            fd: inherited.as_raw_fd(),
            ..SHM
        },
    );
    guest.set(counters::PID, u64::from(u32::MAX));
    // This process has counters of its own, as a parent would that is not the one in question.
    let _own = Guest::new();
    let mut child = Command::new("sleep").arg("10").spawn().unwrap();
    // The child may still be on its way to its program.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    let mut rows = guest.rows();
    while rows.is_empty() && std::time::Instant::now() < until {
        rows = guest.rows();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(rows.len(), 1);
    assert_ne!(rows[0]["pid"], std::process::id());
    assert_eq!(rows[0]["local"], client.local_addr().unwrap().to_string());
}

#[test]
fn connections_without_room_are_counted() {
    let guest = Guest::new();
    guest.set(counters::UNSHOWN, 3);
    assert!(guest.table().contains("3 further connections of testprog"));
}

#[test]
fn totals_hold_what_has_ended_and_what_is_open() {
    let guest = Guest::new();
    let (client, server) = connection();
    guest.show(0, &client, SHM);
    guest.show(1, &server, HALF);
    for (place, word) in slot::TRAFFIC.into_iter().enumerate() {
        guest.set_in_slot(0, word, 10 + place as u64);
        guest.set(counters::ENDED_TRAFFIC + place, 100 * place as u64);
    }
    guest.set(counters::ENDED, 7);
    guest.set(counters::ENDED_FAST, 5);
    guest.set(counters::OFFERS, 9);
    guest.set(counters::PAIRS, 6);
    let text = succeed(viaduct(&guest.dir.path).args(["status", "--totals", "--json"]));
    let mut sums: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(sums.len(), 1);
    sums[0].as_object_mut().unwrap().remove("instance").unwrap();
    let expected = serde_json::json!({
        "pid": std::process::id(),
        "program": "testprog",
        "open": 2,
        "open_fast": 1,
        "ended": 7,
        "ended_fast": 5,
        "bytes_sent": 10,
        "bytes_received": 111,
        "fast_bytes_sent": 212,
        "fast_bytes_received": 313,
        "offers": 9,
        "pairs": 6,
        "unshown": 0,
        "lost": 0,
    });
    assert_eq!(sums[0], expected);
    let table = succeed(viaduct(&guest.dir.path).args(["status", "--totals"]));
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(table.contains("testprog"), "{table}");
}

#[test]
fn there_may_be_more_programs_than_descriptors() {
    const PROGRAMS: usize = 40;
    let dir = Dir::new();
    let mut programs: Vec<_> = (0..PROGRAMS)
        .map(|_| {
            let guest = Guest::inherited();
            let program = Command::new("sleep").arg("60").spawn().unwrap();
            guest.set(counters::PID, program.id().into());
            guest.set(counters::INSTANCE, instance_id(dir.path.as_os_str().as_encoded_bytes()));
            program
        })
        .collect();
    let own = viaduct(&dir.path);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 20; exec \"$0\" status --totals --json --dir \"$1\""]);
    let output = limited.arg(own.get_program()).arg(&dir.path).output().unwrap();
    for program in &mut programs {
        program.kill().unwrap();
        program.wait().unwrap();
    }
    let shown: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let pids: BTreeSet<_> = shown.iter().map(|sum| sum["pid"].as_u64().unwrap()).collect();
    let expected: BTreeSet<_> = programs.iter().map(|program| u64::from(program.id())).collect();
    assert_eq!(pids, expected, "{}", stderr(&output));
}

#[test]
fn programs_of_another_version_are_told_once_and_not_said_to_have_had_no_connection() {
    let guest = Guest::new();
    guest.set(counters::MAGIC_WORD, counters::MAGIC + 1);
    // This process itself is of this version.
    let _own = Guest::new();
    let mut family = [(); 3].map(|()| guest.child());
    let first = family.iter().map(|child| child.id()).min().unwrap();
    let own = viaduct(&guest.dir.path);
    let mut terminal = Command::new("script");
    pass_environment(&own, &mut terminal);
    let command = format!("exec {} status", own.get_program().display());
    terminal.args(["-qec", &command, "/dev/null"]);
    let output = terminal.stdin(Stdio::null()).output().unwrap();
    for child in &mut family {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let shown = stdout(&output);
    let lines: Vec<_> = shown.lines().map(str::trim).collect();
    let told = format!(
        "viaduct: sleep ({first}) and 2 processes of its family have the library of another version and are not shown; \
         restart them"
    );
    assert_eq!(lines[1..], [told], "{shown}");
}

#[test]
fn watching_prints_one_document_a_line() {
    let guest = Guest::new();
    let (client, _server) = connection();
    guest.show(0, &client, SHM);
    let mut child = viaduct(&guest.dir.path)
        .args(["status", "--watch", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for sent in [0, 5] {
        let line = lines.next().unwrap().unwrap();
        let rows: Vec<serde_json::Value> = serde_json::from_str(&line).unwrap();
        assert_eq!(rows[0]["bytes_sent"], sent);
        guest.set_in_slot(0, slot::BYTES_SENT, 5);
    }
    // A reader that goes away ends it without complaint.
    drop(lines);
    assert!(child.wait().unwrap().success());
}

#[test]
fn doctor_says_what_follows() {
    let guest = Guest::new();
    let mut command = viaduct(&guest.dir.path);
    command.env("VIADUCT_DAEMON", "/nonexistent/viaductd");
    let output = command.args(["doctor", "--json"]).output().unwrap();
    let checks: Vec<serde_json::Value> = serde_json::from_str(&stdout(&output)).unwrap();
    let find = |name: &str| checks.iter().find(|check| check["check"] == name).unwrap();
    for name in [
        "kernel",
        "shared memory",
        "kernel tickets",
        "user namespace",
        "descriptors",
        "mappings",
        "overcommit",
        "direct search IPv4",
    ] {
        assert!(
            find(name)["finding"]
                .as_str()
                .is_some_and(|finding| !finding.is_empty()),
            "{name}"
        );
    }
    assert_eq!(find("library")["level"], "ok");
    let several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    assert_eq!(checks.iter().any(|check| check["check"] == "idle processors"), several);
    // Both are tried where they are there.
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    assert_eq!(
        checks.iter().any(|check| check["check"] == "direct search IPv6"),
        has_ipv6
    );
    // No viaductd runs there and none can be started.
    assert_eq!(find("viaductd")["level"], "fail");
    assert_eq!(output.status.code(), Some(1));
    for check in &checks {
        let ok = check["level"] == "ok";
        assert_eq!(ok, check["consequence"] == "", "{check}");
    }
}

#[test]
fn doctor_finds_directories_in_which_no_viaductd_can_listen() {
    let home = Dir::new();
    let file = home.file("file", "");
    let open = home.path.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let long = home.path.join("l".repeat(93));
    for (dir, level) in [
        (home.path.as_path(), "ok"),
        (&long, "fail"),
        (&open, "fail"),
        (&home.path.join("new"), "ok"),
        (&home.path.join("two/new"), "fail"),
        (&file, "fail"),
        (&file.join("below"), "fail"),
    ] {
        let output = viaduct(dir).args(["doctor", "--json"]).output().unwrap();
        let checks: Vec<serde_json::Value> = serde_json::from_str(&stdout(&output)).unwrap();
        let check = checks
            .iter()
            .find(|check| check["check"] == "runtime directory")
            .unwrap();
        assert_eq!(check["level"], level, "{}: {check}", dir.display());
        // To start viaductd anew would not help.
        let advice = |check: &serde_json::Value| check["consequence"].as_str().unwrap().contains("Restart");
        assert!(!checks.iter().any(advice), "{checks:#?}");
    }
    let run = viaduct(&long).args(["run", "true"]).output().unwrap();
    assert!(run.status.success());
    assert!(stderr(&run).contains("takes 93 at most"), "{}", stderr(&run));
}

#[test]
fn doctor_finds_what_stands_in_the_place_of_viaductds_own_files() {
    let home = Dir::new();
    let target = home.file("target", "");
    let found = || {
        let output = viaduct(&home.path).args(["doctor", "--json"]).output().unwrap();
        let checks: Vec<Value> = serde_json::from_str(&stdout(&output)).unwrap();
        let is_it = |check: &&Value| check["check"] == "runtime directory";
        let check = checks.iter().find(is_it).unwrap();
        let said = |name: &str| check[name].as_str().unwrap().to_owned();
        assert_eq!(
            said("level") == "fail",
            said("consequence").contains("Remove it"),
            "{check}"
        );
        (said("level"), said("finding"))
    };
    for (name, finding) in [
        ("viaductd.sock", "is a directory"),
        ("viaductd.lock", "is no regular file"),
        ("programs.lock", "is no regular file"),
    ] {
        let path = home.path.join(name);
        fs::create_dir(&path).unwrap();
        assert_eq!(found(), ("fail".to_owned(), format!("{} {finding}", path.display())));
        fs::remove_dir(&path).unwrap();
        // viaductd puts its socket in the place of what is no directory, and follows no link to a lock.
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert_eq!(found().0 == "ok", name == "viaductd.sock", "{name}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(found().0, "ok", "{name}");
    }
}

#[test]
fn doctor_finds_a_directory_that_cannot_be_written_to() {
    const FAULTS: [(&str, &str); 2] = [
        ("remount,ro", "Read-only file system"),
        ("remount,nr_inodes=2", "No space left on device"),
    ];
    const TRY: &str = r#"mount -t tmpfs viaduct "$1" && mkdir -m 755 "$1/d" && mount -o "$2" "$1" || exit 9
exec "$0" doctor --json --dir "$1/d""#;
    for (fault, error) in FAULTS {
        let home = Dir::new();
        let place = home.path.join("place");
        fs::create_dir(&place).unwrap();
        let own = viaduct(&home.path);
        let mut command = Command::new("unshare");
        pass_environment(&own, &mut command);
        command.args(["--mount", "sh", "-c", TRY]).arg(own.get_program());
        let output = command.arg(&place).arg(fault).output().unwrap();
        if output.stdout.is_empty() {
            eprintln!("skipped: {}", stderr(&output));
            return;
        }
        let checks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let is_it = |check: &&Value| check["check"] == "runtime directory";
        let found = checks.iter().find(is_it).unwrap()["finding"].as_str().unwrap();
        let expected = format!("nothing can be written to {}: {error}", place.join("d").display());
        assert!(found.starts_with(&expected), "{found}");
    }
}

/// The clock that counters are read by may be another than that of their program.
#[test]
fn ages_are_right_from_another_time_namespace() {
    let guest = Guest::new();
    let (client, _server) = connection();
    guest.show(0, &client, SHM);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    guest.set_in_slot(0, slot::CREATED_NS, (now.tv_sec - 10) as u64 * 1_000_000_000);
    let own = viaduct(&guest.dir.path);
    for days in ["864000", "0"] {
        let mut command = Command::new("unshare");
        pass_environment(&own, &mut command);
        command
            .args(["--time", "--monotonic", days, "--fork"])
            .arg(own.get_program());
        let output = command.args(["status", "--json"]).output().unwrap();
        if !output.status.success() && stderr(&output).starts_with("unshare") {
            eprintln!("skipped: {}", stderr(&output));
            return;
        }
        let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let age = rows[0]["age_s"].as_f64().unwrap();
        assert!((9.0..40.0).contains(&age), "{age}");
    }
}

#[test]
fn doctor_finds_a_library_that_does_not_load_and_a_wrong_configuration() {
    let guest = Guest::new();
    let library = guest.dir.file("broken.so", "not a library");
    guest.dir.file("viaduct.toml", "speed = 'high'\n");
    let mut command = viaduct(&guest.dir.path);
    let output = command
        .env("VIADUCT_PRELOAD", library)
        .env_remove("VIADUCT_DIR")
        .arg("doctor")
        .output()
        .unwrap();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.lines().any(|line| line.starts_with("FAIL  library")), "{text}");
    assert!(
        text.lines()
            .any(|line| line.starts_with("FAIL  configuration") && line.contains(":1: ")),
        "{text}"
    );
}

#[test]
fn a_directory_that_is_not_there_is_told_and_an_empty_one_shows_nothing() {
    let dir = Dir::new();
    let file = dir.path.join("file");
    fs::write(&file, "").unwrap();
    let status = |named: &std::path::Path, options: &[&str]| {
        let mut command = viaduct(&dir.path);
        command
            .args(["status", "--dir"])
            .arg(named)
            .args(options)
            .output()
            .unwrap()
    };
    for options in [
        &[][..],
        &["--json"],
        &["--totals"],
        &["--watch"],
        &["--watch", "--json"],
    ] {
        for named in [&dir.path.join("misspelt"), &file] {
            let output = status(named, options);
            assert_eq!(output.status.code(), Some(1), "{options:?}");
            assert_eq!(stdout(&output), "", "{options:?}");
            let said = common::stderr(&output);
            assert_eq!(said, format!("viaduct: {}: no such directory\n", named.display()));
        }
    }
    for (options, text) in [(&[][..], "PID "), (&["--json"], "[]")] {
        let output = status(&dir.path, options);
        assert!(output.status.success());
        assert!(stdout(&output).starts_with(text), "{}", stdout(&output));
    }
    // One that has been removed while programs go on in it.
    let guest = Guest::new();
    let (client, _server) = connection();
    guest.show(0, &client, SHM);
    fs::remove_dir_all(&guest.dir.path).unwrap();
    let output = status(&guest.dir.path, &["--json"]);
    assert!(stdout(&output).contains("shm"), "{}", common::stderr(&output));
}
