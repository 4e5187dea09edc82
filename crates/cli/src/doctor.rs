//! `viaduct doctor`: what this machine allows, and what follows.

use crate::config::{self, Layer, Settings};
use crate::daemon::{self, Answer};
use crate::locate;
use crate::proc::printable;
use crate::terminal::{self, Style, styled};
use anyhow::Result;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{Resource, geteuid, getrlimit};
use serde::Serialize;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use viaduct_control::message::{MODE_SAME_USER, MODE_TICKET, Stats};

mod directory;
mod processors;
mod search;

/// Check what this machine allows
///
/// Looks at the kernel, privileges, limits, the installation and viaductd, and says of each whether it is as Viaduct
/// wants it and what follows if not. A warning costs speed or reach; a failure means that programs run as plain TCP.
#[derive(Debug, clap::Args)]
#[command(override_usage = "viaduct doctor [OPTIONS]", after_long_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Print JSON: an array of objects with check, level (ok, warn, fail), finding and consequence
    #[arg(long)]
    json: bool,
    /// Runtime directory of the instance to look at
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
EXIT STATUS
    0   nothing failed
    1   a check failed";

/// Connections that one process should be able to hold.
const MANY_CONNECTIONS: u64 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    level: Level,
    finding: String,
    /// Empty where all is well.
    consequence: String,
}

impl Check {
    fn new(check: &'static str, level: Level, finding: impl Into<String>, consequence: impl Into<String>) -> Self {
        Self {
            check,
            level,
            finding: finding.into(),
            consequence: consequence.into(),
        }
    }

    fn ok(check: &'static str, finding: impl Into<String>) -> Self {
        Self::new(check, Level::Ok, finding, "")
    }
}

/// Makes every check and prints what it found.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut checks = machine();
    checks.push(preload());
    match configuration(args.dir.clone()) {
        Ok(dir) => {
            checks.push(Check::ok("configuration", "no errors"));
            checks.push(directory::check(&dir));
            checks.push(viaductd(&dir));
        }
        Err(error) => checks.push(Check::new(
            "configuration",
            Level::Fail,
            format!("{error:#}"),
            "`viaduct run` starts no program until this is corrected.",
        )),
    }
    let failed = checks.iter().any(|check| check.level == Level::Fail);
    let text = match args.json {
        true => serde_json::to_string_pretty(&checks)? + "\n",
        false => checks.iter().map(line).collect(),
    };
    terminal::print(&text)?;
    Ok(ExitCode::from(u8::from(failed)))
}

/// The runtime directory, as `viaduct run` finds it: one that is given does not make right what the files say.
fn configuration(dir: Option<PathBuf>) -> Result<PathBuf> {
    let flags = Layer {
        dir,
        ..Layer::default()
    };
    Ok(Settings::resolve(flags, config::named_file())?.dir)
}

fn line(check: &Check) -> String {
    let level = match check.level {
        Level::Ok => styled("OK  ", Style::Green),
        Level::Warn => styled("WARN", Style::Yellow),
        Level::Fail => styled("FAIL", Style::Red),
    };
    let mut text = format!("{level}  {:<18} {}\n", check.check, check.finding);
    if !check.consequence.is_empty() {
        text.push_str(&format!("      {:<18} {}\n", "", check.consequence));
    }
    text
}

/// How viaductd is, in a sentence.
pub(crate) fn describe(stats: &Stats) -> String {
    let mode = match stats.mode {
        MODE_TICKET => "kernel tickets (all users and network namespaces)".to_owned(),
        MODE_SAME_USER => {
            let text = "same-user matching (one user's programs in one network namespace)";
            let reason: Vec<u8> = stats.mode_reason.into_iter().take_while(|byte| *byte != 0).collect();
            match reason.is_empty() {
                true => text.to_owned(),
                false => format!("{text}, since: {}", printable(&reason)),
            }
        }
        _ => "a mode unknown to this version".to_owned(),
    };
    format!(
        "running as process {} for {}, {mode}; {} programs, {} segments of at most {} per user ({} if all grew), {} offers \
         waiting, {} pairs made, {} offers refused",
        stats.pid,
        terminal::duration(stats.uptime_s as f64),
        stats.processes,
        stats.segments,
        stats.segments_per_user,
        terminal::bytes(stats.segment_bytes),
        stats.offers_waiting,
        stats.pairs,
        stats.refused,
    )
}

fn machine() -> Vec<Check> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version = kernel_version(&release);
    let mut checks = vec![
        kernel(&release, version),
        memfds(),
        tickets(),
        namespace(),
        descriptors(),
        mappings(),
        overcommit(),
    ];
    checks.extend(processors::checks());
    checks.extend(search::checks());
    checks
}

fn kernel_version(release: &str) -> (u32, u32) {
    let mut parts = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn kernel(release: &str, version: (u32, u32)) -> Check {
    let finding = format!("Linux {release}");
    let advice = match version {
        (6, 4..) | (7.., _) => return Check::ok("kernel", finding),
        (5, 14..) | (6, _) => {
            "Before Linux 6.4 the kernel may have no ticket; then connections are matched by user only."
        }
        _ => "Before Linux 5.14 there is no kernel ticket, and ends in different network namespaces may look alike.",
    };
    Check::new("kernel", Level::Warn, finding, advice)
}

fn memfds() -> Check {
    let sealed = rustix::fs::memfd_create("viaduct-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|fd| rustix::fs::ftruncate(&fd, 4096).map(|()| fd))
        .and_then(|fd| rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK));
    match sealed {
        Ok(()) => Check::ok("shared memory", "sealed memfds work"),
        Err(error) => Check::new(
            "shared memory",
            Level::Fail,
            format!("a sealed memfd cannot be made: {}", std::io::Error::from(error)),
            "There is nothing to put bytes into; all programs run as plain TCP. See the sysctl vm.memfd_noexec and seccomp filters.",
        ),
    }
}

fn tickets() -> Check {
    const NET_ADMIN: u32 = 12;
    const SYS_ADMIN: u32 = 21;
    const BPF: u32 = 39;
    let capabilities = capabilities();
    let has = |number: u32| capabilities >> number & 1 == 1;
    let missing = [
        (
            !Path::new("/proc/sys/kernel").exists(),
            "/proc/sys is not there to tell what the kernel can do",
        ),
        (
            Path::new("/proc/sys/kernel").exists() && !Path::new("/proc/sys/kernel/unprivileged_bpf_disabled").exists(),
            "the kernel has no bpf system call",
        ),
        (
            !has_getsockopt_hook(),
            "the kernel has no control group hook on getsockopt",
        ),
        (cgroup2_mount().is_none(), "no cgroup2 file system is mounted"),
        (
            !(has(SYS_ADMIN) || has(BPF) && has(NET_ADMIN)),
            "this user may not load BPF programs (CAP_BPF and CAP_NET_ADMIN)",
        ),
    ];
    let missing: Vec<&str> = missing
        .into_iter()
        .filter_map(|(is_missing, what)| is_missing.then_some(what))
        .collect();
    if missing.is_empty() {
        let mount = cgroup2_mount().unwrap_or_default();
        return Check::ok(
            "kernel tickets",
            format!("BPF on getsockopt is possible (cgroup2 at {mount})"),
        );
    }
    Check::new(
        "kernel tickets",
        Level::Warn,
        missing.join("; "),
        "A viaductd started by this user serves this user only, and pairs only ends in one network namespace.",
    )
}

/// Effective capabilities as a bit mask.
fn capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Whether the kernel has the hook; where it hides its symbols, it is taken to have it.
fn has_getsockopt_hook() -> bool {
    match fs::read_to_string("/proc/kallsyms") {
        Ok(symbols) if !symbols.is_empty() => symbols.contains("__cgroup_bpf_run_filter_getsockopt"),
        _ => true,
    }
}

fn cgroup2_mount() -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        (after.split(' ').next()? == "cgroup2").then(|| before.split(' ').nth(4).map(str::to_owned))?
    })
}

fn namespace() -> Check {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let words: Vec<&str> = map.split_whitespace().collect();
    if words.is_empty() || words == ["0", "0", "4294967295"] {
        return Check::ok("user namespace", "the machine's own");
    }
    Check::new(
        "user namespace",
        Level::Warn,
        "not the machine's own",
        "viaductd here cannot load BPF programs; one on the host serves this namespace if its runtime directory is visible here.",
    )
}

fn descriptors() -> Check {
    let limit = getrlimit(Resource::Nofile);
    let show = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let finding = format!("{}, may be raised to {}", show(limit.current), show(limit.maximum));
    match limit.maximum {
        Some(most) if most < MANY_CONNECTIONS => Check::new(
            "descriptors",
            Level::Warn,
            finding,
            format!("A program cannot hold {MANY_CONNECTIONS} connections. Raise `ulimit -Hn`."),
        ),
        _ => Check::ok("descriptors", finding),
    }
}

fn mappings() -> Check {
    let Some(most) = sysctl("vm/max_map_count") else {
        return Check::new("mappings", Level::Warn, "vm.max_map_count cannot be read", "");
    };
    let finding = format!("vm.max_map_count is {most}; each accelerated connection takes one");
    // Programs have some thousand mappings of their own.
    if most >= 2 * MANY_CONNECTIONS {
        return Check::ok("mappings", finding);
    }
    Check::new(
        "mappings",
        Level::Warn,
        finding,
        format!("A program with {MANY_CONNECTIONS} accelerated connections runs out of them; the rest stay on TCP."),
    )
}

fn overcommit() -> Check {
    match sysctl("vm/overcommit_memory") {
        Some(2) => Check::new(
            "overcommit",
            Level::Warn,
            "vm.overcommit_memory is 2 (never)",
            "Segments count against the commit limit as they fill; when it is reached, connections stay on TCP.",
        ),
        Some(mode) => Check::ok("overcommit", format!("vm.overcommit_memory is {mode}")),
        None => Check::new("overcommit", Level::Warn, "vm.overcommit_memory cannot be read", ""),
    }
}

fn sysctl(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/{name}"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn preload() -> Check {
    const NAME: &str = "library";
    let Some(library) = locate::preload() else {
        return Check::new(
            NAME,
            Level::Fail,
            format!("{} was not found{}", locate::PRELOAD_NAME, locate::lost()),
            format!(
                "All programs run as plain TCP. Install it beside viaduct or in ../lib/viaduct, or set {}.",
                locate::PRELOAD_VARIABLE
            ),
        );
    };
    let shown = library.display().to_string();
    if library
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| matches!(byte, b' ' | b':'))
    {
        return Check::new(
            NAME,
            Level::Fail,
            shown,
            "The loader cannot preload from a path with a space or colon; all programs run as plain TCP.",
        );
    }
    // The loader complains on standard error about a library that it cannot load, and goes on.
    let entry = locate::preload_entry(&library);
    match Command::new(locate::OWN)
        .arg("--version")
        .env("LD_PRELOAD", entry)
        .output()
    {
        Ok(output) if output.status.success() && output.stderr.is_empty() => Check::ok(NAME, format!("{shown} loads")),
        Ok(output) => Check::new(
            NAME,
            Level::Fail,
            format!("{shown}: {}", String::from_utf8_lossy(&output.stderr).trim()),
            "All programs run as plain TCP.",
        ),
        Err(error) => Check::new(NAME, Level::Fail, format!("{shown}: {error}"), "It could not be tried."),
    }
}

fn viaductd(dir: &Path) -> Check {
    const NAME: &str = "viaductd";
    match daemon::query(dir) {
        Answer::Stats(stats) => match daemon::other_version(&stats) {
            None => Check::ok(NAME, describe(&stats)),
            Some(difference) => Check::new(
                NAME,
                Level::Fail,
                format!("running as process {}, but {difference}", stats.pid),
                "Programs stay on TCP. Restart viaductd, then the programs.",
            ),
        },
        Answer::Absent if fs::metadata(dir).is_ok_and(|metadata| metadata.uid() != geteuid().as_raw()) => Check::new(
            NAME,
            Level::Fail,
            "none runs, and this user can start none in another's directory",
            "All programs run as plain TCP. Have its owner start viaductd (root: `systemctl enable --now viaductd`), or choose another directory.",
        ),
        Answer::Absent => match locate::daemon() {
            Some(path) => Check::ok(NAME, format!("none runs; `viaduct run` starts {}", path.display())),
            None => Check::new(
                NAME,
                Level::Fail,
                "none runs, and none is installed beside viaduct",
                format!(
                    "All programs run as plain TCP. Install it, or set {}.",
                    locate::DAEMON_VARIABLE
                ),
            ),
        },
        Answer::Closed(error) => Check::new(
            NAME,
            Level::Fail,
            error,
            "New connections stay on TCP. Choose another directory, or change what closes this one.",
        ),
        Answer::Failed(error) => Check::new(
            NAME,
            Level::Fail,
            error,
            "New connections stay on TCP. Restart viaductd; running connections go on.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_without_tickets_are_warned_of() {
        let advice = |release: &str| kernel(release, kernel_version(release)).consequence;
        assert!(advice("5.13.1").contains("5.14"));
        assert!(advice("5.14.0").contains("6.4"));
        assert!(advice("6.3.9").contains("6.4"));
        assert!(advice("6.4").is_empty() && advice("7.0").is_empty());
    }

    #[test]
    fn releases_are_understood() {
        assert_eq!(kernel_version("6.18.44-fc-v657"), (6, 18));
        assert_eq!(kernel_version("5.4"), (5, 4));
        assert_eq!(kernel_version("strange"), (0, 0));
    }
}
