//! Cancellation of threads (`pthread_cancel`): what owns something is not to be left in the middle.

use core::ffi::c_int;

const DISABLE: c_int = 1;

unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    safe fn pthread_testcancel();
}

/// The calling thread is not cancelled until [`Kept::end`] but at a [`Kept::point`]. No destructor: a cancelled thread
/// must find nothing to run.
#[derive(Debug)]
pub(crate) struct Kept {
    before: c_int,
}

impl Kept {
    pub(crate) fn begin() -> Self {
        let mut before = 0;
        pthread_setcancelstate(DISABLE, &mut before);
        Self { before }
    }

    pub(crate) fn end(self) {
        pthread_setcancelstate(self.before, &mut 0);
    }

    /// Ends the thread if it has been cancelled. Nothing may be owned.
    pub(crate) fn point(&self) {
        pthread_setcancelstate(self.before, &mut 0);
        pthread_testcancel();
        pthread_setcancelstate(DISABLE, &mut 0);
    }
}

/// Does what is over soon.
pub(crate) fn keep<R>(work: impl FnOnce() -> R) -> R {
    let kept = Kept::begin();
    let result = work();
    kept.end();
    result
}
