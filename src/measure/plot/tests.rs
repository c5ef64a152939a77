use super::*;
use crate::measure::report::{Limits, Memory, Stage, Wire};

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
                rate_mpps: 1.0 / bytes as f64,
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
    let text = draw(&both).expect("something");
    assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
    assert_eq!(text.matches("<svg").count(), 1);
    for part in ["Bandwidth", "Latency", "new: average", "old &lt;1&gt;: average", "8M", "MiB/s"] {
        assert!(text.contains(part), "{part}");
    }
    assert!(!text.contains("old <1>"), "names are escaped");
    // The marks of axes are thinner lines.
    assert_eq!(text.matches("stroke-width=\"2\"").count(), 2 * (2 + 1 + 1 + 3), "a line for each");
}

#[test]
fn any_name_is_drawn_as_xml() {
    let name = "a\u{1b}\n<b>&\u{ffff}".to_owned();
    let disk = |depth| Disk { path: name.clone(), action: name.clone(), depth, mib_s: 1.0, ..Disk::default() };
    let stage = Stage { what: name.clone(), mib_s: 1.0, ..Stage::default() };
    let limits = Limits { stages: vec![stage], limit: name.clone(), ..Limits::default() };
    let report = Report { disk: vec![disk(1), disk(2)], limits: Some(limits), ..Report::new() };
    for reports in [vec![(name.clone(), &report)], vec![(name.clone(), &report), (name.clone(), &report)]] {
        let text = draw(&reports).expect("something");
        assert!(!text.contains(['\u{1b}', '\u{fffe}', '\u{ffff}']), "no XML: {text}");
        assert!(text.matches("a\\u{1b}\\n&lt;b&gt;&amp;\u{fffd}").count() > 2, "{text}");
    }
}

/// Draws the charts of a single report.
fn drawn(report: &Report) -> String {
    draw(&[(String::new(), report)]).expect("something")
}

#[test]
fn all_that_is_measured_is_drawn() {
    let row = |action: &str, depth| Disk {
        action: action.to_owned(),
        bytes: 4096,
        depth,
        iops: 5000.0,
        mib_s: 20.0,
        p50_us: 3.0,
        p99_us: 4.0,
        ..Disk::default()
    };
    let stage = Stage { name: "sink".to_owned(), what: "h1:/srv".to_owned(), mib_s: 321.0, ..Stage::default() };
    let limits = Limits { stages: vec![stage], limit: "sink".to_owned(), ..Limits::default() };
    let text = drawn(&Report {
        memory: [1, 2].map(|threads| Memory { threads, mib_s: 7000.0 }).to_vec(),
        disk: vec![row("read", 1), row("read", 8), row("write", 1), row("write", 8)],
        limits: Some(limits),
        ..report()
    });
    for part in [
        "Latency (half a round trip)",
        "median",
        "99 %",
        "Bandwidth",
        "average",
        "peak",
        "Message rate",
        "32-byte round trips",
        "Median time of a 32-byte round trip",
        "64 KiB messages",
        "Memory copies",
        "Storage: bandwidth",
        "Storage: operations",
        "Storage: median time per block",
        "Storage: 99th percentile time per block",
        "read 4K, in order",
        "write 4K, in order",
        "Stages of a copy, MiB/s (limited by the sink)",
        "sink: h1:/srv",
        "321",
    ] {
        assert!(text.contains(&format!("\n{part}\n")), "{part}");
    }
    let latency = Latency { bytes: 64, p50_us: 12.5, max_us: 99.0, ..Latency::default() };
    let pinged = drawn(&Report { ping: Some(Ping { latency, ..Ping::default() }), ..Report::new() });
    for part in ["median", "12.5", "longest", "99", "Latency (half a round trip), µs (message size in bytes: 64)"] {
        assert!(pinged.contains(&format!("\n{part}\n")), "{part} in {pinged}");
    }
}

#[test]
fn a_drawing_says_host_transport_and_date_and_has_a_mark_at_every_point() {
    let wire = Wire {
        from: "h1".to_owned(),
        to: "gpu7".to_owned(),
        route: "TCP to 10.9.0.2".to_owned(),
        connections: 1,
        depth: 128,
        wait: "events".to_owned(),
        ..Wire::default()
    };
    let mut report = Report { wire: Some(wire), connections: Vec::new(), ..report() };
    report.date = "2026-02-28T12:00:00Z".to_owned();
    let text = drawn(&report);
    let heading = "h1 &gt; gpu7: TCP to 10.9.0.2, 1 connection, depth 128, events, 2026-02-28 12:00:00 UTC";
    assert!(text.contains(heading), "{text}");
    for power in 1..=23 {
        let label = bytes_label(&f64::from(1 << power));
        assert_eq!(text.matches(&format!("\n{label}\n")).count(), 3, "{label} below each chart");
    }
    for color in ["#0072B2", "#D55E00", "#009E73"] {
        let used = text.contains(color);
        assert_eq!(used, color != "#009E73", "{color}: two lines");
    }
}

#[test]
fn nothing_makes_no_drawing_and_one_point_makes_one() {
    assert!(draw(&[(String::new(), &Report::new())]).is_none());
    let point = Bandwidth { bytes: 65_536, average_mib_s: 5.0, ..Bandwidth::default() };
    let report = Report { bandwidth: vec![point], ..Report::new() };
    assert!(draw(&[(String::new(), &report)]).is_some());
}

#[test]
fn axes_have_marks() {
    let hint = || plotters::coord::ranged1d::BoldPoints(12);
    let axis = |from, to| Powers { from, to, marks: Vec::new() };
    assert_eq!(axis(30.0, 80.0).key_points(hint()), [50.0]);
    assert_eq!(axis(1.0, 1e4).key_points(hint()), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
    // Each point is marked once, unless its label would overlap the one before.
    assert_eq!(marks(vec![8.0, 1.0, 8.0, 3.0], false, &axis(1.0, 8.4), 700), [1.0, 3.0, 8.0]);
    assert_eq!(marks(vec![1000.0, 1001.0, 2000.0], false, &axis(1000.0, 2100.0), 700), [1000.0, 2000.0]);
    assert_eq!([2.0, 1024.0, 3000.0, 65_536.0].map(|bytes| bytes_label(&bytes)), ["2", "1K", "3000", "64K"]);
}
