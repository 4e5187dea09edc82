//! `make compatibility`: writes the table of programs in `docs/compatibility.md` from what the tests of applications
//! have found out.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const BEGIN: &str = "<!-- written by make compatibility -->\n";
const END: &str = "<!-- end -->\n";

/// What one test wrote.
#[derive(Deserialize)]
struct Found {
    test: String,
    mode: String,
    programs: Vec<String>,
    plain: Option<String>,
    figures: Vec<(String, f64)>,
}

/// The version of the Debian package that `program` belongs to; the program's name alone if it belongs to none.
fn with_version(program: &str) -> String {
    let package = |query: &[&str]| {
        let output = Command::new("dpkg-query").args(query).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    let file = viaduct_testkit::binaries::find(program);
    let real = file.and_then(|file| file.canonicalize().ok());
    let version = real.and_then(|file| {
        let owner = package(&["-S", file.to_str()?])?;
        package(&["-W", "-f", "${Version}\n", owner.split(':').next()?])
    });
    match version.as_deref().and_then(|text| text.lines().next()) {
        Some(version) => format!("{program} {version}"),
        None => program.to_owned(),
    }
}

fn read(directory: &Path) -> BTreeMap<String, BTreeMap<String, Found>> {
    let mut tests = BTreeMap::<_, BTreeMap<_, _>>::new();
    for entry in std::fs::read_dir(directory).expect("results").flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("a result");
        let found: Found = serde_json::from_str(&text).expect("a result of this version's tests");
        tests
            .entry(found.test.clone())
            .or_default()
            .insert(found.mode.clone(), found);
    }
    tests
}

fn row(test: &str, modes: &BTreeMap<String, Found>) -> Option<String> {
    let (native, fast) = (modes.get("native")?, modes.get("accelerated")?);
    let programs: Vec<String> = fast.programs.iter().map(|program| with_version(program)).collect();
    let path = fast
        .plain
        .as_ref()
        .map_or_else(|| "yes".to_owned(), |why| format!("no: {why}"));
    let ratios = native.figures.iter().filter_map(|(name, before)| {
        let (_, after) = fast.figures.iter().find(|(other, _)| other == name)?;
        Some(format!("{name}: {:.1}", after / before))
    });
    let ratios = ratios.collect::<Vec<_>>().join("; ");
    let one_side = ["only_the_client_accelerated", "only_the_server_accelerated"];
    let mixed = if one_side.iter().all(|mode| modes.contains_key(*mode)) {
        "works, plain"
    } else {
        "not run"
    };
    Some(format!(
        "| {test} | {} | {path} | {mixed} | {ratios} |\n",
        programs.join(", ")
    ))
}

fn main() {
    let directory = std::env::args_os().nth(1).expect("the directory of results");
    let mut table =
        String::from("| test | programs | accelerated | one side only | times plain TCP |\n|---|---|---|---|---|\n");
    for (test, modes) in read(Path::new(&directory)) {
        if let Some(row) = row(&test, &modes) {
            let _ = write!(table, "{row}");
        }
    }
    let page = viaduct_testkit::binaries::workspace().join("docs/compatibility.md");
    let text = std::fs::read_to_string(&page).expect("the page");
    let (before, rest) = text.split_once(BEGIN).expect("the mark where the table begins");
    let (_, after) = rest.split_once(END).expect("the mark where the table ends");
    std::fs::write(&page, format!("{before}{BEGIN}\n{table}\n{END}{after}")).expect("the page is written");
}
