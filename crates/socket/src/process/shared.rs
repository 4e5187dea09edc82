//! Memory that a process shares with the children it forks from then on.

use crate::process;
use crate::sys::{self, Errno, raw};
use std::os::fd::IntoRawFd;
use viaduct_channel::{Mapping, is_locked};

/// So many bytes of it, zeroed, for good; what nobody touches costs nothing.
pub(crate) fn memory(len: usize) -> Result<*mut u8, Errno> {
    if is_locked() {
        unlocked(len)
    } else {
        raw::anonymous_shared(len)
    }
}

/// The same of a program that locks all that it maps. Only a file's mapping can grow, and so be left out.
fn unlocked(len: usize) -> Result<*mut u8, Errno> {
    // The program may have forbidden itself the calls that this takes; and a file longer than it may write is not
    // refused only: the kernel kills it.
    if process::is_confined() || sys::limit_of(libc::RLIMIT_FSIZE) < len as u64 {
        return Err(libc::ENOMEM);
    }
    let whole_words = len.next_multiple_of(size_of::<u64>());
    let (mapping, fd) = Mapping::create(c"viaduct-shared", whole_words)
        .map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))?;
    // Past our own hook: the descriptor has never been the program's.
    raw::close(fd.into_raw_fd());
    Ok(mapping.leak().as_ptr().cast_mut().cast())
}
