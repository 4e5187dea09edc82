//! `viaduct-testpeer` as the tests see it.

use crate::processes::{Holdings, free_port, holdings, wait_until};
use crate::program::{Launch, Mode, Program};
use serde::Deserialize;
use std::time::Duration;

/// What a peer says about a connection that has ended.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    /// Names the connection at both ends.
    pub seed: u64,
    /// Stream bytes sent.
    pub sent: u64,
    /// Stream bytes received and found right.
    pub received: u64,
    /// `eof`, `short`, `reset`, `stuck` or `wrong`.
    pub end: String,
    /// What went wrong.
    pub detail: String,
}

impl Report {
    /// # Panics
    /// Unless both ends of the connection, of which `other` is the other one, came to the end of the stream, and all
    /// that was sent.
    pub fn assert_whole(&self, other: &Self) {
        assert_eq!((&*self.end, &*other.end), ("eof", "eof"), "{self:?} {other:?}");
        assert_eq!(
            (self.sent, self.received),
            (other.received, other.sent),
            "{self:?} {other:?}"
        );
    }
}

/// The reports among the lines that a peer has printed.
pub fn reports(output: &str) -> Vec<Report> {
    output
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Descriptors that a process may keep until it next looks at its mail or ends an accelerated connection: of up to four
/// connections, the bells of both ends' threads. However many connections come and go, there are no more.
const LAZY: usize = 8;

/// A peer that accepts connections.
#[derive(Debug)]
pub struct Server {
    /// The running program.
    pub program: Program,
    /// Where it listens, on the loopback address.
    pub port: u16,
}

impl Server {
    /// Starts a peer that waits for sockets in the given mode (`blocking`, `epoll`, `edge`, `poll`).
    ///
    /// # Panics
    /// If it does not listen.
    pub fn start(mode: Mode<'_>, waiting: &str) -> Self {
        Self::start_on(mode, waiting, free_port())
    }

    /// Like [`Server::start`], on a known port.
    ///
    /// # Panics
    /// If it does not listen.
    pub fn start_on(mode: Mode<'_>, waiting: &str, port: u16) -> Self {
        let arguments = format!("listen 127.0.0.1:{port} --mode {waiting}");
        Self {
            program: Launch::testpeer(mode, &arguments).spawn().listening(port),
            port,
        }
    }

    /// A peer that connects here, with arguments separated by blanks.
    pub fn client<'a>(&self, mode: Mode<'a>, arguments: &str) -> Launch<'a> {
        Launch::testpeer(mode, &format!("connect 127.0.0.1:{} {arguments}", self.port))
    }

    /// The connections that have ended.
    pub fn reports(&self) -> Vec<Report> {
        reports(&self.program.output())
    }

    /// What the server holds.
    pub fn holdings(&self) -> Holdings {
        holdings(self.program.pid())
    }

    /// Waits until the server holds hardly more descriptors and no more mappings than `before`.
    ///
    /// # Errors
    /// What it holds instead.
    pub fn returns_to(&self, before: Holdings, limit: Duration) -> Result<(), Holdings> {
        let mut now = Holdings::default();
        let returned = wait_until(limit, || {
            now = self.holdings();
            now.descriptors <= before.descriptors + LAZY
                && now.memory_files <= before.memory_files
                && now.memory_mappings <= before.memory_mappings
        });
        if returned { Ok(()) } else { Err(now) }
    }

    /// # Panics
    /// If any connection so far met a wrong byte or got stuck, or the server is gone.
    pub fn assert_sound(&mut self) {
        let bad: Vec<Report> = self
            .reports()
            .into_iter()
            .filter(|report| report.end == "wrong" || report.end == "stuck")
            .collect();
        assert!(bad.is_empty(), "{bad:#?}");
        assert!(
            self.program.is_running(),
            "the server is gone: {}",
            self.program.errors()
        );
    }
}
