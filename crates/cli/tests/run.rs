//! `viaduct run` leaves the program as it would be without it, and says so where it cannot enter it.

mod common;

use common::{Dir, pass_environment, some_library, stderr, stdout, succeed, viaduct};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv, send,
    socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, CpuSet, capabilities, sched_getaffinity};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use viaduct_control::PROTOCOL_VERSION;
use viaduct_control::message::{MAX_PACKET, MODE_SAME_USER, Packet, Stats};
use viaduct_control::runtime::socket_path;

fn run(arguments: &[&str]) -> Output {
    let home = Dir::new();
    viaduct(&home.path).arg("run").args(arguments).output().unwrap()
}

fn executable(dir: &Dir, name: &str, contents: &[u8]) -> PathBuf {
    let path = dir.path.join(name);
    fs::write(&path, contents).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_exit_status_is_the_programs() {
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["sh", "-c", "kill -TERM $$"]).status.signal(), Some(15));
}

#[test]
fn what_cannot_be_run_is_told_as_a_shell_does() {
    let dir = Dir::new();
    let missing = run(&["no-such-program-anywhere"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr(&missing).contains("no-such-program-anywhere"));
    assert_eq!(run(&["/nonexistent/program"]).status.code(), Some(127));
    for nameless in [&[""][..], &["--", ""], &["--", "", "argument"]] {
        let output = run(nameless);
        assert_eq!(output.status.code(), Some(127));
        assert_eq!(stderr(&output), "viaduct: the name of the program is empty\n");
    }
    let plain = dir.file("plain", "text");
    assert_eq!(run(&[plain.to_str().unwrap()]).status.code(), Some(126));
    assert_eq!(run(&[dir.path.to_str().unwrap()]).status.code(), Some(126));
    let script = executable(&dir, "script", b"#!/nonexistent/interpreter\n");
    let output = run(&[script.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("interpreter"), "{}", stderr(&output));
}

#[test]
fn a_name_without_slash_is_looked_up_as_a_shell_does() {
    let (first, second) = (Dir::new(), Dir::new());
    first.file("prog", "not executable");
    executable(&second, "prog", b"#!/bin/sh\necho found $0\n");
    let path = std::env::join_paths([&first.path, &second.path, Path::new("/bin"), Path::new("/usr/bin")]).unwrap();
    let text = succeed(viaduct(&first.path).env("PATH", &path).args(["run", "prog"]));
    assert_eq!(text, format!("found {}/prog\n", second.path.display()));
    let mut here = viaduct(&second.path);
    let text = succeed(
        here.current_dir(&second.path)
            .env("PATH", ":/bin:/usr/bin")
            .args(["run", "prog"]),
    );
    assert_eq!(text, "found ./prog\n");
}

#[test]
fn arguments_standard_streams_and_name_are_untouched() {
    let home = Dir::new();
    let mut child = viaduct(&home.path)
        .args([
            "run",
            "sh",
            "-c",
            r#"cat; printf '<%s>' "$0" "$@"; echo err >&2"#,
            "name",
            "",
            "-v",
            "--",
            "a b",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"in").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "in<name><><-v><--><a b>");
    assert_eq!(stderr(&output), "err\n");
    let name = run(&["sh", "-c", "tr '\\0' '\\n' </proc/$$/cmdline | head -1"]);
    assert_eq!(stdout(&name), "sh\n");
}

#[test]
fn the_library_goes_before_others_and_only_once() {
    let home = Dir::new();
    let library = some_library();
    let other = library.with_file_name("libm.so.6");
    let library = format!("/$LIB/../../../..{}", library.display());
    let library = library.as_str();
    let preload = |existing: &str| {
        let mut command = viaduct(&home.path);
        succeed(
            command
                .env("LD_PRELOAD", existing)
                .args(["run", "sh", "-c", "echo $LD_PRELOAD"]),
        )
    };
    assert_eq!(preload(""), format!("{library}\n"));
    assert_eq!(preload(library), format!("{library}\n"));
    // Of another version, with which a shell was started.
    let earlier = home.path.join("libviaduct_preload.so");
    fs::copy(&other, &earlier).unwrap();
    let other = other.to_str().unwrap();
    let existing = format!("{}:{other}:{library}", earlier.display());
    assert_eq!(preload(&existing), format!("{library}:{other}\n"));
}

/// What `viaduct run` passes on of an environment that `env -i` has made of these variables.
fn passed_on(variables: &[&str], program: &Path) -> Vec<String> {
    let home = Dir::new();
    let ours = [
        format!("HOME={}", home.path.display()),
        format!("VIADUCT_DIR={}", home.path.display()),
        format!("VIADUCT_PRELOAD={}", some_library().display()),
        format!("VIADUCT_DAEMON={}", common::stand_in().display()),
    ];
    let mut command = Command::new("env");
    command.arg("-i").args(variables).args(ours);
    let text = succeed(command.arg(env!("CARGO_BIN_EXE_viaduct")).arg("run").arg(program));
    text.split(['\n', '\0']).map(str::to_owned).collect()
}

#[test]
fn the_environment_keeps_its_order() {
    let given = ["ZZ=1", "PATH=/usr/bin:/bin", "LD_PRELOAD=", "MM=2", "AA=3"];
    let found = passed_on(&given, Path::new("env"));
    let names: Vec<&str> = found
        .iter()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names[..5], ["ZZ", "PATH", "LD_PRELOAD", "MM", "AA"], "{found:?}");
    assert!(found[2].contains(some_library().to_str().unwrap()), "{found:?}");
}

#[test]
fn the_environment_of_a_script_keeps_its_order() {
    let dir = Dir::new();
    let script = executable(&dir, "script", b"#!/bin/cat /proc/self/environ\n");
    let found = passed_on(&["ZZ=1", "PATH=/usr/bin:/bin", "AA=3"], &script);
    assert_eq!(found[..3], ["ZZ=1", "PATH=/usr/bin:/bin", "AA=3"], "{found:?}");
}

#[test]
fn without_the_library_the_program_runs_and_it_is_said() {
    let home = Dir::new();
    let mut command = viaduct(&home.path);
    let output = command
        .env("VIADUCT_PRELOAD", "/nonexistent.so")
        .args(["run", "sh", "-c", "echo [$LD_PRELOAD]"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "[]\n");
    assert!(
        stderr(&output).starts_with("viaduct: sh runs as plain TCP: VIADUCT_PRELOAD: there is no file /nonexistent.so"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn without_viaductd_the_program_runs_and_it_is_said() {
    let home = Dir::new();
    let mut command = viaduct(&home.path);
    command.env("VIADUCT_DAEMON", "/nonexistent/viaductd");
    let output = command.args(["run", "sh", "-c", "exit 3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let dir = home.path.display();
    let why = "VIADUCT_DAEMON: there is no file /nonexistent/viaductd";
    assert_eq!(
        stderr(&output),
        format!("viaduct: sh runs as plain TCP until a viaductd answers in {dir}: {why}\n")
    );
}

#[test]
fn an_install_meanwhile_does_not_keep_viaductd_from_being_started() {
    let dir = Dir::new();
    let own = viaduct(&dir.path);
    let copy = dir.path.join("viaduct");
    fs::copy(own.get_program(), &copy).unwrap();
    let mut command = Command::new(&copy);
    pass_environment(&own, &mut command);
    let rules = dir.path.join("rules");
    succeed(Command::new("mkfifo").arg(&rules));
    command
        .args(["run", "--rules"])
        .arg(&rules)
        .args(["sh", "-c", "exit 3"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It runs once it reads its rules.
    let mut written = fs::File::options().write(true).open(&rules).unwrap();
    fs::remove_file(&copy).unwrap();
    written.write_all(b"\n").unwrap();
    drop(written);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(3), ""));
}

#[test]
fn a_program_starts_though_nothing_can_be_said() {
    let home = Dir::new();
    let full = Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap());
    let unread = Stdio::from(std::io::pipe().unwrap().1);
    for errors in [full, unread] {
        let mut command = viaduct(&home.path);
        command.env("VIADUCT_PRELOAD", "/nonexistent.so");
        let status = command.args(["run", "sh", "-c", "exit 3"]).stderr(errors).status();
        assert_eq!(status.unwrap().code(), Some(3));
    }
}

/// Answers whatever it is asked, until the test's process ends.
fn answering(dir: &Dir, answer: Vec<u8>) {
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(socket_path(&dir.path)).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    std::thread::spawn(move || {
        while let Ok(asking) = accept(&listener) {
            let _ = recv(&asking, &mut [0; MAX_PACKET][..], RecvFlags::empty());
            let _ = send(&asking, &answer, SendFlags::NOSIGNAL);
        }
    });
}

#[test]
fn a_viaductd_of_another_version_is_told() {
    let stats = Stats {
        version: PROTOCOL_VERSION + 1,
        mode: MODE_SAME_USER,
        pid: 4711,
        processes: 0,
        uptime_s: 0,
        offers_waiting: 0,
        offers: 0,
        pairs: 0,
        refused: 0,
        segments: 0,
        segment_bytes: 0,
        segments_per_user: 0,
        mode_reason: [0; 120],
    };
    let whole = Packet::new(&stats).as_bytes().to_vec();
    let shorter = whole[..whole.len() - 4].to_vec();
    let spoken = format!("speaks version {}, this is version {PROTOCOL_VERSION}", stats.version);
    for (answer, told) in [(whole, spoken.as_str()), (shorter, "is of another version")] {
        let dir = Dir::new();
        answering(&dir, answer);
        let (output, _) = start(&dir, "#!/bin/sh\n: >\"$2/started\"\n", &["sh", "-c", "exit 4"]);
        assert_eq!(output.status.code(), Some(4));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
        assert!(!dir.path.join("started").exists());
        for arguments in [&["doctor"][..], &["explain", &std::process::id().to_string()]] {
            let said = stdout(&viaduct(&dir.path).args(arguments).output().unwrap());
            assert!(said.contains(told), "{said}");
        }
    }
}

#[test]
fn options_that_do_not_exist_are_no_programs() {
    let output = run(&["--spinn", "never", "--", "sh", "-c", "exit 3"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("'--spin'"), "{}", stderr(&output));
    let named_so = run(&["--", "-x"]);
    assert_eq!(named_so.status.code(), Some(127), "{}", stderr(&named_so));
}

/// The smallest program there is: exits with status 42.
#[cfg(target_arch = "x86_64")]
fn tiny_elf(machine: u16, segments: &[(u32, &[u8])]) -> Vec<u8> {
    const CODE: [u8; 12] = [0xbf, 42, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];
    const BASE: u64 = 0x40_0000;
    let headers = 64 + 56 * (segments.len() + 1);
    let mut tail = CODE.to_vec();
    let mut table = Vec::new();
    let mut segment = |kind: u32, offset: usize, size: usize| {
        table.extend(kind.to_le_bytes());
        table.extend(5_u32.to_le_bytes());
        table.extend((offset as u64).to_le_bytes());
        table.extend((BASE + offset as u64).to_le_bytes());
        table.extend((BASE + offset as u64).to_le_bytes());
        table.extend((size as u64).to_le_bytes());
        table.extend((size as u64).to_le_bytes());
        table.extend(if kind == 1 { 0x1000_u64 } else { 4 }.to_le_bytes());
    };
    for (kind, contents) in segments {
        segment(*kind, headers + tail.len(), contents.len());
        tail.extend(*contents);
    }
    segment(1, 0, headers + tail.len());
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend(2_u16.to_le_bytes());
    elf.extend(machine.to_le_bytes());
    elf.extend(1_u32.to_le_bytes());
    elf.extend((BASE + headers as u64).to_le_bytes());
    elf.extend(64_u64.to_le_bytes());
    elf.extend(0_u64.to_le_bytes());
    elf.extend(0_u32.to_le_bytes());
    for field in [64, 56, u16::try_from(segments.len()).unwrap() + 1, 64, 0, 0] {
        elf.extend(field.to_le_bytes());
    }
    elf.extend(table);
    elf.extend(tail);
    elf
}

#[cfg(target_arch = "x86_64")]
mod programs_that_cannot_be_entered {
    use super::*;

    const X86_64: u16 = 62;
    const AARCH64: u16 = 183;
    const INTERPRETER: u32 = 3;
    const NOTE: u32 = 4;

    fn said(path: &Path) -> (Option<i32>, String) {
        let output = run(&[path.to_str().unwrap()]);
        (output.status.code(), stderr(&output))
    }

    #[test]
    fn static_ones_run_and_it_is_said_once() {
        let dir = Dir::new();
        let path = executable(&dir, "tiny", &tiny_elf(X86_64, &[]));
        let (code, text) = said(&path);
        assert_eq!(code, Some(42));
        assert_eq!(text.lines().count(), 1);
        assert!(
            text.contains("plain TCP") && text.contains("statically linked"),
            "{text}"
        );
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let dir = Dir::new();
        let path = executable(&dir, "tiny", &tiny_elf(X86_64, &[]));
        let direct = executable(&dir, "direct", format!("#! {} -x\n", path.display()).as_bytes());
        assert!(said(&direct).1.contains("statically linked"));
        let through_env = executable(&dir, "env-script", b"#!/usr/bin/env -S tiny -x\n");
        let path = std::env::join_paths([&dir.path, Path::new("/usr/bin")]).unwrap();
        let mut command = viaduct(&dir.path);
        let output = command.env("PATH", path).arg("run").arg(&through_env).output().unwrap();
        assert_eq!(output.status.code(), Some(42));
        assert!(stderr(&output).contains("statically linked"));
    }

    #[test]
    fn go_programs_are_known_by_their_note() {
        let dir = Dir::new();
        let note = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd";
        let (code, text) = said(&executable(&dir, "go", &tiny_elf(X86_64, &[(NOTE, note)])));
        assert_eq!(code, Some(42));
        assert!(text.contains("Go"), "{text}");
    }

    /// Opens a listener, by system calls of its own; `OTHERWISE` has the C library do it.
    const OWN_CALLS: &str = r#"
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static long call(long number, long first, long second, long third)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(third) : "rcx", "r11", "memory");
    return result;
}

int main(void)
{
    long fd = call(SYS_socket, AF_INET, SOCK_STREAM, 0);
#ifdef OTHERWISE
    fd = socket(AF_INET, SOCK_STREAM, 0);
#endif
    printf("%ld\n", call(SYS_listen, fd, 1, 0));
    return 42;
}
"#;

    #[test]
    fn those_that_make_system_calls_themselves_run_and_it_is_said_once() {
        let dir = Dir::new();
        let source = dir.path.join("own.c");
        fs::write(&source, OWN_CALLS).unwrap();
        let compile = |name: &str, options: &[&str]| {
            let program = dir.path.join(name);
            let mut command = Command::new("cc");
            let output = command.args(options).arg("-o").arg(&program).arg(&source).output();
            output.is_ok_and(|output| output.status.success()).then_some(program)
        };
        let Some(plain) = compile("plain", &["-O0"]) else {
            eprintln!("skipped: cc is not installed");
            return;
        };
        for program in [plain, compile("inlined", &["-O2"]).unwrap()] {
            let (code, text) = said(&program);
            assert_eq!((code, text.lines().count()), (Some(42), 1), "{text}");
            assert!(
                text.contains("plain TCP") && text.contains("makes its system calls itself"),
                "{text}"
            );
        }
        // A connection of the C library's is seen, whatever else the program does.
        let (code, text) = said(&compile("both", &["-O2", "-DOTHERWISE"]).unwrap());
        assert_eq!((code, text.as_str()), (Some(42), ""));
    }

    #[test]
    fn other_architectures_and_c_libraries_are_named() {
        let dir = Dir::new();
        let (code, text) = said(&executable(&dir, "foreign", &tiny_elf(AARCH64, &[])));
        assert!(text.contains("another architecture"), "{text}");
        // 42 where the machine has an emulator for it.
        assert!(matches!(code, Some(126 | 42)), "{code:?}: {text}");
        let loader = (INTERPRETER, &b"/lib/ld-musl-x86_64.so.1\0"[..]);
        let (_, text) = said(&executable(&dir, "musl", &tiny_elf(X86_64, &[loader])));
        assert!(text.contains("musl"), "{text}");
    }

    #[test]
    fn a_damaged_file_is_left_to_the_kernel_and_read_by_no_shell() {
        let dir = Dir::new();
        let mut elf = tiny_elf(X86_64, &[(NOTE, &[0xff; 64])]);
        elf[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        let path = executable(&dir, "damaged", &elf);
        // The number of the machine is that of `>`: a shell would make a file of what follows.
        let elsewhere = Dir::new();
        let mut command = viaduct(&dir.path);
        let output = command
            .current_dir(&elsewhere.path)
            .arg("run")
            .arg(&path)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(126), "{}", stderr(&output));
        assert!(stderr(&output).contains("Exec format error"), "{}", stderr(&output));
        assert_eq!(fs::read_dir(&elsewhere.path).unwrap().count(), 0);
    }

    #[test]
    fn set_user_id_programs_are_known() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give a program to another user");
            return;
        }
        let dir = Dir::new();
        let path = executable(&dir, "suid", &fs::read("/bin/true").unwrap());
        let said_before = said(&path);
        assert_eq!(said_before, (Some(0), String::new()));
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        let (code, text) = said(&path);
        assert_eq!(code, Some(0));
        assert!(text.contains("set-user-ID"), "{text}");
    }
}

/// A stand-in for viaductd: leaves its arguments, parent and descriptors in files, says that it is ready, lives on for
/// a moment. Who waits for that looks for its parent's number.
const STAND_IN: &str = r#"#!/bin/sh
dir=$2
ready=$6
echo "$*" >"$dir/arguments"
ls -l /proc/$$/fd >"$dir/descriptors"
printf x >&"$ready"
sleep 0.3
cut -d' ' -f4 /proc/$$/stat >"$dir/parent"
"#;

fn start(dir: &Dir, stand_in: &str, arguments: &[&str]) -> (Output, Duration) {
    let daemon = executable(dir, "viaductd", stand_in.as_bytes());
    let begin = Instant::now();
    let output = viaduct(&dir.path)
        .env("VIADUCT_DAEMON", daemon)
        .arg("run")
        .args(arguments)
        .output()
        .unwrap();
    (output, begin.elapsed())
}

#[test]
fn viaductd_is_started_as_nobodys_child_with_nothing_of_ours_open() {
    let dir = Dir::new();
    // A descriptor that children inherit, as shells and build tools leave them about.
    let (_read, _write) = rustix::pipe::pipe().unwrap();
    let (output, _) = start(
        &dir,
        STAND_IN,
        &[
            "sh",
            "-c",
            "echo $$; for i in $(seq 3000); do [ -s \"$0/parent\" ] && break; sleep 0.01; done",
            &dir.path.display().to_string(),
        ],
    );
    let program = stdout(&output).trim().to_owned();
    let read = |name: &str| fs::read_to_string(dir.path.join(name)).unwrap();
    let arguments = read("arguments");
    assert!(
        arguments.starts_with(&format!("--dir {} --idle-exit 60 --ready-fd ", dir.path.display())),
        "{arguments}"
    );
    let open = read("descriptors");
    assert_eq!(open.matches("pipe:[").count(), 1, "only that for readiness: {open}");
    assert_ne!(read("parent").trim(), program);
    assert_ne!(read("parent").trim(), std::process::id().to_string());
}

/// A stand-in that leaves what it may use in files, and says that it is ready.
const LIMITED: &str = r#"#!/bin/sh
cat /proc/$$/limits >"$2/limits"
grep Cpus_allowed_list /proc/$$/status >"$2/processors"
cut -d' ' -f19 /proc/$$/stat >"$2/niceness"
cut -d' ' -f41 /proc/$$/stat >"$2/policy"
cat /proc/$$/oom_score_adj >"$2/score"
umask >"$2/umask"
printf 1 >&"$6"
"#;

/// `viaduct run` with these arguments, started by a shell that has done something first. viaductd is the script.
fn run_after(dir: &Dir, first: &str, viaductd: &str, arguments: &[&str]) -> Output {
    let daemon = executable(dir, "viaductd", viaductd.as_bytes());
    let own = viaduct(&dir.path);
    let mut shell = Command::new("bash");
    pass_environment(&own, &mut shell);
    shell.env("VIADUCT_DAEMON", daemon);
    shell.args(["-c", &format!("{first}; exec \"$0\" run \"$@\"")]);
    shell.arg(own.get_program()).args(arguments).output().unwrap()
}

fn has(right: CapabilitySet) -> bool {
    capabilities(None).unwrap().effective.contains(right)
}

/// The soft and the hard limit of a line of `/proc/PID/limits`.
fn limit(limits: &str, name: &str) -> [String; 2] {
    let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    [words.next().unwrap(), words.next().unwrap()]
}

#[test]
fn viaductd_does_not_speak_for_the_first_program() {
    let dir = Dir::new();
    let viaductd = "#!/bin/sh\nenv >\"$2/found\"\n";
    let output = run_after(
        &dir,
        "export NOTIFY_SOCKET=/there",
        viaductd,
        &["sh", "-c", "echo $NOTIFY_SOCKET"],
    );
    assert_eq!(stdout(&output), "/there\n");
    let found = fs::read_to_string(dir.path.join("found")).unwrap();
    assert!(!found.contains("NOTIFY_SOCKET"), "{found}");
}

#[test]
fn viaductd_is_not_limited_as_the_first_program_is() {
    let own = fs::read_to_string("/proc/self/limits").unwrap();
    let dir = Dir::new();
    // Without rights, only soft limits are for `viaduct` to raise.
    let hard = has(CapabilitySet::SYS_RESOURCE);
    let kind = if hard { "-SH" } else { "-S" };
    let first = format!("ulimit {kind} -f 8000 -d 900000 -v 9000000 -t 100");
    let output = run_after(&dir, &first, LIMITED, &["cat", "/proc/self/limits"]);
    assert_eq!(stderr(&output), "");
    let of_viaductd = fs::read_to_string(dir.path.join("limits")).unwrap();
    for (name, of_program) in [
        ("Max file size", 8000 << 10),
        ("Max data size", 900_000 << 10),
        ("Max address space", 9_000_000_u64 << 10),
        ("Max cpu time", 100),
    ] {
        // The program has what it was given.
        assert_eq!(limit(&stdout(&output), name)[0], of_program.to_string(), "{name}");
        if hard || limit(&own, name)[1] == "unlimited" {
            assert_eq!(limit(&of_viaductd, name), ["unlimited", "unlimited"], "{name}");
        }
    }
}

#[test]
fn viaductd_is_started_from_no_program_whose_limit_would_have_it_refuse_everybody() {
    let dir = Dir::new();
    let output = run_after(&dir, "ulimit -f 8000", LIMITED, &["sh", "-c", "exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    let started = dir.path.join("limits").exists();
    if has(CapabilitySet::SYS_RESOURCE) {
        assert!(started, "{}", stderr(&output));
    } else {
        assert!(!started);
        assert!(
            stderr(&output).contains("(`ulimit -f`) of 8000 KiB"),
            "{}",
            stderr(&output)
        );
    }
}

/// One process is this one; a second starts viaductd and ends.
#[test]
fn where_no_process_can_be_made_the_limit_is_named() {
    use std::os::unix::process::CommandExt;
    let dir = Dir::new();
    fs::set_permissions(&dir.path, fs::Permissions::from_mode(0o777)).unwrap();
    let copy = dir.path.join("viaduct");
    fs::copy(viaduct(&dir.path).get_program(), &copy).unwrap();
    let daemon = executable(&dir, "viaductd", STAND_IN.as_bytes());
    for most in [1, 2] {
        let mut shell = Command::new("bash");
        shell
            .env("VIADUCT_DAEMON", &daemon)
            .env("VIADUCT_PRELOAD", some_library());
        shell.env("VIADUCT_DIR", &dir.path).env("XDG_CONFIG_HOME", &dir.path);
        shell.args(["-c", &format!("ulimit -u {most}; exec \"$0\" run \"$@\"")]);
        shell.arg(&copy).args(["echo", "runs"]);
        if rustix::process::geteuid().is_root() {
            // One whose processes are counted, and who has none.
            shell.uid(61_003).gid(61_003);
        }
        let output = shell.output().unwrap();
        assert_eq!(stdout(&output), "runs\n", "{}", stderr(&output));
        let why = format!(
            "viaduct: echo runs as plain TCP until a viaductd answers in {}: no process could be made to start one: this user has as many as \
             its limit (`ulimit -u`, here {most}) or its control group's (`pids.max`) allows; raise it, or start viaductd before, from where \
             there is no such limit\n",
            dir.path.display()
        );
        assert_eq!(stderr(&output), why);
    }
}

#[test]
fn viaductd_is_scheduled_as_others_are() {
    for (policy, priority, is_right) in [
        ("fifo", 1, true),
        ("rr", 1, true),
        ("batch", 0, false),
        ("idle", 0, true),
    ] {
        if is_right && !has(CapabilitySet::SYS_NICE) {
            eprintln!("skipped {policy}: needs rights");
            continue;
        }
        let dir = Dir::new();
        let first = format!("chrt --{policy} -p {priority} $$ || {{ echo none; exit; }}");
        let output = run_after(&dir, &first, LIMITED, &["sh", "-c", "cut -d' ' -f41 /proc/$$/stat"]);
        if stdout(&output) == "none\n" {
            eprintln!("skipped {policy}: not on this machine");
            continue;
        }
        assert_ne!(stdout(&output), "0\n", "{policy}: the program keeps its own");
        assert_eq!(fs::read_to_string(dir.path.join("policy")).unwrap(), "0\n", "{policy}");
    }
}

#[test]
fn viaductd_runs_on_all_processors_and_as_nice_as_others() {
    if !has(CapabilitySet::SYS_NICE) {
        eprintln!("skipped: needs the right to be less nice");
        return;
    }
    let dir = Dir::new();
    let own = sched_getaffinity(None).unwrap();
    let one = (0..CpuSet::MAX_CPU).find(|number| own.is_set(*number)).unwrap();
    let first = format!("taskset -pc {one} $$ >/dev/null; renice 9 $$ >/dev/null");
    let output = run_after(&dir, &first, LIMITED, &["sh", "-c", "nice; taskset -pc $$"]);
    assert_eq!(stderr(&output), "");
    let program = stdout(&output);
    assert!(
        program.starts_with("9\n") && program.ends_with(&format!(": {one}\n")),
        "{program}"
    );
    let read = |name: &str| fs::read_to_string(dir.path.join(name)).unwrap();
    assert_eq!(read("niceness"), "0\n");
    if own.count() > 1 {
        assert_ne!(
            read("processors").split_whitespace().last(),
            Some(one.to_string().as_str())
        );
    }
}

#[test]
fn viaductd_makes_files_and_is_ended_for_want_of_memory_as_others_are() {
    let dir = Dir::new();
    let first = "umask 777; echo 500 >/proc/$$/oom_score_adj";
    let show = ["sh", "-c", "umask; cat /proc/self/oom_score_adj"];
    let output = run_after(&dir, first, LIMITED, &show);
    assert_eq!(
        (stdout(&output).as_str(), stderr(&output).as_str()),
        ("0777\n500\n", "")
    );
    let read = |name: &str| fs::read_to_string(dir.path.join(name)).unwrap();
    assert_eq!((read("umask").as_str(), read("score").as_str()), ("0022\n", "0\n"));
}

#[test]
fn a_program_with_too_little_memory_for_the_library_runs_without_it() {
    let dir = Dir::new();
    let show = ["sh", "-c", "echo [$LD_PRELOAD]"];
    for (first, limit) in [
        (
            "ulimit -d 15000",
            " KiB of data, and the limit on it (`ulimit -d`) is 15000 KiB\n",
        ),
        (
            "ulimit -v 45000",
            " KiB of address space, and the limit on it (`ulimit -v`) is 45000 KiB\n",
        ),
    ] {
        let output = run_after(&dir, first, STAND_IN, &show);
        assert_eq!(stdout(&output), "[]\n", "{first}");
        let said = stderr(&output);
        assert!(
            said.starts_with("viaduct: sh runs as plain TCP: the library takes ") && said.ends_with(limit),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // What this process was itself started with does not go on to the program.
    let inherited = format!(
        "ulimit -d 15000; export LD_PRELOAD=/nowhere/{}",
        "libviaduct_preload.so"
    );
    assert_eq!(stdout(&run_after(&dir, &inherited, STAND_IN, &show)), "[]\n");
    // A limit that leaves enough does not hinder.
    let output = run_after(&dir, "ulimit -d 100000 -v 200000", STAND_IN, &show);
    assert!(stdout(&output).contains("libc.so"), "{}", stdout(&output));
    assert_eq!(stderr(&output), "");
}

/// The number that a script leaves in a file, which it may only be about to write.
fn number_in(file: &Path) -> Pid {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Some(number) = text.strip_suffix('\n') {
            return Pid::from_raw(number.parse().unwrap()).unwrap();
        }
        assert!(Instant::now() < deadline, "nothing in {}", file.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_viaductd_that_fails_or_hangs_does_not_hinder_the_program() {
    let dir = Dir::new();
    let (output, _) = start(&dir, "#!/bin/sh\nexit 1\n", &["sh", "-c", "exit 5"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(
        stderr(&output).contains(": viaductd exited at once"),
        "{}",
        stderr(&output)
    );
    assert_eq!(stderr(&output).matches("viaduct: ").count(), 1, "{}", stderr(&output));
    let says = "#!/bin/sh\nwhile [ \"$1\" != --ready-fd ]; do shift; done\nprintf '0no room here' > /proc/self/fd/$2\nexit 1\n";
    let (output, _) = start(&dir, says, &["sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    let said = stderr(&output);
    assert!(said.contains("viaductd could not start: no room here"), "{said}");
    // One that says nothing is not waited for as long as it lives.
    let hangs = "#!/bin/sh\necho $$ >\"$2/late\"\nexec sleep 1000\n";
    let (output, _) = start(&dir, hangs, &["sh", "-c", "exit 6"]);
    kill_process(number_in(&dir.path.join("late")), Signal::KILL).unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(stderr(&output).contains("did not become ready"), "{}", stderr(&output));
}

/// A stand-in that stops as it starts, as it would on a machine that has no time for it.
const STOPS: &str = "#!/bin/sh\necho $$ >\"$2/stopped\"\nkill -STOP $$\nprintf 1 >&\"$6\"\n";

#[test]
fn a_viaductd_that_is_slow_to_start_is_waited_for() {
    for (signal, said) in [(Signal::CONT, ""), (Signal::KILL, "viaductd exited at once")] {
        let dir = Dir::new();
        let place = dir.path.clone();
        let program = std::thread::spawn(move || start(&dir, STOPS, &["sh", "-c", "exit 3"]).0);
        let viaductd = number_in(&place.join("stopped"));
        std::thread::sleep(Duration::from_secs(4));
        let has_waited = !program.is_finished();
        kill_process(viaductd, signal).unwrap();
        assert!(has_waited);
        let output = program.join().unwrap();
        assert_eq!(output.status.code(), Some(3));
        let errors = stderr(&output);
        assert!(
            errors.contains(said) && errors.is_empty() == said.is_empty(),
            "{errors}"
        );
    }
}

/// What a viaductd that is killed just then has done by that time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Last {
    Listened,
    Accepted,
    ReadTheQuestion,
}

#[test]
fn a_viaductd_that_is_killed_as_it_is_asked_is_replaced() {
    for last in [Last::Listened, Last::Accepted, Last::ReadTheQuestion] {
        let dir = Dir::new();
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(socket_path(&dir.path)).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        let killed = std::thread::spawn(move || {
            let comes = |socket: &OwnedFd| poll(&mut [PollFd::new(socket, PollFlags::IN)], None).unwrap();
            comes(&listener);
            if last == Last::Listened {
                // The question has been sent meanwhile.
                std::thread::sleep(Duration::from_millis(50));
                return;
            }
            let asker = accept(&listener).unwrap();
            comes(&asker);
            if last == Last::ReadTheQuestion {
                recv(&asker, &mut [0; 64], RecvFlags::empty()).unwrap();
            }
        });
        let started = "#!/bin/sh\n: >\"$2/started\"\nprintf 1 >&\"$6\"\n";
        let (output, _) = start(&dir, started, &["sh", "-c", "exit 4"]);
        killed.join().unwrap();
        assert_eq!(output.status.code(), Some(4));
        assert_eq!(stderr(&output), "", "{last:?}");
        assert!(dir.path.join("started").exists(), "{last:?}");
    }
}

#[test]
fn a_viaductd_that_turns_a_user_away_is_not_replaced() {
    let dir = Dir::new();
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(socket_path(&dir.path)).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    // Until the test's process ends.
    std::thread::spawn(move || while accept(&listener).is_ok() {});
    // Nothing is waited for; but the machine may stand still for longer.
    let took = [(); 3].map(|()| {
        let (output, took) = start(&dir, "#!/bin/sh\n: >\"$2/started\"\n", &["sh", "-c", "exit 4"]);
        assert_eq!(output.status.code(), Some(4));
        assert!(
            stderr(&output).contains("turned this process away"),
            "{}",
            stderr(&output)
        );
        assert!(!dir.path.join("started").exists());
        took
    });
    let prompt = took.iter().filter(|took| **took < Duration::from_secs(1)).count();
    assert!(prompt >= 2, "{took:?}");
    let doctor = stdout(&viaduct(&dir.path).arg("doctor").output().unwrap());
    assert!(doctor.contains("turned this process away"), "{doctor}");
}

#[test]
fn the_program_finds_signals_as_the_user_left_them() {
    let dir = Dir::new();
    for options in [
        &["--default-signal=PIPE"][..],
        &["--ignore-signal=PIPE"],
        &["--ignore-signal=PIPE", "--ignore-signal=USR2", "--block-signal=USR1"],
        &["--default-signal=PIPE", "--block-signal=PIPE"],
        // A child comes before the program: whoever starts viaductd.
        &["--ignore-signal=CHLD"],
        &["--block-signal=CHLD"],
    ] {
        let program = ["grep", "-E", "^(Sig|Shd)(Pnd|Blk|Ign|Cgt)", "/proc/self/status"];
        let mut plain = std::process::Command::new("env");
        let plain = succeed(plain.args(options).args(program));
        let own = viaduct(&dir.path);
        let mut under = std::process::Command::new("env");
        pass_environment(&own, &mut under);
        under.args(options).arg(own.get_program());
        let under = succeed(under.args(["run", "--"]).args(program));
        assert_eq!(under, plain, "{options:?}");
    }
}

/// A program may have had children before it turned into `viaduct run`.
#[test]
fn the_program_finds_its_own_children_and_their_signal() {
    // Ends the child while viaductd is being started, and waits until it has.
    const ENDS: &str = "#!/bin/sh\nread child <\"$2/child\"\nkill -KILL $child\n\
        while [ -e /proc/$child ] && ! grep -q '^State:.Z' /proc/$child/status; do sleep 0.01; done\n";
    const PROGRAM: &str = "import os, signal, sys\nfrom os import WEXITED, WNOHANG, WNOWAIT\n\
        def look():\n    try:\n        return os.waitid(os.P_ALL, 0, WEXITED | WNOHANG | WNOWAIT) is not None\n    \
        except ChildProcessError:\n        return False\n\
        print(signal.SIGCHLD in signal.sigpending(), look())\n";
    // Turns into `viaduct run` with a child that ends before, or during, its start.
    const FIRST: &str = "import os, signal, sys, time\n\
        kind, path, *words = sys.argv[1:]\n\
        if kind == 'blocked':\n    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])\n\
        if kind == 'ignored':\n    signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
        child = os.fork()\n\
        if child == 0:\n    os._exit(0) if kind == 'earlier' else signal.pause()\n\
        if kind == 'earlier':\n    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n    \
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n    child = 1 << 22\n\
        open(path, 'w').write(f'{child}\\n')\n\
        os.execv(words[0], words)\n";
    let dir = Dir::new();
    let daemon = executable(&dir, "viaductd", ENDS.as_bytes());
    for (kind, found) in [
        ("blocked", "True True\n"),
        ("ignored", "False False\n"),
        ("earlier", "False True\n"),
    ] {
        let own = viaduct(&dir.path);
        let mut first = Command::new("python3");
        pass_environment(&own, &mut first);
        first.env("VIADUCT_DAEMON", &daemon);
        first.args(["-c", FIRST, kind]).arg(dir.path.join("child"));
        first
            .arg(own.get_program())
            .args(["run", "--", "python3", "-c", PROGRAM]);
        let output = first.output().unwrap();
        assert_eq!(stdout(&output), found, "{kind}: {}", stderr(&output));
    }
}

#[test]
fn a_standard_descriptor_that_is_closed_stays_so() {
    let dir = Dir::new();
    for number in 0..3 {
        let asked = format!("/proc/self/fd/{number}");
        for (first, open) in [(":".to_owned(), true), (format!("exec {number}<&-"), false)] {
            let output = run_after(&dir, &first, "#!/bin/sh\n", &["--path", "tcp", "test", "-e", &asked]);
            assert_eq!(output.status.code(), Some(i32::from(!open)), "{first}: {asked}");
        }
    }
}

#[test]
fn a_program_that_stays_on_tcp_starts_no_viaductd() {
    let dir = Dir::new();
    let (output, _) = start(&dir, STAND_IN, &["--path", "tcp", "sh", "-c", "exit 0"]);
    assert!(output.status.success());
    assert!(!dir.path.join("arguments").exists());
}

#[test]
fn a_program_that_a_rule_says_never_of_is_started_as_without_viaduct() {
    const SHOW: &str = "echo ${LD_PRELOAD-none} ${VIADUCT_RULES-none}";
    let dir = Dir::new();
    dir.file("viaduct.toml", "[[rules]]\naction = 'never'\nprogram = 'sh'\n");
    let (output, _) = start(&dir, STAND_IN, &["sh", "-c", SHOW]);
    assert_eq!(
        (stdout(&output), stderr(&output)),
        ("none none\n".into(), String::new())
    );
    assert!(!dir.path.join("arguments").exists(), "it has started viaductd");
    // What `viaduct run` itself was started with is not passed on; what is not ours is.
    let library = some_library();
    let mut command = viaduct(&dir.path);
    command.env(
        "LD_PRELOAD",
        format!("/nowhere/libviaduct_preload.so:{}", library.display()),
    );
    let output = command.args(["run", "-v", "sh", "-c", SHOW]).output().unwrap();
    assert_eq!(stdout(&output), format!("{} none\n", library.display()));
    assert!(stderr(&output).contains("a rule says never"), "{}", stderr(&output));
    // Without others, there is no variable as there was none.
    let mut command = viaduct(&dir.path);
    command.env("LD_PRELOAD", "/nowhere/libviaduct_preload.so:");
    let output = command.args(["run", "sh", "-c", SHOW]).output().unwrap();
    assert_eq!(stdout(&output), "none none\n");
    // Another program is not meant, nor one of which the rule spares some connections only.
    dir.file(
        "viaduct.toml",
        "[[rules]]\naction = 'never'\nport = 22\n[[rules]]\naction = 'never'\nprogram = 'ssh'\n",
    );
    let (output, _) = start(&dir, STAND_IN, &["sh", "-c", SHOW]);
    let expected = format!(
        "/$LIB/../../../..{} never,port=22;never,program=ssh\n",
        library.display()
    );
    assert_eq!(stdout(&output), expected);
}

#[test]
fn manual_pages_and_completions_are_written() {
    let dir = Dir::new();
    let (man, completions) = (dir.path.join("man"), dir.path.join("completions"));
    let generate = |what: &str, to: &Path| succeed(viaduct(&dir.path).args(["generate", what]).arg(to));
    generate("man", &man);
    generate("completions", &completions);
    for page in [
        "viaduct",
        "viaduct-run",
        "viaduct-status",
        "viaduct-explain",
        "viaduct-path",
        "viaduct-doctor",
    ] {
        let text = fs::read_to_string(man.join(format!("{page}.1"))).unwrap();
        assert!(
            text.contains(".TH") && text.contains(".SH EXAMPLES") || page == "viaduct-doctor",
            "{page}"
        );
        assert!(
            text.contains(".SH \"EXIT STATUS\"") || text.contains(".SH EXIT STATUS") || page == "viaduct-status",
            "{page}"
        );
    }
    assert!(!man.join("viaduct-generate.1").exists());
    for file in ["viaduct.bash", "viaduct.fish", "_viaduct"] {
        let text = fs::read_to_string(completions.join(file)).unwrap();
        assert!(text.contains("status") && !text.contains("launch-daemon"), "{file}");
    }
    // zsh cannot be asked without a terminal.
    let zsh = fs::read_to_string(completions.join("_viaduct")).unwrap();
    assert!(zsh.contains("*::command -- The program and its arguments:_cmdambivalent'"));
    assert!(zsh.contains("*::path -- The descriptor and the path:(tcp shm auto)'"));
}

#[test]
fn help_that_cannot_be_written_is_told() {
    let home = Dir::new();
    let full = || Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap());
    let unread = || Stdio::from(std::io::pipe().unwrap().1);
    for words in ["--version", "--help", "-h", "run --help", "help bench", "doctor"] {
        let start = |out: Stdio| {
            let mut command = viaduct(&home.path);
            command.args(words.split(' ')).stdout(out).output().unwrap()
        };
        let output = start(full());
        assert_eq!(output.status.code(), Some(1), "{words}");
        let said = stderr(&output);
        assert_eq!(
            said, "viaduct: standard output: No space left on device (os error 28)\n",
            "{words}"
        );
        let output = start(unread());
        assert_eq!(output.status.code(), Some(0), "{words}");
        assert_eq!(stderr(&output), "", "{words}");
    }
}

#[test]
fn where_proc_is_missing_that_is_told() {
    if !has(CapabilitySet::SYS_ADMIN) {
        return;
    }
    let home = Dir::new();
    for (words, told, status) in [
        (
            "run -- true",
            "; without /proc `viaduct` does not know where it is itself",
            0,
        ),
        ("path 1 3 tcp", "no process is to be seen: /proc cannot be read", 1),
        ("status", "no process is to be seen: /proc cannot be read", 1),
    ] {
        let own = viaduct(&home.path);
        let mut hidden = Command::new("unshare");
        hidden.args(["-m", "sh", "-c", "mount -t tmpfs none /proc && exec \"$0\" \"$@\""]);
        hidden.arg(own.get_program()).args(words.split(' '));
        for (name, value) in own.get_envs() {
            match value {
                Some(value) => hidden.env(name, value),
                None => hidden.env_remove(name),
            };
        }
        // What names the library needs no other place.
        hidden.env_remove("VIADUCT_PRELOAD").env("VIADUCT_DIR", &home.path);
        let output = hidden.output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{words}");
        assert!(stderr(&output).contains(told), "{words}: {}", stderr(&output));
    }
}

/// In the place of a closed one Rust's runtime opens `/dev/null`, which takes everything.
#[test]
fn a_closed_standard_output_is_told() {
    let home = Dir::new();
    let commands = [
        "--version",
        "--help",
        "run --help",
        "doctor",
        "status",
        "status --json",
        "status --totals",
        "bench latency",
        "explain 1",
    ];
    for words in commands {
        let own = viaduct(&home.path);
        let mut closed = Command::new("sh");
        closed.args(["-c", "exec \"$0\" \"$@\" >&-"]).arg(own.get_program());
        closed.args(words.split(' '));
        closed.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = closed.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}");
        let said = stderr(&output);
        assert_eq!(
            said, "viaduct: standard output: Bad file descriptor (os error 9)\n",
            "{words}"
        );
    }
}

#[test]
fn help_tells_what_holds_without_an_option() {
    let dir = Dir::new();
    let help = |command: &str| succeed(viaduct(&dir.path).args([command, "--help"]));
    for (command, options) in [("run", 7), ("path", 2)] {
        let text = help(command);
        // Lines are broken where they are full.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(text.matches("[default: ").count(), options, "{text}");
    }
    assert!(help("path").contains("<CONNECTION> <PATH>"), "{}", help("path"));
}

/// What the shell's completion offers for the last word of each line: these, and not those.
const COMPLETED: [(&str, &[&str], &[&str]); 14] = [
    ("viaduct s", &["status"], &["run"]),
    ("viaduct run --pa", &["--path"], &["--spin"]),
    ("viaduct run --path ", &["auto", "tcp", "shm"], &["tac"]),
    ("viaduct run ta", &["tac"], &["--path"]),
    ("viaduct run -- ta", &["tac"], &["--path"]),
    ("viaduct run --spin never -v -- ta", &["tac"], &["--path"]),
    ("viaduct run --path tcp ta", &["tac"], &["tcp"]),
    ("viaduct path 47", &[], &["tcp", "shm"]),
    ("viaduct path 4711 ", &[], &["tcp", "shm"]),
    ("viaduct path 4711 12 ", &["tcp", "shm", "auto"], &["--dir"]),
    ("viaduct path --dir /tmp 4711 12 s", &["shm"], &["tcp"]),
    ("viaduct path 127.0.0.1:6379 ", &["tcp", "shm", "auto"], &[]),
    ("viaduct path :6379 t", &["tcp"], &["shm"]),
    ("viaduct path 4711 12 --no", &["--no-wait"], &["tcp"]),
];

/// Splits as the shell does where it completes, and prints what is offered.
const COMPLETE: &str = r#"source "$1"
COMP_LINE=$2 COMP_POINT=${#2}
split=${2//:/ : }
read -ra COMP_WORDS <<<"${split//=/ = }"
[[ $2 == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
function=$(complete -p viaduct | sed 's/.*-F \([^ ]*\).*/\1/')
$function viaduct "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

#[test]
fn programs_and_paths_are_completed() {
    let dir = Dir::new();
    succeed(viaduct(&dir.path).args(["generate", "completions"]).arg(&dir.path));
    let bash = dir.path.join("viaduct.bash");
    let asked = |shell: &str, line: &str| {
        let mut command = Command::new(shell);
        match shell {
            "bash" => command.args(["-c", COMPLETE, "bash"]).arg(&bash).arg(line),
            _ => {
                let source = format!(
                    "source {}; complete -C \"$LINE\"",
                    dir.path.join("viaduct.fish").display()
                );
                command.args(["--no-config", "-c", &source]).env("LINE", line)
            }
        };
        let output = command.env("HOME", &dir.path).output();
        output.map(|output| {
            assert_eq!(stderr(&output), "", "{shell}: {line}");
            let lines = stdout(&output);
            let words = lines
                .lines()
                .filter_map(|line| line.split('\t').next().map(str::to_owned));
            words.collect::<Vec<_>>()
        })
    };
    for shell in ["bash", "fish"] {
        if asked(shell, "viaduct ").is_err() {
            eprintln!("skipped: no {shell}");
            continue;
        }
        for (line, offered, not) in COMPLETED {
            let words = asked(shell, line).unwrap();
            let has = |word: &&str| words.iter().any(|own| own == word);
            assert!(offered.iter().all(&has), "{shell}: {line:?}: {words:?}");
            assert!(!not.iter().any(has), "{shell}: {line:?}: {words:?}");
        }
    }
}
