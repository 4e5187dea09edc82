//! What the user wants, from the configuration files, the environment and the command line, in rising order.
//!
//! A file is read strictly: an unknown key, a value of the wrong kind or a rule without sense is an error that names
//! the file and the line, because a setting that silently does nothing is worse than none.

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, SeqAccess, Visitor};
use std::env;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use viaduct_control::policy::{self, Policy};
use viaduct_control::runtime;
use viaduct_settings::SYSTEM_FILE;

macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
        #[serde(try_from = "String")]
        pub(crate) enum $name { $($(#[$variant_meta])* $variant),* }

        impl $name {
            /// As the preload reads it.
            pub(crate) fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(word: String) -> Result<Self, String> {
                word_of(&word)
            }
        }
    };
}

choice! {
    /// Which paths may be used.
    PathChoice {
        /// The fastest there is
        Auto = "auto",
        /// Plain TCP only
        Tcp = "tcp",
        /// Shared memory wherever possible, without waiting for a connection to prove worth it
        Shm = "shm",
    }
}

choice! {
    /// Whether a waiter polls before it sleeps.
    SpinChoice {
        /// As long as it pays off
        Auto = "auto",
        /// Sleep at once: least CPU time
        Never = "never",
        /// Poll for up to 100 µs in each wait, whoever else wants the processor: least latency
        Always = "always",
    }
}

choice! {
    /// When a connection is offered.
    OfferChoice {
        /// Once it has shown itself worth it
        Auto = "auto",
        /// At the first byte
        Now = "now",
        /// At once, and connect and accept wait up to 50 ms for the outcome; for tests
        Wait = "wait",
    }
}

/// One source of settings; what it does not mention is `None`.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    /// Which paths may be used.
    pub(crate) path: Option<PathChoice>,
    /// Whether a waiter polls.
    pub(crate) spin: Option<SpinChoice>,
    /// When connections are offered.
    pub(crate) offer: Option<OfferChoice>,
    /// Runtime directory.
    pub(crate) dir: Option<PathBuf>,
    /// Rules as the preload reads them, in the order in which they are tried.
    pub(crate) rules: Vec<String>,
}

/// Everything decided.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Which paths may be used.
    pub(crate) path: PathChoice,
    /// Whether a waiter polls.
    pub(crate) spin: SpinChoice,
    /// When connections are offered.
    pub(crate) offer: OfferChoice,
    /// Runtime directory, absolute and without symbolic links.
    pub(crate) dir: PathBuf,
    /// Rules as the preload reads them, separated by `;`.
    pub(crate) rules: String,
    /// The file given with `--config`.
    pub(crate) config: Option<Named>,
}

/// A configuration file that has been named and read.
#[derive(Debug)]
pub(crate) struct Named {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// What it held, of a pipe, which nobody can read again.
    pub(crate) text: Option<String>,
}

impl Settings {
    /// Puts the machine's file, the user's, `config`, the environment and `flags` on top of each other.
    ///
    /// # Errors
    /// The first source that does not make sense.
    pub(crate) fn resolve(flags: Layer, config: Option<PathBuf>) -> Result<Self> {
        let mut layers = vec![flags, environment()?];
        let config = match config {
            None => None,
            Some(path) => {
                let text = text_of(&path)?.ok_or_else(|| anyhow!("{}: no such file", path.display()))?;
                layers.push(parse(&path, &text)?);
                let text = viaduct_settings::is_pipe(&path).then_some(text);
                Some(Named { path, text })
            }
        };
        let user_file = viaduct_settings::user_file(|name| env::var_os(name));
        if let Some(path) = user_file.filter(|path| !viaduct_settings::is_closed(path)) {
            layers.extend(read(&path)?);
        }
        layers.extend(read(Path::new(SYSTEM_FILE))?);
        // The first layer that has an answer decides; of the rules the first that matches, so higher layers go first.
        let mut rules: Vec<&str> = Vec::new();
        for rule in layers.iter().flat_map(|layer| &layer.rules) {
            // A program under `viaduct run` that itself uses `viaduct run` brings its rules along in the environment.
            if !rules.contains(&rule.as_str()) {
                rules.push(rule);
            }
        }
        let dir = layers.iter().find_map(|layer| layer.dir.clone());
        Ok(Self {
            path: layers.iter().find_map(|layer| layer.path).unwrap_or(PathChoice::Auto),
            spin: layers.iter().find_map(|layer| layer.spin).unwrap_or(SpinChoice::Auto),
            offer: layers.iter().find_map(|layer| layer.offer).unwrap_or(OfferChoice::Auto),
            dir: canonical(&dir.unwrap_or_else(default_dir))?,
            rules: rules.join(";"),
            config,
        })
    }

    /// The variables that tell the preload.
    pub(crate) fn variables(&self) -> [(&'static str, &str); 4] {
        [
            (policy::PATH_VARIABLE, self.path.as_str()),
            (policy::SPIN_VARIABLE, self.spin.as_str()),
            (policy::OFFER_VARIABLE, self.offer.as_str()),
            (policy::RULES_VARIABLE, &self.rules),
        ]
    }

    /// What the preload in a program named `program` will make of these settings.
    ///
    /// # Errors
    /// Nothing: more rules apply to the program than it holds.
    pub(crate) fn policy(&self, program: &str) -> Result<Policy> {
        let variables = self.variables();
        Policy::parse(program, |name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
        })
        .map_err(|error| anyhow!("{error}"))
    }
}

/// The configuration file on top of the machine's and the user's that the environment names.
pub(crate) fn named_file() -> Option<PathBuf> {
    let named = env::var_os("VIADUCT_CONFIG").filter(|path| !path.is_empty())?;
    Some(PathBuf::from(named))
}

/// The runtime directory, where only that is needed: `flag`, else as `viaduct run` without options finds it.
///
/// # Errors
/// As [`Settings::resolve`].
pub(crate) fn runtime_dir(flag: Option<PathBuf>) -> Result<PathBuf> {
    match flag {
        Some(dir) => canonical(&dir),
        None => Ok(Settings::resolve(Layer::default(), named_file())?.dir),
    }
}

/// Reads a file that holds nothing but rules.
///
/// # Errors
/// It cannot be read, or does not make sense.
pub(crate) fn read_rules(path: &Path) -> Result<Vec<String>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct RulesFile {
        #[serde(default)]
        rules: RuleTables,
    }
    let text = text_of(path)?.ok_or_else(|| anyhow!("--rules {}: no such file", path.display()))?;
    let file: RulesFile = toml::from_str(&text).map_err(|error| located(path, &text, &error))?;
    rule_texts(path, &text, file.rules)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    path: Option<PathChoice>,
    spin: Option<SpinChoice>,
    offer: Option<OfferChoice>,
    dir: Option<Spanned<PathBuf>>,
    #[serde(default)]
    rules: RuleTables,
    #[serde(rename = "daemon")]
    _daemon: Option<DaemonTable>,
}

/// What viaductd takes from the same files; checked here as well, because nobody sees what a viaductd started on demand
/// says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DaemonTable {
    #[serde(rename = "segments_per_user")]
    _segments_per_user: Option<u64>,
    #[serde(rename = "memory_per_user")]
    _memory_per_user: Option<u64>,
    #[serde(rename = "offers_per_user")]
    _offers_per_user: Option<u64>,
    #[serde(rename = "processes_per_user")]
    _processes_per_user: Option<u64>,
    #[serde(rename = "same_user")]
    _same_user: Option<bool>,
}

#[derive(Default)]
struct RuleTables(Vec<RuleTable>);

impl<'de> Deserialize<'de> for RuleTables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tables;
        impl<'de> Visitor<'de> for Tables {
            type Value = RuleTables;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("`[[rules]]`, in double brackets, above each rule")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, tables: A) -> Result<RuleTables, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(tables)).map(RuleTables)
            }
        }
        deserializer.deserialize_seq(Tables)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    action: Spanned<String>,
    program: Option<Spanned<String>>,
    addr: Option<Spanned<String>>,
    port: Option<Spanned<Ports>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a port, 0 to 65535, or a range as in \"6379-6380\"")]
enum Ports {
    One(u16),
    Range(String),
}

/// `Ok(None)`: there is no such file.
fn text_of(path: &Path) -> Result<Option<String>> {
    viaduct_settings::text(path).with_context(|| path.display().to_string())
}

/// `Ok(None)`: there is no such file.
fn read(path: &Path) -> Result<Option<Layer>> {
    text_of(path)?.map(|text| parse(path, &text)).transpose()
}

/// What the file at `path`, which holds `text`, says.
fn parse(path: &Path, text: &str) -> Result<Layer> {
    let file: File = toml::from_str(text).map_err(|error| located(path, text, &error))?;
    let dir = match file.dir {
        Some(dir) if !dir.get_ref().is_absolute() => {
            let line = line_of(text, &dir.span());
            bail!("{}:{line}: dir: expected an absolute path", path.display());
        }
        dir => dir.map(Spanned::into_inner),
    };
    Ok(Layer {
        path: file.path,
        spin: file.spin,
        offer: file.offer,
        dir,
        rules: rule_texts(path, text, file.rules)?,
    })
}

fn rule_texts(path: &Path, text: &str, tables: RuleTables) -> Result<Vec<String>> {
    tables
        .0
        .into_iter()
        .map(|table| {
            rule_text(table).map_err(|(span, error)| {
                let line = line_of(text, &span);
                error.context(format!("{}:{line}", path.display()))
            })
        })
        .collect()
}

/// A rule as the preload reads it; on errors, where the file says what makes no sense.
fn rule_text(table: RuleTable) -> Result<String, (Range<usize>, anyhow::Error)> {
    let port = table.port.map(|port| {
        let span = port.span();
        match port.into_inner() {
            Ports::One(port) => (span, port.to_string()),
            Ports::Range(range) => (span, range),
        }
    });
    let text = |value: Spanned<String>| (value.span(), value.into_inner());
    let conditions = [
        ("program", table.program.map(text)),
        ("addr", table.addr.map(text)),
        ("port", port),
    ];
    let (span, mut rule) = text(table.action);
    check_rules(&rule).map_err(|error| (span, error))?;
    for (key, value) in conditions {
        if let Some((span, value)) = value {
            if value.is_empty() {
                return Err((span, anyhow!("{key} is empty: leave it out where a rule is for any")));
            }
            if value.contains([',', ';', '\0']) {
                return Err((span, anyhow!("{key}: a rule cannot contain ',' or ';'")));
            }
            rule = format!("{rule},{key}={value}");
            check_rules(&rule).map_err(|error| (span, error))?;
        }
    }
    Ok(rule)
}

fn check_rules(rules: &str) -> Result<()> {
    // The name is one that no rule is written for, so that the limit of rules per program does not count here.
    Policy::parse("\u{1}", |name| (name == policy::RULES_VARIABLE).then_some(rules))
        .map(drop)
        .map_err(|error| anyhow!("expected {}, found '{}'", error.expected, error.found))
}

fn environment() -> Result<Layer> {
    let rules = variable(policy::RULES_VARIABLE)?.unwrap_or_default();
    check_rules(&rules).context(policy::RULES_VARIABLE)?;
    Ok(Layer {
        path: choice(policy::PATH_VARIABLE)?,
        spin: choice(policy::SPIN_VARIABLE)?,
        offer: choice(policy::OFFER_VARIABLE)?,
        dir: env::var_os(runtime::DIR_VARIABLE)
            .filter(|dir| !dir.is_empty())
            .map(PathBuf::from),
        rules: rules
            .split(';')
            .map(|rule| rule.trim().to_owned())
            .filter(|rule| !rule.is_empty())
            .collect(),
    })
}

fn choice<T: clap::ValueEnum>(name: &str) -> Result<Option<T>> {
    match variable(name)?.as_deref() {
        None | Some("") => Ok(None),
        Some(word) => word_of(word).map(Some).map_err(|error| anyhow!("{name}: {error}")),
    }
}

fn word_of<T: clap::ValueEnum>(word: &str) -> Result<T, String> {
    T::from_str(word, false).map_err(|_| {
        let known: Vec<_> = T::value_variants()
            .iter()
            .filter_map(|variant| Some(variant.to_possible_value()?.get_name().to_owned()))
            .collect();
        let known = known.join(", ");
        match word {
            "" => format!("an empty word is none of {known}: leave the setting out to have its default"),
            _ => format!("{word:?} is none of {known}"),
        }
    })
}

fn variable(name: &str) -> Result<Option<String>> {
    match env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(error).with_context(|| name.to_owned()),
    }
}

fn default_dir() -> PathBuf {
    runtime::default_dir(rustix::process::geteuid().as_raw(), |name| env::var_os(name))
}

/// `dir`, which need not exist yet, absolute and without symbolic links: every process of an instance must spell it
/// alike.
fn canonical(dir: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(dir).with_context(|| format!("runtime directory {}", dir.display()))?;
    for ancestor in absolute.ancestors() {
        if let Ok(real) = ancestor.canonicalize() {
            let rest = absolute.strip_prefix(ancestor)?;
            return Ok(if rest.as_os_str().is_empty() {
                real
            } else {
                real.join(rest)
            });
        }
    }
    Ok(absolute)
}

fn located(path: &Path, text: &str, error: &toml::de::Error) -> anyhow::Error {
    let line = line_of(text, &error.span().unwrap_or(0..0));
    anyhow!("{}:{line}: {}", path.display(), error.message())
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
}
