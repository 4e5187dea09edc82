//! Asynchronous calls: threads of the C library's move the bytes, unseen, so the connection goes back to TCP first.

use core::ffi::{c_int, c_void};
use viaduct_socket::descriptors::{lifecycle, table};
use viaduct_socket::{is_nowhere, real, sys};

/// Whether the call may go on. A request begins with its descriptor.
unsafe fn prepare(request: *const c_void) -> bool {
    if is_nowhere(request) {
        return true;
    }
    // SAFETY: the program's request.
    let fd = unsafe { *request.cast::<c_int>() };
    table::connection(fd).is_none_or(lifecycle::to_background)
}

fn not_now() -> c_int {
    sys::set_errno(libc::EAGAIN);
    -1
}

macro_rules! requests {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(request: *mut c_void) -> c_int {
                // SAFETY: the program's own call.
                unsafe {
                    if prepare(request) {
                        real::$name(request)
                    } else {
                        not_now()
                    }
                }
            }
        )*
    };
}

requests! { aio_read aio_read64 aio_write aio_write64 }

macro_rules! lists {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(
                mode: c_int,
                list: *const *mut c_void,
                count: c_int,
                event: *mut c_void,
            ) -> c_int {
                let known = if is_nowhere(list) { 0 } else { usize::try_from(count).unwrap_or(0) };
                // SAFETY: the program's own call, with so many requests.
                unsafe {
                    if (0..known).all(|index| prepare(*list.add(index))) {
                        real::$name(mode, list, count, event)
                    } else {
                        not_now()
                    }
                }
            }
        )*
    };
}

lists! { lio_listio lio_listio64 }
