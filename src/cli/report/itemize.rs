//! Prints the lines of `--itemize-changes`, which scripts read, with rsync's letters and its escaping of names. With
//! `-v`, prints names alone.

use std::io::IsTerminal;

use crate::cli::printed;
use crate::fault::is_unprintable;
use crate::fs::standard;
use crate::job::entries::TakeEntries;
use crate::tree::entries::{Change, Effect, Entry, FileKind, differs};

/// How lines are formatted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// Whether changes are made on another host.
    pub is_push: bool,
    /// Whether `--no-times` is given, so that changed entries have the time of the copy.
    pub no_times: bool,
    /// Whether only names are printed, as with rsync's `-v`.
    pub only_names: bool,
}

/// Clears the line of progress, at the beginning of which the cursor stands.
const CLEAR: &[u8] = b"\x1b[J";

/// Returns a function that prints entries on standard output. `has_bar` says whether progress is drawn on standard
/// error.
pub(crate) fn printer(style: Style, has_bar: bool) -> TakeEntries {
    let clear = if has_bar && std::io::stdout().is_terminal() { CLEAR } else { b"" };
    Box::new(move |entries| {
        let mut text = clear.to_vec();
        for entry in &entries {
            if let Entry::Changed(change) = entry {
                line(change, style, &mut text);
            }
        }
        printed(standard::output().and_then(|output| standard::write_all(output, &text)))
    })
}

fn line(change: &Change, style: Style, text: &mut Vec<u8>) {
    match change.effect {
        // rsync, too, names only what is transferred, and directories.
        Effect::Kept if style.only_names && change.kind != FileKind::Directory => return,
        Effect::Deleted if style.only_names => text.extend(b"deleting "),
        _ if style.only_names => {}
        _ => {
            text.extend(letters(change, style));
            text.push(b' ');
        }
    }
    escape(&change.path, text);
    if change.kind == FileKind::Directory {
        text.push(b'/');
    }
    if let Some(leads_to) = &change.leads_to {
        text.extend(if change.effect == Effect::Linked { b" => " } else { b" -> " });
        escape(leads_to, text);
    }
    text.push(b'\n');
}

/// Returns `YXcstpoguax`: what was done, the type of entry, and in what it differed.
fn letters(change: &Change, style: Style) -> [u8; 11] {
    let update = match change.effect {
        Effect::Deleted => return *b"*deleting  ",
        Effect::Transferred if style.is_push => b'<',
        Effect::Transferred => b'>',
        Effect::Made => b'c',
        Effect::Linked => b'h',
        Effect::Kept => b'.',
    };
    let kind = match change.kind {
        FileKind::Regular => b'f',
        FileKind::Directory => b'd',
        FileKind::Symlink => b'L',
        FileKind::Device => b'D',
        FileKind::Special => b'S',
    };
    let mut letters = [b'+'; 11];
    (letters[0], letters[1]) = (update, kind);
    let Some(bits) = change.differs else { return letters };
    let time = if style.no_times && change.effect != Effect::Kept { b'T' } else { b't' };
    let bits = if time == b'T' { bits | differs::TIME } else { bits };
    for (place, bit, letter) in [
        (2, differs::CONTENTS, b'c'),
        (3, differs::SIZE, b's'),
        (4, differs::TIME, time),
        (5, differs::MODE, b'p'),
        (6, differs::OWNER, b'o'),
        (7, differs::GROUP, b'g'),
        (8, 0, b'u'),
        (9, differs::ACL, b'a'),
        (10, differs::XATTRS, b'x'),
    ] {
        letters[place] = if bits & bit == 0 { b'.' } else { letter };
    }
    if bits == 0 && !matches!(update, b'<' | b'>') {
        letters[2..].fill(b' ');
    }
    letters
}

/// Escapes a name as rsync does in a UTF-8 locale. Each byte that is not part of a printable character becomes `\#ooo`.
/// So does a backslash that would be read as the beginning of such an escape, and, unlike with rsync, a mark that
/// changes the direction of text.
fn escape(name: &[u8], text: &mut Vec<u8>) {
    let octal = |text: &mut Vec<u8>, bytes: &[u8]| {
        for byte in bytes {
            text.extend(format!("\\#{byte:03o}").into_bytes());
        }
    };
    for part in name.utf8_chunks() {
        let valid = part.valid();
        for (at, letter) in valid.char_indices() {
            let bytes = &valid.as_bytes()[at..at + letter.len_utf8()];
            let rest = &name[part.valid().as_ptr() as usize - name.as_ptr() as usize + at..];
            let is_escape =
                matches!(rest, [b'\\', b'#', a, b, c, ..] if [a, b, c].iter().all(|byte| byte.is_ascii_digit()));
            match letter {
                '\t' => text.push(b'\t'),
                letter if is_unprintable(letter) || is_escape => octal(text, bytes),
                _ => text.extend(bytes),
            }
        }
        octal(text, part.invalid());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PULL: Style = Style { is_push: false, no_times: false, only_names: false };

    fn change(effect: Effect, kind: FileKind, differs: Option<u16>) -> Change {
        Change { path: b"d/name".to_vec(), effect, kind, differs, leads_to: None }
    }

    fn shown(change: &Change, style: Style) -> String {
        let mut text = Vec::new();
        line(change, style, &mut text);
        text.escape_ascii().to_string()
    }

    #[test]
    fn lines_are_those_of_rsync() {
        use Effect::{Deleted, Kept, Linked, Made, Transferred};
        use FileKind::{Device, Directory, Regular, Special, Symlink};
        let all = differs::SIZE | differs::TIME | differs::MODE | differs::OWNER | differs::GROUP;
        for (effect, kind, differs, line) in [
            (Transferred, Regular, None, ">f+++++++++ d/name"),
            (Transferred, Regular, Some(differs::SIZE | differs::TIME), ">f.st...... d/name"),
            (Transferred, Regular, Some(differs::CONTENTS), ">fc........ d/name"),
            (Transferred, Regular, Some(0), ">f......... d/name"),
            (Kept, Regular, Some(all | differs::ACL | differs::XATTRS), ".f.stpog.ax d/name"),
            (Kept, Directory, Some(differs::TIME), ".d..t...... d/name/"),
            (Made, Directory, None, "cd+++++++++ d/name/"),
            (Made, Special, None, "cS+++++++++ d/name"),
            (Made, Device, Some(differs::CONTENTS), "cDc........ d/name"),
            (Linked, Regular, Some(0), "hf          d/name"),
            (Deleted, Regular, None, "*deleting   d/name"),
            (Deleted, Directory, None, "*deleting   d/name/"),
        ] {
            assert_eq!(shown(&change(effect, kind, differs), PULL), format!("{line}\\n"));
        }
        let push = Style { is_push: true, ..PULL };
        assert_eq!(shown(&change(Transferred, Regular, Some(1)), push), "<fc........ d/name\\n");
        let no_times = Style { no_times: true, ..PULL };
        assert_eq!(shown(&change(Transferred, Regular, Some(differs::SIZE)), no_times), ">f.sT...... d/name\\n");
        assert_eq!(shown(&change(Kept, Regular, Some(differs::MODE)), no_times), ".f...p..... d/name\\n");
        let link = Change { leads_to: Some(b"to".to_vec()), ..change(Made, Symlink, None) };
        assert_eq!(shown(&link, PULL), "cL+++++++++ d/name -> to\\n");
        let link = Change { leads_to: Some(b"first".to_vec()), ..change(Linked, Regular, None) };
        assert_eq!(shown(&link, PULL), "hf+++++++++ d/name => first\\n");
    }

    #[test]
    fn names_alone_are_of_what_comes_and_goes() {
        use Effect::{Deleted, Kept, Linked, Made, Transferred};
        use FileKind::{Directory, Regular, Symlink};
        let style = Style { only_names: true, ..PULL };
        for (effect, kind, line) in [
            (Transferred, Regular, "d/name\\n"),
            (Made, Directory, "d/name/\\n"),
            (Kept, Directory, "d/name/\\n"),
            (Kept, Regular, ""),
            (Kept, Symlink, ""),
            (Deleted, Directory, "deleting d/name/\\n"),
        ] {
            assert_eq!(shown(&change(effect, kind, Some(differs::TIME)), style), line);
        }
        let link = Change { leads_to: Some(b"first".to_vec()), ..change(Linked, Regular, None) };
        assert_eq!(shown(&link, style), "d/name => first\\n");
    }

    #[test]
    fn names_are_escaped_as_rsync_does() {
        for (name, line) in [
            (&b"plain \xc3\xa4\t"[..], &b"plain \xc3\xa4\t"[..]),
            (b"a\nb\x1b[m\x7f", b"a\\#012b\\#033[m\\#177"),
            (b"\xff\xc3", b"\\#377\\#303"),
            (b"\xc2\x9b", b"\\#302\\#233"),
            (b"a\xe2\x80\xaeb\xd8\x9c", b"a\\#342\\#200\\#256b\\#330\\#234"),
            (b"\\#012 \\# \\#12x \\", b"\\#134#012 \\# \\#12x \\"),
            (b"\xff\\#377", b"\\#377\\#134#377"),
        ] {
            let mut text = Vec::new();
            escape(name, &mut text);
            assert_eq!(text.escape_ascii().to_string(), line.escape_ascii().to_string());
        }
    }
}
