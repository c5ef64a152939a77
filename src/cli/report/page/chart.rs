//! The drawings of a page. Shapes are SVG that stretches to any width; words beside them are HTML, so that they stay
//! readable.

use std::fmt::Write;

use super::html::Html;
use crate::cli::report::record::{Happened, Held, HostRecord, Track, Weight};
use crate::cli::words::waited_for;
use crate::engine::{View, Waits};
use crate::job::progress::HostStanding;
use crate::measure::words::rate_words;

/// Minimum number of columns in a drawing.
const COLUMNS_MIN: usize = 8;

/// Maximum number of columns in a drawing.
const COLUMNS_MAX: usize = 120;

/// Minimum time in seconds that a column represents, unless the drawing has [`COLUMNS_MIN`].
const COLUMN_S: f64 = 0.2;

/// Columns in a drawing of what a host waited for.
const HOST_COLUMNS: usize = 60;

/// Maximum number of events marked in one drawing.
const MARKS_MAX: usize = 24;

/// Width of a drawing, in its own units.
const WIDE: f64 = 1000.0;

/// Height of a drawing, in its own units.
const HIGH: f64 = 100.0;

/// Name of a wait whose cause is not known.
const UNKNOWN: &str = "unknown";

/// The time, in seconds, that all drawings of a page show.
pub(super) type Span = (f64, f64);

/// Returns about `count` round numbers within a span.
fn ticks((from, to): Span, count: f64) -> Vec<f64> {
    let rough = ((to - from) / count).max(1e-9);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (from / step).ceil() as i64;
    (first..first + 100).map(|number| number as f64 * step).take_while(|tick| *tick <= to + step * 1e-6).collect()
}

/// Formats a time at the edge of a drawing.
fn time_words(seconds: f64, step: f64) -> String {
    match seconds {
        _ if seconds >= 5400.0 => {
            format!("{:.0}:{:02.0} h", (seconds / 3600.0).floor(), (seconds % 3600.0 / 60.0).floor())
        }
        _ if seconds >= 90.0 => format!("{:.0}:{:02.0} min", (seconds / 60.0).floor(), (seconds % 60.0).floor()),
        _ if step < 0.1 => format!("{seconds:.2} s"),
        _ if step < 1.0 => format!("{seconds:.1} s"),
        _ => format!("{seconds:.0} s"),
    }
}

/// Returns the position of a time within a span, from 0 to 1.
fn share_of((from, to): Span, time: f64) -> f64 {
    ((time - from) / (to - from).max(1e-9)).clamp(0.0, 1.0)
}

fn columns((from, to): Span) -> usize {
    (((to - from) / COLUMN_S) as usize).clamp(COLUMNS_MIN, COLUMNS_MAX)
}

/// Writes the times below a drawing.
pub(super) fn across(html: &mut Html, span: Span) {
    let all = ticks(span, 6.0);
    let step = if let [one, other, ..] = all[..] { other - one } else { 1.0 };
    html.element("div", &[("class", "across")], |html| {
        for tick in &all {
            let share = share_of(span, *tick);
            let class = match share {
                _ if share < 0.03 => "first",
                _ if share > 0.97 => "last",
                _ => "",
            };
            let style = format!("left:{:.2}%", share * 100.0);
            let attributes = [("style", &*style), ("class", class)];
            let attributes = if class.is_empty() { &attributes[..1] } else { &attributes };
            html.element("span", attributes, |html| html.text(&time_words(*tick, step)));
        }
    });
}

fn svg(html: &mut Html, class: &str, label: &str, inner: impl FnOnce(&mut Html)) {
    let view = format!("0 0 {WIDE} {HIGH}");
    let attributes = [
        ("viewBox", &*view),
        ("preserveAspectRatio", "none"),
        ("role", "img"),
        ("aria-label", label),
        ("class", class),
    ];
    html.element("svg", &attributes, inner);
}

fn path(html: &mut Html, class: &str, points: &str) {
    html.empty("path", &[("class", class), ("d", points)]);
}

fn bar(html: &mut Html, class: &str, (from, to): (f64, f64), title: &str) {
    let (x, width) = (format!("{:.2}", from * WIDE), format!("{:.2}", ((to - from) * WIDE).max(1.0)));
    let high = HIGH.to_string();
    html.element("g", &[], |html| {
        html.words("title", "", title);
        html.empty("rect", &[("class", class), ("x", &x), ("y", "0"), ("width", &width), ("height", &high)]);
    });
}

/// Returns marks for the events within a span: the number of the event in the list of events, its position, and its
/// class.
fn marks(span: Span, events: &[Happened]) -> Vec<(usize, f64, &'static str)> {
    let is_inside = |event: &Happened| event.at >= span.0 && event.at <= span.1 && event.weight != Weight::Plain;
    let marked = events.iter().enumerate().filter(|(_, event)| is_inside(event)).take(MARKS_MAX);
    marked.map(|(number, event)| (number + 1, share_of(span, event.at), weight_class(event.weight))).collect()
}

pub(super) fn weight_class(weight: Weight) -> &'static str {
    match weight {
        Weight::Plain => "plain",
        Weight::Lost => "lost",
        Weight::Healed => "healed",
        Weight::Failed => "failed",
    }
}

/// Draws the rate of a hop over time, and what limited the hop.
pub(super) fn rate_and_limits(html: &mut Html, track: &Track, span: Span, events: &[Happened]) {
    if rate(html, track, span, events) {
        limits(html, track, span, None, View::Both);
    }
}

/// Draws the rate over time at both ends of a hop. Returns false if no data was moved.
pub(super) fn rate(html: &mut Html, track: &Track, span: Span, events: &[Happened]) -> bool {
    let count = columns(span);
    let seconds = (span.1 - span.0) / count as f64;
    let rates = track.ends.each_ref().map(|end| {
        let (first, last) = end.series.span()?;
        let rates = end.series.parts(span, count).into_iter().map(|part| part.bytes as f64 / seconds.max(1e-9));
        let shares = share_of(span, first) * count as f64..=share_of(span, last) * count as f64;
        // Rates are shown only while the end was running.
        let ran = |number: usize| (number + 1) as f64 >= *shares.start() && (number as f64) < *shares.end();
        Some(rates.enumerate().filter(|(number, _)| ran(*number)).collect::<Vec<_>>())
    });
    let most = rates.iter().flatten().flatten().map(|(_, rate)| *rate).fold(0.0, f64::max);
    if most <= 0.0 {
        html.words("p", "soft", "No data was transferred for long enough to plot.");
        return false;
    }
    let levels = ticks((0.0, most * 1.05), 4.0);
    let top = (most * 1.08).max(levels.last().copied().unwrap_or(most));
    let place = |number: usize, rate: f64| {
        let x = (number as f64 + 0.5) / count as f64 * WIDE;
        (x, HIGH - rate / top * HIGH)
    };
    let line = |rates: &[(usize, f64)]| {
        let mut text = String::new();
        for (at, (number, rate)) in rates.iter().enumerate() {
            let (x, y) = place(*number, *rate);
            let letter = if at == 0 { 'M' } else { 'L' };
            let _ = write!(text, "{letter}{x:.1} {y:.2}");
        }
        text
    };
    html.element("figure", &[], |html| {
        html.element("figcaption", &[], |html| {
            html.words("span", "title", "Rate over time");
            for (rates, class, words) in
                [(&rates[0], "key of-sent", "sent"), (&rates[1], "key of-received", "received (dashed)")]
            {
                if rates.is_some() {
                    html.words("span", class, words);
                }
            }
        });
        html.element("div", &[("class", "plot rate")], |html| {
            for level in &levels {
                let style = format!("bottom:{:.2}%", level / top * 100.0);
                html.element("span", &[("class", "up"), ("style", &style)], |html| html.text(&rate_words(*level)));
            }
            let label = format!("rate over time, at most {}", rate_words(most));
            let marks = marks(span, events);
            svg(html, "", &label, |html| {
                for level in &levels {
                    let y = HIGH - level / top * HIGH;
                    path(html, "grid", &format!("M0 {y:.2}H{WIDE}"));
                }
                for (_, share, _) in &marks {
                    path(html, "at", &format!("M{:.1} 0V{HIGH}", share * WIDE));
                }
                let [sent, received] = &rates;
                if let Some(drawn @ [(first, _), .., (last, _)]) = sent.as_deref().or(received.as_deref()) {
                    let (from, to) = (place(*first, 0.0).0, place(*last, 0.0).0);
                    let area = format!("{}L{to:.1} {HIGH}L{from:.1} {HIGH}Z", line(drawn));
                    path(html, "sent-area", &area);
                }
                for (rates, class) in [(sent, "sent"), (received, "received")] {
                    if let Some(rates) = rates {
                        path(html, class, &line(rates));
                    }
                }
            });
            for (number, share, class) in marks {
                let style = format!("left:{:.2}%", share * 100.0);
                let class = format!("mark {class}");
                html.element("span", &[("class", &class), ("style", &style)], |html| html.text(&number.to_string()));
            }
        });
        across(html, span);
    });
    true
}

/// Returns the share of each wait, from 0 to 1, in the order of [`Waits::named`], followed by the share of unknown
/// causes. `None` if nothing was measured or moved.
fn shares(waits: Waits, has_moved: bool) -> Option<[f64; 7]> {
    let total = waits.total();
    let mut shares = [0.0; 7];
    if total > 0.0 {
        shares.iter_mut().zip(waits.to_array()).for_each(|(share, seconds)| *share = seconds / total);
    } else if has_moved {
        shares[6] = 1.0;
    } else {
        return None;
    }
    Some(shares)
}

/// Returns what a hop waited for, in each of `count` parts of a time.
fn waited(track: &Track, span: Span, count: usize) -> Vec<Option<[f64; 7]>> {
    let moved = track.ends.each_ref().map(|end| end.series.parts(span, count));
    let has_moved = |number: usize| moved.iter().any(|parts| parts[number].bytes > 0);
    let waits = track.waits(span, count).into_iter().enumerate();
    waits.map(|(number, waits)| shares(waits, has_moved(number))).collect()
}

fn names() -> [&'static str; 7] {
    let [source, cpu, credits, wire, sink, limit] = Waits::default().named().map(|(wait, _)| wait.name());
    [source, cpu, credits, wire, sink, limit, UNKNOWN]
}

/// Draws what limited a hop over time, as stacked shares. `total` gives the shares of the whole time, if they are known
/// from elsewhere.
pub(super) fn limits(html: &mut Html, track: &Track, span: Span, total: Option<Waits>, view: View) {
    let count = columns(span);
    let parts = waited(track, span, count);
    let all = track.waits(span, 1).into_iter().next().unwrap_or_default();
    let Some(sums) = shares(total.unwrap_or(all), parts.iter().any(Option::is_some)) else { return };
    let words: Vec<String> = Waits::default()
        .named()
        .map(|(wait, _)| waited_for(wait, view).to_owned())
        .into_iter()
        .chain([UNKNOWN.to_owned()])
        .collect();
    html.element("figure", &[], |html| {
        html.element("figcaption", &[], |html| {
            html.words("span", "title", "Limits: what the transfer waited for, as a share of the time");
            for ((name, words), share) in names().iter().zip(&words).zip(sums) {
                if share >= 0.005 {
                    html.words("span", &format!("key of-{name}"), &format!("{words} {:.0} %", share * 100.0));
                }
            }
        });
        html.element("div", &[("class", "plot share")], |html| {
            for (style, words) in [("bottom:100%", "100 %"), ("bottom:0", "0 %")] {
                html.element("span", &[("class", "up"), ("style", style)], |html| html.text(words));
            }
            svg(html, "", "what was waited for over time", |html| {
                for (kind, name) in names().iter().enumerate() {
                    path(html, &format!("of-{name}"), &stacked(&parts, kind));
                }
            });
        });
        across(html, span);
    });
}

/// Returns the outline of one kind of wait, stacked on the kinds before it: a rectangle for each part.
fn stacked(parts: &[Option<[f64; 7]>], kind: usize) -> String {
    let width = WIDE / parts.len() as f64;
    let mut text = String::new();
    for (number, shares) in parts.iter().enumerate() {
        let Some(shares) = shares.filter(|shares| shares[kind] > 0.001) else { continue };
        let (x, bottom) = (number as f64 * width, shares[..kind].iter().sum::<f64>());
        let (low, high) = (HIGH - bottom * HIGH, HIGH - (bottom + shares[kind]) * HIGH);
        // Slightly too wide, so that no gap shows between two rectangles.
        let right = (x + width + 0.4).min(WIDE);
        let _ = write!(text, "M{x:.1} {low:.2}V{high:.2}H{right:.1}V{low:.2}Z");
    }
    text
}

/// Returns what a host was doing, in words for a person and as a class for the style sheet.
pub(super) fn standing(standing: HostStanding) -> (&'static str, &'static str) {
    match standing {
        HostStanding::Starting => ("starting", "is-starting"),
        HostStanding::Receiving => ("receiving", "is-receiving"),
        HostStanding::Finishing => ("received all, finishing", "is-finishing"),
        HostStanding::Behind => ("waiting for a copy", "is-behind"),
        HostStanding::Copying => ("receiving a copy from another host", "is-copying"),
        HostStanding::Done => ("done", "is-done"),
        HostStanding::Failed => ("failed", "is-failed"),
    }
}

/// Draws the states of a host over time, what its hop waited for, and when others waited for the host.
pub(super) fn host(html: &mut Html, host: &HostRecord, track: Option<&Track>, held: &[Held], span: Span) {
    html.element("div", &[("class", "bar")], |html| {
        svg(html, "state", &format!("what {} did over time", host.name), |html| {
            for (number, (from, was)) in host.changes.iter().enumerate() {
                let to = host.changes.get(number + 1).map_or(span.1, |(to, _)| *to);
                let (words, class) = standing(*was);
                let title = format!("{words}, {from:.1} to {to:.1} s");
                bar(html, class, (share_of(span, *from), share_of(span, to)), &title);
            }
        });
        if let Some(track) = track {
            svg(html, "waits", &format!("what the hop to {} waited for", host.name), |html| {
                for (class, from, to) in runs(&waited(track, span, HOST_COLUMNS)) {
                    bar(html, &format!("of-{class}"), (from, to), &format!("waiting for: {class}"));
                }
            });
        }
        if !held.is_empty() {
            svg(html, "holds", &format!("when others waited for {}", host.name), |html| {
                for held in held {
                    let title = format!("{} others wait, {:.1} to {:.1} s", held.others, held.from, held.to);
                    bar(html, "is-holding", (share_of(span, held.from), share_of(span, held.to)), &title);
                }
            });
        }
    });
}

/// Returns the stretches in which the same wait was the longest, each with its beginning and end, from 0 to 1.
fn runs(parts: &[Option<[f64; 7]>]) -> Vec<(&'static str, f64, f64)> {
    let mut runs: Vec<(&'static str, f64, f64)> = Vec::new();
    for (number, shares) in parts.iter().enumerate() {
        let Some(shares) = shares else { continue };
        let most = (0..shares.len()).max_by(|&one, &other| shares[one].total_cmp(&shares[other])).unwrap_or(6);
        let (from, to) = (number as f64 / parts.len() as f64, (number + 1) as f64 / parts.len() as f64);
        match runs.last_mut() {
            Some((name, _, end)) if *name == names()[most] && *end >= from - 1e-9 => *end = to,
            _ => runs.push((names()[most], from, to)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_an_axis_are_round_and_few() {
        assert_eq!(ticks((0.0, 10.0), 5.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks((3.2, 4.1), 5.0).len(), 5);
        for hostile in [0.0, 1e-12, 1.8e19, f64::MAX / 1e10] {
            assert!(ticks((0.0, hostile), 4.0).len() <= 100, "{hostile}");
        }
    }

    #[test]
    fn times_are_those_of_a_clock_where_they_are_long() {
        let words = [(0.25, 0.05), (3.0, 1.0), (125.0, 20.0), (7320.0, 600.0)].map(|(at, step)| time_words(at, step));
        assert_eq!(words, ["0.25 s", "3 s", "2:05 min", "2:02 h"]);
    }

    #[test]
    fn what_nobody_knows_is_unknown_and_where_nothing_moved_there_is_nothing() {
        assert_eq!(shares(Waits::default(), false), None);
        assert_eq!(shares(Waits::default(), true).map(|shares| shares[6]), Some(1.0));
        let some = shares(Waits { source: 1.0, wire: 3.0, ..Waits::default() }, true).expect("shares");
        assert_eq!((some[0], some[3], some[6]), (0.25, 0.75, 0.0));
        let parts = [Some(some), Some(some), None, shares(Waits::default(), true)];
        assert_eq!(runs(&parts), [("wire", 0.0, 0.5), (UNKNOWN, 0.75, 1.0)]);
        assert_eq!(stacked(&parts, 4), "");
    }
}
