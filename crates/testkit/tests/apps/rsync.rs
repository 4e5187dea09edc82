//! An rsync daemon: a tree sent, brought back, and changes sent to it.

use crate::{PATIENCE, Pair, bytes};
use std::path::Path;
use viaduct_testkit::Program;
use viaduct_testkit::processes::free_port;

matrix!(check, "rsync");

/// The files below `dir` with their contents, in order.
fn tree(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()).collect();
    names.sort_by_key(std::fs::DirEntry::file_name);
    for entry in names {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().unwrap().is_dir() {
            let inner = tree(&entry.path());
            found.extend(
                inner
                    .into_iter()
                    .map(|(file, content)| (format!("{name}/{file}"), content)),
            );
        } else {
            found.push((name, std::fs::read(entry.path()).unwrap()));
        }
    }
    found
}

/// A daemon that takes and gives what is in the directory `module`.
pub(crate) fn start(pair: &Pair<'_>, port: u16) -> Program {
    let module = pair.instance.scratch("module");
    std::fs::create_dir_all(&module).unwrap();
    let configuration = format!(
        "address = 127.0.0.1\nport = {port}\nuse chroot = no\nlog file = /dev/null\n\
         [all]\npath = {}\nread only = no\nuid = {uid}\ngid = {gid}\n",
        module.display(),
        uid = nix::unistd::getuid(),
        gid = nix::unistd::getgid(),
    );
    let file = pair.instance.scratch("rsyncd.conf");
    std::fs::write(&file, configuration).unwrap();
    let arguments = format!("--daemon --no-detach --config={}", file.display());
    pair.server("rsync", arguments.split_whitespace())
        .spawn()
        .listening(port)
}

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let dir = pair.instance.dir();
    let (source, module, back) = (dir.join("source"), dir.join("module"), dir.join("back"));
    for directory in [&source.join("inner"), &module, &back] {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::fs::write(source.join("big"), bytes(20_000_000)).unwrap();
    for number in 0..500 {
        std::fs::write(source.join(format!("inner/{number}")), bytes(number * 37)).unwrap();
    }
    let _server = start(pair, port);
    let url = format!("rsync://127.0.0.1:{port}/all/");
    let copy = |from: &str, to: &str| {
        let all = format!("-a --no-owner --no-group --timeout=20 --stats {from} {to}");
        pair.client("rsync", all.split_whitespace()).run(PATIENCE).success()
    };

    copy(&format!("{}/", source.display()), &url);
    assert!(tree(&source) == tree(&module), "what was sent differs");
    copy(&url, &format!("{}/", back.display()));
    assert!(tree(&source) == tree(&back), "what came back differs");

    // Only what changed travels: the file is compared block by block at both ends.
    let mut changed = bytes(20_000_000);
    changed[10_000_000] ^= 1;
    changed.truncate(19_000_000);
    std::fs::write(source.join("big"), changed).unwrap();
    let report = copy(&format!("--checksum --no-whole-file {}/", source.display()), &url);
    assert!(tree(&source) == tree(&module), "the change differs");
    let literal = report.lines().find_map(|line| line.strip_prefix("Literal data: "));
    let literal: usize = literal
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .replace(',', "")
        .parse()
        .unwrap();
    assert!(literal < 1_000_000, "{report}");

    let slowly = format!(
        "--bwlimit=10000 --whole-file --ignore-times -a --timeout=20 {url} {}/",
        back.display()
    );
    pair.proved_meanwhile("rsync", pair.client("rsync", slowly.split_whitespace()))
        .success();
    assert!(tree(&source) == tree(&back), "what came slowly differs");
}
