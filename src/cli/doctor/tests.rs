//! Tests the output for recorded hosts: the commands that fix them, and the three forms of the report.

use std::io::Write;
use std::process::{Command, Stdio};

use clap::CommandFactory;

use super::output::Painter;
use super::{DoctorArguments, Section, USES, output};
use crate::cli::uses;
use crate::measure::finding::Outcome;
use crate::measure::matrix::{Matrix, Measured};
use crate::measure::probe::Attempt;
use crate::measure::recorded::facts;
use crate::measure::{Facts, Finding, Fix, Level, Speed, examine};

#[test]
fn every_option_is_for_something() {
    uses::hold_to(USES, &DoctorArguments::command());
}

#[test]
fn an_empty_name_of_a_list_is_refused() {
    use clap::Parser;
    let arguments = DoctorArguments::try_parse_from(["rddoctor", "--hosts", ""]).expect("options");
    let failure = super::diagnose(&arguments).expect_err("no name");
    assert_eq!(failure.message.as_deref(), Some("--hosts is empty; give FILE, @GROUP or slurm"));
}

/// Returns the painter for a report that goes to no terminal.
fn plain() -> Painter {
    Painter::new(false, 0)
}

/// Returns the codes of what is wrong with a recorded host, and the commands that fix it.
fn fixes(name: &str) -> Vec<(String, String)> {
    let bad = examine(&facts(name)).into_iter().filter(|finding| finding.level != Level::Ok);
    let told = bad.map(|Finding { code, why, fix, .. }| {
        assert!(!why.is_empty(), "{name}: {code} without a reason");
        match fix {
            Some(Fix::Run(command)) => (code.to_owned(), command),
            Some(Fix::Do(advice)) => (code.to_owned(), format!("by hand: {advice}")),
            None => panic!("{name}: {code} without a fix"),
        }
    });
    told.collect()
}

#[track_caller]
fn is_fixed_by(name: &str, expected: &[(&str, &str)]) {
    let found = fixes(name);
    assert_eq!(found.len(), expected.len(), "{name}: {found:#?}");
    for ((code, fix), (expected_code, part)) in found.iter().zip(expected) {
        assert_eq!(code, expected_code, "{name}: {found:#?}");
        assert!(fix.contains(part), "{name}: {code}: {fix}");
    }
}

#[test]
fn every_recorded_host_is_told_what_to_do() {
    let memlock =
        "printf '* - memlock unlimited\\nroot - memlock unlimited\\n' >/etc/security/limits.d/zz-rdma-pipe.conf";
    is_fixed_by("connectx", &[]);
    is_fixed_by("no-device", &[]);
    is_fixed_by("roce-1024", &[("mtu-small", "by hand: ip link set dev enp65s0f0np0 mtu 9000")]);
    is_fixed_by("pcie-x4", &[("pcie-slow", "by hand: move the card to a slot of 16 GT/s x16")]);
    is_fixed_by("memlock-64k", &[("memlock-none", "pam_limits.so"), ("not-registered", "pam_limits.so")]);
    is_fixed_by("memlock-8m", &[("memlock-small", memlock), ("registered-less", memlock)]);
    is_fixed_by("sriov", &[("guid-zero", "node_guid")]);
    is_fixed_by("no-subnet-manager", &[("port-waits", "systemctl enable --now opensm")]);
    is_fixed_by(
        "container",
        &[("node-missing", "--device /dev/infiniband"), ("node-missing", "--device /dev/infiniband")],
    );
    is_fixed_by(
        "nothing-installed",
        &[
            ("libraries-missing", "dnf install -y libibverbs librdmacm rdma-core"),
            ("module-missing", "modprobe rdma_ucm && echo rdma_ucm >/etc/modules-load.d/rdma_ucm.conf"),
        ],
    );
    is_fixed_by("ethernet-only", &[("adapter-without-module", "modprobe mlx5_ib")]);
    is_fixed_by(
        "badly-tuned",
        &[
            ("subnet-twice", "sysctl -w net.ipv4.conf.all.arp_ignore=1"),
            ("pcie-slow", "by hand: move the card"),
            ("iommu-translates", "iommu=pt"),
            ("governor-saves", "echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),
            ("cpu-capped", "scaling_max_freq"),
        ],
    );
    is_fixed_by("no-address", &[("address-missing", "ip address add \"${ADDRESS_ENP65S0F0NP0:?")]);
    is_fixed_by("cable-out", &[("port-down", "ip link set dev enp65s0f0np0 up")]);
}

fn sections(names: &[&str]) -> Vec<Section> {
    let section = |name: &&str| {
        let mut facts = facts(name);
        facts.host = format!("host-{name}");
        super::of_host(name, "here", &facts)
    };
    names.iter().map(section).collect()
}

const ALL: [&str; 13] = [
    "connectx",
    "roce-1024",
    "pcie-x4",
    "memlock-64k",
    "memlock-8m",
    "sriov",
    "no-subnet-manager",
    "container",
    "nothing-installed",
    "ethernet-only",
    "badly-tuned",
    "no-address",
    "cable-out",
];

fn accepted_by(program: &str, arguments: &[&str], script: &str) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    child.stdin.take().expect("piped").write_all(script.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {said}\n{script}");
}

#[test]
fn the_script_is_one_that_shells_and_shellcheck_accept() {
    let script = output::script(&sections(&ALL));
    accepted_by("sh", &["-n"], &script);
    accepted_by("shellcheck", &["-s", "sh", "-"], &script);
    assert!(script.contains("host-roce-1024)\n"), "{script}");
    assert!(!script.contains("host-connectx)"), "nothing to fix there: {script}");
    // Two findings share one command.
    assert_eq!(script.matches("pam_limits.so /etc/pam.d/sshd").count(), 1, "{script}");
    // What could cut the host off is not run.
    let mtu = "# By hand: ip link set dev enp65s0f0np0 mtu 9000\n";
    let why = "# Why: the same data takes more packets; switches and the other host need the larger MTU too\n";
    assert!(script.contains(&format!("    {why}    {mtu}")), "{script}");
    let nothing = output::script(&sections(&["connectx"]));
    assert!(nothing.contains("Nothing to fix"));
    accepted_by("shellcheck", &["-s", "sh", "-"], &nothing);
}

#[test]
fn nothing_of_a_hostile_host_becomes_a_command_or_reaches_the_terminal() {
    let mut facts = facts("badly-tuned");
    let evil = "x\n rm -rf / \x1b[31m'\"$(id)`id`";
    facts.system = evil.to_owned();
    facts.host = evil.to_owned();
    facts.cpu.governors = vec![evil.to_owned()];
    facts.cpu.driver = evil.to_owned();
    facts.devices[0].model = evil.to_owned();
    facts.devices[0].firmware = evil.to_owned();
    facts.devices[0].iommu = format!("DMA{evil}");
    facts.devices[1].name = evil.to_owned();
    facts.firewall = evil.to_owned();
    let mut facts = Facts::decode(&crate::measure::encode(&facts)).expect("facts");
    assert_eq!(facts.host, "unnamed");
    facts.host = "a') ;; $(id) `id` 'b".to_owned();
    let sections = [super::of_host(evil, "there", &facts)];
    let text = output::text(&sections, plain());
    assert!(!text.contains('\x1b') && text.contains("\\u{1b}"), "{text}");
    assert!(text.lines().all(|line| !line.trim_start().starts_with("rm ")), "{text}");
    let script = output::script(&sections);
    accepted_by("sh", &["-n"], &script);
    // The host's name is a single word to the shell, whatever it contains.
    let pattern = script.lines().find(|line| line.contains("$(id)")).expect("it").strip_suffix(')').expect("a pattern");
    let output = Command::new("sh").args(["-c", &format!("printf %s {pattern}")]).output().expect("sh");
    assert_eq!(String::from_utf8_lossy(&output.stdout), facts.host);
    let commands = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    for line in commands {
        let is_pattern = line.ends_with(')') && !line.starts_with(' ');
        assert!(!line.contains("rm -rf") && (is_pattern || !line.contains("(id)")), "{line}");
    }
}

#[test]
fn a_host_that_claims_the_name_of_another_gets_no_command_run_there() {
    use clap::Parser;
    const FIX: &str = "ip link set dev enp65s0f0np0 up";
    let section = |name: &str, node: &str, is_here: bool| {
        let mut facts = facts("cable-out");
        facts.host = node.to_owned();
        Section { is_here, name: name.to_owned(), ..super::of_host(name, "there", &facts) }
    };
    let claimed = [section("", "node1", true), section("evil", "node1", false), section("good", "node2", false)];
    let script = output::script(&claimed);
    accepted_by("sh", &["-n"], &script);
    accepted_by("shellcheck", &["-s", "sh", "-"], &script);
    let (_, rest) = script.split_once("\nnode1)\n").expect("its part");
    let (part, rest) = rest.split_once(";;").expect("its end");
    assert!(part.contains("report this name: evil, this host."), "{script}");
    assert_eq!(part.matches(&format!("    # {FIX}\n")).count(), 1, "{script}");
    assert_eq!(part.matches(&format!("\n    {FIX}\n")).count(), 1, "its own: {script}");
    assert!(rest.contains(&format!("\n    {FIX}\n")), "another host's part is as ever: {script}");
    // A name is claimed even if nothing is wrong with its owner.
    let mut well = section("", "node1", true);
    well.findings.clear();
    assert!(!output::script(&[well, section("evil", "node1", false)]).contains(&format!("\n    {FIX}\n")));
    // This host by another name.
    let arguments = super::DoctorArguments::try_parse_from(["rddoctor"]).expect("none");
    let (here, there) = (facts("cable-out"), facts("cable-out"));
    let mut same = vec![super::of_host("this host", "here", &here)];
    let path = crate::measure::Path { here, there, is_one_machine: true, ..Default::default() };
    let node = path.here.host.clone();
    same.extend(super::of_found(std::ffi::OsStr::new("localhost"), &arguments, &node, Ok(path)));
    let script = output::script(&same);
    assert!(script.contains(&format!("\n    {FIX}\n")) && script.contains(&format!("    # {FIX}\n")), "{script}");
}

#[test]
fn the_buffers_of_a_host_with_this_ones_name_are_not_set_here() {
    use clap::Parser;
    let arguments = super::DoctorArguments::try_parse_from(["rddoctor"]).expect("none");
    let (here, mut there) = (facts("connectx"), facts("connectx"));
    let settings = there.tcp.as_mut().expect("recorded");
    (settings.receive, settings.send) = ([4096, 8192, 24_000], [4096, 8192, 24_000]);
    let address = "10.0.0.1".parse().expect("an address");
    let attempt = Attempt { address, is_rdma: false, outcome: Outcome::Connected, micros: 300 };
    let speed = Speed { bytes: 1_000_000_000, micros: 2_000_000, medium: "tcp".to_owned(), ..Speed::default() };
    let mut sections = vec![super::of_host("this host", "here", &here)];
    let node = here.host.clone();
    let to_there = Some(Ok(vec![attempt]));
    let path = crate::measure::Path { here, there, to_there, speed: Some(Ok(speed)), ..Default::default() };
    sections.extend(super::of_found(std::ffi::OsStr::new("h2"), &arguments, &node, Ok(path)));
    let script = output::script(&sections);
    assert!(script.contains("\n    # sysctl -w net.ipv4.tcp_rmem="), "{script}");
    assert!(!script.contains("\n    sysctl -w net.ipv4.tcp_rmem="), "{script}");
}

#[test]
fn the_text_has_what_was_found_why_it_matters_and_the_fix_in_80_columns() {
    let sections = sections(&["roce-1024", "memlock-64k"]);
    let text = output::text(&sections, plain()) + &output::sum(&sections, plain(), Some(std::ffi::OsStr::new("node2")));
    assert!(!text.contains('\x1b'));
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("  warn  mtu mlx5_0")).expect("it");
    assert_eq!(lines[at + 1].trim_start(), "enp65s0f0np0 has MTU 1500", "{text}");
    assert!(lines[at + 2].starts_with("        why "), "{text}");
    let fix = "        fix ip link set dev enp65s0f0np0 mtu 9000";
    assert!(lines[at + 3..at + 5].contains(&fix), "{text}");
    for line in lines[..lines.len() - 1].iter().filter(|line| !line.starts_with("        fix ")) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let last = lines.last().expect("a line");
    assert_eq!(*last, "2 failures and 1 warning in 34 checks; rddoctor --fix-script node2 prints the fixes");
    assert!(output::text(&sections, Painter::new(true, 0)).contains("\x1b[33mwarn\x1b[0m"));
    let well = output::sum(&super::tests::sections(&["connectx"]), plain(), None);
    assert_eq!(well, "17 checks, all is well\n");
}

#[test]
fn the_text_is_as_wide_as_the_terminal() {
    let sections = sections(&["roce-1024"]);
    let widest = |columns: usize| {
        let text = output::text(&sections, Painter::new(false, columns));
        // Commands stay whole, and a word that is too long for any line, such as a path, has a line of its own.
        let lines = text.lines().filter(|line| !line.starts_with("        fix ") && line.trim().contains(' '));
        lines.map(|line| line.trim_end().chars().count()).max().expect("lines")
    };
    assert!(widest(40) <= 40 && widest(10) <= 40, "{}", output::text(&sections, Painter::new(false, 40)));
    assert!(widest(80) <= 80 && widest(0) <= 80);
    assert!(widest(140) > 80 && widest(140) <= 140);
}

#[test]
fn the_guide_shows_what_is_printed() {
    let sections = [super::of_host("this host", "here", &facts("roce-1024"))];
    let text = output::text(&sections, plain()) + &output::sum(&sections, plain(), None);
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/measuring.md")).expect("it");
    let (_, shown) = guide.split_once("$ rddoctor\n").expect("the example");
    let (shown, _) = shown.split_once("```").expect("its end");
    for line in shown.lines().filter(|line| *line != "…") {
        assert!(text.lines().any(|known| known == line), "{line}\nis not in\n{text}");
    }
}

#[test]
fn the_json_report() {
    let report = |name: &str| -> serde_json::Value {
        serde_json::from_str(&output::json(&sections(&[name]), None, 10)).expect("one object")
    };
    let down = report("cable-out");
    let mut down = down["findings"].as_array().expect("a list").iter().filter(|finding| finding["check"] == "port");
    let down = down.next().expect("it");
    assert_eq!((&down["command"], down["advice"].is_null()), (&"ip link set dev enp65s0f0np0 up".into(), true));
    let report = report("roce-1024");
    assert_eq!((report["version"].as_u64(), report["exit"].as_u64()), (Some(1), Some(10)));
    assert_eq!((report["warnings"].as_u64(), report["failures"].as_u64()), (Some(1), Some(0)));
    let findings = report["findings"].as_array().expect("a list");
    let mtu = findings.iter().find(|finding| finding["check"] == "mtu").expect("it");
    assert_eq!(mtu["code"], "mtu-small");
    assert_eq!(mtu["level"], "warning");
    assert_eq!(mtu["about"], "mlx5_0");
    assert_eq!(mtu["host"], "host-roce-1024");
    assert_eq!(mtu["advice"], "ip link set dev enp65s0f0np0 mtu 9000");
    assert!(mtu["command"].is_null());
}

#[test]
fn hosts_as_they_are_given() {
    let parse = |text: &str| super::parse_host(std::ffi::OsStr::new(text));
    for (text, host) in [
        ("node", "node"),
        ("root@node", "root@node"),
        ("node:", "node"),
        ("[fd00::1]", "fd00::1"),
        ("fd00::1", "fd00::1"),
        ("10.0.0.1", "10.0.0.1"),
    ] {
        assert_eq!(parse(text).expect(text), host);
    }
    for text in ["", "-oProxyCommand=x", "a:b", "a/b", "./x"] {
        assert!(parse(text).is_err(), "{text}");
    }
}

/// Returns recorded hosts, one of which has a small limit, and all their pairs. One host is slow, and one pair of other
/// hosts.
fn many(hosts: usize) -> (Vec<std::ffi::OsString>, Vec<Section>, Matrix) {
    use clap::Parser;
    let names: Vec<std::ffi::OsString> = (1..=hosts).map(|host| format!("node{host}").into()).collect();
    let arguments = super::DoctorArguments::try_parse_from(["rddoctor"]).expect("none");
    let mut sections = vec![super::of_host("this host", "here", &facts("connectx"))];
    for (at, name) in names.iter().enumerate() {
        let there = facts(if at % 5 == 3 { "memlock-8m" } else { "connectx" });
        let path = crate::measure::Path { here: facts("connectx"), there, is_one_machine: true, ..Default::default() };
        sections.extend(super::of_found(name, &arguments, "node0", Ok(path)));
    }
    let mut matrix = Matrix {
        hosts: (1..=hosts).map(|host| format!("node{host}")).collect(),
        rounds: hosts - 1,
        rounds_all: hosts - 1,
        ..Matrix::default()
    };
    for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))).filter(|(from, to)| from != to) {
        let slow = from == 4 || to == 4 || (from, to) == (1, 2);
        let bytes = if slow { 20_000_000 } else { 11_000_000_000 + ((from * 31 + to * 17) % 11) as u64 * 9_000_000 };
        let speed = Speed { bytes, micros: 1_000_000, medium: "rdma".to_owned(), ..Speed::default() };
        matrix.pairs.push(Measured { from, to, speed: Ok(speed) });
    }
    let (title, node, name) = ("pairs".to_owned(), "node0".to_owned(), String::new());
    sections.push(Section { title, part: "pairs", node, is_here: true, name, findings: matrix.examine() });
    (names, sections, matrix)
}

#[test]
fn many_hosts_are_readable_in_80_columns() {
    for (hosts, ill) in [(8, "node4: "), (64, "node[4,9,14,19,24,29,34,39,44,49,54,59,64]: ")] {
        let (names, sections, matrix) = many(hosts);
        let text = super::many::text(&sections, &names, &matrix, plain());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() <= 40, "{text}");
        for line in lines.iter().filter(|line| !line.starts_with("        fix ")) {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert_eq!(text.matches("  warn  memlock ").count(), 1, "once for all hosts: {text}");
        assert!(text.split_whitespace().collect::<String>().contains(&ill.replace(' ', "")), "{text}");
        assert!(text.contains("  warn  host node5 ") && text.contains("  warn  pair node2 -> node3"), "{text}");
        let rows = lines.iter().filter(|line| line.starts_with("  node")).count();
        assert_eq!(rows, if hosts == 8 { 8 } else { 0 }, "{text}");
    }
}

#[test]
fn the_json_report_of_many_hosts_has_all_pairs() {
    let (_, sections, matrix) = many(8);
    let report: serde_json::Value =
        serde_json::from_str(&output::json(&sections, Some(&matrix), 10)).expect("one object");
    let pairs = report["pairs"].as_array().expect("a list");
    assert_eq!((pairs.len(), &report["rounds"]["measured"]), (56, &7.into()));
    let slow = pairs.iter().filter(|pair| pair["fault"] == "slow").count();
    assert_eq!(slow, 15, "seven pairs of a host both ways, and one");
    assert_eq!(
        (&pairs[0]["from"], &pairs[0]["to"], &pairs[0]["transport"]),
        (&"node1".into(), &"node2".into(), &"rdma".into())
    );
    let codes: Vec<&str> = report["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|finding| finding["part"] == "pairs")
        .map(|finding| finding["code"].as_str().expect("text"))
        .collect();
    assert_eq!(codes, ["rates", "host-slow", "pair-slow"]);
}

#[test]
fn hosts_in_a_list() {
    let parse = |text: &str| super::parse_hosts(std::ffi::OsStr::new(text));
    assert_eq!(parse("n[1-3]").expect("a list"), ["n1", "n2", "n3"]);
    assert_eq!(parse("root@n[08-09]:").expect("a list"), ["root@n08", "root@n09"]);
    assert_eq!(parse("n[1,1]").expect("a list"), ["n1"]);
    for text in ["n[2-1]", "n[1-9999]", "n[", "n[1]:x"] {
        assert!(parse(text).is_err(), "{text}");
    }
}
