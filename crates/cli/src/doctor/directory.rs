//! The runtime directory.

use super::{Check, Level};
use rustix::fs::{Access, Mode, OFlags, access, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use viaduct_control::runtime::{self, too_long};

const NAME: &str = "runtime directory";

/// Whether a viaductd can listen in `dir`.
pub(super) fn check(dir: &Path) -> Check {
    match fault(dir) {
        Some((finding, consequence)) => Check::new(NAME, Level::Fail, finding, consequence),
        None if dir.exists() => Check::ok(NAME, dir.display().to_string()),
        None => Check::ok(NAME, format!("{} will be made by viaductd", dir.display())),
    }
}

/// What is wrong with it, and what follows.
fn fault(dir: &Path) -> Option<(String, &'static str)> {
    let name = dir.display();
    if let Some(error) = too_long(dir) {
        return Some((
            format!("{name}: {error}"),
            "No viaductd can listen there. Choose another directory.",
        ));
    }
    let Ok(metadata) = fs::metadata(dir) else {
        return (!can_be_made(dir)).then(|| {
            (
                format!("{name} cannot be made by this user"),
                "No viaductd can listen there: it makes the last directory of the path only, where it may. Choose another, or have somebody make it for this user.",
            )
        });
    };
    if !metadata.is_dir() {
        return Some((
            format!("{name} is no directory"),
            "No viaductd can listen there. Choose another directory.",
        ));
    }
    if metadata.uid() != geteuid().as_raw() {
        return (metadata.uid() != 0).then(|| {
            (
                format!("{name} belongs to user {}", metadata.uid()),
                "Programs would talk to that user's viaductd. Choose another directory.",
            )
        });
    }
    // viaductd refuses it: whoever may write there could put another socket in the place of its own.
    if metadata.mode() & 0o022 != 0 {
        return Some((
            format!("others may write to {name}"),
            "No viaductd listens there. Choose another directory, or take the right to write from group and others.",
        ));
    }
    if let Err(error) = try_to_write(dir) {
        return Some((
            format!("nothing can be written to {name}: {}", io::Error::from(error)),
            "No viaductd can be started there. Choose another directory, or see its mode, how its file system is mounted, and whether that is full.",
        ));
    }
    obstacle(dir).map(|obstacle| {
        (
            obstacle,
            "No viaductd can be started there. Remove it, while none runs there, or choose another directory.",
        )
    })
}

/// Whether this user may make the directory, and those above it that are missing.
fn can_be_made(dir: &Path) -> bool {
    let above = dir.parent().unwrap_or(dir);
    above.is_dir() && access(above, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Makes a file in `dir` that has no name, where the file system knows such.
fn try_to_write(dir: &Path) -> Result<(), Errno> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => access(dir, Access::WRITE_OK | Access::EXEC_OK),
        tried => tried.map(drop),
    }
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
