//! Extracts from the source of a page what is to be typed.
//!
//! Lines of `sh` blocks are typed at the host where the page is read. So are lines of `console` blocks after `$ `;
//! lines after `backup$ ` are typed at that host, and the lines under them are their output. Comments in the source,
//! invisible to readers, say the rest:
//!
//! * `<!-- run`, lines such as `backup$ COMMAND`, `-->`: typed as well. They make what the page takes for granted, and
//!   check the effects of its lines.
//! * `<!-- not run: REASON -->` before a block: its lines are not typed.
//! * `<!-- exits with 8 -->` before a block: its last line has this exit code.
//! * `<!-- printed elsewhere: REASON -->` before a block: its lines are typed, but print something else here.

/// A line to be typed.
#[derive(Debug, PartialEq)]
pub struct Typed {
    /// Name of the host at the prompt.
    pub host: Option<String>,
    pub line: String,
    /// Lines shown as its output.
    pub printed: Vec<String>,
    pub exit: i32,
}

#[derive(Debug, PartialEq)]
pub enum Step {
    Typed(Typed),
    /// A block whose lines are not typed, and the reason.
    NotRun(Vec<String>, String),
}

/// Returns everything to be typed, in the order of the page.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let (mut why_not, mut exit, mut is_elsewhere) = (None, 0, false);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some(comment) = line.strip_prefix("<!-- ") {
            let comment = match comment.strip_suffix(" -->") {
                Some(comment) => comment.to_owned(),
                None => {
                    let rest = lines.by_ref().map(str::trim).take_while(|line| *line != "-->").collect::<Vec<_>>();
                    format!("{comment}\n{}", rest.join("\n"))
                }
            };
            if let Some(typed) = comment.strip_prefix("run\n") {
                let typed = console(typed);
                assert!(typed.iter().all(|typed| typed.host.is_some() && typed.printed.is_empty()), "{comment}");
                steps.extend(typed.into_iter().map(Step::Typed));
            } else if let Some(reason) = comment.strip_prefix("not run: ") {
                why_not = Some(reason.to_owned());
            } else if let Some(code) = comment.strip_prefix("exits with ") {
                exit = code.parse().expect("a number");
            } else if comment.starts_with("printed elsewhere: ") {
                is_elsewhere = true;
            } else {
                panic!("a comment that means nothing: {comment}");
            }
            continue;
        }
        let Some(language) = line.strip_prefix("```") else {
            assert!(
                line.is_empty() || (why_not.is_none() && exit == 0 && !is_elsewhere),
                "no block behind a comment: {line}"
            );
            continue;
        };
        let body: Vec<&str> = lines
            .by_ref()
            .take_while(|line| line.trim() != "```")
            .map(|line| line.get(indent..).unwrap_or(""))
            .collect();
        let body = body.join("\n").replace("\\\n", " ");
        let mut typed = match language {
            "sh" => shell(&body),
            "console" => console(&body),
            _ => Vec::new(),
        };
        if let Some(last) = typed.last_mut() {
            last.exit = exit;
        }
        if is_elsewhere {
            typed.iter_mut().for_each(|typed| typed.printed.clear());
        }
        match why_not.take() {
            Some(reason) => {
                steps.push(Step::NotRun(typed.into_iter().map(|typed| typed.line).collect(), reason));
            }
            None => steps.extend(typed.into_iter().map(Step::Typed)),
        }
        (exit, is_elsewhere) = (0, false);
    }
    steps
}

fn typed(host: Option<&str>, line: &str) -> Typed {
    Typed { host: host.map(str::to_owned), line: line.to_owned(), printed: Vec::new(), exit: 0 }
}

fn shell(body: &str) -> Vec<Typed> {
    let mut all: Vec<Typed> = Vec::new();
    for line in body.lines().filter(|line| !line.trim().is_empty()) {
        match all.last_mut() {
            Some(before) if before.line.ends_with(['|', '&']) => before.line += &format!(" {}", line.trim()),
            _ => all.push(typed(None, line)),
        }
    }
    all
}

fn console(body: &str) -> Vec<Typed> {
    let mut all: Vec<Typed> = Vec::new();
    for line in body.lines() {
        let is_prompt = |name: &str| name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        match (line.split_once("$ ").filter(|(name, _)| is_prompt(name)), all.last_mut()) {
            (Some((name, line)), _) => all.push(typed((!name.is_empty()).then_some(name), line)),
            (None, Some(before)) => before.printed.push(line.to_owned()),
            // Output of a command that is not shown.
            (None, None) => {}
        }
    }
    for typed in &mut all {
        typed.printed.retain(|line| !line.is_empty());
    }
    all
}

/// Returns the line without its comment.
pub fn command_of(line: &str) -> &str {
    line.split(" #").next().expect("one").trim_end()
}

/// Normalizes a printed line: everything that varies between runs becomes the same (numbers, sizes, units, keys).
pub fn shape(line: &str) -> String {
    let mut shape = String::new();
    // IPv6 addresses vary, and so does the slowest part.
    let line = &without_addresses(line).replace("by the sink", "by the wire").replace("by the source", "by the wire");
    for word in line.split_inclusive([' ', '\t', ':', '/', '(', ')', ',', ';']) {
        let (name, end) = word.split_at(word.trim_end_matches([' ', '\t', ':', '/', '(', ')', ',', ';']).len());
        let is_number = name.starts_with(|letter: char| letter.is_ascii_digit())
            && name.chars().all(|letter| letter.is_ascii_digit() || ".+-".contains(letter));
        let is_hash = name.len() == 8 && name.chars().all(|letter| letter.is_ascii_hexdigit());
        let is_key = name.len() >= 16 && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '.');
        let is_unit = matches!(name, "B" | "KiB" | "MiB" | "GiB" | "kB" | "MB" | "GB" | "KB");
        // Groups of thousands count as one number.
        if is_number && shape.ends_with("9,") {
            shape.truncate(shape.len() - 2);
        }
        shape += match () {
            () if is_number || is_hash || is_key => "9",
            () if is_unit => "B",
            () => name,
        };
        shape += end;
    }
    shape.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the line with a number in place of each bracketed address.
fn without_addresses(line: &str) -> String {
    let (from, to) = ('[', ']');
    let mut parts = line.split(from);
    let mut short = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(to) {
            Some((address, rest)) if address.parse::<std::net::Ipv6Addr>().is_ok() => short += &format!("0{rest}"),
            _ => short += &format!("{from}{part}"),
        }
    }
    short
}

#[test]
#[ignore = "runs beside those that need hosts"]
fn what_a_page_says() {
    let page = "text\n<!-- run\nbackup$ true\n-->\n\n```sh\na  # b\nc ||\n  d\n```\n<!-- not run: no reason -->\n```console\n$ e\nf\n```\n\
                <!-- exits with 8 -->\n\n   ```console\n   h2$ g \\\n   h\n   i\n   ```\n```toml\nj = 1\n```\n";
    let of = |host: Option<&str>, line: &str| typed(host, line);
    let last = Typed { printed: vec!["i".to_owned()], exit: 8, ..of(Some("h2"), "g  h") };
    let not_run = Step::NotRun(vec!["e".to_owned()], "no reason".to_owned());
    let run = [of(Some("backup"), "true"), of(None, "a  # b"), of(None, "c || d")].map(Step::Typed);
    assert_eq!(steps(page), run.into_iter().chain([not_run, Step::Typed(last)]).collect::<Vec<_>>());
    assert_eq!(
        shape("3,004 files, 407 MiB in 0.43 s (959 MB/s), verified"),
        shape("12 files, 1 KiB in 1 s (9 kB/s), verified")
    );
    assert_ne!(shape("1 file, verified"), shape("1 file"));
    assert_eq!(shape("rdsend 192.0.2.2 34323 avt7y7td7lgpvuhqybfbukxpt7idjz"), "rdsend 9 9 9");
    assert_eq!(shape("tcp [fd00:9::1]:7 > x, limited by the sink"), "tcp 9:9 > x, limited by the wire");
}
