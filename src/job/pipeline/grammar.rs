//! The meaning of the arguments of `rdpipe`: stages, the parts that run one after the other, and the hops between
//! stages.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::control::frames::{Action, Input, Output};
use crate::fault::escaped;
use crate::job::targets;

/// One argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spec {
    /// The host's name for the launcher; empty for this host.
    pub(crate) host: OsString,
    /// The command, or the redirection with its operator.
    pub(crate) text: Vec<u8>,
}

/// The kind of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Run,
    Read,
    Write,
}

impl Spec {
    /// Parses an argument. If the text before the first colon cannot be a host, the whole argument is a command.
    ///
    /// # Errors
    ///
    /// A sentence for the user.
    pub(crate) fn parse(argument: &OsStr) -> Result<Self, String> {
        let bytes = argument.as_bytes();
        let (host, text) = match split(bytes) {
            Some(parts) => parts,
            None if is_other_list(bytes) => {
                let line = "for several hosts, write 'n[1,2]:COMMAND', with numbers or ranges in the brackets";
                return Err(format!("{}: {line}", escaped(argument)));
            }
            None => (Vec::new(), bytes),
        };
        if host.starts_with(b"-") {
            return Err(format!("a host cannot begin with a dash: {}", escaped(argument)));
        }
        let spec = Self { host: OsString::from_vec(host), text: text.to_vec() };
        let operator = spec.text.trim_ascii().iter().take_while(|byte| b"<>|".contains(byte)).count();
        if spec.text.trim_ascii().len() == operator {
            return Err(match operator {
                0 if spec.host.is_empty() => "empty command".to_owned(),
                1.. if spec.host.is_empty() && spec.text.trim_ascii().iter().all(|&byte| byte == b'|') => {
                    let operator = escaped(OsStr::from_bytes(spec.text.trim_ascii()));
                    format!("leave out {operator}: each argument is a stage, and its output goes to the next")
                }
                0 => {
                    let host = spec.label();
                    format!("no command after {host}: in the same argument; write {host}:'COMMAND'")
                }
                _ => format!("no file after the operator in {}", escaped(argument)),
            });
        }
        Ok(spec)
    }

    fn kind(&self) -> Kind {
        match self.text.trim_ascii_start().first() {
            Some(b'<') => Kind::Read,
            Some(b'>') => Kind::Write,
            _ => Kind::Run,
        }
    }

    /// Reports whether the stage is a command.
    pub(crate) fn is_run(&self) -> bool {
        self.kind() == Kind::Run
    }

    /// Reports whether the stage is `< FILE`.
    pub(crate) fn is_read(&self) -> bool {
        self.kind() == Kind::Read
    }

    /// Reports whether the stage is `> FILE` or `>> FILE`.
    pub(crate) fn is_write(&self) -> bool {
        self.kind() == Kind::Write
    }

    /// Reports whether a session, not a command, writes what the stage receives: into files, and with `tee` also on.
    pub(crate) fn is_to_file(&self) -> bool {
        self.is_write() || self.tee().is_some()
    }

    /// Returns the host's name for messages.
    pub(crate) fn label(&self) -> String {
        label(&self.host)
    }

    /// Returns the file of a stage that is exactly `tee [-a] FILE`, if no shell would change the file's name.
    pub(crate) fn tee(&self) -> Option<(Vec<u8>, bool)> {
        let words: Vec<&[u8]> = self.text.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty()).collect();
        let (file, append) = match words[..] {
            [b"tee", file] => (file, false),
            [b"tee", b"-a", file] => (file, true),
            _ => return None,
        };
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_./,+@%-".contains(byte);
        let below_home = file.strip_prefix(b"~/").unwrap_or(file);
        let is_plain = !file.starts_with(b"-") && !below_home.is_empty() && below_home.iter().all(plain);
        is_plain.then(|| (file.to_vec(), append))
    }
}

/// Returns a host's name for messages. `host` is empty for this host.
pub(crate) fn label(host: &OsStr) -> String {
    if host.is_empty() { "localhost".to_owned() } else { escaped(host) }
}

/// Returns the length in bytes of a host's name, or of a list such as `n[1-4]`, at the beginning of `bytes`.
fn name_bytes(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at += match byte {
            b'[' if at > 0 => {
                let inner =
                    bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit() || b",-/".contains(byte)).count();
                if inner == 0 || bytes.get(at + 1 + inner) != Some(&b']') {
                    return at;
                }
                inner + 2
            }
            byte if is_name(byte) => 1,
            _ => return at,
        };
    }
    at
}

fn is_name(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(byte)
}

/// Splits off `HOST:`, `USER@HOST:`, `[ADDRESS]:`, `HOST[1-4]:` or `:` before a command.
fn split(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    if let Some(rest) = bytes.strip_prefix(b":") {
        return Some((Vec::new(), rest));
    }
    let name_end = bytes.iter().position(|byte| !is_name(byte))?;
    let (user, rest) = match bytes[name_end] {
        b'@' if name_end > 0 => bytes.split_at(name_end + 1),
        _ => (&[][..], bytes),
    };
    if let Some(rest) = rest.strip_prefix(b"[") {
        let end = rest.windows(2).position(|two| two == b"]:")?;
        let (address, rest) = (&rest[..end], &rest[end + 2..]);
        let is_address = address.contains(&b':')
            && address.iter().all(|byte| byte.is_ascii_alphanumeric() || b":.%_-".contains(byte));
        // ssh takes an address without the brackets.
        return is_address.then(|| ([user, address].concat(), rest));
    }
    let end = Some(name_bytes(rest)).filter(|&end| end > 0 && rest.get(end) == Some(&b':'))?;
    Some(([user, &rest[..end]].concat(), &rest[end + 1..]))
}

/// Reports whether an argument begins with a list of hosts that [`split`] does not know, such as `n1,n2:`, `{n1,n2}:`
/// or `n[1-2:`. No command has such a name.
fn is_other_list(bytes: &[u8]) -> bool {
    let Some(end) = bytes.iter().position(|&byte| byte == b':') else { return false };
    let list = &bytes[..end];
    let is_list = list.iter().any(|byte| b",{".contains(byte)) || list.iter().skip(1).any(|&byte| byte == b'[');
    is_list && list.iter().all(|byte| is_name(byte) || b"@,{}[]".contains(byte))
}

/// A stage with its place in the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The stage's number, which is that of its argument.
    pub(crate) number: usize,
    pub(crate) action: Action,
    pub(crate) input: Input,
    pub(crate) output: Output,
}

/// Stages that run together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) stages: Vec<Placed>,
    /// From stage to stage. `None` stands for the caller's standard input or output.
    pub(crate) hops: Vec<(Option<usize>, Option<usize>)>,
    /// The input of the last stages if these are the same on several hosts, which are part of no hop: the output of a
    /// stage, or `None` for the caller's standard input.
    pub(crate) feed: Option<Option<usize>>,
}

/// Lays out a pipeline. With `has_input`, the caller has a standard input for the first stage. With `tees`, a stage
/// that is just `tee` may run without a process; not so if the user's own shell decides as which user, and where, it
/// runs. From the stage `branches` on, the stages are the same on several hosts, each of which gets the whole stream.
///
/// `<` begins a part, and `>` ends one. Nothing flows between parts. The caller's own stages at either end use its
/// standard input and output directly.
pub(crate) fn lay_out(specs: &[Spec], has_input: bool, tees: bool, branches: Option<usize>) -> Vec<Part> {
    let mut parts = vec![Part::default()];
    let last = specs.len() - 1;
    let feeder = branches.and_then(|first| first.checked_sub(1));
    let branches = branches.unwrap_or(specs.len());
    for (number, spec) in specs.iter().enumerate().take(branches) {
        let kind = spec.kind();
        let is_first = number == 0;
        let follows = !is_first && kind != Kind::Read && specs[number - 1].kind() != Kind::Write;
        if !is_first && !follows {
            parts.push(Part::default());
        }
        let part = parts.last_mut().expect("there is one");
        let is_here = spec.host.is_empty();
        let input = match kind {
            Kind::Read => Input::Nothing,
            _ if follows => Input::Hop,
            _ if is_first && has_input && is_here => Input::Standard,
            _ if is_first && has_input => Input::Hop,
            _ => Input::Nothing,
        };
        let output = match kind {
            Kind::Write => Output::Nothing,
            _ if number == last && is_here => Output::Standard,
            _ if number == last => Output::Hop,
            _ if specs[number + 1].kind() == Kind::Read => Output::Dropped,
            _ => Output::Hop,
        };
        let text = || spec.text.clone();
        let cat = || Action::Run { command: [b"cat ", &spec.text[..]].concat() };
        let action = match (kind, spec.tee()) {
            // Between two descriptors of the caller itself, no session runs.
            (Kind::Read, _) if output == Output::Standard => cat(),
            (Kind::Write, _) if input == Input::Standard => cat(),
            (Kind::Read, _) => Action::Read { redirection: text() },
            (Kind::Write, _) => Action::Write { redirection: text() },
            // The stream to several hosts must come from a command.
            (Kind::Run, Some((path, append)))
                if tees && feeder != Some(number) && (input, output) == (Input::Hop, Output::Hop) =>
            {
                Action::Tee { path, append }
            }
            (Kind::Run, _) => Action::Run { command: text() },
        };
        if input == Input::Hop {
            part.hops.push(((!is_first).then(|| number - 1), Some(number)));
        }
        if output == Output::Hop && number == last {
            part.hops.push((Some(number), None));
        }
        part.stages.push(Placed { number, action, input, output });
    }
    if branches < specs.len() {
        let part = parts.last_mut().expect("there is one");
        part.feed = Some(branches.checked_sub(1));
        for (number, spec) in specs.iter().enumerate().skip(branches) {
            let (action, output) = match spec.kind() {
                Kind::Write => (Action::Write { redirection: spec.text.clone() }, Output::Nothing),
                _ => (Action::Run { command: spec.text.clone() }, Output::Error),
            };
            part.stages.push(Placed { number, action, input: Input::Hop, output });
        }
    }
    parts
}

/// Replaces a last stage for several hosts by one stage for each host, and returns the number of the first; `None` if
/// the last stage is not for several hosts.
///
/// # Errors
///
/// A sentence for the user that says why the stage cannot be for several hosts.
pub(crate) fn branches(specs: &mut Vec<Spec>, has_input: bool) -> Result<Option<usize>, String> {
    let last = specs.len() - 1;
    if let Some(spec) = specs[..last].iter().find(|spec| targets::is_list(&spec.host)) {
        return Err(format!("{} is a list of hosts; only the last stage can have one", spec.label()));
    }
    if !targets::is_list(&specs[last].host) {
        return Ok(None);
    }
    let spec = specs.pop().expect("the last");
    let mut hosts: Vec<OsString> = Vec::new();
    for host in targets::expand(&spec.host)? {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    specs.extend(hosts.into_iter().map(|host| Spec { host, text: spec.text.clone() }));
    if specs.len() == last + 1 {
        return Ok(None);
    }
    let label = spec.label();
    let feeder = last.checked_sub(1).map(|at| &specs[at]);
    if spec.is_read() {
        return Err(format!("{label}: '<' begins a stream, but several hosts can only end one"));
    }
    if feeder.map_or(!has_input, Spec::is_write) {
        return Err(format!("{label}: no input; put a command before it, or redirect standard input"));
    }
    if let Some(feeder) = feeder
        && specs[last..].iter().any(|branch| branch.host == feeder.host)
    {
        let host = feeder.label();
        return Err(format!("{host} produces the stream and cannot also be one of {label}; use tee there"));
    }
    Ok(Some(last))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(text: &str) -> Spec {
        Spec::parse(OsStr::new(text)).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    #[test]
    fn hosts_and_commands() {
        for (text, host, command) in [
            ("fs1:zfs send x", "fs1", "zfs send x"),
            ("me@fs1.lan:wc -c", "me@fs1.lan", "wc -c"),
            ("[fd00::1]:ls", "fd00::1", "ls"),
            ("me@[fe80::1%e0]:ls", "me@fe80::1%e0", "ls"),
            ("a_b-c.d:x:y", "a_b-c.d", "x:y"),
            ("10.0.0.1:< f", "10.0.0.1", "< f"),
            (":a:b", "", "a:b"),
            ("awk -F: '{print}'", "", "awk -F: '{print}'"),
            ("A=b:c cmd", "", "A=b:c cmd"),
            ("/bin/x:y", "", "/bin/x:y"),
            ("wc", "", "wc"),
            ("[ -e x ]: y", "", "[ -e x ]: y"),
            ("@h:x", "", "@h:x"),
            ("a@b@c:x", "", "a@b@c:x"),
            ("h\u{e9}:x", "", "h\u{e9}:x"),
            ("h :x", "", "h :x"),
            ("> f", "", "> f"),
            ("h[1-2]:x", "h[1-2]", "x"),
        ] {
            assert_eq!(spec(text), Spec { host: host.into(), text: command.into() }, "{text}");
        }
        for text in ["", " ", "h:", "h: ", ":", "h:<", "h:> ", "h:>>", "-x:y"] {
            assert!(Spec::parse(OsStr::new(text)).is_err(), "{text}");
        }
        for text in ["n1,n2:cat", "me@{n1,n2}:cat", "h[1-2:cat", "h[a-b]:cat", "[h1,h2]:cat"] {
            let reason = Spec::parse(OsStr::new(text)).expect_err(text);
            assert!(reason.starts_with(&format!("{text}: for several hosts, write 'n[1,2]:COMMAND'")), "{reason}");
        }
        for text in ["|", " | ", "||"] {
            let begin = format!("leave out {}: each argument is a stage", text.trim());
            assert!(Spec::parse(OsStr::new(text)).is_err_and(|reason| reason.starts_with(&begin)), "{text}");
        }
        // Words of a shell that contain a comma, a brace or a bracket.
        for text in ["{ echo a:b; }", "x=a,b:c cmd", "./a,b:c", "a[1]=x:y", "tr a,b :", "[[ a:b ]]", "test,"] {
            assert_eq!(spec(text).host, "", "{text}");
        }
    }

    #[test]
    fn only_a_plain_tee_is_ours() {
        for (text, file) in [
            ("h:tee f", Some(("f", false))),
            ("h: tee  -a  ~/d/f.x ", Some(("~/d/f.x", true))),
            ("h:tee f g", None),
            ("h:tee >(wc)", None),
            ("h:tee f | wc", None),
            ("h:tee $HOME/f", None),
            ("h:tee 'f'", None),
            ("h:tee -i f", None),
            ("h:tee -a", None),
            ("h:tee ~/", None),
            ("h:tee ~user/f", None),
            ("h:tee", None),
            ("h:tee f;", None),
        ] {
            let file = file.map(|(path, append): (&str, bool)| (path.as_bytes().to_vec(), append));
            assert_eq!(spec(text).tee(), file, "{text}");
        }
    }

    /// Describes each part: its stages with their inputs and outputs, and its hops.
    fn shape(texts: &[&str], has_input: bool) -> Vec<String> {
        let specs: Vec<Spec> = texts.iter().map(|text| spec(text)).collect();
        let stage = |stage: &Placed| {
            let action = match &stage.action {
                Action::Run { command } => String::from_utf8_lossy(command).into_owned(),
                Action::Read { .. } => "read".to_owned(),
                Action::Write { .. } => "write".to_owned(),
                Action::Tee { .. } => "tee".to_owned(),
            };
            format!("{:?}>{action}>{:?}", stage.input, stage.output)
        };
        let hop = |hop: &Option<usize>| hop.map_or("-".to_owned(), |hop| hop.to_string());
        let part = |part: &Part| {
            let stages: Vec<String> = part.stages.iter().map(stage).collect();
            let hops: Vec<String> = part.hops.iter().map(|(from, to)| format!("{}{}", hop(from), hop(to))).collect();
            format!("{} [{}]", stages.join(" "), hops.join(" "))
        };
        lay_out(&specs, has_input, true, None).iter().map(part).collect()
    }

    #[test]
    fn stages_in_their_places() {
        for (texts, has_input, parts) in [
            (&["h:x"][..], true, &["Hop>x>Hop [-0 0-]"][..]),
            (&["h:x"], false, &["Nothing>x>Hop [0-]"]),
            (&["x"], true, &["Standard>x>Standard []"]),
            (&["x", "h:y"], true, &["Standard>x>Hop Hop>y>Hop [01 1-]"]),
            (&["h:x", "y"], false, &["Nothing>x>Hop Hop>y>Standard [01]"]),
            (&["h:< f", "h:> g"], true, &["Nothing>read>Hop Hop>write>Nothing [01]"]),
            (&["h:x", "h:< f", "i:y"], false, &["Nothing>x>Dropped []", "Nothing>read>Hop Hop>y>Hop [12 2-]"]),
            (&["h:x", "h:> f", "i:y"], false, &["Nothing>x>Hop Hop>write>Nothing [01]", "Nothing>y>Hop [2-]"]),
            (&["h:> f"], false, &["Nothing>write>Nothing []"]),
            (&["h:> f"], true, &["Hop>write>Nothing [-0]"]),
            (&["h:> f", "h:>> g"], true, &["Hop>write>Nothing [-0]", "Nothing>write>Nothing []"]),
            (&["h:> f", "h:< f"], true, &["Hop>write>Nothing [-0]", "Nothing>read>Hop [1-]"]),
            (&["h:< f", "h:< g"], true, &["Nothing>read>Dropped []", "Nothing>read>Hop [1-]"]),
            (&[":< f"], true, &["Nothing>cat < f>Standard []"]),
            (&[":> f", "h:x"], true, &["Standard>cat > f>Nothing []", "Nothing>x>Hop [1-]"]),
            (&["h:x", "i:tee f", "j:y"], false, &["Nothing>x>Hop Hop>tee>Hop Hop>y>Hop [01 12 2-]"]),
            (&["h:tee f"], false, &["Nothing>tee f>Hop [0-]"]),
            (&["h:tee f"], true, &["Hop>tee>Hop [-0 0-]"]),
        ] {
            assert_eq!(shape(texts, has_input), parts, "{texts:?} {has_input}");
        }
    }

    proptest! {
        #[test]
        fn every_argument_is_a_stage_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(spec) = Spec::parse(OsStr::from_bytes(&bytes)) {
                prop_assert!(bytes.ends_with(&spec.text));
                prop_assert!(!spec.text.is_empty() && !spec.host.as_bytes().starts_with(b"-"));
            }
        }

        #[test]
        fn hops_join_neighbours_and_stages_agree(kinds in prop::collection::vec(0..6_usize, 1..9), has_input: bool) {
            let texts = ["h:x", "x", "h:< f", "h:> f", ":< f", "h:tee f"];
            let specs: Vec<Spec> = kinds.iter().map(|&kind| spec(texts[kind])).collect();
            let parts = lay_out(&specs, has_input, true, None);
            let stages: Vec<&Placed> = parts.iter().flat_map(|part| &part.stages).collect();
            prop_assert_eq!(stages.len(), specs.len());
            for part in &parts {
                for stage in &part.stages {
                    let into = part.hops.iter().filter(|(_, to)| *to == Some(stage.number)).count();
                    let out = part.hops.iter().filter(|(from, _)| *from == Some(stage.number)).count();
                    prop_assert_eq!(into, usize::from(stage.input == Input::Hop));
                    prop_assert_eq!(out, usize::from(stage.output == Output::Hop));
                }
                for (from, to) in &part.hops {
                    let are_neighbours = match (from, to) {
                        (Some(from), Some(to)) => from + 1 == *to,
                        (None, Some(to)) => *to == 0,
                        (Some(from), None) => *from == specs.len() - 1,
                        (None, None) => false,
                    };
                    prop_assert!(are_neighbours);
                }
            }
        }
    }
}
