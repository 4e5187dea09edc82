//! A viaductd with a runtime directory of its own.

use crate::binaries::binary;
use crate::processes::{signal, wait_until};
use crate::program::tail;
use crate::status::{self, Row, Totals};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;
use viaduct_control::PROTOCOL_VERSION;
use viaduct_control::message::{MAX_PACKET, Packet, Query, Stats, decode};
use viaduct_control::runtime::socket_path;

const LOG: &str = "viaductd.log";

/// A runtime directory with its viaductd, stopped and removed on drop.
#[derive(Debug)]
pub struct Instance {
    dir: TempDir,
    arguments: Vec<String>,
    daemon: Mutex<Option<Child>>,
}

impl Instance {
    /// Starts a viaductd in a new runtime directory.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Like [`Instance::start`] with more arguments for viaductd.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_with(arguments: &[&str]) -> Self {
        let mut instance = Self::without_daemon();
        instance.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        instance.start_daemon();
        instance
    }

    /// A new runtime directory in which no viaductd runs.
    ///
    /// # Panics
    /// If there is no room for temporary files.
    pub fn without_daemon() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("viaduct-test-")
            .tempdir()
            .expect("room for temporary files");
        Self {
            dir,
            arguments: Vec::new(),
            daemon: Mutex::default(),
        }
    }

    /// The runtime directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A file for a test's own use that goes when the instance goes.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn daemon(&self) -> MutexGuard<'_, Option<Child>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// viaductd's process number, 0 while it does not run.
    pub fn daemon_pid(&self) -> u32 {
        self.daemon().as_ref().map_or(0, Child::id)
    }

    /// Starts viaductd, if it does not run, and waits until it answers.
    ///
    /// # Panics
    /// If it does not come up, or another one serves the directory.
    pub fn start_daemon(&self) {
        let mut daemon = self.daemon();
        if daemon.is_some() {
            return;
        }
        // It says that it is ready when its BPF programs are attached, later than it listens.
        let notice = self.scratch("notify.sock");
        let _ = std::fs::remove_file(&notice);
        let ready = UnixDatagram::bind(&notice).expect("room for a socket");
        ready
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a time-out is not zero");
        let child = Command::new(binary("viaductd"))
            .arg("--dir")
            .arg(self.dir())
            .args(&self.arguments)
            .env("NOTIFY_SOCKET", &notice)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.log())
            .spawn()
            .expect("viaductd starts");
        *daemon = Some(child);
        let mut word = [0; 64];
        let told = ready.recv(&mut word).unwrap_or(0);
        assert!(
            word[..told].starts_with(b"READY=1"),
            "viaductd does not come up in {}",
            self.dir().display()
        );
        // One that finds the directory served says that it is ready, too, and leaves.
        let child = daemon.as_ref().map(Child::id);
        assert_eq!(Some(self.stats().pid), child, "another viaductd serves the directory");
    }

    /// What viaductd says goes to a file of the instance, shown if the test fails.
    fn log(&self) -> Stdio {
        let file = File::options().create(true).append(true).open(self.scratch(LOG));
        file.map_or_else(|_| Stdio::null(), Stdio::from)
    }

    /// viaductd, which runs no longer for this instance but must have lived until now.
    fn take_daemon(&self) -> Option<Child> {
        let mut child = self.daemon().take()?;
        let ended = child.try_wait();
        assert!(matches!(ended, Ok(None)), "viaductd has ended before: {ended:?}");
        Some(child)
    }

    /// Kills viaductd without a word of warning.
    ///
    /// # Panics
    /// If it has ended before.
    pub fn kill_daemon(&self) {
        if let Some(mut child) = self.take_daemon() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks viaductd to end, as a service manager would, and waits until it has.
    ///
    /// # Panics
    /// If it has ended before, or does not end in order.
    pub fn stop_daemon(&self) {
        if let Some(mut child) = self.take_daemon() {
            signal(child.id(), Signal::SIGTERM);
            let mut status = None;
            let ended = wait_until(Duration::from_secs(10), || {
                status = child.try_wait().ok().flatten();
                status.is_some()
            });
            let _ = child.kill();
            let _ = child.wait();
            assert!(ended, "viaductd does not end when it is asked to");
            assert!(status.is_some_and(|status| status.success()), "{status:?}");
        }
    }

    /// What `viaduct status` shows of this instance.
    ///
    /// # Panics
    /// If `viaduct status` fails.
    pub fn status(&self) -> Vec<Row> {
        status::read(self.dir())
    }

    /// What `viaduct status --totals` shows of this instance: the processes that live.
    ///
    /// # Panics
    /// If `viaduct status` fails.
    pub fn totals(&self) -> Vec<Totals> {
        status::totals(self.dir())
    }

    /// The totals of one process; zeros, if it has none.
    ///
    /// # Panics
    /// If `viaduct status` fails.
    pub fn totals_of(&self, pid: u32) -> Totals {
        let mut totals = self.totals();
        totals.retain(|totals| totals.pid == pid);
        totals.pop().unwrap_or_default()
    }

    /// How viaductd says it is.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn stats(&self) -> Stats {
        self.ask().expect("viaductd answers")
    }

    fn ask(&self) -> io::Result<Stats> {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(&socket_path(self.dir()))?)?;
        let query = Query {
            version: PROTOCOL_VERSION,
            reserved: 0,
        };
        send(
            socket.as_raw_fd(),
            Packet::new(&query).as_bytes(),
            MsgFlags::MSG_NOSIGNAL,
        )?;
        let mut packet = [0; MAX_PACKET];
        let length = recv(socket.as_raw_fd(), &mut packet, MsgFlags::empty())?;
        decode(&packet[..length]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Waits until `rows` of the status satisfy `condition`, and returns them; on time-out the last rows are an error.
    ///
    /// # Errors
    /// The rows seen last.
    pub fn wait_for_status(&self, limit: Duration, condition: impl Fn(&[Row]) -> bool) -> Result<Vec<Row>, Vec<Row>> {
        let mut rows = Vec::new();
        let found = wait_until(limit, || {
            rows = self.status();
            condition(&rows)
        });
        if found { Ok(rows) } else { Err(rows) }
    }

    /// Asks for a connection of `pid` to be moved, as a user would.
    ///
    /// # Errors
    /// What `viaduct path` prints when it fails.
    pub fn move_connection(&self, pid: u32, fd: i32, path: &str) -> Result<(), String> {
        self.ask_for_path(&["--no-wait"], pid, fd, path).map(drop)
    }

    /// The same, and waits to see it; answers what `viaduct path` says then.
    ///
    /// # Errors
    /// What `viaduct path` prints when it fails.
    pub fn move_and_wait(&self, pid: u32, fd: i32, path: &str) -> Result<String, String> {
        self.ask_for_path(&[], pid, fd, path)
    }

    fn ask_for_path(&self, options: &[&str], pid: u32, fd: i32, path: &str) -> Result<String, String> {
        let output = Command::new(binary("viaduct"))
            .arg("path")
            .args(options)
            .arg("--dir")
            .arg(self.dir())
            .args([pid.to_string(), fd.to_string(), path.to_owned()])
            .output()
            .map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stdout) + &text(&output.stderr)),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It may have left by itself.
        if let Some(mut child) = self.daemon().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.scratch(LOG)).unwrap_or_default();
            eprintln!("viaductd's last words:\n{}", tail(&log));
        }
    }
}
