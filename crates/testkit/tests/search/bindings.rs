//! Direct search outside C programs of checks: the Python bindings and the examples, each natively and under Viaduct.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use viaduct_testkit::binaries::{binary, link_with_library, workspace};
use viaduct_testkit::{Instance, Launch, Mode, can_run};

const PATIENCE: Duration = Duration::from_secs(60);

fn succeeds(mode: Mode<'_>, program: &Path, arguments: &[&Path]) -> String {
    let launch = Launch::new(mode, program, arguments)
        .variable("VIADUCT_LIBRARY", &binary("libviaduct.so").display().to_string())
        .variable("PYTHONPATH", &workspace().join("python").display().to_string());
    let launch = match mode {
        Mode::Native => launch,
        _ => launch.options("--offer now"),
    };
    let outcome = launch.run(PATIENCE);
    assert!(outcome.status.success(), "{}{}", outcome.output, outcome.errors);
    outcome.output + &outcome.errors
}

#[test]
fn python_bindings() {
    if !can_run(false, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let python = viaduct_testkit::binaries::find("python3").unwrap();
    for tests in ["test_viaduct.py", "test_inbox.py"] {
        let tests = workspace().join("python/tests").join(tests);
        for mode in [Mode::Native, Mode::Accelerated(&instance)] {
            assert!(succeeds(mode, &python, &[&tests]).contains("OK"));
        }
    }
}

/// What the README and the documentation of the module show.
#[test]
fn python_examples_run_as_written() {
    if !can_run(false, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let python = viaduct_testkit::binaries::find("python3").unwrap();
    let readme = std::fs::read_to_string(workspace().join("python/README.md")).unwrap();
    let blocks = readme.split("```python\n").skip(1);
    let mut examples: Vec<String> = blocks
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect();
    assert_eq!(examples.len(), 2);
    examples.push("import doctest, viaduct\nprint(doctest.testmod(viaduct))\n".to_owned());
    let file = instance.scratch("example.py");
    for (example, printed) in examples.iter().zip([
        "b'help!'\nb'a long story; '\nb'first'\nb'later'\n",
        "b'urgent'\n1 b'bulk'\n",
        "TestResults(failed=0, attempted=6)\n",
    ]) {
        std::fs::write(&file, example).unwrap();
        for mode in [Mode::Native, Mode::Accelerated(&instance)] {
            assert_eq!(succeeds(mode, &python, &[&file]), printed);
        }
    }
}

#[test]
fn urgent_messages_overtake_bulk() {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let program: PathBuf = instance.scratch("priorities");
    let output = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(workspace().join("examples/seek/priorities.c"))
        .arg("-I")
        .arg(workspace().join("include"))
        .args(link_with_library(instance.dir()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for mode in [Mode::Native, Mode::Accelerated(&instance)] {
        let said = succeeds(mode, &program, &[]);
        let median = |way: &str| -> f64 {
            let line = said.lines().find(|line| line.starts_with(way)).unwrap();
            assert!(line.contains(" 100 urgent messages"), "{line}");
            let mut words = line.split_whitespace().skip_while(|word| *word != "median");
            words.nth(1).unwrap().parse().unwrap()
        };
        // Work on dozens of bulk messages against work on one.
        assert!(median("direct search") * 3.0 < median("in order"), "{said}");
    }
}

#[test]
fn pipelined_replies() {
    if !can_run(false, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let python = viaduct_testkit::binaries::find("python3").unwrap();
    let example = workspace().join("examples/seek/pipelined.py");
    // How much sooner depends on who waits for whom: where the page arrives no faster than it is read, not at all.
    for mode in [Mode::Native, Mode::Accelerated(&instance)] {
        let said = succeeds(mode, &python, &[&example]);
        assert!(said.contains("in order") && said.contains("direct search"), "{said}");
    }
    let checks = crate::source("pipelined.py");
    for mode in [Mode::Native, Mode::Accelerated(&instance)] {
        let pairs = instance.stats().pairs;
        assert_eq!(succeeds(mode, &python, &[&checks, &example]), "every byte was right\n");
        let lanes = match mode {
            Mode::Native => 0,
            Mode::Accelerated(_) => 2,
        };
        assert_eq!(instance.stats().pairs - pairs, lanes);
    }
}
