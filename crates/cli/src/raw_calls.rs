//! Whether a dynamic program makes its TCP connections by system calls of its own, which nothing preloaded sees.

use object::Endianness;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionTable, Sym};
use object::read::{ReadRef, Result};

/// What of the C library makes or takes over connections, brings further code, or turns into another program: who has
/// none of it can come to a connection by itself only.
const WAYS: [&[u8]; 23] = [
    b"socket",
    b"connect",
    b"accept",
    b"accept4",
    b"listen",
    b"recvmsg",
    b"syscall",
    b"dlopen",
    b"dlmopen",
    b"execl",
    b"execle",
    b"execlp",
    b"execv",
    b"execve",
    b"execveat",
    b"execvp",
    b"execvpe",
    b"fexecve",
    b"popen",
    b"posix_spawn",
    b"posix_spawnp",
    b"system",
    b"vfork",
];

/// Libraries that make no connections for others, up to the dot.
const HARMLESS: [&[u8]; 8] = [
    b"libc",
    b"libm",
    b"libdl",
    b"librt",
    b"libpthread",
    b"libgcc_s",
    b"libstdc++",
    b"ld-linux-x86-64",
];

/// Whether it has no way to a connection but its own system calls, and the code for these.
///
/// # Errors
/// The file is damaged.
pub(crate) fn makes_connections<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    header: &H,
    sections: &SectionTable<'data, H, R>,
    endian: Endianness,
    data: R,
) -> Result<bool> {
    if !cfg!(target_arch = "x86_64") || !is_alone(sections, endian, data)? {
        return Ok(false);
    }
    for segment in header.program_headers(endian, data)? {
        let is_code = segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian) & elf::PF_X != 0;
        if is_code && has_calls(segment.data(endian, data).unwrap_or_default()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether neither the C library nor another brings it to a connection.
fn is_alone<'data, H: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(
    sections: &SectionTable<'data, H, R>,
    endian: Endianness,
    data: R,
) -> Result<bool> {
    let Some((dynamic, strings)) = sections.dynamic(endian, data)? else {
        return Ok(false);
    };
    let strings = sections.strings(endian, data, strings)?;
    for entry in dynamic {
        if entry.tag(endian) == elf::DT_NEEDED {
            let name = entry.string(endian, strings)?;
            if !HARMLESS.contains(&name.split(|byte| *byte == b'.').next().unwrap_or(name)) {
                return Ok(false);
            }
        }
    }
    let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
    for symbol in symbols.iter().filter(|symbol| symbol.is_undefined(endian)) {
        if WAYS.contains(&symbols.symbol_name(endian, symbol)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// So near to one another, in bytes, are the instruction that enters the kernel and the numbers of the calls: what only
/// looks like them lies anywhere.
const NEAR: usize = 4096;

/// Whether code enters the kernel by itself, and near by knows the numbers of the calls that make connections.
fn has_calls(code: &[u8]) -> bool {
    const ENTER: [u8; 2] = [0x0f, 0x05];
    // Where the last was of entrances, of `socket`'s number, and of that of `connect` or `listen`.
    let mut last = [None; 3];
    (0..code.len()).any(|at| {
        let found = match code.get(at..).unwrap_or_default() {
            rest if rest.starts_with(&ENTER) => 0,
            // A register is set, by the short or the long instruction.
            [0xb8..=0xc7, number, 0, 0, 0, ..] => match i64::from(*number) {
                libc::SYS_socket => 1,
                libc::SYS_connect | libc::SYS_listen => 2,
                _ => return false,
            },
            _ => return false,
        };
        last[found] = Some(at);
        last.iter().all(|last| last.is_some_and(|last| at - last < NEAR))
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    const SOCKET: [u8; 7] = [0xb8, 41, 0, 0, 0, 0x0f, 0x05];
    const CONNECT: [u8; 5] = [0xbf, 42, 0, 0, 0];

    #[test]
    fn calls_are_found_where_they_stand_together() {
        let with = |between: usize| [&SOCKET[..], &vec![0x90; between], &CONNECT].concat();
        assert!(has_calls(&with(0)) && has_calls(&with(4000)));
        assert!(!has_calls(&with(NEAR)));
        assert!(has_calls(&[with(2 * NEAR), with(10)].concat()));
    }

    #[test]
    fn some_of_them_are_none() {
        assert!(!has_calls(&[]));
        assert!(!has_calls(&SOCKET) && !has_calls(&CONNECT));
        // Numbers, and nothing that enters.
        assert!(!has_calls(&[&SOCKET[..5], &CONNECT].concat()));
        let other = [0xb8, 43, 0, 0, 0, 0x0f, 0x05];
        assert!(!has_calls(&[&other[..], &CONNECT].concat()));
    }
}
