//! Lines about a transfer for a person: its progress, within the width of a terminal, and its outcome.
//!
//! Sizes are in powers of 1024 and rates in powers of 1000, each with its unit. A line never mixes the two for the same
//! quantity.

use std::sync::LazyLock;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::limiter_now;
use crate::job::event::rate;
use crate::job::progress::{Compared, Copied, Shown, Streamed, number, size_words, unit};
use crate::measure::words::rate_words;
use crate::tree::progress::Amount;

/// Minimum number of columns in which a name is worth showing.
const NAME_COLUMNS_MIN: usize = 12;

/// Minimum number of bytes for which a rate is shown. The rate of less says nothing.
const RATED_BYTES_MIN: u64 = 1 << 20;

/// Minimum and maximum number of columns of a bar.
const BAR_COLUMNS_MIN: usize = 5;
const BAR_COLUMNS_MAX: usize = 50;

/// What stands for the full and for the empty columns of a bar.
type Bar = [&'static str; 2];

const BLOCKS: Bar = ["█", "░"];

/// The first one that is set names the letters of the terminal.
const LOCALE_VARIABLES: [&str; 3] = ["LC_ALL", "LC_CTYPE", "LANG"];

/// The bar for the user's terminal.
static BAR: LazyLock<Bar> = LazyLock::new(|| bar_of(|name| std::env::var(name).unwrap_or_default()));

impl Shown {
    /// Returns the share that is done, from 0 to 1, if known.
    fn share(&self) -> Option<f64> {
        let of =
            |done: u64, total: Option<u64>| total.filter(|&total| total > 0).map(|total| done as f64 / total as f64);
        let bytes = of(self.bytes, self.bytes_total).filter(|_| self.is_final);
        let files = || of(self.files?, self.files_total).filter(|_| self.files_final);
        let share = bytes.or_else(files);
        share.map(|share| share.min(1.0))
    }

    /// Formats the progress as one line for a terminal with `columns` columns. The last column stays free, because some
    /// terminals would begin the next line.
    pub(crate) fn line(&self, columns: usize) -> String {
        self.text(columns, Some(*BAR))
    }

    /// Formats the progress without a bar, for output that is read later.
    pub(crate) fn plain_line(&self, columns: usize) -> String {
        self.text(columns, None)
    }

    fn text(&self, columns: usize, bar: Option<Bar>) -> String {
        let room = columns.saturating_sub(1);
        let percent = self.share().map(|share| format!("{:.0} %", (share * 100.0).floor()));
        let bytes = match self.compared {
            // No more bytes to send are known.
            Some(_) if !self.is_final && self.bytes_total.is_none_or(|total| total <= self.bytes) => {
                size_words(self.bytes)
            }
            _ => pair(self.bytes, self.bytes_total, self.is_final),
        };
        let speed = self.no_link.clone().or_else(|| self.speed());
        let words = |seconds| format!("{}{}", seconds_left(seconds), if bar.is_some() { "" } else { " left" });
        let left = self.seconds_left().map(words).filter(|_| self.no_link.is_none()).or_else(|| {
            // The elapsed time is a sign of life if nothing else may move.
            (self.bytes_total.is_none() && self.files.is_none() && self.no_link.is_none())
                .then(|| format!("in {}", seconds_left(self.seconds)))
        });
        let Some(files) = self.files else {
            return self.single(room, [percent, Some(bytes), speed, left], bar);
        };
        let files = count_pair(files, self.files_total, self.files_final);
        let (done, sent) = match self.compared {
            None => ("files", String::new()),
            Some(Compared { sent_bytes, .. }) if sent_bytes == self.bytes => ("compared", " sent".to_owned()),
            Some(Compared { sent_bytes, .. }) => ("compared", format!(" ({} sent)", size_words(sent_bytes))),
        };
        let named = Some(format!("{files} {done}"));
        let long = [named.clone(), Some(format!("{bytes}{sent}")), percent.clone(), speed.clone(), left.clone()];
        let line = join(&long, "  ");
        if line.width() <= room {
            return self.with_name(line, room);
        }
        // The least important parts are dropped first.
        let (files, bytes) = (files.replace(" of ", "/"), bytes.replace(" of ", "/"));
        let short = [Some(files), Some(bytes), percent, speed, left];
        if self.compared.is_some() {
            let words = [Some(format!("{} {done}", short[0].as_deref().unwrap_or_default())), short[1].clone()];
            for [percent, speed] in [[&short[2], &short[3]], [&short[2], &None], [&None, &None]] {
                let line = join(&[&words[..], &[percent.clone(), speed.clone(), short[4].clone()]].concat(), " ");
                if line.width() <= room {
                    return line;
                }
            }
        }
        fitting(short, [0, 3, 1, 4], room)
    }

    /// Returns the rate in bytes per second, or in files per second if nothing is sent.
    fn speed(&self) -> Option<String> {
        let files = self.files.and(self.compared).and_then(|compared| compared.files_per_second);
        match (self.rate, files.filter(|files| *files >= 0.5)) {
            (Some(rate), Some(files)) if rate < 1.0 => Some(format!("{files:.0} files/s")),
            (rate, _) => rate.map(rate_words),
        }
    }

    fn with_name(&self, line: String, room: usize) -> String {
        let free = room - line.width();
        let (limiter_words, name_words) = (limiter_now(self.waits), name_words(&self.name));
        let limiter = if limiter_words.is_empty() { 0 } else { limiter_words.width() + 2 };
        let name = if name_words.is_empty() { 0 } else { name_words.width() + 2 };
        if free < name.min(NAME_COLUMNS_MIN + 2) {
            return line;
        }
        // The limiter is shown only if the whole name fits as well.
        let limiter = if free >= limiter + name { limiter } else { 0 };
        let mut line = line;
        if limiter > 0 {
            line += &format!("  {limiter_words}");
        }
        if name > 0 {
            line += &format!("  {}", cut_start(&name_words, free - limiter - 2));
        }
        line
    }

    fn single(&self, room: usize, parts: [Option<String>; 4], bar: Option<Bar>) -> String {
        let mut parts = parts;
        let plain = join(&parts, "  ");
        let bar = self.share().zip(bar);
        let bar_min = if bar.is_some() { BAR_COLUMNS_MIN + 2 } else { 0 };
        let limiter = limiter_now(self.waits);
        if let (Some(speed), false) = (&mut parts[2], limiter.is_empty())
            && plain.width() + limiter.width() + 1 + bar_min <= room
        {
            *speed += &format!(" {limiter}");
        }
        let line = join(&parts, "  ");
        let line = if line.width() > room { fitting(parts, [2, 1], room) } else { line };
        let free = room.saturating_sub(line.width() + 2);
        match bar {
            Some((share, bar)) if free >= BAR_COLUMNS_MIN => {
                format!("{}  {line}", drawn(share, bar, free.min(BAR_COLUMNS_MAX)))
            }
            _ => line,
        }
    }
}

pub(super) fn join(parts: &[Option<String>], between: &str) -> String {
    parts.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(between)
}

/// Joins parts, without those that have to be dropped so that the rest fits. `drops`: the least important first.
fn fitting<const N: usize, const M: usize>(mut parts: [Option<String>; N], drops: [usize; M], room: usize) -> String {
    let mut line = join(&parts, " ");
    for drop in drops {
        if line.width() > room {
            parts[drop] = None;
            line = Some(join(&parts, " ")).filter(|shorter| !shorter.is_empty()).unwrap_or(line);
        }
    }
    cut_end(&line, room)
}

/// Draws a bar of which this share is full.
fn drawn(share: f64, [full, empty]: Bar, columns: usize) -> String {
    let count = (share * columns as f64) as usize;
    format!("{}{}", full.repeat(count), empty.repeat(columns - count.min(columns)))
}

/// Returns the letters of bars that a terminal shows, by the variables of the locale.
fn bar_of(variable: impl Fn(&str) -> String) -> Bar {
    let set = LOCALE_VARIABLES.into_iter().map(|name| (name, variable(name))).find(|(_, locale)| !locale.is_empty());
    let (name, locale) = set.unwrap_or_default();
    let is_utf8 = match locale.split_once('.') {
        Some((_, letters)) => ["utf-8", "utf8"].iter().any(|utf8| letters.to_ascii_lowercase().starts_with(utf8)),
        // In containers, LANG=C is usual with any terminal.
        None => name == "LANG" || !["C", "POSIX"].contains(&&*locale),
    };
    if is_utf8 { BLOCKS } else { ["#", "."] }
}

fn count_pair(done: u64, total: Option<u64>, is_final: bool) -> String {
    match total {
        Some(total) if is_final => format!("{done}/{total}"),
        // The copying threads may have met entries that the counting thread has not.
        Some(total) => format!("{done} of {}+", total.max(done)),
        None => done.to_string(),
    }
}

/// Formats two sizes with one unit, that of the larger size.
pub(super) fn pair(done: u64, total: Option<u64>, is_final: bool) -> String {
    let Some(total) = total else { return size_words(done) };
    let total = if is_final { total } else { total.max(done) };
    let (factor, unit) = unit(total.max(done));
    let number = |bytes: u64| number(bytes, factor);
    if is_final {
        format!("{}/{} {unit}", number(done), number(total))
    } else {
        format!("{} of {}+ {unit}", number(done), number(total))
    }
}

pub(super) fn seconds_left(seconds: u64) -> String {
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6000 => format!("{} min", seconds.div_ceil(60)),
        6000..360_000 => format!("{} h", seconds.div_ceil(3600)),
        _ => format!("{} d", seconds.div_ceil(86_400).min(9999)),
    }
}

/// Formats a duration.
pub(super) fn seconds_words(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match seconds {
        ..10.0 => format!("{seconds:.2} s"),
        ..100.0 => format!("{seconds:.1} s"),
        ..6000.0 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Formats a number with separators between thousands.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns at most `columns` columns of a text, from its beginning.
pub(super) fn cut_end(text: &str, columns: usize) -> String {
    let mut used = 0;
    text.chars().take_while(|&letter| (used += letter.width().unwrap_or(0), used <= columns).1).collect()
}

/// Returns at most `columns` columns of a path, from its end, which says more than its beginning.
fn cut_start(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut used = 1;
    let end: Vec<char> =
        text.chars().rev().take_while(|&letter| (used += letter.width().unwrap_or(0), used <= columns).1).collect();
    let mut cut = String::from(if columns > 0 { "…" } else { "" });
    // A combining character whose base character was cut off is dropped.
    cut.extend(end.into_iter().rev().skip_while(|letter| letter.width() == Some(0)));
    cut
}

/// Formats a path from another host for a line: nothing in it can move the cursor or reverse the text direction.
pub(crate) fn name_words(path: &[u8]) -> String {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let breaks = |letter: char| matches!(letter, '\u{2028}' | '\u{2029}');
    let escaped = crate::fault::escaped(OsStr::from_bytes(path));
    escaped.chars().map(|letter| if breaks(letter) { '?' } else { letter }).collect()
}

/// Describes the result of a stream to one host on one line.
pub(crate) fn stream_line(bytes: u64, seconds: f64) -> String {
    Streamed { bytes, hosts: None, seconds, is_verified: true }.line()
}

/// Says how many of how many hosts have a copy or a stream, if it went to several.
fn to_hosts(hosts: Option<(usize, usize)>) -> String {
    match hosts {
        Some((done, all)) if done < all => format!(" to {done} of {all} hosts"),
        Some((_, all)) => format!(" to {all} hosts"),
        None => String::new(),
    }
}

impl Streamed {
    /// Formats the outcome as one line.
    pub(crate) fn line(&self) -> String {
        let Self { bytes, hosts, seconds, is_verified } = *self;
        let speed = if bytes > 0 { format!(" ({})", rate_words(rate(bytes, seconds))) } else { String::new() };
        let verified = if is_verified { ", verified" } else { "" };
        format!("{}{} in {}{speed}{verified}", size_words(bytes), to_hosts(hosts), seconds_words(seconds))
    }
}

impl Copied {
    /// Formats the outcome as one line, the last line of a copy.
    pub(crate) fn line(&self) -> String {
        let several = |count: u64, one: &str, many: &str| match count {
            1 => format!("1 {one}"),
            _ => format!("{} {many}", thousands(count)),
        };
        let Amount { directories, bytes, .. } = self.tree.amount;
        let count = match self.tree.amount.files() {
            0 if directories > 0 => several(directories, "directory", "directories"),
            files => several(files, "file", "files"),
        };
        let count = format!("{count}{}", to_hosts(self.hosts));
        let (time, size) = (seconds_words(self.seconds), size_words(bytes));
        let fast = if bytes > 0 { format!(" ({})", rate_words(rate(bytes, self.seconds))) } else { String::new() };
        let is_compared = self.is_sync && (self.is_dry || self.tree.same > 0);
        let mut parts = Vec::new();
        let begin = if is_compared {
            let done = match self.tree.amount.files().saturating_sub(self.tree.same).saturating_sub(self.tree.moved) {
                0 => "none".to_owned(),
                count => thousands(count),
            };
            // The bytes sent come at the end, with the speedup.
            let size = if bytes > 0 && self.compared.is_none() { format!(" ({size})") } else { String::new() };
            let (dry, what) = if self.is_dry { ("dry run: ", "would be copied") } else { ("", "copied") };
            format!("{dry}{count} compared in {time}: {done} {what}{size}")
        } else if self.tree.kept_bytes > 0 || self.tree.same > 0 {
            let kept = match self.tree.kept_bytes {
                0 => thousands(self.tree.same),
                bytes => size_words(bytes),
            };
            parts.push(format!("{kept} already there"));
            let fast = if bytes >= RATED_BYTES_MIN { fast } else { String::new() };
            format!("{count}: {size} sent in {time}{fast}")
        } else {
            format!("{count}, {size} in {time}{fast}")
        };
        let would = if self.is_dry { "would be " } else { "" };
        for (number, what) in [(self.tree.moved, "moved"), (self.tree.deleted, "deleted")] {
            if number > 0 {
                parts.push(format!("{} {would}{what}", thousands(number)));
            }
        }
        for (holds, words) in [
            (self.is_verified, "verified"),
            (!self.is_dry && self.tree.is_read_back, "read back from disk"),
            (!self.is_dry && self.tree.is_synced && !self.tree.is_read_back, "on stable storage"),
        ] {
            parts.extend(holds.then(|| words.to_owned()));
        }
        if is_compared && self.tree.kept_bytes > 0 {
            parts.push(format!("{} already there", size_words(self.tree.kept_bytes)));
        }
        if self.tree.failed > 0 {
            parts.push(format!("{} failed", thousands(self.tree.failed)));
        }
        let mut line = parts.iter().fold(begin, |line, part| format!("{line}, {part}"));
        let size = self.tree.size_bytes;
        if let Some(sent) = self.compared.filter(|_| size > 0) {
            let speedup = size as f64 / sent.max(1) as f64;
            // If the speedup is large, as in most second runs, the line should fit 80 columns.
            let speedup = if speedup < 100.0 { format!("{speedup:.2}") } else { thousands(speedup as u64) };
            line += &format!("; {} sent, speedup {speedup}", size_words(sent));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Waits;
    use crate::tree::stats::TreeFigures;

    fn tree() -> Shown {
        Shown {
            files: Some(812),
            files_total: Some(3003),
            bytes: 53 << 20,
            bytes_total: Some(107 << 20),
            files_final: true,
            is_final: true,
            compared: None,
            rate: Some(420e6),
            waits: Waits { source: 4.0, wire: 1.0, ..Waits::default() },
            seconds: 1,
            name: b"sub/file-812.dat".to_vec(),
            no_link: None,
        }
    }

    fn single() -> Shown {
        Shown { files: None, files_total: None, name: Vec::new(), ..tree() }
    }

    #[test]
    fn a_tree_on_80_and_40_columns() {
        assert_eq!(tree().line(80), "812/3003 files  53/107 MiB  49 %  420 MB/s  1 s  sub/file-812.dat");
        assert_eq!(tree().line(60), "812/3003 files  53/107 MiB  49 %  420 MB/s  1 s");
        assert_eq!(tree().line(61), "812/3003 files  53/107 MiB  49 %  420 MB/s  1 s", "too little of the name");
        assert_eq!(tree().line(62), "812/3003 files  53/107 MiB  49 %  420 MB/s  1 s  …ile-812.dat");
        assert_eq!(tree().line(40), "812/3003 53/107 MiB 49 % 420 MB/s 1 s");
        assert_eq!(tree().line(30), "53/107 MiB 49 % 420 MB/s 1 s");
        assert_eq!(tree().line(20), "53/107 MiB 49 % 1 s");
        assert_eq!(
            tree().line(100),
            "812/3003 files  53/107 MiB  49 %  420 MB/s  1 s  (source 80 %)  sub/file-812.dat"
        );
    }

    #[test]
    fn totals_that_grow_have_no_share() {
        let growing = Shown { files_final: false, is_final: false, ..tree() };
        assert_eq!(growing.line(70), "812 of 3003+ files  53 of 107+ MiB  420 MB/s  sub/file-812.dat");
        assert_eq!(growing.line(40), "812/3003+ 53/107+ MiB 420 MB/s");
        let unknown = Shown { files_total: None, bytes_total: None, ..growing };
        assert_eq!(unknown.line(60), "812 files  53 MiB  420 MB/s  sub/file-812.dat");
        // Files without data have a share as well.
        let empty = Shown { bytes: 0, bytes_total: Some(0), rate: Some(0.0), ..tree() };
        assert_eq!(empty.line(60), "812/3003 files  0/0 B  27 %  0 B/s  sub/file-812.dat");
    }

    /// There is progress in comparing and in sending.
    #[test]
    fn a_comparison_has_two_kinds_of_progress() {
        let compared = |sent_bytes, files_per_second| {
            Some(Compared { sent_bytes, bytes_per_second: Some(420e6), files_per_second })
        };
        let few = Shown {
            bytes: 0,
            bytes_total: Some(0),
            is_final: false,
            rate: Some(0.0),
            compared: compared(0, Some(1000.4)),
            ..tree()
        };
        assert_eq!(few.line(80), "812/3003 compared  0 B sent  27 %  1000 files/s  3 s  sub/file-812.dat");
        assert_eq!(few.line(40), "812/3003 compared 0 B 27 % 3 s");
        // The files still give a lower bound for the time.
        let some = Shown { bytes: 53 << 20, bytes_total: Some(60 << 20), rate: Some(420e6), ..few.clone() };
        let some = Shown { compared: compared(53 << 20, Some(1000.0)), ..some };
        assert_eq!(some.line(80), "812/3003 compared  53 of 60+ MiB sent  27 %  420 MB/s  3 s  sub/file-812.dat");
        // All totals are known, so the slower of the two counts.
        let known = Shown { is_final: true, files: Some(3002), bytes_total: Some(10 << 30), ..some };
        assert_eq!(known.line(60), "3002/3003 compared  0.1/10 GiB sent  0 %  420 MB/s  26 s");
        // Most of a large file is at the destination already.
        let large = Shown { compared: compared(1 << 20, Some(0.0)), ..known };
        assert_eq!(large.line(80), "3002/3003 compared  0.1/10 GiB (1.0 MiB sent)  0 %  420 MB/s  26 s");
        assert_eq!(large.line(40), "3002/3003 compared 0.1/10 GiB 0 % 26 s");
        // The rate of the comparison is not the rate of sending.
        let slow = Shown { rate: Some(1e6), ..large };
        assert_eq!(slow.line(70), "3002/3003 compared  0.1/10 GiB (1.0 MiB sent)  0 %  1 MB/s  26 s");
    }

    #[test]
    fn a_single_file_has_a_bar_wherever_one_fits() {
        assert_eq!(single().text(40, Some(BLOCKS)), "██░░░░  49 %  53/107 MiB  420 MB/s  1 s");
        assert_eq!(single().line(36), "49 %  53/107 MiB  420 MB/s  1 s");
        assert_eq!(single().line(20), "49 % 53/107 MiB 1 s");
        assert!(single().text(80, Some(BLOCKS)).ends_with("░  49 %  53/107 MiB  420 MB/s (source 80 %)  1 s"));
        let stream = Shown { bytes_total: None, ..single() };
        assert_eq!(stream.line(60), "53 MiB  420 MB/s (source 80 %)  in 1 s");
        assert_eq!(stream.line(30), "53 MiB  420 MB/s  in 1 s");
    }

    #[test]
    fn a_bar_has_letters_that_the_terminal_shows() {
        for (set, is_utf8) in [
            (&[("LANG", "C")][..], true),
            (&[], true),
            (&[("LANG", "de_DE")], true),
            (&[("LANG", "en_US.UTF-8")], true),
            (&[("LC_ALL", "C.utf8"), ("LANG", "C")], true),
            (&[("LC_ALL", ""), ("LC_CTYPE", "en_US.UTF-8"), ("LANG", "C")], true),
            (&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")], false),
            (&[("LC_CTYPE", "POSIX"), ("LANG", "en_US.UTF-8")], false),
            (&[("LANG", "de_DE.ISO-8859-15@euro")], false),
        ] {
            let value = |name: &str| set.iter().find(|(set, _)| *set == name).map_or("", |(_, value)| value);
            assert_eq!(bar_of(|name| value(name).to_owned()) == BLOCKS, is_utf8, "{set:?}");
        }
        assert!(single().text(40, Some(["#", "."])).starts_with("##....  49 %"));
    }

    #[test]
    fn a_lost_link_stands_where_the_rate_was() {
        let lost = |shown: Shown| Shown {
            no_link: Some("no link to h2, 24 s left".to_owned()),
            waits: Waits::default(),
            ..shown
        };
        assert!(lost(single()).text(80, Some(BLOCKS)).ends_with("░  49 %  53/107 MiB  no link to h2, 24 s left"));
        assert_eq!(lost(tree()).line(70), "812/3003 files  53/107 MiB  49 %  no link to h2, 24 s left");
        let stream = Shown { bytes_total: None, ..single() };
        assert_eq!(lost(stream).line(60), "53 MiB  no link to h2, 24 s left");
    }

    #[test]
    fn what_is_read_later_has_no_bar() {
        let limited = Shown { waits: Waits { limit: 1.0, ..Waits::default() }, ..single() };
        assert_eq!(limited.plain_line(100), "49 %  53/107 MiB  420 MB/s (--bwlimit 100 %)  1 s left");
        assert_eq!(stream_line(300 << 20, 5.93), "300 MiB in 5.93 s (53 MB/s), verified");
        assert_eq!(stream_line(0, 0.5), "0 B in 0.50 s, verified");
        let streamed = Streamed { bytes: 100 << 20, hosts: Some((2, 2)), seconds: 1.67, is_verified: true };
        assert_eq!(streamed.line(), "100 MiB to 2 hosts in 1.67 s (63 MB/s), verified");
        let less = Streamed { hosts: Some((1, 2)), is_verified: false, ..streamed };
        assert_eq!(less.line(), "100 MiB to 1 of 2 hosts in 1.67 s (63 MB/s)");
    }

    #[test]
    fn no_line_is_wider_than_its_terminal() {
        let names = [
            "",
            "a",
            "sub/file-812.dat",
            "目录/文件名字很长的一个文件.dat",
            "e\u{301}e\u{301}\u{301}",
            "\u{1f980}/\u{1f980}",
        ];
        let numbers = [0, 1, 999, 812_345_678, u64::MAX];
        for columns in 0..=200 {
            for name in names {
                for (at, number) in numbers.into_iter().enumerate() {
                    for (files, total, is_final) in
                        [(Some(number), Some(number), true), (Some(number), Some(1), false), (None, None, at % 2 == 0)]
                    {
                        let shown = Shown {
                            files,
                            files_total: total,
                            bytes: number,
                            bytes_total: total.or(Some(number / 2).filter(|_| is_final)),
                            files_final: is_final,
                            is_final,
                            compared: (at % 3 == 0)
                                .then_some(Compared { sent_bytes: number / 3, ..Compared::default() }),
                            rate: Some(number as f64 / 7.0).filter(|_| at != 1),
                            waits: Waits { source: 4.0, wire: 1.0, ..Waits::default() },
                            seconds: number,
                            name: name.as_bytes().to_vec(),
                            no_link: (at % 4 == 3).then(|| "no link to h2, 24 s left".to_owned()),
                        };
                        let line = shown.line(columns);
                        assert!(line.width() <= columns.saturating_sub(1), "{columns}: {line:?}");
                        assert!(columns < 2 || !line.is_empty(), "{columns}: {shown:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn wide_letters_are_cut_whole() {
        assert_eq!(cut_start("目录/文件", 6), "…/文件");
        assert_eq!(cut_start("目录/文件", 5), "…文件");
        assert_eq!(cut_start("目录/文件", 4), "…件");
        assert_eq!(cut_start("ae\u{301}z", 2), "…z");
        assert_eq!(cut_end("目录", 3), "目");
    }

    #[test]
    fn names_do_nothing_to_the_terminal() {
        let name = name_words("a\x1b[2J\r\n\u{9b}1m\u{202e}txt.exe\u{200f}\u{2028}é".as_bytes());
        assert_eq!(name, "a\\u{1b}[2J\\r\\n\\u{9b}1m\\u{202e}txt.exe\\u{200f}?é");
        assert_eq!(name_words(b"\xff"), "\\xff");
    }

    #[test]
    fn sizes_and_times() {
        for (bytes, words) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (10 << 10, "10 KiB"),
            (407 << 20, "407 MiB"),
            (6 << 28, "1.5 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(size_words(bytes), words);
        }
        for (seconds, words) in [(0, "0 s"), (99, "99 s"), (100, "2 min"), (6000, "2 h"), (360_000, "5 d")] {
            assert_eq!(seconds_left(seconds), words);
        }
        for (seconds, words) in [(0.431, "0.43 s"), (12.34, "12.3 s"), (200.0, "3 min 20 s"), (7500.0, "2 h 5 min")] {
            assert_eq!(seconds_words(seconds), words);
        }
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn the_last_line_says_what_is_true() {
        let tree = |entries, directories, bytes| TreeFigures {
            amount: Amount { entries, directories, bytes },
            size_bytes: 407 << 20,
            ..TreeFigures::default()
        };
        let copied = Copied { tree: tree(3007, 3, 407 << 20), seconds: 0.445, is_verified: true, ..Copied::default() };
        assert_eq!(copied.line(), "3,004 files, 407 MiB in 0.45 s (959 MB/s), verified");
        let one = Copied { tree: tree(1, 0, 0), seconds: 0.01, ..Copied::default() };
        assert_eq!(one.line(), "1 file, 0 B in 0.01 s");
        let empty = Copied { tree: tree(1, 1, 0), seconds: 0.01, ..Copied::default() };
        assert_eq!(empty.line(), "1 directory, 0 B in 0.01 s");
        let synced =
            TreeFigures { is_synced: true, is_read_back: true, kept_bytes: 50 << 20, failed: 2, ..copied.tree };
        let odd = Copied { tree: synced, ..copied };
        let rest = "50 MiB already there, verified, read back from disk, 2 failed";
        assert_eq!(odd.line(), format!("3,004 files: 407 MiB sent in 0.45 s (959 MB/s), {rest}"));
        let kept = TreeFigures { kept_bytes: 3 << 20, same: 4, ..tree(7, 0, 3) };
        let little = Copied { tree: kept, seconds: 0.05, ..copied };
        assert_eq!(little.line(), "7 files: 3 B sent in 0.05 s, 3.0 MiB already there, verified");
        // Small files that are the same are counted, and not their bytes.
        let same = TreeFigures { same: 3000, ..tree(3007, 3, 0) };
        let again = Copied { tree: same, seconds: 0.12, ..copied };
        assert_eq!(again.line(), "3,004 files: 0 B sent in 0.12 s, 3,000 already there, verified");
        let sync = Copied { is_sync: true, ..copied };
        let would = TreeFigures { same: 1000, deleted: 7, is_synced: true, ..copied.tree };
        let dry = Copied { is_dry: true, is_verified: false, tree: would, ..sync };
        let line = "dry run: 3,004 files compared in 0.45 s: 2,004 would be copied (407 MiB), 7 would be deleted";
        assert_eq!(dry.line(), line);
        let same = TreeFigures { same: 3000, ..tree(3007, 3, 0) };
        let again = Copied { tree: same, compared: Some(100 << 10), ..sync };
        let line = "3,004 files compared in 0.45 s: 4 copied, verified; 100 KiB sent, speedup 4,167";
        assert!(line.len() <= 80);
        assert_eq!(again.line(), line);
        let cleared = Copied { tree: TreeFigures { same: 3004, deleted: 202, ..same }, ..again };
        let line = "3,004 files compared in 0.45 s: none copied, 202 deleted, verified; 100 KiB sent, speedup 4,167";
        assert_eq!(cleared.line(), line);
        let first = Copied { compared: Some(407 << 20), ..sync };
        let line = "3,004 files, 407 MiB in 0.45 s (959 MB/s), verified; 407 MiB sent, speedup 1.00";
        assert_eq!(first.line(), line);
        let stable = Copied { tree: TreeFigures { is_synced: true, ..one.tree }, ..one };
        assert!(stable.line().ends_with(", on stable storage"));
    }
}
