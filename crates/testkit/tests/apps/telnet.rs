//! telnetd under inetd, which hands each connection to a program as its standard input and output, so that they stay
//! plain; and telnet, which takes urgent data in line.

use crate::{PATIENCE, Pair};
use nix::sys::stat::Mode;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use viaduct_testkit::processes::{free_port, wait_until};

matrix!(root check, "inetutils-inetd", "telnetd", "telnet");

/// What answers in place of login: a line back for each line, until it hears `quit`. It waits for one more at the end,
/// since telnetd drops what it has not passed on yet when the program ends.
const ANSWERS: &str = "#!/bin/sh
stty -echo
echo ready
while read -r line && [ \"$line\" != quit ]; do echo \"heard $line\"; done
seq 20000
echo bye
read -r line
";

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let script = pair.instance.scratch("answers");
    std::fs::write(&script, ANSWERS).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let telnetd = viaduct_testkit::binaries::find("telnetd").unwrap();
    let service = format!(
        "127.0.0.1:{port} stream tcp nowait root {} telnetd -h -E {}\n",
        telnetd.display(),
        script.display()
    );
    let file = pair.instance.scratch("inetd.conf");
    std::fs::write(&file, service).unwrap();
    let arguments = ["-d".into(), "--pidfile=/dev/null".into(), file.into_os_string()];
    let _server = pair.server("inetutils-inetd", arguments).spawn().listening(port);

    // Typed one after the other, as by a person who waits for the answer.
    let keyboard = pair.instance.scratch("keyboard");
    nix::unistd::mkfifo(&keyboard, Mode::S_IRWXU).unwrap();
    let mut typing = std::fs::File::options().read(true).write(true).open(&keyboard).unwrap();
    let client = pair
        .client("telnet", ["127.0.0.1", &port.to_string()])
        .input(&keyboard)
        .spawn();
    let shows = |text: &str| {
        let there = wait_until(Duration::from_secs(10), || client.output().contains(text));
        assert!(there, "no {text:?} in {:?} {}", client.output(), client.errors());
    };
    shows("ready");
    for number in 0..100 {
        writeln!(typing, "line {number}").unwrap();
        shows(&format!("heard line {number}\r\n"));
    }
    writeln!(typing, "quit").unwrap();
    shows("bye");
    writeln!(typing).unwrap();
    let output = client.finish(PATIENCE).output;
    let numbers: Vec<u32> = output.lines().filter_map(|line| line.trim().parse().ok()).collect();
    assert!(
        numbers.iter().copied().eq(1..=20_000),
        "lines are missing: {} came",
        numbers.len()
    );
    pair.prove_plain("inetd hands each connection to telnetd");
}
