//! Names the library by the version of its interface, so that programs find one that fits them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libviaduct.so.{major}");
}
