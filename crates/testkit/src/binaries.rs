//! Where the programs under test are.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable that names the directory with `viaduct`, `viaductd`, `libviaduct_preload.so` and
/// `viaduct-testpeer`.
pub const BIN_DIR_VARIABLE: &str = "VIADUCT_BIN_DIR";

/// Environment variable under which a test that cannot run fails instead of passing with a word about it.
pub const REQUIRE_VARIABLE: &str = "VIADUCT_TEST_REQUIRE";

/// The directory with the programs under test: [`BIN_DIR_VARIABLE`], else the release directory beside the running
/// test, else its debug directory.
///
/// # Panics
/// If the programs are nowhere, because then no test means anything.
pub fn bin_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os(BIN_DIR_VARIABLE) {
        return dir.into();
    }
    let test = std::env::current_exe().expect("a running test has a path");
    test.ancestors()
        .flat_map(|dir| [dir.join("release"), dir.join("debug")])
        .find(|dir| dir.join("viaduct-testpeer").exists())
        .expect("run `cargo build --workspace --release` first, or set VIADUCT_BIN_DIR")
}

/// The program under test named `name`.
pub fn binary(name: &str) -> PathBuf {
    bin_dir().join(name)
}

/// The name by which programs ask for `libviaduct.so`: that of its interface.
pub const LIBRARY: &str = "libviaduct.so.0";

/// What a C compiler is to link a program with that uses `libviaduct.so`. `dir` gets the library under its other name,
/// for the program to find.
///
/// # Panics
/// If nothing can be made in `dir`.
pub fn link_with_library(dir: &Path) -> [String; 3] {
    let named = dir.join(LIBRARY);
    if !named.exists() {
        std::os::unix::fs::symlink(binary("libviaduct.so"), named).expect("the directory is the test's own");
    }
    let (from, there) = (bin_dir(), dir.display());
    [
        format!("-L{}", from.display()),
        "-lviaduct".to_owned(),
        format!("-Wl,-rpath,{there}"),
    ]
}

/// Compiles the C sources of a test (`tests/TEST/programs`, names without ending), with what programs that have both
/// ends share. Answers `program`.
///
/// # Panics
/// If they do not compile without a warning.
pub fn compile(test: &str, sources: &[&str], program: PathBuf) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let source = |name: &&str| tests.join(format!("{test}/programs/{name}.c"));
    let output = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-result", "-pthread"])
        .args(sources.iter().map(source))
        .arg(tests.join("programs/ends.c"))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("there is a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Where the shell would find `program`; administrators' directories count too.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Wrapper scripts in front of Debian's own interpreters would only add processes.
    ["/usr/bin", "/usr/sbin", "/sbin"]
        .iter()
        .map(PathBuf::from)
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Whether this process is root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Whether a test that needs root and `programs` can run. If not it says so; where everything is required it panics.
///
/// # Panics
/// If something is missing and [`REQUIRE_VARIABLE`] is set.
pub fn can_run(root: bool, programs: &[&str]) -> bool {
    let mut missing: Vec<&str> = programs.iter().copied().filter(|name| find(name).is_none()).collect();
    if root && !is_root() {
        missing.push("root");
    }
    if missing.is_empty() {
        return true;
    }
    assert!(
        std::env::var_os(REQUIRE_VARIABLE).is_none(),
        "this test needs {missing:?}"
    );
    eprintln!("skipped: needs {missing:?}");
    false
}

/// The workspace's root directory.
pub fn workspace() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest)
}
