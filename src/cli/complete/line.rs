//! Reads a command line that is being typed as its shell reads it: finds the words before the cursor, and quotes what
//! is inserted there.

/// The shell in which the line is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    /// Replaces a part of the word with what it is given, unchanged.
    Bash,
    /// Replaces the whole word, and quotes what it is given.
    Zsh,
    /// Replaces and quotes as zsh does.
    Fish,
}

/// The kind of quotes that are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Quote {
    #[default]
    None,
    Single,
    Double,
}

/// A word of the line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    /// The text that the word stands for.
    pub(super) value: String,
    /// The word as written.
    pub(super) raw: String,
    /// The quotes still open at the end of the word. Only the last word can have open quotes.
    pub(super) quote: Quote,
    /// Whether the word contains an expansion or an operator that only the shell can evaluate.
    pub(super) is_open: bool,
    /// Whether the word is a redirection, or the target of one.
    pub(super) is_shells: bool,
}

/// Splits a line, up to the cursor, into words. The last word is the one being typed, and may be empty.
pub(super) fn words(line: &str, shell: Shell) -> Vec<Word> {
    let mut words = Vec::new();
    let mut word = Word::default();
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        if word.quote == Quote::None && letter.is_ascii_whitespace() {
            if !word.raw.is_empty() {
                let is_operator = word.is_shells && word.raw.ends_with(['<', '>']);
                words.push(std::mem::take(&mut word));
                word.is_shells = is_operator;
            }
            continue;
        }
        word.raw.push(letter);
        let escaped = |letter: char, quote: Quote| match (quote, shell) {
            (Quote::None, _) => true,
            (Quote::Single, Shell::Fish) => "\\'".contains(letter),
            (Quote::Single, _) => false,
            (Quote::Double, Shell::Fish) => "\\\"$".contains(letter),
            (Quote::Double, _) => "\\\"$`".contains(letter),
        };
        match (word.quote, letter) {
            (Quote::None, '\'') => word.quote = Quote::Single,
            (Quote::None, '"') => word.quote = Quote::Double,
            (Quote::Single, '\'') | (Quote::Double, '"') => word.quote = Quote::None,
            (quote, '\\') if quote != Quote::Single || shell == Shell::Fish => match letters.next() {
                Some(next) => {
                    word.raw.push(next);
                    if !escaped(next, quote) {
                        word.value.push('\\');
                    }
                    word.value.push(next);
                }
                // Half of an escape sequence, whose meaning is not known yet.
                None => word.is_open = true,
            },
            (Quote::None, '<' | '>') => word.is_shells = true,
            (quote, '$' | '`') if quote != Quote::Single => word.is_open = true,
            (Quote::None, '(' | ')' | ';' | '&' | '|') => word.is_open = true,
            _ => word.value.push(letter),
        }
    }
    words.push(word);
    words
}

/// Returns what must be written inside `quote` to stand for `text`; `None` if that is impossible. `is_first` says
/// whether `text` begins its word.
pub(super) fn quoted(text: &str, quote: Quote, is_first: bool) -> Option<String> {
    let mut written = String::with_capacity(text.len());
    for (place, letter) in text.chars().enumerate() {
        match quote {
            Quote::Single if letter == '\'' => written.push_str("'\\''"),
            Quote::Single => written.push(letter),
            // The shell takes `!` as a command of its history, whatever stands in front of it.
            Quote::Double if letter == '!' => return None,
            Quote::Double => {
                if "\\\"$`".contains(letter) {
                    written.push('\\');
                }
                written.push(letter);
            }
            Quote::None => {
                let is_plain = letter.is_alphanumeric() || "-_./:=@%+,".contains(letter) || !letter.is_ascii();
                let is_home = letter == '~' && !(is_first && place == 0);
                if !is_plain && !is_home {
                    written.push('\\');
                }
                written.push(letter);
            }
        }
    }
    Some(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(line: &str, shell: Shell) -> Vec<String> {
        words(line, shell).into_iter().map(|word| word.value).collect()
    }

    #[test]
    fn words_are_those_of_the_shell() {
        assert_eq!(values("rdcp  a\\ b 'c d'\"e\\\"f\" h:x", Shell::Bash), ["rdcp", "a b", "c de\"f", "h:x"]);
        assert_eq!(values("rdcp a ", Shell::Zsh), ["rdcp", "a", ""]);
        assert_eq!(values("a 'b\\'c'", Shell::Fish), ["a", "b'c"]);
        assert_eq!(values("a 'b\\'c", Shell::Bash), ["a", "b\\c"]);
        let last = |line: &str| words(line, Shell::Bash).pop().expect("a last word");
        assert_eq!((last("a 'b c").quote, last("a \"b").quote, last("a 'b'").quote), {
            (Quote::Single, Quote::Double, Quote::None)
        });
        for line in ["a $x", "a \"`x", "a h:$(rm", "a x\\", "a <(x"] {
            assert!(last(line).is_open, "{line}");
        }
        assert!(!last("a '$x").is_open && !last("a \\$x").is_open);
        for (line, is_shells) in [
            ("a > ", true),
            ("a >x", true),
            ("a 2>x y", false),
            ("a '>x", false),
            ("a 2> f g", false),
            ("a\\> x", false),
        ] {
            assert_eq!(last(line).is_shells, is_shells, "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_back(text in "\\PC{1,12}", kind in 0..3_usize) {
            let (quote, open) = [(Quote::None, ""), (Quote::Single, "'"), (Quote::Double, "\"")][kind];
            if let Some(written) = quoted(&text, quote, true) {
                let line = format!("{open}{written}");
                let read = words(&line, Shell::Bash);
                assert_eq!((read.len(), &read[0].value, read[0].quote), (1, &text, quote), "{line}");
                assert_eq!(shell_words::split(&format!("{line}{open}")).expect("words"), [text]);
            }
        }
    }

    #[test]
    fn what_is_quoted_is_read_back() {
        let text = "a b'c\"d$e`f\\g*h?i[j]k(l)m;n&o|p<q>r#s{t}u~v^wüx世=:@%+,";
        for (quote, open) in [(Quote::None, ""), (Quote::Single, "'"), (Quote::Double, "\"")] {
            let written = quoted(text, quote, true).expect("it can be");
            let line = format!("{open}{written}");
            let read = words(&line, Shell::Bash);
            assert_eq!(read.len(), 1, "{line}");
            assert_eq!(read[0], Word { value: text.into(), raw: line, quote, is_open: false, is_shells: false });
            // An independent reader of the same rules.
            assert_eq!(shell_words::split(&format!("{open}{written}{open}")).expect("words"), [text]);
        }
        assert_eq!(quoted("a!", Quote::None, true).as_deref(), Some("a\\!"));
        assert_eq!(quoted("a!", Quote::Double, true), None);
        assert_eq!(quoted("~x", Quote::None, true).as_deref(), Some("\\~x"));
    }
}
