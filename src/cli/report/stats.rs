//! The lines of `--stats`, in rsync's wording, which scripts read. rsync's lines about its list of files are left out,
//! because there is no such list here.

use super::line::thousands;
use crate::job::progress::Copied;
use crate::tree::stats::{Kinds, TreeFigures};

/// How numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Digits {
    /// With commas, rsync's default.
    Separated,
    /// `--no-human-readable`.
    Plain,
    /// `--human-readable`: with two places and a letter, in powers of 1000.
    Short,
}

impl Digits {
    /// Formats a count. Counts are never shortened.
    fn count(self, number: u64) -> String {
        if self == Self::Plain { number.to_string() } else { thousands(number) }
    }

    /// Formats a number of bytes.
    fn size(self, bytes: u64) -> String {
        if self != Self::Short || bytes < 1000 {
            return self.count(bytes);
        }
        let power = (bytes.ilog10() / 3).min(5);
        format!("{:.2}{}", bytes as f64 / 1000_f64.powi(power as i32), ['K', 'M', 'G', 'T', 'P'][power as usize - 1])
    }

    /// Formats a quotient.
    fn fraction(self, value: f64) -> String {
        match self {
            Self::Short if value >= 1000.0 => self.size(value as u64),
            _ => {
                let text = format!("{value:.2}");
                let (whole, places) = text.split_once('.').unwrap_or((&text, "00"));
                format!("{}.{places}", self.count(whole.parse().unwrap_or(u64::MAX)))
            }
        }
    }

    fn kinds(self, what: &str, kinds: Kinds) -> String {
        let names = ["reg", "dir", "link", "dev", "special"].into_iter().zip(kinds.to_array());
        let parts = names.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name}: {}", self.count(count)));
        let parts = parts.collect::<Vec<_>>().join(", ");
        let parts = if parts.is_empty() { parts } else { format!(" ({parts})") };
        format!("{what}: {}{parts}\n", self.count(kinds.total()))
    }
}

/// Returns all lines of `--stats`. `None` if they were not asked for.
pub(crate) fn stats(copied: &Copied, digits: Digits) -> Option<String> {
    let [sent_bytes, received_bytes] = copied.totals?;
    let TreeFigures { stats, size_bytes, .. } = copied.tree;
    let size = |bytes| digits.size(bytes);
    let matched_bytes = if copied.is_dry { 0 } else { stats.transferred_bytes.saturating_sub(stats.literal_bytes) };
    let mut text = String::from("\n");
    text += &digits.kinds("Number of files", stats.found);
    text += &digits.kinds("Number of created files", stats.created);
    text += &digits.kinds("Number of deleted files", stats.deleted);
    text += &format!("Number of regular files transferred: {}\n", digits.count(stats.transferred));
    for (what, bytes) in [
        ("Total file size", size_bytes),
        ("Total transferred file size", stats.transferred_bytes),
        ("Literal data", stats.literal_bytes),
        ("Matched data", matched_bytes),
    ] {
        text += &format!("{what}: {} bytes\n", size(bytes));
    }
    text += &format!("Total bytes sent: {}\nTotal bytes received: {}\n\n", size(sent_bytes), size(received_bytes));
    let all = sent_bytes.saturating_add(received_bytes);
    if all == 0 {
        // The copy was within a host.
        text += &format!("total size is {}\n", size(size_bytes));
        return Some(text);
    }
    let rate = digits.fraction(all as f64 / copied.seconds.max(0.001));
    let speedup = match digits {
        Digits::Plain => digits,
        _ => Digits::Separated,
    };
    let speedup = speedup.fraction(size_bytes as f64 / all as f64);
    let dry = if copied.is_dry { " (DRY RUN)" } else { "" };
    text += &format!(
        "sent {} bytes  received {} bytes  {rate} bytes/sec\ntotal size is {}  speedup is {speedup}{dry}\n",
        size(sent_bytes),
        size(received_bytes),
        size(size_bytes),
    );
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::stats::Stats;

    fn copied() -> Copied {
        let found = Kinds { regular: 20_000, directories: 4, symlinks: 1, ..Kinds::default() };
        let created = Kinds { directories: 1, specials: 2, ..Kinds::default() };
        let stats = Stats {
            found,
            created,
            transferred: 1200,
            transferred_bytes: 5_000_000,
            literal_bytes: 4_000_000,
            ..Stats::default()
        };
        let tree = TreeFigures { stats, size_bytes: 1_234_567_890, ..TreeFigures::default() };
        Copied { tree, totals: Some([4_100_000, 999]), seconds: 2.0, ..Copied::default() }
    }

    #[test]
    fn lines_are_those_of_rsync() {
        let text = "
Number of files: 20,005 (reg: 20,000, dir: 4, link: 1)
Number of created files: 3 (dir: 1, special: 2)
Number of deleted files: 0
Number of regular files transferred: 1,200
Total file size: 1,234,567,890 bytes
Total transferred file size: 5,000,000 bytes
Literal data: 4,000,000 bytes
Matched data: 1,000,000 bytes
Total bytes sent: 4,100,000
Total bytes received: 999

sent 4,100,000 bytes  received 999 bytes  2,050,499.50 bytes/sec
total size is 1,234,567,890  speedup is 301.04
";
        assert_eq!(stats(&copied(), Digits::Separated).as_deref(), Some(text));
        assert_eq!(
            stats(&copied(), Digits::Plain),
            Some(
                text.replace(',', "")
                    .replace("reg: 20000", "reg: 20000,")
                    .replace("dir: 4", "dir: 4,")
                    .replace("dir: 1", "dir: 1,")
            )
        );
        assert_eq!(stats(&Copied::default(), Digits::Plain), None, "it was not asked for");
    }

    #[test]
    fn short_numbers_are_those_of_rsync() {
        let short = stats(&copied(), Digits::Short).expect("asked for");
        for line in ["Number of files: 20,005 (", "Total file size: 1.23G bytes", "Literal data: 4.00M bytes"] {
            assert!(short.contains(line), "{line} in {short}");
        }
        assert!(short.contains("sent 4.10M bytes  received 999 bytes  2.05M bytes/sec"), "{short}");
        for (bytes, words) in [(0, "0"), (999, "999"), (1000, "1.00K"), (999_999, "1000.00K"), (u64::MAX, "18446.74P")]
        {
            assert_eq!(Digits::Short.size(bytes), words);
        }
    }

    /// Nothing is sent within a host, and a dry run (`-n`) sends nothing either.
    #[test]
    fn what_was_not_done_is_not_said() {
        let text = stats(&Copied { totals: Some([0; 2]), ..copied() }, Digits::Plain).expect("asked for");
        assert!(text.ends_with("\ntotal size is 1234567890\n"), "{text}");
        let dry = stats(&Copied { is_dry: true, ..copied() }, Digits::Plain).expect("asked for");
        assert!(dry.contains("Matched data: 0 bytes") && dry.ends_with(" (DRY RUN)\n"), "{dry}");
    }
}
