//! What the kernel tells in files: the descriptors that are open, children, numbers.

use super::{Errno, raw};
use core::ffi::{CStr, c_int};
use std::io::Write;

/// Where the kernel lists them. Threads may have tables of their own.
const DIRECTORY: &CStr = c"/proc/thread-self/fd";
/// Places in an entry (`struct linux_dirent64`, linux/dirent.h) of its length and its name.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

/// Where it tells of the calling thread, a line for each thing.
pub(crate) const STATUS: &CStr = c"/proc/thread-self/status";

/// Where it lists the children of the calling thread, by number, each with a space behind it.
const CHILDREN: &CStr = c"/proc/thread-self/children";

/// Shows `each` the bytes of a file of the kernel's. Asks for no memory.
pub(crate) fn read(path: &CStr, mut each: impl FnMut(u8)) -> Result<(), Errno> {
    let fd = raw::open_file(path)?;
    let (mut part, mut at) = ([0; 1024], 0);
    let told = loop {
        match raw::pread(fd, &mut part, at) {
            Ok(0) => break Ok(()),
            Err(errno) => break Err(errno),
            Ok(read) => {
                at += read.cast_signed() as libc::off_t;
                part.iter().take(read).for_each(|byte| each(*byte));
            }
        }
    };
    raw::close(fd);
    told
}

fn with_digit(number: usize, digit: u8) -> usize {
    number.wrapping_mul(10).wrapping_add(usize::from(digit - b'0'))
}

/// The number in the line of a file of the kernel's that begins with this word, or in its only line; `Ok(None)`: there
/// is no such line, or no number in it.
pub(crate) fn number(path: &CStr, word: &[u8]) -> Result<Option<usize>, Errno> {
    // How much of the word a line has begun with, as long as it has; then its digits.
    let (mut like, mut found) = (Some(0), None);
    read(path, |byte| match (byte, like) {
        (b'\n', _) => like = Some(0),
        (_, Some(count)) if count < word.len() => like = (word.get(count) == Some(&byte)).then_some(count + 1),
        (b'0'..=b'9', Some(_)) => found = Some(with_digit(found.unwrap_or(0), byte)),
        _ => {}
    })?;
    Ok(found)
}

/// Where the kernel tells of the thread that is listed in a directory by this number. Asks for no memory.
fn path_of(directory: &str, number: u32) -> [u8; 48] {
    let mut path = [0; 48];
    // What does not fit names no file.
    let _ = write!(&mut path[..47], "{directory}{number}/status");
    path
}

/// Whether this process has a thread of this number, in the namespace that the kernel's files are of, or that cannot be
/// told.
pub(crate) fn is_own_thread(number: u32) -> bool {
    let path = path_of("/proc/self/task/", number);
    let found = read(CStr::from_bytes_until_nul(&path).unwrap_or_default(), |_| ());
    !matches!(found, Err(libc::ENOENT | libc::ESRCH))
}

/// The state of a thread, as a letter of the kernel's (proc_pid_status(5)); `ENOENT` if there is none of this number.
pub(crate) fn thread_state(number: u32) -> Result<u8, Errno> {
    const WORD: &[u8] = b"State:";
    let (mut like, mut state) = (0, 0);
    let path = path_of("/proc/", number);
    read(
        CStr::from_bytes_until_nul(&path).unwrap_or_default(),
        |byte| match byte {
            b'\n' => like = 0,
            b'A'..=b'Z' | b'a'..=b'z' if state == 0 && like == WORD.len() => state = byte,
            _ if WORD.get(like) == Some(&byte) => like += 1,
            _ if like < WORD.len() => like = usize::MAX,
            _ => {}
        },
    )?;
    Ok(state)
}

/// The number in the line of the thread's own that begins with this word; `None` where the kernel does not tell.
fn status(word: &[u8]) -> Option<usize> {
    number(STATUS, word).ok()?
}

/// How many descriptors the kernel's table has room for; `None` where it does not tell.
pub(crate) fn room() -> Option<usize> {
    status(b"FDSize:")
}

/// How system calls are forbidden to the calling thread: 0 if they are not; `None` where the kernel does not tell.
pub(crate) fn confinement() -> Option<usize> {
    status(b"Seccomp:")
}

/// Tells `each` of the children that the calling thread has made, the latest last; false where the kernel does not
/// tell.
pub(crate) fn children(mut each: impl FnMut(u32)) -> bool {
    let mut number = 0;
    read(CHILDREN, |byte| match byte {
        b'0'..=b'9' => number = with_digit(number, byte),
        _ => each(u32::try_from(core::mem::take(&mut number)).unwrap_or(0)),
    })
    .is_ok()
}

/// The listing, part by part.
#[derive(Debug)]
struct Listing {
    fd: c_int,
    part: [u8; 1024],
    at: usize,
    end: usize,
}

/// The descriptors that are open now, in no order; none where the kernel does not tell.
pub(crate) fn open_descriptors() -> impl Iterator<Item = c_int> {
    let listing = raw::open_directory(DIRECTORY).ok().map(|fd| Listing {
        fd,
        part: [0; 1024],
        at: 0,
        end: 0,
    });
    listing.into_iter().flatten()
}

impl Listing {
    /// The name of the next entry and where it ends, in the part at hand.
    fn name(&self) -> Option<(&[u8], usize)> {
        let entry = self.part.get(self.at..self.end)?;
        let length = entry.get(LENGTH_AT..LENGTH_AT + 2)?;
        let length = usize::from(u16::from_ne_bytes(length.try_into().ok()?));
        let name = entry.get(NAME_AT..length)?;
        Some((name.split(|byte| *byte == 0).next()?, self.at + length))
    }
}

impl Iterator for Listing {
    type Item = c_int;

    fn next(&mut self) -> Option<c_int> {
        loop {
            if self.at >= self.end {
                self.at = 0;
                self.end = raw::read_directory(self.fd, &mut self.part).unwrap_or(0);
            }
            let (name, next) = self.name()?;
            let fd = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
            self.at = next;
            // The directory itself and its parent are listed, too, and so is the descriptor it is read by.
            if let Some(fd) = fd.filter(|fd| *fd != self.fd) {
                return Some(fd);
            }
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        raw::close(self.fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_room_for_the_highest_descriptor_so_far() {
        let made = raw::eventfd().unwrap();
        let high = raw::fcntl(made, libc::F_DUPFD, 900).unwrap();
        assert!(room().is_some_and(|room| room > high && room.is_power_of_two()));
        raw::close(made);
        raw::close(c_int::try_from(high).unwrap());
    }

    #[test]
    fn a_line_is_found_by_its_whole_word() {
        let status_of = |word: &str| {
            let all = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mut lines = all.lines();
            lines.find_map(|line| line.strip_prefix(word)?.trim().parse::<usize>().ok())
        };
        // `Seccomp_filters:` is another.
        for word in ["Tgid:", "Pid:", "Threads:", "Seccomp:"] {
            // Other tests begin and end threads between the two.
            let mut looks = (0..100).map(|_| (status_of(word), status(word.as_bytes())));
            assert!(looks.any(|(known, found)| known.is_some() && found == known), "{word}");
        }
        assert_eq!(status(b"Nothing:"), None);
    }

    #[test]
    fn the_latest_child_is_listed_last() {
        let mut made: Vec<_> = (0..300)
            .map(|_| std::process::Command::new("true").spawn().unwrap())
            .collect();
        let mut listed = Vec::new();
        assert!(children(|child| listed.push(child)));
        assert!(listed.ends_with(&made.iter().map(std::process::Child::id).collect::<Vec<u32>>()));
        made.iter_mut().for_each(|child| drop(child.wait()));
    }

    #[test]
    fn every_open_descriptor_is_listed() {
        let made: Vec<c_int> = (0..100).filter_map(|_| raw::eventfd().ok()).collect();
        let listed: Vec<c_int> = open_descriptors().collect();
        assert!(made.iter().all(|fd| listed.contains(fd)));
        made.into_iter().for_each(raw::close);
    }
}
