//! Kernel TCP with the shortcut that BPF can give it: a rival, held up by a process of its own.

use crate::bench::program::{How, Launch, Program};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout};
use std::time::Duration;

/// How long the holder may take to end after it has refused.
const PATIENCE: Duration = Duration::from_secs(10);

/// A cgroup whose TCP connections are short-cut. It goes when this is dropped, or with this process.
#[derive(Debug)]
pub(crate) struct Sockmap {
    cgroup: PathBuf,
    // Closed first, which ends the holder.
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _holder: Program,
}

impl Sockmap {
    /// Makes it.
    ///
    /// # Errors
    /// Why this machine or this user may not.
    pub(crate) fn start() -> Result<Self> {
        let mut holder = Launch::rivals()?.arg("sockmap").spawn_piped()?;
        let orders = holder.input().context("no pipe")?;
        let mut answers = BufReader::new(holder.output().context("no pipe")?);
        let mut cgroup = String::new();
        if answers.read_line(&mut cgroup)? == 0 {
            holder.finish(PATIENCE)?;
            bail!("it ended at once");
        }
        Ok(Self {
            cgroup: cgroup.trim_end().into(),
            orders,
            answers,
            _holder: holder,
        })
    }

    /// Does `work` with programs started so that the connections between them are short-cut.
    ///
    /// # Errors
    /// Those of `work`; that no byte took the shortcut.
    pub(crate) fn with<T>(&mut self, work: impl FnOnce(How<'_>) -> Result<T>) -> Result<T> {
        let before = self.carried()?;
        let done = work(How::Within(&self.cgroup))?;
        ensure!(self.carried()? > before, "no byte took the shortcut");
        Ok(done)
    }

    /// Bytes that took the shortcut so far.
    fn carried(&mut self) -> Result<u64> {
        writeln!(self.orders)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        answer.trim_end().parse().context("its holder is gone")
    }
}
