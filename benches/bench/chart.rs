//! A contest as an SVG drawing: bars with their quartiles, or lines across a sweep.

use std::collections::BTreeMap;

use plotters::prelude::*;
use rdma_pipe::measure::plot::{self, Chart, Series};

use crate::harness::Spread;
use crate::record::{Contest, Entry, Kind};

const WIDTH: i32 = 900;
const NAMES: i32 = 290;
const BARS: i32 = 430;
const ROW: i32 = 26;
const TOP: i32 = 48;

/// Returns the drawing; `None` if nothing was measured.
pub fn draw(contest: &Contest) -> Option<String> {
    match &contest.across {
        Some(across) => lines(contest, across),
        None => bars(contest),
    }
}

fn lines(contest: &Contest, across: &str) -> Option<String> {
    let mut by_name: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for entry in &contest.entries {
        let points = by_name.entry(&entry.name).or_default();
        points.extend(entry.at.map(|at| (at, Spread::of(&entry.values).median)));
    }
    let series = by_name.into_iter().map(|(name, mut points)| {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        Series { name: name.to_owned(), points }
    });
    let series: Vec<Series> = series.filter(|series| !series.points.is_empty()).collect();
    let in_bytes = across == "bytes";
    let chart = Chart {
        title: contest.title.clone(),
        across: across.to_owned(),
        up: contest.unit.clone(),
        series,
        log_up: in_bytes,
        in_bytes,
    };
    if chart.series.is_empty() { None } else { plot::draw_charts(&[chart]) }
}

fn bars(contest: &Contest) -> Option<String> {
    if contest.entries.is_empty() {
        return None;
    }
    let mut svg = String::new();
    let size = (WIDTH as u32, (TOP + ROW * contest.entries.len() as i32 + 16) as u32);
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    let drawn = draw_bars(&area, contest);
    drop(area);
    drawn.expect("a string takes everything");
    Some(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_bars(area: &Area<'_>, contest: &Contest) -> Result<(), Box<dyn std::error::Error>> {
    let text = |text: String, at: (i32, i32), size: i32| Text::new(text, at, ("sans-serif", size).into_font());
    area.fill(&WHITE)?;
    area.draw(&text(format!("{}, {}", contest.title, contest.unit), (12, 14), 15))?;
    let most = contest.entries.iter().map(|entry| Spread::of(&entry.values).high).fold(0.0, f64::max);
    let across = |value: f64| NAMES + (value / most.max(f64::MIN_POSITIVE) * f64::from(BARS)).round() as i32;
    for (entry, top) in contest.entries.iter().zip((TOP..).step_by(ROW as usize)) {
        let spread = Spread::of(&entry.values);
        let middle = top + ROW / 2 - 2;
        area.draw(&text(entry.name.clone(), (12, middle - 5), 13))?;
        let bar = [(NAMES, top), (across(spread.median), top + ROW - 6)];
        area.draw(&Rectangle::new(bar, color(entry).filled()))?;
        let black = ShapeStyle::from(&BLACK).stroke_width(1);
        area.draw(&PathElement::new([(across(spread.low), middle), (across(spread.high), middle)], black))?;
        for end in [spread.low, spread.high] {
            area.draw(&PathElement::new([(across(end), middle - 4), (across(end), middle + 4)], black))?;
        }
        area.draw(&text(format!("{:.3}", spread.median), (across(spread.high) + 8, middle - 5), 13))?;
    }
    area.present()?;
    Ok(())
}

fn color(entry: &Entry) -> RGBColor {
    match entry.kind {
        Kind::Ours => RGBColor(46, 117, 182),
        Kind::Peer => RGBColor(150, 150, 150),
        Kind::Limit => RGBColor(214, 190, 130),
    }
}
