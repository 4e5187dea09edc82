//! Binds the library's own calls to its own functions.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A program may have functions of its own under these names, and to look the names up takes time at each start.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // The compiler has the library find its own variables by a table, a load and a cache line for each of what a hook
    // looks at. This linker puts the places into the code instead; LLD, the compiler's own choice, does not.
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
}
