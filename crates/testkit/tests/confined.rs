//! viaductd cannot do what it has given up. The kernel's word for its state is checked in its own tests; here it is
//! made to try.
#![cfg(target_arch = "x86_64")]

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use viaduct_testkit::Instance;

/// No process has a number above 4 Mi.
const NOBODY: u64 = i32::MAX as u64;

/// A stopped process, which goes on when this is dropped.
struct Stopped {
    pid: Pid,
    registers: libc::user_regs_struct,
}

impl Stopped {
    /// Stops `pid` where it waits for events, as it does most of the time. In other calls signals come between.
    fn new(pid: u32) -> Self {
        let pid = Pid::from_raw(pid.cast_signed());
        for _ in 0..400 {
            ptrace::seize(pid, ptrace::Options::empty()).unwrap();
            ptrace::interrupt(pid).unwrap();
            waitpid(pid, None).unwrap();
            let registers = ptrace::getregs(pid).unwrap();
            let stopped = Self { pid, registers };
            if stopped.waits() {
                return stopped;
            }
            drop(stopped);
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it never waits for events");
    }

    /// Whether the instruction that it has executed last is a system call that waits for events.
    fn waits(&self) -> bool {
        let waits = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait].map(libc::c_long::cast_unsigned);
        if !waits.contains(&self.registers.orig_rax) {
            return false;
        }
        let mut instruction = [0; 2];
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.pid)).unwrap();
        memory.read_exact_at(&mut instruction, self.registers.rip - 2).unwrap();
        instruction == [0x0f, 0x05]
    }

    /// Has the process make a system call where it waits in one, and returns the outcome.
    fn call(&self, number: libc::c_long, arguments: [u64; 3]) -> Result<i64, Errno> {
        let mut registers = self.registers;
        registers.rip -= 2;
        registers.rax = number.cast_unsigned();
        // The call that was interrupted is not to be begun anew in between.
        registers.orig_rax = u64::MAX;
        [registers.rdi, registers.rsi, registers.rdx] = arguments;
        ptrace::setregs(self.pid, registers).unwrap();
        ptrace::step(self.pid, None).unwrap();
        waitpid(self.pid, None).unwrap();
        let outcome = ptrace::getregs(self.pid).unwrap().rax.cast_signed();
        match i32::try_from(-outcome) {
            Ok(error @ 1..4096) => Err(Errno::from_raw(error)),
            _ => Ok(outcome),
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let restored = ptrace::setregs(self.pid, self.registers).and_then(|()| ptrace::detach(self.pid, None));
        // A test that has failed already says more.
        assert!(restored.is_ok() || std::thread::panicking(), "{restored:?}");
    }
}

#[test]
fn a_call_that_viaductd_has_given_up_is_refused() {
    for arguments in [&[][..], &["--same-user"]] {
        let instance = Instance::start_with(arguments);
        let pid = instance.daemon_pid();
        let stopped = Stopped::new(pid);
        // One that it may make is made, so the others would be, too.
        assert_eq!(stopped.call(libc::SYS_getpid, [0; 3]), Ok(pid.into()));
        let inet = [libc::AF_INET, libc::SOCK_STREAM, 0].map(|word| u64::from(word.cast_unsigned()));
        let here = u64::from(libc::AT_FDCWD.cast_unsigned());
        for (number, words) in [
            (libc::SYS_socket, inet),
            (libc::SYS_openat, [here, 0, 0]),
            (libc::SYS_execve, [0; 3]),
            (libc::SYS_fork, [0; 3]),
            // Of a process that there cannot be, which would be ESRCH.
            (libc::SYS_ptrace, [libc::PTRACE_ATTACH.into(), NOBODY, 0]),
            (libc::SYS_setuid, [0; 3]),
            // BPF_PROG_LOAD; it may only change elements of a map.
            (libc::SYS_bpf, [5, 0, 0]),
        ] {
            assert_eq!(
                stopped.call(number, words),
                Err(Errno::EPERM),
                "call {number}, {arguments:?}"
            );
        }
        drop(stopped);
        // It goes on as before.
        assert_eq!(instance.stats().pid, pid);
    }
}
