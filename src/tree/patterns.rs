//! Patterns that exclude entries from a copy, as in rsync: the first that matches decides.
//!
//! A pattern without a slash, except at its end, matches a name in any directory. With a slash inside it matches the
//! end of a path. With a slash in front it matches a whole path, counted from the transfer's root: this includes the
//! name of SRC, unless SRC ends in a slash. `*`, `?` and `[…]` match no slash, `**` matches anything. A slash at the
//! end matches directories only, and `/***` a directory with everything in it. A backslash escapes only in a pattern
//! that has a wildcard.
//!
//! Characters are those of UTF-8, whereas rsync uses bytes. A byte that belongs to no character counts as one by
//! itself, so names of any bytes can be matched. A pattern that could never match, or not in the way it appears to, is
//! refused.
//!
//! All positions in a pattern that a path may have led to are followed at once. So the time is bounded by the product
//! of both lengths.

use crate::options::Rule;

/// Patterns in order. The first that matches decides.
#[derive(Debug, Default)]
pub struct Patterns(Vec<Pattern>);

#[derive(Debug)]
struct Pattern {
    tokens: Vec<Token>,
    is_include: bool,
    only_directories: bool,
    /// Whether the pattern begins with `**`. The stars may match nothing in front of the slash that comes before a
    /// path.
    begins_with_stars: bool,
    /// Whether the pattern ends with `***`. The slash before the stars also matches the end of a directory.
    ends_with_stars: bool,
}

#[derive(Debug)]
enum Token {
    /// This character.
    One(u32),
    /// `?`: any character but a slash.
    Any,
    /// `[…]`: a character in these ranges, or outside them if negated, but no slash.
    Class { negated: bool, ranges: Vec<(u32, u32)> },
    /// `*`: any number of characters without a slash.
    Star,
    /// Any number of whole directories, in front of a pattern that is not anchored.
    Directories,
    /// `**`: any characters.
    Everything,
}

const SLASH: u32 = b'/' as u32;

/// Returns the characters of bytes. Bytes that belong to no character get numbers above the largest character.
fn characters(bytes: &[u8]) -> Vec<u32> {
    let chunks = bytes.utf8_chunks();
    chunks
        .flat_map(|chunk| {
            let strange = chunk.invalid().iter().map(|&byte| u32::from(char::MAX) + 1 + u32::from(byte));
            chunk.valid().chars().map(u32::from).chain(strange)
        })
        .collect()
}

fn is(character: u32, byte: u8) -> bool {
    character == u32::from(byte)
}

impl Patterns {
    /// Adds a pattern. `is_include`: entries that match the pattern are not excluded.
    ///
    /// # Errors
    ///
    /// Fails with the reason why the pattern is refused.
    fn push(&mut self, pattern: &[u8], is_include: bool) -> Result<(), &'static str> {
        self.0.push(Pattern::new(pattern, is_include)?);
        Ok(())
    }

    /// Creates the patterns of these rules.
    ///
    /// # Errors
    ///
    /// Fails with the first rule that is refused, and the reason.
    pub fn new(rules: &[Rule]) -> Result<Self, (&Rule, &'static str)> {
        let mut patterns = Self::default();
        for rule in rules {
            patterns.push(&rule.pattern, rule.is_include).map_err(|reason| (rule, reason))?;
        }
        Ok(patterns)
    }

    /// Whether there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the entry at this path, from the transfer's root on, is excluded.
    pub fn leave_out(&self, path: &[u8], is_directory: bool) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let path = characters(&[b"/", path, b"/"].concat());
        let mut places = Places::default();
        let mut matching = self.0.iter().filter(|pattern| is_directory || !pattern.only_directories);
        let is_match = |pattern: &&Pattern| {
            let start = usize::from(!pattern.begins_with_stars);
            let end = path.len() - usize::from(!(pattern.ends_with_stars && is_directory));
            places.match_all(&pattern.tokens, &path[start..end])
        };
        matching.find(is_match).is_some_and(|pattern| !pattern.is_include)
    }
}

impl Pattern {
    fn new(text: &[u8], is_include: bool) -> Result<Self, &'static str> {
        let (rest, only_directories) = text.strip_suffix(b"/").map_or((text, false), |rest| (rest, true));
        let (rest, is_anchored) = rest.strip_prefix(b"/").map_or((rest, false), |rest| (rest, true));
        if rest.is_empty() {
            return Err("contains no name");
        }
        if rest.split(|&byte| byte == b'/').any(|name| [&b""[..], b".", b".."].contains(&name)) {
            return Err("contains an empty name, . or .., so it can never match");
        }
        let begins_with_stars = !is_anchored && rest.starts_with(b"**");
        let ends_with_stars = rest.ends_with(b"***");
        let mut tokens = Vec::new();
        if !is_anchored && !begins_with_stars {
            tokens.push(Token::Directories);
        }
        let characters = characters(rest);
        if rest.iter().any(|byte| b"*?[".contains(byte)) {
            parse(&characters, &mut tokens)?;
        } else {
            tokens.extend(characters.into_iter().map(Token::One));
        }
        Ok(Self { tokens, is_include, only_directories, begins_with_stars, ends_with_stars })
    }
}

fn parse(text: &[u32], tokens: &mut Vec<Token>) -> Result<(), &'static str> {
    let mut at = 0;
    while let Some(&character) = text.get(at) {
        at += 1;
        let token = match u8::try_from(character) {
            Ok(b'?') => Token::Any,
            Ok(b'[') => parse_class(text, &mut at)?,
            Ok(b'\\') => {
                at += 1;
                Token::One(*text.get(at - 1).ok_or("ends with a backslash; write \\\\ for a literal one")?)
            }
            Ok(b'*') => {
                let further = text[at..].iter().take_while(|&&next| is(next, b'*')).count();
                at += further;
                if further > 0 { Token::Everything } else { Token::Star }
            }
            _ => Token::One(character),
        };
        tokens.push(token);
    }
    Ok(())
}

const UNCLOSED: &str = "has an unclosed [; write \\[ for a literal one";

/// Parses what is in brackets, from after the opening bracket on.
fn parse_class(text: &[u32], at: &mut usize) -> Result<Token, &'static str> {
    let first = |text: &[u32], at: usize| text.get(at).copied().ok_or(UNCLOSED);
    // Returns the next character, and whether it may have a special meaning.
    let next = |at: &mut usize| {
        let is_escaped = is(first(text, *at)?, b'\\');
        let character = first(text, *at + usize::from(is_escaped))?;
        *at += 1 + usize::from(is_escaped);
        if character == SLASH {
            Err("has a slash in brackets, which never matches")
        } else {
            Ok((character, !is_escaped))
        }
    };
    let negated = matches!(u8::try_from(first(text, *at)?), Ok(b'!' | b'^'));
    *at += usize::from(negated);
    let start = *at;
    let mut ranges = Vec::new();
    loop {
        let (low, is_plain) = next(at)?;
        if is_plain && is(low, b']') && *at - start > 1 {
            break;
        }
        if is_plain && is(low, b'[') && is(first(text, *at)?, b':') {
            let name = &text[*at + 1..];
            let end = name.windows(2).position(|two| is(two[0], b':') && is(two[1], b']'));
            if let Some(end) = end {
                ranges.extend(named_class(&name[..end])?.iter().map(|&(low, high)| (u32::from(low), u32::from(high))));
                *at += 1 + end + 2;
                continue;
            }
        }
        let is_range = is(first(text, *at)?, b'-') && !is(first(text, *at + 1)?, b']');
        let high = if is_range {
            *at += 1;
            next(at)?.0
        } else {
            low
        };
        if low > high {
            return Err("has a reversed range in brackets");
        }
        ranges.push((low, high));
    }
    if let [b':', .., b':'] = &text[start..*at - 1].iter().map(|&one| one.min(255) as u8).collect::<Vec<_>>()[..] {
        return Err("has a character class without outer brackets; write [[:digit:]]");
    }
    Ok(Token::Class { negated, ranges })
}

/// Returns the characters of a class such as `digit`, as in the C locale.
fn named_class(name: &[u32]) -> Result<&'static [(u8, u8)], &'static str> {
    let name: String = name.iter().filter_map(|&one| char::from_u32(one)).collect();
    Ok(match name.as_str() {
        "alnum" => &[(b'0', b'9'), (b'A', b'Z'), (b'a', b'z')],
        "alpha" => &[(b'A', b'Z'), (b'a', b'z')],
        "blank" => &[(b' ', b' '), (b'\t', b'\t')],
        "cntrl" => &[(0, 31), (127, 127)],
        "digit" => &[(b'0', b'9')],
        "graph" => &[(b'!', b'~')],
        "lower" => &[(b'a', b'z')],
        "print" => &[(b' ', b'~')],
        "punct" => &[(b'!', b'/'), (b':', b'@'), (b'[', b'`'), (b'{', b'~')],
        "space" => &[(b' ', b' '), (b'\t', b'\r')],
        "upper" => &[(b'A', b'Z')],
        "xdigit" => &[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')],
        _ => return Err("has an unknown character class, such as [[:word:]]"),
    })
}

impl Token {
    /// Whether the token can match nothing.
    fn is_optional(&self) -> bool {
        matches!(self, Self::Star | Self::Directories | Self::Everything)
    }
}

/// Positions in a pattern to which the characters so far may have led: before each token, and after the last.
#[derive(Default)]
struct Places {
    now: Vec<bool>,
    next: Vec<bool>,
}

impl Places {
    fn match_all(&mut self, tokens: &[Token], path: &[u32]) -> bool {
        // Most patterns end in a literal character, and most names end in another.
        if let Some(&Token::One(last)) = tokens.last()
            && path.last() != Some(&last)
        {
            return false;
        }
        for places in [&mut self.now, &mut self.next] {
            places.clear();
            places.resize(tokens.len() + 1, false);
        }
        enter(&mut self.now, tokens, 0);
        for &character in path {
            let is_slash = character == SLASH;
            for (at, token) in tokens.iter().enumerate().filter(|&(at, _)| self.now[at]) {
                match token {
                    Token::One(one) if *one == character => enter(&mut self.next, tokens, at + 1),
                    Token::Any if !is_slash => enter(&mut self.next, tokens, at + 1),
                    Token::Class { negated, ranges }
                        if !is_slash
                            && ranges.iter().any(|&(low, high)| (low..=high).contains(&character)) != *negated =>
                    {
                        enter(&mut self.next, tokens, at + 1);
                    }
                    Token::Star if !is_slash => enter(&mut self.next, tokens, at),
                    Token::Everything => enter(&mut self.next, tokens, at),
                    Token::Directories => {
                        // The rest of the pattern is at the beginning of a name.
                        self.next[at] = true;
                        if is_slash {
                            enter(&mut self.next, tokens, at + 1);
                        }
                    }
                    _ => {}
                }
            }
            std::mem::swap(&mut self.now, &mut self.next);
            self.next.fill(false);
        }
        self.now[tokens.len()]
    }
}

/// Enters a position, and the positions after tokens that can match nothing.
fn enter(places: &mut [bool], tokens: &[Token], mut at: usize) {
    places[at] = true;
    while tokens.get(at).is_some_and(Token::is_optional) {
        at += 1;
        places[at] = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves_out(lines: &[&[u8]], path: &[u8], is_directory: bool) -> bool {
        let mut patterns = Patterns::default();
        for line in lines {
            patterns.push(line, false).unwrap_or_else(|reason| panic!("{} {reason}", line.escape_ascii()));
        }
        patterns.leave_out(path, is_directory)
    }

    #[test]
    fn what_matches_and_what_does_not() {
        for (pattern, matching, others) in [
            (&b"*.o"[..], &[&b"a.o"[..], b"b/c/a.o", b".o"][..], &[&b"a.oo"[..], b"a.o/x"][..]),
            (b"/top", &[b"top"], &[b"a/top", b"topp"]),
            (b"a/b", &[b"a/b", b"x/a/b"], &[b"a/b/c", b"a/x/b", b"xa/b"]),
            (b"/a/b", &[b"a/b"], &[b"x/a/b"]),
            (b"a/*", &[b"a/b", b"x/a/b"], &[b"a/b/c", b"a"]),
            (b"**/b", &[b"b", b"a/b", b"a/c/b"], &[b"ab", b"a/xb"]),
            (b"/**/b", &[b"a/b"], &[b"b"]),
            (b"**b", &[b"b", b"a/b", b"a/xb"], &[b"a/bx"]),
            (b"a/**", &[b"a/b", b"a/b/c", b"b/a/c"], &[b"a", b"ba/c"]),
            (b"/a/**", &[b"a/b"], &[b"b/a/c"]),
            (b"a/**/b", &[b"a/x/b", b"a/x/y/b", b"x/a/y/b"], &[b"a/b", b"ab", b"a/xb"]),
            (b"a**b", &[b"ab", b"axb", b"x/ab", b"a/b", b"a/x/b"], &[b"xab"]),
            (b"**", &[b"a", b"a/b"], &[]),
            (b"***", &[b"a", b"a/b"], &[]),
            (b"a/***", &[b"a/b", b"x/a/b/c"], &[b"a", b"ab"]),
            (b"?", &[b"a", b"x/a", "\u{e4}".as_bytes(), b"\xe4"], &[b"ab", b""]),
            (b"a?b", &[b"axb"], &[b"a/b"]),
            // Patterns that would have another meaning in a file of patterns.
            (b"#*#", &[b"#a#", b"x/##"], &[b"a", b"#a"]),
            (b"!a", &[b"!a"], &[b"a"]),
            (b"a ", &[b"a "], &[b"a", b"a\\ "]),
            // Without a wildcard a backslash is an ordinary character.
            (b"a\\b", &[b"a\\b"], &[b"ab"]),
            (b"a\\b*", &[b"abc"], &[b"a\\bc"]),
            (b" ", &[b" "], &[b""]),
            (b"a\r", &[b"a\r"], &[b"a"]),
            (b"a\nb", &[b"a\nb"], &[b"a", b"b"]),
            (b"{a,b}", &[b"{a,b}"], &[b"a", b"b"]),
            (b"\\*", &[b"*"], &[b"a"]),
            // Bytes that are not UTF-8.
            (b"\xfe*", &[b"\xfe", b"\xfe\xff", b"x/\xfea"], &[b"\xff", "\u{fffd}".as_bytes()]),
            (b"*.\xe4", &[b"a.\xe4"], &[b"a.\xe5", "a.\u{e4}".as_bytes()]),
            (b"[\xe0-\xef]", &[b"\xe4"], &[b"a", b"\xf0"]),
            ("[\u{430}-\u{44f}]".as_bytes(), &["\u{434}".as_bytes()], &["\u{414}".as_bytes(), b"\xd0"]),
            // Brackets.
            (b"[ab]", &[b"a", b"b"], &[b"c", b"ab"]),
            (b"[!a]", &[b"b", b"\xff"], &[b"a", b"/"]),
            (b"[^a-c]x", &[b"dx"], &[b"bx"]),
            (b"[]a]", &[b"]", b"a"], &[b"b"]),
            (b"[!]a]", &[b"b"], &[b"]", b"a"]),
            (b"[a-]", &[b"a", b"-"], &[b"b"]),
            (b"[\\]]", &[b"]"], &[b"\\"]),
            (b"[[]", &[b"["], &[b"a"]),
            (b"[a\\-c]", &[b"a", b"-", b"c"], &[b"b"]),
            (b"[[:digit:]]", &[b"0", b"9"], &[b"a", b":", b"d"]),
            (b"[[:upper:][:digit:]_]x", &[b"Ax", b"1x", b"_x"], &[b"ax"]),
            (b"[![:space:]]", &[b"a"], &[b" ", b"\t"]),
            (b"*[[:xdigit:]].log", &[b"xF.log", b"a.log"], &[b"xg.log"]),
            (b"[[:]", &[b"[", b":"], &[b"a"]),
        ] {
            for path in matching {
                assert!(leaves_out(&[pattern], path, false), "{} {}", pattern.escape_ascii(), path.escape_ascii());
            }
            for path in others {
                assert!(!leaves_out(&[pattern], path, false), "{} {}", pattern.escape_ascii(), path.escape_ascii());
            }
        }
    }

    #[test]
    fn the_first_pattern_that_matches_decides() {
        // Files of one kind and all directories, the way that rsync's manual teaches.
        let rules = [(&b"*/"[..], true), (b"*.c", true), (b"*", false)];
        let mut patterns = Patterns::default();
        rules.iter().for_each(|(pattern, is_include)| patterns.push(pattern, *is_include).expect("a pattern"));
        assert!(!patterns.leave_out(b"a/b.c", false) && !patterns.leave_out(b"a", true));
        assert!(patterns.leave_out(b"a/b.o", false) && patterns.leave_out(b"a", false));
    }

    #[test]
    fn three_stars_match_the_directory_as_well() {
        assert!(leaves_out(&[b"a/***"], b"a", true) && leaves_out(&[b"a/***"], b"x/a", true));
        assert!(!leaves_out(&[b"a/**"], b"a", true) && !leaves_out(&[b"/a/***"], b"x/a", true));
        assert!(leaves_out(&[b"a/"], b"x/a", true) && !leaves_out(&[b"a/"], b"a", false));
    }

    #[test]
    fn what_could_never_match_is_refused() {
        for (pattern, part) in [
            (&b""[..], "contains no name"),
            (b"/", "contains no name"),
            (b"a//b", "empty name"),
            (b"a//", "empty name"),
            (b"./a", ". or .."),
            (b"../a", ". or .."),
            (b"..", ". or .."),
            (b"[ab", "unclosed ["),
            (b"[", "unclosed ["),
            (b"[]", "unclosed ["),
            (b"[a\\", "unclosed ["),
            (b"[[:digit:]", "unclosed ["),
            (b"[z-a]", "range"),
            (b"[a/b]", "slash"),
            (b"[[:word:]]", "unknown character class"),
            (b"[:digit:]", "outer brackets"),
            (b"*a\\", "backslash"),
        ] {
            let reason = Patterns::default().push(pattern, false).expect_err("no pattern");
            assert!(reason.contains(part), "{}: {reason}", pattern.escape_ascii());
        }
    }

    #[test]
    fn stars_take_no_time() {
        let pattern = b"*a".repeat(1000);
        assert!(!leaves_out(&[&pattern, b"*b"], &b"a".repeat(999), false));
        assert!(leaves_out(&[&pattern], &b"a".repeat(1000), false));
    }
}
