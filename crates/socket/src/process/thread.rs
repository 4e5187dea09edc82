//! What the library keeps for each thread and looks up at every call, in one block: to find a block takes a shared
//! library a function call.

use crate::epoll::inside;
use crate::process::{self, forks};
use crate::search::Forking;
use crate::wait::direct;
use crate::{lock, sys};
use core::cell::Cell;

/// What the hooks of one thread know of each other. What calls on sets look at comes first, together in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Thread {
    pub(crate) asleep: inside::Asleep,
    /// Whether [`process::thread_ends`] will be called.
    watched: Cell<bool>,
    pub(crate) locks: lock::Own,
    pub(crate) calls: direct::Calls,
    pub(crate) forking: Forking,
    pub(crate) forks: forks::Begun,
}

const _: () = assert!(core::mem::offset_of!(Thread, locks) <= 32);

thread_local! {
    static THREAD: Thread = const {
        Thread {
            locks: lock::Own::new(),
            calls: direct::Calls::new(),
            asleep: inside::Asleep::new(),
            watched: Cell::new(false),
            forking: Forking::none(),
            forks: forks::Begun::none(),
        }
    };
}

impl Thread {
    /// What the thread has of ours is to be given back when it ends.
    #[inline]
    pub(crate) fn watch(&self) {
        if !self.watched.get() {
            self.begin_to_watch();
        }
    }

    #[cold]
    fn begin_to_watch(&self) {
        self.watched.set(true);
        sys::at_thread_exit(|| {
            // Destructors of the program's may come after this one, and need it again.
            this().watched.set(false);
            process::thread_ends();
        });
    }
}

/// The calling thread's block.
#[inline]
pub(crate) fn this() -> &'static Thread {
    sys::thread_local(&THREAD)
}
