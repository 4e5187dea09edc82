//! What `viaduct run` said in the environment.

use crate::agent::counters;
use crate::sys::{self, raw};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};
use std::ffi::CString;
use viaduct_control::policy::{OFFER_VARIABLE, PATH_VARIABLE, PathPolicy, Policy, RULES_VARIABLE, SPIN_VARIABLE};
use viaduct_control::runtime;

static POLICY: AtomicPtr<Policy> = AtomicPtr::new(core::ptr::null_mut());

/// The policy in the environment. One that does not parse is plain TCP, and the status says so: `viaduct run` would
/// have refused it, but a container that sets `LD_PRELOAD` has nobody else to tell.
#[inline]
pub(crate) fn policy() -> &'static Policy {
    // Acquire pairs with the release in `parse_policy`.
    match sys::leaked_record(POLICY.load(Acquire)) {
        Some(policy) => policy,
        None => parse_policy(),
    }
}

#[cold]
fn parse_policy() -> &'static Policy {
    let name = counters::program_name();
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    let program = name
        .get(..end)
        .and_then(|name| core::str::from_utf8(name).ok())
        .unwrap_or("");
    let parsed = Policy::parse(program, |variable| {
        sys::environment(match variable {
            PATH_VARIABLE => c"VIADUCT_PATH",
            SPIN_VARIABLE => c"VIADUCT_SPIN",
            OFFER_VARIABLE => c"VIADUCT_OFFER",
            RULES_VARIABLE => c"VIADUCT_RULES",
            _ => return None,
        })
    });
    let policy = parsed.unwrap_or_else(|_| Policy::misspelt());
    let fresh = Box::leak(Box::new(policy));
    match POLICY.compare_exchange(core::ptr::null_mut(), fresh, Release, Acquire) {
        Ok(_) => fresh,
        Err(winner) => sys::leaked_record(winner).unwrap_or(fresh),
    }
}

/// The runtime directory; null until it is asked for.
static DIRECTORY: AtomicPtr<String> = AtomicPtr::new(core::ptr::null_mut());

/// The runtime directory in the environment.
pub(crate) fn directory() -> &'static str {
    match sys::leaked_record(DIRECTORY.load(Acquire)) {
        Some(directory) => directory,
        None => find_directory(),
    }
}

#[cold]
fn find_directory() -> &'static str {
    let named = sys::environment(c"VIADUCT_DIR").filter(|dir| !dir.is_empty());
    let fresh = Box::leak(Box::new(named.unwrap_or("/run/viaduct").to_owned()));
    match DIRECTORY.compare_exchange(core::ptr::null_mut(), fresh, Release, Acquire) {
        Ok(_) => fresh,
        Err(winner) => sys::leaked_record(winner).unwrap_or(fresh),
    }
}

/// Takes what `viaduct run` said out of the environment, before the program may clear or overwrite it (nginx does). A
/// library that is loaded before ours may have had connections by then.
pub fn remember_environment() {
    policy();
    directory();
}

/// Tells viaductd that this process and the children that it forks are there, so that it stays though they may have no
/// connections for long. By a lock rather than a word: it needs no answer, no descriptor, and ends with the last of
/// them however that ends. Without viaductd it is in vain.
pub fn hold_instance() {
    if policy().path == PathPolicy::Tcp {
        return;
    }
    let Ok(path) = CString::new(format!("{}/{}", directory(), runtime::PROGRAMS_NAME)) else {
        return;
    };
    if let Ok(fd) = raw::open_file(&path) {
        // If either fails, connections still say that the process is there.
        let _ = raw::lock_shared(fd).and_then(|()| raw::keep_open(fd));
        raw::close(fd);
    }
}

/// Names the runtime directory in the counters.
pub(crate) fn instance() -> u64 {
    runtime::instance_id(directory().as_bytes())
}
