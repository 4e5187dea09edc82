//! Programs built with a sanitizer.

use core::ffi::c_char;

/// What gcc's and clang's address sanitizer asks the program it is in for: it refuses to start behind another library
/// of `LD_PRELOAD`, which might take its functions away. Ours calls those that come next, and so its.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
