//! The limits that viaductd was started with.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What viaductd needs more of the more programs it serves. Only the hard limits are somebody's decision about it: the
/// soft ones it may have from a shell that meant other programs.
const RAISED: [(Resource, &str); 5] = [
    (Resource::Nofile, "open files"),
    (Resource::Fsize, "file size"),
    (Resource::Data, "data"),
    (Resource::As, "address space"),
    (Resource::Cpu, "processor time"),
];

/// Raises soft limits as far as they go, and has a segment that is larger than a file may be refused, which would
/// otherwise end viaductd. Returns how many descriptors there may be: every guest costs one, and so does each of its
/// bells.
///
/// # Errors
/// The signal that tells of too large a file could not be caught.
pub(crate) fn raise() -> std::io::Result<usize> {
    // The call that the signal comes with fails, too, and that is enough.
    signal_hook::flag::register(libc::SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    for (resource, name) in RAISED {
        let limit = getrlimit(resource);
        let raised = Rlimit {
            current: limit.maximum,
            ..limit
        };
        if let Err(error) = setrlimit(resource, raised) {
            tracing::warn!("limit on {name}: {error}");
        }
    }
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    Ok(usize::try_from(descriptors).unwrap_or(usize::MAX))
}
