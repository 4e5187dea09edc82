//! The pictures.
//!
//! Drawn from lines and text at places in pixels, because what charts usually do with logarithmic axes cannot be read:
//! ticks here are at powers of two for sizes and at 1, 2 and 5 for the rest.

mod reductions;

pub(crate) use reductions::{Panel, reductions};

use crate::bench::curves::Road;
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

const SIZE: (u32, u32) = (960, 600);
const FONT: &str = "sans-serif";
/// Black, from the left and from the top.
const BLACK_TEXT: (RGBColor, HPos, VPos) = (BLACK, HPos::Left, VPos::Top);
const GREY: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(226, 226, 226);

/// A curve of a sweep.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    /// As the legend has it.
    pub(crate) name: &'a str,
    /// Gives it its colour.
    pub(crate) road: Road,
    /// Message size and value.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Colours that the colour-blind and a grey printer tell apart.
const fn colour(road: Road) -> RGBColor {
    match road {
        Road::Viaduct => RGBColor(0, 114, 178),
        Road::Tcp => RGBColor(213, 94, 0),
        Road::Channel => RGBColor(60, 60, 60),
        Road::Unix => RGBColor(0, 158, 115),
        Road::Sockmap => RGBColor(230, 159, 0),
        Road::Ucx => RGBColor(204, 121, 167),
        Road::Iceoryx2 => RGBColor(86, 180, 233),
        Road::OpenMpi => RGBColor(135, 84, 40),
    }
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An axis from `low` to `high`, drawn from pixel `from` to pixel `to` in equal steps for equal ratios.
#[derive(Clone, Copy, Debug)]
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn at(self, value: f64) -> i32 {
        let part = (value / self.low).ln() / (self.high / self.low).ln();
        pixel(self.from + part.clamp(0.0, 1.0) * (self.to - self.from))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "pixels of a picture")]
fn pixel(place: f64) -> i32 {
    place.round() as i32
}

/// 1, 2 and 5 times powers of ten that surround `low..=high`, and all of those between.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let steps: Vec<f64> = (-9..=12)
        .flat_map(|exponent| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(exponent)))
        .collect();
    let first = steps
        .partition_point(|step| *step <= low * (1.0 + 1e-9))
        .saturating_sub(1);
    let last = steps
        .partition_point(|step| *step < high * (1.0 - 1e-9))
        .min(steps.len() - 1);
    steps.get(first..=last).unwrap_or_default().to_vec()
}

/// A tick as a label: `0.05`, `2`, `5000`.
fn label(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `4096` as `4K`.
fn size_label(bytes: u64) -> String {
    match bytes {
        0..1024 => bytes.to_string(),
        1024..1_048_576 => format!("{}K", bytes / 1024),
        _ => format!("{}M", bytes / 1_048_576),
    }
}

/// Writes at a place.
fn write(canvas: &Canvas<'_>, text: &str, at: (i32, i32), size: i32, look: (RGBColor, HPos, VPos)) -> Result<()> {
    let (colour, horizontal, vertical) = look;
    let style = (FONT, size)
        .into_font()
        .color(&colour)
        .pos(Pos::new(horizontal, vertical));
    draw(canvas, Text::new(text.to_owned(), at, style))
}

fn draw<'a, E>(canvas: &Canvas<'a>, element: E) -> Result<()>
where
    for<'b> &'b E: plotters::element::PointCollection<'b, (i32, i32)>,
    E: plotters::element::Drawable<SVGBackend<'a>>,
{
    canvas.draw(&element).map_err(|error| anyhow!("drawing: {error}"))
}

fn line(canvas: &Canvas<'_>, points: Vec<(i32, i32)>, colour: RGBColor, width: u32) -> Result<()> {
    draw(canvas, PathElement::new(points, colour.stroke_width(width)))
}

fn head(canvas: &Canvas<'_>, title: &str, subtitle: &str) -> Result<()> {
    canvas.fill(&WHITE).map_err(|error| anyhow!("drawing: {error}"))?;
    write(canvas, title, (24, 18), 22, (BLACK, HPos::Left, VPos::Top))?;
    write(canvas, subtitle, (24, 48), 13, (GREY, HPos::Left, VPos::Top))
}

/// Draws curves by message size, both axes logarithmic.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn sweep(
    file: &Path,
    title: &str,
    subtitle: &str,
    unit: &str,
    largest: f64,
    lines: &[Line<'_>],
) -> Result<()> {
    let backend = SVGBackend::new(file, SIZE).into_drawing_area();
    head(&backend, title, subtitle)?;
    let (left, right, top, bottom) = (80, 800, 90, 540);
    let values = || lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
    if high <= 0.0 {
        return Err(anyhow!("nothing to draw"));
    }
    let rungs = ticks(low, high);
    let x = Axis {
        low: 1.0,
        high: largest,
        from: left.into(),
        to: right.into(),
    };
    let y = Axis {
        low: rungs.first().copied().unwrap_or(low),
        high: rungs.last().copied().unwrap_or(high),
        from: bottom.into(),
        to: top.into(),
    };
    // Over many powers of ten the steps between them would crowd.
    let crowded = rungs.len() > 16;
    let decade = |value: f64| (value.log10() - value.log10().round()).abs() < 1e-6;
    for rung in rungs.into_iter().filter(|rung| !crowded || decade(*rung)) {
        let at = y.at(rung);
        line(&backend, vec![(left, at), (right, at)], GRID, 1)?;
        write(
            &backend,
            &label(rung),
            (left - 8, at),
            13,
            (BLACK, HPos::Right, VPos::Center),
        )?;
    }
    let mut size = 1;
    while size as f64 <= largest {
        let at = x.at(size as f64);
        line(&backend, vec![(at, top), (at, bottom)], GRID, 1)?;
        write(
            &backend,
            &size_label(size),
            (at, bottom + 8),
            13,
            (BLACK, HPos::Center, VPos::Top),
        )?;
        size *= 4;
    }
    write(
        &backend,
        "message size (bytes)",
        ((left + right) / 2, bottom + 32),
        14,
        (BLACK, HPos::Center, VPos::Top),
    )?;
    let style = (FONT, 14)
        .into_font()
        .transform(FontTransform::Rotate270)
        .color(&BLACK)
        .pos(Pos::new(HPos::Center, VPos::Center));
    draw(&backend, Text::new(unit.to_owned(), (24, (top + bottom) / 2), style))?;
    // Viaduct's own last, lest others hide it.
    for of_viaduct in [false, true] {
        for curve in lines.iter().filter(|curve| (curve.road == Road::Viaduct) == of_viaduct) {
            let points: Vec<_> = curve
                .points
                .iter()
                .map(|(size, value)| (x.at(*size), y.at(*value)))
                .collect();
            for point in &points {
                draw(&backend, Circle::new(*point, 3, colour(curve.road).filled()))?;
            }
            line(&backend, points, colour(curve.road), 2)?;
        }
    }
    for name in beside(lines, y) {
        let colour = colour(name.road);
        line(&backend, vec![(right + 4, name.end), (right + 16, name.at)], colour, 1)?;
        write(
            &backend,
            name.text,
            (right + 20, name.at),
            14,
            (colour, HPos::Left, VPos::Center),
        )?;
    }
    backend
        .present()
        .map_err(|error| anyhow!("{}: {error}", file.display()))
}

/// The name of a curve beside its end.
#[derive(Debug)]
struct Name<'a> {
    text: &'a str,
    road: Road,
    /// Where the curve ends, in pixels from the top.
    end: i32,
    /// Where the name stands.
    at: i32,
}

/// Names that are each as near to the end of their curve as can be and do not touch each other.
fn beside<'a>(lines: &[Line<'a>], y: Axis) -> Vec<Name<'a>> {
    const APART: i32 = 18;
    let mut names: Vec<Name<'_>> = lines
        .iter()
        .filter_map(|line| {
            let end = y.at(line.points.last()?.1);
            Some(Name {
                text: line.name,
                road: line.road,
                end,
                at: end,
            })
        })
        .collect();
    names.sort_by_key(|name| name.end);
    // Groups of names that would touch, each with the sum of the places its first name would like. They spread about
    // their middle.
    let mut groups: Vec<(i32, i32)> = Vec::new();
    for (number, name) in (0..).zip(&names) {
        groups.push((name.end - number * APART, 1));
        while let [.., (above, many), (below, few)] = groups[..]
            && above * few > below * many
        {
            groups.truncate(groups.len() - 2);
            groups.push((above + below, many + few));
        }
    }
    let firsts = groups
        .into_iter()
        .flat_map(|(sum, count)| (0..count).map(move |_| sum / count));
    for ((number, name), first) in (0..).zip(&mut names).zip(firsts) {
        name.at = first + number * APART;
    }
    names
}

/// A bar of the picture of programs.
#[derive(Debug)]
pub(crate) struct Bar {
    /// What it shows.
    pub(crate) name: String,
    /// Times better than plain TCP.
    pub(crate) ratio: f64,
    /// What is demanded.
    pub(crate) at_least: Option<f64>,
    /// What is hoped for.
    pub(crate) aim: Option<f64>,
    /// The figures behind it.
    pub(crate) figures: String,
}

/// Draws how many times better programs do, on a logarithmic axis.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn bars(file: &Path, title: &str, subtitle: &str, bars: &[Bar]) -> Result<()> {
    const ROW: i32 = 34;
    let rows = i32::try_from(bars.len())?;
    let (left, right, top) = (300, 760, 118);
    let bottom = top + rows * ROW;
    let size = (1080, u32::try_from(bottom + 66)?);
    let backend = SVGBackend::new(file, size).into_drawing_area();
    head(&backend, title, subtitle)?;
    let values = || {
        bars.iter()
            .flat_map(|bar| [Some(bar.ratio), bar.at_least, bar.aim].into_iter().flatten())
    };
    let rungs = ticks(values().fold(0.5, f64::min), values().fold(2.0, f64::max) * 1.05);
    let x = Axis {
        low: rungs.first().copied().unwrap_or(0.5),
        high: rungs.last().copied().unwrap_or(2.0),
        from: left.into(),
        to: right.into(),
    };
    for rung in rungs {
        let at = x.at(rung);
        line(&backend, vec![(at, top), (at, bottom)], GRID, 1)?;
        write(
            &backend,
            &label(rung),
            (at, bottom + 8),
            13,
            (BLACK, HPos::Center, VPos::Top),
        )?;
    }
    let one = x.at(1.0);
    for (number, bar) in (0..rows).zip(bars) {
        let middle = top + number * ROW + ROW / 2;
        let met = bar.at_least.is_none_or(|least| bar.ratio >= least);
        let fill = colour(if met { Road::Viaduct } else { Road::Tcp });
        let end = x.at(bar.ratio);
        draw(
            &backend,
            Rectangle::new([(one.min(end), middle - 9), (one.max(end), middle + 9)], fill.filled()),
        )?;
        write(
            &backend,
            &bar.name,
            (left - 12, middle),
            14,
            (BLACK, HPos::Right, VPos::Center),
        )?;
        let ratio = format!("{:.2}×", bar.ratio);
        write(
            &backend,
            &ratio,
            (right + 66, middle),
            14,
            (BLACK, HPos::Right, VPos::Center),
        )?;
        write(
            &backend,
            &bar.figures,
            (right + 78, middle),
            13,
            (GREY, HPos::Left, VPos::Center),
        )?;
        if let Some(least) = bar.at_least {
            line(
                &backend,
                vec![(x.at(least), middle - 13), (x.at(least), middle + 13)],
                BLACK,
                2,
            )?;
        }
        if let Some(aim) = bar.aim {
            draw(&backend, Circle::new((x.at(aim), middle), 4, WHITE.filled()))?;
            draw(&backend, Circle::new((x.at(aim), middle), 4, BLACK.stroke_width(2)))?;
        }
    }
    line(&backend, vec![(one, top), (one, bottom)], BLACK, 1)?;
    let axis = "times better than plain TCP in the same run";
    write(
        &backend,
        axis,
        ((left + right) / 2, bottom + 32),
        14,
        (BLACK, HPos::Center, VPos::Top),
    )?;
    line(&backend, vec![(left, 84), (left, 102)], BLACK, 2)?;
    write(
        &backend,
        "at least",
        (left + 8, 93),
        13,
        (BLACK, HPos::Left, VPos::Center),
    )?;
    draw(&backend, Circle::new((left + 86, 93), 4, BLACK.stroke_width(2)))?;
    for (at, road, text) in [(150, Road::Viaduct, "as demanded"), (276, Road::Tcp, "less")] {
        let place = [(left + at, 86), (left + at + 14, 100)];
        draw(&backend, Rectangle::new(place, colour(road).filled()))?;
        write(
            &backend,
            text,
            (left + at + 22, 93),
            13,
            (BLACK, HPos::Left, VPos::Center),
        )?;
    }
    write(&backend, "aim", (left + 96, 93), 13, (BLACK, HPos::Left, VPos::Center))?;
    backend
        .present()
        .map_err(|error| anyhow!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_surround_what_they_measure() {
        assert_eq!(ticks(0.9, 21.0), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(ticks(1.0, 2.0), [1.0, 2.0]);
        let labels: Vec<String> = ticks(0.05, 100.0).into_iter().map(label).collect();
        assert_eq!(labels.join(" "), "0.05 0.1 0.2 0.5 1 2 5 10 20 50 100");
        assert_eq!([1, 512, 4096, 1 << 20].map(size_label).join(" "), "1 512 4K 1M");
    }

    #[test]
    fn equal_ratios_are_equal_steps() {
        let axis = Axis {
            low: 1.0,
            high: 100.0,
            from: 0.0,
            to: 200.0,
        };
        assert_eq!([1.0, 10.0, 100.0, 1e9].map(|value| axis.at(value)), [0, 100, 200, 200]);
    }

    #[test]
    fn names_of_curves_keep_apart() {
        let axis = Axis {
            low: 1.0,
            high: 100.0,
            from: 200.0,
            to: 0.0,
        };
        let at = |name, road, value| Line {
            name,
            road,
            points: vec![(1.0, value)],
        };
        let lines = [
            at("a", Road::Tcp, 10.0),
            at("b", Road::Unix, 11.0),
            at("c", Road::Ucx, 1.0),
        ];
        let names = beside(&lines, axis);
        let places: Vec<(&str, i32)> = names.iter().map(|name| (name.text, name.at)).collect();
        // The first two share the way they must go.
        assert_eq!(places, [("b", 89), ("a", 107), ("c", 200)]);
    }

    #[test]
    fn pictures_are_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sweep.svg");
        let lines = [Line {
            name: "kernel TCP",
            road: Road::Tcp,
            points: vec![(1.0, 10.0), (1024.0, 20.0)],
        }];
        sweep(&file, "Title", "machine", "us", 1024.0, &lines).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("kernel TCP") && text.contains("<polyline"), "{text}");
        assert!(sweep(&file, "Title", "machine", "us", 1024.0, &[]).is_err());
    }
}
