//! Simulated hosts: network namespaces joined by pairs of virtual Ethernet devices.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network namespace with its loopback device up; gone on drop, with all its devices.
#[derive(Debug)]
pub struct Host {
    name: String,
}

impl Host {
    /// A new host. Needs root.
    ///
    /// # Panics
    /// If the kernel gives no namespace.
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let host = Self {
            name: format!("viaduct-{}-{number}", std::process::id()),
        };
        ip(&["netns", "add", &host.name]);
        ip(&["-n", &host.name, "link", "set", "lo", "up"]);
        host
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for the namespace.
    pub fn file(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// Joins two hosts by a cable, each end with its address in a network of 24 bits.
    ///
    /// # Panics
    /// If a device cannot be made.
    pub fn join(&self, own: Ipv4Addr, other: &Self, others: Ipv4Addr) {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Device names hold at most 15 bytes; they need to be unique in their namespaces only.
        let (near, far) = (format!("v{number}a"), format!("v{number}b"));
        ip(&[
            "-n",
            &self.name,
            "link",
            "add",
            &near,
            "type",
            "veth",
            "peer",
            "name",
            &far,
            "netns",
            &other.name,
        ]);
        for (host, device, address) in [(self, &near, own), (other, &far, others)] {
            ip(&["-n", &host.name, "addr", "add", &format!("{address}/24"), "dev", device]);
            ip(&["-n", &host.name, "link", "set", device, "up"]);
        }
    }

    /// Runs `ip` with `arguments` in the namespace.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, arguments: &[&str]) {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend(arguments);
        ip(&all);
    }

    /// A command that runs `program` on this host.
    pub fn command(&self, program: &std::ffi::OsStr) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.file().display()))
            .arg("--")
            .arg(program);
        command
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("ip runs");
    assert!(
        output.status.success(),
        "ip {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
}
