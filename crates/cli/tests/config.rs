//! Where settings come from, which source wins, and what is said of those that make no sense.

mod common;

use common::{Dir, pass_environment, stderr, stdout, succeed, viaduct};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// A program that shows what it was told, one variable a line.
const SHOW: &str = r#"printf '%s\n' "$VIADUCT_PATH" "$VIADUCT_SPIN" "$VIADUCT_OFFER" "$VIADUCT_RULES" "$VIADUCT_DIR""#;

fn shown(command: &mut Command) -> Vec<String> {
    succeed(command).lines().map(str::to_owned).collect()
}

/// What a program sees that is run with `arguments` before it.
fn run(home: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = viaduct(home);
    shown(command.arg("run").args(arguments).args(["--", "sh", "-c", SHOW]))
}

/// Standard error of a run that must be refused for its configuration.
fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{command:?}: {}", stderr(&output));
    stderr(&output)
}

#[test]
fn without_any_source_the_defaults_hold() {
    let home = Dir::new();
    let dir = home.path.to_str().unwrap();
    assert_eq!(run(&home.path, &[]), ["auto", "auto", "auto", "", dir]);
}

#[test]
fn a_file_named_in_the_environment_counts_for_every_command() {
    let home = Dir::new();
    let elsewhere = home.path.join("elsewhere");
    let file = home.file("given.toml", &format!("dir = {:?}\n", elsewhere));
    let doctor = |file: &Path| {
        let mut command = viaduct(&home.path);
        let command = command.env_remove("VIADUCT_DIR").env("VIADUCT_CONFIG", file);
        let output = command.args(["doctor"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(doctor(&file).contains(elsewhere.to_str().unwrap()), "{}", doctor(&file));
    let wrong = home.file("wrong.toml", "\nspinn = 'never'\n");
    assert!(doctor(&wrong).contains("wrong.toml:2:"), "{}", doctor(&wrong));
}

#[test]
fn a_variable_that_names_no_file_is_none() {
    let home = Dir::new();
    let output = viaduct(&home.path)
        .env("VIADUCT_CONFIG", "")
        .args(["run", "--path", "tcp", "--", "true"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_rule_without_sense_is_told_with_its_place_and_value() {
    let home = Dir::new();
    let file = home.file("rules.toml", "\n[[rules]]\naction = 'tcp'\nprogram = '*sql'\n");
    let output = viaduct(&home.path)
        .args(["run", "--config", file.to_str().unwrap(), "--", "true"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        errors.contains("rules.toml:4:") && errors.contains("program=*sql"),
        "{errors}"
    );
}

#[test]
fn a_higher_source_wins() {
    let home = Dir::new();
    let dir = home.path.to_str().unwrap();
    home.file("viaduct.toml", "path = 'tcp'\nspin = 'never'\noffer = 'wait'\n");
    assert_eq!(run(&home.path, &[]), ["tcp", "never", "wait", "", dir]);

    let file = home.file("given.toml", "spin = 'always'\noffer = 'auto'\n");
    let given = ["--config", file.to_str().unwrap()];
    assert_eq!(run(&home.path, &given), ["tcp", "always", "auto", "", dir]);

    let mut with_variable = viaduct(&home.path);
    with_variable.env("VIADUCT_OFFER", "now").arg("run").args(given);
    let mut with_flag = viaduct(&home.path);
    with_flag
        .env("VIADUCT_OFFER", "now")
        .arg("run")
        .args(given)
        .args(["--offer", "wait"]);
    let tail = ["sh", "-c", SHOW];
    assert_eq!(shown(with_variable.args(tail)), ["tcp", "always", "now", "", dir]);
    assert_eq!(shown(with_flag.args(tail)), ["tcp", "always", "wait", "", dir]);
}

#[test]
fn the_runtime_directory_follows_the_same_order() {
    let home = Dir::new();
    home.file("viaduct.toml", "dir = '/run/from-file'\n");
    let from = |command: &mut Command| shown(command.args(["sh", "-c", SHOW])).pop().unwrap();
    let mut file = viaduct(&home.path);
    let mut flag = viaduct(&home.path);
    assert_eq!(from(file.env_remove("VIADUCT_DIR").arg("run")), "/run/from-file");
    assert_eq!(from(viaduct(&home.path).arg("run")), home.path.to_str().unwrap());
    assert_eq!(from(flag.args(["run", "--dir", "/run/from-flag"])), "/run/from-flag");
}

#[test]
fn the_runtime_directory_has_one_spelling() {
    let home = Dir::new();
    std::os::unix::fs::symlink(&home.path, home.path.join("link")).unwrap();
    let spelled = home.path.join("link/./inner");
    let dir = run(&home.path, &["--dir", spelled.to_str().unwrap()]).pop().unwrap();
    assert_eq!(Path::new(&dir), home.path.join("inner"));
}

#[test]
fn rules_of_higher_sources_come_first_and_each_once() {
    let home = Dir::new();
    home.file("viaduct.toml", "[[rules]]\naction = 'tcp'\nprogram = 'ssh*'\n");
    let file = home.file(
        "rules.toml",
        "[[rules]]\naction = 'now'\naddr = '10.0.0.0/8'\nport = 6379\n",
    );
    let mut command = viaduct(&home.path);
    command.env("VIADUCT_RULES", "wait,port=1-2 ; tcp,program=ssh*").args([
        "run",
        "--rules",
        file.to_str().unwrap(),
        "sh",
        "-c",
        SHOW,
    ]);
    let rules = &shown(&mut command)[3];
    assert_eq!(rules, "now,addr=10.0.0.0/8,port=6379;wait,port=1-2;tcp,program=ssh*");
}

#[test]
fn a_run_within_a_run_changes_nothing() {
    let home = Dir::new();
    home.file("viaduct.toml", "offer = 'now'\n[[rules]]\naction = 'tcp'\nport = 22\n");
    let viaduct_itself = env!("CARGO_BIN_EXE_viaduct");
    let once = run(&home.path, &["--spin", "never"]);
    let twice = run(&home.path, &["--spin", "never", viaduct_itself, "run"]);
    assert_eq!(once, twice);
    assert_eq!(once[..4], ["auto", "never", "now", "tcp,port=22"]);
}

#[test]
fn errors_name_file_and_line() {
    let cases = [
        ("path = 'auto'\n\ncolour = 'red'\n", 3, "colour"),
        ("path = 'fast'\n", 1, "none of auto, tcp, shm"),
        ("\nspin = 3\n", 2, "expected a string"),
        ("dir = 'relative'\n", 1, "absolute"),
        (
            "[[rules]]\naction = 'tcp'\n\n[[rules]]\naction = 'always'\n",
            5,
            "never, tcp, auto, now or wait",
        ),
        ("[[rules]]\naction = 'tcp'\nname = 'x'\n", 3, "name"),
        ("[[rules]]\naction = 'tcp'\nport = '9-1'\n", 3, "port"),
        ("[[rules]]\naction = 'tcp'\nport = 70000\n", 3, "0 to 65535"),
        ("[[rules]]\naction = 'tcp'\nprogram = 'a;now'\n", 3, "program"),
        ("[[rules]]\nport = 1\n", 1, "action"),
        ("[daemon]\nsegments = 3\n", 2, "segments"),
        ("[daemon]\nmemory_per_user = 'much'\n", 2, "expected u64"),
        ("path = \n", 1, ""),
        ("\npath = ''\n", 2, "leave the setting out to have its default"),
        ("dir = ''\n", 1, "absolute"),
        (
            "[[rules]]\naction = 'tcp'\nprogram = ''\n",
            3,
            "program is empty: leave it out",
        ),
        (
            "[[rules]]\naction = 'tcp'\nport = ''\n",
            3,
            "port is empty: leave it out",
        ),
        ("\n[rules]\naction = 'tcp'\n", 2, "`[[rules]]`, in double brackets"),
        ("rules = 3\n", 1, "`[[rules]]`, in double brackets"),
    ];
    for (text, line, word) in cases {
        let home = Dir::new();
        let file = home.file("given.toml", text);
        let error = refused(viaduct(&home.path).args(["run", "--config", file.to_str().unwrap(), "true"]));
        let place = format!("{}:{line}: ", file.display());
        assert!(error.contains(&place) && error.contains(word), "{text:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn the_users_file_is_checked_as_well() {
    let home = Dir::new();
    let file = home.file("viaduct.toml", "path = 'auto'\noffers = 'now'\n");
    let error = refused(viaduct(&home.path).args(["run", "true"]));
    assert!(error.contains(&format!("{}:2: ", file.display())), "{error}");
    let status = viaduct(&home.path)
        .env_remove("VIADUCT_DIR")
        .arg("status")
        .output()
        .unwrap();
    assert_eq!(status.status.code(), Some(1));
    assert!(stderr(&status).contains(":2: "));
}

#[test]
fn a_home_that_may_not_be_entered_holds_no_settings() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be shut out by becoming another user");
        return;
    }
    let home = Dir::new();
    let file = home.file("viaduct.toml", "nonsense = 1\n");
    // The command itself must be where the other user may run it.
    let open = Dir::new();
    fs::set_permissions(&open.path, fs::Permissions::from_mode(0o755)).unwrap();
    let program = open.path.join("viaduct");
    fs::copy(env!("CARGO_BIN_EXE_viaduct"), &program).unwrap();
    let status = || {
        let mut command = Command::new(&program);
        command
            .env("XDG_CONFIG_HOME", &home.path)
            .env_remove("VIADUCT_DIR")
            .uid(65534)
            .gid(65534)
            .current_dir("/")
            .args(["status", "--json"]);
        command.output().unwrap()
    };
    let permit = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    // A home that is closed; one that is open with a file that is closed; one that is all open.
    for (home_mode, file_mode, read) in [(0o700, 0o644, false), (0o755, 0o600, false), (0o755, 0o644, true)] {
        permit(&home.path, home_mode);
        permit(&file, file_mode);
        let output = status();
        assert_eq!(output.status.success(), !read, "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("nonsense"), read, "{}", stderr(&output));
    }
    // A closed file of the user's own is not passed over.
    permit(&file, 0o000);
    std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
    let output = status();
    assert!(stderr(&output).contains("viaduct.toml"), "{}", stderr(&output));
    assert!(!output.status.success());
}

#[test]
fn a_file_that_was_asked_for_must_exist() {
    let home = Dir::new();
    for option in ["--config", "--rules"] {
        let error = refused(viaduct(&home.path).args(["run", option, "/nonexistent/file", "true"]));
        assert!(error.ends_with("/nonexistent/file: no such file\n"), "{error}");
    }
}

/// None of them may be waited for, or read without end.
#[test]
fn what_can_hold_no_settings_is_told() {
    let home = Dir::new();
    let fifo = home.path.join("fifo");
    succeed(Command::new("mkfifo").arg(&fifo));
    for (path, what) in [
        (fifo.as_path(), "it is a FIFO that nobody writes to"),
        (&home.path, "it is a directory"),
        (Path::new("/dev/zero"), "it is a device"),
    ] {
        for option in ["--config", "--rules"] {
            let error = refused(viaduct(&home.path).args(["run", option]).arg(path).arg("true"));
            assert!(error.contains(&format!("{}: {what}", path.display())), "{error}");
        }
    }
    fs::create_dir(home.path.join("viaduct.toml")).unwrap();
    let doctor = viaduct(&home.path).args(["doctor", "--dir"]).arg(&home.path).output();
    let said = stdout(&doctor.unwrap());
    assert!(said.contains("viaduct.toml: it is a directory"), "{said}");
}

/// viaductd cannot read it again, and its table is in it.
#[test]
fn what_a_pipe_says_reaches_viaductd_too() {
    const DAEMON: &str = "#!/bin/sh
while [ $# -gt 1 ]; do
    case $1 in --dir) dir=$2 ;; --config) config=$2 ;; --ready-fd) ready=$2 ;; esac
    shift 2
done
cat \"$config\" >\"$dir/read\"
eval \"printf 1 >&$ready\"
";
    const RUN: &str =
        r#"exec "$0" run --config <(printf "spin='never'\n[daemon]\nsegments_per_user=7\n") -- sh -c "$1""#;
    let home = Dir::new();
    let daemon = home.file("viaductd", DAEMON);
    fs::set_permissions(&daemon, fs::Permissions::from_mode(0o755)).unwrap();
    let own = viaduct(&home.path);
    let mut command = Command::new("bash");
    pass_environment(&own, &mut command);
    command.env("VIADUCT_DAEMON", &daemon).args(["-c", RUN]);
    let told = shown(command.arg(own.get_program()).arg(SHOW));
    assert_eq!(told[1], "never");
    let read = fs::read_to_string(home.path.join("read")).unwrap();
    assert_eq!(read, "spin='never'\n[daemon]\nsegments_per_user=7\n");
}

#[test]
fn wrong_variables_are_named() {
    let home = Dir::new();
    for (name, value) in [
        ("VIADUCT_PATH", "fast"),
        ("VIADUCT_SPIN", "sometimes"),
        ("VIADUCT_OFFER", "later"),
        ("VIADUCT_RULES", "tcp,colour=red"),
        ("VIADUCT_RULES", "tcp,program="),
    ] {
        let error = refused(viaduct(&home.path).env(name, value).args(["run", "true"]));
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn more_rules_than_a_program_holds_are_an_error_for_that_program_only() {
    let home = Dir::new();
    let rules: String = (1..=33)
        .map(|port| format!("[[rules]]\naction = 'tcp'\nprogram = 'true'\nport = {port}\n"))
        .collect();
    home.file("viaduct.toml", &rules);
    assert!(refused(viaduct(&home.path).args(["run", "true"])).contains("32 rules"));
    succeed(viaduct(&home.path).args(["run", "sh", "-c", "exit 0"]));
}
