//! Numbers as drawings: SVG or PNG, by the name's ending. Several reports lie over each other.

use std::path::Path;

use plotters::backend::{BitMapBackend, SVGBackend};
use plotters::coord::ranged1d::{KeyPointHint, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters_backend::{BackendColor, BackendStyle, BackendTextStyle, DrawingErrorKind};

use super::report::Report;

/// Width of a drawing and height of each chart in it, in pixels.
const WIDTH: u32 = 900;
const HEIGHT: u32 = 420;

/// The format of a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines and text that scale.
    Svg,
    /// Pixels.
    Png,
}

impl Format {
    /// As a file's name says.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "svg" => Some(Self::Svg),
            "png" => Some(Self::Png),
            _ => None,
        }
    }
}

/// A line of a chart.
pub struct Series {
    /// Its name in the legend; an empty one needs none.
    pub name: String,
    /// Across and up.
    pub points: Vec<(f64, f64)>,
}

/// Lines over an axis on which a step is a factor.
pub struct Chart {
    /// Above it.
    pub title: String,
    /// What is across.
    pub across: String,
    /// What is up.
    pub up: String,
    /// The lines.
    pub series: Vec<Series>,
    /// Numbers up grow by factors.
    pub log_up: bool,
    /// Numbers across are bytes.
    pub in_bytes: bool,
}

/// Draws the reports, each with its name. `None` if nothing in them can be drawn.
pub fn draw(reports: &[(String, &Report)], format: Format) -> Option<Vec<u8>> {
    draw_charts(&charts(reports), format)
}

/// Draws charts below each other. `None` if there are none.
pub fn draw_charts(charts: &[Chart], format: Format) -> Option<Vec<u8>> {
    if charts.is_empty() {
        return None;
    }
    let size = (WIDTH, HEIGHT * charts.len() as u32);
    match format {
        Format::Svg => {
            let mut text = String::new();
            draw_all(&SVGBackend::with_string(&mut text, size).into_drawing_area(), charts)
                .expect("a string takes everything");
            Some(text.into_bytes())
        }
        Format::Png => {
            let mut pixels = vec![0; (size.0 * size.1 * 3) as usize];
            let backend = Lettered { pixels: BitMapBackend::with_buffer(&mut pixels, size) };
            draw_all(&backend.into_drawing_area(), charts).expect("a buffer takes everything");
            Some(encode_png(&pixels, size))
        }
    }
}

fn charts(reports: &[(String, &Report)]) -> Vec<Chart> {
    let alone = reports.len() == 1;
    let of = |what: &str, points: &dyn Fn(&Report) -> Vec<(f64, f64)>| -> Vec<Series> {
        let lines = reports.iter().map(|(name, report)| {
            let name = match (alone, what) {
                (true, _) => what.to_owned(),
                (false, "") => name.clone(),
                (false, _) => format!("{name}: {what}"),
            };
            // A row without a number is not one at the bottom.
            let points = points(report).into_iter().filter(|point| point.1 > 0.0).collect();
            Series { name, points }
        });
        lines.filter(|series| !series.points.is_empty()).collect()
    };
    let mut charts = Vec::new();
    let mut add = |title: &str, across: &str, up: &str, series: Vec<Vec<Series>>, log_up, in_bytes| {
        let series: Vec<Series> = series.into_iter().flatten().collect();
        if !series.is_empty() {
            let (title, across, up) = (title.to_owned(), across.to_owned(), up.to_owned());
            charts.push(Chart { title, across, up, series, log_up, in_bytes });
        }
    };
    let bandwidth =
        of("average", &|report| report.bandwidth.iter().map(|row| (row.bytes as f64, row.average_mib_s)).collect());
    let peak = if alone {
        of("peak", &|report| report.bandwidth.iter().map(|row| (row.bytes as f64, row.peak_mib_s)).collect())
    } else {
        Vec::new()
    };
    add("Bandwidth", "message, bytes", "MiB/s", vec![bandwidth, peak], true, true);
    let median = of("median", &|report| report.latency.iter().map(|row| (row.bytes as f64, row.p50_us)).collect());
    let slow = of("99 %", &|report| report.latency.iter().map(|row| (row.bytes as f64, row.p99_us)).collect());
    add("Latency (half a round trip)", "message, bytes", "µs", vec![median, slow], true, true);
    let operations = of("", &|report| {
        report.connections.iter().map(|row| (row.connections.into(), row.operations_s / 1e6)).collect()
    });
    add("Operations of 32 bytes", "connections", "Mops", vec![operations], false, false);
    let large =
        of("", &|report| report.connections.iter().map(|row| (row.connections.into(), row.large_mib_s)).collect());
    add("Messages of 64 KiB", "connections", "MiB/s", vec![large], false, false);
    let curve = |which: fn(&(u32, f64, f64, f64)) -> f64| {
        move |report: &Report| -> Vec<(f64, f64)> {
            let model = report.model.iter().flat_map(|model| &model.curve);
            model.map(|point| (point.0.into(), which(point))).collect()
        }
    };
    let modelled = vec![
        of("RC", &curve(|point| point.1)),
        of("grouped (ScaleRPC)", &curve(|point| point.2)),
        of("state at the client (StaR)", &curve(|point| point.3)),
        of("measured", &|report| {
            let measured = report.connections.iter().filter(|_| report.model.is_some());
            measured.map(|row| (row.connections.into(), row.operations_s / 1e6)).collect()
        }),
    ];
    add("Model of the adapter's cache", "connections", "Mops", modelled, false, false);
    // A fitted model's chart has the measured points: they need no other.
    if charts.iter().any(|chart| chart.title.starts_with("Model")) {
        charts.retain(|chart| !chart.title.starts_with("Operations"));
    }
    charts
}

type Drawn<T> = Result<T, Box<dyn std::error::Error>>;

fn draw_all<B: DrawingBackend>(area: &DrawingArea<B, plotters::coord::Shift>, charts: &[Chart]) -> Drawn<()>
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    for (part, chart) in area.split_evenly((charts.len(), 1)).iter().zip(charts) {
        draw_chart(part, chart)?;
    }
    area.present()?;
    Ok(())
}

fn draw_chart<B: DrawingBackend>(area: &DrawingArea<B, plotters::coord::Shift>, chart: &Chart) -> Drawn<()>
where
    B::ErrorType: 'static,
{
    let all = || chart.series.iter().flat_map(|series| &series.points);
    let bounds = |value: fn(&(f64, f64)) -> f64| {
        let least = all().map(value).filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let most = all().map(value).fold(0.0, f64::max);
        if least.is_finite() { (least, most.max(least * 1.01)) } else { (0.5, 1.0) }
    };
    let (across, up) = (bounds(|point| point.0), bounds(|point| point.1));
    let mut builder = ChartBuilder::on(area);
    builder.caption(&chart.title, ("sans-serif", 20)).margin(12).x_label_area_size(44).y_label_area_size(76);
    let x = Powers { from: across.0, to: across.1 * 1.05, base: if chart.in_bytes { 2.0 } else { 10.0 } };
    if chart.log_up {
        let y = Powers { from: up.0 / 1.2, to: up.1 * 1.3, base: 10.0 };
        fill_chart(builder.build_cartesian_2d(x, y)?, chart)
    } else {
        fill_chart(builder.build_cartesian_2d(x, 0.0..up.1 * 1.1)?, chart)
    }
}

fn fill_chart<'a, B, Y>(mut context: ChartContext<'a, B, Cartesian2d<Powers, Y>>, chart: &Chart) -> Drawn<()>
where
    B: DrawingBackend + 'a,
    B::ErrorType: 'static,
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
        let color = Palette99::pick(number).to_rgba();
        let points = || series.points.iter().copied();
        let drawn = context.draw_series(LineSeries::new(points(), ShapeStyle::from(color).stroke_width(2)))?;
        if !series.name.is_empty() {
            drawn
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], ShapeStyle::from(color).stroke_width(2)));
        }
        context.draw_series(points().map(|point| Circle::new(point, 2, color.filled())))?;
    }
    if chart.series.iter().any(|series| !series.name.is_empty()) {
        context
            .configure_series_labels()
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .position(if chart.log_up { SeriesLabelPosition::UpperLeft } else { SeriesLabelPosition::LowerRight })
            .label_font(("sans-serif", 18))
            .draw()?;
    }
    Ok(())
}

/// An axis on which a step is a factor, with a mark at each power of its base.
#[derive(Clone)]
struct Powers {
    from: f64,
    to: f64,
    base: f64,
}

impl Ranged for Powers {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = (value.max(self.from) / self.from).ln() / (self.to / self.from).ln();
        limit.0 + (f64::from(limit.1 - limit.0) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let power = |value: f64| value.ln() / self.base.ln();
        let (first, last) = ((power(self.from) - 1e-9).ceil() as i32, (power(self.to) + 1e-9).floor() as i32);
        let step = ((last - first + 1).max(1) as usize).div_ceil(hint.max_num_points().max(1));
        let mut points: Vec<f64> = (first..=last).step_by(step.max(1)).map(|power| self.base.powi(power)).collect();
        if points.len() < 3 && self.base > 2.0 {
            // Within a power or two: marks in between.
            points = (first - 1..=last)
                .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * self.base.powi(power)))
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
    match *bytes {
        bytes if bytes >= 1_073_741_824.0 => format!("{}G", (bytes / 1_073_741_824.0).round()),
        bytes if bytes >= 1_048_576.0 => format!("{}M", (bytes / 1_048_576.0).round()),
        bytes if bytes >= 1024.0 => format!("{}K", (bytes / 1024.0).round()),
        bytes => format!("{}", bytes.round()),
    }
}

fn number_label(number: &f64) -> String {
    let text = match *number {
        number if number >= 10.0 || number == 0.0 => format!("{number:.0}"),
        number if number >= 1.0 => format!("{number:.1}"),
        number => format!("{number:.3}"),
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn encode_png(pixels: &[u8], (width, height): (u32, u32)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().expect("a vector takes everything");
    writer.write_image_data(pixels).expect("as many pixels as were said");
    writer.finish().expect("a vector takes everything");
    bytes
}

/// A bitmap whose text is made of 8 by 8 dots, so that no font has to be on the host.
struct Lettered<'a> {
    pixels: BitMapBackend<'a>,
}

const LETTER: i32 = 8;

/// How many pixels wide and high a dot is.
fn dot(size: f64) -> i32 {
    if size >= 20.0 { 2 } else { 1 }
}

fn glyph(letter: char) -> [u8; 8] {
    use font8x8::UnicodeFonts;
    let known = font8x8::BASIC_FONTS.get(letter).or_else(|| font8x8::LATIN_FONTS.get(letter));
    known.unwrap_or([0xff, 0x81, 0x81, 0x81, 0x81, 0x81, 0x81, 0xff])
}

impl DrawingBackend for Lettered<'_> {
    type ErrorType = <BitMapBackend<'static> as DrawingBackend>::ErrorType;

    fn get_size(&self) -> (u32, u32) {
        self.pixels.get_size()
    }

    fn ensure_prepared(&mut self) -> Result<(), DrawingErrorKind<Self::ErrorType>> {
        self.pixels.ensure_prepared()
    }

    fn present(&mut self) -> Result<(), DrawingErrorKind<Self::ErrorType>> {
        self.pixels.present()
    }

    fn draw_pixel(&mut self, at: (i32, i32), color: BackendColor) -> Result<(), DrawingErrorKind<Self::ErrorType>> {
        self.pixels.draw_pixel(at, color)
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: (i32, i32),
        to: (i32, i32),
        style: &S,
    ) -> Result<(), DrawingErrorKind<Self::ErrorType>> {
        self.pixels.draw_line(from, to, style)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        upper_left: (i32, i32),
        lower_right: (i32, i32),
        style: &S,
        fill: bool,
    ) -> Result<(), DrawingErrorKind<Self::ErrorType>> {
        self.pixels.draw_rect(upper_left, lower_right, style, fill)
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Self::ErrorType>> {
        let letter = (LETTER * dot(style.size())) as u32;
        Ok((letter * text.chars().count() as u32, letter))
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        at: (i32, i32),
    ) -> Result<(), DrawingErrorKind<Self::ErrorType>> {
        use plotters_backend::FontTransform;
        use plotters_backend::text_anchor::{HPos, VPos};
        let dot = dot(style.size());
        let (width, height) = (LETTER * dot * text.chars().count() as i32, LETTER * dot);
        let left = match style.anchor().h_pos {
            HPos::Left => 0,
            HPos::Center => -width / 2,
            HPos::Right => -width,
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0,
            VPos::Center => -height / 2,
            VPos::Bottom => -height,
        };
        for (number, letter) in text.chars().enumerate() {
            for (line, dots) in glyph(letter).into_iter().enumerate() {
                for column in (0..LETTER).filter(|column| dots >> column & 1 == 1) {
                    for (x, y) in (0..dot).flat_map(|x| (0..dot).map(move |y| (x, y))) {
                        let x = left + (number as i32 * LETTER + column) * dot + x;
                        let y = top + line as i32 * dot + y;
                        let (x, y) = match style.transform() {
                            FontTransform::Rotate90 => (-y, x),
                            FontTransform::Rotate180 => (-x, -y),
                            FontTransform::Rotate270 => (y, -x),
                            _ => (x, y),
                        };
                        self.pixels.draw_pixel((at.0 + x, at.1 + y), style.color())?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::model::Adapter;
    use crate::measure::report::{Bandwidth, Connections, Latency};

    fn report() -> Report {
        let sizes = (1..=23).map(|power| 1_u64 << power);
        Report {
            latency: sizes
                .clone()
                .map(|bytes| Latency {
                    bytes,
                    p50_us: 5.0 + bytes as f64 / 1e4,
                    p99_us: 9.0 + bytes as f64 / 1e4,
                    ..Latency::default()
                })
                .collect(),
            bandwidth: sizes
                .map(|bytes| Bandwidth {
                    bytes,
                    average_mib_s: bytes as f64 / 3.0,
                    peak_mib_s: bytes as f64 / 2.0,
                    ..Bandwidth::default()
                })
                .collect(),
            connections: (0..12)
                .map(|power| Connections {
                    connections: 1 << power,
                    operations_s: 1e6,
                    operation_us: 2.0,
                    large_mib_s: 900.0,
                })
                .collect(),
            ..Report::new()
        }
    }

    #[test]
    fn svg_has_a_line_for_each_run() {
        let one = report();
        let mut other = report();
        other.bandwidth.truncate(4);
        let both = [("new".to_owned(), &one), ("old <1>".to_owned(), &other)];
        let text = String::from_utf8(draw(&both, Format::Svg).expect("something")).expect("text");
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert_eq!(text.matches("<svg").count(), 1);
        for part in ["Bandwidth", "Latency", "new: average", "old &lt;1&gt;: average", "8M", "MiB/s"] {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains("old <1>"), "names are escaped");
        // Marks of axes are thinner lines.
        assert_eq!(text.matches("stroke-width=\"2\"").count(), 2 * (2 + 4 + 2 + 2), "lines, and their legends");
    }

    #[test]
    fn png_is_one_and_has_letters() {
        let report = Report { model: Some(Adapter::default().report(false, None)), ..report() };
        let bytes = draw(&[(String::new(), &report)], Format::Png).expect("something");
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().expect("a PNG");
        let mut pixels = vec![0; reader.output_buffer_size().expect("small")];
        let frame = reader.next_frame(&mut pixels).expect("whole");
        assert_eq!((frame.width, frame.height), (WIDTH, 4 * HEIGHT));
        let title = &pixels[..(WIDTH * 40 * 3) as usize];
        assert!(title.chunks(3).filter(|pixel| pixel.iter().all(|byte| *byte < 40)).count() > 200, "a title in black");
    }

    #[test]
    fn nothing_makes_no_drawing_and_one_point_makes_one() {
        assert!(draw(&[(String::new(), &Report::new())], Format::Svg).is_none());
        let point = Bandwidth { bytes: 65_536, average_mib_s: 5.0, ..Bandwidth::default() };
        let report = Report { bandwidth: vec![point], ..Report::new() };
        assert!(draw(&[(String::new(), &report)], Format::Svg).is_some());
        assert!(draw(&[(String::new(), &report)], Format::Png).is_some());
    }

    #[test]
    fn the_name_says_the_format() {
        for (name, format) in
            [("a.svg", Some(Format::Svg)), ("b/c.PNG", Some(Format::Png)), ("d", None), ("e.gif", None)]
        {
            assert_eq!(Format::of(Path::new(name)), format, "{name}");
        }
    }

    #[test]
    fn axes_have_marks() {
        let hint = || plotters::coord::ranged1d::BoldPoints(12);
        let bytes = Powers { from: 2.0, to: 8.8e6, base: 2.0 }.key_points(hint());
        assert_eq!((bytes[0], bytes.len()), (2.0, 12));
        let within = Powers { from: 30.0, to: 80.0, base: 10.0 }.key_points(hint());
        assert_eq!(within, [50.0]);
    }
}
