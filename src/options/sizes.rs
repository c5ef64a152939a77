//! Decisions by the sizes of files: which files are copied, and which count as the same.

use std::ops::RangeInclusive;

use clap::Args;
use minicbor::{Decode, Encode};

use super::parse_bytes;

/// Options that skip or compare files by size.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Sizes {
    /// Treat files of equal size as unchanged, whatever their times; --checksum overrides this
    #[arg(long, requires = "sync")]
    #[n(0)]
    pub size_only: bool,
    /// Skip files larger than SIZE: they are neither updated nor deleted at the destination
    #[arg(long, value_name = "SIZE", value_parser = parse_limit, requires = "sync")]
    #[n(1)]
    pub max_size: Option<u64>,
    /// Skip files smaller than SIZE: they are neither updated nor deleted at the destination
    #[arg(long, value_name = "SIZE", value_parser = parse_limit, requires = "sync")]
    #[n(2)]
    pub min_size: Option<u64>,
}

impl Sizes {
    /// Returns the sizes of the files that are copied; `None` if all files are.
    pub fn copied(&self) -> Option<RangeInclusive<u64>> {
        let is_limited = self.max_size.is_some() || self.min_size.is_some();
        is_limited.then(|| self.min_size.unwrap_or(0)..=self.max_size.unwrap_or(u64::MAX))
    }

    /// Reports whether files of this size are copied.
    pub fn take(&self, bytes: u64) -> bool {
        self.copied().is_none_or(|copied| copied.contains(&bytes))
    }
}

/// Parses a number of bytes, which may be 0, with rsync's `+1` or `-1` after the unit.
fn parse_limit(text: &str) -> Result<u64, String> {
    let (number, more, less) = match (text.strip_suffix("+1"), text.strip_suffix("-1")) {
        (Some(number), _) => (number, 1, 0),
        (_, Some(number)) => (number, 0, 1),
        _ => (text, 0, 0),
    };
    let bytes = if number == "0" { 0 } else { parse_bytes(number)? };
    bytes.checked_add(more).and_then(|bytes| bytes.checked_sub(less)).ok_or_else(|| "out of range".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_rsync() {
        for (text, bytes) in [
            ("0", 0),
            ("100", 100),
            ("10b", 10),
            ("1K", 1024),
            ("1kb", 1000),
            ("1.5m", 3 << 19),
            ("1MiB", 1 << 20),
            ("1mb+1", 1_000_001),
            ("1.5mb-1", 1_499_999),
            ("2g-1", (2 << 30) - 1),
        ] {
            assert_eq!(parse_limit(text), Ok(bytes), "{text}");
        }
        for bad in ["", "-1", "+1", "1x", "5e", "0-1", "1-2", "1+1+1"] {
            assert!(parse_limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_belong_to_what_is_copied() {
        let sizes = |min_size, max_size| Sizes { size_only: false, max_size, min_size };
        for (sizes, taken) in [
            (sizes(None, None), [true; 4]),
            (sizes(Some(1), None), [false, true, true, true]),
            (sizes(None, Some(2)), [true, true, true, false]),
            (sizes(Some(2), Some(1)), [false; 4]),
        ] {
            assert_eq!([0, 1, 2, 3].map(|bytes| sizes.take(bytes)), taken, "{sizes:?}");
        }
    }
}
