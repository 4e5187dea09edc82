//! Direct search against a model of it, millions of calls: natively, on lanes and on kernel connections under Viaduct,
//! and each as on Linux before 6.9.

use std::path::Path;
use std::time::Duration;
use viaduct_testkit::{Instance, Launch, Mode, can_run};

const PATIENCE: Duration = Duration::from_secs(120);

/// What the program has said of so many calls, on connections with seeds from `seed` on.
fn model(mode: Mode<'_>, program: &Path, options: &str, arguments: [&str; 3]) {
    let arguments = arguments.iter().filter(|argument| !argument.is_empty());
    let outcome = Launch::new(mode, program, arguments).options(options).run(PATIENCE);
    let last: Vec<&str> = outcome.output.lines().rev().take(3).collect();
    assert!(
        outcome.status.success() && last[0].starts_with("ok"),
        "{options}: {} {last:?} {}",
        outcome.status,
        outcome.errors
    );
    let number = |after: &str| -> u64 {
        let mut words = last[0].split(' ').map(|word| word.trim_end_matches(','));
        let all: Vec<&str> = words.by_ref().collect();
        let at = all.iter().position(|word| *word == after).unwrap();
        all[at - 1].parse().unwrap()
    };
    assert!(number("refused") > 0 && number("waits") > 20, "{options}: {last:?}");
}

#[test]
fn millions_of_calls_do_what_a_list_does() {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let program = crate::compile(&instance, "model");
    let accelerated = Mode::Accelerated(&instance);
    model(Mode::Native, &program, "", ["1", "800000", ""]);
    model(accelerated, &program, "--offer now", ["1001", "300000", ""]);
    model(accelerated, &program, "--path tcp", ["2001", "300000", ""]);
    model(Mode::Native, &program, "", ["3001", "200000", "old"]);
    model(accelerated, &program, "--offer now", ["4001", "100000", "old"]);
    model(accelerated, &program, "--path tcp", ["5001", "100000", "old"]);
}
