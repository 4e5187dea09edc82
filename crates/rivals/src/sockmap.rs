//! Kernel TCP with a shortcut: what an end sends is handed by BPF straight to the other end's queue, for all
//! connections within a cgroup.
//!
//! The programs in the cgroup do not change and do not know. The cgroup is new, lies in that of the caller, and only
//! the benchmark's own processes are put there; no other connection of the machine meets the BPF programs.

use crate::{asked_to_end, say};
use anyhow::{Context, Result, ensure};
use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray, SockHash};
use aya::programs::{CgroupAttachMode, SkMsg, SockOps};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/sockmap.bpf.o");

/// How long killed processes may take to leave the cgroup.
const FAREWELL: Duration = Duration::from_secs(2);

/// Makes the shortcut, and removes it when standard input ends.
pub(crate) fn hold() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "needs root");
    // Whoever asks this process to end also ends the benchmark, and that ends the input. The cgroup must outlast the
    // benchmark's processes.
    let _ignored = asked_to_end()?;
    let cgroup = Cgroup::make()?;
    let shortcut = Shortcut::across(&cgroup)?;
    say(&cgroup.0.display().to_string())?;
    for line in io::stdin().lines() {
        line?;
        say(&shortcut.carried()?.to_string())?;
    }
    Ok(())
}

/// A cgroup of this process's making, which goes with what runs in it when this is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn make() -> Result<Self> {
        let read = |file| fs::read_to_string(file).context(file);
        let own = own_cgroup(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)
            .context("no cgroup v2 hierarchy is mounted")?;
        let path = own.join(format!("viaduct-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Only what the benchmark has left behind can be there. Kernels before 5.14 have no such file; there it ends by
        // itself.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        let start = Instant::now();
        while fs::remove_dir(&self.0).is_err() && start.elapsed() < FAREWELL {
            sleep(Duration::from_millis(10));
        }
    }
}

/// The BPF programs while they are attached.
struct Shortcut {
    carried: PerCpuArray<MapData, u64>,
    _programs: Ebpf,
}

impl Shortcut {
    fn across(cgroup: &Cgroup) -> Result<Self> {
        let directory = File::open(&cgroup.0)?;
        let mut object = Ebpf::load(OBJECT).context("BPF object")?;
        let ends: SockHash<_, [u32; 4]> = object.map("ends").context("no map of ends")?.try_into()?;
        let ends = ends.fd().try_clone()?;
        let redirect: &mut SkMsg = object
            .program_mut("viaduct_redirect")
            .context("no program")?
            .try_into()?;
        redirect.load().context("BPF program on messages")?;
        redirect.attach(&ends).context("attaching to the map")?;
        // Last, so that no end is noted whose messages would not be redirected.
        let note: &mut SockOps = object.program_mut("viaduct_note").context("no program")?.try_into()?;
        note.load().context("BPF program on connections")?;
        note.attach(directory, CgroupAttachMode::Single)
            .context("attaching to the cgroup")?;
        let carried = object.take_map("carried").context("no map of bytes")?;
        Ok(Self {
            carried: carried.try_into()?,
            _programs: object,
        })
    }

    /// Bytes that took the shortcut so far.
    fn carried(&self) -> Result<u64> {
        Ok(self.carried.get(&0, 0)?.iter().sum())
    }
}

/// The directory of the caller's cgroup v2, by the contents of `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn own_cgroup(cgroups: &str, mounts: &str) -> Option<PathBuf> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let point = mounts.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        // The root of the mount stands fourth, its place fifth, the type after the lone dash.
        let mut fields = front.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (back.split(' ').next() == Some("cgroup2") && root == "/").then_some(point)
    })?;
    Some(Path::new(point).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_cgroup_is_found() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      40 31 0:38 /sub /mnt/part rw - cgroup2 cgroup2 rw\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw shared:2 master:3 - cgroup2 cgroup2 rw\n";
        let own = |cgroups| own_cgroup(cgroups, mounts);
        assert_eq!(
            own("5:memory:/a\n0::/user.slice/session-1.scope\n"),
            Some(PathBuf::from("/sys/fs/cgroup/unified/user.slice/session-1.scope"))
        );
        assert_eq!(own("0::/\n"), Some(PathBuf::from("/sys/fs/cgroup/unified/")));
        assert_eq!(own("5:memory:/a\n"), None);
        assert_eq!(
            own_cgroup("0::/\n", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"),
            None
        );
    }
}
