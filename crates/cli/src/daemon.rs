//! Asking viaductd how it is, and starting one.

use crate::config::Named;
use crate::{inherit, limits, locate};
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use viaduct_control::PROTOCOL_VERSION;
use viaduct_control::message::{MAX_PACKET, Packet, Query, Stats, decode};
use viaduct_control::runtime::{socket_path, too_long};

/// A viaductd started on demand exits after this many seconds without a guest.
const IDLE_EXIT_S: u32 = 60;
/// How long to wait for the word of a viaductd that has been started. One that cannot start ends, which is seen at
/// once.
const READY_S: u32 = 10;
/// The longest word of a viaductd that has started, or could not: it comes in one piece.
const MAX_WORD: usize = 4096;
/// How long to wait for an answer to a query.
const ANSWER_S: u32 = 1;
/// Either is waited for in so many looks a second: time in which the machine stands still, and viaductd with it, counts
/// for one of them.
const LOOKS_A_SECOND: u32 = 20;
/// A viaductd that hangs up is asked so often,
const ASKED_MOST: u32 = 4;
/// and after so long each time, within which one that was killed has ended.
const UNTIL_GONE: Duration = Duration::from_millis(20);

/// What became of a query.
#[derive(Debug)]
pub(crate) enum Answer {
    /// viaductd's statistics.
    Stats(Stats),
    /// Nobody listens: no socket, or nobody behind it.
    Absent,
    /// Nobody can listen there, or whoever does is not for this process.
    Closed(String),
    /// Somebody may listen, but did not answer sensibly.
    Failed(String),
}

/// Asks the viaductd of `dir` how it is. One that hangs up has ended, which shows when it is asked again, or turns this
/// process away.
pub(crate) fn query(dir: &Path) -> Answer {
    if let Some(error) = too_long(dir) {
        return Answer::Closed(error);
    }
    for _ in 0..ASKED_MOST {
        match try_query(dir) {
            Ok(answer) => return answer,
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => return Answer::Absent,
            Err(Errno::CONNRESET | Errno::PIPE) => std::thread::sleep(UNTIL_GONE),
            Err(Errno::ACCESS) => return Answer::Closed("this user may not connect to it".to_owned()),
            Err(Errno::AGAIN) => return Answer::Failed("too many programs wait for it".to_owned()),
            Err(error) => return Answer::Failed(std::io::Error::from(error).to_string()),
        }
    }
    Answer::Closed(
        "it turned this process away: it is another user's, or has as many programs as it may (`processes_per_user`)"
            .to_owned(),
    )
}

fn try_query(dir: &Path) -> Result<Answer, Errno> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    connect(&socket, &SocketAddrUnix::new(socket_path(dir))?)?;
    let query = Query {
        version: PROTOCOL_VERSION,
        reserved: 0,
    };
    send(&socket, Packet::new(&query).as_bytes(), SendFlags::NOSIGNAL)?;
    if !comes(&socket, ANSWER_S)? {
        return Ok(Answer::Failed("it did not answer within a second".to_owned()));
    }
    let mut buffer = [0; MAX_PACKET];
    let (len, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
    if len == 0 {
        // It has read the question, so the kernel calls its end no reset.
        return Err(Errno::CONNRESET);
    }
    let stats = decode(buffer.get(..len).unwrap_or(&[]));
    let strange = || Answer::Failed("its answer is of another version".to_owned());
    Ok(stats.map_or_else(strange, Answer::Stats))
}

/// What keeps programs of this version from speaking to the viaductd that has answered so.
pub(crate) fn other_version(stats: &Stats) -> Option<String> {
    let theirs = stats.version;
    (theirs != PROTOCOL_VERSION).then(|| format!("it speaks version {theirs}, this is version {PROTOCOL_VERSION}"))
}

/// Waits until something can be read, or the other end is closed.
fn comes(file: impl AsFd, seconds: u32) -> Result<bool, Errno> {
    let look = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(1_000_000_000 / LOOKS_A_SECOND),
    };
    for _ in 0..seconds * LOOKS_A_SECOND {
        if poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&look))? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sees to it that a viaductd listens in `dir`, starting one if none answers: once, and that one waits until another
/// that is being killed is gone.
///
/// # Errors
/// None could be started, it did not become ready in time, or the one that answers is of another version.
pub(crate) fn ensure(dir: &Path, config: Option<&Named>) -> Result<()> {
    match query(dir) {
        Answer::Stats(stats) => match other_version(&stats) {
            None => return Ok(()),
            Some(difference) => bail!(
                "{difference}; restart the viaductd that runs there, as process {}",
                stats.pid
            ),
        },
        Answer::Closed(error) | Answer::Failed(error) => bail!("viaductd in {}: {error}", dir.display()),
        Answer::Absent => {}
    }
    let daemon = locate::daemon().with_context(|| {
        locate::misnamed(locate::DAEMON_VARIABLE)
            .unwrap_or_else(|| format!("viaductd is not installed beside viaduct{}", locate::lost()))
    })?;
    // Started from a process of its own that ends at once: viaductd becomes nobody's child, so that the program, into
    // which this process is about to turn, never reaps a stranger; and it inherits none of the descriptors open here.
    let mut launcher = Command::new(locate::OWN);
    launcher.arg("launch-daemon").arg("--dir").arg(dir);
    launcher.stdin(Stdio::null());
    match config {
        None => {}
        Some(Named { path, text: None }) => {
            launcher.arg("--config").arg(std::path::absolute(path)?);
        }
        Some(Named { text: Some(text), .. }) => {
            launcher.args(["--config", "/dev/stdin"]).stdin(in_memory(text)?);
        }
    }
    inherit::about_to_fork();
    let output = launcher
        .arg("--")
        .arg(&daemon)
        .stdout(Stdio::null())
        .output()
        .map_err(|error| limits::no_process(error, "viaductd"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        // It is this program that said it, under its own name.
        bail!("{}", said.trim_end().trim_start_matches("viaduct: "));
    }
    Ok(())
}

/// A file that holds `text`.
fn in_memory(text: &str) -> Result<File> {
    let mut file = File::from(memfd_create("viaduct.toml", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// The command line between `viaduct run` and the process that starts viaductd for it.
#[derive(Debug, clap::Args)]
pub(crate) struct LaunchArgs {
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    config: Option<PathBuf>,
    #[arg(last = true)]
    daemon: PathBuf,
}

/// Starts viaductd in a session of its own and waits until it listens.
///
/// # Errors
/// It could not be started, or did not become ready in time.
pub(crate) fn launch(args: &LaunchArgs) -> Result<()> {
    close_fds::set_fds_cloexec(3, &[]);
    rustix::process::setsid().context("setsid")?;
    limits::leave_behind()?;
    let (ready, notify) = rustix::pipe::pipe()?;
    rustix::io::fcntl_setfd(&ready, rustix::io::FdFlags::CLOEXEC)?;
    let mut arguments: Vec<OsString> = vec!["--dir".into(), args.dir.clone().into()];
    arguments.extend(["--idle-exit".into(), IDLE_EXIT_S.to_string().into()]);
    arguments.extend(["--ready-fd".into(), notify.as_raw_fd().to_string().into()]);
    if let Some(config) = &args.config {
        arguments.extend(["--config".into(), config.into()]);
    }
    Command::new(&args.daemon)
        .args(arguments)
        .env_remove("LD_PRELOAD")
        // The program's to tell: whoever is told there would take the program to be ready.
        .env_remove("NOTIFY_SOCKET")
        .current_dir("/")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| limits::no_process(error, &args.daemon.display().to_string()))?;
    drop(notify);
    if !comes(&ready, READY_S)? {
        bail!("viaductd was started but did not become ready within {READY_S} seconds");
    }
    let mut word = [0; MAX_WORD];
    let len = rustix::io::read(&ready, &mut word[..])?;
    let word = word.get(..len).unwrap_or_default();
    if word.first().is_some_and(|first| *first != b'0') || matches!(query(&args.dir), Answer::Stats(_)) {
        return Ok(());
    }
    match String::from_utf8_lossy(word.get(1..).unwrap_or_default()).trim() {
        "" => bail!(
            "viaductd exited at once; run `{} --dir {}` to see why",
            args.daemon.display(),
            args.dir.display()
        ),
        reason => bail!("viaductd could not start: {reason}"),
    }
}
