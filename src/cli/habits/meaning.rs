//! What each letter means to `rdcp`, in words for the manual.

use super::letters::{Behind, Here, Letter, NO_BLOCKS, NO_MOUNT_POINTS, Number};

impl Letter {
    /// Returns the meaning in `rdcp`, for the manual.
    pub fn meaning(&self) -> String {
        match self.here {
            Here::Own if self.letter == 'R' => {
                "with --sync, the directories that lead to SRC are created in DST, as with rsync; between two other hosts, \
                 accepted, because the data goes directly anyway; else refused"
                    .to_owned()
            }
            Here::Own if self.letter == 'h' => {
                "alone, --help; with other letters or --sync, --human-readable; with other words, refused".to_owned()
            }
            Here::Own if self.letter == 'x' => format!("an option of rdcp, see OPTIONS; twice, refused: {NO_MOUNT_POINTS}"),
            Here::OwnValue if self.letter == 'F' => own_if("a file or \"none\"") + ", and before letters of rsync",
            Here::OwnValue if self.letter == 'J' => own_if("a jump host"),
            Here::OwnValue if self.letter == 'i' => {
                "an option of rdcp, see OPTIONS; with --sync, behind other letters, before letters of rsync in the same \
                 word, or before an option or a file that is no key, refused unless a key follows: use \
                 --itemize-changes"
                    .to_owned()
            }
            Here::OwnValue if self.letter == 't' => {
                "as -tDIR, or by itself without --sync, an option of rdcp, see OPTIONS; before other letters of rsync, \
                 or behind them with --sync, accepted: done anyway; else refused: use --target-directory DIR"
                    .to_owned()
            }
            Here::Own | Here::OwnValue => "an option of rdcp, see OPTIONS".to_owned(),
            Here::Kept if self.letter == 'D' => {
                "accepted: done anyway, or not applicable; without --sync, refused before a program's path if only letters \
                 of scp come before it"
                    .to_owned()
            }
            Here::Kept => "accepted: done anyway, or not applicable".to_owned(),
            Here::Means(_) if self.letter == 'a' => "--recursive; no effect with --files-from, as with rsync".to_owned(),
            Here::Means(words) if self.letter == 'B' => {
                format!("without --sync, {}; with it, refused: {NO_BLOCKS}", words.join(" "))
            }
            Here::Means(words) if self.letter == 'C' => {
                format!("without --sync, {}; with it, refused: use -z", words.join(" "))
            }
            Here::Means(words) => words.join(" "),
            Here::Number(Number::Port) => "with a number, ssh's port; else --progress".to_owned(),
            Here::Number(Number::Limit) => "with a number, --bwlimit in Kbit/s; else accepted".to_owned(),
            Here::Word(Behind::Cipher) => "with a cipher, -o Ciphers=CIPHER; else --checksum".to_owned(),
            Here::Word(Behind::Program) => {
                "with the path of a program, --rsh PATH, or refused with --sync; else accepted".to_owned()
            }
            Here::Word(Behind::Sftp) => "accepted: done anyway, or not applicable".to_owned(),
            Here::Filter => "with '- PATTERN', --exclude PATTERN; with '+ PATTERN', --include PATTERN".to_owned(),
            Here::Synced(word, instead) => format!("with --sync, {word}; else refused: {instead}"),
            Here::Refused(instead) => format!("refused: {instead}"),
        }
    }
}

/// Describes a letter of ssh that rsync has without a value.
fn own_if(value: &str) -> String {
    format!(
        "an option of rdcp, see OPTIONS, if {value} follows, with --sync only as the first letter; without --sync, \
         also if no letters but scp's come before it; else refused"
    )
}
