//! What the process's control group has left of memory, which lanes ask before they grow.
//!
//! The kernel kills a process whose group has no more memory for a lane, and slows it down above `memory.high`, where
//! it would only have made TCP's buffers smaller. So lanes leave an eighth of each limit alone, and more of a small
//! one. Other threads and processes take of the same, and may be looking at this moment: so one thread at a time looks
//! and takes, little at once, and of much that is to spare lanes take some before somebody looks again. A look is some
//! dozen system calls, and there is none where nothing limits the process, but for one a second, or where it was
//! refused a moment ago.

use crate::process;
use crate::sys::{self, Errno, listing};
use core::ffi::CStr;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// "No limit" holds so long,
const UNLIMITED_NS: u64 = 1_000_000_000;
/// and what was found of a limit so long.
const LIMITED_NS: u64 = 10_000_000;
/// Of a limit lanes leave so much alone, or half of it: programs go on growing after their lanes have, whose threads
/// come first to each of their pages while they begin.
const KEPT: usize = 32 << 20;
/// Lanes take one part in so many of what there is to spare before somebody looks again,
const PARTS: u64 = 64;
/// and one in so many if nobody can any more.
const LAST_PARTS: u64 = 8;

/// As much as there is without a limit; in [`SPARE`].
const NO_LIMIT: u64 = u64::MAX;
/// From so many bytes on a limit is none: the first version of groups has one always.
const NONE: usize = 1 << 60;

/// Bytes that lanes might take when that was last looked at, but for those that they have taken since.
static SPARE: AtomicU64 = AtomicU64::new(NO_LIMIT);
/// While so many of them are left, nobody need look again
static ENOUGH: AtomicU64 = AtomicU64::new(0);
/// before then.
static HOLDS_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Until then nobody else looks: one thread does and takes, or was refused.
static NEXT_LOOK_NS: AtomicU64 = AtomicU64::new(0);

/// Where the process's groups are named, one a line.
const OWN: &CStr = c"/proc/self/cgroup";
/// Bytes of a line that are looked at. Where a group's is longer, only those above it count.
const LINE: usize = 448;
/// Bytes of a path, with room for the longest root and file.
const PATH: usize = 512;

/// Names of a version of control groups.
#[derive(Debug)]
struct Version {
    root: &'static [u8],
    limits: &'static [&'static CStr],
    used: &'static CStr,
    /// A line of `memory.stat`: cached parts of files that nobody has used lately.
    cache: &'static [u8],
}

static FIRST: Version = Version {
    root: b"/sys/fs/cgroup/memory",
    limits: &[c"/memory.limit_in_bytes"],
    used: c"/memory.usage_in_bytes",
    cache: b"total_inactive_file ",
};
static SECOND: Version = Version {
    root: b"/sys/fs/cgroup",
    limits: &[c"/memory.max", c"/memory.high"],
    used: c"/memory.current",
    cache: b"inactive_file ",
};

impl Version {
    fn is_first(&self) -> bool {
        core::ptr::eq(self, &raw const FIRST)
    }
}

/// Has a lane `take` so many bytes if it may; whether it has. `errno` stays.
pub(crate) fn take(bytes: usize, take: &mut dyn FnMut() -> bool) -> bool {
    // What the process has forbidden itself is not known.
    if process::is_confined() {
        return reserve(bytes, 0) && take();
    }
    let (now, enough) = (sys::coarse_now_ns(), ENOUGH.load(Relaxed));
    if now < HOLDS_UNTIL_NS.load(Relaxed) && reserve(bytes, enough) {
        return take();
    }
    let next = NEXT_LOOK_NS.load(Relaxed);
    // Not for ever: who looks may be killed, or not be there in a forked child.
    let mine = next <= now
        && NEXT_LOOK_NS
            .compare_exchange(next, now + LIMITED_NS, Relaxed, Relaxed)
            .is_ok();
    if !mine {
        return reserve(bytes, enough - enough / PARTS) && take();
    }
    look(bytes);
    if !reserve(bytes, 0) {
        return false;
    }
    let holds = match SPARE.load(Relaxed) {
        NO_LIMIT => UNLIMITED_NS,
        _ => LIMITED_NS,
    };
    HOLDS_UNTIL_NS.store(now + holds, Relaxed);
    let taken = take();
    // Unless it took so long that somebody else looks.
    let _ = NEXT_LOOK_NS.compare_exchange(now + LIMITED_NS, 0, Relaxed, Relaxed);
    taken
}

/// The process is about to forbid itself system calls: a part of what there is now is all that lanes may take from then
/// on.
pub(crate) fn confining() {
    if !process::is_confined() {
        look(usize::MAX);
        let part = |spare| (spare != NO_LIMIT).then_some(spare / LAST_PARTS);
        let _ = SPARE.fetch_update(Relaxed, Relaxed, part);
    }
}

/// Counts so many bytes as taken, if enough are left then.
fn reserve(bytes: usize, enough: u64) -> bool {
    let left = |spare: u64| match spare {
        NO_LIMIT => Some(NO_LIMIT),
        spare => spare.checked_sub(bytes as u64).filter(|left| *left >= enough),
    };
    SPARE.fetch_update(Relaxed, Relaxed, left).is_ok()
}

/// Looks whether so many bytes are to spare. Where the kernel does not tell any more, what is known holds.
#[cold]
fn look(bytes: usize) {
    let (mut line, mut len) = ([0; LINE], 0);
    let mut group: Option<Group> = None;
    let told = listing::read(OWN, |byte| match byte {
        b'\n' => {
            let found = line.get(..len.min(LINE)).and_then(Group::of_line);
            // Where there are both versions, memory belongs to the first that says so.
            if found
                .as_ref()
                .is_some_and(|found| group.is_none() || found.version.is_first())
            {
                group = found;
            }
            len = 0;
        }
        byte => {
            if let Some(place) = line.get_mut(len) {
                *place = byte;
            }
            len += 1;
        }
    });
    if told.is_err() {
        return;
    }
    let spare = match &mut group {
        Some(group) => group.spare(bytes),
        None => Some(NO_LIMIT),
    };
    if let Some(spare) = spare {
        SPARE.store(spare, Relaxed);
        ENOUGH.store(spare - spare / PARTS, Relaxed);
    }
}

/// A group, or one above it.
#[derive(Debug)]
struct Group {
    version: &'static Version,
    path: [u8; PATH],
    len: usize,
}

impl Group {
    /// That of a line of [`OWN`], if it is about memory: number, controllers, path.
    fn of_line(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(3, |byte| *byte == b':').skip(1);
        let controllers = fields.next()?;
        let version = match controllers.split(|byte| *byte == b',').any(|one| one == b"memory") {
            true => &FIRST,
            false if controllers.is_empty() => &SECOND,
            false => return None,
        };
        let mut group = Self {
            version,
            path: [0; PATH],
            len: 0,
        };
        let named = fields.next()?;
        group.len = group.write(version.root)?;
        group.len = group.write(named)?;
        if line.len() == LINE || named == b"/" {
            group.up();
        }
        Some(group)
    }

    /// Writes behind the path, and answers where that ends.
    fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        let end = self.len + bytes.len();
        self.path.get_mut(self.len..end)?.copy_from_slice(bytes);
        Some(end)
    }

    /// Goes to the group above, if there is one that this process may see.
    fn up(&mut self) -> bool {
        let named = self.path.get(self.version.root.len()..self.len).unwrap_or(&[]);
        let above = named.iter().rposition(|byte| *byte == b'/');
        if let Some(above) = above {
            self.len = self.version.root.len() + above;
        }
        above.is_some()
    }

    /// The number in a file of the group, in the line with this word.
    fn number(&mut self, file: &CStr, word: &[u8]) -> Result<Option<usize>, Errno> {
        let path = self
            .write(file.to_bytes_with_nul())
            .and_then(|end| self.path.get(..end))
            .and_then(|path| CStr::from_bytes_with_nul(path).ok());
        listing::number(path.ok_or(libc::ENAMETOOLONG)?, word)
    }

    /// The least limit of the group itself; `None` if it tells of none.
    fn limit(&mut self) -> Option<usize> {
        let files = self.version.limits.iter();
        let told = files.filter_map(|file| self.number(file, b"").ok());
        told.map(|limit| limit.unwrap_or(NONE)).min()
    }

    /// Bytes to spare in the group and in all above it; `None` if none of them tells.
    fn spare(&mut self, bytes: usize) -> Option<u64> {
        let version = self.version;
        let mut least = None;
        loop {
            if let Some(limit) = self.limit() {
                let of_this = match limit {
                    NONE.. => NO_LIMIT,
                    limit => {
                        let mut number = |file, word| self.number(file, word).ok().flatten().unwrap_or(0);
                        let used = number(version.used, b"");
                        of_limit(limit, used, bytes, || number(c"/memory.stat", version.cache))
                    }
                };
                least = Some(least.unwrap_or(NO_LIMIT).min(of_this));
            }
            if !self.up() {
                return least;
            }
        }
    }
}

/// Bytes of a limit that may be taken, of which `used` are. Those of the cache are free, too, but are only asked for
/// where the rest is too little.
fn of_limit(limit: usize, used: usize, bytes: usize, cache: impl FnOnce() -> usize) -> u64 {
    let most = limit - (limit / 8).max(KEPT.min(limit / 2));
    let spare = most.saturating_sub(used);
    let spare = match spare < bytes {
        true => most.saturating_sub(used.saturating_sub(cache())),
        false => spare,
    };
    spare as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const MIB: usize = 1 << 20;

    fn path_of(line: &str) -> Option<(bool, String)> {
        let group = Group::of_line(line.as_bytes())?;
        let path = String::from_utf8(group.path[..group.len].to_vec()).unwrap();
        Some((group.version.is_first(), path))
    }

    #[test]
    fn a_line_names_the_group() {
        let named = |is_first, path: &str| Some((is_first, path.to_owned()));
        assert_eq!(
            path_of("0::/user.slice/a:b"),
            named(false, "/sys/fs/cgroup/user.slice/a:b")
        );
        assert_eq!(path_of("0::/"), named(false, "/sys/fs/cgroup"));
        assert_eq!(
            path_of("4:memory:/docker/1"),
            named(true, "/sys/fs/cgroup/memory/docker/1")
        );
        assert_eq!(path_of("4:hugetlb,memory:/"), named(true, "/sys/fs/cgroup/memory"));
        for other in [
            "9:name=systemd:/x",
            "1:cpu,cpuacct:/x",
            "3:memory2:/x",
            "",
            "nonsense",
            "4:memory",
        ] {
            assert_eq!(path_of(other), None, "{other}");
        }
        // Too long: the nearest above it that is not.
        let long = format!("0::/short/{}", "x".repeat(LINE));
        assert_eq!(path_of(&long[..LINE]), named(false, "/sys/fs/cgroup/short"));
    }

    #[test]
    fn groups_above_count_up_to_the_root() {
        let mut group = Group::of_line(b"4:memory:/a/b").unwrap();
        let mut seen = Vec::new();
        loop {
            seen.push(String::from_utf8(group.path[..group.len].to_vec()).unwrap());
            if !group.up() {
                break;
            }
        }
        let root = "/sys/fs/cgroup/memory";
        assert_eq!(seen, [format!("{root}/a/b"), format!("{root}/a"), root.to_owned()]);
    }

    /// A group of the second version below a root of the test's own.
    fn group_in(root: &Path, named: &str) -> Group {
        let root = root.to_str().unwrap().to_owned().leak();
        let version = Version {
            root: root.as_bytes(),
            ..SECOND
        };
        let mut group = Group {
            version: Box::leak(Box::new(version)),
            path: [0; PATH],
            len: 0,
        };
        group.len = group.write(root.as_bytes()).unwrap();
        group.len = group.write(named.as_bytes()).unwrap();
        group
    }

    #[test]
    fn the_lowest_of_all_limits_counts() {
        let root = std::env::temp_dir().join(format!("viaduct-groups-{}", std::process::id()));
        std::fs::create_dir_all(root.join("above/own")).unwrap();
        let has = |group: &str, files: &[(&str, &str)]| {
            for (file, text) in files {
                std::fs::write(root.join(group).join(file), text).unwrap();
            }
        };
        let mib = |count: usize| format!("{}\n", count * MIB);
        let spare = || group_in(&root, "/above/own").spare(MIB).map(|bytes| bytes / MIB as u64);
        // The root tells of no limit, nor do those that cannot be seen.
        assert_eq!(spare(), None);
        for group in ["above", "above/own"] {
            has(
                group,
                &[
                    ("memory.max", "max\n"),
                    ("memory.high", "max\n"),
                    ("memory.current", &mib(8)),
                ],
            );
        }
        assert_eq!(spare(), Some(NO_LIMIT / MIB as u64));
        for (group, max, high, expected) in [
            // Where it would be slowed down above less than what it may have.
            ("above/own", mib(1024), mib(512), 448 - 8),
            ("above/own", mib(1024), mib(2048), 896 - 8),
            ("above/own", "max\n".to_owned(), mib(384), 336 - 8),
            ("above", "max\n".to_owned(), mib(256), 224 - 8),
            ("above", mib(256), "max\n".to_owned(), 224 - 8),
            ("above", "max\n".to_owned(), mib(12), 0),
        ] {
            has(group, &[("memory.max", &max), ("memory.high", &high)]);
            assert_eq!(spare(), Some(expected), "{group}: {max}{high}");
        }
        // What it has of files that nobody uses is given up first.
        has(
            "above",
            &[("memory.stat", &format!("anon 5\ninactive_file {}", mib(4)))],
        );
        assert_eq!(spare(), Some(6 - 4));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_part_stays_and_the_cache_is_only_asked_for_where_it_matters() {
        let never = || unreachable!("asked for the cache");
        assert_eq!(of_limit(512 * MIB, 48 * MIB, MIB, never), 400 << 20);
        assert_eq!(of_limit(512 * MIB, 447 * MIB, MIB, never), 1 << 20);
        assert_eq!(of_limit(512 * MIB, 448 * MIB, MIB, || 0), 0);
        assert_eq!(of_limit(512 * MIB, 504 * MIB, MIB, || 160 * MIB), 104 << 20);
        assert_eq!(of_limit(512 * MIB, 520 * MIB, MIB, || 24 * MIB), 0);
        // The cache is part of what is used, whatever the kernel says of it a moment later.
        assert_eq!(of_limit(512 * MIB, MIB, usize::MAX, || 2 * MIB), 448 << 20);
        // Of a small one programs need more to begin.
        assert_eq!(of_limit(128 * MIB, 8 * MIB, MIB, never), 88 << 20);
        assert_eq!(of_limit(48 * MIB, 8 * MIB, MIB, never), 16 << 20);
    }

    /// One test: all of this is the process's.
    #[test]
    fn what_is_taken_is_no_longer_to_spare() {
        let takes = |bytes| take(bytes, &mut || true);
        SPARE.store(NO_LIMIT, Relaxed);
        assert!(reserve(usize::MAX, 0) && reserve(1, 0));
        SPARE.store(10, Relaxed);
        let reserved = [6, 5, 4, 1, 0].map(|bytes| reserve(bytes, 0));
        assert_eq!(reserved, [true, false, true, false, true]);
        // The process that runs the tests has something to spare, or no limit.
        assert!(takes(1));
        // What another thread takes at this moment no look finds.
        let mut within = None;
        HOLDS_UNTIL_NS.store(0, Relaxed);
        assert!(take(1, &mut || {
            // However long this thread is kept from the processor.
            NEXT_LOOK_NS.store(u64::MAX, Relaxed);
            SPARE.store(200, Relaxed);
            ENOUGH.store(128, Relaxed);
            within = Some([takes(74), takes(75), takes(1)]);
            true
        }));
        assert_eq!(within, Some([true, false, false]));
        NEXT_LOOK_NS.store(0, Relaxed);
        // But then there is another.
        assert!(takes(1) && SPARE.load(Relaxed) > 1000);
    }
}
