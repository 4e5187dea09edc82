//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;

/// Sends and receives checked streams over TCP, with every call a program might use.
///
/// Prints one JSON object a finished connection: `seed`, `sent`, `received`, `end` (`eof`, `reset`, `wrong`, `stuck`).
/// Exit status: 0 all well, 2 a wrong byte, 3 a connection lost or cut short, 4 no progress.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) role: Role,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Accept connections.
    Listen {
        /// Address to listen on.
        address: SocketAddr,
        /// Exit when this many connections have ended; 0: never.
        #[arg(long, default_value_t = 0)]
        accept: u64,
        #[command(flatten)]
        common: Common,
    },
    /// Open connections and exit when all have ended.
    Connect {
        /// Address to connect to.
        address: SocketAddr,
        /// How many connections.
        #[arg(long, default_value_t = 1)]
        connections: u64,
        /// Stream bytes each way on each connection; 0: as many as pass in `--seconds`.
        #[arg(long, default_value_t = 0)]
        bytes: u64,
        /// How long to send where `--bytes` is 0.
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
        /// Which directions carry a stream.
        #[arg(long, value_enum, default_value = "both")]
        direction: Direction,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// How to wait for sockets.
    #[arg(long, value_enum, default_value = "blocking")]
    pub(crate) mode: Mode,
    /// Most bytes in one call.
    #[arg(long, default_value_t = 131_072)]
    pub(crate) max_chunk: u64,
    /// Bytes that the kernel, or a lane, may hold of each direction; 0: as many as it does by itself.
    #[arg(long, default_value_t = 0)]
    pub(crate) buffer: usize,
    /// Makes sizes, calls and contents.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Milliseconds without a byte on a connection after which it counts as stuck.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) idle_ms: u64,
    /// Milliseconds to hold a connection open in silence before closing it.
    #[arg(long, default_value_t = 0)]
    pub(crate) hold_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Two threads a connection.
    Blocking,
    /// One thread, level-triggered epoll.
    Epoll,
    /// One thread, edge-triggered epoll.
    Edge,
    /// One thread, poll.
    Poll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Direction {
    /// Both at once.
    Both,
    /// Connecting end to listening end.
    Up,
    /// Listening end to connecting end.
    Down,
}
