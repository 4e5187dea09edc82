//! OpenSSH: commands with much input and output, scp and sftp. Until a user is known the server answers from a process
//! that is chrooted, runs as nobody and is confined by seccomp. It stays plain: sshd becomes another program between
//! accepting a connection and using it.

use crate::{PATIENCE, Pair, bytes};
use std::path::Path;
use std::process::Command;
use viaduct_testkit::processes::free_port;
use viaduct_testkit::{Outcome, Program};

matrix!(root check, "sshd", "ssh", "scp", "sftp", "ssh-keygen");

/// Bytes of the file that is copied.
const SIZE: usize = 20_000_000;

fn key(file: &Path) {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(file)
        .status()
        .unwrap();
    assert!(made.success(), "{made}");
}

fn start(pair: &Pair<'_>, port: u16) -> Program {
    let dir = pair.instance.dir().display();
    key(&pair.instance.scratch("host"));
    key(&pair.instance.scratch("user"));
    // Where Debian's service script makes it.
    std::fs::create_dir_all("/run/sshd").unwrap();
    let configuration = format!(
        "ListenAddress 127.0.0.1:{port}
         HostKey {dir}/host
         AuthorizedKeysFile {dir}/user.pub
         PidFile none
         StrictModes no
         PermitRootLogin prohibit-password
         UsePAM no
         Subsystem sftp /usr/lib/openssh/sftp-server\n"
    );
    let file = pair.instance.scratch("sshd_config");
    std::fs::write(&file, configuration).unwrap();
    pair.server("sshd", ["-D".into(), "-e".into(), "-f".into(), file.into_os_string()])
        .spawn()
        .listening(port)
}

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let server = start(pair, port);
    let dir = pair.instance.dir().display();
    let options = format!(
        "-F none -i {dir}/user -o Port={port} -o BatchMode=yes -o StrictHostKeyChecking=no \
         -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    );
    let run = |program: &str, last: &[&str], input: Option<&Path>| -> Outcome {
        let launch = pair.client(program, options.split_whitespace().chain(last.iter().copied()));
        let launch = match input {
            Some(input) => launch.input(input),
            None => launch,
        };
        let outcome = launch.run(PATIENCE);
        assert!(
            outcome.status.success(),
            "{program} {last:?}: {outcome:#?}\n{}",
            server.errors()
        );
        outcome
    };

    let file = pair.instance.scratch("file");
    let content = bytes(SIZE);
    std::fs::write(&file, &content).unwrap();
    let is_same = |name: &str| std::fs::read(pair.instance.scratch(name)).unwrap() == content;

    assert_eq!(run("ssh", &["root@127.0.0.1", "echo $((6 * 7))"], None).output, "42\n");
    run("ssh", &["root@127.0.0.1", &format!("cat >{dir}/by-ssh")], Some(&file));
    assert!(is_same("by-ssh"));
    let lines = run("ssh", &["root@127.0.0.1", "seq 300000"], None).output;
    assert_eq!(lines.lines().count(), 300_000);
    assert_eq!(lines.lines().last(), Some("300000"));

    run(
        "scp",
        &[&format!("{dir}/file"), &format!("root@127.0.0.1:{dir}/by-scp")],
        None,
    );
    assert!(is_same("by-scp"));
    run(
        "scp",
        &["-O", &format!("root@127.0.0.1:{dir}/file"), &format!("{dir}/back")],
        None,
    );
    assert!(is_same("back"));

    let batch = pair.instance.scratch("batch");
    std::fs::write(
        &batch,
        format!("put {dir}/file {dir}/by-sftp\nget {dir}/file {dir}/got\nls {dir}\n"),
    )
    .unwrap();
    run("sftp", &["-b", &format!("{dir}/batch"), "root@127.0.0.1"], None);
    assert!(is_same("by-sftp") && is_same("got"));

    pair.prove_plain("sshd becomes another program between accepting a connection and using it");
}
