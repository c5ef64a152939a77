//! Text for a terminal: data that is only displayed and contains no commands to the terminal.

/// Searches a stream for data that is not text: NUL and control characters other than tab, line feed and carriage
/// return. Bytes that are not UTF-8 pass, as in a text of another encoding, unless a terminal may take them for
/// eight-bit control characters (ECMA-48).
#[derive(Debug, Default)]
pub struct Text {
    /// Beginning of a character whose other bytes have not come yet.
    begun: Vec<u8>,
    /// Whether the last line that was shown has not ended.
    is_within_line: bool,
    /// Whether commands to a terminal, such as colours, pass.
    has_commands: bool,
}

impl Text {
    /// Makes a check that also passes colours and other commands to a terminal, as programs write them that know of the
    /// terminal. NUL and eight-bit control characters do not pass.
    pub fn with_commands() -> Self {
        Self { has_commands: true, ..Self::default() }
    }

    /// Returns what may be shown of the next bytes, and whether that is all of them. If not, the last line shown is
    /// ended. An incomplete character at the end of the bytes is shown with the next bytes.
    pub fn take(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let (mut shown, is_text) = self.split(bytes);
        self.is_within_line = shown.last().map_or(self.is_within_line, |&last| last != b'\n');
        if self.is_within_line && !is_text {
            shown.push(b'\n');
        }
        (shown, is_text)
    }

    /// Returns what is left to show when nothing more comes, and whether all of it may be shown.
    pub fn end(&mut self) -> (Vec<u8>, bool) {
        // A line feed cannot continue a character, so that an incomplete character before it counts as not UTF-8.
        let (mut shown, is_text) = self.take(b"\n");
        if is_text {
            shown.pop();
        }
        (shown, is_text)
    }

    fn split(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut shown = 0;
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            let passing = if self.has_commands { "\t\n\r\x07\x08\x0b\x0c\x1b" } else { "\t\n\r" };
            let is_control = |&(_, character): &(usize, char)| character.is_control() && !passing.contains(character);
            if let Some((at, _)) = chunk.valid().char_indices().find(is_control) {
                all.truncate(shown + at);
                return (all, false);
            }
            shown += chunk.valid().len();
            let is_last = chunks.peek().is_none();
            if is_last && std::str::from_utf8(&all[shown..]).is_err_and(|error| error.error_len().is_none()) {
                self.begun = all.split_off(shown);
                break;
            }
            if chunk.invalid().iter().any(|byte| (0x80..0xa0).contains(byte)) {
                all.truncate(shown);
                return (all, false);
            }
            shown += chunk.invalid().len();
        }
        (all, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut text = Text::default();
        let mut all = Vec::new();
        for piece in pieces {
            let (some, is_text) = text.take(piece);
            all.extend(some);
            if !is_text {
                return (all, false);
            }
        }
        let (rest, is_text) = text.end();
        (if is_text { [all, rest].concat() } else { all }, is_text)
    }

    #[test]
    fn text_passes_and_what_commands_a_terminal_does_not() {
        for text in ["", "plain\ttext\r\n", "žluťoučký 漢字 🦀\n"] {
            assert_eq!(shown(&[text.as_bytes()]), (text.as_bytes().to_vec(), true));
        }
        assert_eq!(shown(&[b"caf\xe9\n"]), (b"caf\xe9\n".to_vec(), true), "of another encoding");
        assert_eq!(shown(&[b"caf\xe9"]), (b"caf\xe9".to_vec(), true), "and at the end");
        let commands: [&[u8]; 7] = [b"\0", b"\x1b[2J", b"\x07", b"\x7f", b"\x9b2J", "\u{9b}2J".as_bytes(), b"\xe9\x9b"];
        for bytes in commands {
            assert_eq!(shown(&[b"ab\n", bytes]), (b"ab\n".to_vec(), false), "{bytes:?}");
            assert_eq!(shown(&[&[b"ab\n", bytes, b"z"].concat()]), (b"ab\n".to_vec(), false), "{bytes:?}");
        }
    }

    #[test]
    fn colours_pass_where_a_program_may_know_of_the_terminal() {
        let mut text = Text::with_commands();
        assert_eq!(text.take(b"\x1b[31mred\x1b[m\x07\n"), (b"\x1b[31mred\x1b[m\x07\n".to_vec(), true));
        assert_eq!(text.take(b"a\0b"), (b"a\n".to_vec(), false));
    }

    #[test]
    fn a_character_may_come_in_pieces() {
        let text = "ž漢🦀".as_bytes();
        for at in 0..text.len() {
            assert_eq!(shown(&[&text[..at], &text[at..]]), (text.to_vec(), true), "{at}");
        }
        let pieces: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(shown(&pieces), (text.to_vec(), true));
        assert_eq!(shown(&[b"\xc2", b"\x9b"]), (Vec::new(), false));
        assert_eq!(shown(&[b"ab", b"\0"]), (b"ab\n".to_vec(), false), "the message gets a line of its own");
    }
}
