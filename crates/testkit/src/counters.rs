//! The counters of a process, written to as `viaduct path` does but many times a second.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use viaduct_control::counters::{MEMFD_NAME, SLOTS, SLOTS_USED, State, Wanted, slot, slot_base};

/// The counters of one process.
#[derive(Debug)]
pub struct Counters {
    region: File,
}

impl Counters {
    /// Opens the counters of the process numbered `pid`.
    ///
    /// # Errors
    /// If it has none, or is gone.
    pub fn open(pid: u32) -> io::Result<Self> {
        let name = format!("/memfd:{MEMFD_NAME}");
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
            let path = entry?.path();
            let found = std::fs::read_link(&path).is_ok_and(|target| target.to_string_lossy().starts_with(&name));
            if found {
                let region = File::options().read(true).write(true).open(path)?;
                return Ok(Self { region });
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn word(&self, index: usize) -> io::Result<u64> {
        let mut word = [0; 8];
        self.region.read_exact_at(&mut word, index as u64 * 8)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Slots of connections that are open, with how often each has changed its path.
    ///
    /// # Errors
    /// If the region cannot be read.
    pub fn connections(&self) -> io::Result<Vec<(usize, u64)>> {
        let used = usize::try_from(self.word(SLOTS_USED)?).unwrap_or(0).min(SLOTS);
        let mut found = Vec::new();
        for index in 0..used {
            let base = slot_base(index);
            let state = State::unpack(self.word(base + slot::STATE)?);
            if self.word(base + slot::CONNECTION)? != 0 && state.is_some() {
                found.push((index, self.word(base + slot::SWITCHES)?));
            }
        }
        Ok(found)
    }

    /// Asks for the connection in `slot` to be moved.
    ///
    /// # Errors
    /// If the region cannot be written.
    pub fn want(&self, slot: usize, wanted: Wanted) -> io::Result<()> {
        let at = (slot_base(slot) + slot::WANTED) as u64 * 8;
        self.region.write_all_at(&(wanted as u64).to_ne_bytes(), at)
    }
}
