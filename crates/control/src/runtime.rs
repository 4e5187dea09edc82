//! The runtime directory of an instance.

use std::path::{Path, PathBuf};

/// Environment variable that names the runtime directory.
pub const DIR_VARIABLE: &str = "VIADUCT_DIR";

/// File name of viaductd's socket inside the runtime directory.
pub const SOCKET_NAME: &str = "viaductd.sock";

/// File inside the runtime directory that the viaductd which serves it holds a lock on.
pub const LOCK_NAME: &str = "viaductd.lock";

/// File inside the runtime directory that programs under Viaduct hold a shared lock on (`flock`) as long as they run.
pub const PROGRAMS_NAME: &str = "programs.lock";

/// The runtime directory where none is given: `/run/viaduct` for root, else `$XDG_RUNTIME_DIR/viaduct`, else a
/// directory of the user's under `/tmp`.
///
/// `environment` looks a variable up; `uid` is the effective user. A relative path in it counts for nothing, as the XDG
/// specification has it: it would be another directory for each program.
pub fn default_dir(uid: u32, environment: impl Fn(&str) -> Option<std::ffi::OsString>) -> PathBuf {
    if uid == 0 {
        return PathBuf::from("/run/viaduct");
    }
    match environment("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => Path::new(&dir).join("viaduct"),
        _ => PathBuf::from(format!("/tmp/viaduct-{uid}")),
    }
}

/// viaductd's socket in `dir`.
pub fn socket_path(dir: &Path) -> PathBuf {
    dir.join(SOCKET_NAME)
}

/// What is wrong with `dir` where a socket in it has a longer path than the kernel takes.
pub fn too_long(dir: &Path) -> Option<String> {
    /// Bytes of a socket's path, without its final zero.
    const LONGEST: usize = 107;
    let longest = LONGEST - "/".len() - SOCKET_NAME.len();
    let len = dir.as_os_str().len();
    (len > longest)
        .then(|| format!("its path has {len} bytes, and for a socket in it the kernel takes {longest} at most"))
}

/// A number that stands for the directory in a process's counters (64-bit FNV-1a of its path).
pub fn instance_id(dir: &[u8]) -> u64 {
    dir.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_directory_of_the_session_is_none() {
        let dir = |xdg: &'static str| default_dir(7, |name| (name == "XDG_RUNTIME_DIR").then(|| xdg.into()));
        assert_eq!(dir("/run/user/7"), Path::new("/run/user/7/viaduct"));
        assert_eq!(dir("run"), Path::new("/tmp/viaduct-7"));
        assert_eq!(dir(""), Path::new("/tmp/viaduct-7"));
    }

    #[test]
    fn a_directory_has_room_for_the_sockets_name() {
        let wrong = |len| too_long(Path::new(&"d".repeat(len)));
        assert_eq!(wrong(93), None);
        assert!(wrong(94).is_some());
    }
}
