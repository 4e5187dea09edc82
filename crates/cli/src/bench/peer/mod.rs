//! The benchmark's own programs, run as processes of their own: `viaduct bench-peer`.
//!
//! They are plain socket programs: they know nothing of Viaduct and use only what the C library offers, so that
//! `viaduct run` accelerates them as it would any other. (`rustix` makes system calls itself, which nobody can
//! intercept, so their sockets are used through the standard library and `mio`.)
//!
//! What they find they say on standard output, one JSON object a line; they end when their standard input does.

mod many;
mod orders;
mod resume;
mod search;
mod wire;

pub(crate) use many::LoadResult;
pub(crate) use orders::{Batch, Kind, Transport};
pub(crate) use search::{Cost as SearchCost, Plan as SearchPlan};

use anyhow::{Context, Result};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// What the peer is to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, clap::Subcommand)]
enum Role {
    /// Turns into a program that is asked to end when this process's parent does
    Exec {
        /// Joins this cgroup before
        #[arg(long, value_name = "DIR")]
        cgroup: Option<PathBuf>,
        /// The program and its arguments
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
    /// Lets stopped processes go on, whose numbers are on standard input, when that ends
    Resume,
    /// Obeys the orders of one `ask`
    Serve(orders::ServeArgs),
    /// Measures a sweep of message sizes against a `serve`
    Ask(orders::AskArgs),
    /// Receives messages that stand behind others, in order and by direct search
    SearchReceive(search::Plan),
    /// Sends to a `search-receive`
    SearchSend(search::SendArgs),
    /// Echoes on any number of connections
    Echo,
    /// Asks and waits for answers on many connections at once, then keeps them open
    Load(many::LoadArgs),
}

/// Does it.
///
/// # Errors
/// What the system calls report; the other end gone.
pub(crate) fn run(args: Args) -> Result<()> {
    match args.role {
        Role::Exec { cgroup, command } => {
            if let Some(cgroup) = cgroup {
                fs::write(cgroup.join("cgroup.procs"), "0").with_context(|| cgroup.display().to_string())?;
            }
            set_parent_process_death_signal(Some(Signal::TERM))?;
            let mut words = command.into_iter();
            let error = Command::new(words.next().unwrap_or_default()).args(words).exec();
            Err(error.into())
        }
        Role::Resume => resume::resume(),
        Role::Serve(args) => orders::serve(&args),
        Role::Ask(args) => orders::ask(&args),
        Role::SearchReceive(plan) => search::receive(&plan),
        Role::SearchSend(args) => search::send(&args),
        Role::Echo => many::echo(),
        Role::Load(args) => many::load(&args),
    }
}
