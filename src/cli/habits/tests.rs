use clap::CommandFactory;

use super::rsync::{NEGATED, WORDS, names};
use super::*;

/// In these tests `80` and `22` are names of existing files, and `gz` is that of a directory.
fn words(line: &str) -> Result<Vec<String>, String> {
    let exists = |word: &OsStr| ["80", "gz"].iter().any(|name| word == *name);
    let command = crate::cli::rdcp::CopyArguments::command();
    let done = translate(line.split(' ').map(OsString::from), &command, exists)?;
    let mut words: Vec<String> = done.words.into_iter().map(|word| word.into_string().expect("text")).collect();
    words.extend(done.is_relative.then(|| "(relative)".to_owned()));
    words.extend(done.notes.first().map(|_| "(note)".to_owned()));
    Ok(words)
}

#[test]
fn what_hands_type() {
    for (line, expected) in [
        ("-avzP a h:", "--recursive -v --compress=auto --progress a h:"),
        ("-rlptgoD a h:", "-r a h:"),
        ("-rtgz a b", "-r -t gz a b"),
        ("-rt./x a", "-r -t ./x a"),
        ("-aHAXS a h:", "--recursive a h:"),
        ("-S /bin/sh a h:", "--rsh /bin/sh a h:"),
        ("-S a h:", "a h:"),
        ("-aHAXS /bin/sh h:", "--recursive /bin/sh h:"),
        ("--sync -aS /bin/sh a h:", "--sync --recursive /bin/sh a h:"),
        ("--sync -S /bin/sh h:", "!"),
        ("--sync -S a h:", "--sync a h:"),
        ("-rS /bin/sh a h:", "-r --rsh /bin/sh a h:"),
        ("--sync -aS /no/such/file h:", "--sync --recursive /no/such/file h:"),
        ("-D /bin/sh a h:", "!"),
        ("-rpD /bin/sh a h:", "!"),
        ("-aD /bin/sh h:", "--recursive /bin/sh h:"),
        ("--sync -D /bin/sh h:", "--sync /bin/sh h:"),
        ("-D a h:", "a h:"),
        ("-F none a h:", "-F none a h:"),
        ("-rF Cargo.toml a h:", "-r -F Cargo.toml a h:"),
        ("--sync -F Cargo.toml a/ h:", "--sync -F Cargo.toml a/ h:"),
        ("--sync -aF Cargo.toml a/ h:", "!"),
        ("--sync --delete -aFF src/ dst/", "!"),
        ("--sync --delete -aF src/ b/ dst/", "!"),
        ("--sync -F --delete src/ dst/", "!"),
        ("--sync -FF src/ dst/", "!"),
        ("-aF src/ b/ dst/", "!"),
        ("-J near a h:", "-J near a h:"),
        ("-rJ near a h:", "-r -J near a h:"),
        ("--sync -J me@near:22,[fd00::1] a/ h:", "--sync -J me@near:22,[fd00::1] a/ h:"),
        ("--sync -aJ a/ b/ dst/", "!"),
        ("--sync -aJ near b/ dst/", "!"),
        ("--sync -J gz b/ dst/", "!"),
        ("--sync -J h:a b/ dst/", "!"),
        ("--sync -Jn a/ dst/", "!"),
        ("--sync -J -n a/ dst/", "!"),
        ("-aJ a/ b/ dst/", "!"),
        ("-c aes128-ctr a h:", "-o Ciphers=aes128-ctr a h:"),
        ("-caes128-gcm@openssh.com a h:", "-o Ciphers=aes128-gcm@openssh.com a h:"),
        ("-rc a h:", "-r --checksum a h:"),
        ("-X nrequests=8 a h:", "a h:"),
        ("-avh a h:", "--recursive -v --human-readable a h:"),
        ("--info=stats2 --no-h a h:", "--stats --no-human-readable a h:"),
        ("-h", "-h"),
        ("-r -h a h:", "!"),
        ("-in a b", "!"),
        ("-in64 a b", "!"),
        ("-igz a h:", "-i gz a h:"),
        ("-Fn a b", "!"),
        ("-rFFn a b", "!"),
        ("-avi a h:", "!"),
        ("-ain a h:", "!"),
        ("-i -a a h:", "!"),
        ("--sync -in a/ h:", "!"),
        ("--sync -i a/ h:", "!"),
        ("--sync --bwlimit=10000 a/ h:", "!"),
        ("--sync --bwlimit 1.5 a/ h:", "!"),
        ("--sync --bwlimit=10m a/ h:", "--sync --bwlimit=10m a/ h:"),
        ("--bwlimit 10000 a h:", "--bwlimit 10000 a h:"),
        ("--sync -B 1024 a/ h:", "!"),
        ("--sync --block-size 1024 --cc=md5 a/ h:", "--sync a/ h:"),
        ("--sync --info=progress2,stats2 a/ h:", "--sync --progress --stats a/ h:"),
        ("--sync --info=progress2,name0 a/ h:", "--sync --progress a/ h:"),
        ("--sync --info=name,stats a/ h:", "--sync --verbose --stats a/ h:"),
        ("--info=name,stats a h:", "!"),
        ("--sync --no-o --no-g a/ h:", "--sync --no-owner a/ h:"),
        ("--sync --no-group --no-owner a/ h:", "--sync --no-owner a/ h:"),
        ("--sync --no-group a/ h:", "!"),
        ("--sync --no-o a/ h:", "!"),
        ("--sync --force a/ h:", "!"),
        ("--sync --delay-updates a/ h:", "!"),
        ("--sync --modify-window=-1 a/ h:", "--sync --modify-window=0 a/ h:"),
        ("--sync --modify-window -1 a/ h:", "--sync --modify-window=0 a/ h:"),
        ("-ikey a h:", "-i key a h:"),
        ("-aX a h:", "--recursive a h:"),
        ("-vvvq a h:", "-v -v -v -q a h:"),
        ("-4 a h:", "-o AddressFamily=inet a h:"),
        ("-t dir a", "-t dir a"),
        ("--sync -rt a/ h:", "--sync -r a/ h:"),
        ("--sync -rlptgoD --delete a/ h:", "--sync -r --delete a/ h:"),
        ("--sync -rtv a/ h:", "--sync -r -v a/ h:"),
        ("-rt --sync a/ h:", "-r --sync a/ h:"),
        ("--sync -r -t a/ h:", "!"),
        ("--sync --target-directory h: a/", "--sync --target-directory h: a/"),
        ("-rt dir -- --sync", "!"),
        ("-r -t dir a", "-r -t dir a"),
        ("--sync -aI a/ h:", "--sync --recursive --checksum a/ h:"),
        ("--sync -a --super --no-o --no-g a/ h:", "--sync --recursive --no-owner a/ h:"),
        ("--sync -a --omit-dir-times a/ h:", "--sync --recursive --omit-dir-times a/ h:"),
        ("--sync -av --info=name0,progress2 a/ h:", "--sync --recursive -v --progress a/ h:"),
        ("--sync --info=name,del1 a/ h:", "--sync --verbose a/ h:"),
        ("--sync -a --filter=-_*.o -f+_x -f !y a/ h:", "!"),
        (
            "--sync -a --filter=-_*.o -f+_x -rf ! a/ h:",
            "--sync --recursive --exclude=- *.o --exclude=+ x -r --exclude=! a/ h:",
        ),
        ("--sync -a --filter=:_.rules a/ h:", "!"),
        ("--sync --timeout 60 a/ h:", "--reconnect 60 --sync a/ h:"),
        ("--sync --timeout=0 a/ h:", "--sync a/ h:"),
        ("--sync -aOm a/ h:", "--sync --recursive --omit-dir-times -m a/ h:"),
        ("-O a h:", "!"),
        ("--sync -a --stats -h a/ h:", "--sync --recursive --stats --human-readable a/ h:"),
        ("--sync -aC a/ h:", "!"),
        ("-rC a/ h:", "-r --compress=auto a/ h:"),
        ("-rt dir h:a", "!"),
        ("-vrt a/ h:", "!"),
        ("-P 2222 a h:", "-P 2222 a h:"),
        ("-P2222 a h:", "-P 2222 a h:"),
        ("-P 80 h:", "--progress 80 h:"),
        ("-p 2222 a h:", "2222 a h: (note)"),
        ("-p 80 a h:", "80 a h:"),
        ("-p a h:", "a h:"),
        ("-rp a h:", "-r a h:"),
        ("-l 8000 a h:", "--bwlimit=1024000 a h:"),
        ("-l 10m a h:", "!"),
        ("-rl a h:", "-r a h:"),
        ("-e ssh a h:", "--rsh ssh a h:"),
        ("-avze ssh a h:", "--recursive -v --compress=auto --rsh ssh a h:"),
        ("-o Port=1 a h:", "-o Port=1 a h:"),
        ("-oPort=1 a h:", "-o Port=1 a h:"),
        ("-vv a h:", "-v -v a h:"),
        ("-3 a h:", "--relay a h:"),
        ("-R a:b c:", "a:b c: (relative)"),
        ("-i key a h:", "-i key a h:"),
        ("--inplace --partial a h:", "--in-place a h:"),
        ("--compress a h:", "--compress=auto a h:"),
        ("-avz --no-v --no-r a h:", "--compress=auto --negated=verbose --negated=recursive a h:"),
        ("-ax --no-x --checksum --no-c a h:", "--recursive --negated=one-file-system --negated=checksum a h:"),
        ("--inplace --no-inplace --implied-dirs a h:", "--negated=in-place --negated=no-implied-dirs a h:"),
        ("--no-x -x a h:", "--negated=one-file-system -x a h:"),
        ("--no-t --no-X --times --xattrs a h:", "--negated=no-times --negated=no-xattrs a h:"),
        ("-a --no-owner --owner --group a h:", "--recursive --negated=no-owner a h:"),
        ("--no-o --no-g --owner --no-owner a h:", "--negated=no-owner --no-owner a h:"),
        ("--no-owner --no-group --owner a h:", "!"),
        ("--no-owner --group -ao a h:", "--no-owner --recursive a h:"),
        ("--no-msgs2stderr --no-s a h:", "a h:"),
        ("-I -c --no-c a h:", "--negated=checksum --checksum a h:"),
        ("--ignore-times --no-checksum a h:", "--negated=checksum --checksum a h:"),
        ("-v --rsh -v --no-v a h:", "--rsh -v --negated=verbose a h:"),
        ("--timeout=60 --no-timeout a h:", "a h:"),
        ("--no-timeout --timeout=60 a h:", "--reconnect 60 a h:"),
        ("-avP --no-progress a h:", "!"),
        ("-l 8000 --bwlimit 1M --rsh --bwlimit --no-bwlimit a h:", "--rsh --bwlimit --negated=bwlimit a h:"),
        ("--no-bwlimit --bwlimit=1M a h:", "--negated=bwlimit --bwlimit=1M a h:"),
        ("-aHAXsync a/ h:d", "!"),
        ("-rtsync a/ h:d", "!"),
        ("--no-X --no-H --no-S --zt=4 a h:", "--no-xattrs --no-hard-links --no-sparse a h:"),
        ("-R --no-relative a:b c:", "a:b c:"),
        ("--files-from=x --no-R a b", "!"),
        ("--no-devices a h:", "!"),
        ("--daemon --config x", "!"),
        ("--no-clobber a h:", "!"),
        ("--preserve=mode a h:", "!"),
        ("--preserve a h:", "!"),
        ("--reflink=auto a h:", "!"),
        ("-progress a h:", "!"),
        ("-exclude x a h:", "!"),
        ("-sync -r a h:", "!"),
        ("-rsync a h:", "!"),
        ("-timeout=5 a h:", "!"),
        ("-- -progress h:", "-- -progress h:"),
        ("--exclude -sync a h:", "--exclude=-sync a h:"),
        ("--json x.json a h:", "--json x.json a h: (note)"),
        ("--json a h:x.json", "--json a h:x.json"),
        ("--digest-cache /no/such a h:", "--digest-cache /no/such a h: (note)"),
        ("--digest-cache a h:", "--digest-cache a h:"),
        ("--digest-cache=/no/such a h:", "--digest-cache=/no/such a h:"),
        ("--compress zstd a h:", "--compress zstd a h:"),
        ("--compress gzip a h:", "!"),
        ("-S /no/such/ssh a h:", "!"),
        ("--exclude -p --include -q a h:", "--exclude=-p --include=-q a h:"),
        ("--chmod -w a h:", "--chmod=-w a h:"),
        ("--exclude --dry-run a h:", "--exclude --dry-run a h:"),
        ("--rsh=x -z a h:", "--rsh=x --compress=auto a h:"),
        ("--compress=zstd -az a h:", "--compress=zstd --recursive a h:"),
        ("--compress=off -z a h:", "--compress=off --compress=auto a h:"),
        ("--compress zstd -z a h:", "--compress zstd a h:"),
        ("--compress=zstd --compress=off -z a h:", "--compress=zstd --compress=off --compress=auto a h:"),
        ("-Jrsync a h:", "-J rsync a h:"),
        ("-Jgpu4 a h:", "-J gpu4 a h:"),
        ("-tv4 a b", "-t v4 a b"),
        ("-- -p h:", "-- -p h:"),
        ("- h:x", "- h:x"),
        ("-Q a", "-Q a"),
        ("-rQz a", "-r -Qz a"),
        ("scp://h/x a", "h:x a"),
        ("scp://u@h:22/%2Fx%20y a", "u@h:/x y a -P 22"),
        ("scp://[fd00::1]:22//x scp://h:22 a", "[fd00::1]:/x h: a -P 22"),
        ("-P 22 scp://h:23/a b", "-P 22 h:a b -P 23"),
        ("--exclude -- -- scp://h:23/a b", "--exclude -- -P 23 -- h:a b"),
        ("-P 22 scp://h/a g:b", "-P 22 h:a g:b"),
        ("scp://h:22/a g:b", "!"),
        ("-t g:b scp://h:22/a", "!"),
        ("--to g:b scp://h:22/a g:c", "!"),
        ("-t b scp://h:22/a", "-t b h:a -P 22"),
        ("scp://h:22/a -- scp://g/b", "!"),
        ("scp://h:22/a scp://g:23/b c", "!"),
        ("scp://h:x/a c", "!"),
        ("scp:///a c", "!"),
        ("scp://h/%0 c", "!"),
        ("-L a b", "-L a b"),
        ("-axk --chmod=D755 a b", "--recursive -x -k --chmod=D755 a b"),
        ("--exclude-from -x --chown a:b a b", "--exclude-from -x --chown a:b a b"),
        ("-axx a b", "!"),
        ("-x --one-file-system a b", "!"),
        ("-x --no-x -x a b", "--negated=one-file-system -x a b"),
        ("-x --rsh -x a b", "-x --rsh -x a b"),
        ("-K a b", "!"),
        ("--delete-before a b", "!"),
        ("-rcu --sync --del a b", "-r --checksum -u --sync --delete a b"),
        ("--sync -av --files-from=x a b", "--sync -v --files-from=x a b"),
        ("--sync --archive --files-from x a b", "--sync --files-from x a b"),
        ("--sync -avr --files-from x a b", "--sync -v -r --files-from x a b"),
        ("--sync -a a b -- --files-from", "--sync --recursive a b -- --files-from"),
        ("--files-from=x -0 --relative a b", "--files-from=x -0 a b (relative)"),
    ] {
        let done = words(line).map(|words| words.join(" "));
        match expected {
            "!" => assert!(done.is_err(), "{line}: {done:?}"),
            _ => assert_eq!(done.as_deref(), Ok(expected), "{line}"),
        }
    }
}

#[test]
fn the_value_of_another_program_is_refused_as_clap_does() {
    let mut command = crate::cli::rdcp::CopyArguments::command();
    let typed = ["rdcp", "--compress=gzip", "a", "h:"].map(OsString::from);
    let error = command.try_get_matches_from_mut(&typed).expect_err("no such value");
    assert_eq!(words("--compress gzip a h:"), Err(wrong::line(&error)));
}

/// 0 has no unit that would make it a limit.
#[test]
fn a_limit_of_nothing_is_none() {
    for limit in ["--sync --bwlimit=0", "--bwlimit 0", "--bwlimit=0k", "--bwlimit=1M --bwlimit 0.0"] {
        let words = words(&format!("{limit} a h:")).expect(limit);
        assert!(words.ends_with(&["--negated=bwlimit", "a", "h:"].map(str::to_owned)), "{limit}: {words:?}");
        assert!(!words.iter().any(|word| word.starts_with("--bwlimit")), "{limit}: {words:?}");
    }
    assert!(words("--bwlimit=10 a h:").is_ok() && words("--bwlimit 0.5m a h:").is_ok());
}

#[test]
fn what_may_be_a_key_is_no_source() {
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path().join("it");
    for (text, is_source) in [
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", false),
        ("Bag Attributes: none\n-----BEGIN PRIVATE KEY-----\n", false),
        ("ssh-ed25519 AAAA me\n", false),
        ("ecdsa-sha2-nistp256 AAAA\n", false),
        ("sk-ssh-ed25519@openssh.com AAAA\n", false),
        ("1,2\n", true),
        ("", true),
    ] {
        std::fs::write(&path, text).expect("written");
        assert_eq!(is_no_key(path.as_os_str()), is_source, "{text}");
    }
    std::fs::write(path.with_extension("pub"), "").expect("written");
    assert!(!is_no_key(path.as_os_str()), "with its public half");
    assert!(is_no_key(scratch.path().as_os_str()));
    for (name, is_source) in [
        ("/dev/null", false),
        ("/no/such/key", false),
        ("/no/such:key", false),
        ("pkcs11:token=me", false),
        ("nas:a.csv", true),
        ("me@nas:", true),
    ] {
        assert_eq!(is_no_key(OsStr::new(name)), is_source, "{name}");
    }
}

#[test]
fn letters_are_sorted_and_those_of_our_own_are_there() {
    assert!(LETTERS.is_sorted_by_key(|letter| letter.letter));
    let command = crate::cli::rdcp::CopyArguments::command();
    for option in command.get_arguments() {
        let Some(short) = option.get_short().filter(|short| *short != 'P') else { continue };
        let known = LETTERS.iter().find(|letter| letter.letter == short);
        let here = if option.get_action().takes_values() { Here::OwnValue } else { Here::Own };
        assert_eq!(known.map(|letter| letter.here), Some(here), "-{short}");
    }
}

/// The manual says which letters may be refused. `-f` is left out: `/bin/sh` is no rule.
#[test]
fn the_manual_says_what_is_refused() {
    for letter in LETTERS.iter().filter(|letter| letter.letter != 'f') {
        for before in ["-", "-r", "-a", "--sync -", "--sync -r", "--sync -a"] {
            let line = format!("{before}{} /bin/sh h:", letter.letter);
            if words(&line).is_err() {
                assert!(letter.meaning().contains("refused"), "{line}: {}", letter.meaning());
            }
        }
    }
}

/// Letters that people type together must not be refused as the name of an option.
#[test]
fn letters_that_are_typed_together_are_no_name() {
    let command = crate::cli::rdcp::CopyArguments::command();
    let typed = ["avz", "avzP", "avzhP", "rlptgoD", "aHAX", "aHAXS", "avn", "rtv", "rtvu", "rvz", "rlt", "avhi", "azP"];
    for letters in typed {
        assert_eq!(wrong::single_dash(OsStr::new(&format!("-{letters}")), &command, names()), None, "-{letters}");
        assert_eq!(joined_sync(format!("-{letters}").as_bytes(), &|_: &OsStr| false), None);
    }
    for (word, expected) in [("-rtsync", "-rt"), ("-aHAXSsync", "-aHAXS"), ("-rlptgoDuxsync", "-rlptgoDux")] {
        let said = joined_sync(word.as_bytes(), &|_: &OsStr| false);
        assert_eq!(said, Some(format!("{word}: did you mean {expected} --sync? see --help")));
    }
    assert_eq!(joined_sync(b"-tsync", &|word: &OsStr| word == "sync"), None, "the directory sync");
    assert_eq!(joined_sync(b"-esync", &|_: &OsStr| false), None, "a launcher");
}

#[test]
fn no_negation_of_rsync_is_unknown() {
    let command = crate::cli::rdcp::CopyArguments::command();
    let all = "
        no-8 no-8-bit-output no-A no-acls no-append no-atimes no-backup no-blocking-io no-bwlimit no-c no-checksum
        no-compress no-contimeout no-crtimes no-D no-d no-delay-updates no-detach no-devices no-dirs no-force no-from0
        no-fuzzy no-g no-group no-H no-h no-hard-links no-human-readable no-i no-i-d no-i-r no-iconv no-ignore-errors
        no-implied-dirs no-inc-recursive no-inplace no-itemize-changes no-J no-l no-links no-m no-mkpath no-motd
        no-msgs2stderr no-munge-links no-N no-numeric-ids no-O no-o no-old-args no-omit-dir-times no-omit-link-times
        no-one-file-system no-open-noatime no-owner no-p no-partial no-perms no-progress no-protect-args
        no-prune-empty-dirs no-R no-r no-recursive no-relative no-S no-s no-secluded-args no-sparse no-specials no-super
        no-t no-timeout no-times no-U no-v no-verbose no-W no-whole-file no-write-devices no-X no-x no-xattrs no-y no-z
        daemon config detach dparam i-d implied-dirs log-format motd msgs2stderr new-compress old-compress qsort
        remove-sent-files sender server zt";
    for name in all.split_whitespace() {
        let option = format!("--{name}");
        let line = ["--sync", "-r", &option, "a", "h:"].map(OsString::from);
        let Ok(done) = translate(line, &command, |_| false) else { continue };
        let words = std::iter::once(OsString::from("rdcp")).chain(done.words);
        if let Err(error) = command.clone().try_get_matches_from(words) {
            panic!("{option}: {error}");
        }
    }
}

#[test]
fn what_is_meant_instead_is_there() {
    let instead = LETTERS.iter().map(|letter| letter.here).chain(WORDS.iter().map(|(_, here)| *here));
    let command = crate::cli::rdcp::CopyArguments::command();
    let known = |word: &str| {
        let name = word.split('=').next().unwrap_or(word);
        command.get_arguments().any(|option| {
            option.get_long().is_some_and(|long| name == format!("--{long}"))
                || option.get_short().is_some_and(|short| name == format!("-{short}"))
        })
    };
    for word in NEGATED.iter().flat_map(|(_, words)| words.iter()) {
        assert!(known(word), "{word}");
    }
    for here in instead {
        if let Here::Means(words) = here {
            for word in words.iter().filter(|word| word.starts_with('-')) {
                assert!(known(word), "{word}");
            }
        }
    }
}
