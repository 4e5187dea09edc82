//! Whether a process runs under Viaduct, and why not.

use crate::elf::{self, Obstacle};
use crate::locate::PRELOAD_NAME;
use crate::proc::{self, Kind, printable};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use viaduct_control::policy::{OFFER_VARIABLE, PATH_VARIABLE, Policy, RULES_VARIABLE, SPIN_VARIABLE};
use viaduct_control::runtime::DIR_VARIABLE;

/// How far Viaduct is in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The preload is mapped.
    Loaded,
    /// Not started with `viaduct run`; what would hinder it, if anything.
    Absent(Option<Obstacle>),
    /// Started with the preload, which did not come in; what hinders it, if that can be seen.
    NotEntered(Option<Obstacle>),
    /// The process may not be looked at.
    Hidden,
    /// It is a thread of the kernel's.
    Kernel,
    /// It has ended.
    Ended,
}

/// Looks at process `pid`.
pub(crate) fn of(pid: u32) -> Presence {
    let directory = PathBuf::from(format!("/proc/{pid}"));
    let maps = fs::read(directory.join("maps"));
    // Asked last: it may have ended as it was looked at.
    match proc::kind(pid) {
        Kind::Ended => return Presence::Ended,
        Kind::Kernel => return Presence::Kernel,
        Kind::Program => {}
    }
    let Ok(maps) = maps else {
        return Presence::Hidden;
    };
    if contains(&maps, PRELOAD_NAME.as_bytes()) {
        return Presence::Loaded;
    }
    let obstacle = elf::obstacle(&directory.join("exe")).ok().flatten();
    match variable(pid, "LD_PRELOAD") {
        Some(value) if contains(value.as_encoded_bytes(), PRELOAD_NAME.as_bytes()) => Presence::NotEntered(obstacle),
        _ => Presence::Absent(obstacle),
    }
}

/// The runtime directory with which `pid` was started, if it was given one and may be looked at.
pub(crate) fn runtime_dir(pid: u32) -> Option<PathBuf> {
    variable(pid, DIR_VARIABLE)
        .map(PathBuf::from)
        .filter(|dir| Path::is_absolute(dir))
}

/// Which of the variables with which `pid` was started makes no sense to the preload in it, and why.
pub(crate) fn misspelt(pid: u32, program: &str) -> Option<String> {
    let values = [PATH_VARIABLE, SPIN_VARIABLE, OFFER_VARIABLE, RULES_VARIABLE]
        .map(|name| (name, variable(pid, name).and_then(|value| value.into_string().ok())));
    let lookup = |name| values.iter().find(|(known, _)| *known == name)?.1.as_deref();
    let error = Policy::parse(program, lookup).err()?;
    Some(printable(error.to_string().as_bytes()))
}

/// `name` in the environment with which `pid` was started.
fn variable(pid: u32, name: &str) -> Option<OsString> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(OsString::from_vec(value.to_vec()))
    })
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

impl Presence {
    /// Whether `viaduct run` may bring Viaduct in where it is not.
    pub(crate) fn may_be_changed(&self) -> bool {
        matches!(self, Self::Absent(None) | Self::Hidden)
    }

    /// One or two sentences on a process named `program`; nothing where Viaduct is in it.
    pub(crate) fn text(&self, program: &str) -> Option<String> {
        Some(match self {
            Self::Loaded => return None,
            Self::Absent(Some(obstacle)) => {
                format!("{program} does not run under Viaduct, and cannot: {}.", obstacle.text())
            }
            Self::Absent(None) => format!("{program} does not run under Viaduct. Start it with `viaduct run`."),
            Self::NotEntered(Some(obstacle)) => {
                format!(
                    "{program} was started under Viaduct but runs as plain TCP: {}.",
                    obstacle.text()
                )
            }
            Self::NotEntered(None) => format!(
                "{program} was started under Viaduct, but the library is not in it. See whether `viaduct doctor` can load it."
            ),
            Self::Kernel => format!("{program} is a thread of the kernel's, and no program."),
            Self::Ended => format!("{program} has ended, or its first thread has: nothing can be seen of it any more."),
            Self::Hidden => {
                format!("Whether {program} runs under Viaduct cannot be seen: this user may not look into it.")
            }
        })
    }
}
