//! How far a measurement is, on standard error.

use crate::terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A bar for a person, a line a step for a file.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    terminal: bool,
    steps: u64,
}

impl Progress {
    /// For `steps` steps.
    pub(crate) fn new(steps: usize) -> Self {
        let steps = steps as u64;
        let terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("[{elapsed_precise}] {bar:30} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        // Seldom, since drawing takes processor time from what is measured.
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar, terminal, steps }
    }

    /// The next step begins.
    pub(crate) fn step(&self, what: &str) {
        if self.terminal {
            self.bar.set_message(what.to_owned());
        } else {
            terminal::say(format_args!(
                "viaduct: {}/{} {what}",
                self.bar.position() + 1,
                self.steps
            ));
        }
    }

    /// The step is over.
    pub(crate) fn done(&self) {
        self.bar.inc(1);
    }

    /// Something to be said meanwhile.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| terminal::say(format_args!("viaduct: {line}")));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
