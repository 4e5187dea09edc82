//! How users name processes and connections.

use crate::counters::{End, Process};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// `PID`, `ADDR:PORT` or `:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A process.
    Process(u32),
    /// An address and port, of either end.
    Address(SocketAddr),
    /// A port, of either end, at any address.
    Port(u16),
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(pid) = text.parse() {
            return Ok(Self::Process(pid));
        }
        if let Some(port) = text.strip_prefix(':').or_else(|| text.strip_prefix("*:")) {
            return port
                .parse()
                .map(Self::Port)
                .map_err(|_| "expected a port after the colon");
        }
        match text.parse::<SocketAddr>() {
            Ok(address) => Ok(Self::Address(SocketAddr::new(
                address.ip().to_canonical(),
                address.port(),
            ))),
            Err(_) => Err("expected PID, ADDR:PORT or :PORT (an IPv6 address in brackets)"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Address(address) => write!(f, "{address}"),
            Self::Port(port) => write!(f, "port {port}"),
        }
    }
}

impl Target {
    /// Whether `end` of `process` is meant.
    pub(crate) fn matches(self, process: &Process, end: &End) -> bool {
        match self {
            Self::Process(pid) => process.pid == pid,
            Self::Address(_) | Self::Port(_) => self.matches_ends(end.local, end.remote),
        }
    }

    /// Whether a connection between these addresses is meant.
    pub(crate) fn matches_ends(self, local: SocketAddr, remote: SocketAddr) -> bool {
        match self {
            Self::Process(_) => false,
            Self::Address(address) => local == address || remote == address,
            Self::Port(port) => local.port() == port || remote.port() == port,
        }
    }

    /// Whether a listener bound to `local` accepts connections to what is meant.
    pub(crate) fn is_served_by(self, local: SocketAddr) -> bool {
        match self {
            Self::Process(_) => false,
            Self::Address(address) => {
                local.port() == address.port() && (local.ip() == address.ip() || local.ip().is_unspecified())
            }
            Self::Port(port) => local.port() == port,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_apart() {
        assert_eq!("42".parse(), Ok(Target::Process(42)));
        assert_eq!(":80".parse(), Ok(Target::Port(80)));
        assert_eq!("*:80".parse(), Ok(Target::Port(80)));
        let mapped: Target = "[::ffff:10.0.0.1]:80".parse().unwrap();
        assert_eq!(mapped, Target::Address("10.0.0.1:80".parse().unwrap()));
        let served = |target: Target, local: &str| target.is_served_by(local.parse().unwrap());
        assert!(served(mapped, "10.0.0.1:80") && served(mapped, "0.0.0.0:80"));
        assert!(!served(mapped, "10.0.0.2:80") && !served(mapped, "0.0.0.0:81"));
        for wrong in ["", ":", ":70000", "10.0.0.1", "::1:80", "-1"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
