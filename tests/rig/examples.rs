//! Examples from the original program's manual and from articles about it, run on whatever hosts exist, with `cat` in
//! place of `zfs` and `wc` in place of a film player.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{CHUNK, Ended, noise, same};

/// How long after its stage a process that bash started beside it may go on.
const LATE: Duration = Duration::from_secs(5);

/// Runs the examples one after another. `hosts` stand for `A:`, `B:` and `C:`, and all see `directory`, which replaces
/// `DIR`. `pipe` calls rdpipe with these arguments and this input, and returns how rdpipe ended and its output.
#[track_caller]
pub fn all(directory: &Path, hosts: [&str; 3], pipe: impl Fn(&[&str], &[u8]) -> (Ended, Vec<u8>)) {
    let bytes = noise(2 * CHUNK + 77);
    let told = |word: &&str| -> String {
        let word = word.replace("DIR", &directory.display().to_string());
        let host = ["A:", "B:", "C:"].iter().position(|letter| word.starts_with(letter));
        host.map_or(word.clone(), |host| format!("{}{}", hosts[host], &word[1..]))
    };
    let run = |words: &[&str], input: &[u8]| {
        let words: Vec<String> = words.iter().map(told).collect();
        let (ended, output) = pipe(&words.iter().map(String::as_str).collect::<Vec<&str>>(), input);
        ended.expect(0);
        (ended, output)
    };
    let gives = |words: &[&str], input: &[u8], expected: &[u8]| {
        same(&run(words, input).1, expected);
    };
    let holds = |name: &str, expected: &[u8]| {
        let until = Instant::now() + LATE;
        let is_whole = || fs::metadata(directory.join(name)).is_ok_and(|file| file.len() >= expected.len() as u64);
        while !is_whole() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        same(&fs::read(directory.join(name)).expect(name), expected);
    };
    let count = format!("{}\n", bytes.len());
    let sum = |path: &Path| {
        let summed = Command::new("sha1sum").stdin(fs::File::open(path).expect("it")).output();
        summed.expect("sha1sum").stdout
    };

    // One command on another host.
    gives(&["A:wc -c"], &bytes, count.as_bytes());
    gives(&["A:> DIR/mycopy"], &bytes, b"");
    holds("mycopy", &bytes);
    gives(&["A:sha1sum"], &bytes, &sum(&directory.join("mycopy")));
    gives(&["A:tee DIR/another | wc -c; echo done"], &bytes, format!("{count}done\n").as_bytes());
    holds("another", &bytes);
    gives(&["A:cat DIR/mycopy"], b"", &bytes);
    gives(&["A:wc -c; printf played"], &bytes, format!("{count}played").as_bytes());
    // From here to a host, between two other hosts, and words through both.
    gives(&["cat DIR/mycopy", "A:cat > DIR/received"], b"", b"");
    holds("received", &bytes);
    gives(&["A:cat DIR/received", "B:cat > DIR/again"], b"", b"");
    holds("again", &bytes);
    gives(&["A:tr [:lower:] [:upper:]", "B:rev"], b"hello\n", b"OLLEH\n");
    // Several hosts, each of which keeps a copy; the last one also records the checksum and size.
    let stages = [
        "--shell",
        "bash",
        "A:cat DIR/mycopy",
        "B:tee >(cat > DIR/on_b)",
        "C:tee >(cat > DIR/on_c)",
        "A:tee >(sha1sum >> DIR/sums) | wc -c >> DIR/sizes; echo done",
    ];
    gives(&stages, b"", b"done\n");
    holds("on_b", &bytes);
    holds("on_c", &bytes);
    holds("sums", &sum(&directory.join("mycopy")));
    holds("sizes", count.as_bytes());
    // Operators.
    fs::write(directory.join("textfile"), "some text\n").expect("room");
    gives(&["A:< DIR/textfile", "B:tr [:lower:] [:upper:]", "C:> DIR/TEXTFILE"], b"", b"");
    holds("TEXTFILE", b"SOME TEXT\n");
    gives(&["A:< DIR/mycopy", "B:> DIR/file2"], b"", b"");
    holds("file2", &bytes);
    gives(&["A:< DIR/textfile", "B:>> DIR/file2"], b"", b"");
    holds("file2", &[&bytes[..], b"some text\n"].concat());
    let (ended, output) = run(&["-v", "A:<DIR/mycopy", "B:>/dev/null"], b"");
    same(&output, b"");
    assert!(ended.stderr.contains(&format!("{} -> {}: ", hosts[0], hosts[1])), "{}", ended.stderr);
}
