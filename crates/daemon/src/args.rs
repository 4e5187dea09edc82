//! The command line.

use clap::{CommandFactory, Parser};
use std::path::PathBuf;

/// Matches the two ends of TCP connections on this machine and gives them shared memory
///
/// Programs started with `viaduct run` connect to viaductd. Where both ends of a connection are such programs, viaductd
/// makes a segment of shared memory and hands it to both. It never sees their data, and connections go on without it.
///
/// Started by root, viaductd attaches a small BPF program by which the kernel itself testifies which ends belong
/// together: it then serves all users, network namespaces and address translation. Started by anybody else, it serves
/// that one user, whose processes may trust each other.
///
/// It stays in the foreground, logs to standard error, and stops at SIGTERM or SIGINT. Limits can also be set in the
/// `[daemon]` table of the configuration file, which is read when viaductd starts: segments_per_user, memory_per_user,
/// offers_per_user, processes_per_user, same_user.
#[derive(Debug, Parser)]
#[command(name = "viaductd", version, override_usage = "viaductd [OPTIONS]", after_help = AFTER)]
pub(crate) struct Args {
    /// Runtime directory; it holds the socket
    ///
    /// Found as `viaduct` finds it: here, in the variable VIADUCT_DIR, under `dir` in the configuration files, or by
    /// default: /run/viaduct for root, else $XDG_RUNTIME_DIR/viaduct, else /tmp/viaduct-UID. It is made if the
    /// directory above it is there.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,

    /// Exit when for so long no program has been connected, and none runs under Viaduct that might
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_exit: Option<u64>,

    /// Where another viaductd serves the directory, wait until it has ended and take its place
    #[arg(long)]
    pub(crate) stand_by: bool,

    /// Match by addresses within each user's own programs, even as root; attach no BPF program
    #[arg(long)]
    pub(crate) same_user: bool,

    /// Most segments, that is accelerated connections, one user may hold
    #[arg(long, value_name = "N")]
    pub(crate) segments_per_user: Option<u64>,

    /// Bytes to which the segments of one user may grow together
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory_per_user: Option<u64>,

    /// Configuration file, on top of the user's and the machine's; else the one that the variable VIADUCT_CONFIG names
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// What to log on standard error: off, error, warn, info, debug or trace
    #[arg(long, default_value = "warn", value_name = "LEVEL")]
    pub(crate) log: tracing::level_filters::LevelFilter,

    /// Write 1 to this descriptor once programs can connect, or 0 and the reason if they never will
    #[arg(long, value_name = "FD")]
    pub(crate) ready_fd: Option<u32>,

    /// Print this manual page
    #[arg(long, hide = true)]
    pub(crate) man: bool,
}

const AFTER: &str = "\
EXAMPLES
    viaductd                              serve in the default directory until stopped
    viaductd --dir /run/lab --log info    a second instance beside it
    viaductd --idle-exit 60               what `viaduct run` starts when nobody answers
    viaductd --same-user                  as root, but without BPF

EXIT STATUS
    0   stopped or idle, or another viaductd already serves the directory
        (not with --stand-by)
    1   failed
    2   the command line was not understood

FILES
    /etc/viaduct.toml                    configuration of the machine
    $XDG_CONFIG_HOME/viaduct.toml        configuration of the user
                                         (~/.config where unset)
    viaductd.sock                        the socket, in the runtime directory";

/// The manual page.
pub(crate) fn manual() -> std::io::Result<Vec<u8>> {
    viaduct_manual::page(&Args::command(), "8", "viaduct(1), viaduct-run(1)")
}
