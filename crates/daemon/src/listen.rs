//! The runtime directory: one viaductd in it, its socket, and word that it is ready.

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, sendto,
    socket_with,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use viaduct_control::PROTOCOL_VERSION;
use viaduct_control::message::{Packet, Query};
use viaduct_control::runtime;

/// How often another viaductd is looked at before it is given up: one that has only been started answers late on a busy
/// machine. Seven seconds, while the machine does not stand still: `viaduct run` waits for ten, and is told why.
const LOOKS: u32 = 350;
const LOOK: Duration = Duration::from_millis(20);

/// The directory, held by this process alone until it exits.
#[derive(Debug)]
pub(crate) struct Place {
    socket_path: PathBuf,
    /// File system and number of the socket's file.
    socket: (u64, u64),
    programs: OwnedFd,
    _lock: OwnedFd,
}

/// What came of the attempt to take a directory.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It is ours, and this socket is to listen there.
    Ours(Place, OwnedFd),
    /// Another viaductd serves it.
    Served(Turn),
}

/// The lock on a directory that another viaductd serves.
#[derive(Debug)]
pub(crate) struct Turn {
    path: PathBuf,
    lock: OwnedFd,
}

/// Makes `dir` ours: creates it, locks it, binds the socket. `uid` is the effective user.
pub(crate) fn take(dir: &Path, uid: u32) -> anyhow::Result<Taken> {
    prepare(dir, uid)?;
    let socket_path = runtime::socket_path(dir);
    let lock_path = dir.join(runtime::LOCK_NAME);
    let lock = open_lock(&lock_path, Mode::RUSR | Mode::WUSR)?;
    let mut looks = 0..LOOKS;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) if answers(&socket_path, &mut looks) => {
                return Ok(Taken::Served(Turn { path: lock_path, lock }));
            }
            Err(Errno::WOULDBLOCK) if looks.next().is_some() => std::thread::sleep(LOOK),
            Err(Errno::WOULDBLOCK) => bail!("{}: held by a process that does not answer", lock_path.display()),
            Err(error) => return Err(error).with_context(|| lock_path.display().to_string()),
        }
    }
    let (place, socket) = settle(dir, uid, lock)?;
    Ok(Taken::Ours(place, socket))
}

impl Turn {
    /// Waits until the other viaductd has ended, however it does, and makes `dir` ours. `None`: `stop` became readable.
    pub(crate) fn wait(self, dir: &Path, uid: u32, stop: impl AsFd) -> anyhow::Result<Option<(Place, OwnedFd)>> {
        let mut turn = self;
        loop {
            let Some(lock) = locked_unless(turn.lock.into(), &stop).with_context(|| turn.path.display().to_string())?
            else {
                return Ok(None);
            };
            // A directory that was moved, or made anew, has another lock, which somebody else may hold.
            let of = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
            let held = of(lock.metadata()?);
            if std::fs::metadata(&turn.path).is_ok_and(|named| of(named) == held) {
                return settle(dir, uid, lock.into()).map(Some);
            }
            drop(lock);
            turn = match take(dir, uid)? {
                Taken::Ours(place, socket) => return Ok(Some((place, socket))),
                Taken::Served(turn) => turn,
            };
        }
    }
}

/// The lock, once it is ours, or nothing once `stop` is readable. A thread waits for the lock, as no `poll` can; it has
/// ended when this process has it.
fn locked_unless(lock: File, stop: impl AsFd) -> std::io::Result<Option<File>> {
    let (locked, end) = std::io::pipe()?;
    let waiter = std::thread::Builder::new().spawn(move || {
        let _end = end;
        rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive)).map(|()| lock)
    })?;
    let mut ready = [PollFd::new(&stop, PollFlags::IN), PollFd::new(&locked, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut ready, None))?;
    let [stopped, _] = &ready;
    if !stopped.revents().is_empty() {
        return Ok(None);
    }
    let waited = waiter
        .join()
        .map_err(|_| std::io::Error::other("the thread that waited for it has died"))?;
    Ok(Some(waited?))
}

/// Binds the socket in `dir`, of which this process holds the lock.
fn settle(dir: &Path, uid: u32, lock: OwnedFd) -> anyhow::Result<(Place, OwnedFd)> {
    let socket_path = runtime::socket_path(dir);
    match std::fs::remove_file(&socket_path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| socket_path.display().to_string());
        }
        _ => {}
    }
    // Before anybody is served, since programs look for it once.
    let programs = open_programs(dir, uid)?;
    let socket = open_socket(&socket_path, uid).with_context(|| socket_path.display().to_string())?;
    let named = named(&socket_path).with_context(|| socket_path.display().to_string())?;
    let place = Place {
        socket_path,
        socket: named,
        programs,
        _lock: lock,
    };
    Ok((place, socket))
}

impl Place {
    /// Whether programs run that were started with this directory. If not, none can hold [`runtime::PROGRAMS_NAME`]
    /// from now on.
    pub(crate) fn has_programs(&self) -> bool {
        flock(&self.programs, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
    }

    /// # Errors
    /// No program can find viaductd here any more. It may open nothing, so whoever starts it makes the directory anew.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let is_lost = match named(&self.socket_path) {
            Ok(found) => found != self.socket,
            // Whether it is there is not known to who may not look.
            Err(error) => matches!(error.kind(), NotFound | NotADirectory),
        };
        if is_lost {
            bail!(
                "{}: somebody has removed or replaced it, so no program finds this viaductd any more; it ends, \
                 connections go on",
                self.socket_path.display()
            );
        }
        Ok(())
    }
}

/// What has that name.
fn named(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

impl Drop for Place {
    /// The lock file stays: removing it would let two processes lock two files of one name.
    fn drop(&mut self) {
        // Where the directory was removed and made anew, another viaductd's socket has the name.
        if named(&self.socket_path).is_ok_and(|found| found == self.socket) {
            // Nobody is left to tell if it fails, and the next viaductd removes it.
            let _ = std::fs::remove_file(&self.socket_path);
        }
    }
}

/// Creates the directory, or checks that an existing one is safe to use.
fn prepare(dir: &Path, uid: u32) -> anyhow::Result<()> {
    if let Some(error) = runtime::too_long(dir) {
        bail!("{}: {error}; choose another directory", dir.display());
    }
    let mode = if uid == 0 { 0o755 } else { 0o700 };
    let mut builder = std::fs::DirBuilder::new();
    match builder.mode(mode).create(dir) {
        // What leads there is somebody's to make: a typing error would else become a tree.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("{}: the directory it is to be made in does not exist", dir.display());
        }
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| dir.display().to_string());
        }
        _ => {}
    }
    let held = open(
        dir,
        OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY,
        Mode::empty(),
    )
    .with_context(|| format!("{}: must be a directory, and no symbolic link to one", dir.display()))?;
    let held = File::from(held);
    let metadata = held.metadata()?;
    if metadata.uid() != uid {
        bail!(
            "{}: belongs to user {}, not to user {uid}",
            dir.display(),
            metadata.uid()
        );
    }
    if metadata.mode() & 0o022 != 0 {
        bail!("{}: others may write there", dir.display());
    }
    // A directory that holds other things keeps the mode its owner gave it.
    if std::fs::read_dir(dir)?.all(|entry| entry.is_ok_and(|entry| is_ours(&entry.file_name()))) {
        held.set_permissions(std::fs::Permissions::from_mode(mode))
            .with_context(|| dir.display().to_string())?;
    }
    Ok(())
}

fn is_ours(name: &OsStr) -> bool {
    [runtime::SOCKET_NAME, runtime::PROGRAMS_NAME, runtime::LOCK_NAME]
        .iter()
        .any(|ours| name == *ours)
}

/// The file that programs lock. It stays, as the other does.
fn open_programs(dir: &Path, uid: u32) -> anyhow::Result<OwnedFd> {
    let path = dir.join(runtime::PROGRAMS_NAME);
    let mode = Mode::from_raw_mode(if uid == 0 { 0o644 } else { 0o600 });
    let file = open_lock(&path, mode)?;
    fchmod(&file, mode).with_context(|| path.display().to_string())?;
    Ok(file)
}

/// Opens a file that only is to be locked, and makes it.
fn open_lock(path: &Path, mode: Mode) -> anyhow::Result<OwnedFd> {
    if std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        bail!("{}: is no regular file; remove it", path.display());
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    open(path, flags, mode).with_context(|| path.display().to_string())
}

fn open_socket(path: &Path, uid: u32) -> anyhow::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    let mode = if uid == 0 { 0o666 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(socket)
}

/// Lets programs in, once all that takes long is done: they wait for an answer from then on.
pub(crate) fn let_in(socket: &OwnedFd) -> rustix::io::Result<()> {
    listen(socket, 4096)
}

/// Whether a viaductd answers at `path`, in the looks that are left.
fn answers(path: &Path, looks: &mut Range<u32>) -> bool {
    let mut ask = || -> Result<usize, Errno> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(LOOK))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        let query = Query {
            version: PROTOCOL_VERSION,
            reserved: 0,
        };
        rustix::net::send(&socket, Packet::new(&query).as_bytes(), SendFlags::NOSIGNAL)?;
        let mut answer = [0; viaduct_control::message::MAX_PACKET];
        loop {
            match rustix::net::recv(&socket, &mut answer, RecvFlags::empty()) {
                Err(Errno::AGAIN) if looks.next().is_some() => {}
                received => return received.map(|(len, _)| len),
            }
        }
    };
    ask().is_ok_and(|len| len > 0)
}

/// A descriptor that whoever started viaductd has given it.
pub(crate) fn reopen(fd: u32) -> std::io::Result<File> {
    File::options().write(true).open(format!("/proc/self/fd/{fd}"))
}

/// Tells whoever started viaductd why programs never will be able to connect. Once they could, nobody reads there any
/// more; the log has the reason as well.
pub(crate) fn tell_failure(mut pipe: File, reason: &str) {
    let mut word = format!("0{reason}").into_bytes();
    // So that one read finds all of it (POSIX `PIPE_BUF`, which is no less on Linux).
    word.truncate(4096);
    let _ = pipe.write_all(&word);
}

/// Word to whoever started viaductd that programs can connect: opened before viaductd gives up the right to open
/// anything, sent once it has.
#[derive(Debug, Default)]
pub(crate) struct Announcement {
    pipe: Option<File>,
    notify: Option<(OwnedFd, SocketAddrUnix)>,
}

impl Announcement {
    pub(crate) fn open(ready_fd: Option<u32>) -> Self {
        let mut announcement = Self::default();
        if let Some(fd) = ready_fd {
            match reopen(fd) {
                Ok(pipe) => announcement.pipe = Some(pipe),
                Err(error) => tracing::warn!("--ready-fd {fd}: {error}"),
            }
        }
        if let Some(path) = std::env::var_os("NOTIFY_SOCKET") {
            let bytes = path.as_bytes();
            let address = match bytes.split_first() {
                Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name),
                _ => SocketAddrUnix::new(bytes),
            };
            let socket = || socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
            match address.and_then(|address| Ok((socket()?, address))) {
                Ok(notify) => announcement.notify = Some(notify),
                Err(error) => tracing::warn!("NOTIFY_SOCKET: {error}"),
            }
        }
        announcement
    }

    /// `status` is what `systemctl status` shows.
    pub(crate) fn send(self, status: &str) {
        if let Some(mut pipe) = self.pipe
            && let Err(error) = pipe.write_all(b"1")
        {
            tracing::warn!("--ready-fd: {error}");
        }
        if let Some((socket, address)) = self.notify
            && let Err(error) = sendto(
                &socket,
                format!("READY=1\nSTATUS={status}").as_bytes(),
                SendFlags::NOSIGNAL,
                &address,
            )
        {
            tracing::warn!("NOTIFY_SOCKET: {error}");
        }
    }
}
