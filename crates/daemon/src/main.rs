//! viaductd: matches the two ends of a connection and gives them a segment.
#![forbid(unsafe_code)]

mod admission;
mod args;
mod bells;
mod closing;
mod config;
mod guest;
mod isolate;
mod limits;
mod listen;
mod pairing;
mod registry;
mod seldom;
mod server;
mod stats;
mod ticket;

use nix::sys::signal::{SigSet, Signal};
use std::io::{IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;
use viaduct_control::runtime;

fn main() -> ExitCode {
    let args: args::Args = match viaduct_manual::parse(Ok(())) {
        Ok(args) => args,
        Err(status) => return status,
    };
    if args.man {
        return match args::manual().and_then(|page| std::io::stdout().write_all(&page)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "viaductd: standard output: {error}");
                ExitCode::FAILURE
            }
        };
    }
    tracing_subscriber::fmt()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_max_level(args.log)
        .with_target(false)
        // What cannot be written there cannot be told there either: on a full disk, or where nobody reads any more, the
        // attempt would end viaductd.
        .log_internal_errors(false)
        .init();
    // Opened while viaductd may still open anything.
    let ready = args.ready_fd.and_then(|fd| listen::reopen(fd).ok());
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            if let Some(pipe) = ready {
                listen::tell_failure(pipe, &format!("{error:#}"));
            }
            ExitCode::FAILURE
        }
    }
}

fn run(args: &args::Args) -> anyhow::Result<()> {
    let decided = config::decide(args)?;
    let uid = rustix::process::geteuid().as_raw();
    let dir = decided
        .dir
        .unwrap_or_else(|| runtime::default_dir(uid, |name| std::env::var_os(name)));
    let mut stop = None;
    let mut ready_fd = args.ready_fd;
    let (place, socket) = match listen::take(&dir, uid)? {
        listen::Taken::Ours(place, socket) => (place, socket),
        listen::Taken::Served(turn) => {
            tracing::warn!("{}: another viaductd serves it already", dir.display());
            let announcement = listen::Announcement::open(ready_fd.take());
            if !args.stand_by {
                announcement.send("another viaductd serves");
                return Ok(());
            }
            let stop = stop.insert(stop_signals()?);
            announcement.send("standing by: another viaductd serves");
            match turn.wait(&dir, uid, stop)? {
                Some(taken) => taken,
                None => return Ok(()),
            }
        }
    };
    let stood_by = stop.is_some();
    let stop = match stop {
        Some(stop) => stop,
        None => stop_signals()?,
    };
    let descriptors = limits::raise()?;
    let tickets = if decided.same_user {
        Err("told to match by addresses".to_owned())
    } else if uid != 0 {
        Err("not started by root".to_owned())
    } else {
        ticket::Tickets::attach()
            .map_err(|error| format!("{error:#}"))
            .inspect_err(|error| tracing::warn!("no kernel tickets, serving each user on its own: {error}"))
    };
    let settings = server::Settings {
        limits: decided.limits,
        processes_per_user: decided.processes_per_user.min(descriptors / 4).max(1),
        descriptors_per_user: (descriptors / 8).clamp(8, 16384),
        idle_exit: args.idle_exit.map(Duration::from_secs),
        uid,
    };
    let closing = closing::Closing::new()?;
    listen::let_in(&socket)?;
    let mut server = server::Server::new(settings, socket, stop.into(), tickets, random_u64()?, closing)?;
    let announcement = listen::Announcement::open(ready_fd);
    match isolate::isolate(server.tickets.as_mut().ok()) {
        Ok(()) => {}
        Err(error) if uid == 0 => {
            return Err(error.context("as root viaductd serves only if it can give up its rights, and here it cannot"));
        }
        // It has no rights but its user's.
        Err(error) => tracing::warn!("serving with all rights of user {uid}: {error:#}"),
    }
    announcement.send("serving");
    match stood_by {
        true => tracing::warn!(
            "{}: the other viaductd has ended, and this one serves it",
            dir.display()
        ),
        false => tracing::info!("serving {}", dir.display()),
    }
    server.run(&place)
}

/// A descriptor that becomes readable at SIGTERM or SIGINT.
fn stop_signals() -> anyhow::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        signal_hook::low_level::pipe::register(signal as i32, write.try_clone()?)?;
        // The first program under Viaduct may have been started with them blocked.
        SigSet::from(signal).thread_unblock()?;
    }
    Ok(read)
}

fn random_u64() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    let len = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    anyhow::ensure!(len == bytes.len(), "no random numbers");
    Ok(u64::from_ne_bytes(bytes))
}
