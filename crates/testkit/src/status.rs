//! What `viaduct status --json` says.

use crate::binaries::binary;
use serde::Deserialize;
use std::path::Path;
use std::process::Command;

/// One connection end.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// Process number.
    pub pid: u32,
    /// Program name.
    pub program: String,
    /// Descriptor in the process.
    pub fd: i32,
    /// Local address and port.
    pub local: String,
    /// Remote address and port.
    pub remote: String,
    /// `tcp`, `shm` or both when the directions differ.
    pub path: String,
    /// Code of the reason.
    pub reason: String,
    /// Stream bytes sent.
    pub bytes_sent: u64,
    /// Stream bytes received.
    pub bytes_received: u64,
    /// Of these, bytes that left by a fast path.
    pub fast_bytes_sent: u64,
    /// Of these, bytes that came by a fast path.
    pub fast_bytes_received: u64,
    /// How often a direction changed its path.
    pub switches: u64,
    /// Bells rung.
    pub bells_sent: u64,
    /// Of these, bytes on the kernel connection.
    pub bells_by_socket: u64,
    /// The process at the other end, as viaductd sees it.
    pub peer_pid: Option<u32>,
    /// Seconds since the connection was first seen.
    pub age_s: f64,
}

impl Row {
    /// Whether both directions have carried bytes over shared memory.
    pub fn is_fast_both_ways(&self) -> bool {
        self.fast_bytes_sent > 0 && self.fast_bytes_received > 0
    }

    /// Whether either direction has.
    pub fn is_fast(&self) -> bool {
        self.fast_bytes_sent > 0 || self.fast_bytes_received > 0
    }
}

/// What the connections of a process have carried, those that have ended included: proof of the path that needs no look
/// at the right moment.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Totals {
    /// Process number.
    pub pid: u32,
    /// Program name.
    pub program: String,
    /// Connection ends that are open.
    pub open: u64,
    /// Of these, ends of which shared memory carried bytes.
    pub open_fast: u64,
    /// Connection ends that have ended.
    pub ended: u64,
    /// Of these, ends of which shared memory carried bytes.
    pub ended_fast: u64,
    /// Stream bytes sent.
    pub bytes_sent: u64,
    /// Stream bytes received.
    pub bytes_received: u64,
    /// Of these, bytes that left by a fast path.
    pub fast_bytes_sent: u64,
    /// Of these, bytes that came by a fast path.
    pub fast_bytes_received: u64,
    /// Forked processes whose counters were lost with them.
    pub lost: u64,
}

impl Totals {
    /// Bytes that went by shared memory, either way.
    pub fn fast_bytes(&self) -> u64 {
        self.fast_bytes_sent + self.fast_bytes_received
    }
}

/// The rows of the instance in `dir`.
///
/// # Panics
/// If `viaduct status` fails or prints something else than rows.
pub fn read(dir: &Path) -> Vec<Row> {
    run(dir, &[])
}

/// The totals of the processes of the instance in `dir`.
///
/// # Panics
/// If `viaduct status` fails or prints something else.
pub fn totals(dir: &Path) -> Vec<Totals> {
    run(dir, &["--totals"])
}

fn run<T: serde::de::DeserializeOwned>(dir: &Path, options: &[&str]) -> Vec<T> {
    let output = Command::new(binary("viaduct"))
        .args(["status", "--json", "--dir"])
        .arg(dir)
        .args(options)
        .output()
        .expect("viaduct runs");
    assert!(
        output.status.success(),
        "viaduct status: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("viaduct status --json: {error}: {text}"))
}
