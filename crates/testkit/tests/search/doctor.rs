//! What `viaduct doctor` says of direct search, in text and in JSON: of this kernel, of one that does not help, and
//! where nothing can be tried.

use serde::Deserialize;
use std::path::Path;
use std::process::Command;
use viaduct_testkit::Instance;
use viaduct_testkit::binaries::{binary, find};

#[derive(Debug, Deserialize, PartialEq)]
struct Check {
    check: String,
    level: String,
    finding: String,
    consequence: String,
}

/// Whether the kernel peeks at an offset, by address: what `viaduct doctor` must have found out by itself.
const PEEK: &str = "import socket, sys
l = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)
s = socket.create_connection(l.getsockname()[:2])
s.sendall(b'ab')
c = l.accept()[0]
c.recv(2, socket.MSG_PEEK | socket.MSG_WAITALL)
SO_PEEK_OFF = 42
try:
    c.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 1)
    print(c.recv(1, socket.MSG_PEEK) == b'b')
except OSError:
    print(False)
";

const HELPS: &str = "the kernel peeks into TCP streams at an offset (SO_PEEK_OFF)";
const DOES_NOT: &str = "the kernel does not peek into such TCP streams at an offset (SO_PEEK_OFF)";
const COPIES: &str = "Direct search on plain TCP connections copies what it passes over, and reaches no further than 256 KiB. IPv4 has it since Linux 6.9, \
                      IPv6 since a later one.";
const NOT_KNOWN: &str = "Whether direct search on plain TCP connections copies what it passes over is not known.";

/// The words before a program that put it into its surroundings, and the output of the whole.
fn output(surroundings: &[&str], program: &Path, arguments: &[&str]) -> String {
    let words: Vec<&str> = surroundings
        .iter()
        .copied()
        .chain([program.to_str().unwrap()])
        .collect();
    let output = Command::new(words[0])
        .args(&words[1..])
        .args(arguments)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The checks of direct search. Text and JSON say the same.
fn told(surroundings: &[&str], dir: &Path) -> Vec<Check> {
    let doctor = |more: &[&str]| {
        let arguments = [&["doctor", "--dir", dir.to_str().unwrap()], more].concat();
        output(surroundings, &binary("viaduct"), &arguments)
    };
    let mut checks: Vec<Check> = serde_json::from_str(&doctor(&["--json"])).unwrap();
    checks.retain(|check| check.check.starts_with("direct search"));
    let text = doctor(&[]);
    for check in &checks {
        let level = check.level.to_uppercase();
        let mut lines = format!("{level:<4}  {} {}\n", check.check, check.finding);
        if !check.consequence.is_empty() {
            lines += &format!("{:25}{}\n", "", check.consequence);
        }
        assert!(text.contains(&lines), "{lines:?} is not in {text}");
    }
    assert_eq!(text.matches("direct search IP").count(), checks.len(), "{text}");
    checks
}

fn check(family: &str, level: &str, finding: &str, consequence: &str) -> Check {
    let [check, level, finding, consequence] =
        [&format!("direct search {family}"), level, finding, consequence].map(str::to_owned);
    Check {
        check,
        level,
        finding,
        consequence,
    }
}

#[test]
fn whether_the_kernel_helps_is_told() {
    if !viaduct_testkit::can_run(false, &["python3", "cc"]) {
        return;
    }
    let instance = Instance::without_daemon();
    let python = find("python3").unwrap();
    let before = crate::compile_alone(&instance, "before");
    let families: Vec<(&str, &str)> = [("IPv4", "127.0.0.1"), ("IPv6", "::1")]
        .into_iter()
        .filter(|(_, address)| std::net::TcpListener::bind((*address, 0)).is_ok())
        .collect();
    assert!(!families.is_empty());
    let expected = |surroundings: &[&str]| -> Vec<Check> {
        let helps = |address: &str| match output(surroundings, &python, &["-c", PEEK, address]).trim() {
            "True" => true,
            "False" => false,
            other => panic!("{other:?}"),
        };
        let told = |(family, address): &(&str, &str)| match helps(address) {
            true => check(family, "ok", HELPS, ""),
            false => check(family, "warn", DOES_NOT, COPIES),
        };
        families.iter().map(told).collect()
    };
    assert_eq!(told(&["env"], instance.dir()), expected(&["env"]));
    // On any kernel.
    let before = [before.to_str().unwrap()];
    let without = expected(&before);
    assert!(without.iter().all(|check| check.level == "warn"), "{without:?}");
    assert_eq!(told(&before, instance.dir()), without);
}

#[test]
fn that_nothing_could_be_tried_is_told() {
    if !viaduct_testkit::can_run(true, &["unshare"]) {
        return;
    }
    let instance = Instance::without_daemon();
    // A network in which even the loopback device is down.
    let told = told(&["unshare", "--net"], instance.dir());
    let ipv4 = told.iter().find(|check| check.check.ends_with("IPv4")).unwrap();
    assert!(
        ipv4.finding.starts_with("no TCP connection to this machine itself: "),
        "{ipv4:?}"
    );
    assert_eq!((ipv4.level.as_str(), ipv4.consequence.as_str()), ("warn", NOT_KNOWN));
}
