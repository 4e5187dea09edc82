//! The rows of the table: what the runs of an experiment amount to, and what was expected.

use super::table::{Ends, Experiment, Rival, Target};
use super::work::Measurement;
use crate::bench::curves::{Road, significant};
use crate::bench::plot;
use crate::bench::proof::Proof;
use crate::bench::stats::{Summary, median};
use crate::terminal::{Style, styled};
use serde::Serialize;
use std::collections::BTreeMap;

/// One experiment.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    title: String,
    unit: &'static str,
    more_is_better: bool,
    native: Option<Summary>,
    accelerated: Option<Summary>,
    rivals: Vec<Figure>,
    /// How many times better the accelerated median is; where both ways were measured at the same time, the median of
    /// the pairs.
    ratio: Option<f64>,
    /// The same of each pair of runs: smallest, middle and largest.
    pairs: Option<Summary>,
    /// Processor time of both ends a unit of work, accelerated over native.
    cpu_ratio: Option<f64>,
    target: Target,
    verdict: Verdict,
    /// Processors' worth of time that other programs used meanwhile.
    pub(super) others: Option<f64>,
    /// The path of the last accelerated run in words, or why there is no figure.
    path: String,
    runs: Runs,
}

/// What a rival reached.
#[derive(Debug, Serialize)]
struct Figure {
    road: Road,
    name: &'static str,
    value: Summary,
}

/// Every run there was.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Runs {
    pub(super) native: Vec<Measurement>,
    pub(super) accelerated: Vec<Measurement>,
    /// By the key of the road.
    pub(super) rivals: BTreeMap<&'static str, Vec<Measurement>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// As hoped for.
    Aim,
    /// As demanded.
    Met,
    /// Less than demanded.
    Missed,
    /// The figure is there, but the bytes did not take the fast path.
    Unproved,
    /// No figure.
    NotMeasured,
}

/// The rows of one experiment: its figure, and where something is expected of it its processor time.
pub(super) fn rows(experiment: &Experiment, runs: Runs) -> Vec<Row> {
    let cpu_us = |run: &Measurement| run.cpu_s * 1e6 / run.work;
    let cpu = experiment.cpu_target.map(|target| {
        let judged = Judged {
            more_is_better: false,
            target,
            value: cpu_us,
        };
        Row {
            name: format!("{}-cpu", experiment.name),
            title: "the same, CPU a request, both ends".to_owned(),
            unit: "us",
            runs: Runs::default(),
            ..Row::of(experiment, &runs, judged)
        }
    });
    let judged = Judged {
        more_is_better: experiment.more_is_better,
        target: experiment.target,
        value: |run: &Measurement| run.value,
    };
    let row = Row::of(experiment, &runs, judged);
    [Some(Row { runs, ..row }), cpu].into_iter().flatten().collect()
}

/// Which figure of the runs a row is about.
struct Judged<F> {
    more_is_better: bool,
    target: Target,
    value: F,
}

impl Row {
    /// Beside other programs that kept so many processors busy.
    pub(super) fn disturbed_by(self, others: Option<f64>) -> Self {
        Self { others, ..self }
    }

    pub(super) fn without(experiment: &Experiment, why: String) -> Self {
        Self {
            name: experiment.name.to_owned(),
            title: experiment.title.to_owned(),
            unit: experiment.unit,
            more_is_better: experiment.more_is_better,
            native: None,
            accelerated: None,
            rivals: Vec::new(),
            ratio: None,
            pairs: None,
            cpu_ratio: None,
            target: experiment.target,
            verdict: Verdict::NotMeasured,
            others: None,
            path: why,
            runs: Runs::default(),
        }
    }

    fn of(experiment: &Experiment, runs: &Runs, judged: Judged<impl Fn(&Measurement) -> f64>) -> Self {
        let value = &judged.value;
        let better = |native: f64, accelerated: f64| match judged.more_is_better {
            true => accelerated / native,
            false => native / accelerated,
        };
        let native = Summary::of(runs.native.iter().map(value));
        let accelerated = Summary::of(runs.accelerated.iter().map(value));
        let medians = native.zip(accelerated);
        let relative = matches!(judged.target, Target::Ratio { .. });
        let pairs = || runs.native.iter().zip(&runs.accelerated).filter(|_| relative);
        let better_by = Summary::of(pairs().map(|(native, accelerated)| better(value(native), value(accelerated))));
        let cpu = |run: &Measurement| run.cpu_s / run.work;
        let (ratio, cpu_ratio) = if experiment.alternates() {
            let cpu_ratio = median(pairs().map(|(native, accelerated)| cpu(accelerated) / cpu(native)));
            (better_by.map(|pairs| pairs.median), cpu_ratio)
        } else {
            let ratio = medians.map(|(native, accelerated)| better(native.median, accelerated.median));
            let cpu = |runs: &[Measurement]| median(runs.iter().map(cpu));
            let cpu_ratio = cpu(&runs.native)
                .zip(cpu(&runs.accelerated))
                .map(|(native, fast)| fast / native);
            (ratio.filter(|_| relative), cpu_ratio.filter(|_| relative))
        };
        let proof = runs.accelerated.last().and_then(|run| run.proof.as_ref());
        let fast = proof.is_some_and(Proof::is_fast);
        let figure = if relative {
            ratio
        } else {
            accelerated.map(|summary| summary.median)
        };
        Self {
            name: experiment.name.to_owned(),
            title: experiment.title.to_owned(),
            unit: experiment.unit,
            more_is_better: judged.more_is_better,
            native,
            accelerated,
            rivals: experiment
                .rivals
                .iter()
                .filter_map(|rival| {
                    let road = rival.road();
                    Some(Figure {
                        road,
                        name: road.name(),
                        value: Summary::of(runs.rivals.get(road.key())?.iter().map(value))?,
                    })
                })
                .collect(),
            ratio,
            pairs: better_by,
            cpu_ratio,
            target: judged.target,
            verdict: match figure {
                None => Verdict::NotMeasured,
                Some(_) if experiment.ends == Ends::Both && !fast => Verdict::Unproved,
                Some(figure) => judge(judged.target, figure),
            },
            others: None,
            path: proof.map(Proof::text).unwrap_or_default(),
            runs: Runs::default(),
        }
    }
}

fn judge(target: Target, figure: f64) -> Verdict {
    let (met, aim) = match target {
        Target::Ratio { at_least, aim } | Target::AtLeast { at_least, aim } => (figure >= at_least, figure >= aim),
        Target::AtMost { at_least, aim } => (figure <= at_least, figure <= aim),
    };
    match (met, aim) {
        (_, true) => Verdict::Aim,
        (true, _) => Verdict::Met,
        _ => Verdict::Missed,
    }
}

impl Verdict {
    const fn word(self) -> (&'static str, Style) {
        match self {
            Self::Aim => ("aim", Style::Green),
            Self::Met => ("met", Style::Green),
            Self::Missed => ("MISSED", Style::Red),
            Self::Unproved => ("UNPROVED", Style::Red),
            Self::NotMeasured => ("-", Style::Yellow),
        }
    }
}

impl Row {
    pub(super) fn cells(&self) -> Vec<String> {
        let show = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), quantity);
        let of = |summary: Option<Summary>| show(summary.map(|summary| summary.median));
        let rival = |rival: Rival| {
            let mut figures = self.rivals.iter();
            of(figures
                .find(|figure| figure.road == rival.road())
                .map(|figure| figure.value))
        };
        let ratio = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let (at_least, aim) = match self.target {
            Target::Ratio { at_least, aim } => (format!("{at_least}"), format!("{aim}")),
            Target::AtMost { at_least, aim } => (format!("<= {at_least}"), format!("<= {aim}")),
            Target::AtLeast { at_least, aim } => (format!(">= {at_least}"), format!(">= {aim}")),
        };
        let pairs = self.pairs.map_or_else(
            || "-".to_owned(),
            |pairs| format!("({:.2}-{:.2})", pairs.low, pairs.high),
        );
        let (word, style) = self.verdict.word();
        vec![
            self.name.clone(),
            self.unit.to_owned(),
            of(self.native),
            of(self.accelerated),
            rival(Rival::Unix),
            rival(Rival::Sockmap),
            ratio(self.ratio),
            pairs,
            ratio(self.cpu_ratio),
            at_least,
            aim,
            styled(word, style),
            ratio(self.others),
            self.path.clone(),
        ]
    }

    /// The figures in a line, for whoever does not wait for the table.
    pub(super) fn line(&self) -> String {
        let mut cells = self.cells().into_iter();
        let mut next = || cells.next().unwrap_or_default();
        let (name, unit, native, accelerated) = (next(), next(), next(), next());
        let better = self.ratio.map(|ratio| format!(", {ratio:.2} times better"));
        match self.accelerated {
            Some(_) => format!(
                "{name}: {native} {unit} over TCP, {accelerated} with Viaduct{}",
                better.unwrap_or_default()
            ),
            None => format!("{name}: {}", self.path),
        }
    }

    pub(super) fn bar(&self) -> Option<plot::Bar> {
        let Target::Ratio { at_least, aim } = self.target else {
            return None;
        };
        let (native, accelerated) = (self.native?, self.accelerated?);
        Some(plot::Bar {
            name: self.title.clone(),
            ratio: self.ratio?,
            at_least: Some(at_least),
            aim: Some(aim),
            figures: format!(
                "{} → {} {}",
                quantity(native.median),
                quantity(accelerated.median),
                self.unit
            ),
        })
    }
}

/// A figure in a few characters.
fn quantity(value: f64) -> String {
    match value.abs() {
        size if size >= 1e9 => format!("{}G", significant(value / 1e9)),
        size if size >= 1e6 => format!("{}M", significant(value / 1e6)),
        size if size >= 1e4 => format!("{}k", significant(value / 1e3)),
        _ => significant(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Findings;
    use crate::bench::apps::Found;
    use crate::bench::apps::table::EXPERIMENTS;

    fn experiment(name: &str) -> &'static Experiment {
        EXPERIMENTS.iter().find(|experiment| experiment.name == name).unwrap()
    }

    fn found(rows: Vec<Row>) -> Found {
        Found {
            rows,
            left_out: Vec::new(),
        }
    }

    fn run(value: f64, cpu_s: f64, fast_bytes: u64) -> Measurement {
        Measurement {
            value,
            work: 1000.0,
            cpu_s,
            proof: Some(Proof {
                ends: 2,
                fast_ends: 2,
                bytes: 100,
                fast_bytes,
                ..Proof::default()
            }),
            ..Measurement::default()
        }
    }

    fn runs(native: [f64; 3], accelerated: [f64; 3], fast_bytes: u64) -> Runs {
        Runs {
            native: native.map(|value| run(value, 0.004, 0)).into(),
            accelerated: accelerated.map(|value| run(value, 0.001, fast_bytes)).into(),
            rivals: BTreeMap::new(),
        }
    }

    #[test]
    fn a_row_compares_medians_and_shows_pairs() {
        let rows = rows(
            experiment("redis-50"),
            runs([100.0, 110.0, 90.0], [330.0, 300.0, 400.0], 90),
        );
        let [row, cpu] = &rows[..] else {
            panic!("{rows:?}");
        };
        assert_eq!(row.ratio, Some(3.3));
        let pairs = row.pairs.unwrap();
        assert!((pairs.low - 300.0 / 110.0).abs() < 1e-9 && (pairs.high - 400.0 / 90.0).abs() < 1e-9);
        assert_eq!(row.cpu_ratio, Some(0.25));
        assert_eq!(row.verdict, Verdict::Met);
        assert_eq!(row.path, "2/2 ends shm, 90.0% of bytes");
        assert_eq!(
            (cpu.name.as_str(), cpu.ratio, cpu.verdict),
            ("redis-50-cpu", Some(4.0), Verdict::Aim)
        );
    }

    #[test]
    fn lower_figures_are_better_where_they_are() {
        let rows = rows(experiment("sockperf"), runs([10.0; 3], [0.5; 3], 90));
        assert_eq!((rows[0].ratio, rows[0].verdict), (Some(20.0), Verdict::Aim));
        let rows = super::rows(experiment("sockperf"), runs([10.0; 3], [2.0; 3], 90));
        assert_eq!(rows[0].verdict, Verdict::Missed);
    }

    #[test]
    fn no_figure_stands_without_its_path() {
        let rows = rows(experiment("sockperf"), runs([10.0; 3], [0.5; 3], 0));
        assert_eq!(rows[0].verdict, Verdict::Unproved);
        let rows = super::rows(experiment("nginx-close"), runs([10.0; 3], [9.8; 3], 0));
        assert_eq!(rows[0].verdict, Verdict::Met);
    }

    #[test]
    fn limits_are_of_the_figure_itself() {
        let memory = |kib| super::rows(experiment("idle-memory"), runs([1.0; 3], [kib; 3], 90))[0].verdict;
        assert_eq!(
            [12.0, 20.0, 40.0].map(memory),
            [Verdict::Aim, Verdict::Met, Verdict::Missed]
        );
        let many = |count| super::rows(experiment("connections"), runs([10_000.0; 3], [count; 3], 90))[0].verdict;
        assert_eq!([10_000.0, 9_999.0].map(many), [Verdict::Aim, Verdict::Missed]);
    }

    #[test]
    fn the_json_has_every_run() {
        let rows = rows(experiment("redis-1"), runs([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 90));
        let json = serde_json::to_value(found(rows)).unwrap();
        let row = &json["rows"][0];
        assert_eq!(row["name"], "redis-1");
        assert_eq!(row["runs"]["accelerated"][2]["value"], 6.0);
        assert_eq!(row["runs"]["accelerated"][2]["proof"]["fast_bytes"], 90);
        assert_eq!(row["target"]["ratio"]["at_least"], 4.0);
        assert_eq!(row["verdict"], "missed");
        assert_eq!(row["rivals"], serde_json::json!([]));
    }

    #[test]
    fn rivals_stand_in_columns_of_their_own() {
        let mut runs = runs([1.0; 3], [4.0; 3], 90);
        runs.rivals.insert("sockmap", vec![run(1.5, 0.004, 0)]);
        let rows = rows(experiment("redis-1"), runs);
        assert_eq!(rows[0].cells()[4..6], ["-", "1.50"]);
        let json = serde_json::to_value(&rows[0]).unwrap();
        assert_eq!(json["rivals"][0]["road"], "sockmap");
        assert_eq!(json["runs"]["rivals"]["sockmap"][0]["value"], 1.5);
    }

    #[test]
    fn what_is_missing_is_said() {
        let row = Row::without(experiment("nginx"), "not installed: wrk".to_owned());
        assert!(found(vec![row]).table().contains("not installed: wrk"));
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [12.3456, 46_663.0, 13.017e9].map(quantity).join(" "),
            "12.3 46.7k 13.0G"
        );
    }
}
