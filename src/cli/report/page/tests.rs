use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use quick_xml::Reader;
use quick_xml::events::Event as Xml;

use super::*;
use crate::cli::report::hosts::Holding;
use crate::cli::report::{REPORT, prepared};
use crate::fault::{Exit, Failure, escaped};
use crate::job::event::{Pipeline, Transfer};
use crate::job::progress::{HostShown, HostStanding};
use crate::tree::progress::Amount;
use crate::tree::stats::TreeFigures;

/// Contents of a page: names of its elements, its attributes, and all of its text except the style sheet.
#[derive(Default)]
struct Parsed {
    elements: Vec<String>,
    attributes: Vec<(String, String)>,
    text: String,
}

/// Reads a page with an XML parser. Fails if the page is not well-formed, runs code, or loads anything.
#[track_caller]
fn parsed(page: &[u8]) -> Parsed {
    let text = std::str::from_utf8(page).expect("UTF-8");
    assert!(!text.contains("://") && !text.contains("url(") && !text.contains("@import"), "something is loaded");
    let mut reader = Reader::from_str(text);
    let mut parsed = Parsed::default();
    let mut open: Vec<String> = Vec::new();
    loop {
        let event = reader.read_event().expect("well-formed");
        let (start, is_empty) = match event {
            Xml::Eof => break,
            Xml::Start(start) => (start, false),
            Xml::Empty(start) => (start, true),
            Xml::End(_) => {
                open.pop();
                continue;
            }
            Xml::Text(text) => {
                if open.last().is_none_or(|name| name != "style") {
                    parsed.text += &text;
                }
                continue;
            }
            Xml::GeneralRef(name) => {
                parsed.text += match &*name {
                    "lt" => "<",
                    "gt" => ">",
                    "amp" => "&",
                    "quot" => "\"",
                    "apos" => "'",
                    other => panic!("an unknown reference: {other}"),
                };
                continue;
            }
            _ => continue,
        };
        let name = start.name().as_ref().to_owned();
        assert!(!["script", "iframe", "img", "link", "object", "embed", "a"].contains(&&*name), "{name}");
        for attribute in start.attributes() {
            let attribute = attribute.expect("an attribute");
            let key = attribute.key.as_ref().to_owned();
            assert!(!key.starts_with("on") && !["src", "href", "srcset", "action"].contains(&&*key), "{key}");
            parsed.attributes.push((key, attribute.value.to_string()));
        }
        if !is_empty {
            open.push(name.clone());
        }
        parsed.elements.push(name);
    }
    assert!(open.is_empty(), "{open:?} are not closed");
    assert!(!parsed.text.chars().any(|letter| letter.is_control() && letter != '\n'), "control characters");
    parsed
}

fn figures(bytes: u64) -> Figures {
    let mut figures = Figures { seconds: 2.0, lanes: 2, encrypted: true, view: View::Both, ..Figures::default() };
    figures.counters.bytes = bytes;
    figures.waits = Waits { source: 1.5, wire: 0.5, ..Waits::default() };
    figures.media = vec![crate::transport::Medium::Tcp];
    figures
}

fn rendered(record: &Record, failure: Option<&Failure>, copied: Option<&Copied>) -> Parsed {
    let figures = figures(3_000_000_000);
    let end = End::Transfer(Box::new(Transfer::new(&figures, failure)));
    parsed(&render(record, CameTo { end: &end, figures: Some(&figures), copied }))
}

fn host(name: &str, standing: HostStanding) -> HostShown {
    HostShown { host: name.to_owned(), standing, received: 1 << 30, written: 0, before: None }
}

const HOSTILE: &str = "</code><script>alert(1)</script><img src=x onerror=y>\u{1b}[31m\u{202e}\u{0}\"' &lt;";

/// A run with everything in it, and with hostile names throughout.
fn hostile_record() -> Record {
    let mut record = Record::new("rdcp");
    let name = escaped(std::ffi::OsStr::from_bytes(&[HOSTILE.as_bytes(), b"\xff\xfe"].concat()));
    record.route = [vec![(name.clone(), HOSTILE.to_owned()); 40], vec![(HOSTILE.to_owned(), name.clone())]];
    for weight in [Weight::Plain, Weight::Lost, Weight::Healed, Weight::Failed] {
        record.happened(weight, HOSTILE);
    }
    for bytes in [0, u64::MAX, 5] {
        record.measured_here(HOSTILE, crate::job::hop::Side::From, bytes, Waits { wire: 1e13, ..Waits::default() });
    }
    record
}

#[test]
fn hostile_names_are_text_and_the_page_stays_well_formed() {
    let failure = Exit::Destination.with(HOSTILE);
    for failure in [None, Some(&failure)] {
        let page = rendered(&hostile_record(), failure, None);
        assert!(page.text.contains("<script>alert(1)</script>"), "it is shown as it is: {}", page.text);
        let mut record = hostile_record();
        let holding = Holding { host: 0, by: HeldUpBy::Disk, others: 1 };
        for standing in [HostStanding::Receiving, HostStanding::Behind, HostStanding::Failed] {
            std::thread::sleep(Duration::from_millis(2));
            record.hosts(&[host(HOSTILE, standing), host("b", standing)], Some(holding));
        }
        let page = rendered(&record, failure, None);
        assert!(page.text.contains("its disk held up 1 other"), "{}", page.text);
    }
}

fn hop(from: &str, to: &str) -> event::Hop {
    event::Hop {
        from: from.to_owned(),
        to: to.to_owned(),
        bytes: 1234,
        seconds: 1.0,
        gb_per_s: 0.001234,
        transport: "tcp+rdma".to_owned(),
        lanes: 2,
        encrypted: false,
        retries: 3,
        read_direct_bytes: 0,
        read_cached_bytes: 0,
        written_direct_bytes: 0,
        written_buffered_bytes: 0,
        through_launcher: true,
    }
}

#[test]
fn a_pipeline_has_each_stage_and_each_hop_and_all_of_it_is_text() {
    let stage = |host: &str| event::Stage {
        host: host.to_owned(),
        command: HOSTILE.to_owned(),
        exit: None,
        signal: Some(9),
        seconds: Some(1.5),
        bytes_in: None,
        bytes_out: Some(7),
    };
    let hop = hop(HOSTILE, "this host");
    let failure = Exit::Stage(3).with("a stage failed");
    let pipeline = Pipeline {
        result: event::Result::new(Some(&failure)),
        stages: vec![stage("a"), stage(HOSTILE)],
        hops: vec![hop],
        limiter: Some(event::PipelineLimiter { name: format!("the hop {HOSTILE}"), share: 0.8 }),
    };
    let end = End::Pipeline(pipeline);
    let page = parsed(&render(&hostile_record(), CameTo { end: &end, figures: None, copied: None }));
    for part in
        ["a stage failed", "signal 9", "TCP, then RDMA, through the launcher", "3 chunks", "for 80 % of the time"]
    {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    assert!(page.attributes.contains(&("value".to_owned(), "1234".to_owned())));
}

#[test]
fn a_hop_is_held_up_by_what_it_waited_for() {
    for (waits, expected) in [
        (Waits { source: 9.0, limit: 3.0, ..Waits::default() }, "--bwlimit is the limit"),
        (Waits { cpu: 3.0, wire: 1.0, ..Waits::default() }, "The processors are the limit, for encryption"),
        (Waits::default(), "The wire is the limit: use --compress auto"),
    ] {
        let mut record = Record::new("rdpipe");
        std::thread::sleep(Duration::from_millis(2));
        record.measured_here("b", crate::job::hop::Side::From, 1234, waits);
        record.tracks[0].names = ["a", "b"].map(str::to_owned);
        // The hop before it is another matter.
        let plain = event::Hop { transport: "tcp".to_owned(), ..hop("this host", "a") };
        let pipeline = Pipeline {
            result: event::Result::new(None),
            stages: Vec::new(),
            hops: vec![plain, event::Hop { encrypted: true, retries: 0, ..hop("a", "b") }],
            limiter: Some(event::PipelineLimiter { name: "the hop a -> b".to_owned(), share: 0.8 }),
        };
        let end = End::Pipeline(pipeline);
        let page = parsed(&render(&record, CameTo { end: &end, figures: None, copied: None }));
        assert!(page.text.contains(expected), "{expected}: {}", page.text);
        let is_wire = page.text.contains("The wire is the limit");
        assert_eq!(is_wire, expected.starts_with("The wire"), "{expected}: {}", page.text);
        assert!(!page.text.contains("The data went over TCP"), "{}", page.text);
    }
}

#[test]
fn what_it_says_is_what_happened() {
    let record = Record::new("rdcp");
    let amount = Amount { entries: 12, directories: 2, bytes: 3_000_000_000 };
    let tree = TreeFigures { amount, is_synced: true, ..TreeFigures::default() };
    let copied = Copied { tree, seconds: 2.0, is_verified: true, ..Copied::default() };
    let page = rendered(&record, None, Some(&copied));
    for part in [
        &*copied.line(),
        "No data was transferred.",
        "Exit code 0: done, and every byte verified",
        "the data is on stable storage",
        "Limited by the source, for 75 % of the time: it allows 2.00 GB/s.",
        "A faster source would help",
        "Nothing was lost",
    ] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    let within = Copied { is_verified: false, ..copied };
    let page = rendered(&record, None, Some(&within));
    assert!(page.text.contains("Exit code 0: done") && page.text.contains("nothing was compared"), "{}", page.text);
    assert!(!page.text.contains("every byte"), "{}", page.text);
    let failure = Failure::silent(Exit::Signal(15));
    let page = rendered(&record, Some(&failure), None);
    assert!(page.text.contains("ended by signal 15") && page.text.contains("none: the transfer failed"));
    assert!(page.attributes.contains(&("value".to_owned(), "143".to_owned())));
}

/// Whether the same command resumes, and to which hosts to copy again, depends on SRC, DST, options and failures. The
/// message says it where it is so.
#[test]
fn a_failed_copy_gets_only_advice_that_holds_for_every_copy_with_that_exit_code() {
    const REACHED: &str = "rddoctor HOST shows whether the host, its ports";
    for (exit, second) in [
        (Exit::Connect, None),
        (Exit::LinkLost, None),
        (Exit::Source, None),
        (Exit::Destination, None),
        (Exit::Integrity, None),
        (Exit::Partial, None),
        (Exit::Partial, Some(HostStanding::Failed)),
        // It joined late and has another version of SRC, or a part of SRC cannot be read.
        (Exit::Partial, Some(HostStanding::Done)),
        (Exit::Destination, Some(HostStanding::Failed)),
        (Exit::Protocol, None),
        (Exit::Signal(15), None),
    ] {
        let mut record = Record::new("rdcp");
        if let Some(second) = second {
            record.hosts(&[host("a", HostStanding::Done), host("b", second)], None);
        }
        let failure = exit.with("failed; 50 MiB kept in b:x, run again to resume");
        let text = rendered(&record, Some(&failure), None).text;
        assert_eq!(text.contains(REACHED), exit == Exit::Connect, "{exit:?}: {text}");
        let has_failed = exit == Exit::Partial && second == Some(HostStanding::Failed);
        assert_eq!(text.contains("--hosts-failed"), has_failed, "{exit:?}: {text}");
        assert_eq!(text.matches(" again").count(), text.matches("run again to resume").count(), "{exit:?}: {text}");
        assert!(!text.contains("resume where"), "{exit:?}: {text}");
    }
}

#[test]
fn one_end_blames_nothing_that_only_the_other_knows() {
    let wire = Waits { wire: 2.0, ..Waits::default() };
    let sink = Waits { sink: 2.0, ..Waits::default() };
    let wire_advice = "The wire is the limit: use --compress auto to send fewer bytes, or --via";
    let compared = "If the other end's --report also names the wire, that is the limit: rdsend --compress auto ";
    for (command, view, waits, advice) in [
        ("rdsend", View::Sender, wire, compared),
        ("rdrecv", View::Receiver, wire, compared),
        ("rdrecv", View::Receiver, sink, "A faster sink would help"),
        ("rdcp", View::Sender, wire, "Limited by the wire or the receiver, "),
        ("rdcp", View::Both, wire, wire_advice),
        ("rdcp", View::Both, sink, "--fsync and --verify=disk also wait for the disk"),
    ] {
        let figures = Figures { view, waits, ..figures(1 << 30) };
        let end = End::Transfer(Box::new(Transfer::new(&figures, None)));
        let page =
            parsed(&render(&Record::new(command), CameTo { end: &end, figures: Some(&figures), copied: None })).text;
        assert!(page.contains(advice), "{command}: {page}");
        for option in ["--via", "--fsync", "The wire is the limit", "The data went over TCP"] {
            assert!(view == View::Both || !page.contains(option), "{command}: {option}: {page}");
        }
        assert_eq!(page.contains("--report"), advice == compared, "{command}: {page}");
    }
}

#[test]
fn a_page_is_there_when_it_is_whole_and_refused_where_it_cannot_be() {
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path().join("r.html");
    let page = prepared("--report FILE.html", REPORT, &path).expect("made");
    assert!(!path.exists());
    drop(page);
    assert_eq!(scratch.path().read_dir().expect("entries").count(), 0);
    for none in ["-", "/", "/no/such/directory/r.html", "/dev/null"] {
        let failure = prepared("--report FILE.html", REPORT, Path::new(none)).err().expect("refused");
        assert_eq!(failure.exit, Exit::Usage, "{none}");
    }
}
