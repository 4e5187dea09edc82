//! Whereabouts on the stack the calling thread works.

use super::raw;
use core::ops::Range;

/// An address in the stack that lies in the calling function's part of it, or near that.
#[inline]
pub(crate) fn stack_pointer() -> usize {
    let address: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: copies a register.
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) address, options(nomem, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: copies a register.
    unsafe {
        core::arch::asm!("mov {}, sp", out(reg) address, options(nomem, nostack, preserves_flags));
    }
    address
}

/// The stack that the calling thread's signal handlers have for themselves; empty if there is none.
pub(crate) fn signal_stack() -> Range<usize> {
    let mut stack = libc::stack_t {
        ss_sp: core::ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    let place = (&raw mut stack).expose_provenance();
    // SAFETY: the kernel writes one stack_t.
    let known = unsafe { raw::call(libc::SYS_sigaltstack, [0, place, 0, 0, 0, 0]) };
    if known.is_err() || stack.ss_flags & libc::SS_DISABLE != 0 {
        return 0..0;
    }
    let from = stack.ss_sp.addr();
    from..from.saturating_add(stack.ss_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn deeper() -> usize {
        let place = [0_u8; 256];
        core::hint::black_box(&place);
        stack_pointer()
    }

    #[test]
    fn stacks_grow_downwards() {
        assert!(deeper() < stack_pointer());
    }
}
