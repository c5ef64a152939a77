//! `<`, `>` and `>>` in every position.

use std::time::SystemTime;

use super::*;

#[test]
fn a_file_begins_the_stream() {
    let lab = Lab::new();
    let bytes = noise(2 * CHUNK + 1);
    lab.0.file("home/in", &bytes);
    lab.0.file("in", b"of this host");
    lab.pipe(&["h:< in"]).quietly_gives_bytes(&bytes);
    lab.pipe(&["h1:<in", "h2:cat", "wc -c"]).quietly_gives(&format!("{}\n", bytes.len()));
    lab.pipe(&["< in", "h:rev"]).quietly_gives("tsoh siht fo");
    lab.pipe(&["< in"]).quietly_gives("of this host");
    // Special files.
    lab.pipe(&["h:< /dev/null"]).quietly_gives("");
    let fifo = lab.0.fifo("home/fifo");
    let writer = std::thread::spawn(move || fs::write(fifo, b"by a fifo"));
    lab.pipe(&["h1:< fifo", "h2:cat"]).quietly_gives("by a fifo");
    writer.join().expect("no panic").expect("it was read");
    lab.deserted(GONE);
}

#[test]
fn standard_input_goes_nowhere_where_a_file_begins() {
    let lab = Lab::new();
    lab.0.file("home/in", b"from the file");
    // Standard input precedes the file, so it is read to its end.
    lab.pipe_with(&["h:< in"], b"from here").quietly_gives("from the file");
    lab.pipe_with(&["h1:< in", "h2:cat"], &noise(3 * CHUNK)).quietly_gives("from the file");
    lab.deserted(GONE);
}

#[test]
fn a_file_in_the_middle_begins_when_the_rest_has_ended() {
    let lab = Lab::new();
    let bytes = noise(CHUNK + 9);
    // If the second part began with the first, the file would be missing or incomplete.
    lab.pipe_with(&["h1:sleep 1; cat > written; cat written", "h2:< written"], &bytes).quietly_gives_bytes(&bytes);
    fs::remove_file(lab.join("home/written")).expect("it is there");
    // Output of an earlier stage is read to its end, even though it is not used.
    lab.pipe(&["h1:head -c 5M /dev/zero; touch to_the_end", "h2:< /dev/null", "h3:echo after"])
        .quietly_gives("after\n");
    assert!(lab.join("home/to_the_end").exists());
    lab.0.file("home/a", b"a");
    lab.0.file("home/b", b"b");
    lab.pipe(&["h1:< a", "h2:< b"]).quietly_gives("b");
    lab.pipe(&["h1:echo 1 >> order", "h1:< a", "h2:cat; echo 2 >> order", "< /dev/null", "h3:echo 3 >> order"])
        .quietly_gives("");
    assert_eq!(lab.text_of("home/order"), "1\n2\n3\n");
    lab.deserted(GONE);
}

#[test]
fn a_file_ends_the_stream() {
    let lab = Lab::new();
    let bytes = noise(2 * CHUNK + 1);
    lab.pipe_with(&["h:> out"], &bytes).quietly_gives("");
    holds(&lab.join("home/out"), &bytes);
    lab.pipe_with(&["h:cat", ">out"], b"short").quietly_gives("");
    holds(&lab.join("out"), b"short");
    // Over a longer file, and at its end.
    lab.pipe_with(&["h1:cat", "h2:> out"], b"one\n").quietly_gives("");
    assert_eq!(lab.text_of("home/out"), "one\n");
    lab.pipe_with(&["h1:cat", "h2:>> out"], b"two\n").quietly_gives("");
    lab.pipe_with(&["h2:>>out"], b"three\n").quietly_gives("");
    assert_eq!(lab.text_of("home/out"), "one\ntwo\nthree\n");
    lab.pipe_with(&["h:>> new"], b"made").quietly_gives("");
    assert_eq!(lab.text_of("home/new"), "made");
    lab.pipe_with(&["h:> /dev/null"], &bytes).quietly_gives("");
    lab.deserted(GONE);
}

#[test]
fn a_file_in_the_middle_ends_what_comes_before() {
    let lab = Lab::new();
    let bytes = noise(CHUNK + 3);
    lab.pipe_with(&["h1:> a", "h2:cat; echo after"], &bytes).quietly_gives("after\n");
    holds(&lab.join("home/a"), &bytes);
    // The next part begins after it, and gets no input.
    lab.pipe_with(&["h1:cat", "h2:> b", "h3:wc -c; cat b"], b"in b").quietly_gives("0\nin b");
    lab.pipe_with(&["h1:> c", "h2:> d", "h3:>> e"], b"in c").quietly_gives("");
    assert_eq!(["c", "d", "e"].map(|name| lab.text_of(&format!("home/{name}"))), ["in c", "", ""]);
    lab.pipe_with(&["h1:> f", "h2:< f", "h3:>> f", "h1:< f"], b"twice ").quietly_gives("twice twice ");
    lab.deserted(GONE);
}

#[test]
fn without_input_a_file_is_made_empty_or_touched() {
    let lab = Lab::new();
    lab.0.file("home/old", b"old");
    lab.pipe(&["h:> old"]).quietly_gives("");
    holds(&lab.join("home/old"), b"");
    lab.pipe(&["h:> new"]).quietly_gives("");
    holds(&lab.join("home/new"), b"");
    let kept = lab.0.file("home/kept", b"kept");
    let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(&kept).expect("ours").set_modified(before).expect("ours");
    lab.pipe(&["h:>> kept", "h2:>> made"]).quietly_gives("");
    holds(&kept, b"kept");
    holds(&lab.join("home/made"), b"");
    assert!(fs::metadata(&kept).expect("it").modified().expect("a time") > before, "it was touched");
    lab.deserted(GONE);
}

#[test]
fn the_shell_of_the_host_reads_what_follows() {
    let lab = Lab::new();
    fs::create_dir(lab.join("home/a dir")).expect("a directory");
    fs::write(lab.join("home/in"), b"12345").expect("a file");
    for (number, target) in
        ["~/x", "$HOME/x", "\"$HOME/a dir/x\"", "'a dir'/x", "a\\ dir/x", "~/'a dir/x'"].into_iter().enumerate()
    {
        let text = format!("number {number}");
        lab.pipe_with(&[format!("h:> {target}")], text.as_bytes()).quietly_gives("");
        lab.pipe_with(&[format!("h:>> {target}")], b"+").quietly_gives("");
        lab.pipe(&[format!("h:< {target}")]).quietly_gives(&format!("{text}+"));
    }
    assert_eq!(lab.text_of("home/x"), "number 1+");
    assert_eq!(lab.text_of("home/a dir/x"), "number 5+");
    // The local shell expands nothing of this, and names are bytes.
    lab.pipe(&["h:< in", "h:> '$HOME;`touch pwned`'"]).quietly_gives("");
    assert_eq!(lab.text_of("home/$HOME;`touch pwned`"), "12345");
    assert!(!lab.join("pwned").exists() && !lab.join("home/pwned").exists());
    // A variable that only the other host has.
    lab.script("login", "WHERE=there; export WHERE; exec sh -c \"exec $2\"");
    run(lab.rdpipe_by("login").env("WHERE", "here").args(["h:< in", "h:> $WHERE"])).quietly_gives("");
    assert_eq!(lab.text_of("home/there"), "12345");
    lab.deserted(GONE);
}

#[test]
fn a_redirection_within_a_command_is_the_shells() {
    let lab = Lab::new();
    lab.pipe_with(&["h:cat > x; wc -c < x"], b"12345").quietly_gives("5\n");
    lab.pipe_with(&["h:cat >> x", "h:cat x"], b"678").ended.expect(0);
    assert_eq!(lab.text_of("home/x"), "12345678");
    lab.deserted(GONE);
}

/// The messages are longer than a pipe holds, before the file is opened and if none is.
#[test]
fn a_shell_that_complains_at_length_is_not_waited_for() {
    let lab = Lab::new();
    lab.0.file("words", b"some words");
    let loud = format!("head -c 200000 /dev/zero | tr '\\0' x >&2; echo {}", lab.join("words").display());
    let opened = format!("h:< $({loud})");
    lab.pipe(&[opened.as_str(), "h:cat"]).quietly_gives("some words").ended.within(FAILED);
    let refused = format!("h:< $({loud})/none");
    lab.pipe(&[refused.as_str(), "h:cat"]).ended.expect(5);
    lab.deserted(GONE);
}
