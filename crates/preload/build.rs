//! Binds the library's own calls to its own functions.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A program may have functions of its own under these names, and to look the names up takes time at each start.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
