//! What viaductd may give out, from the configuration files and the command line, in rising order.
//!
//! The files are those of `viaduct`; viaductd reads their `[daemon]` table. What else they say is `viaduct`'s to judge,
//! but for the names: a table that is misspelt sets nothing.

use crate::args::Args;
use crate::registry::Limits;
use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::path::{Path, PathBuf};
use toml::Spanned;
use viaduct_control::runtime;
use viaduct_settings::SYSTEM_FILE;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    daemon: Table,
    #[serde(rename = "path")]
    _path: Option<IgnoredAny>,
    #[serde(rename = "spin")]
    _spin: Option<IgnoredAny>,
    #[serde(rename = "offer")]
    _offer: Option<IgnoredAny>,
    dir: Option<Spanned<PathBuf>>,
    #[serde(rename = "rules")]
    _rules: Option<IgnoredAny>,
}

/// The `[daemon]` table.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    /// Most segments one user may hold.
    segments_per_user: Option<u64>,
    /// Bytes to which one user's segments may grow.
    memory_per_user: Option<u64>,
    /// Most offers of one user that may wait for their peer.
    offers_per_user: Option<u64>,
    /// Most processes of one user that may be connected.
    processes_per_user: Option<usize>,
    /// Never attach the BPF program.
    same_user: Option<bool>,
}

/// What one file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Layer {
    table: Table,
    dir: Option<PathBuf>,
}

/// What holds after all sources have been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    /// The runtime directory, if a source names one.
    pub(crate) dir: Option<PathBuf>,
    pub(crate) limits: Limits,
    pub(crate) processes_per_user: usize,
    pub(crate) same_user: bool,
}

impl Table {
    fn over(self, below: Self) -> Self {
        Self {
            segments_per_user: self.segments_per_user.or(below.segments_per_user),
            memory_per_user: self.memory_per_user.or(below.memory_per_user),
            offers_per_user: self.offers_per_user.or(below.offers_per_user),
            processes_per_user: self.processes_per_user.or(below.processes_per_user),
            same_user: self.same_user.or(below.same_user),
        }
    }

    fn decide(self, dir: Option<PathBuf>) -> Decided {
        Decided {
            dir,
            limits: Limits {
                segments: self.segments_per_user.unwrap_or(65536),
                memory: self.memory_per_user.unwrap_or(2 << 40),
                offers: self.offers_per_user.unwrap_or(32768),
            },
            processes_per_user: self.processes_per_user.unwrap_or(1024),
            same_user: self.same_user.unwrap_or(false),
        }
    }
}

/// Reads every source.
///
/// # Errors
/// A file that cannot be read or says what it must not, with its name and line.
pub(crate) fn decide(args: &Args) -> anyhow::Result<Decided> {
    let mut layer = Layer {
        table: Table {
            segments_per_user: args.segments_per_user,
            memory_per_user: args.memory_per_user,
            same_user: args.same_user.then_some(true),
            ..Table::default()
        },
        dir: args.dir.clone().or_else(|| variable(runtime::DIR_VARIABLE)),
    };
    if let Some(path) = args.config.clone().or_else(|| variable("VIADUCT_CONFIG")) {
        layer = layer.over(read(&path)?.ok_or_else(|| anyhow!("{}: no such file", path.display()))?);
    }
    let user_file = viaduct_settings::user_file(|name| std::env::var_os(name));
    let user_file = user_file.filter(|path| {
        let closed = viaduct_settings::is_closed(path);
        if closed {
            tracing::warn!("{}: not this user's to read, so it is left out", path.display());
        }
        !closed
    });
    for path in user_file.into_iter().chain([PathBuf::from(SYSTEM_FILE)]) {
        layer = layer.over(read(&path)?.unwrap_or_default());
    }
    Ok(layer.table.decide(layer.dir))
}

impl Layer {
    fn over(self, below: Self) -> Self {
        Self {
            table: self.table.over(below.table),
            dir: self.dir.or(below.dir),
        }
    }
}

/// A variable that names a file; an empty one names none.
fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name)?;
    (!value.is_empty()).then(|| PathBuf::from(value))
}

fn read(path: &Path) -> anyhow::Result<Option<Layer>> {
    let Some(text) = viaduct_settings::text(path).with_context(|| path.display().to_string())? else {
        return Ok(None);
    };
    match parse(&text) {
        Ok(layer) => Ok(Some(layer)),
        // FILE:LINE: as `viaduct` says it.
        Err(error) => bail!("{}:{error}", path.display()),
    }
}

/// Errors begin with the line.
fn parse(text: &str) -> anyhow::Result<Layer> {
    let line = |at: usize| text.get(..at).unwrap_or(text).matches('\n').count() + 1;
    let file: File = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        anyhow!("{}: {}", line(at), error.message())
    })?;
    if let Some(dir) = file.dir.as_ref().filter(|dir| !dir.get_ref().is_absolute()) {
        bail!("{}: dir: expected an absolute path", line(dir.span().start));
    }
    Ok(Layer {
        table: file.daemon,
        dir: file.dir.map(Spanned::into_inner),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_an_error_that_names_the_line() {
        let error = parse("path = \"auto\"\n\n[daemon]\nsegments = 3\n")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("4:") && error.contains("segments"), "{error}");
        let error = parse("path = \"auto\"\n[deamon]\n").unwrap_err().to_string();
        assert!(error.starts_with("2:") && error.contains("deamon"), "{error}");
    }

    #[test]
    fn what_concerns_programs_is_left_to_viaduct() {
        let layer = parse("path = \"tcp\"\nspin = \"auto\"\noffer = \"now\"\n[[rules]]\naction = \"tcp\"\n[daemon]\nmemory_per_user = 5\n").unwrap();
        assert_eq!((layer.table.memory_per_user, layer.dir), (Some(5), None));
    }

    #[test]
    fn the_directory_is_absolute() {
        let dir = |text| parse(text).map(|layer| layer.dir);
        assert_eq!(dir("dir = '/d'\n").unwrap(), Some(PathBuf::from("/d")));
        let error = dir("\ndir = 'd'\n").unwrap_err().to_string();
        assert!(error.starts_with("2:") && error.contains("absolute"), "{error}");
    }

    #[test]
    fn the_higher_source_decides() {
        let table = |segments_per_user, memory_per_user| Table {
            segments_per_user,
            memory_per_user,
            ..Table::default()
        };
        let decided = table(Some(1), None).over(table(Some(2), Some(3))).decide(None);
        assert_eq!((decided.limits.segments, decided.limits.memory), (1, 3));
    }
}
