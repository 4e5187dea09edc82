//! `docs/conformance.md` says which cases hold Viaduct to what.

use std::collections::BTreeSet;
use std::path::Path;
use viaduct_testkit::binaries::workspace;

/// The names of the cases in a program's source.
pub(crate) fn cases(source: &str) -> impl Iterator<Item = &str> {
    ["JOINED(", "BARE(", "ALONE("].into_iter().flat_map(|kind| {
        let entries = source.split(kind).skip(1);
        entries.filter_map(|rest| rest.split_once(')').map(|(name, _)| name))
    })
}

/// Whether another test has the name: as a module of its own, or a function of its only file.
fn is_test(test: &str, name: &str) -> bool {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let has_function =
        |file: &Path| std::fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {name}(")));
    let module = tests.join(test).join(format!("{name}.rs"));
    module.exists()
        || has_function(&tests.join(format!("{test}.rs")))
        || has_function(&tests.join(test).join("main.rs"))
}

/// What is wrong with the page where these themes are played.
pub(crate) fn faults(themes: &[(&str, &str)]) -> Vec<String> {
    let page = std::fs::read_to_string(workspace().join("docs/conformance.md")).unwrap();
    let named: BTreeSet<&str> = page.split('`').skip(1).step_by(2).collect();
    let mut faults = Vec::new();
    for (theme, name) in named.iter().filter_map(|name| name.split_once("::")) {
        let source = themes.iter().find(|(known, _)| *known == theme);
        let known = match source {
            Some((_, source)) => cases(source).any(|case| case == name),
            None => theme == "theme" || theme == "test" || is_test(theme, name),
        };
        if !known {
            faults.push(format!("{theme}::{name} is named but does not exist"));
        }
    }
    let missing = themes.iter().filter(|(theme, _)| !named.contains(theme));
    faults.extend(missing.map(|(theme, _)| format!("the theme {theme} is not there")));
    faults
}
