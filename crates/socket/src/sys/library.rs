//! What is known of the C library behind ours.

use core::ffi::{c_char, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8};

/// Whether the C library comes next, and nobody else's functions.
static NEXT: AtomicBool = AtomicBool::new(false);
/// `__libc_single_threaded` of the C library (version 2.32 and later).
static SINGLE: AtomicPtr<c_char> = AtomicPtr::new(UNKNOWN.as_ptr().cast());
static UNKNOWN: AtomicU8 = AtomicU8::new(0);

/// Finds out, when the library is loaded. `behind`: functions behind ours.
pub(crate) fn prepare(mut behind: impl Iterator<Item = *mut c_void>) {
    // SAFETY: valid names.
    let (version, single) = unsafe {
        (
            libc::dlsym(libc::RTLD_NEXT, c"gnu_get_libc_version".as_ptr()),
            libc::dlsym(libc::RTLD_NEXT, c"__libc_single_threaded".as_ptr()),
        )
    };
    if !single.is_null() {
        SINGLE.store(single.cast(), Relaxed);
    }
    let object = if version.is_null() {
        0..0
    } else {
        object_with(version.addr())
    };
    NEXT.store(behind.all(|function| object.contains(&function.addr())), Relaxed);
}

/// Whether the functions behind ours are the C library's own.
#[inline]
pub(crate) fn is_next() -> bool {
    NEXT.load(Relaxed)
}

/// Whether the process has no other thread, as far as the C library knows; false where that cannot be asked.
#[inline]
pub(crate) fn single_threaded() -> bool {
    // SAFETY: a byte of the C library's or ours, which live as long as the process. Its only writer is a thread that makes others.
    unsafe { AtomicU8::from_ptr(SINGLE.load(Relaxed).cast()) }.load(Relaxed) != 0
}

/// There are threads that the C library does not know of.
pub(crate) fn more_threads() {
    SINGLE.store(UNKNOWN.as_ptr().cast(), Relaxed);
}

/// Where the loaded object lies that `address` belongs to; empty if there is none.
fn object_with(address: usize) -> Range<usize> {
    struct Search {
        address: usize,
        found: Range<usize>,
    }
    unsafe extern "C" fn visit(object: *mut libc::dl_phdr_info, _: libc::size_t, search: *mut c_void) -> c_int {
        // SAFETY: the dynamic linker's description, and what is passed below.
        let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
        // SAFETY: as it says.
        let headers = unsafe { core::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
        let parts = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
            .map(|header| {
                let from = object.dlpi_addr as usize + header.p_vaddr as usize;
                from..from + header.p_memsz as usize
            });
        if parts.clone().any(|part| part.contains(&search.address)) {
            let from = parts.clone().map(|part| part.start).min().unwrap_or(0);
            search.found = from..parts.map(|part| part.end).max().unwrap_or(0);
        }
        c_int::from(!search.found.is_empty())
    }
    let mut search = Search { address, found: 0..0 };
    // SAFETY: the function takes what it is given here.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_holds_its_own_functions() {
        let of_the_library = libc::getpid as *const () as usize;
        let ours = object_with as *const () as usize;
        let (library, program) = (object_with(of_the_library), object_with(ours));
        assert!(library.contains(&of_the_library) && !library.contains(&ours));
        assert!(program.contains(&ours) && !program.contains(&of_the_library));
        assert!(object_with(1).is_empty());
    }

    #[test]
    fn a_process_with_two_threads_is_told_from_one_with_one() {
        prepare(core::iter::once(libc::dlsym as *mut c_void));
        assert!(is_next());
        prepare(core::iter::once(object_with as *mut c_void));
        assert!(!is_next());
        // The test runner's own thread is another one.
        assert!(!single_threaded());
        more_threads();
        assert!(!single_threaded());
    }
}
