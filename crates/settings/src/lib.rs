//! Where the configuration files of `viaduct` and viaductd are, and their text.
//!
//! A file may be a pipe, as shells make one of `--config <(COMMAND)`, or `/dev/null`. Nothing else that is no regular
//! file is opened, no pipe is waited for beyond ten seconds, and no text is longer than a MiB.
#![forbid(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The machine's configuration file.
pub const SYSTEM_FILE: &str = "/etc/viaduct.toml";

/// Bytes that a file may have: some ten thousand rules.
const LONGEST: u64 = 1 << 20;
/// Looks within which somebody must have opened a FIFO to write to it, a second of them: time in which the machine
/// stands still counts for one,
const LOOKS: u32 = 20;
const LOOK_NS: i64 = 50_000_000;
/// and time within which a pipe must have come to its end.
const END: Duration = Duration::from_secs(10);

/// The user's configuration file; `variable` looks one of the environment up. A relative `XDG_CONFIG_HOME` counts for
/// nothing, as its specification has it.
pub fn user_file(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CONFIG_HOME").filter(|dir| dir.is_absolute());
    let base = base.or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(base.join("viaduct.toml"))
}

/// Whether the file is closed to this user and so is another one's, whose home directory the environment still names,
/// as `su` and service managers leave it. It holds no settings of ours. An own file that cannot be read is an error.
pub fn is_closed(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
        Ok(metadata) => {
            let own = metadata.uid() == rustix::process::geteuid().as_raw();
            !own && accessat(CWD, path, Access::READ_OK, AtFlags::EACCESS) == Err(rustix::io::Errno::ACCESS)
        }
    }
}

/// What the file holds; `None`: there is none.
///
/// # Errors
/// It cannot be read, or is nothing to be read, and what to do then.
pub fn text(path: &Path) -> io::Result<Option<String>> {
    match open(path) {
        Ok(file) => read(file).map(Some),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the file can be read by one process only, and once.
pub fn is_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

fn open(path: &Path) -> io::Result<File> {
    /// What Linux numbers `/dev/null`.
    const NULL: (u32, u32) = (1, 3);
    let metadata = std::fs::metadata(path)?;
    let kind = metadata.file_type();
    let number = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let is_null = kind.is_char_device() && number == NULL;
    if !(kind.is_file() || kind.is_fifo() || is_null) {
        let what = match kind {
            kind if kind.is_dir() => "a directory",
            kind if kind.is_socket() => "a socket",
            _ => "a device",
        };
        return Err(io::Error::other(format!(
            "it is {what}: only a file, a pipe or /dev/null can hold settings"
        )));
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

fn read(file: File) -> io::Result<String> {
    let begun = Instant::now();
    let look = Timespec {
        tv_sec: 0,
        tv_nsec: LOOK_NS,
    };
    let mut in_vain = 0;
    let mut bytes = Vec::new();
    loop {
        let mut ready = [PollFd::new(&file, PollFlags::IN)];
        // A FIFO to which nobody has ever written looks to a read as if it had come to its end.
        let is_ready = rustix::io::retry_on_intr(|| poll(&mut ready, Some(&look)))? > 0;
        let room = (LONGEST + 1).saturating_sub(bytes.len() as u64);
        match (&file).take(room).read_to_end(&mut bytes) {
            Ok(_) if !is_ready && bytes.is_empty() && in_vain < LOOKS => in_vain += 1,
            Ok(_) if !is_ready && bytes.is_empty() => {
                let told = "it is a FIFO that nobody writes to: name a file, or start first what writes to it";
                return Err(io::Error::other(told));
            }
            Ok(_) => break,
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(_) if begun.elapsed() > END => {
                let told = format!(
                    "it is a pipe that has not come to its end within {} seconds",
                    END.as_secs()
                );
                return Err(io::Error::other(told + ": name a file"));
            }
            Err(_) => {}
        }
    }
    if bytes.len() as u64 > LONGEST {
        let told = format!("it has more than {} MiB: no settings are so long", LONGEST >> 20);
        return Err(io::Error::other(told + ", name another file"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not text in UTF-8: name another file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, Mode, mknodat};
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    fn refused(path: &Path) -> String {
        let begun = Instant::now();
        let error = text(path).unwrap_err().to_string();
        assert!(begun.elapsed() < Duration::from_secs(5), "{}", path.display());
        error
    }

    #[test]
    fn what_is_no_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (dir.path(), "a directory"),
            (&socket, "a socket"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let told = refused(path);
            assert!(told.starts_with(&format!("it is {what}: ")), "{told}");
        }
        assert_eq!(text(Path::new("/dev/null")).unwrap().as_deref(), Some(""));
        assert_eq!(text(&dir.path().join("missing")).unwrap(), None);
        assert_eq!(text(&socket.join("below")).unwrap(), None);
    }

    #[test]
    fn a_fifo_is_waited_for_while_somebody_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(is_pipe(&path) && !is_pipe(dir.path()));
        assert!(refused(&path).contains("nobody writes to"));
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut fifo = OpenOptions::new().write(true).open(path).unwrap();
                fifo.write_all(b"path = ").unwrap();
                std::thread::sleep(Duration::from_secs(2));
                fifo.write_all(b"'tcp'\n").unwrap();
            }
        });
        assert_eq!(text(&path).unwrap().as_deref(), Some("path = 'tcp'\n"));
        writer.join().unwrap();
    }

    /// As of a process substitution whose command has written all and ended.
    #[test]
    fn a_pipe_without_a_writer_has_come_to_its_end() {
        for written in ["", "spin = 'never'\n"] {
            let (reading, writing) = rustix::pipe::pipe().unwrap();
            File::from(writing).write_all(written.as_bytes()).unwrap();
            let path = PathBuf::from(format!("/proc/self/fd/{}", reading.as_raw_fd()));
            assert_eq!(text(&path).unwrap().as_deref(), Some(written));
        }
    }

    #[test]
    fn a_file_may_be_so_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("long.toml");
        let longest = usize::try_from(LONGEST).unwrap();
        fs::write(&path, vec![b'\n'; longest]).unwrap();
        assert_eq!(text(&path).unwrap().unwrap().len(), longest);
        fs::write(&path, vec![b'\n'; longest + 1]).unwrap();
        assert!(refused(&path).contains("more than 1 MiB"));
        fs::write(&path, b"\xff").unwrap();
        assert!(refused(&path).contains("UTF-8"));
    }

    #[test]
    fn the_users_file_is_where_the_environment_says() {
        let file = |variables: &[(&str, &str)]| {
            user_file(|name| {
                variables
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| value.into())
            })
        };
        let (home, xdg) = (("HOME", "/h"), ("XDG_CONFIG_HOME", "/x"));
        assert_eq!(file(&[home, xdg]), Some(PathBuf::from("/x/viaduct.toml")));
        assert_eq!(
            file(&[home, ("XDG_CONFIG_HOME", "")]),
            Some(PathBuf::from("/h/.config/viaduct.toml"))
        );
        assert_eq!(
            file(&[home, ("XDG_CONFIG_HOME", "x")]),
            Some(PathBuf::from("/h/.config/viaduct.toml"))
        );
        assert_eq!(file(&[]), None);
    }
}
