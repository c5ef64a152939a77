//! How far the data of a copy to several hosts has reached: `--fsync` and `--verify=disk`.

use super::*;

/// One event, `copied`, says for all hosts together how far the data has reached: the least that any of them has
/// reported. The stream and ordinary copies (`--sync`) report it alike.
#[test]
fn the_level_that_all_hosts_have_reached_is_told() {
    for (options, source, level) in [
        (&["-r"][..], "src", "written"),
        (&["-r", "--fsync"], "src", "synced"),
        (&["-r", "--verify=disk"], "src", "re-read"),
        (&["-r", "--sync", "--fsync"], "src/", "synced"),
        (&["-r", "--sync", "--verify=disk"], "src/", "re-read"),
    ] {
        let lab = Lab::new();
        fs::create_dir_all(lab.join("src/sub")).expect("directories");
        for bytes in [0, 4096, 3_000_001] {
            fs::write(lab.join(&format!("src/sub/f{bytes}")), noise(bytes)).expect("a file");
        }
        let words = [options, &["--json=report", source]].concat();
        let arguments: Vec<OsString> = words.iter().map(OsString::from).chain(lab.to(2)).collect();
        lab.start_many(&arguments).wait().expect(0);
        (1..=2).for_each(|host| lab.is_equal("src", &format!("h{host}/copy")));
        let report = fs::read_to_string(lab.join("report")).expect("a report");
        let events: Vec<serde_json::Value> =
            report.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let of = |name: &'static str| events.iter().filter(move |event| event["event"] == name);
        let levels: Vec<&serde_json::Value> = of("copied").map(|copied| &copied["level"]).collect();
        assert_eq!(levels, [level], "{options:?}: {report}");
        for host in ["h1", "h2"] {
            let state = of("host").rfind(|event| event["host"] == host).and_then(|event| event["state"].as_str());
            assert_eq!(state, Some("done"), "{host}, {options:?}: {report}");
        }
        let end = events.last().expect("an end");
        assert_eq!((&end["event"], &end["exit"]), (&"end".into(), &0.into()), "{options:?}: {report}");
    }
}
