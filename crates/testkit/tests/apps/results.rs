//! What a test found out, for the table in `docs/compatibility.md`: `make compatibility` runs the tests and writes it.

use serde_json::json;
use std::cell::RefCell;
use std::path::Path;

/// Names the directory for results; without it nothing is written.
const VARIABLE: &str = "VIADUCT_TEST_RESULTS";

/// What one test has found out.
#[derive(Debug, Default)]
pub(crate) struct Results {
    plain: RefCell<Option<String>>,
    figures: RefCell<Vec<(String, f64)>>,
}

impl Results {
    /// The programs work, and their connections stay plain.
    pub(crate) fn stays_plain(&self, why: &str) {
        self.plain.replace(Some(why.to_owned()));
    }

    /// A figure of the load generator's own; more is better.
    pub(crate) fn figure(&self, name: &str, value: f64) {
        self.figures.borrow_mut().push((name.to_owned(), value));
    }

    /// Writes a file named like the running test.
    pub(crate) fn write(&self, programs: &[&str]) {
        let Some(directory) = std::env::var_os(VARIABLE) else {
            return;
        };
        let thread = std::thread::current();
        let Some((test, mode)) = thread.name().and_then(|name| name.rsplit_once("::")) else {
            return;
        };
        let found = json!({
            "test": test,
            "mode": mode,
            "programs": programs,
            "plain": *self.plain.borrow(),
            "figures": *self.figures.borrow(),
        });
        std::fs::create_dir_all(&directory).unwrap();
        let file = Path::new(&directory).join(format!("{test}::{mode}.json"));
        std::fs::write(file, found.to_string()).unwrap();
    }
}
