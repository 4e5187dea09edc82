//! Who is asked before a lane takes much memory.

use std::sync::OnceLock;

/// A lane may have so many bytes without asking.
const UNASKED: usize = 16 << 10;

/// Has the memory of so many bytes taken, or not; whether it has been.
type Gate = fn(usize, &mut dyn FnMut() -> bool) -> bool;

static GATE: OnceLock<Gate> = OnceLock::new();

/// Has `gate` be asked before a mapped lane grows beyond 16 KiB, with the bytes that it would take, at most as many as
/// lie beside each other, and with what takes them. If it answers `false`, the lane lives on with what it has, as if
/// the system had no memory, and asks again when it next needs more. Set once; later calls change nothing.
pub fn set_gate(gate: Gate) {
    let _ = GATE.set(gate);
}

/// Has a lane `take` so many bytes `more`, after which it has `all`, if it may; whether it has.
pub(super) fn take(all: usize, more: usize, take: &mut dyn FnMut() -> bool) -> bool {
    match GATE.get() {
        Some(gate) if all > UNASKED => gate(more, take),
        _ => take(),
    }
}
