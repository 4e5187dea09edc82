//! Programs started as they are or under `viaduct run`, with the processor time they take.

use crate::bench::instance::Instance;
use crate::locate;
use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use viaduct_control::policy::{OFFER_VARIABLE, PATH_VARIABLE, RULES_VARIABLE, SPIN_VARIABLE};
use viaduct_control::runtime::DIR_VARIABLE;

/// The program with rivals that no distribution has.
const RIVALS: &str = "viaduct-rivals";
/// How often to look whether something has happened. Seldom, since looking takes processor time from what is measured.
const LOOK: Duration = Duration::from_millis(10);
/// How long a program may take to end when it is asked to.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long a server may take to listen.
const LISTEN: Duration = Duration::from_secs(10);
/// How often the times of a family are read at most, until nobody comes or goes meanwhile.
const COUNTS: u32 = 20;
/// Times of a process: its own,
const ALONE: usize = 2;
/// and those with its descendants' that have ended.
pub(crate) const WITH_REAPED: usize = 4;

/// How a program is started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How<'a> {
    /// As it is.
    Plain,
    /// Under `viaduct run` with these options.
    Under(&'a Instance, &'a [&'a str]),
    /// As it is, in this cgroup.
    Within(&'a Path),
}

/// What to start.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    how: How<'a>,
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(&'static str, &'static str)>,
    farewell: Signal,
}

impl<'a> Launch<'a> {
    /// The program `name` of this machine.
    ///
    /// # Errors
    /// It is not installed.
    pub(crate) fn new(how: How<'a>, name: &str) -> Result<Self> {
        let program = find(name).with_context(|| format!("{name} is not installed"))?;
        Ok(Self::path(how, program))
    }

    /// The benchmark's own peer.
    pub(crate) fn peer(how: How<'a>) -> Self {
        Self::path(how, locate::OWN.into()).arg("bench-peer")
    }

    /// The program with rivals that no distribution has.
    ///
    /// # Errors
    /// It is not built.
    pub(crate) fn rivals() -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name(RIVALS);
        ensure!(
            program.is_file(),
            "{RIVALS} is not beside viaduct; `make bench` builds it"
        );
        Ok(Self::path(How::Plain, program))
    }

    fn path(how: How<'a>, program: PathBuf) -> Self {
        Self {
            how,
            program,
            arguments: Vec::new(),
            variables: Vec::new(),
            farewell: Signal::TERM,
        }
    }

    /// One more argument.
    #[must_use]
    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// More arguments, separated by blanks.
    #[must_use]
    pub(crate) fn args(mut self, arguments: &str) -> Self {
        self.arguments.extend(arguments.split_whitespace().map(OsString::from));
        self
    }

    /// An environment variable.
    #[must_use]
    pub(crate) fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    /// The signal that has it end in order whoever is connected, in place of SIGTERM.
    #[must_use]
    pub(crate) fn farewell(mut self, signal: Signal) -> Self {
        self.farewell = signal;
        self
    }

    /// Starts it with its output kept for [`Program::finish`].
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn spawn(self) -> Result<Program> {
        self.start(Stdio::null(), false)
    }

    /// Starts it with its standard input and output as pipes.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn spawn_piped(self) -> Result<Program> {
        self.start(Stdio::piped(), true)
    }

    /// Starts it with `input` as its standard input and its output as a pipe.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn spawn_with(self, input: Stdio) -> Result<Program> {
        self.start(input, true)
    }

    fn start(self, input: Stdio, piped: bool) -> Result<Program> {
        let mut command = Command::new(locate::OWN);
        // What the user has set for other programs is not for these.
        for name in [
            "LD_PRELOAD",
            "VIADUCT_CONFIG",
            DIR_VARIABLE,
            PATH_VARIABLE,
            SPIN_VARIABLE,
            OFFER_VARIABLE,
            RULES_VARIABLE,
        ] {
            command.env_remove(name);
        }
        // Goes first through a process that arranges to end with this one, however this one ends.
        command.args(["bench-peer", "exec"]);
        match self.how {
            How::Plain => command.arg("--"),
            How::Within(cgroup) => command.arg("--cgroup").arg(cgroup).arg("--"),
            How::Under(instance, options) => {
                command
                    .arg("--")
                    .arg(locate::OWN)
                    .args(["run", "--dir"])
                    .arg(instance.dir());
                command.args(options).arg("--")
            }
        };
        command.arg(&self.program).args(&self.arguments).envs(self.variables);
        let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        command.stdin(input).stderr(errors.try_clone()?);
        command.stdout(if piped {
            Stdio::piped()
        } else {
            output.try_clone()?.into()
        });
        let child = command.spawn().with_context(|| self.program.display().to_string())?;
        Ok(Program {
            name: match self.program == Path::new(locate::OWN) {
                true => "viaduct".to_owned(),
                false => self
                    .program
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
            },
            child,
            output,
            errors,
            farewell: self.farewell,
        })
    }
}

/// A program that runs, until it is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    output: File,
    errors: File,
    farewell: Signal,
}

/// What a program that has ended left behind.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Its standard output.
    pub(crate) output: String,
    /// Processor time it has used in its life, in seconds.
    pub(crate) cpu_s: f64,
}

impl Program {
    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub(crate) fn runs(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        matches!(waitid(WaitId::Pid(Pid::from_child(&self.child)), options), Ok(None))
    }

    /// Its process and those it has started.
    pub(crate) fn family(&self) -> Vec<u32> {
        family(self.pid())
    }

    /// Processor time of it and those it has started, in seconds, those that have ended among them.
    pub(crate) fn cpu_s(&self) -> f64 {
        let mut spent = 0.0;
        // What a process has used that is reaped meanwhile would count twice, or not at all.
        for _ in 0..COUNTS {
            let family = self.family();
            spent = family.iter().map(|pid| spent_s(*pid, WITH_REAPED)).sum();
            if self.family() == family {
                break;
            }
        }
        spent
    }

    /// Its end of the pipe to its standard input, once.
    pub(crate) fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Its end of the pipe from its standard output, once.
    pub(crate) fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits until something listens on `port` of this machine.
    ///
    /// # Errors
    /// It ends before, or takes too long.
    pub(crate) fn listening(mut self, port: u16) -> Result<Self> {
        let start = Instant::now();
        while !is_listening(port) {
            if self.child.try_wait()?.is_some() || start.elapsed() > LISTEN {
                return Err(self.blame("does not listen"));
            }
            sleep(LOOK);
        }
        Ok(self)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It fails, or runs longer than `limit`.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<Outcome> {
        let start = Instant::now();
        // Left unreaped at first, so that its times can still be read.
        while self.runs() {
            if start.elapsed() > limit {
                return Err(self.blame(&format!("still runs after {} s", limit.as_secs())));
            }
            sleep(LOOK);
        }
        let cpu_s = cpu_s(self.pid());
        let status = self.child.wait()?;
        if !status.success() {
            return Err(self.blame(&status.to_string()));
        }
        Ok(Outcome {
            output: text(&mut self.output),
            cpu_s,
        })
    }

    /// An error with the end of what it has said.
    fn blame(&mut self, what: &str) -> anyhow::Error {
        let said = text(&mut self.errors) + &text(&mut self.output);
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(3)..].join("; ");
        anyhow!("{} {what}: {last}", self.name)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.input());
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let family = self.family();
        let _ = kill_process(Pid::from_child(&self.child), self.farewell);
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > FAREWELL {
                // The children first, while they are still known to be its own.
                for pid in family.into_iter().rev().filter_map(process) {
                    let _ = kill_process(pid, Signal::KILL);
                }
                let _ = self.child.wait();
                return;
            }
            sleep(LOOK);
        }
    }
}

/// The process with this number, for signals.
pub(crate) fn process(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// A process and those it has started.
pub(crate) fn family(pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(&pid) = family.get(next) {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        family.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        next += 1;
    }
    family
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Where the shell would find `program`; administrators' directories count too. PostgreSQL's own go first: Debian keeps
/// them out of the path, and puts scripts in front of some of what is there.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|version| version.path().join("bin")).max();
    newest
        .into_iter()
        .chain(std::env::split_paths(&path))
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// A TCP port on which nobody listens.
///
/// # Errors
/// There is none.
pub(crate) fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Whether somebody listens on `port`. Asks the kernel, since a trial connection would disturb some servers.
fn is_listening(port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        let table = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        listens(&table, port)
    })
}

fn listens(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&end)) && words.nth(1) == Some("0A")
    })
}

/// User and system time of a process in seconds, as long as it is not reaped.
pub(crate) fn cpu_s(pid: u32) -> f64 {
    spent_s(pid, ALONE)
}

fn spent_s(pid: u32, times: usize) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    ticks(&stat, times).unwrap_or(0) as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// The first of the times in a line of `/proc/PID/stat`, together: user and system time of the process, then of its
/// descendants that have been reaped.
pub(crate) fn ticks(stat: &str, times: usize) -> Option<u64> {
    // The program's name is in parentheses and may hold anything.
    let words = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).take(times);
    words.map(|word| word.parse::<u64>().ok()).sum()
}

/// Processor time of the threads a process has now, in seconds, to the nanosecond.
pub(crate) fn fine_cpu_s(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let spent = |path: &Path| {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    tasks.filter_map(|task| spent(&task.path())).sum::<f64>() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_past_any_name() {
        let stat = "17 (a) b (c) S 1 17 17 0 -1 4194560 5 0 0 0 120 34 7 8 20 0 1 0 99 1 2";
        assert_eq!(ticks(stat, ALONE), Some(154));
        assert_eq!(ticks(stat, WITH_REAPED), Some(169));
        assert_eq!(ticks("17 (x", ALONE), None);
    }

    #[test]
    fn only_listeners_listen() {
        let table = "  sl  local_address rem_address   st\n   \
            0: 0100007F:18EB 00000000:0000 0A 0:0 0:0 0 0 0 1\n   \
            1: 0100007F:C350 0100007F:18EB 01 0:0 0:0 0 0 0 2\n";
        assert!(listens(table, 0x18EB));
        assert!(!listens(table, 0xC350));
    }

    #[test]
    fn time_of_a_busy_process_passes() {
        // Not this process: threads of other tests end, and their time with them.
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let before = fine_cpu_s(busy.id());
        let start = Instant::now();
        let passed = || fine_cpu_s(busy.id()) > before && cpu_s(busy.id()) > 0.0;
        while !passed() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let passed = passed();
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(passed);
    }
}
