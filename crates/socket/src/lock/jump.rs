//! Jumps: the program leaves functions without returning from them, by `longjmp` and its like.
//!
//! Most jumps come from functions of the program's own and leave nothing of ours. A signal handler may have interrupted
//! calls of ours, though: then what these own and are counted with is given up if the jump leaves them, and stays if
//! the handler jumps within itself.

use crate::conn::owning;
use crate::process::forks;
use crate::wait::asleep;
use crate::{epoll, lock, sys};
use core::cell::OnceCell;
use core::ops::Range;

/// One jump.
#[derive(Debug)]
pub(crate) struct Jump {
    /// Where the stack will be.
    target: usize,
    /// The stack that signal handlers have for themselves, empty if there is none. Asked for once it matters.
    apart: OnceCell<Range<usize>>,
}

impl Jump {
    pub(crate) fn to(target: usize) -> Self {
        Self {
            target,
            apart: OnceCell::new(),
        }
    }

    /// Whether it leaves the function that was at `frame` of the stack. Stacks grow downwards, and a signal's frame
    /// takes more of them than what lies between a function of ours and its caller.
    pub(crate) fn leaves(&self, frame: usize) -> bool {
        let apart = self.apart.get_or_init(sys::signal_stack);
        match (apart.contains(&frame), apart.contains(&self.target)) {
            (false, true) => false,
            (true, false) => true,
            _ => frame < self.target,
        }
    }
}

/// The calling thread is about to jump to where its stack is at `target`.
pub fn jumping(target: usize) {
    let jump = Jump::to(target);
    lock::jumping(&jump, owning::ring_for_left);
    asleep::jumping(&jump);
    epoll::jumping(&jump);
    forks::jumping(&jump);
}

/// The calling thread is about to end, in a handler perhaps that has interrupted a call of ours: nobody goes on with
/// what that owns.
pub fn ending() {
    lock::jumping(&Jump::to(usize::MAX), owning::ring_for_left);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jump(target: usize, apart: Range<usize>) -> Jump {
        Jump {
            target,
            apart: OnceCell::from(apart),
        }
    }

    #[test]
    fn a_jump_leaves_what_is_deeper_on_the_stack() {
        let jump = jump(1000, 0..0);
        assert!(jump.leaves(900));
        assert!(!jump.leaves(1100));
    }

    #[test]
    fn a_stack_for_handlers_is_deeper_than_the_other_wherever_it_lies() {
        for apart in [100..200, 5000..6000] {
            let within = jump(apart.start + 50, apart.clone());
            assert!(!within.leaves(1000), "what the handler has interrupted");
            assert!(within.leaves(apart.start + 10));
            assert!(!within.leaves(apart.start + 90));
            let out = jump(1000, apart.clone());
            assert!(out.leaves(apart.start + 10));
            assert!(out.leaves(900));
            assert!(!out.leaves(1100));
        }
    }
}
