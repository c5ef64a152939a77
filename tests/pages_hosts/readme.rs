//! README: the effect of each of its lines, and the state afterwards.

use std::fs;
use std::path::Path;

use crate::page::{Step, command_of, steps};
use crate::rig::Process;
use crate::world::World;

/// Lines that are not run here, and the reason.
const NOT_RUN: [(&str, &str); 3] = [
    ("make", "builds for minutes what stands built here, where `make install` looks for it"),
    ("make demo", "builds the release, and makes hosts of its own; CI and people run it"),
    ("make test", "is what runs this test"),
];

/// How a line is typed.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Runs to its end.
    Alone,
    /// Waits for the next line, which is a sender's.
    Receiver,
    /// The sender for which the receiver waits.
    Sender,
}

/// A line of README: text that identifies it, where it is typed, and a check of the state afterwards.
struct Typed {
    known_by: &'static str,
    at: u32,
    how: How,
    check: fn(&World, &str),
}

const fn alone(known_by: &'static str, at: u32, check: fn(&World, &str)) -> Typed {
    Typed { known_by, at, how: How::Alone, check }
}

const fn receiver(known_by: &'static str, at: u32) -> Typed {
    Typed { known_by, at, how: How::Receiver, check: |_, _| {} }
}

const fn sender(known_by: &'static str, at: u32, check: fn(&World, &str)) -> Typed {
    Typed { known_by, at, how: How::Sender, check }
}

const TYPED: [Typed; 14] = [
    alone("make install", 1, programs_are_installed),
    alone(" data/ backup:/srv/", 1, |world, _| {
        world.shell(2, "! command -v rdma-pipe-agent rdma-pipe rdcp"); // it has nothing but ssh
        world.same(1, "~/data", 2, "/srv/data");
        assert_eq!(world.shell(2, "find /srv/data -type f | wc -l"), "300");
    }),
    alone(" gpu2:/data/", 1, |world, _| {
        assert_eq!(world.shell(4, "ls /data"), "a.bin\nb.bin");
        world.same(3, "/data/a.bin", 4, "/data/a.bin");
        world.same(3, "/data/b.bin", 4, "/data/b.bin");
    }),
    alone("'gpu[1-2]:/srv/'", 1, |world, _| {
        world.same(1, "~/data", 3, "/srv/data");
        world.same(1, "~/data", 4, "/srv/data");
    }),
    receiver("rdrecv >image.raw", 2),
    sender(" <image.raw", 1, |world, _| {
        world.same(1, "~/image.raw", 2, "~/image.raw");
    }),
    alone(">~/.rd-key", 1, |world, _| {
        world.same(1, "~/.rd-key", 2, "~/.rd-key");
        assert_eq!(world.shell(2, "stat -c %a ~/.rd-key"), "600", "nobody else reads the key");
    }),
    receiver("| zfs receive ", 2),
    sender("| rdsend ", 1, |world, _| {
        let copy = "/var/zfs/tank/home/@monday/data";
        world.same(1, copy, 2, copy);
    }),
    alone("db:'pg_dump shop' ", 1, |world, _| {
        world.shell(3, "gzip -dc <shop.zst >shop.sql");
        world.same(2, "/var/shop.sql", 3, "~/shop.sql");
    }),
    alone(" other_host:'sha256sum' ", 1, |world, said| {
        assert_eq!(said.trim(), world.shell(1, "sha256sum <myfile"));
    }),
    alone("rddoctor gpu7", 1, |_, said| {
        assert!(said.contains("this host (h1)\n") && said.contains("gpu7 (h4)\n"), "{said}");
        assert!(said.contains("this host -> gpu7\n"), "{said}");
    }),
    alone("rdperf gpu7", 1, |_, said| {
        assert!(said.contains("h1 > gpu7: TCP to 10.9.0.4") && said.contains("BW average"), "{said}");
    }),
    alone("rdcp -v big gpu7:", 1, |world, _| {
        world.same(1, "~/big", 4, "~/big");
    }),
];

fn programs_are_installed(world: &World, _: &str) {
    let programs = "rdcp rdsend rdrecv rdpipe rdsh rdperf rddoctor rdma-pipe-agent";
    let found = world.shell(1, &format!("command -v {programs}"));
    assert_eq!(found.lines().count(), programs.split(' ').count(), "{found}");
    assert!(found.lines().all(|path| path.starts_with("/usr/local/bin/")), "{found}");
    world.shell(1, "test -s /usr/local/share/man/man1/rdcp.1");
}

#[test]
#[ignore = "needs hosts: tests/run as root"]
fn every_command_line_of_readme_does_what_it_says() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("README");
    let world = World::new();
    let (mut waiting, mut known, mut skipped): (Option<Process>, Vec<&str>, Vec<&str>) = (None, Vec::new(), Vec::new());
    for step in steps(&page) {
        let Step::Typed(typed) = step else { panic!("README has no line that is not run") };
        let line = typed.line;
        if let Some((line, why)) = NOT_RUN.iter().find(|(known, _)| *known == command_of(&line)) {
            eprintln!("not run: {line}: {why}");
            skipped.push(line);
            continue;
        }
        let found: Vec<&Typed> = TYPED.iter().filter(|typed| command_of(&line).contains(typed.known_by)).collect();
        assert!(found.len() == 1, "README has a line that this test has no check for: {line}");
        let typed = found[0];
        known.push(typed.known_by);
        eprintln!("h{}$ {line}", typed.at);
        match typed.how {
            How::Receiver => {
                // Until here, only host 1 had programs of this project, except what `rdcp` and other commands had sent.
                world.shell(typed.at, "make install");
                let process = world.start(typed.at, &line);
                assert!(waiting.replace(process).is_none(), "a receiver waits already: {line}");
            }
            How::Alone => {
                let (ended, said) = world.run(typed.at, &line);
                // Warnings are about the machine that this runs on, and have their own exit code.
                let is_well = ended.code == 0 || ended.code == 10 && line.starts_with("rddoctor");
                assert!(is_well, "{line}: exit code {}\n{said}{}", ended.code, ended.stderr);
                (typed.check)(&world, &said);
            }
            How::Sender => {
                let mut receiver = waiting.take().unwrap_or_else(|| panic!("nobody waits for it: {line}"));
                let line = world.as_printed(&line, &page, &receiver);
                let (ended, said) = world.run(typed.at, &line);
                assert_eq!(ended.code, 0, "{line}\n{said}{}", ended.stderr);
                receiver.wait().expect(0);
                (typed.check)(&world, &said);
            }
        }
    }
    assert!(waiting.is_none(), "nobody sent");
    let unused: Vec<&str> = TYPED.iter().map(|typed| typed.known_by).filter(|name| !known.contains(name)).collect();
    assert!(unused.is_empty(), "README has no such lines any more: {unused:?}");
    assert_eq!(skipped.len(), NOT_RUN.len(), "README has no such lines any more: {NOT_RUN:?}, but {skipped:?}");
}
