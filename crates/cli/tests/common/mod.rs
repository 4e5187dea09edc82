//! What the tests of the command share: running it in clean surroundings, and a guest made of nothing but its counters.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use rustix::fd::OwnedFd;
use rustix::fs::MemfdFlags;
use rustix::io::pwrite;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use tempfile::TempDir;
use viaduct_control::counters::{self, SLOT_WORDS, State, slot, slot_base};
use viaduct_control::message::Address;
use viaduct_control::runtime::instance_id;

/// An empty directory, spelled without symbolic links.
pub(crate) struct Dir {
    _dir: TempDir,
    pub(crate) path: PathBuf,
}

impl Dir {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        Self { _dir: dir, path }
    }

    /// Makes a file and gives its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

/// The `viaduct` under test, seeing no configuration but what `home` holds, and no installed part of Viaduct.
pub(crate) fn viaduct(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"VIADUCT_") {
            command.env_remove(name);
        }
    }
    command
        .env_remove("LD_PRELOAD")
        .env("HOME", home)
        .env("XDG_CONFIG_HOME", home)
        .env("VIADUCT_DIR", home)
        .env("VIADUCT_PRELOAD", some_library())
        .env("VIADUCT_DAEMON", stand_in());
    command
}

/// Has `to` start with the variables that `from` would.
pub(crate) fn pass_environment(from: &Command, to: &mut Command) {
    for (name, value) in from.get_envs() {
        match value {
            Some(value) => to.env(name, value),
            None => to.env_remove(name),
        };
    }
}

/// A viaductd that is ready at once and does nothing.
pub(crate) fn stand_in() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/viaductd")
}

/// A library that every process has anyway, to be preloaded in place of Viaduct's.
pub(crate) fn some_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().find_map(|line| {
        let path = line.split_whitespace().last()?;
        path.contains("/libc.so").then_some(path)
    });
    PathBuf::from(path.expect("the tests run on glibc"))
        .canonicalize()
        .unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output of a command that must succeed quietly.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    assert_eq!(stderr(&output), "", "{command:?}");
    stdout(&output)
}

/// The counters of this process in an instance of its own.
pub(crate) struct Guest {
    pub(crate) dir: Dir,
    memfd: OwnedFd,
}

impl Guest {
    pub(crate) fn new() -> Self {
        Self::with_flags(MemfdFlags::CLOEXEC)
    }

    /// A guest whose children hold its counters, too.
    pub(crate) fn inherited() -> Self {
        Self::with_flags(MemfdFlags::empty())
    }

    /// A process that holds these counters, too. Children that other tests start meanwhile do not.
    pub(crate) fn child(&self) -> Child {
        let counters = self.memfd.try_clone().unwrap();
        Command::new("sleep").arg("60").stdin(counters).spawn().unwrap()
    }

    fn with_flags(flags: MemfdFlags) -> Self {
        let dir = Dir::new();
        let memfd = rustix::fs::memfd_create(counters::MEMFD_NAME, flags).unwrap();
        rustix::fs::ftruncate(&memfd, counters::REGION_WORDS as u64 * 8).unwrap();
        let guest = Self { dir, memfd };
        guest.set(counters::PID, std::process::id().into());
        guest.set(
            counters::INSTANCE,
            instance_id(guest.dir.path.as_os_str().as_encoded_bytes()),
        );
        guest.set(counters::SLOTS_USED, 8);
        guest.set_program(b"testprog");
        guest.set(counters::MAGIC_WORD, counters::MAGIC);
        guest
    }

    pub(crate) fn set(&self, word: usize, value: u64) {
        let count = pwrite(&self.memfd, &value.to_ne_bytes(), word as u64 * 8).unwrap();
        assert_eq!(count, 8);
    }

    pub(crate) fn get(&self, word: usize) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(
            rustix::io::pread(&self.memfd, &mut bytes[..], word as u64 * 8).unwrap(),
            8
        );
        u64::from_ne_bytes(bytes)
    }

    pub(crate) fn set_program(&self, name: &[u8]) {
        let mut bytes = [0; 64];
        bytes[..name.len()].copy_from_slice(name);
        for (at, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            self.set(counters::PROGRAM + at, u64::from_ne_bytes(*word));
        }
    }

    pub(crate) fn truncate(&self, bytes: u64) {
        rustix::fs::ftruncate(&self.memfd, bytes).unwrap();
    }

    pub(crate) fn set_in_slot(&self, slot: usize, word: usize, value: u64) {
        assert!(word < SLOT_WORDS);
        self.set(slot_base(slot) + word, value);
    }

    pub(crate) fn wanted(&self, slot: usize) -> u64 {
        self.get(slot_base(slot) + slot::WANTED)
    }

    /// Fills slot `at` for `stream`.
    pub(crate) fn show(&self, at: usize, stream: &TcpStream, state: State) {
        let fd = stream.as_raw_fd();
        self.show_addresses(at, stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        self.show_state(at, State { fd, ..state });
        self.set_in_slot(at, slot::CONNECTION, 100 + at as u64);
    }

    pub(crate) fn show_state(&self, at: usize, state: State) {
        self.set_in_slot(at, slot::STATE, state.pack());
    }

    pub(crate) fn show_addresses(&self, at: usize, local: SocketAddr, remote: SocketAddr) {
        for (first, address) in [(slot::LOCAL, local), (slot::REMOTE, remote)] {
            let ip = Address::from(address).ip;
            let (halves, _) = ip.as_chunks::<8>();
            self.set_in_slot(at, first, u64::from_ne_bytes(halves[0]));
            self.set_in_slot(at, first + 1, u64::from_ne_bytes(halves[1]));
            self.set_in_slot(at, first + 2, address.port().into());
        }
    }

    pub(crate) fn hide_addresses(&self, at: usize) {
        for word in 0..6 {
            self.set_in_slot(at, slot::LOCAL + word, 0);
        }
    }

    /// `viaduct status --json` of the instance.
    pub(crate) fn rows(&self) -> Vec<serde_json::Value> {
        let text = succeed(viaduct(&self.dir.path).args(["status", "--json"]));
        serde_json::from_str(&text).unwrap()
    }

    /// `viaduct status` of the instance.
    pub(crate) fn table(&self) -> String {
        succeed(viaduct(&self.dir.path).arg("status"))
    }
}

/// Both ends of a connection over loopback.
pub(crate) fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}
