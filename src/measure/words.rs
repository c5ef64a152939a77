//! Words for a person that checks, reports and charts have in common.

/// Formats a rate for a person: `1.20 GB/s`, `42 MB/s`, decimal.
pub fn rate_words(bytes_per_second: f64) -> String {
    match bytes_per_second {
        rate if rate >= 999.5e6 => format!("{:.2} GB/s", rate / 1e9),
        rate if rate >= 999.5e3 => format!("{:.0} MB/s", rate / 1e6),
        rate if rate >= 999.5 => format!("{:.0} kB/s", rate / 1e3),
        rate => format!("{rate:.0} B/s"),
    }
}

/// Formats the rate of a link in Mbit/s, such as "100 Gbit/s"; empty for an unknown rate.
pub(super) fn link_rate(mbps: impl Into<u64>) -> String {
    let mbps: u64 = mbps.into();
    match mbps {
        0 => String::new(),
        1..1000 => format!("{mbps} Mbit/s"),
        _ if mbps.is_multiple_of(1000) => format!("{} Gbit/s", mbps / 1000),
        _ => format!("{:.1} Gbit/s", mbps as f64 / 1000.0),
    }
}

pub(super) fn gib(kib: u64) -> String {
    if kib < 1 << 20 { format!("{} MiB", kib >> 10) } else { format!("{} GiB", kib.saturating_add(1 << 19) >> 20) }
}

pub(super) fn time(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros} us"),
        1000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

/// Joins the parts that are not empty.
pub(super) fn joined<const N: usize>(parts: [String; N], by: &str) -> String {
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(by)
}

/// Returns a phrase such as "on eth0" or "firmware 22.38"; empty without a name.
pub(super) fn phrase(before: &str, name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("{before} {name}") }
}
