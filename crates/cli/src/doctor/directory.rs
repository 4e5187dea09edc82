//! The runtime directory.

use super::{Check, Level};
use rustix::fs::{Access, access};
use rustix::process::geteuid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use viaduct_control::runtime::{self, too_long};

const NAME: &str = "runtime directory";

/// Whether a viaductd can listen in `dir`.
pub(super) fn check(dir: &Path) -> Check {
    if let Some(error) = too_long(dir) {
        return Check::new(
            NAME,
            Level::Fail,
            format!("{}: {error}", dir.display()),
            "No viaductd can listen there. Choose another directory.",
        );
    }
    let own = geteuid().as_raw();
    match fs::metadata(dir) {
        Ok(metadata) if !metadata.is_dir() => Check::new(
            NAME,
            Level::Fail,
            format!("{} is no directory", dir.display()),
            "No viaductd can listen there. Choose another directory.",
        ),
        Err(_) if !can_be_made(dir) => Check::new(
            NAME,
            Level::Fail,
            format!("{} cannot be made by this user", dir.display()),
            "No viaductd can listen there: it makes the last directory of the path only, where it may. Choose another, or have somebody make it for this user.",
        ),
        Err(_) => Check::ok(NAME, format!("{} will be made by viaductd", dir.display())),
        // viaductd refuses it: whoever may write there could put another socket in the place of its own.
        Ok(metadata) if metadata.uid() == own && metadata.mode() & 0o022 != 0 => Check::new(
            NAME,
            Level::Fail,
            format!("others may write to {}", dir.display()),
            "No viaductd listens there. Choose another directory, or take the right to write from group and others.",
        ),
        Ok(metadata) if metadata.uid() == own && access(dir, Access::WRITE_OK | Access::EXEC_OK).is_err() => {
            Check::new(
                NAME,
                Level::Fail,
                format!("nothing can be written to {}", dir.display()),
                "No viaductd can be started there. Choose another directory, or see its mode and how its file system is mounted.",
            )
        }
        Ok(metadata)
            if metadata.uid() == own
                && let Some(obstacle) = obstacle(dir) =>
        {
            Check::new(
                NAME,
                Level::Fail,
                obstacle,
                "No viaductd can be started there. Remove it, while none runs there, or choose another directory.",
            )
        }
        Ok(metadata) if metadata.uid() == own || metadata.uid() == 0 => Check::ok(NAME, dir.display().to_string()),
        Ok(metadata) => Check::new(
            NAME,
            Level::Fail,
            format!("{} belongs to user {}", dir.display(), metadata.uid()),
            "Programs would talk to that user's viaductd. Choose another directory.",
        ),
    }
}

/// Whether this user may make the directory, and those above it that are missing.
fn can_be_made(dir: &Path) -> bool {
    let above = dir.parent().unwrap_or(dir);
    above.is_dir() && access(above, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// What stands in this user's `dir` where viaductd is to put a file of its own.
fn obstacle(dir: &Path) -> Option<String> {
    let socket = runtime::socket_path(dir);
    // Anything else that has its name viaductd replaces.
    if fs::symlink_metadata(&socket).is_ok_and(|metadata| metadata.is_dir()) {
        return Some(format!("{} is a directory", socket.display()));
    }
    [runtime::LOCK_NAME, runtime::PROGRAMS_NAME].iter().find_map(|name| {
        let lock = dir.join(name);
        let what = match fs::symlink_metadata(&lock).ok()?.is_file() {
            false => "is no regular file",
            true if access(&lock, Access::READ_OK | Access::WRITE_OK).is_err() => "is closed to this user",
            true => return None,
        };
        Some(format!("{} {what}", lock.display()))
    })
}
