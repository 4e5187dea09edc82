//! Whether the program waits in epoll sets by system calls of its own, as Bun does. Of such waits nothing is seen, and
//! what the kernel would tell them of a connection on a lane would not be what the program has registered.

use crate::process;
use crate::sys::{Errno, raw};
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

/// The program's file.
const PROGRAM: &core::ffi::CStr = c"/proc/self/exe";
/// `epoll_wait`, `epoll_pwait` and `epoll_pwait2`. Nothing but the C library's own functions is known to have `mov
/// $NUMBER, %eax` and, at most `NEAR` bytes later, `syscall`. Not as bytes, which would themselves stand in a program
/// that has this code in it.
const NUMBERS: [libc::c_long; 3] = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
const MOVE: u8 = 0xb8;
const CALL: [u8; 2] = [0x0f, 0x05];
const NEAR: usize = 24;
/// What is looked for is no longer than this.
const SIGN: usize = 5 + NEAR + 2;
/// Small, since a signal handler may ask, on a stack of its own.
const PART: usize = 2 << 10;

const UNKNOWN: u8 = 0;
const SEEN: u8 = 1;
const ITSELF: u8 = 2;

static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether there is code for it in the program's file, which is read through once, as far as it can be: a hundred
/// megabytes take some 60 ms. Not in a process that has forbidden itself system calls.
pub(crate) fn are_made() -> bool {
    match FOUND.load(Relaxed) {
        UNKNOWN if process::is_confined() => false,
        UNKNOWN => match is_in_program() {
            Ok(found) => {
                FOUND.store(if found { ITSELF } else { SEEN }, Relaxed);
                found
            }
            // Another time it may be readable.
            Err(_) => false,
        },
        known => known == ITSELF,
    }
}

fn is_in_program() -> Result<bool, Errno> {
    let fd = raw::open_link(PROGRAM)?;
    let found = is_in(fd);
    raw::close(fd);
    found
}

fn is_in(fd: i32) -> Result<bool, Errno> {
    let (mut part, mut kept, mut at) = ([0; PART], 0, 0);
    loop {
        let read = raw::pread(fd, part.get_mut(kept..).unwrap_or_default(), at)?;
        if read == 0 {
            return Ok(false);
        }
        at += read.cast_signed() as libc::off_t;
        let filled = kept + read;
        if part.get(..filled).is_some_and(holds) {
            return Ok(true);
        }
        // A sign may lie across the end of the part.
        kept = filled.min(SIGN - 1);
        part.copy_within(filled - kept..filled, 0);
    }
}

/// Whether these bytes hold such a call whole.
fn holds(code: &[u8]) -> bool {
    let moves = code.iter().enumerate().filter(|(_, byte)| **byte == MOVE);
    moves.filter_map(|(at, _)| code.get(at + 1..)).any(|behind| {
        behind.split_first_chunk().is_some_and(|(number, behind)| {
            let near = behind.get(..behind.len().min(NEAR + CALL.len())).unwrap_or_default();
            NUMBERS.contains(&i32::from_le_bytes(*number).into()) && near.windows(2).any(|two| two == CALL)
        })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    /// Whoever counts on what is found.
    static TURN: Mutex<()> = Mutex::new(());

    /// Does this as a program that makes such waits.
    pub(crate) fn in_a_program_that_makes_them(body: impl FnOnce()) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        FOUND.store(ITSELF, Relaxed);
        body();
        FOUND.store(UNKNOWN, Relaxed);
    }

    #[test]
    fn a_call_is_found_whole_and_near() {
        let with = |number: libc::c_long, between: usize| {
            let number = u32::try_from(number).unwrap().to_le_bytes();
            [&[MOVE][..], &number, &vec![0x90; between], &CALL].concat()
        };
        for number in NUMBERS {
            assert!(holds(&with(number, 0)) && holds(&with(number, NEAR)));
            assert!(!holds(&with(number, NEAR + 1)));
            let whole = with(number, 3);
            assert!(!holds(&whole[..whole.len() - 1]) && !holds(&whole[1..]));
        }
        assert!(!holds(&with(libc::SYS_read, 0)));
    }

    #[test]
    fn a_program_that_waits_by_the_c_library_has_none() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(is_in_program(), Ok(false));
        assert!(!are_made() && FOUND.load(Relaxed) == SEEN);
    }
}
