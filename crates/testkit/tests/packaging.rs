//! What `make install` and `pip install` put somewhere, used from there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use viaduct_testkit::binaries::{LIBRARY, bin_dir, find, workspace};
use viaduct_testkit::can_run;

const PREFIX: &str = "usr/local";

/// Uses the call by both of its names.
const PROGRAM: &str = r#"
#define VIADUCT_SHORT_NAMES
#include <stdio.h>
#include <string.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <viaduct.h>

int main(void)
{
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    char bytes[8] = "";
    int listener = socket(AF_INET, SOCK_STREAM, 0), near = socket(AF_INET, SOCK_STREAM, 0), far;
    viaduct_inbox *inbox = viaduct_inbox_open(0, 0);

    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &size) || connect(near, (struct sockaddr *)&address, size))
        return 1;
    far = accept(listener, NULL, NULL);
    if (send(near, "0123456789", 10, 0) != 10)
        return 2;
    if (seek_recv(far, bytes, 3, MSG_WAITALL, 4) != 3 || strcmp(bytes, "456") != 0)
        return 3;
    if (viaduct_seek_recv(far, bytes, 7, MSG_WAITALL, 0) != 7 || memcmp(bytes, "0123789", 7) != 0)
        return 4;
    if (!inbox || viaduct_inbox_add(inbox, far) != 0 || viaduct_msg_send(near, 5, "five", 4) != 0)
        return 5;
    if (viaduct_msg_recv(inbox, 5, VIADUCT_ANY, bytes, sizeof bytes, 5000, NULL) != 4 || memcmp(bytes, "five", 4) != 0)
        return 6;
    viaduct_inbox_close(inbox);
    puts("found");
    return 0;
}
"#;

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {} {said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

/// A target of the Makefile, with the programs under test in place of a build.
fn make(target: &str, stage: &Path) {
    make_with(target, stage, &[]);
}

fn make_with(target: &str, stage: &Path, variables: &[&str]) {
    run(make_command(target, stage).args(variables));
}

fn make_command(target: &str, stage: &Path) -> Command {
    let built = bin_dir();
    let mut command = Command::new("make");
    command
        .args(["--silent", "--old-file=build", target])
        .arg(format!("DESTDIR={}", stage.display()))
        .arg(format!("PREFIX=/{PREFIX}"))
        .arg(format!("RELEASE={}", built.display()))
        .arg(format!("GENERATED={}", stage.join("generated").display()))
        .env_remove("MAKEFLAGS")
        .env_remove("UNITDIR")
        .env_remove("STRIP")
        .current_dir(workspace());
    command
}

/// All that is not a directory below `dir`.
fn files(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.insert(entry.path());
        }
    }
    found
}

fn pkg_config(stage: &Path, what: &[&str]) -> Vec<String> {
    let said = run(Command::new("pkg-config")
        .args(what)
        .arg("viaduct")
        .env("PKG_CONFIG_PATH", stage.join(PREFIX).join("lib/pkgconfig"))
        .env("PKG_CONFIG_SYSROOT_DIR", stage)
        // Else what is usual would be left out.
        .env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1")
        .env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1"));
    said.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn what_is_installed_is_enough_for_c_and_cpp() {
    if !can_run(false, &["make", "pkg-config", "cc", "c++", "readelf"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let stage = scratch.path().join("stage");
    make("install", &stage);
    let root = stage.join(PREFIX);
    let library = root.join("lib");

    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(pkg_config(&stage, &["--modversion"]), [version]);
    let named = run(Command::new("readelf").arg("-d").arg(library.join("libviaduct.so")));
    assert!(named.contains(&format!("Library soname: [{LIBRARY}]")), "{named}");
    assert_eq!(
        library.join(LIBRARY).canonicalize().unwrap(),
        library.join(format!("libviaduct.so.{version}")).canonicalize().unwrap()
    );

    let source = scratch.path().join("program.c");
    std::fs::write(&source, PROGRAM).unwrap();
    let mut programs = Vec::new();
    for (compiler, language) in [("cc", ["-std=c11", "-xc"]), ("c++", ["-std=c++11", "-xc++"])] {
        let program = scratch.path().join(compiler);
        run(Command::new(compiler)
            .args(["-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic"])
            .args(language)
            .arg(&source)
            .arg("-o")
            .arg(&program)
            // The language is of what comes before.
            .arg("-xnone")
            .args(pkg_config(&stage, &["--cflags", "--libs"])));
        programs.push(program);
    }
    let documentation = root.join("share/doc/viaduct");
    run(Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .arg(scratch.path().join("priorities"))
        .arg(documentation.join("examples/seek/priorities.c"))
        .args(pkg_config(&stage, &["--cflags", "--libs"])));
    // What only compilers need may be missing where programs run.
    std::fs::remove_file(library.join("libviaduct.so")).unwrap();
    for program in programs {
        assert_eq!(run(Command::new(program).env("LD_LIBRARY_PATH", &library)), "found\n");
    }

    for name in [
        "share/man/man1/viaduct.1",
        "share/man/man1/viaduct-run.1",
        "share/man/man1/viaduct-bench.1",
        "share/man/man3/viaduct_seek_recv.3",
        "share/man/man8/viaductd.8",
        "share/bash-completion/completions/viaduct",
        "share/zsh/site-functions/_viaduct",
        "share/fish/vendor_completions.d/viaduct.fish",
    ] {
        assert!(
            std::fs::metadata(root.join(name)).is_ok_and(|file| file.len() > 0),
            "{name}"
        );
    }
    let unit = std::fs::read_to_string(root.join("lib/systemd/system/viaductd.service")).unwrap();
    assert!(unit.contains(&format!("ExecStart=/{PREFIX}/bin/viaductd ")), "{unit}");
    for name in ["bin/viaduct", "bin/viaductd", "lib/viaduct/libviaduct_preload.so"] {
        let mode = std::fs::metadata(root.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "{name}");
    }
    let readme = std::fs::read_to_string(documentation.join("README.md")).unwrap();
    for link in readme
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#']).next())
    {
        let there = link.starts_with("http") || documentation.join(link).exists();
        assert!(there, "README.md names {link}, which is not installed");
    }
    let changes = std::fs::read_to_string(documentation.join("CHANGELOG.md")).unwrap();
    let fragment = std::fs::read_to_string(workspace().join("changelog.d/inbox-fd.added.md"));
    for text in fragment.iter().flat_map(|text| text.lines()) {
        assert!(changes.contains(text), "{text}");
    }
    let pages = root.join("share/man");
    for page in files(&pages) {
        let text = std::fs::read_to_string(&page).unwrap();
        if let Some(other) = text.strip_prefix(".so ") {
            assert!(pages.join(other.trim()).is_file(), "{}", page.display());
        }
    }
    // What an earlier version has left goes with this one, and makes way for it.
    let (earlier, other) = (
        library.join(format!("{LIBRARY}.0.0")),
        library.join("libviaduct.so.77.0.0"),
    );
    for file in [&earlier, &other] {
        std::fs::write(file, "").unwrap();
    }
    make("install", &stage);
    assert_eq!((earlier.exists(), other.exists()), (false, true));
    // As does what an install that was killed has left.
    for name in ["bin/.viaduct.new.1", "bin/.viaductd.new.1"] {
        std::fs::write(root.join(name), "").unwrap();
    }
    make("uninstall", &stage);
    assert_eq!(files(&root), BTreeSet::new());
}

/// `install` as it is where the disk is full when one file's turn comes: what was there is gone, and half of the new
/// file is.
const FULL: &str = r#"#!/bin/sh
for last; do source=$file; file=$last; done
if [ "${source##*/}" = "$TOO_LARGE" ]; then
    rm -f "$last"
    printf half >"$last"
    echo "no room for $TOO_LARGE"
    exit 1
fi
exec "$REAL_INSTALL" "$@"
"#;

/// Programs start while Viaduct is installed anew, and half a library would kill them.
#[test]
fn what_is_installed_is_replaced_when_the_new_one_is_whole() {
    if !can_run(false, &["make", "install"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let stage = scratch.path().join("stage");
    make("install", &stage);
    let installed = || {
        let contents = |file: PathBuf| (std::fs::read(&file).unwrap(), file);
        files(&stage).into_iter().map(contents).collect::<BTreeSet<_>>()
    };
    let before = installed();
    let tools = scratch.path().join("tools");
    std::fs::create_dir(&tools).unwrap();
    let install = tools.join("install");
    std::fs::write(&install, FULL).unwrap();
    std::fs::set_permissions(&install, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    for name in ["viaduct", "viaductd", "libviaduct_preload.so", "libviaduct.so"] {
        let output = make_command("install", &stage)
            .env("TOO_LARGE", name)
            .env("REAL_INSTALL", find("install").unwrap())
            .env("PATH", format!("{}:{path}", tools.display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.trim(), format!("no room for {name}"));
        assert!(!output.status.success(), "{name}");
        assert!(installed() == before, "{name}");
    }
}

/// Names of the sections of a binary.
fn sections(file: &Path) -> String {
    run(Command::new("readelf").args(["--wide", "--section-headers"]).arg(file))
}

#[test]
fn debug_information_stays_where_it_was_built() {
    if !can_run(false, &["make", "pkg-config", "cc", "readelf", "strip"]) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    for (strip, is_stripped) in [("strip", true), ("no-strip-here", false)] {
        let stage = scratch.path().join(strip);
        make_with("install", &stage, &[&format!("STRIP={strip}")]);
        let root = stage.join(PREFIX);
        for (built, installed) in [
            ("viaduct", "bin/viaduct"),
            ("viaductd", "bin/viaductd"),
            ("libviaduct_preload.so", "lib/viaduct/libviaduct_preload.so"),
            ("libviaduct.so", "lib/libviaduct.so"),
        ] {
            let has_lines = |file: &Path| sections(file).contains(".debug_line");
            let (built, installed) = (bin_dir().join(built), root.join(installed));
            assert_eq!(
                has_lines(&installed),
                has_lines(&built) && !is_stripped,
                "{}",
                installed.display()
            );
            // Functions keep their names, for profiles and what a panic says.
            assert!(sections(&installed).contains(".symtab"), "{}", installed.display());
        }
    }
}

/// Every public name has its manual page.
#[test]
fn every_function_has_a_page() {
    let header = std::fs::read_to_string(workspace().join("include/viaduct.h")).unwrap();
    let names: BTreeSet<&str> = header
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("viaduct_") && header.contains(&format!("{word}(")))
        .collect();
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        let page = workspace().join(format!("docs/man/{name}.3"));
        assert!(page.is_file(), "{}", page.display());
    }
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        if file
            .components()
            .any(|part| part.as_os_str() == OsStr::new("__pycache__"))
        {
            continue;
        }
        let place = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::copy(&file, &place).unwrap();
    }
}

#[test]
fn the_python_package_installs_and_is_typed() {
    let parts = [
        "/usr/lib/python3/dist-packages/setuptools",
        "/usr/lib/python3/dist-packages/wheel",
        "/usr/share/doc/python3-venv",
    ];
    let programs = ["python3", "mypy"]
        .into_iter()
        .chain(parts.into_iter().filter(|part| !Path::new(part).exists()));
    if !can_run(false, &programs.collect::<Vec<_>>()) {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let scratch = scratch.path();
    // pip builds where the sources are.
    copy(&workspace().join("python"), &scratch.join("python"));
    run(Command::new(find("mypy").unwrap())
        .args(["--strict", "viaduct"])
        .current_dir(scratch.join("python")));
    run(Command::new(find("python3").unwrap())
        .args(["-m", "venv", "--system-site-packages"])
        .arg(scratch.join("venv")));
    // With what the machine has to build packages: tests use no network.
    run(Command::new(scratch.join("venv/bin/pip"))
        .args(["install", "--quiet", "--no-index", "--no-build-isolation", "./python"])
        .current_dir(scratch));
    std::os::unix::fs::symlink(bin_dir().join("libviaduct.so"), scratch.join(LIBRARY)).unwrap();
    let program = "import viaduct; viaduct.Inbox().close(); print(viaduct.__file__)";
    let place = run(Command::new(scratch.join("venv/bin/python"))
        .args(["-c", program])
        .env_remove("PYTHONPATH")
        .env_remove("VIADUCT_LIBRARY")
        .env("LD_LIBRARY_PATH", scratch)
        .current_dir(scratch));
    assert!(place.starts_with(&*scratch.join("venv").to_string_lossy()), "{place}");
    assert!(Path::new(place.trim()).with_file_name("py.typed").is_file());
    // A program that uses it is checked against its types.
    let user = scratch.join("user.py");
    std::fs::write(
        &user,
        "import viaduct\nfirst: str = viaduct.Inbox().receive().payload\n\n\n\
         async def second() -> None:\n    with viaduct.AsyncInbox() as inbox:\n        await inbox.receive_async()\n",
    )
    .unwrap();
    let output = Command::new(find("mypy").unwrap())
        .args(["--strict", "--python-executable"])
        .arg(scratch.join("venv/bin/python"))
        .arg(&user)
        .current_dir(scratch)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("expression has type \"bytes\", variable has type \"str\""),
        "{said}"
    );
    assert!(said.contains("Found 1 error"), "{said}");
}
