//! `viaduct explain`: why a connection is or is not accelerated.

use crate::counters::{self, End, Found, Process, is_on, why};
use crate::daemon::{self, Answer};
use crate::presence::{self, Presence};
use crate::proc::{self, Descriptors};
use crate::target::Target;
use crate::tcp_tables::{Ends, TcpTables};
use crate::terminal::{self, Style, bytes, duration, styled};
use crate::{config, doctor};
use anyhow::{Result, bail};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use viaduct_control::{Reason, counters as layout};

/// Say why a connection is or is not accelerated, and what to do
///
/// Names a process, or an address that one end of the connection has; `:PORT` is that port at any address. Looks at
/// both ends where they are on this machine, at the programs that hold them, and at viaductd.
#[derive(Debug, clap::Args)]
#[command(override_usage = "viaduct explain [OPTIONS] <PID|ADDR:PORT>", after_long_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The process or connection
    #[arg(value_name = "PID|ADDR:PORT", value_parser = parse_target)]
    target: Target,
    /// Runtime directory that the programs are expected to use
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
EXAMPLES
    viaduct explain 4711
    viaduct explain 127.0.0.1:6379
    viaduct explain :6379

EXIT STATUS
    0   explained
    1   no such process or connection";

fn parse_target(text: &str) -> Result<Target, String> {
    text.parse().map_err(str::to_owned)
}

/// Prints the explanation.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let dir = config::runtime_dir(args.dir.clone())?;
    let view = View::new()?;
    let mut text = String::new();
    match args.target {
        Target::Process(pid) => view.explain_process(&mut text, pid)?,
        Target::Address(_) | Target::Port(_) => view.explain_connections(&mut text, args.target)?,
    }
    let started_in = match args.target {
        Target::Process(pid) => presence::runtime_dir(pid),
        Target::Address(_) | Target::Port(_) => None,
    };
    explain_daemon(&mut text, started_in.as_deref().unwrap_or(&dir))?;
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A connection end of which Viaduct knows nothing.
#[derive(Clone, Copy, Debug)]
struct PlainEnd {
    pid: u32,
    fd: u32,
    local: SocketAddr,
    remote: SocketAddr,
}

/// Everything on this machine that can be seen.
struct View {
    processes: Vec<Process>,
    /// Processes with the library of another version, of whose counters nothing is known.
    strangers: Vec<BTreeSet<u32>>,
    plain: Vec<PlainEnd>,
    /// Sockets that have an address and no other end, most of which listen.
    unconnected: Vec<PlainEnd>,
}

impl View {
    fn new() -> Result<Self> {
        let Found { processes, strangers } = counters::read_all(None)?;
        let known: HashSet<(u32, i32)> = processes
            .iter()
            .flat_map(|process| process.ends.iter().map(move |end| (process.pid, end.state.fd)))
            .collect();
        let mut tables = TcpTables::default();
        let (mut plain, mut unconnected) = (Vec::new(), Vec::new());
        for pid in proc::processes() {
            let Some(netns) = proc::network_namespace(pid) else {
                continue;
            };
            let sockets = Descriptors::of(pid).sockets;
            // A socket may have more descriptors than the one that it is known by.
            let is_known = |fd: u32| i32::try_from(fd).is_ok_and(|fd| known.contains(&(pid, fd)));
            let shown: HashSet<u64> = sockets
                .iter()
                .filter(|(fd, _)| is_known(**fd))
                .map(|(_, inode)| *inode)
                .collect();
            for (fd, inode) in sockets {
                if shown.contains(&inode) {
                    continue;
                }
                let Some(Ends { local, remote }) = tables.find(netns, pid, inode) else {
                    continue;
                };
                let end = PlainEnd { pid, fd, local, remote };
                match (local.port(), remote.port()) {
                    (0, 0) => {}
                    (_, 0) => unconnected.push(end),
                    _ => plain.push(end),
                }
            }
        }
        for ends in [&mut plain, &mut unconnected] {
            ends.sort_by_key(|end| (end.pid, end.fd));
        }
        Ok(Self {
            processes,
            strangers,
            plain,
            unconnected,
        })
    }

    fn explain_process(&self, text: &mut String, pid: u32) -> Result<()> {
        let Some(name) = proc::name(pid) else {
            match proc::exists(pid) {
                true => bail!("process {pid} may not be looked at: run this as the user it belongs to, or as root"),
                false => bail!("there is no process {pid}"),
            }
        };
        let presence = presence::of(pid);
        let process = self.processes.iter().find(|process| process.pid == pid);
        if let Some(sentence) = presence.text(&name) {
            // Counters prove more than what is mapped, for example in a process that unmapped the library's file.
            if process.is_none() {
                writeln!(text, "{sentence}")?;
            }
        }
        match process {
            Some(process) => {
                writeln!(
                    text,
                    "{} ({pid}) runs under Viaduct: {} offers made, {} pairs attached.",
                    process.program, process.offers, process.pairs
                )?;
                if let Some(reason) = process.bar {
                    writeln!(text, "All its connections stay on TCP.")?;
                    explain_reason(text, reason)?;
                }
                for end in &process.ends {
                    self.explain_end(text, process, end)?;
                }
                if process.ends.is_empty() && process.bar.is_none() {
                    writeln!(text, "It has no TCP connection now.")?;
                }
            }
            None if self.strangers.iter().any(|family| family.contains(&pid)) => {
                writeln!(
                    text,
                    "{name} ({pid}) runs under Viaduct with the library of another version, whose counters this `viaduct` \
                     cannot read. Restart the program."
                )?;
            }
            None if presence == Presence::Loaded => {
                writeln!(
                    text,
                    "{name} ({pid}) runs under Viaduct and has not yet had a TCP connection."
                )?;
            }
            None => {}
        }
        for end in self.plain.iter().filter(|end| end.pid == pid) {
            writeln!(text, "{}", headline(&name, pid, end.fd, end.local, end.remote))?;
            writeln!(text, "    Carried by: tcp; Viaduct keeps no counters of it.")?;
        }
        Ok(())
    }

    /// Why all connections of process `pid` stay on TCP, if they do.
    fn bar(&self, pid: u32) -> Option<Reason> {
        self.processes.iter().find(|process| process.pid == pid)?.bar
    }

    fn explain_connections(&self, text: &mut String, target: Target) -> Result<()> {
        let mut found = false;
        for process in &self.processes {
            for end in process.ends.iter().filter(|end| target.matches(process, end)) {
                found = true;
                self.explain_end(text, process, end)?;
            }
        }
        for end in &self.unconnected {
            if target.is_served_by(end.local) {
                found = true;
                let name = proc::name(end.pid).unwrap_or_default();
                let line = format!(
                    "{name} ({}) descriptor {}: {}, not connected",
                    end.pid, end.fd, end.local
                );
                writeln!(text, "{}", styled(&line, Style::Bold))?;
                match (presence::of(end.pid).text(&name), self.bar(end.pid)) {
                    (Some(sentence), _) => writeln!(text, "    {sentence}")?,
                    (None, Some(reason)) => {
                        writeln!(
                            text,
                            "    {name} runs under Viaduct. What it accepts here stays on TCP."
                        )?;
                        explain_reason(text, reason)?;
                    }
                    (None, None) => writeln!(
                        text,
                        "    {name} runs under Viaduct. What it accepts here is accelerated where the other end's program is too."
                    )?,
                }
            }
        }
        // Processes that share a socket, as a server's workers do, are one line each; a busy server needs no more of
        // them.
        let mut sentences: HashMap<u32, Option<String>> = HashMap::new();
        for end in self
            .plain
            .iter()
            .filter(|end| target.matches_ends(end.local, end.remote))
        {
            found = true;
            let name = proc::name(end.pid).unwrap_or_default();
            writeln!(text, "{}", headline(&name, end.pid, end.fd, end.local, end.remote))?;
            let sentence = sentences
                .entry(end.pid)
                .or_insert_with(|| presence::of(end.pid).text(&name));
            match sentence {
                Some(sentence) => writeln!(text, "    Carried by: tcp. {sentence}")?,
                None => writeln!(text, "    Carried by: tcp; Viaduct keeps no counters of it.")?,
            }
            if let Some(reason) = self.bar(end.pid) {
                explain_reason(text, reason)?;
            }
        }
        if !found {
            bail!("no TCP connection at {target} belongs to a process that may be looked at");
        }
        Ok(())
    }

    fn explain_end(&self, text: &mut String, process: &Process, end: &End) -> Result<()> {
        let fd = u32::try_from(end.state.fd).unwrap_or_default();
        let line = headline(&process.program, process.pid, fd, end.local, end.remote);
        writeln!(text, "{line}")?;
        writeln!(
            text,
            "    Carried by: {} for sending, {} for receiving",
            end.state.sending.name(),
            end.state.receiving.name()
        )?;
        match why(end.state) {
            None => why_line(text, Reason::Accelerated)?,
            Some(Reason::Accelerated) => writeln!(
                text,
                "    Why: Matched; a direction moves to shared memory when its sender next sends."
            )?,
            // What its program is to do stands at the other end.
            Some(reason @ Reason::Offered) if self.has_hindered_peer(process, end) => why_line(text, reason)?,
            Some(reason) => {
                explain_reason(text, reason)?;
                if reason == Reason::Misspelt
                    && let Some(what) = presence::misspelt(process.pid, &process.program)
                {
                    writeln!(text, "    Its environment: {what}")?;
                }
            }
        }
        if let Some(sentence) = self.other_end(process, end) {
            writeln!(text, "    Other end: {sentence}")?;
        }
        let peer = end.peer_pid.map(|pid| format!("; paired with process {pid}"));
        writeln!(
            text,
            "    Traffic: {} sent, {} by shared memory; {} received, {} by shared memory; {} bells, {} by a byte on the \
             connection; {} path changes; {} sleeps; age {}{}",
            bytes(end.bytes_sent),
            bytes(end.fast_bytes_sent),
            bytes(end.bytes_received),
            bytes(end.fast_bytes_received),
            end.bells_sent,
            end.bells_by_socket,
            end.switches,
            end.sleeps,
            duration(end.age_s),
            peer.unwrap_or_default(),
        )?;
        Ok(())
    }

    /// The peer of `end` in each program that has it where that is known: forked processes share one. First who has
    /// carried most by it, which goes on with it most likely.
    fn known_peers<'a>(&'a self, process: &Process, end: &End) -> Vec<(&'a Process, &'a End)> {
        let ends = self
            .processes
            .iter()
            .flat_map(|other| other.ends.iter().map(move |peer| (other, peer)));
        let mut peers: Vec<_> = ends
            .filter(|(_, peer)| (peer.local, peer.remote) == (end.remote, end.local))
            .filter(|(other, peer)| !(std::ptr::eq(*other, process) && peer.slot == end.slot))
            .filter(|(other, peer)| match (peer.netns_cookie, end.netns_cookie) {
                (Some(theirs), Some(own)) => theirs == own,
                // Only what has been offered has a cookie.
                _ => other.netns == process.netns,
            })
            .collect();
        peers.sort_by_key(|(_, peer)| {
            let carried = peer.bytes_sent.saturating_add(peer.bytes_received);
            Reverse((carried, is_on(peer.state, layout::Path::Shm)))
        });
        peers
    }

    /// The same where Viaduct keeps no counters of it.
    fn plain_peer(&self, end: &End) -> Option<&PlainEnd> {
        let ends = (end.remote, end.local);
        self.plain.iter().find(|peer| (peer.local, peer.remote) == ends)
    }

    /// Whether the peer of `end` stays on TCP of itself, so that to start its program with Viaduct, as it may have
    /// been, would not help.
    fn has_hindered_peer(&self, process: &Process, end: &End) -> bool {
        let is_elsewhere = |other: &Process| other.instance != process.instance;
        if let Some((other, peer)) = self.known_peers(process, end).first() {
            let waits = |reason: &Reason| matches!(reason, Reason::Accelerated | Reason::NotYet | Reason::Offered);
            return !is_elsewhere(other) && why(peer.state).is_some_and(|reason| !waits(&reason));
        }
        self.plain_peer(end).is_some_and(|peer| {
            let mut others = self.processes.iter().filter(|other| other.pid == peer.pid);
            !others.any(is_elsewhere) && !presence::of(peer.pid).may_be_changed()
        })
    }

    /// What can be said of the peer of `end`.
    fn other_end(&self, process: &Process, end: &End) -> Option<String> {
        if let [(other, peer), others @ ..] = self.known_peers(process, end).as_slice() {
            let shared = match others {
                [] => String::new(),
                [(sharer, _)] => format!(", shared with process {}", sharer.pid),
                _ => format!(", shared with {} other processes", others.len()),
            };
            let name = format!("{} ({}) descriptor {}{shared}", other.program, other.pid, peer.state.fd);
            if other.instance != process.instance {
                return Some(format!(
                    "{name}, under Viaduct in another runtime directory; start both with the same `--dir`"
                ));
            }
            return Some(match why(peer.state) {
                None | Some(Reason::Accelerated) => name,
                Some(reason) => format!("{name}: {} [{}]", reason.text(), reason.code()),
            });
        }
        let peer = self.plain_peer(end)?;
        let name = proc::name(peer.pid)?;
        let sentence = presence::of(peer.pid).text(&name);
        Some(match (sentence, self.bar(peer.pid)) {
            (Some(sentence), _) => sentence,
            (None, Some(reason)) => format!("{name} ({}): {} [{}]", peer.pid, reason.text(), reason.code()),
            (None, None) => format!("{name} ({}), under Viaduct", peer.pid),
        })
    }
}

fn why_line(text: &mut String, reason: Reason) -> Result<()> {
    Ok(writeln!(text, "    Why: {} [{}]", reason.text(), reason.code())?)
}

fn explain_reason(text: &mut String, reason: Reason) -> Result<()> {
    why_line(text, reason)?;
    if !reason.advice().is_empty() {
        writeln!(text, "    What to do: {}", reason.advice())?;
    }
    Ok(())
}

fn headline(program: &str, pid: u32, fd: u32, local: SocketAddr, remote: SocketAddr) -> String {
    styled(
        &format!("{program} ({pid}) descriptor {fd}: {local} to {remote}"),
        Style::Bold,
    )
}

fn explain_daemon(text: &mut String, dir: &Path) -> Result<()> {
    match daemon::query(dir) {
        Answer::Stats(stats) => {
            writeln!(text, "viaductd in {}: {}", dir.display(), doctor::describe(&stats))?;
            if let Some(difference) = daemon::other_version(&stats) {
                writeln!(text, "    Programs of this version stay on TCP: {difference}.")?;
            }
        }
        Answer::Absent => writeln!(
            text,
            "viaductd in {}: none. Paired connections go on; new ones stay on TCP until one is started, for example by \
             `viaduct run`.",
            dir.display()
        )?,
        Answer::Closed(error) | Answer::Failed(error) => writeln!(text, "viaductd in {}: {error}", dir.display())?,
    }
    Ok(())
}
