//! Looks at a program before it is run: can the preload come into it, and would it see the program's calls?

use crate::raw_calls;
use anyhow::{Context, Result};
use object::Endianness;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use rustix::process::{getgid, getuid};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a program runs as plain TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// No dynamic loader.
    Static,
    /// Set-user-ID or set-group-ID to somebody else.
    SetId,
    /// File capabilities.
    Capabilities,
    /// Another machine's code.
    Architecture,
    /// Another C library.
    Musl,
    /// A Go program.
    Go,
    /// Another one that does without the C library's calls.
    RawCalls,
}

impl Obstacle {
    /// Why, as the rest of a sentence about the program.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Static => "it is statically linked, so nothing can be preloaded into it",
            Self::SetId => "it is set-user-ID or set-group-ID, and the loader ignores preloads there",
            Self::Capabilities => "it has file capabilities, and the loader ignores preloads there",
            Self::Architecture => "it is built for another architecture than Viaduct",
            Self::Musl => "it uses the musl C library, and Viaduct is built for the GNU C library",
            Self::Go => "it is written in Go, whose runtime makes system calls without the C library",
            Self::RawCalls => "it makes its system calls itself, without the C library",
        }
    }
}

/// What hinders the program in file `path`, if anything does. Of a script, its interpreter is looked at.
///
/// # Errors
/// The file cannot be read, which does not mean that it cannot be run.
pub(crate) fn obstacle(path: &Path) -> Result<Option<Obstacle>> {
    let mut path = path.to_owned();
    // The kernel follows a script's interpreter four times.
    for _ in 0..5 {
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        match interpreter_of_script(&file)? {
            Some(interpreter) => path = interpreter,
            None => return of_binary(&path, &file),
        }
    }
    Ok(None)
}

/// Whether the file is a binary, be it damaged or another machine's. One that cannot be read is not known to be.
pub(crate) fn is_elf(path: &Path) -> bool {
    let mut start = [0; 4];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut start))
        .is_ok()
        && start == elf::ELFMAG
}

/// The interpreter named in a first line `#!...`; where that is `env`, the program that `env` would find.
fn interpreter_of_script(mut file: &File) -> Result<Option<PathBuf>> {
    let mut start = Vec::new();
    file.by_ref().take(256).read_to_end(&mut start)?;
    let Some(line) = start.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line);
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let Some(interpreter) = words.next() else {
        return Ok(None);
    };
    if Path::new(interpreter).file_name() == Some(OsStr::new("env")) {
        let program = words.find(|word| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'='));
        if let Some(found) = program.and_then(|program| find(program).ok()) {
            return Ok(Some(found));
        }
    }
    Ok(Some(interpreter.into()))
}

fn of_binary(path: &Path, file: &File) -> Result<Option<Obstacle>> {
    if gains_privilege(file)? {
        return Ok(Some(Obstacle::SetId));
    }
    if !getuid().is_root() && rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64][..]).is_ok() {
        return Ok(Some(Obstacle::Capabilities));
    }
    let cache = ReadCache::new(file);
    match object::FileKind::parse(&cache) {
        Ok(object::FileKind::Elf64) => of_elf::<FileHeader64<Endianness>, _>(&cache),
        Ok(object::FileKind::Elf32) => of_elf::<FileHeader32<Endianness>, _>(&cache),
        // Whatever else the kernel may run (binfmt_misc), or a script without a first line: a dynamic interpreter.
        _ => Ok(None),
    }
}

/// Whether the loader will run in secure mode for this file's mode bits.
fn gains_privilege(file: &File) -> Result<bool> {
    let metadata = file.metadata()?;
    let mode = metadata.permissions().mode();
    let changes_user = mode & 0o4000 != 0 && metadata.uid() != getuid().as_raw();
    // Without group execution the bit once meant mandatory locking.
    let changes_group = mode & 0o2010 == 0o2010 && metadata.gid() != getgid().as_raw();
    Ok((changes_user || changes_group) && !rustix::thread::no_new_privs().unwrap_or(false))
}

fn of_elf<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(data: R) -> Result<Option<Obstacle>> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    if header.e_machine(endian) != NATIVE_MACHINE || header.is_class_64() != cfg!(target_pointer_width = "64") {
        return Ok(Some(Obstacle::Architecture));
    }
    let mut loader = None;
    let mut go = false;
    for segment in header.program_headers(endian, data)? {
        if let Some(name) = segment.interpreter(endian, data)? {
            loader = Some(name);
        }
        if let Some(mut notes) = segment.notes(endian, data)? {
            while let Some(note) = notes.next()? {
                go |= note.name() == b"Go";
            }
        }
    }
    let sections = header.sections(endian, data)?;
    go |= sections.iter().any(|section| {
        matches!(
            sections.section_name(endian, section),
            Ok(b".go.buildinfo" | b".gopclntab")
        )
    });
    Ok(match loader {
        _ if go => Some(Obstacle::Go),
        None => Some(Obstacle::Static),
        Some(name) if name.windows(7).any(|part| part == b"ld-musl") && cfg!(target_env = "gnu") => {
            Some(Obstacle::Musl)
        }
        Some(_) => raw_calls::makes_connections(header, &sections, endian, data)?.then_some(Obstacle::RawCalls),
    })
}

/// Bytes that a library takes in a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footprint {
    /// What may be written to, which counts as data whether it is touched or not.
    pub(crate) data: u64,
    /// All.
    pub(crate) whole: u64,
}

/// What the library in file `path` takes.
///
/// # Errors
/// The file cannot be read, or is no library of this machine.
pub(crate) fn footprint(path: &Path) -> Result<Footprint> {
    let cache = ReadCache::new(File::open(path)?);
    let header = FileHeader64::<Endianness>::parse(&cache)?;
    let endian = header.endian()?;
    let mut footprint = Footprint { data: 0, whole: 0 };
    for segment in header.program_headers(endian, &cache)? {
        if segment.p_type(endian) == elf::PT_LOAD {
            let len = segment.p_memsz(endian);
            footprint.whole = footprint.whole.saturating_add(len);
            if segment.p_flags(endian) & elf::PF_W != 0 {
                footprint.data = footprint.data.saturating_add(len);
            }
        }
    }
    Ok(footprint)
}

#[cfg(target_arch = "x86_64")]
const NATIVE_MACHINE: u16 = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const NATIVE_MACHINE: u16 = elf::EM_AARCH64;
#[cfg(target_arch = "riscv64")]
const NATIVE_MACHINE: u16 = elf::EM_RISCV;

/// Why no program was found under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotFound {
    /// There is none.
    Missing,
    /// There is one that may not be executed.
    NotExecutable,
}

/// The file a shell would run for `program`.
pub(crate) fn find(program: &OsStr) -> Result<PathBuf, NotFound> {
    if program.as_bytes().contains(&b'/') {
        return executable(PathBuf::from(program));
    }
    if program.is_empty() {
        return Err(NotFound::Missing);
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from_vec(b"/bin:/usr/bin".to_vec()));
    let mut outcome = NotFound::Missing;
    for dir in env::split_paths(&path) {
        // An empty entry is the current directory; the dot keeps the name from being looked up again.
        let dir = if dir.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            dir
        };
        match executable(dir.join(program)) {
            Ok(found) => return Ok(found),
            Err(NotFound::NotExecutable) => outcome = NotFound::NotExecutable,
            Err(NotFound::Missing) => {}
        }
    }
    Err(outcome)
}

fn executable(path: PathBuf) -> Result<PathBuf, NotFound> {
    match fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(NotFound::NotExecutable),
        Err(_) => Err(NotFound::Missing),
        Ok(metadata) if !metadata.is_file() => Err(NotFound::NotExecutable),
        Ok(_) => match rustix::fs::access(&path, rustix::fs::Access::EXEC_OK) {
            Ok(()) => Ok(path),
            Err(_) => Err(NotFound::NotExecutable),
        },
    }
}
