//! The rules of the source tree: who may use whom, and how long a file may be.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use viaduct_testkit::binaries::workspace;

/// What each crate uses of ours, no more and no less. Imports point down only, and the command line never uses the
/// daemon.
const USES: &[(&str, &[&str])] = &[
    ("viaduct-channel", &[]),
    ("viaduct-control", &[]),
    ("viaduct-manual", &[]),
    ("viaduct-settings", &[]),
    ("viaduct-stream", &["viaduct-channel"]),
    (
        "viaduct-socket",
        &["viaduct-channel", "viaduct-stream", "viaduct-control"],
    ),
    ("viaduct-preload", &["viaduct-socket"]),
    ("viaduct-seek", &["viaduct-socket"]),
    (
        "viaduct-daemon",
        &[
            "viaduct-channel",
            "viaduct-control",
            "viaduct-manual",
            "viaduct-settings",
        ],
    ),
    // `bench` measures the raw channel beside the socket layer.
    (
        "viaduct-cli",
        &[
            "viaduct-control",
            "viaduct-manual",
            "viaduct-settings",
            "viaduct-channel",
            "viaduct-seek",
        ],
    ),
    // What is measured against stands alone, and nothing of the product uses it.
    ("viaduct-rivals", &[]),
    ("viaduct-testkit", &["viaduct-control"]),
];

/// Lines of Rust a file may have, its tests not counted.
const LONGEST_FILE: usize = 500;

/// Lines that a file of C, Python or shell may have; most are tests.
const LONGEST_PROGRAM: usize = 520;

/// Licences that a dependency may have, as `deny.toml` says too.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "MIT",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Zlib",
];

fn metadata(options: &[&str]) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(options)
        .current_dir(workspace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn imports_point_down() {
    let metadata = metadata(&["--no-deps"]);
    let allowed: BTreeMap<_, BTreeSet<_>> = USES
        .iter()
        .map(|(name, uses)| (*name, uses.iter().copied().collect()))
        .collect();
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let Some(expected) = allowed.get(name) else {
            wrong.push(format!("{name}: not in the table of this test"));
            continue;
        };
        let used: BTreeSet<_> = package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            // Tests may reach further than the product.
            .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
            .map(|dependency| dependency["name"].as_str().unwrap())
            .filter(|used| used.starts_with("viaduct-"))
            .collect();
        if used != *expected {
            wrong.push(format!("{name} uses {used:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether an SPDX expression, or the older form with slashes, leaves a choice that is allowed.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], "");
    let one = |licence: &str| LICENCES.contains(&licence.trim());
    // `AND` binds tighter; the few expressions with parentheses are alternatives joined by `AND`, which this reads
    // strictly.
    expression.split(" OR ").any(|all| all.split(" AND ").all(one)) && {
        let parts = expression.split(" AND ");
        parts.into_iter().all(|part| part.split(" OR ").any(one))
    }
}

#[test]
fn dependencies_are_free_to_use_and_come_from_the_registry() {
    let metadata = metadata(&["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 20);
    let wrong: Vec<String> = packages
        .iter()
        .filter_map(|package| {
            let name = package["name"].as_str().unwrap();
            let licence = package["license"].as_str().unwrap_or("none");
            let ours = package["source"].is_null() && name.starts_with("viaduct-");
            let registry = package["source"]
                .as_str()
                .is_some_and(|source| source.starts_with("registry+"));
            (!is_allowed(licence) || !(ours || registry)).then(|| format!("{name}: {licence}, {}", package["source"]))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What is quoted in the list `key` of `deny.toml`.
fn quoted_in(key: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(workspace().join("deny.toml")).unwrap();
    let list = text.split(&format!("\n{key} = [")).nth(1).unwrap();
    let list = list.split(']').next().unwrap();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// What `cargo deny check bans licenses` says, where it is not installed.
#[test]
fn nothing_that_is_banned_is_used_by_any_way() {
    let banned = quoted_in("deny");
    assert!(banned.contains("tokio"));
    let lock = std::fs::read_to_string(workspace().join("Cargo.lock")).unwrap();
    let names = lock.lines().filter_map(|line| line.strip_prefix("name = "));
    let used: Vec<_> = names.filter(|name| banned.contains(name.trim_matches('"'))).collect();
    assert!(used.is_empty(), "{used:?}");

    let metadata = metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().unwrap();
    let wildcards: Vec<_> = packages
        .iter()
        .flat_map(|package| package["dependencies"].as_array().unwrap())
        .filter(|dependency| dependency["req"] == "*" && dependency["path"].is_null())
        .map(|dependency| dependency["name"].as_str().unwrap())
        .collect();
    assert!(wildcards.is_empty(), "{wildcards:?}");

    let licences: BTreeSet<_> = LICENCES.iter().map(|&licence| licence.to_owned()).collect();
    assert_eq!(quoted_in("allow"), licences);
}

#[test]
fn crates_that_need_no_unsafe_code_forbid_it() {
    for source in [
        "control/src/lib.rs",
        "manual/src/lib.rs",
        "settings/src/lib.rs",
        "stream/src/lib.rs",
        "daemon/src/main.rs",
        "rivals/src/main.rs",
        "testkit/src/lib.rs",
        "testkit/src/bin/viaduct-testpeer/main.rs",
    ] {
        let path = workspace().join("crates").join(source);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{}", path.display());
    }
    // The command has one corner where it undoes what the runtime does to signals before `main`.
    let command = std::fs::read_to_string(workspace().join("crates/cli/src/main.rs")).unwrap();
    assert!(command.contains("#![deny(unsafe_code)]"));
    let allowed = |line: &str| line.contains("expect(unsafe_code") || line.contains("allow(unsafe_code");
    let exceptions: Vec<&str> = command.lines().skip_while(|line| !allowed(line)).collect();
    assert!(exceptions.get(1).is_some_and(|line| *line == "mod inherit;"));
    let mut files = Vec::new();
    rust_files(&workspace().join("crates/cli/src"), &mut files);
    let count = |path: &PathBuf| {
        std::fs::read_to_string(path)
            .unwrap()
            .lines()
            .filter(|line| allowed(line))
            .count()
    };
    assert_eq!(files.iter().map(count).sum::<usize>(), 1);
}

/// `libviaduct` is C's face to the world and calls into it; the rest of it, which reads what strangers send, is safe
/// code.
#[test]
fn the_search_library_has_unsafe_code_in_its_corners_only() {
    let sources = workspace().join("crates/seek/src");
    let mut files = Vec::new();
    rust_files(&sources, &mut files);
    let is_unsafe = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
        code.flat_map(|line| line.split(|c: char| !(c.is_alphanumeric() || c == '_')))
            .any(|word| word == "unsafe")
    };
    files.retain(is_unsafe);
    let corners: BTreeSet<_> = files
        .iter()
        .map(|path| path.strip_prefix(&sources).unwrap().to_str().unwrap())
        .collect();
    assert_eq!(
        corners,
        BTreeSet::from(["call.rs", "cancel.rs", "face.rs", "message/wait.rs"])
    );
}

/// As wide as `rustfmt.toml` has code be, which leaves comments alone.
#[test]
fn comments_are_no_wider_than_code() {
    let settings = std::fs::read_to_string(workspace().join("rustfmt.toml")).unwrap();
    let widest: usize = settings.trim().strip_prefix("max_width = ").unwrap().parse().unwrap();
    let mut files = Vec::new();
    files_named(workspace(), &["rs", "c", "h"], &mut files);
    let mut wrong = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        for (line, number) in text.lines().zip(1..) {
            let text = line.trim_start();
            let is_comment = ["//", "/*", "* "].iter().any(|begin| text.starts_with(begin));
            // A row of a table cannot be broken.
            if is_comment && !text.starts_with("//! |") && line.chars().count() > widest {
                wrong.push(format!("{}:{number}", file.display()));
            }
        }
    }
    assert!(files.len() > 100 && wrong.is_empty(), "{wrong:#?}");
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    files_named(dir, &["rs"], found);
}

fn files_named(dir: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            files_named(&path, endings, found);
        } else if path
            .extension()
            .is_some_and(|own| endings.iter().any(|ending| own == *ending))
        {
            found.push(path);
        }
    }
}

/// Where `text` names what loom does not see: an atomic or a cell that is not the facade's.
fn unseen_by_loom(text: &str) -> Vec<&str> {
    let is_unseen = |line: &&str| {
        let code = line.split("//").next().unwrap_or("");
        let atomics = code.matches("sync::atomic").count();
        atomics > code.matches("sync::atomic::Ordering").count() || code.contains("UnsafeCell")
    };
    text.lines().filter(is_unseen).collect()
}

#[test]
fn the_channel_has_no_atomics_that_loom_does_not_see() {
    let foreign = "use core::sync::atomic::AtomicU8;\nuse std::sync::atomic;\nlet x: core::cell::UnsafeCell<u8>;";
    assert_eq!(unseen_by_loom(foreign).len(), 3);
    let own = "use core::sync::atomic::Ordering::{Acquire, Relaxed};\nuse crate::sync::{AtomicU64, fence};\n// core::sync::atomic";
    assert!(unseen_by_loom(own).is_empty());

    let sources = workspace().join("crates/channel/src");
    let mut files = Vec::new();
    rust_files(&sources, &mut files);
    let facade = sources.join("sync.rs");
    assert!(files.contains(&facade), "the facade has moved");
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| **file != facade) {
        let text = std::fs::read_to_string(file).unwrap();
        wrong.extend(
            unseen_by_loom(&text)
                .into_iter()
                .map(|line| format!("{}: {line}", file.display())),
        );
    }
    assert!(wrong.is_empty(), "use crate::sync: {wrong:#?}");
}

/// Whether what follows the attribute is there for tests alone.
fn is_for_tests(line: &str) -> bool {
    let attributes = [
        "#[cfg(test)]",
        "#[cfg(all(test, not(loom)))]",
        "#[cfg(any(test, loom))]",
    ];
    attributes.contains(&line.trim())
}

/// Lines of a file, what is there for tests alone left out, wherever that stands and as rustfmt lays it out.
fn length(text: &str) -> usize {
    let column = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text.lines();
    let mut length = 0;
    while let Some(line) = lines.next() {
        if !is_for_tests(line) {
            length += 1;
            continue;
        }
        let mut is_block = false;
        let ends = |next: &str| {
            let code = next.trim();
            if code.is_empty() || code.starts_with("#[") || code.starts_with("//") {
                return false;
            }
            let is_beside = column(next) == column(line);
            is_block |= is_beside && code.ends_with(['{', '(', '[']);
            is_beside && code.ends_with([';', ',', '}']) || !is_block && code.ends_with(';')
        };
        lines.by_ref().any(ends);
    }
    length
}

#[test]
fn what_is_there_for_tests_does_not_count_wherever_it_stands() {
    let text = "use a::{
    b,
};
#[cfg(test)]
use c::{
    d,
};
struct E {
    f: u8,
    #[cfg(test)]
    /// Words.
    g: u8,
}
#[cfg(all(test, not(loom)))]
mod tests {
    fn h(
        i: u8,
    ) {}

    #[test]
    fn j() {
        h(0);
    }
}
#[cfg(test)]
fn k(
    l: u8,
) -> u8 {
    l
}
#[cfg(test)]
const M: u8 =
    0;
fn n() {}
";
    let counted: Vec<_> = text.lines().take(3).chain(text.lines().skip(7).take(2)).collect();
    assert_eq!(length(text), counted.len() + 2);
    assert_eq!(length(&counted.join("\n")), counted.len());
}

#[test]
fn files_stay_short() {
    let mut files = Vec::new();
    rust_files(&workspace().join("crates"), &mut files);
    assert!(files.len() > 10, "sources not found");
    let long: Vec<_> = files
        .iter()
        .filter(|path| !path.iter().any(|part| part == "tests"))
        .map(|path| (length(&std::fs::read_to_string(path).unwrap()), path))
        .filter(|(lines, _)| *lines > LONGEST_FILE)
        .collect();
    assert!(long.is_empty(), "more than {LONGEST_FILE} lines: {long:#?}");
    let mut programs = Vec::new();
    for dir in ["crates", "examples", "include", "python"] {
        let before = programs.len();
        files_named(&workspace().join(dir), &["c", "h", "py", "sh"], &mut programs);
        assert!(programs.len() > before, "no programs in {dir}");
    }
    let scripts = std::fs::read_dir(workspace().join("scripts")).unwrap();
    programs.extend(
        scripts
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_file()),
    );
    let long: Vec<_> = programs
        .iter()
        .map(|path| (std::fs::read_to_string(path).unwrap().lines().count(), path))
        .filter(|(lines, _)| *lines > LONGEST_PROGRAM)
        .collect();
    assert!(long.is_empty(), "more than {LONGEST_PROGRAM} lines: {long:#?}");
}
