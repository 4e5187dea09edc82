//! Limits on what a process may use: those that viaductd is not to take over from the program that happens to be the
//! first, and those under which a program would not start with the library in it.

use crate::{elf, inherit};
use anyhow::{Error, Result, anyhow, bail};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit, umask};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::path::Path;
use viaduct_channel::Geometry;

/// Descriptors for a viaductd that serves everybody, as its unit of systemd says.
const DESCRIPTORS: u64 = 524_288;

/// What small programs and their other libraries take beside ours, of data and of address space.
const PROGRAM: elf::Footprint = elf::Footprint {
    data: 16 << 20,
    whole: 48 << 20,
};

/// Why a program would hardly start with `library` in it, if so. The loader would end it before it could say anything.
pub(crate) fn too_little_for(library: &Path) -> Option<String> {
    // A library that cannot be read is the loader's to complain about.
    let footprint = elf::footprint(library).ok()?;
    let limits = [
        (Resource::Data, "data", 'd', footprint.data, PROGRAM.data),
        (Resource::As, "address space", 'v', footprint.whole, PROGRAM.whole),
    ];
    limits.into_iter().find_map(|(resource, name, option, taken, program)| {
        let limit = getrlimit(resource).current?;
        (limit < taken.saturating_add(program)).then(|| {
            format!(
                "the library takes {} KiB of {name}, and the limit on it (`ulimit -{option}`) is {} KiB",
                taken >> 10,
                limit >> 10
            )
        })
    })
}

/// Why `program` could not be started, and what to do where that is for want of a process.
pub(crate) fn no_process(error: io::Error, program: &str) -> Error {
    let starting = || format!("starting {program}");
    if Errno::from_io_error(&error) != Some(Errno::AGAIN) {
        return Error::from(error).context(starting());
    }
    let limit = getrlimit(Resource::Nproc).current;
    let limit = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    anyhow!(
        "no process could be made to start one: this user has as many as its limit (`ulimit -u`, here {limit}) or its control group's (`pids.max`) \
         allows; raise it, or start viaductd before, from where there is no such limit"
    )
}

/// Frees this process, which is about to start viaductd, of what was meant for the program: viaductd serves all that
/// come later, too. What may not be changed stays, hard limits of a user without rights above all.
///
/// # Errors
/// What stays would have viaductd refuse everybody, also those for whom one without that limit could be started.
pub(crate) fn leave_behind() -> Result<()> {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    for resource in [Resource::Fsize, Resource::Data, Resource::As, Resource::Cpu] {
        let _ = setrlimit(resource, unlimited);
    }
    if getrlimit(Resource::Nofile)
        .maximum
        .is_some_and(|most| most < DESCRIPTORS)
    {
        let enough = Rlimit {
            current: Some(DESCRIPTORS),
            maximum: Some(DESCRIPTORS),
        };
        let _ = setrlimit(Resource::Nofile, enough);
    }
    inherit::as_others();
    let _ = setpriority_process(None, 0);
    // Neither the first to be ended where memory is short, nor the last.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    // Its directory and lock are to be of use to the next viaductd, too.
    let _ = umask(Mode::from_raw_mode(0o022));
    // The kernel keeps to those that the process may have.
    let mut processors = CpuSet::new();
    for number in 0..CpuSet::MAX_CPU {
        processors.set(number);
    }
    let _ = sched_setaffinity(None, &processors);
    match getrlimit(Resource::Fsize).maximum {
        Some(most) if most < Geometry::DEFAULT.segment_len() as u64 => {
            bail!(
                "none is started under a limit on files (`ulimit -f`) of {} KiB",
                most >> 10
            )
        }
        _ => Ok(()),
    }
}

/// As many descriptors as this process may have, a right that programs inherit. The usual soft limit is for programs
/// that use `select`.
pub(crate) fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}
