//! A program under valgrind's memory checker, which emulates the processor and shows the program another auxiliary
//! vector than the kernel's. It looks at every access of the preload library, too.

use crate::nginx::{is_big, start};
use crate::{PATIENCE, Pair};
use viaduct_testkit::processes::free_port;

matrix!(check, "valgrind", "nginx", "curl");

fn check(pair: &Pair<'_>) {
    let port = free_port();
    let _server = start(pair, port);
    let copy = pair.instance.scratch("copy");
    let address = format!("http://127.0.0.1:{port}/big.bin");
    pair.proved("nginx", || {
        let arguments = [
            "--quiet",
            "--error-exitcode=9",
            "curl",
            "--silent",
            "--fail",
            "--output",
        ];
        let arguments = arguments.map(std::ffi::OsString::from).into_iter();
        let arguments = arguments.chain([copy.clone().into_os_string(), address.clone().into()]);
        let outcome = pair.client("valgrind", arguments).run(PATIENCE);
        assert_eq!(outcome.errors, "", "the checker has something to say");
        outcome.success();
    });
    assert!(is_big(&copy), "the body differs");
}
