//! The rails that a session uses: ways to the other end that have no interface in common.

use minicbor::{Decode, Encode};
use rd_proto::session::RAILS_MAX;

/// Maximum length of an interface's name, in bytes: IFNAMSIZ without the terminating zero.
const INTERFACE_BYTES_MAX: usize = 15;

/// The value of `--rails`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub enum RailChoice {
    /// Rails that carry more, if the data is encrypted or goes by RDMA.
    #[default]
    #[n(0)]
    Auto,
    /// All rails.
    #[n(1)]
    All,
    /// This number of rails, including the rail on which the session begins.
    #[n(2)]
    Count(#[n(0)] u8),
    /// Rails of these interfaces. An end that has none of them is not restricted.
    #[n(3)]
    Named(#[n(0)] Vec<String>),
}

impl RailChoice {
    /// Parses the value on the command line.
    ///
    /// # Errors
    ///
    /// The accepted forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let choice = match text {
            "auto" => Self::Auto,
            "all" => Self::All,
            text if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Self::Count(text.parse().ok().filter(|count| *count > 0).ok_or_else(usage)?)
            }
            text => Self::Named(text.split(',').map(str::to_owned).collect()),
        };
        if choice.is_valid() { Ok(choice) } else { Err(usage()) }
    }

    /// Reports whether a command line could express this choice.
    pub fn is_valid(&self) -> bool {
        match self {
            Self::Auto | Self::All => true,
            Self::Count(count) => (1..=RAILS_MAX).contains(count),
            Self::Named(names) => {
                let is_name = |name: &String| (1..=INTERFACE_BYTES_MAX).contains(&name.len()) && !name.contains('/');
                (1..=usize::from(RAILS_MAX)).contains(&names.len()) && names.iter().all(is_name)
            }
        }
    }

    /// Returns the names of interfaces that were given.
    pub fn names(&self) -> &[String] {
        if let Self::Named(names) = self { names } else { &[] }
    }

    /// Returns the maximum number of rails.
    pub fn most(&self) -> u8 {
        if let Self::Count(count) = self { *count } else { RAILS_MAX }
    }

    /// Reports whether an end may use this interface for further rails. `has`: whether the end has an interface of a
    /// name.
    pub fn allows(&self, interface: &str, has: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::Named(names) => names.iter().any(|name| name == interface) || !names.iter().any(|name| has(name)),
            _ => true,
        }
    }
}

fn usage() -> String {
    format!("give auto, all, a number from 1 to {RAILS_MAX}, or interface names separated by commas")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_said() {
        let named = |names: &[&str]| Ok(RailChoice::Named(names.iter().map(|&name| name.to_owned()).collect()));
        assert_eq!(RailChoice::parse("auto"), Ok(RailChoice::Auto));
        assert_eq!(RailChoice::parse("all"), Ok(RailChoice::All));
        assert_eq!(RailChoice::parse("2"), Ok(RailChoice::Count(2)));
        assert_eq!(RailChoice::parse("eth0,ib1.80"), named(&["eth0", "ib1.80"]));
        for bad in ["", "0", "9", "300", "-1,", "eth0,", "a/b", "an-interface-with-a-long-name", "1,2,3,4,5,6,7,8,9"] {
            assert!(RailChoice::parse(bad).is_err(), "{bad}");
        }
        assert!(!RailChoice::Count(0).is_valid() && !RailChoice::Named(Vec::new()).is_valid());
    }

    #[test]
    fn names_restrict_the_end_that_has_one() {
        let choice = RailChoice::parse("e1,e2").expect("two");
        assert!(choice.allows("e1", |name| name == "e1") && !choice.allows("e3", |name| name == "e1"));
        assert!(choice.allows("e3", |_| false), "the other end's names");
        assert!(RailChoice::All.allows("e3", |_| true));
    }
}
