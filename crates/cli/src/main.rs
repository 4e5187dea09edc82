//! The `viaduct` command: runs programs under Viaduct and shows what their connections do.
//!
//! Every subcommand is a module with an `Args` (its command line, whose documentation is also the manual page) and a
//! `run`. Nothing here is needed for a connection to work: programs talk to viaductd by themselves, and what `status`
//! shows is read from the counters that they keep.
#![deny(unsafe_code)]

mod bench;
mod config;
mod counters;
mod daemon;
mod doctor;
mod elf;
mod explain;
mod generate;
#[expect(unsafe_code, reason = "signals as they were before the runtime changed them")]
mod inherit;
mod limits;
mod locate;
mod path;
mod presence;
mod proc;
mod raw_calls;
mod run;
mod status;
mod target;
mod tcp_tables;
mod terminal;

use clap::{CommandFactory, Parser, Subcommand};
use rustix::thread::set_name;
use std::process::ExitCode;

/// Carries the TCP connections of unmodified programs over shared memory
///
/// Viaduct moves the bytes of TCP connections between two programs on one machine through shared memory. The programs
/// are not changed and need not know: start both with `viaduct run`. The kernel's connection stays underneath for
/// addresses, firewall rules and as the way back, so everything that cannot be accelerated simply remains plain TCP.
#[derive(Debug, Parser)]
#[command(name = "viaduct", version, max_term_width = 100, after_long_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
EXAMPLES
    viaduct run -- redis-server --port 6379
    viaduct run -- redis-benchmark -p 6379 -t get
    viaduct status --totals
    viaduct explain 127.0.0.1:6379

EXIT STATUS
    0   done
    1   failed, or nothing was found
    2   the command line was not understood
    `viaduct run` exits as the program does; see `viaduct run --help`.

FILES
    /etc/viaduct.toml                    configuration of the machine
    $XDG_CONFIG_HOME/viaduct.toml        configuration of the user
                                         (~/.config where unset)
    /run/viaduct, $XDG_RUNTIME_DIR/viaduct
                                         runtime directory of root, of a user
                                         (/tmp/viaduct-UID where unset)";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Status(status::Args),
    Explain(explain::Args),
    Path(path::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
    #[command(hide = true)]
    BenchPeer(bench::PeerArgs),
    #[command(hide = true)]
    Generate(generate::Args),
    #[command(hide = true)]
    LaunchDaemon(daemon::LaunchArgs),
}

fn main() -> ExitCode {
    // Started again by a link of the kernel's, it would be listed under that one's name.
    let _ = set_name(c"viaduct");
    let cli: Cli = match viaduct_manual::parse(terminal::check()) {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    let result = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Status(args) => status::run(args),
        Command::Explain(args) => explain::run(&args),
        Command::Path(args) => path::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Generate(args) => generate::run(&args, Cli::command()).map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => bench::run(args).map(|()| ExitCode::SUCCESS),
        Command::BenchPeer(args) => bench::run_peer(args).map(|()| ExitCode::SUCCESS),
        Command::LaunchDaemon(args) => daemon::launch(&args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        terminal::say(format_args!("viaduct: {error:#}"));
        ExitCode::FAILURE
    })
}
