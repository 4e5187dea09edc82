//! `viaduct status`: every connection of every program.

use crate::counters::{self, End, Found, Process};
use crate::{config, proc, terminal};
use anyhow::{Result, bail};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use viaduct_control::runtime::instance_id;

/// List the connections of programs under Viaduct
///
/// One line a connection end: its process, its addresses, the path that carries its bytes, why that is not a faster
/// one, its traffic, how often it had to ring the other end's bell, and its age. A path written `shm/tcp` is shared
/// memory for sending and TCP for receiving.
///
/// The counters are read from the programs' own memory, so this works while viaductd is down. Programs of other users
/// are shown to root only.
#[derive(Debug, clap::Args)]
#[command(override_usage = "viaduct status [OPTIONS]", after_long_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Print JSON: an array with one object a connection end, or a process with --totals; with --watch one array a line
    #[arg(long)]
    json: bool,
    /// Show one line a process instead: what all its connections have carried, those that have ended included, and
    /// those of its forked children that have ended
    #[arg(long)]
    totals: bool,
    /// Refresh each second
    #[arg(short, long)]
    watch: bool,
    /// Runtime directory of the instance to show
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Show the programs of every instance
    #[arg(short, long, conflicts_with = "dir")]
    all: bool,
}

const AFTER_HELP: &str = "\
JSON
    pid, program, fd        the process, its name and its descriptor
    local, remote           addresses as ADDR:PORT
    netns                   inode of the process's network namespace, or null
    netns_cookie            the kernel's cookie of that namespace, or null
    path                    tcp, shm, or sending/receiving where they differ
    sending, receiving      the path of each direction
    reason                  why not faster, as a word; else `accelerated`; `one-way` if
                            nothing has been sent the other way since the match
    bytes_sent, bytes_received
                            stream bytes
    fast_bytes_sent, fast_bytes_received
                            those of them that a fast path carried
    bells_sent              bells rung
    bells_by_socket         those of them rung by a byte on the connection
    switches                how often a direction changed its path
    sleeps                  how often the end went to sleep
    peer_pid                the other end's process, null if unknown
    age_s                   seconds since the connection was first seen
    instance                the instance, as a number in hexadecimal

    With --totals:
    pid, program, instance  the process, its name, its instance
    open, ended             connection ends that are open, and that have ended
    open_fast, ended_fast   those of them of which a fast path carried bytes
    bytes_sent, bytes_received, fast_bytes_sent, fast_bytes_received
                            as above, of open and ended ones together
    offers, pairs           offers made to viaductd; pairs that came of them
    unshown                 connections without room in the counters, in no sum
    lost                    processes forked from it that were killed, or became other
                            programs: what they had carried is in no sum

    A forked process that ends in order adds what it has carried to the process it
    was forked from, if that had had a connection by then.

EXIT STATUS
    0   shown, also where there is nothing to show
    1   failed, or --dir names no directory and no program that runs uses it
    2   the command line was not understood

EXAMPLES
    viaduct status
    viaduct status --totals
    viaduct status --watch
    viaduct status --json | jq '.[] | select(.path != \"shm\") | {pid, reason}'";

/// Shows the table or the JSON.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let named = args.dir.clone();
    let dir = match args.all {
        true => None,
        false => Some(config::runtime_dir(args.dir)?),
    };
    let instance = dir.as_ref().map(|dir| instance_id(dir.as_os_str().as_encoded_bytes()));
    if let Some(named) = &named
        && !named.is_dir()
        && counters::read_all(instance)?.processes.is_empty()
    {
        // Else a misspelt name would look as if nothing ran.
        bail!("{}: no such directory", named.display());
    }
    let mut told_of = Vec::new();
    loop {
        let Found { processes, strangers } = counters::read_all(instance)?;
        let shown = |print: fn(&[Process]) -> String| match args.watch && terminal::is_screen() {
            true => format!("\x1b[H\x1b[2J{}", terminal::screenful(&print(&processes))),
            false => print(&processes),
        };
        let text = match (args.json, args.totals) {
            (true, true) => json(&totals(&processes), args.watch)?,
            (true, false) => json(&rows(&processes), args.watch)?,
            (false, true) => shown(totals_table),
            (false, false) => shown(table),
        };
        terminal::print(&text)?;
        if strangers != told_of || (args.watch && terminal::is_screen()) {
            tell_of(&strangers);
            told_of = strangers;
        }
        let is_empty = match args.totals {
            true => processes.is_empty(),
            false => processes.iter().all(|process| process.ends.is_empty()),
        };
        // What those have had that are in no table is not known.
        let is_known = !processes.is_empty() || told_of.is_empty();
        if is_empty && is_known && !args.json && terminal::is_terminal() {
            terminal::say(nothing(&processes, dir.as_deref()));
        }
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// Processes that are in no table, since their counters are laid out in another way.
fn tell_of(strangers: &[BTreeSet<u32>]) {
    for family in strangers {
        let Some(pid) = family.first() else { continue };
        let name = proc::name(*pid).unwrap_or_default();
        let (others, has) = match family.len() - 1 {
            0 => (
                String::new(),
                "has the library of another version and is not shown; restart it",
            ),
            1 => (" and a process of its family".to_owned(), MANY),
            some => (format!(" and {some} processes of its family"), MANY),
        };
        terminal::say(format_args!("viaduct: {name} ({pid}){others} {has}"));
    }
}

/// Of more than one process.
const MANY: &str = "have the library of another version and are not shown; restart them";

/// What an empty table means.
fn nothing(processes: &[Process], dir: Option<&Path>) -> String {
    let instance = dir.map_or_else(String::new, |dir| {
        format!(" (runtime directory {}; `--all` shows those of others)", dir.display())
    });
    let seen = match proc::processes().into_iter().all(proc::may_look_into) {
        true => "",
        false => " that you may look into",
    };
    match processes.len() {
        0 => format!("No program under Viaduct{seen} has had a connection{instance}."),
        1 => format!("One program has had connections, and none now; `--totals` shows what they carried{instance}."),
        some => {
            format!("{some} programs have had connections, and none now; `--totals` shows what they carried{instance}.")
        }
    }
}

fn json(value: &impl Serialize, one_line: bool) -> Result<String> {
    Ok(match one_line {
        true => serde_json::to_string(value)?,
        false => serde_json::to_string_pretty(value)?,
    } + "\n")
}

#[derive(Serialize)]
struct Row<'a> {
    pid: u32,
    program: &'a str,
    fd: i32,
    local: String,
    remote: String,
    netns: Option<u64>,
    netns_cookie: Option<u64>,
    path: String,
    sending: &'static str,
    receiving: &'static str,
    reason: &'static str,
    bytes_sent: u64,
    bytes_received: u64,
    fast_bytes_sent: u64,
    fast_bytes_received: u64,
    bells_sent: u64,
    bells_by_socket: u64,
    switches: u64,
    sleeps: u64,
    peer_pid: Option<u64>,
    age_s: f64,
    instance: String,
}

impl<'a> Row<'a> {
    fn new(process: &'a Process, end: &End) -> Self {
        Self {
            pid: process.pid,
            program: &process.program,
            fd: end.state.fd,
            local: end.local.to_string(),
            remote: end.remote.to_string(),
            netns: process.netns,
            netns_cookie: end.netns_cookie,
            path: end.path(),
            sending: end.state.sending.name(),
            receiving: end.state.receiving.name(),
            reason: end.state.reason.code(),
            bytes_sent: end.bytes_sent,
            bytes_received: end.bytes_received,
            fast_bytes_sent: end.fast_bytes_sent,
            fast_bytes_received: end.fast_bytes_received,
            bells_sent: end.bells_sent,
            bells_by_socket: end.bells_by_socket,
            switches: end.switches,
            sleeps: end.sleeps,
            peer_pid: end.peer_pid,
            age_s: end.age_s,
            instance: instance_text(process),
        }
    }
}

/// As text, because readers of JSON may hold numbers as floats.
fn instance_text(process: &Process) -> String {
    format!("{:#018x}", process.instance)
}

/// What the connections of a process have carried together.
#[derive(Serialize)]
struct Sum<'a> {
    pid: u32,
    program: &'a str,
    open: u64,
    open_fast: u64,
    ended: u64,
    ended_fast: u64,
    bytes_sent: u64,
    bytes_received: u64,
    fast_bytes_sent: u64,
    fast_bytes_received: u64,
    offers: u64,
    pairs: u64,
    unshown: u64,
    lost: u64,
    instance: String,
}

impl<'a> Sum<'a> {
    fn new(process: &'a Process) -> Self {
        let totals = &process.totals;
        let [bytes_sent, bytes_received, fast_bytes_sent, fast_bytes_received] = totals.traffic;
        Self {
            pid: process.pid,
            program: &process.program,
            open: totals.open,
            open_fast: totals.open_fast,
            ended: totals.ended,
            ended_fast: totals.ended_fast,
            bytes_sent,
            bytes_received,
            fast_bytes_sent,
            fast_bytes_received,
            offers: process.offers,
            pairs: process.pairs,
            unshown: process.unshown,
            lost: process.lost,
            instance: instance_text(process),
        }
    }
}

fn totals(processes: &[Process]) -> Vec<Sum<'_>> {
    processes.iter().map(Sum::new).collect()
}

fn totals_table(processes: &[Process]) -> String {
    let head = [
        "PID", "PROGRAM", "OPEN", "FAST", "ENDED", "FAST", "SENT", "FAST", "RECEIVED", "FAST",
    ];
    let right = [true, false, true, true, true, true, true, true, true, true];
    let cells: Vec<Vec<String>> = totals(processes)
        .into_iter()
        .map(|sum| {
            vec![
                sum.pid.to_string(),
                sum.program.to_owned(),
                sum.open.to_string(),
                sum.open_fast.to_string(),
                sum.ended.to_string(),
                sum.ended_fast.to_string(),
                terminal::bytes(sum.bytes_sent),
                terminal::bytes(sum.fast_bytes_sent),
                terminal::bytes(sum.bytes_received),
                terminal::bytes(sum.fast_bytes_received),
            ]
        })
        .collect();
    let mut text = terminal::table(&head, &right, &cells);
    for process in processes.iter().filter(|process| process.lost > 0) {
        text.push_str(&format!(
            "{} processes forked by {} ({}) were killed, or became other programs: what they had carried is in no sum\n",
            process.lost, process.program, process.pid
        ));
    }
    text
}

fn rows(processes: &[Process]) -> Vec<Row<'_>> {
    processes
        .iter()
        .flat_map(|process| process.ends.iter().map(move |end| Row::new(process, end)))
        .collect()
}

fn table(processes: &[Process]) -> String {
    let head = [
        "PID", "PROGRAM", "FD", "LOCAL", "REMOTE", "PATH", "REASON", "SENT", "RECEIVED", "BELLS", "AGE",
    ];
    let right = [true, false, true, false, false, false, false, true, true, true, true];
    let cells: Vec<Vec<String>> = rows(processes)
        .into_iter()
        .map(|row| {
            vec![
                row.pid.to_string(),
                row.program.to_owned(),
                row.fd.to_string(),
                row.local,
                row.remote,
                row.path,
                row.reason.to_owned(),
                terminal::bytes(row.bytes_sent),
                terminal::bytes(row.bytes_received),
                row.bells_sent.to_string(),
                terminal::duration(row.age_s),
            ]
        })
        .collect();
    let mut text = terminal::table(&head, &right, &cells);
    for process in processes.iter().filter(|process| process.unshown > 0) {
        text.push_str(&format!(
            "{} further connections of {} ({}) found no room in its counters\n",
            process.unshown, process.program, process.pid
        ));
    }
    text
}
