//! What is saved, in percent, by message size: one panel a set of curves.

use super::{Axis, BLACK_TEXT, GREY, GRID, draw, head, line, size_label, write};
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use std::path::Path;

/// A set of curves.
#[derive(Debug)]
pub(crate) struct Panel {
    /// What it shows.
    pub(crate) name: String,
    /// By name.
    pub(crate) curves: Vec<(String, Vec<Place>)>,
}

/// Message size, percent, standard error.
pub(crate) type Place = (f64, f64, f64);

const COLOURS: [RGBColor; 4] = [
    RGBColor(0, 158, 115),
    RGBColor(0, 114, 178),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
];
const WIDE: i32 = 620;
const HIGH: i32 = 360;
/// What the axes show, in percent and bytes; further down where a point lies there.
const PERCENT: (i32, i32) = (-40, 100);
const SIZES: (f64, f64) = (8.0, 80_000.0);

/// Draws the panels, two a row.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn reductions(file: &Path, title: &str, subtitle: &str, panels: &[Panel]) -> Result<()> {
    let rows = i32::try_from(panels.len().div_ceil(2))?;
    let size = (u32::try_from(2 * WIDE)?, u32::try_from(80 + rows * HIGH)?);
    let canvas = SVGBackend::new(file, size).into_drawing_area();
    head(&canvas, title, subtitle)?;
    let points = panels
        .iter()
        .flat_map(|panel| &panel.curves)
        .flat_map(|(_, points)| points);
    let least = points.map(|(_, mean, error)| mean - error).fold(0.0, f64::min);
    let percent = (PERCENT.0.min(super::pixel(least / 20.0 - 0.5) * 20), PERCENT.1);
    for (number, panel) in (0..).zip(panels) {
        one(&canvas, panel, percent, (number % 2 * WIDE, 80 + number / 2 * HIGH))?;
    }
    canvas.present().map_err(|error| anyhow!("{}: {error}", file.display()))
}

fn one(canvas: &super::Canvas<'_>, panel: &Panel, percent: (i32, i32), corner: (i32, i32)) -> Result<()> {
    let (lowest, highest) = percent;
    let (left, right, top, bottom) = (corner.0 + 70, corner.0 + WIDE - 80, corner.1 + 30, corner.1 + HIGH - 50);
    let x = Axis {
        low: SIZES.0,
        high: SIZES.1,
        from: left.into(),
        to: right.into(),
    };
    let y = |percent: f64| {
        let part = (percent - f64::from(lowest)) / f64::from(highest - lowest);
        super::pixel(f64::from(bottom) - part.clamp(0.0, 1.0) * f64::from(bottom - top))
    };
    write(canvas, &panel.name, (left, corner.1 + 6), 15, BLACK_TEXT)?;
    for percent in (lowest..=highest).step_by(20) {
        let (at, colour) = (y(percent.into()), if percent == 0 { GREY } else { GRID });
        line(canvas, vec![(left, at), (right, at)], colour, 1)?;
        let label = format!("{percent} %");
        write(canvas, &label, (left - 8, at), 12, (BLACK, HPos::Right, VPos::Center))?;
    }
    for size in [16_u64, 64, 256, 1024, 4096, 16_384, 65_536] {
        let at = x.at(size as f64);
        line(canvas, vec![(at, top), (at, bottom)], GRID, 1)?;
        write(
            canvas,
            &size_label(size),
            (at, bottom + 6),
            12,
            (BLACK, HPos::Center, VPos::Top),
        )?;
    }
    let middle = ((left + right) / 2, bottom + 24);
    write(
        canvas,
        "message size (bytes)",
        middle,
        12,
        (BLACK, HPos::Center, VPos::Top),
    )?;
    for (number, ((name, points), colour)) in (0..).zip(panel.curves.iter().zip(COLOURS)) {
        let places: Vec<(i32, i32)> = points.iter().map(|point| (x.at(point.0), y(point.1))).collect();
        for (point, place) in points.iter().zip(&places) {
            draw(canvas, Circle::new(*place, 3, colour.filled()))?;
            let bar = vec![(place.0, y(point.1 - point.2)), (place.0, y(point.1 + point.2))];
            line(canvas, bar, colour, 1)?;
        }
        line(canvas, places, colour, 2)?;
        let place = (right + 8, top + 10 + 18 * number);
        write(canvas, name, place, 13, (colour, HPos::Left, VPos::Center))?;
    }
    Ok(())
}
