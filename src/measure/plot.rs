//! Draws numbers as SVG. Several reports are drawn on top of each other.

use plotters::backend::SVGBackend;
use plotters::coord::ranged1d::{KeyPointHint, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::report::{Bandwidth, Connections, Disk, Latency, Ping, Report, ending};
use crate::fault::printable;

/// Width of a drawing and height of each chart in pixels.
const WIDTH: u32 = 1000;
const HEIGHT: u32 = 420;

/// Heights in pixels of a line of the heading, of a chart's title, and of a bar including the space below it.
const LINE: u32 = 22;
const TITLE: u32 = 46;
const BAR: u32 = 28;

/// A line of a chart.
pub struct Series {
    /// Name in the legend; an empty name is left out.
    pub name: String,
    /// Points: horizontal and vertical value.
    pub points: Vec<(f64, f64)>,
}

/// Lines over a logarithmic horizontal axis.
pub struct Chart {
    /// Title above the chart.
    pub title: String,
    /// Label of the horizontal axis.
    pub across: String,
    /// Label of the vertical axis.
    pub up: String,
    /// The lines.
    pub series: Vec<Series>,
    /// Whether the vertical axis is logarithmic.
    pub log_up: bool,
    /// Whether the horizontal values are bytes.
    pub in_bytes: bool,
}

/// Values without a horizontal axis, each drawn as a bar.
struct Bars {
    title: String,
    bars: Vec<(String, f64)>,
}

/// A part of a drawing.
enum Part<'a> {
    /// What was measured: a line for each report.
    Heading(Vec<String>),
    Lines(&'a Chart),
    Bars(Bars),
}

/// Draws the reports, each with its name. `None` if nothing in them can be drawn.
pub fn draw(reports: &[(String, &Report)]) -> Option<String> {
    let charts = charts(reports);
    let mut parts: Vec<Part<'_>> = charts.iter().map(part).collect();
    for (name, report) in reports {
        let Some(limits) = &report.limits else { continue };
        let bars = limits.stages.iter().map(|stage| (format!("{}: {}", stage.name, stage.what), stage.mib_s));
        let name = if reports.len() == 1 { String::new() } else { format!("{name}: ") };
        let title = format!("{name}Stages of a copy, MiB/s (limited by the {})", limits.limit);
        parts.push(Part::Bars(Bars { title, bars: bars.collect() }));
    }
    if parts.is_empty() {
        return None;
    }
    let heading = reports.iter().filter_map(|(name, report)| {
        let heading = report.heading();
        let named = if reports.len() == 1 { heading.clone() } else { format!("{name}: {heading}") };
        (!heading.is_empty()).then_some(named)
    });
    parts.insert(0, Part::Heading(heading.collect()));
    Some(draw_parts(&parts))
}

/// Draws charts one below the other. `None` if there are none.
pub fn draw_charts(charts: &[Chart]) -> Option<String> {
    let parts: Vec<Part<'_>> = charts.iter().map(Part::Lines).collect();
    (!parts.is_empty()).then(|| draw_parts(&parts))
}

/// Draws lines, or bars if all points have the same horizontal value.
fn part(chart: &Chart) -> Part<'_> {
    let mut points = chart.series.iter().flat_map(|series| &series.points);
    let first = points.next().map_or(0.0, |point| point.0);
    if points.any(|point| point.0 != first) {
        return Part::Lines(chart);
    }
    let bars = chart.series.iter().flat_map(|series| {
        let name = if series.name.is_empty() { chart.up.clone() } else { series.name.clone() };
        series.points.iter().map(move |point| (name.clone(), point.1))
    });
    let at = if chart.in_bytes { bytes_label(&first) } else { number_label(&first) };
    let title = format!("{}, {} ({}: {at})", chart.title, chart.up, chart.across);
    Part::Bars(Bars { title, bars: bars.collect() })
}

fn draw_parts(parts: &[Part<'_>]) -> String {
    let size = (WIDTH, parts.iter().map(Part::height).sum());
    let mut text = String::new();
    draw_all(&SVGBackend::with_string(&mut text, size).into_drawing_area(), parts).expect("a string takes everything");
    text
}

impl Part<'_> {
    fn height(&self) -> u32 {
        match self {
            Self::Heading(lines) => 8 + LINE * lines.len() as u32,
            Self::Lines(_) => HEIGHT,
            Self::Bars(bars) => TITLE + BAR * bars.bars.len() as u32 + BAR,
        }
    }
}

/// The name of a line in a chart, and a function that takes its points from a report.
struct Line<'a>(&'a str, &'a dyn Fn(&Report) -> Vec<(f64, f64)>);

/// Charts that are shared by several reports.
struct Charts<'a> {
    reports: &'a [(String, &'a Report)],
    charts: Vec<Chart>,
}

impl Charts<'_> {
    /// Adds a chart with these lines for each report that has points for them.
    fn add(&mut self, title: &str, across: &str, up: &str, log_up: bool, lines: &[Line<'_>]) {
        let mut series = Vec::new();
        for Line(what, points) in lines {
            for (name, report) in self.reports {
                // A value of 0 means that the row has no number, so it is not drawn at the bottom.
                let points: Vec<_> = points(report).into_iter().filter(|point| point.1 > 0.0).collect();
                let name = match (self.reports.len() == 1, *what) {
                    (true, _) => (*what).to_owned(),
                    (false, "") => name.clone(),
                    (false, _) => format!("{name}: {what}"),
                };
                if !points.is_empty() {
                    series.push(Series { name, points });
                }
            }
        }
        if !series.is_empty() {
            let [title, across, up] = [title, across, up].map(str::to_owned);
            let in_bytes = across == BYTES;
            self.charts.push(Chart { title, across, up, series, log_up, in_bytes });
        }
    }
}

/// Horizontal label of charts over message lengths.
const BYTES: &str = "message size in bytes";

/// Returns a function that makes a point from each row of a table of a report.
fn points<R: 'static>(
    rows: fn(&Report) -> &[R],
    across: fn(&R) -> f64,
    up: fn(&R) -> f64,
) -> impl Fn(&Report) -> Vec<(f64, f64)> {
    move |report| rows(report).iter().map(|row| (across(row), up(row))).collect()
}

fn charts(reports: &[(String, &Report)]) -> Vec<Chart> {
    let mut charts = Charts { reports, charts: Vec::new() };
    // With several reports, only the figures that are compared are drawn.
    let alone = reports.len() == 1;
    let latency = |which: fn(&Latency) -> f64| {
        move |report: &Report| -> Vec<(f64, f64)> {
            let pinged = report.ping.iter().flat_map(Ping::rows);
            report.latency.iter().chain(pinged).map(|row| (row.bytes as f64, which(row))).collect()
        }
    };
    let lines = [
        Line("longest", &latency(|row| row.max_us)),
        Line("99.9 %", &latency(|row| row.p999_us)),
        Line("99 %", &latency(|row| row.p99_us)),
        Line("median", &latency(|row| row.p50_us)),
        Line("shortest", &latency(|row| row.min_us)),
    ];
    charts.add("Latency (half a round trip)", BYTES, "µs", true, if alone { &lines } else { &lines[2..4] });

    let bandwidth = |up| points(|report| &report.bandwidth, |row: &Bandwidth| row.bytes as f64, up);
    let lines = [Line("peak", &bandwidth(|row| row.peak_mib_s)), Line("average", &bandwidth(|row| row.average_mib_s))];
    let both = reports.iter().any(|(_, report)| report.bandwidth.iter().any(|row| row.bidirectional));
    let title = if both { "Bandwidth, both directions together" } else { "Bandwidth" };
    charts.add(title, BYTES, "MiB/s", true, if alone { &lines } else { &lines[1..] });
    charts.add("Message rate", BYTES, "million/s", true, &[Line("", &bandwidth(|row| row.rate_mpps))]);

    let connections = |up| points(|report| &report.connections, |row: &Connections| row.connections.into(), up);
    let operations = connections(|row| row.operations_s / 1e6);
    charts.add("32-byte round trips", "connections", "million/s", false, &[Line("", &operations)]);
    let time = connections(|row| row.operation_us);
    charts.add("Median time of a 32-byte round trip", "connections", "µs", true, &[Line("", &time)]);
    let large = connections(|row| row.large_mib_s);
    charts.add("64 KiB messages", "connections", "MiB/s", false, &[Line("", &large)]);
    add_model(&mut charts);

    let memory = points(|report| &report.memory, |row| row.threads.into(), |row| row.mib_s);
    charts.add("Memory copies", "threads", "MiB/s", false, &[Line("", &memory)]);
    add_disk(&mut charts);
    charts.charts
}

fn add_model(charts: &mut Charts<'_>) {
    let curve = |which: fn(&(u32, f64, f64, f64)) -> f64| {
        move |report: &Report| -> Vec<(f64, f64)> {
            let model = report.model.iter().flat_map(|model| &model.curve);
            model.map(|point| (point.0.into(), which(point))).collect()
        }
    };
    let lines = [
        Line("RC", &curve(|point| point.1)),
        Line("grouped (ScaleRPC)", &curve(|point| point.2)),
        Line("state at the client (StaR)", &curve(|point| point.3)),
    ];
    charts.add("Model of the adapter's cache", "connections", "million/s", false, &lines);
}

/// Adds the charts of storage, with a line for each action, order and block size.
fn add_disk(charts: &mut Charts<'_>) {
    let mut kinds: Vec<(&str, bool, u64)> = Vec::new();
    for row in charts.reports.iter().flat_map(|(_, report)| &report.disk) {
        let kind = (&row.action[..], row.random, row.bytes);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    type Figure = (&'static str, &'static str, fn(&Disk) -> f64);
    let figures: [Figure; 4] = [
        ("Storage: bandwidth", "MiB/s", |row| row.mib_s),
        ("Storage: operations", "thousand/s", |row| row.iops / 1e3),
        ("Storage: median time per block", "µs", |row| row.p50_us),
        ("Storage: 99th percentile time per block", "µs", |row| row.p99_us),
    ];
    for (title, unit, which) in figures {
        let points = kinds.iter().map(|kind| {
            let kind = *kind;
            let points = move |report: &Report| -> Vec<(f64, f64)> {
                let rows = report.disk.iter().filter(|row| (&row.action[..], row.random, row.bytes) == kind);
                rows.map(|row| (row.depth.into(), which(row))).collect()
            };
            let order = if kind.1 { "random" } else { "in order" };
            (format!("{} {}, {order}", kind.0, bytes_label(&(kind.2 as f64))), points)
        });
        let points: Vec<_> = points.collect();
        let lines: Vec<Line<'_>> = points.iter().map(|(name, points)| Line(name, points)).collect();
        charts.add(title, "blocks in flight", unit, true, &lines);
    }
}

/// Returns a text without the characters that XML cannot have.
fn drawable(text: &str) -> String {
    printable(text).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

/// The area that is drawn on.
type Area<'s> = DrawingArea<SVGBackend<'s>, plotters::coord::Shift>;

type Drawn<T> = Result<T, Box<dyn std::error::Error>>;

/// Colours that colour-blind readers can tell apart: those of Okabe and Ito, without yellow, which is too light for
/// lines on white.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];

fn color(number: usize) -> RGBColor {
    COLORS[number % COLORS.len()]
}

fn draw_all(area: &Area<'_>, parts: &[Part<'_>]) -> Drawn<()> {
    area.fill(&WHITE)?;
    let mut rest = area.clone();
    for part in parts {
        let (here, below) = rest.split_vertically(part.height());
        match part {
            Part::Heading(lines) => {
                for (line, top) in lines.iter().zip((10..).step_by(LINE as usize)) {
                    here.draw(&Text::new(drawable(line), (12, top), ("sans-serif", 15)))?;
                }
            }
            Part::Lines(chart) => draw_chart(&here, chart)?,
            Part::Bars(bars) => draw_bars(&here, bars)?,
        }
        rest = below;
    }
    area.present()?;
    Ok(())
}

fn draw_bars(area: &Area<'_>, bars: &Bars) -> Drawn<()> {
    const NAMES: i32 = 320;
    const LONGEST: i32 = 440;
    let text = |text: String, at: (i32, i32), size: i32| Text::new(text, at, ("sans-serif", size));
    area.draw(&text(drawable(&bars.title), (12, 14), 18))?;
    let most = bars.bars.iter().map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
    for ((name, value), top) in bars.bars.iter().zip((TITLE as i32..).step_by(BAR as usize)) {
        let end = NAMES + (value / most * f64::from(LONGEST)).round() as i32;
        area.draw(&text(ending(&drawable(name), 38), (24, top + 4), 14))?;
        area.draw(&Rectangle::new([(NAMES, top), (end, top + BAR as i32 - 6)], color(0).filled()))?;
        area.draw(&text(number_label(value), (end + 8, top + 4), 14))?;
    }
    Ok(())
}

/// Draws the names of the lines beside the chart, because a box inside the chart would hide some lines.
fn draw_legend(area: &Area<'_>, names: &[String]) -> Drawn<()> {
    for (number, (name, top)) in names.iter().zip((TITLE as i32..).step_by(LINE as usize)).enumerate() {
        area.draw(&Rectangle::new([(0, top + 4), (18, top + 8)], color(number).filled()))?;
        area.draw(&Text::new(name.clone(), (26, top), ("sans-serif", 14)))?;
    }
    Ok(())
}

fn draw_chart(area: &Area<'_>, chart: &Chart) -> Drawn<()> {
    let all = || chart.series.iter().flat_map(|series| &series.points);
    let bounds = |value: fn(&(f64, f64)) -> f64| {
        let least = all().map(value).filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let most = all().map(value).fold(0.0, f64::max);
        if least.is_finite() { (least, most.max(least * 1.01)) } else { (0.5, 1.0) }
    };
    let (across, up) = (bounds(|point| point.0), bounds(|point| point.1));
    let named = chart.series.iter().map(|series| ending(&drawable(&series.name), 26));
    let names: Vec<String> = named.filter(|name| !name.is_empty()).collect();
    let longest = names.iter().map(|name| name.chars().count()).max();
    let legend_pixels = longest.map_or(0, |letters| 36 + 8 * letters as u32);
    let (area, beside) = area.split_horizontally(WIDTH - legend_pixels);
    draw_legend(&beside, &names)?;
    let mut builder = ChartBuilder::on(&area);
    builder.caption(&chart.title, ("sans-serif", 20)).margin(12).x_label_area_size(44).y_label_area_size(76);
    let mut x = Powers { from: across.0, to: across.1 * 1.05, marks: Vec::new() };
    let pixels = (WIDTH - legend_pixels) as i32 - 76 - 24;
    x.marks = marks(all().map(|point| point.0).collect(), chart.in_bytes, &x, pixels);
    if chart.log_up {
        let y = Powers { from: up.0 / 1.2, to: up.1 * 1.3, marks: Vec::new() };
        fill_chart(builder.build_cartesian_2d(x, y)?, chart)
    } else {
        fill_chart(builder.build_cartesian_2d(x, 0.0..up.1 * 1.1)?, chart)
    }
}

/// Returns the marks of a horizontal axis: every measured point, as far as the labels fit beside each other.
fn marks(mut points: Vec<f64>, in_bytes: bool, axis: &Powers, pixels: i32) -> Vec<f64> {
    points.sort_by(f64::total_cmp);
    points.dedup();
    let mut free = i32::MIN;
    points.retain(|point| {
        let label = if in_bytes { bytes_label(point) } else { number_label(point) };
        let (half, at) = (4 * label.chars().count() as i32, axis.map(point, (0, pixels)));
        let has_room = at - half >= free;
        if has_room {
            free = at + half + 2;
        }
        has_room
    });
    points
}

fn fill_chart<'a, 's: 'a, Y>(
    mut context: ChartContext<'a, SVGBackend<'s>, Cartesian2d<Powers, Y>>,
    chart: &Chart,
) -> Drawn<()>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let label: fn(&f64) -> String = if chart.in_bytes { bytes_label } else { number_label };
    context
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(220, 220, 220))
        .x_desc(&chart.across)
        .y_desc(&chart.up)
        .x_labels(12)
        .y_labels(8)
        .x_label_formatter(&label)
        .y_label_formatter(&number_label)
        .label_style(("sans-serif", 13))
        .draw()?;
    for (number, series) in chart.series.iter().enumerate() {
        let color = color(number).to_rgba();
        let points = || series.points.iter().copied();
        context.draw_series(LineSeries::new(points(), ShapeStyle::from(color).stroke_width(2)))?;
        context.draw_series(points().map(|point| Circle::new(point, 3, color.filled())))?;
    }
    Ok(())
}

/// A logarithmic axis with the given marks, or with a mark at each power of ten.
#[derive(Clone)]
struct Powers {
    from: f64,
    to: f64,
    marks: Vec<f64>,
}

impl Ranged for Powers {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = (value.max(self.from) / self.from).ln() / (self.to / self.from).ln();
        limit.0 + (f64::from(limit.1 - limit.0) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if !self.marks.is_empty() {
            return self.marks.clone();
        }
        let (first, last) = ((self.from.log10() - 1e-9).ceil() as i32, (self.to.log10() + 1e-9).floor() as i32);
        let step = ((last - first + 1).max(1) as usize).div_ceil(hint.max_num_points().max(1));
        let mut points: Vec<f64> = (first..=last).step_by(step.max(1)).map(|power| 10_f64.powi(power)).collect();
        if points.len() < 3 {
            // The range covers only a power or two, so marks in between are added.
            points = (first - 1..=last)
                .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)))
                .filter(|point| (self.from..=self.to).contains(point))
                .collect();
        }
        points
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Powers {
    fn format(value: &f64) -> String {
        number_label(value)
    }
}

fn bytes_label(bytes: &f64) -> String {
    let whole = bytes.round() as u64;
    for (unit, letter) in [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")] {
        if whole >= unit && whole.is_multiple_of(unit) {
            return format!("{}{letter}", whole / unit);
        }
    }
    whole.to_string()
}

fn number_label(number: &f64) -> String {
    let text = match *number {
        number if number >= 100.0 || number == 0.0 => format!("{number:.0}"),
        number if number >= 10.0 => format!("{number:.1}"),
        number if number >= 1.0 => format!("{number:.2}"),
        number => format!("{number:.3}"),
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests;
