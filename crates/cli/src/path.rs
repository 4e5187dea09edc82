//! `viaduct path`: moves a live connection.

use crate::counters::{self, End, Found, Process, is_on, read_words};
use crate::target::Target;
use crate::{config, limits, proc, terminal};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use rustix::fd::OwnedFd;
use rustix::io::pwrite;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};
use viaduct_control::Reason;
use viaduct_control::counters::{Path, State, Wanted, slot, slot_base};
use viaduct_control::runtime::instance_id;

/// Move a live connection to another path
///
/// Names a connection end by process and descriptor, or every end that has an address, and says which path both
/// directions shall take: `tcp`, `shm` as soon as possible, or `auto` to give the choice back to Viaduct. No byte is
/// lost or repeated, and the programs notice nothing.
///
/// The end itself makes the move, at its next socket call: the connection of an idle program moves when the program
/// next uses it.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "viaduct path [OPTIONS] PID FD <tcp|shm|auto>\n       viaduct path [OPTIONS] ADDR:PORT <tcp|shm|auto>",
    after_long_help = AFTER_HELP
)]
pub(crate) struct Args {
    /// The connection, as PID FD or ADDR:PORT or :PORT, and its path: tcp, shm or auto
    #[arg(required = true, num_args = 2..=3, value_names = ["CONNECTION", "PATH"])]
    words: Vec<String>,
    /// Do not wait for the move [default: wait up to 2 seconds]
    #[arg(long)]
    no_wait: bool,
    /// Runtime directory of the instance in which to look for ADDR:PORT [default: as `viaduct run`]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
EXAMPLES
    viaduct path 4711 12 tcp
    viaduct path 127.0.0.1:6379 auto

EXIT STATUS
    0   moved, or asked to with --no-wait; a direction in which nothing is sent has
        nothing to move to shared memory, and is not waited for longer
    1   no such connection, not allowed, or closed meanwhile
    2   the command line was not understood
    3   not moved within 2 seconds; the wish stands";

const NOT_UNDERSTOOD: u8 = 2;
const NOT_YET: u8 = 3;
const PATIENCE: Duration = Duration::from_secs(2);
/// As much of it as one look uses up. When a virtual machine stands still for seconds, so does the program.
const LOOK: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Wish {
    Tcp,
    Shm,
    Auto,
}

/// The words for the paths, which are the command line's last.
pub(crate) fn words() -> impl Iterator<Item = PossibleValue> {
    Wish::value_variants().iter().filter_map(ValueEnum::to_possible_value)
}

impl Wish {
    fn wanted(self) -> Wanted {
        match self {
            Self::Tcp => Wanted::Tcp,
            Self::Shm => Wanted::Shm,
            Self::Auto => Wanted::Auto,
        }
    }

    fn is_met(self, state: State) -> bool {
        match self {
            Self::Tcp => is_on(state, Path::Tcp),
            Self::Shm => is_on(state, Path::Shm),
            Self::Auto => true,
        }
    }

    /// Of a stream that goes one way there is no more to be moved: only a sender moves its direction.
    fn is_met_as_far_as_used(self, state: State) -> bool {
        matches!(self, Self::Shm) && state.reason == Reason::OneWay
    }
}

/// An end whose counters are open for writing.
struct Subject<'a> {
    process: &'a Process,
    end: &'a End,
    file: Rc<OwnedFd>,
}

/// Writes the wish and waits for it.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (target, wish) = match parse(&args.words) {
        Ok(asked) => asked,
        Err(error) => {
            terminal::say(format_args!("viaduct: {error:#}"));
            return Ok(NOT_UNDERSTOOD.into());
        }
    };
    // One for each process that has such a connection.
    limits::raise_descriptors();
    let Found { processes, strangers } = candidates(target, args.dir.clone())?;
    let mut subjects = Vec::new();
    for process in &processes {
        let mut ends = process
            .ends
            .iter()
            .filter(|end| is_meant(target, process, end))
            .peekable();
        if ends.peek().is_none() {
            continue;
        }
        let file = process.open_for_writing();
        let file = Rc::new(file.with_context(|| format!("counters of process {}", process.pid))?);
        subjects.extend(ends.map(|end| Subject {
            process,
            end,
            file: Rc::clone(&file),
        }));
    }
    if subjects.is_empty() {
        if let Meant::Descriptor(pid, _) = target
            && strangers.iter().any(|family| family.contains(&pid))
        {
            bail!(
                "process {pid} has the library of another version: use the `viaduct` of that one, or restart the program"
            );
        }
        let all = proc::processes().into_iter().all(proc::may_look_into);
        let among = match all {
            true => "",
            false => " among the processes that you may look into; for all of them, run this as root",
        };
        bail!("no connection under Viaduct is {}{among}", describe(target));
    }
    for subject in &subjects {
        subject.ask(wish.wanted())?;
    }
    let mut left = PATIENCE;
    let mut outcome = ExitCode::SUCCESS;
    for subject in subjects {
        let name = format!(
            "{} ({}) descriptor {}, {} to {}",
            subject.process.program, subject.process.pid, subject.end.state.fd, subject.end.local, subject.end.remote
        );
        if args.no_wait {
            continue;
        }
        let told = match subject.wait(wish, &mut left) {
            Some(state) if matches!(wish, Wish::Auto) => {
                format!("left to Viaduct again, now {} so far", path_of(state))
            }
            Some(state) if wish.is_met(state) => format!("now {}", path_of(state)),
            Some(state) if wish.is_met_as_far_as_used(state) => {
                format!("now {}; the other way moves when its end sends next", path_of(state))
            }
            Some(state) => {
                outcome = NOT_YET.into();
                still(wish, state)
            }
            None => {
                outcome = ExitCode::FAILURE;
                "closed".to_owned()
            }
        };
        terminal::print(&format!("{name}: {told}\n"))?;
    }
    Ok(outcome)
}

/// Of an end that has not moved.
fn still(wish: Wish, state: State) -> String {
    let mut told = format!("still {}\n", path_of(state));
    // Of no use to who wants TCP: it says what keeps the connection from shared memory.
    if !matches!(wish, Wish::Tcp) {
        told.push_str(&format!("    Why: {} [{}]\n", state.reason.text(), state.reason.code()));
        if !state.reason.advice().is_empty() {
            told.push_str(&format!("    What to do: {}\n", state.reason.advice()));
        }
    }
    told.push_str("    The wish stands; an idle program moves at its next socket call.");
    told
}

#[derive(Clone, Copy)]
enum Meant {
    Descriptor(u32, i32),
    Target(Target),
}

fn describe(meant: Meant) -> String {
    match meant {
        Meant::Descriptor(pid, fd) => format!("descriptor {fd} of process {pid}"),
        Meant::Target(target) => format!("at {target}"),
    }
}

fn is_meant(meant: Meant, process: &Process, end: &End) -> bool {
    match meant {
        Meant::Descriptor(pid, fd) => process.pid == pid && end.state.fd == fd,
        Meant::Target(target) => target.matches(process, end),
    }
}

/// What the command line asks for.
fn parse(words: &[String]) -> Result<(Meant, Wish)> {
    let wish = |word: &str| {
        Wish::from_str(word, false).map_err(|_| anyhow::anyhow!("{word:?} is no path; expected tcp, shm or auto"))
    };
    match words {
        [pid, fd, path] => {
            let pid: u32 = pid.parse().with_context(|| format!("{pid:?} is no process number"))?;
            let fd: i32 = fd.parse().with_context(|| format!("{fd:?} is no descriptor"))?;
            Ok((Meant::Descriptor(pid, fd), wish(path)?))
        }
        [connection, path] => {
            let target: Target = connection.parse().map_err(anyhow::Error::msg)?;
            let wish = wish(path)?;
            if let Target::Process(pid) = target {
                bail!("which descriptor of process {pid}? expected PID FD PATH");
            }
            Ok((Meant::Target(target), wish))
        }
        _ => bail!("expected PID FD PATH or ADDR:PORT PATH"),
    }
}

/// The processes among whose connections to look.
fn candidates(meant: Meant, dir: Option<PathBuf>) -> Result<Found> {
    match meant {
        Meant::Descriptor(pid, _) => {
            if !proc::exists(pid) {
                bail!("there is no process {pid}");
            }
            proc::check()?;
            if !proc::may_look_into(pid) {
                bail!("process {pid} may not be looked into: run this as the user it belongs to, or as root");
            }
            Ok(counters::read_some(&[pid], None)?)
        }
        Meant::Target(_) => {
            let dir = config::runtime_dir(dir)?;
            Ok(counters::read_all(Some(instance_id(
                dir.as_os_str().as_encoded_bytes(),
            )))?)
        }
    }
}

impl Subject<'_> {
    fn ask(&self, wanted: Wanted) -> Result<()> {
        // The slot may have been given to another connection since it was read.
        if self.state().is_none() {
            return Ok(());
        }
        let place = u64::try_from((slot_base(self.end.slot) + slot::WANTED) * 8)?;
        let count = pwrite(&self.file, &(wanted as u64).to_ne_bytes(), place)
            .with_context(|| format!("writing the counters of process {}", self.process.pid))?;
        if count != 8 {
            bail!("the counters of process {} cannot be written", self.process.pid);
        }
        Ok(())
    }

    /// `None`: the connection is closed.
    fn state(&self) -> Option<State> {
        let mut words = [0; 2];
        read_words(&self.file, slot_base(self.end.slot) + slot::CONNECTION, &mut words)?;
        let [connection, state] = words;
        if connection != self.end.connection {
            return None;
        }
        State::unpack(state)
    }

    fn wait(&self, wish: Wish, left: &mut Duration) -> Option<State> {
        loop {
            let began = Instant::now();
            let state = self.state()?;
            if wish.is_met(state) || left.is_zero() {
                return Some(state);
            }
            thread::sleep(PAUSE);
            *left = left.saturating_sub(began.elapsed().min(LOOK));
        }
    }
}

fn path_of(state: State) -> String {
    let State { sending, receiving, .. } = state;
    if sending == receiving {
        format!("on {}", sending.name())
    } else {
        format!("sending by {}, receiving by {}", sending.name(), receiving.name())
    }
}
