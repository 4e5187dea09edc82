//! vsftpd and the BSD FTP client: the server connects back (active), and the client connects twice (passive). vsftpd
//! chroots its sessions, drops their privileges, confines them by seccomp and clones processes with system calls of its
//! own; the client makes stdio streams of its sockets. They stay plain.

use crate::{PATIENCE, Pair, bytes};
use std::os::unix::fs::PermissionsExt;
use viaduct_testkit::processes::free_port;

matrix!(root check, "vsftpd", "tnftp");

/// Bytes of the file that is copied.
const SIZE: usize = 10_000_000;

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let root = pair.instance.scratch("ftp");
    let upload = root.join("upload");
    let empty = pair.instance.scratch("empty");
    std::fs::create_dir_all(&upload).unwrap();
    std::fs::create_dir_all(&empty).unwrap();
    std::fs::set_permissions(&upload, PermissionsExt::from_mode(0o777)).unwrap();
    let content = bytes(SIZE);
    std::fs::write(root.join("file"), &content).unwrap();
    let configuration = format!(
        "listen=YES\nlisten_address=127.0.0.1\nlisten_port={port}\nbackground=NO\n\
         anonymous_enable=YES\nanon_root={root}\nwrite_enable=YES\nanon_upload_enable=YES\nanon_umask=022\n\
         secure_chroot_dir={empty}\nxferlog_enable=NO\nconnect_from_port_20=NO\nidle_session_timeout=30\n",
        root = root.display(),
        empty = empty.display(),
    );
    let file = pair.instance.scratch("vsftpd.conf");
    std::fs::write(&file, configuration).unwrap();
    let _server = pair.server("vsftpd", [file]).spawn().listening(port);

    for (number, how) in ["-A", "-p"].into_iter().enumerate() {
        let copy = pair.instance.scratch("copy");
        let _ = std::fs::remove_file(&copy);
        let commands = pair.instance.scratch("commands");
        let there = root.join("file");
        let lines = format!(
            "binary\nls\nget file {copy}\n!sleep 0.3\nput {there} upload/sent{number}\nls upload\nbye\n",
            copy = copy.display(),
            there = there.display()
        );
        std::fs::write(&commands, lines).unwrap();
        let port = port.to_string();
        let talk = pair
            .client("tnftp", [how, "-a", "-v", "127.0.0.1", &port])
            .input(&commands)
            .run(PATIENCE)
            .success();
        assert_eq!(talk.matches("226 Transfer complete").count(), 2, "{how}: {talk}");
        assert_eq!(talk.matches("226 Directory send OK").count(), 2, "{how}: {talk}");
        assert!(std::fs::read(&copy).unwrap() == content, "{how}: what came differs");
        let sent = std::fs::read(upload.join(format!("sent{number}"))).unwrap();
        assert!(sent == content, "{how}: what was sent differs");
    }
    pair.prove_plain(
        "the client makes stdio streams of its sockets (`stdio`); vsftpd's sessions are chrooted and confined",
    );
}
