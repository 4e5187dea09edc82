//! Asynchronous calls: threads of the C library's move the bytes, or the kernel does, unseen, so the connection goes
//! back to TCP first.

use core::ffi::{c_int, c_long, c_void};
use viaduct_socket::descriptors::{lifecycle, successors, table};
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

/// Which word of a request to the kernel is its descriptor (`struct iocb` of linux/aio_abi.h).
const DESCRIPTOR: usize = 5;

/// Whether the kernel may have the request.
unsafe fn prepare_for_kernel(request: *const c_int) -> bool {
    // SAFETY: the program's request.
    is_nowhere(request) || successors::to_kernel(unsafe { *request.add(DESCRIPTOR) })
}

/// The system call. Of several requests it takes those before one that cannot be taken now, as the kernel does.
pub(crate) unsafe fn submit(context: c_long, count: c_long, list: *const *const c_int) -> c_long {
    let known = if is_nowhere(list) { 0 } else { count.max(0) };
    // SAFETY: the program's own call, with so many requests.
    unsafe {
        let is_ready = |index: &c_long| prepare_for_kernel(*list.add(*index as usize));
        let ready = (0..known).take_while(is_ready).count() as c_long;
        if ready == 0 && known > 0 {
            return not_now().into();
        }
        let count = if ready < known { ready } else { count };
        real::syscall(libc::SYS_io_submit, context, count, list as c_long, 0, 0, 0)
    }
}

/// libaio's, which enters the kernel by itself and answers with an error's number below zero.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_submit(context: c_long, count: c_long, list: *const *const c_int) -> c_int {
    let before = sys::errno();
    // SAFETY: the program's own call.
    let taken = unsafe { submit(context, count, list) } as c_int;
    if taken >= 0 {
        return taken;
    }
    let error = sys::errno();
    sys::set_errno(before);
    -error
}
