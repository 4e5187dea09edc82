//! The descriptors that are open, as the kernel lists them.

use super::raw;
use core::ffi::{CStr, c_int};

/// Where the kernel lists them. Threads may have tables of their own.
const DIRECTORY: &CStr = c"/proc/thread-self/fd";
/// Places in an entry (`struct linux_dirent64`, linux/dirent.h) of its length and its name.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

/// Where it tells how many the calling thread's table has room for, in a line that begins so.
const STATUS: &CStr = c"/proc/thread-self/status";
const ROOM: &[u8] = b"FDSize:";

/// Where it lists the children of the calling thread, by number, each with a space behind it.
const CHILDREN: &CStr = c"/proc/thread-self/children";

/// How many descriptors the kernel's table has room for; `None` where it does not tell.
pub(crate) fn room() -> Option<usize> {
    let fd = raw::open_file(STATUS).ok()?;
    let mut status = [0; 1024];
    let read = raw::pread(fd, &mut status, 0);
    raw::close(fd);
    let mut lines = status.get(..read.ok()?)?.split(|byte| *byte == b'\n');
    let room = lines.find_map(|line| line.strip_prefix(ROOM))?;
    core::str::from_utf8(room).ok()?.trim().parse().ok()
}

/// Tells `each` of the children that the calling thread has made, the latest last; false where the kernel does not tell.
pub(crate) fn children(mut each: impl FnMut(u32)) -> bool {
    let Ok(fd) = raw::open_file(CHILDREN) else {
        return false;
    };
    let (mut part, mut at, mut number) = ([0; 1024], 0, 0_u32);
    let told = loop {
        match raw::pread(fd, &mut part, at) {
            Ok(0) => break true,
            Err(_) => break false,
            Ok(read) => {
                at += read.cast_signed() as libc::off_t;
                for byte in part.iter().take(read) {
                    match byte {
                        b'0'..=b'9' => number = number.wrapping_mul(10).wrapping_add(u32::from(byte - b'0')),
                        _ => each(core::mem::take(&mut number)),
                    }
                }
            }
        }
    };
    raw::close(fd);
    told
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
