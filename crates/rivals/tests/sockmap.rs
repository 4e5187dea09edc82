//! The shortcut between real connections. Needs root and BPF; elsewhere it checks that the program says why it cannot.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

struct Holder {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_viaduct-rivals"))
            .arg("sockmap")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn carried(&mut self) -> u64 {
        writeln!(self.child.stdin.as_ref().unwrap()).unwrap();
        self.line().parse().unwrap()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Sends `message` there, and back what arrives.
fn echo(message: &[u8]) -> Vec<u8> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let length = message.len();
    let server = thread::spawn(move || {
        let mut buffer = vec![0; length];
        server.read_exact(&mut buffer).unwrap();
        server.write_all(&buffer).unwrap();
    });
    client.write_all(message).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    server.join().unwrap();
    answer
}

/// The bytes of messages of which no two parts are alike.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251).to_le_bytes()[0]).collect()
}

#[test]
fn connections_within_the_cgroup_are_short_cut_and_no_others() {
    let mut holder = Holder::start();
    let cgroup = holder.line();
    if cgroup.is_empty() {
        let mut why = String::new();
        holder.child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        assert!(why.starts_with("Error: "), "{why}");
        eprintln!("skipped: {}", why.trim_end());
        return;
    }
    let cgroup = Path::new(&cgroup);
    let message = pattern(100_000);
    assert!(echo(&message) == message);
    assert_eq!(holder.carried(), 0, "outside of the cgroup");

    fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
    let same = echo(&message) == message;
    let carried = holder.carried();
    fs::write(cgroup.parent().unwrap().join("cgroup.procs"), "0").unwrap();
    assert!(same);
    assert_eq!(carried, 2 * message.len() as u64);

    // A signal alone does not end it; the end of its input does, with what runs in the cgroup.
    let mut left = Command::new("sh")
        .arg("-c")
        .arg("echo 0 >\"$0/cgroup.procs\" && echo in && exec sleep 60")
        .arg(cgroup)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(left.stdout.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    assert_eq!(said, "in\n");
    let pid = holder.child.id().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    assert_eq!(holder.carried(), carried);
    drop(holder);
    assert!(!left.wait().unwrap().success());
    assert!(!cgroup.exists());
}
