//! Whether the program waits in epoll sets by system calls of its own, as Bun does. Of such waits nothing is seen, and what the kernel would tell
//! them of a connection on a lane would not be what the program has registered.

use crate::sys::raw;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

/// The program's file.
const PROGRAM: &core::ffi::CStr = c"/proc/self/exe";
/// `epoll_wait`, `epoll_pwait` and `epoll_pwait2`. Nothing but the C library's own functions is known to have `mov $NUMBER, %eax` and, at most `NEAR`
/// bytes later, `syscall`. Not as bytes, which would themselves stand in a program that has this code in it.
const NUMBERS: [libc::c_long; 3] = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
const MOVE: u8 = 0xb8;
const CALL: [u8; 2] = [0x0f, 0x05];
const NEAR: usize = 24;
/// What is looked for is no longer than this.
const SIGN: usize = 5 + NEAR + 2;
const PART: usize = 8 << 10;

const UNKNOWN: u8 = 0;
const SEEN: u8 = 1;
const ITSELF: u8 = 2;

static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether there is code for it in the program's file, which is read through once: a hundred megabytes take some 30 ms.
pub(crate) fn are_made() -> bool {
    match FOUND.load(Relaxed) {
        UNKNOWN => {
            let found = is_in_program();
            FOUND.store(if found { ITSELF } else { SEEN }, Relaxed);
            found
        }
        known => known == ITSELF,
    }
}

/// A file that cannot be read is taken for one without.
fn is_in_program() -> bool {
    let Ok(fd) = raw::open_link(PROGRAM) else { return false };
    let (mut part, mut kept, mut at) = ([0; PART], 0, 0);
    let found = loop {
        let Some(room) = part.get_mut(kept..) else { break false };
        let Ok(read @ 1..) = raw::pread(fd, room, at) else {
            break false;
        };
        at += read.cast_signed() as libc::off_t;
        let filled = kept + read;
        if part.get(..filled).is_some_and(holds) {
            break true;
        }
        // A sign may lie across the end of the part.
        kept = filled.min(SIGN - 1);
        part.copy_within(filled - kept..filled, 0);
    };
    raw::close(fd);
    found
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
mod tests {
    use super::*;

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
        assert!(!is_in_program());
        assert!(!are_made() && FOUND.load(Relaxed) == SEEN);
    }
}
