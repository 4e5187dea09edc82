//! Where Viaduct's other parts are installed.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names the preload library to use instead of the installed one.
pub(crate) const PRELOAD_VARIABLE: &str = "VIADUCT_PRELOAD";
/// Names the viaductd to start instead of the installed one.
pub(crate) const DAEMON_VARIABLE: &str = "VIADUCT_DAEMON";
/// This program, to be started again: also where another has been installed in its place since, or none.
pub(crate) const OWN: &str = "/proc/self/exe";
/// File name of the preload library.
pub(crate) const PRELOAD_NAME: &str = "libviaduct_preload.so";

/// Where `make install` puts the library; set when building for another prefix.
const LIBRARY_DIR: &str = match option_env!("VIADUCT_LIBDIR") {
    Some(dir) => dir,
    None => "/usr/local/lib/viaduct",
};

/// The preload library: as the environment says, beside this program, in `../lib/viaduct`, or where it was installed.
pub(crate) fn preload() -> Option<PathBuf> {
    let installed = Path::new(LIBRARY_DIR).join(PRELOAD_NAME);
    first_file(
        PRELOAD_VARIABLE,
        &[PRELOAD_NAME, "../lib/viaduct/libviaduct_preload.so"],
        Some(installed),
    )
}

/// How `LD_PRELOAD` names the library: by a way that only the GNU loader knows, which puts the name of its own
/// directory for `$LIB`. The musl loader finds nothing there and goes on, where the library itself would make it give
/// up the program.
pub(crate) fn preload_entry(library: &Path) -> OsString {
    let mut entry = OsString::new();
    // Where the directories are others than everywhere, the way would lead nowhere.
    if ["/lib", "/lib64"].iter().all(|directory| Path::new(directory).is_dir()) {
        // More steps up than any such directory is deep, and links of its own: the root's parent is the root.
        entry.push("/$LIB/../../../..");
    }
    entry.push(library);
    entry
}

/// viaductd: as the environment says, beside this program, or in `../sbin`.
pub(crate) fn daemon() -> Option<PathBuf> {
    first_file(
        DAEMON_VARIABLE,
        &["viaductd", "../sbin/viaductd", "../bin/viaductd"],
        None,
    )
}

/// What is wrong where the environment names a part that was not found.
pub(crate) fn misnamed(variable: &str) -> Option<String> {
    let named = env::var(variable).ok().filter(|named| !named.is_empty())?;
    Some(format!("{variable}: there is no file {named}"))
}

/// Why this program may find nothing of its own: what shows it where it is is missing.
pub(crate) fn lost() -> &'static str {
    match env::current_exe() {
        Ok(_) => "",
        Err(_) => "; without /proc `viaduct` does not know where it is itself",
    }
}

/// What the environment names, else the first of those that are beside this program, or installed there.
fn first_file(variable: &str, beside: &[&str], installed: Option<PathBuf>) -> Option<PathBuf> {
    let candidates = match env::var_os(variable) {
        Some(path) if !path.is_empty() => vec![PathBuf::from(path)],
        _ => {
            let own = env::current_exe().ok();
            let own = own.as_deref().and_then(Path::parent);
            let own = own.into_iter().flat_map(|dir| beside.iter().map(|name| dir.join(name)));
            own.chain(installed).collect()
        }
    };
    candidates
        .into_iter()
        .find(|path| path.is_file())
        .and_then(|path| path.canonicalize().ok())
}
