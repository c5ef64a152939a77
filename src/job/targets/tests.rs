use proptest::prelude::*;

use super::*;

fn expanded(list: &str) -> Vec<String> {
    let hosts = expand(OsStr::new(list)).expect(list);
    hosts.into_iter().map(|host| host.into_string().expect("UTF-8")).collect()
}

fn refused(list: &str) -> String {
    expand(OsStr::new(list)).expect_err(list)
}

fn there(host: &str, path: &str) -> Spec {
    Spec::There(host.into(), path.into())
}

#[test]
fn lists_are_expanded() {
    for (list, hosts) in [
        ("h", &["h"][..]),
        ("gpu[01-03,12]", &["gpu01", "gpu02", "gpu03", "gpu12"]),
        ("rack[1-2]n[09-11]", &["rack1n09", "rack1n10", "rack1n11", "rack2n09", "rack2n10", "rack2n11"]),
        ("u@n[8-10].lan", &["u@n8.lan", "u@n9.lan", "u@n10.lan"]),
        ("n[0-10/5]", &["n0", "n5", "n10"]),
        ("n[098-101]", &["n098", "n099", "n100", "n101"]),
        ("n[98-101]", &["n98", "n99", "n100", "n101"]),
        ("n[08-100/46]", &["n08", "n54", "n100"]),
        ("n[007]", &["n007"]),
        ("a,b", &["a,b"]),
    ] {
        assert_eq!(expanded(list), hosts, "{list}");
    }
    let all = expand_all("a[1-2],b,,c[01,03]-ib[1-2]".as_ref()).expect("a list");
    assert_eq!(all, ["a1", "a2", "b", "c01-ib1", "c01-ib2", "c03-ib1", "c03-ib2"]);
}

#[test]
fn what_is_no_list_is_refused_in_a_sentence() {
    for (list, word) in [
        ("n[", "not closed"),
        ("n[1-2", "not closed"),
        ("n]1", "unmatched closing bracket"),
        ("n[]", "numbers"),
        ("n[1,]", "numbers"),
        ("n[a-c]", "numbers"),
        ("n[1-]", "numbers"),
        ("n[-1]", "numbers"),
        ("n[1-2-3]", "numbers"),
        ("n[1[2]]", "numbers"),
        ("n[1/2]", "numbers"),
        ("n[1-2/]", "numbers"),
        ("n[1-2/0]", "step"),
        ("n[2-1]", "smaller"),
        ("n[1-08]", "digits"),
        ("n[001-10]", "digits"),
        ("n[1-2],m", "--hosts FILE"),
        ("n[1-1025]", "1025 hosts"),
        ("n[0-999999999999999999]", "hosts"),
        ("n[0-999999999999999999][0-999999999999999999]", "hosts"),
        ("n[0-9999999999999999999]", "numbers"),
    ] {
        let reason = refused(list);
        assert!(reason.starts_with(list) && reason.contains(word), "{list}: {reason}");
    }
    assert_eq!(expanded("n[1-1024]").len(), HOSTS_MAX);
    assert_eq!(expanded("n[1-32][1-32]").len(), HOSTS_MAX);
    assert!(expand_all("n[1-1024],m".as_ref()).is_err());
}

#[test]
fn a_target_is_each_of_its_hosts() {
    let each_of = |text: &str| each(Spec::parse(text.as_ref()).expect(text));
    let listed = ["g01", "g02"].map(|host| there(host, "/m:x[1-2]"));
    assert_eq!(each_of("g[01-02]:/m:x[1-2]"), Ok(listed.to_vec()));
    for one in ["dir[1]", "./n[1-2]:x", "[fd00::1]:/x[1-2]", "u@[fd00::1]:x", "h:/x[1-2]", "-"] {
        let spec = Spec::parse(one.as_ref()).expect(one);
        assert_eq!(each(spec.clone()), Ok(vec![spec]), "{one}");
    }
    // The launcher would take it for an option.
    assert!(each_of("n[1:x").is_err());
}

#[test]
fn a_file_has_a_host_a_line() {
    let text = b"# comment\n\n  a  # why\nu@b\t\r\n[fd00::1]\nu@[fe80::1%e0]\nfd00::2\nn[1-2]\nc:/own path\nd[1-2]:~/x\nno#comment";
    let hosts = ["a", "u@b", "fd00::1", "u@fe80::1%e0", "fd00::2", "n1", "n2"].map(|host| there(host, "/m"));
    let with_path = [there("c", "/own path"), there("d1", "~/x"), there("d2", "~/x"), there("no#comment", "/m")];
    assert_eq!(read(text, "/m".as_ref()), Ok([&hosts[..], &with_path].concat()));
    for (text, words) in [
        ("", "no host"),
        ("# a\n\n", "no host"),
        ("a\nb slots=4\n", "line 2: b slots=4: only one host is allowed per line"),
        ("a:4", "slots"),
        ("./x", "not a host"),
        ("n[2-1]", "line 1: n[2-1]"),
        ("-oProxyCommand=x", "dash"),
        ("./x:y", "not a host"),
        ("n[1-1024]\nm", "more than 1024"),
    ] {
        let reason = read(text.as_bytes(), "/m".as_ref()).expect_err(text);
        assert!(reason.contains(words), "{text}: {reason}");
    }
}

#[test]
fn doubles_are_folded_unless_they_lie_elsewhere() {
    let (a, b) = (there("a", "/x"), there("b", "/x"));
    let once = without_doubles(vec![a.clone(), b.clone(), a.clone()]);
    assert_eq!(once, Ok((vec![a.clone(), b], 1)));
    assert!(without_doubles(vec![a, there("a", "/y")]).is_err_and(|line| line.contains("two paths")));
}

/// A range as the model has it: the text, and all of its numbers.
fn range() -> impl Strategy<Value = (String, Vec<String>)> {
    (0_u64..300, 0_u64..12, 1_u64..4, 1_usize..5, any::<bool>()).prop_map(|(first, more, step, width, is_stepped)| {
        let shown = |number: u64| format!("{number:0width$}");
        let step = if is_stepped { step } else { 1 };
        let numbers = (first..=first + more).filter(|number| (number - first) % step == 0).map(shown).collect();
        let text = match (more, is_stepped) {
            (0, false) => shown(first),
            (_, false) => format!("{}-{}", shown(first), shown(first + more)),
            (_, true) => format!("{}-{}/{step}", shown(first), shown(first + more)),
        };
        (text, numbers)
    })
}

/// A list, and its hosts.
fn list() -> impl Strategy<Value = (String, Vec<String>)> {
    let numbers = proptest::collection::vec(range(), 1..4);
    let parts = proptest::collection::vec(("[a-z.-]{0,3}", numbers), 0..3);
    ("[a-z]{1,4}", parts, "[a-z.]{0,3}").prop_map(|(begins, parts, ends)| {
        let (mut text, mut hosts) = (begins.clone(), vec![begins]);
        for (between, ranges) in parts {
            let texts: Vec<&str> = ranges.iter().map(|(text, _)| text.as_str()).collect();
            text += &format!("{between}[{}]", texts.join(","));
            let numbers = || ranges.iter().flat_map(|(_, numbers)| numbers);
            let with = |host: &String| numbers().map(|number| format!("{host}{between}{number}")).collect::<Vec<_>>();
            hosts = hosts.iter().flat_map(with).collect();
        }
        (text + &ends, hosts.into_iter().map(|host| host + &ends).collect())
    })
}

proptest! {
    #[test]
    fn a_list_is_what_the_model_says((text, hosts) in list()) {
        match expand(OsStr::new(&text)) {
            Ok(found) => prop_assert_eq!(found, hosts.into_iter().map(OsString::from).collect::<Vec<_>>()),
            Err(reason) => prop_assert!(hosts.len() > HOSTS_MAX, "{}", reason),
        }
    }

    /// A file of any bytes neither panics nor names too many hosts, and the hosts that it names can be written down
    /// again.
    #[test]
    fn any_bytes_are_a_file(text in "[\\[\\]a0-9,:/@#% \n-]{0,40}", path in "[ -~]{0,5}") {
        let Ok(targets) = read(text.as_bytes(), path.as_ref()) else { return Ok(()) };
        prop_assert!(targets.len() <= HOSTS_MAX + 1);
        for target in targets {
            let Some(line) = line_of(&target, Some(path.as_ref())) else { continue };
            prop_assert_eq!(read(&line, path.as_ref()), Ok(vec![target]));
        }
    }
}

/// Returns what another program prints for a list, one word per host.
fn printed(program: &str, arguments: &[&str], list: &str) -> Option<Vec<String>> {
    let scratch = tempfile::tempdir().expect("a directory");
    let configuration = scratch.path().join("slurm.conf");
    std::fs::write(&configuration, "ClusterName=x\nSlurmctldHost=localhost\n").expect("written");
    let mut command = std::process::Command::new(program);
    let output = command.args(arguments).arg(list).env("SLURM_CONF", &configuration).output().expect(program);
    let words = String::from_utf8(output.stdout).expect("UTF-8").split_whitespace().map(str::to_owned).collect();
    // scontrol prints nothing for some lists, and still succeeds.
    Some(words).filter(|words: &Vec<String>| output.status.success() && !words.is_empty())
}

/// Both lack some forms that are accepted here: range ends of different lengths, two adjacent brackets, steps, text
/// after the last bracket.
#[test]
#[ignore = "needs nodeset and scontrol: tests/run long, as root"]
fn nodeset_and_slurm_expand_as_we_do() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut by_nodeset, mut by_slurm) = (0, 0);
    for _ in 0..100 {
        let (text, hosts) = list().new_tree(&mut runner).expect("a list").current();
        if hosts.len() > HOSTS_MAX {
            continue;
        }
        if let Some(printed) = printed("nodeset", &["-e"], &text) {
            // nodeset sorts the hosts and prints each once.
            let sorted = |hosts: &[String]| hosts.iter().cloned().collect::<std::collections::BTreeSet<_>>();
            assert_eq!(sorted(&printed), sorted(&expanded(&text)), "nodeset: {text}");
            by_nodeset += 1;
        }
        if let Some(printed) = printed("scontrol", &["show", "hostnames"], &text).filter(|_| !text.contains('/')) {
            assert_eq!(printed, expanded(&text), "scontrol: {text}");
            by_slurm += 1;
        }
    }
    assert!(by_nodeset > 30 && by_slurm > 30, "{by_nodeset} by nodeset, {by_slurm} by scontrol");
}

#[test]
fn hosts_in_few_words_are_the_same_hosts() {
    for (hosts, few) in [
        (&["n1", "n2", "n3", "n7"][..], "n[1-3,7]"),
        (&["n08", "n09", "n10", "m1"], "n[08-10],m1"),
        (&["n9", "n10", "n11"], "n[9-11]"),
        (&["n9", "n010", "n011"], "n[9,010-011]"),
        (&["r1n1.lan", "r1n2.lan", "r2n1.lan"], "r1n[1-2].lan,r2n1.lan"),
        (&["10.0.0.1", "10.0.0.2"], "10.0.0.[1-2]"),
        (&["login", "u@n3", "fd00::1"], "login,u@n3,fd00::1"),
        (&[], ""),
    ] {
        let hosts: Vec<OsString> = hosts.iter().map(OsString::from).collect();
        assert_eq!(folded(&hosts), few);
        assert_eq!(expand_all(few.as_ref()).expect(few), hosts, "{few}");
    }
}
