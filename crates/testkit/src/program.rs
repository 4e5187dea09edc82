//! Programs started natively or accelerated.

use crate::binaries::{binary, find};
use crate::host::Host;
use crate::instance::Instance;
use crate::processes::{cpu_seconds, family, is_listening, signal, wait_until};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How a program is started.
#[derive(Clone, Copy, Debug)]
pub enum Mode<'a> {
    /// As it is.
    Native,
    /// Under `viaduct run`.
    Accelerated(&'a Instance),
}

/// What to start.
#[derive(Debug)]
pub struct Launch<'a> {
    mode: Mode<'a>,
    program: PathBuf,
    arguments: Vec<OsString>,
    options: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    host: Option<&'a Host>,
    directory: Option<PathBuf>,
    input: Option<PathBuf>,
    farewell: Option<Signal>,
}

impl<'a> Launch<'a> {
    /// `program` (a path or a name) with `arguments`.
    ///
    /// Accelerated, it starts no viaductd: that is the instance's part, or a test of its absence would meet another
    /// one.
    ///
    /// # Panics
    /// If the program is not on this machine.
    pub fn new<I>(mode: Mode<'a>, program: impl AsRef<Path>, arguments: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        let program = program.as_ref();
        let path = if program.components().count() > 1 {
            program.to_owned()
        } else {
            find(&program.to_string_lossy()).unwrap_or_else(|| panic!("{} is not installed", program.display()))
        };
        let variables = match mode {
            Mode::Native => Vec::new(),
            Mode::Accelerated(_) => vec![("VIADUCT_DAEMON".into(), "/nonexistent/viaductd".into())],
        };
        Self {
            mode,
            program: path,
            arguments: arguments.into_iter().map(Into::into).collect(),
            options: vec!["--offer".into(), "now".into()],
            variables,
            host: None,
            directory: None,
            input: None,
            farewell: None,
        }
    }

    /// The checked peer with `arguments`, separated by blanks.
    pub fn testpeer(mode: Mode<'a>, arguments: &str) -> Self {
        Self::new(mode, binary("viaduct-testpeer"), arguments.split_whitespace())
    }

    /// Options of `viaduct run` instead of `--offer now`, separated by blanks.
    #[must_use]
    pub fn options(mut self, options: &str) -> Self {
        self.options = options.split_whitespace().map(Into::into).collect();
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Runs on a simulated host.
    #[must_use]
    pub fn on(mut self, host: &'a Host) -> Self {
        self.host = Some(host);
        self
    }

    /// Runs in a directory.
    #[must_use]
    pub fn directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Gives it a file as standard input instead of nothing.
    #[must_use]
    pub fn input(mut self, file: &Path) -> Self {
        self.input = Some(file.to_owned());
        self
    }

    /// Asks it by this signal to end, before it is killed: for a program that would leave something behind.
    #[must_use]
    pub fn farewell(mut self, signal: Signal) -> Self {
        self.farewell = Some(signal);
        self
    }

    /// The words of the command, for a program that starts others.
    pub fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if let Mode::Accelerated(instance) = self.mode {
            words.push(binary("viaduct").into());
            words.push("run".into());
            words.push("--dir".into());
            words.push(instance.dir().into());
            words.extend(self.options.iter().cloned());
            words.push("--".into());
        }
        words.push(self.program.clone().into());
        words.extend(self.arguments.iter().cloned());
        words
    }

    /// The environment variables that are set.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &(OsString, OsString)> {
        self.variables.iter()
    }

    fn command(&self) -> Command {
        let words = self.words();
        let mut command = match self.host {
            Some(host) => host.command(&words[0]),
            None => Command::new(&words[0]),
        };
        command.args(&words[1..]);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }

    /// Starts the program.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(self) -> Program {
        let mut command = self.command();
        let input = match &self.input {
            Some(file) => File::open(file)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
                .into(),
            None => Stdio::null(),
        };
        let mut child = command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = Capture::of(child.stdout.take());
        let errors = Capture::of(child.stderr.take());
        Program {
            name: self.program.display().to_string(),
            child,
            output,
            errors,
            farewell: self.farewell,
        }
    }

    /// Runs the program to its end.
    ///
    /// # Panics
    /// If it does not end within `limit`.
    pub fn run(self, limit: Duration) -> Outcome {
        self.spawn().finish(limit)
    }
}

/// What a program that has ended left behind.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Program path.
    pub name: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub errors: String,
}

impl Outcome {
    /// The standard output of a program that must have succeeded.
    ///
    /// # Panics
    /// If it has not.
    pub fn success(self) -> String {
        assert!(
            self.status.success(),
            "{}: {}\n{}\n{}",
            self.name,
            self.status,
            tail(&self.output),
            tail(&self.errors)
        );
        self.output
    }
}

/// The end of a long text.
pub(crate) fn tail(text: &str) -> &str {
    let mut from = text.len().saturating_sub(4000);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// How long a program may take that is asked to end.
const FAREWELL: Duration = Duration::from_secs(10);

/// A running program, killed with its children on drop.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    output: Capture,
    errors: Capture,
    farewell: Option<Signal>,
}

impl Program {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its process number and those of its children.
    pub fn family(&self) -> Vec<u32> {
        family(self.pid())
    }

    /// Waits until it listens on `port`, and returns itself.
    ///
    /// # Panics
    /// If it does not, or ends.
    #[must_use]
    pub fn listening(mut self, port: u16) -> Self {
        let pid = self.pid();
        let up = wait_until(Duration::from_secs(20), || {
            is_listening(pid, port) || !self.is_running()
        });
        assert!(
            up && self.is_running(),
            "{} does not listen on {port}:\n{}\n{}",
            self.name,
            tail(&self.output()),
            tail(&self.errors())
        );
        self
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it has written to standard output so far.
    pub fn output(&self) -> String {
        self.output.text()
    }

    /// What it has written to standard error so far.
    pub fn errors(&self) -> String {
        self.errors.text()
    }

    /// Sends it a signal.
    pub fn signal(&self, number: Signal) {
        signal(self.pid(), number);
    }

    /// Waits for its end, at most `limit`; `None` if it still runs then.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let child = &mut self.child;
        let mut status = None;
        wait_until(limit, || {
            status = child.try_wait().ok().flatten();
            status.is_some()
        });
        status
    }

    /// Waits for its end and returns the processor time it has used, in seconds.
    ///
    /// # Panics
    /// If it does not end within `limit`.
    pub fn processor_time(&self, limit: Duration) -> f64 {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap_or(-1));
        // Left unreaped, so that its times can still be read.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let ended = wait_until(limit, || {
            !matches!(waitid(Id::Pid(pid), flags), Ok(WaitStatus::StillAlive))
        });
        assert!(ended, "{} still runs after {limit:?}", self.name);
        cpu_seconds(self.pid())
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end within `limit`.
    pub fn finish(mut self, limit: Duration) -> Outcome {
        let Some(status) = self.wait(limit) else {
            panic!(
                "{} still runs after {limit:?}:\n{}\n{}\n{}",
                self.name,
                stacks(self.pid()),
                tail(&self.output()),
                tail(&self.errors())
            );
        };
        self.output.join();
        self.errors.join();
        Outcome {
            name: self.name.clone(),
            status,
            output: self.output(),
            errors: self.errors(),
        }
    }

    /// Kills it at once, and waits for that.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(farewell) = self.farewell
            && self.is_running()
        {
            self.signal(farewell);
            self.wait(FAREWELL);
        }
        // The group first, while its leader's number cannot be anybody else's.
        if let Ok(group) = i32::try_from(self.pid())
            && self.is_running()
        {
            let _ = nix::sys::signal::killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the threads of a process wait, for the report of a hang.
fn stacks(pid: u32) -> String {
    let mut text = String::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        for file in ["wchan", "syscall"] {
            let value = std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            text.push_str(value.trim());
            text.push(' ');
        }
        text.push('\n');
    }
    text
}

/// A pipe read by a thread, so that the program never waits for its reader.
#[derive(Debug, Default)]
struct Capture {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    fn of<R: Read + Send + 'static>(pipe: Option<R>) -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let reader = pipe.map(|mut pipe| {
            let text = Arc::clone(&text);
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(count @ 1..) = pipe.read(&mut piece) {
                    if let Ok(mut text) = text.lock() {
                        text.extend_from_slice(&piece[..count]);
                    }
                }
            })
        });
        Self { text, reader }
    }

    fn text(&self) -> String {
        self.text
            .lock()
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .unwrap_or_default()
    }

    /// Waits for the end of the pipe, but not for a child that outlives the program.
    fn join(&mut self) {
        if let Some(reader) = self.reader.take() {
            wait_until(Duration::from_millis(500), || reader.is_finished());
        }
    }
}
