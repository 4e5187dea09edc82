//! A viaductd of the benchmark's own, in a directory that goes with it.

use crate::daemon::{self, Answer};
use crate::locate;
use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use viaduct_control::runtime::instance_id;

/// How long viaductd may take to answer.
const READY: Duration = Duration::from_secs(5);

/// A runtime directory and its viaductd; both end when this is dropped.
#[derive(Debug)]
pub(crate) struct Instance {
    dir: tempfile::TempDir,
    daemon: Child,
}

impl Instance {
    /// Starts one.
    ///
    /// # Errors
    /// viaductd is not installed, or does not answer.
    pub(crate) fn start() -> Result<Self> {
        let daemon = locate::daemon().context("viaductd is not installed beside viaduct")?;
        if locate::preload().is_none() {
            bail!("{} is not installed beside viaduct", locate::PRELOAD_NAME);
        }
        let dir = tempfile::Builder::new().prefix("viaduct-bench-").tempdir()?;
        remove_at_signals(dir.path().to_owned())?;
        let mut instance = Self {
            // As all that is started here, it ends with this process, however this ends.
            daemon: Command::new(locate::OWN)
                .args(["bench-peer", "exec", "--"])
                .arg(&daemon)
                .arg("--dir")
                .arg(dir.path())
                .env_remove("LD_PRELOAD")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .with_context(|| daemon.display().to_string())?,
            dir,
        };
        let mut said = instance.daemon.stderr.take();
        let start = Instant::now();
        while !matches!(daemon::query(instance.dir()), Answer::Stats(_)) {
            if let Some(status) = instance.daemon.try_wait()? {
                let mut log = String::new();
                if let Some(said) = &mut said {
                    said.read_to_string(&mut log)?;
                }
                // Before it is when.
                let why = log.trim_end().rsplit_once("ERROR ").map(|(_, why)| why);
                bail!("viaductd exited at once: {}", why.unwrap_or(&status.to_string()));
            }
            if start.elapsed() > READY {
                bail!("viaductd does not answer");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(instance)
    }

    /// Its runtime directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its number in the counters of its programs.
    pub(crate) fn id(&self) -> u64 {
        instance_id(self.dir().as_os_str().as_encoded_bytes())
    }

    /// viaductd's process.
    pub(crate) fn daemon_pid(&self) -> u32 {
        self.daemon.id()
    }

    /// A new directory for files of a program, gone with the instance.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn scratch(&self) -> Result<PathBuf> {
        Ok(tempfile::Builder::new().prefix("run-").tempdir_in(self.dir())?.keep())
    }
}

/// An interrupted benchmark removes its directory; its programs end with this process, as they do however it ends. What
/// the user has it ignore (`nohup`) it goes on ignoring.
fn remove_at_signals(dir: PathBuf) -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let heeded = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(heeded)?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let _ = std::fs::remove_dir_all(&dir);
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It holds nothing that is worth a farewell.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
