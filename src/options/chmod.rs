//! `--chmod`: changes of modes, in rsync's notation.

const ALL: u32 = 0o7777;

/// Changes of a mode, applied in order.
#[derive(Clone, Debug, Default)]
pub struct Chmod(Vec<Change>);

#[derive(Clone, Copy, Debug)]
struct Change {
    /// Bits of the mode that are kept.
    kept: u32,
    /// Bits that are set afterwards.
    set: u32,
    /// Whether the change applies only to directories, or only to all other entries; `None` if it applies to both.
    only_directories: Option<bool>,
    /// `X`: whether a file without any execute bit gets none.
    is_conditional: bool,
    /// `g=u`: bits that are copied from the mode itself.
    copied: Option<Copied>,
}

/// Permissions of one class that are given to other classes, or taken from them.
#[derive(Clone, Copy, Debug)]
struct Copied {
    /// Position of that class's bits in the mode.
    shift: u32,
    /// Mask of the bits to which they are copied.
    to: u32,
    is_taken_away: bool,
}

impl Chmod {
    /// Parses changes such as `D755,F644` or `u+rwX,go-w`. A change that names no class (`+w`) applies to all classes,
    /// as far as the `umask` permits.
    ///
    /// # Errors
    ///
    /// What is wrong with the text.
    pub fn parse(text: &str, umask: u32) -> Result<Self, &'static str> {
        text.split(',').map(|change| Change::parse(change.as_bytes(), umask)).collect::<Result<_, _>>().map(Self)
    }

    /// Returns what a mode becomes by these changes.
    pub fn applied(&self, mode: u32, is_directory: bool) -> u32 {
        let may_execute = is_directory || mode & 0o111 != 0;
        let concerned = self.0.iter().filter(|change| change.only_directories.is_none_or(|only| only == is_directory));
        concerned.fold(mode, |mode, change| {
            if let Some(Copied { shift, to, is_taken_away }) = change.copied {
                let bits = (0o111 * (mode >> shift & 7)) & to;
                return if is_taken_away { mode & !bits } else { mode & change.kept | bits };
            }
            let set = if change.is_conditional && !may_execute { change.set & !0o111 } else { change.set };
            mode & change.kept | set
        })
    }
}

impl Change {
    fn parse(text: &[u8], umask: u32) -> Result<Self, &'static str> {
        let mut rest = text;
        let mut only_directories = None;
        // The classes, as the lowest bit of each, and the bits that `s` means for them.
        let (mut who, mut set_id) = (0, 0);
        let sign = loop {
            let (&first, after) = rest.split_first().ok_or("no +, - or =, and not an octal number")?;
            match first {
                b'D' | b'F' if only_directories.is_some_and(|only| only != (first == b'D')) => {
                    return Err("D and F cannot be combined");
                }
                b'D' | b'F' => only_directories = Some(first == b'D'),
                b'u' => (who, set_id) = (who | 0o100, set_id | 0o4000),
                b'g' => (who, set_id) = (who | 0o010, set_id | 0o2000),
                b'o' => who |= 0o001,
                b'a' => (who, set_id) = (who | 0o111, set_id | 0o6000),
                b'+' | b'-' | b'=' => {
                    rest = after;
                    break first;
                }
                b'0'..=b'7' if who == 0 => return Self::octal(rest, only_directories),
                _ => return Err("expected [DF][ugoa][+-=][rwxXst], or [DF] and an octal number"),
            }
            rest = after;
        };
        if let [class @ (b'u' | b'g' | b'o')] = rest {
            return Ok(Self::copy(*class, who, sign, only_directories, umask));
        }
        let (mut what, mut special, mut is_conditional) = (0, 0, false);
        for &letter in rest {
            match letter {
                b'r' => what |= 4,
                b'w' => what |= 2,
                b'x' => what |= 1,
                b'X' => (what, is_conditional) = (what | 1, true),
                b's' => special |= if set_id == 0 { 0o4000 } else { set_id },
                b't' => special |= 0o1000,
                _ => return Err("after +, - or =, expected r, w, x, X, s and t, or one of u, g and o"),
            }
        }
        let bits = special + if who == 0 { (0o111 * what) & !umask } else { who * what };
        let whole = if who == 0 { 0o777 } else { who * 7 };
        let (kept, set) = match sign {
            b'+' => (ALL, bits),
            b'-' => (ALL & !bits, 0),
            _ => (ALL & !whole & !if special == 0 { 0 } else { set_id }, bits),
        };
        Ok(Self { kept, set, only_directories, is_conditional, copied: None })
    }

    /// Makes a change by which `who` gets the permissions of a class. As with rsync, `=` clears the set-id and sticky
    /// bits of `who`.
    fn copy(class: u8, who: u32, sign: u8, only_directories: Option<bool>, umask: u32) -> Self {
        let shift = match class {
            b'u' => 6,
            b'g' => 3,
            _ => 0,
        };
        let (whole, to) = if who == 0 { (ALL, 0o777 & !umask) } else { (who * 7, who * 7) };
        let special = ((who & 0o100) << 5) | ((who & 0o010) << 7) | ((who & 0o001) << 9);
        let kept = if sign == b'=' { ALL & !whole & !special } else { ALL };
        let copied = Some(Copied { shift, to, is_taken_away: sign == b'-' });
        Self { kept, set: 0, only_directories, is_conditional: false, copied }
    }

    fn octal(digits: &[u8], only_directories: Option<bool>) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(digits).ok().and_then(|text| u32::from_str_radix(text, 8).ok());
        let set = text.filter(|&mode| mode <= ALL).ok_or("an octal mode is at most 7777")?;
        Ok(Self { kept: 0, set, only_directories, is_conditional: false, copied: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_made_in_their_order() {
        for (text, mode, is_directory, expected) in [
            ("D755,F644", 0o700, true, 0o755),
            ("D755,F644", 0o700, false, 0o644),
            ("u+rwX,go-w", 0o466, false, 0o644),
            ("u+rwX,go-w", 0o466, true, 0o744),
            ("a+X", 0o644, false, 0o644),
            ("a+X", 0o744, false, 0o755),
            ("a-x,a+X", 0o744, false, 0o755),
            ("Dg+s", 0o755, true, 0o2755),
            ("Dg+s", 0o755, false, 0o755),
            ("u=", 0o777, false, 0o077),
            ("+w", 0o444, false, 0o644),
            ("o=rx", 0o777, false, 0o775),
            // The same as in rsync 3.5.
            ("g=u", 0o754, true, 0o774),
            ("u=g", 0o641, false, 0o441),
            ("u+o", 0o641, false, 0o741),
            ("g-u", 0o641, false, 0o601),
            ("go=u", 0o7654, false, 0o4666),
            ("ug=o", 0o7754, true, 0o1444),
            ("a=g", 0o7754, true, 0o555),
            ("=u", 0o7654, false, 0o644),
            ("-u", 0o7654, false, 0o7010),
            ("u=g,o=u", 0o754, true, 0o555),
            ("Dg=u", 0o641, false, 0o641),
            ("a-s", 0o2755, false, 0o755),
            ("a-s", 0o6755, true, 0o755),
            ("ua-s", 0o6755, false, 0o755),
            ("a+s", 0o644, false, 0o6644),
            ("ga+s", 0o644, false, 0o6644),
            ("a=rxs", 0o644, false, 0o6555),
            ("a=t", 0o7777, false, 0o1000),
            ("a=x", 0o7777, false, 0o7111),
            ("u=t", 0o7777, false, 0o3077),
        ] {
            let chmod = Chmod::parse(text, 0o022).expect("changes");
            assert_eq!(chmod.applied(mode, is_directory), expected, "{text} of {mode:o}");
        }
        for bad in ["", "u", "755,", "u+q", "8", "DF+x", "u755", "77777", "7x", "g=ur", "o=ug", "g=u+w"] {
            assert!(Chmod::parse(bad, 0o022).is_err(), "{bad}");
        }
    }
}
