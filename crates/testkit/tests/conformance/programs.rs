//! Compiling the programs of cases and running them.

use crate::Way;
use crate::transcript::{self, Transcripts};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use viaduct_control::counters::{self, Wanted, slot};
use viaduct_testkit::{Instance, Launch, Mode};

/// A case ends itself after 16 seconds, so only a hang of the harness lasts as long.
const PATIENCE: Duration = Duration::from_secs(180);

/// A program of cases.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) theme: &'static str,
    file: PathBuf,
}

/// Cases named in `CONFORMANCE_CASES`; none: all.
pub(crate) fn chosen() -> Vec<String> {
    let names = std::env::var("CONFORMANCE_CASES").unwrap_or_default();
    names
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The layout of the counters for C.
fn layout() -> String {
    let mut text = format!("#define COUNTERS_NAME \"{}\"\n", counters::MEMFD_NAME);
    let numbers = [
        ("COUNTERS_WORDS", counters::REGION_WORDS as u64),
        ("FIRST_SLOT", counters::slot_base(0) as u64),
        ("SLOT_WORDS", counters::SLOT_WORDS as u64),
        ("SLOTS_USED", counters::SLOTS_USED as u64),
        ("CONNECTION_WORD", slot::CONNECTION as u64),
        ("STATE_WORD", slot::STATE as u64),
        ("SWITCHES_WORD", slot::SWITCHES as u64),
        ("WANTED_WORD", slot::WANTED as u64),
        ("PATH_SHM", counters::Path::Shm as u64),
        ("WANT_AUTO", Wanted::Auto as u64),
        ("WANT_TCP", Wanted::Tcp as u64),
        ("WANT_SHM", Wanted::Shm as u64),
    ];
    for (name, number) in numbers {
        let _ = writeln!(text, "#define {name} {number}");
    }
    text
}

/// Compiles the cases of `theme`.
pub(crate) fn compile(instance: &Instance, theme: &'static str) -> Program {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/programs");
    std::fs::write(instance.scratch("layout.h"), layout()).unwrap();
    let file = instance.scratch(theme);
    let output = Command::new("cc")
        .args(["-O2", "-D_FORTIFY_SOURCE=2", "-Wall", "-Wextra", "-Werror", "-pthread"])
        // Cases make calls that are wrong on purpose, and set variables in one branch of a script that they use in
        // another.
        .args(["-Wno-stringop-overflow", "-Wno-maybe-uninitialized", "-Wno-nonnull"])
        .args(["-Wno-deprecated-declarations", "-Wno-unused-result", "-I"])
        .arg(instance.dir())
        .args(
            [theme, "play", "tools", "paths", "check", "../../programs/ends"]
                .map(|name| sources.join(format!("{name}.c"))),
        )
        .args(match theme {
            "requests" => Some("-laio"),
            "rings" => Some("-luring"),
            _ => None,
        })
        .arg("-o")
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Program { theme, file }
}

/// The two processes that play the cases of a program.
#[derive(Debug)]
pub(crate) struct Players<'a> {
    instance: &'a Instance,
    program: &'a Program,
}

impl<'a> Players<'a> {
    pub(crate) fn new(instance: &'a Instance, program: &'a Program) -> Self {
        Self { instance, program }
    }

    /// Plays every chosen case, or only those in `only`.
    pub(crate) fn play(&self, way: Way, only: &[String]) -> Transcripts {
        let meeting = self.instance.scratch(&format!("{}.sock", self.program.theme));
        let _ = std::fs::remove_file(&meeting);
        let start = |end: &str, accelerated: bool| {
            let mode = if accelerated {
                Mode::Accelerated(self.instance)
            } else {
                Mode::Native
            };
            let mut arguments = vec![end.to_owned(), meeting.display().to_string()];
            arguments.extend(way.is_fast().then(|| "fast".to_owned()));
            arguments.extend(way.storm.then(|| "storm=7".to_owned()));
            let chosen = if only.is_empty() { chosen() } else { only.to_vec() };
            arguments.extend(chosen.iter().map(|name| format!("only={name}")));
            Launch::new(mode, &self.program.file, arguments)
                .options(way.options)
                .spawn()
        };
        let far = start("far", way.far);
        let near = start("near", way.near);
        let near = near.finish(PATIENCE).success();
        let far = far.finish(PATIENCE).success();
        transcript::read(&near, &far)
    }
}
