//! Who is asked before a lane takes much memory.

use std::sync::OnceLock;

/// A lane may have so many bytes without asking.
const UNASKED: usize = 64 << 10;

static GATE: OnceLock<fn(usize) -> bool> = OnceLock::new();

/// Has `may_take` be asked before a mapped lane grows beyond 64 KiB, with the bytes that it would take. If it answers `false`, the lane lives on with
/// what it has, as if the system had no memory, and asks again when it next needs more. Set once; later calls change nothing.
pub fn set_gate(may_take: fn(usize) -> bool) {
    let _ = GATE.set(may_take);
}

/// Whether a lane may take `more` bytes, and have `all` of them then.
pub(super) fn lets(all: usize, more: usize) -> bool {
    all <= UNASKED || GATE.get().is_none_or(|may_take| may_take(more))
}
