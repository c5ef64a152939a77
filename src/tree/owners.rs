//! Owners and groups between hosts, and those in ACLs: records carry names, and each host has its own numbers for them.
//!
//! Root keeps its number. So does an owner that has no name at the sender, or a name that the receiver does not know,
//! and an ACL in which two would become one. Names come from the peer, so only those that count are looked up, and at
//! most [`NAMES_MAX`] of them are remembered.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rd_proto::tree::{AclNames, Extension, Extensions, Metadata, Record, Xattrs};

use crate::fs::accounts;
use crate::fs::metadata::{ACLS, acl_entries, named_by, renumbered};
use crate::options::TreeOptions;

/// Maximum number of different numbers whose names the sender looks up in one copy, and of names that the receiver
/// remembers at a time.
const NAMES_MAX: usize = 1 << 16;

type Names = HashMap<u32, Option<Vec<u8>>>;
type Numbers = HashMap<Vec<u8>, Option<u32>>;

/// Names at the sender, as far as they have been looked up.
#[derive(Default)]
pub(super) struct Named {
    users: Names,
    groups: Names,
}

impl Named {
    /// Adds the names of an entry's owner and group to its extensions.
    pub fn push(&mut self, uid: u32, gid: u32, extensions: &mut Vec<u8>) {
        if let Some(name) = name(&mut self.users, uid, accounts::user_name) {
            Extensions::push(extensions, Extension::User(name), false);
        }
        if let Some(name) = name(&mut self.groups, gid, accounts::group_name) {
            Extensions::push(extensions, Extension::Group(name), false);
        }
    }

    /// Adds the names of the users and groups in an entry's ACLs to its extensions, as far as they fit. If there are
    /// such users and groups but none has a name, the extension says so: another host may have names for the numbers.
    pub fn push_acls(&mut self, xattrs: Xattrs<'_>, extensions: &mut Vec<u8>) {
        let acls = xattrs.iter().filter(|(name, _)| ACLS.contains(name));
        let named = acls.flat_map(|(_, acl)| acl_entries(acl)).filter_map(named_by);
        let named: BTreeSet<_> = named.filter(|&(_, number)| number != 0).collect();
        if named.is_empty() {
            return;
        }
        let mut names = Vec::new();
        for (tag, number) in named {
            let name = match tag {
                AclNames::USER => name(&mut self.users, number, accounts::user_name),
                _ => name(&mut self.groups, number, accounts::group_name),
            };
            if let Some(name) = name {
                AclNames::push(&mut names, tag, number, name);
            }
        }
        Extensions::push(extensions, Extension::AclNames(AclNames::new(&names)), false);
    }
}

fn name(names: &mut Names, number: u32, look_up: fn(u32) -> Option<Vec<u8>>) -> Option<&[u8]> {
    if number == 0 {
        return None;
    }
    if names.len() >= NAMES_MAX && !names.contains_key(&number) {
        return None;
    }
    names.entry(number).or_insert_with(|| look_up(number)).as_deref()
}

/// Numbers at the receiver.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Whether names of owners are looked up here, and names in ACLs.
    by_name: bool,
    acls_by_name: bool,
    /// `--chown`: user and group that all entries get.
    user: Option<u32>,
    group: Option<u32>,
    known: Mutex<(Numbers, Numbers)>,
    /// Whether a name from the sender is not known here.
    has_unknown: AtomicBool,
    /// Whether a user or group in an ACL has kept the number that it has at the sender.
    has_unknown_in_acl: AtomicBool,
}

impl Owners {
    /// Creates the numbers that the options ask for.
    ///
    /// # Errors
    ///
    /// Fails with what is wrong with `--chown`.
    pub fn new(options: &TreeOptions) -> Result<Self, &'static str> {
        let by_name = options.owner && !options.numeric_ids;
        let acls_by_name = options.acls() && !options.numeric_ids;
        let mut owners = Self { by_name, acls_by_name, ..Self::default() };
        let Some(chown) = &options.chown else { return Ok(owners) };
        let (user, group) = chown.split_once(':').unwrap_or((chown, ""));
        owners.user = number(user, accounts::user_number).ok_or("--chown: this host has no such user")?;
        owners.group = number(group, accounts::group_number).ok_or("--chown: this host has no such group")?;
        let own = rustix::process::geteuid();
        match owners {
            _ if own.is_root() => Ok(owners),
            Self { user: Some(user), .. } if user != own.as_raw() => {
                Err("--chown: only root can give files to another user; log in as root there, or omit the user")
            }
            Self { group: Some(group), .. } if !accounts::is_own_group(group) => Err(
                "--chown: only root can give files to a group that this user is not in; use one of the user's groups (id -Gn)",
            ),
            _ => Ok(owners),
        }
    }

    /// Replaces the owners in a record from the sender, and the users and groups in its ACLs, by those that its entry
    /// gets here. `buffer` keeps ACLs that have changed.
    pub fn localize<'a>(&self, record: &mut Record<'a>, buffer: &'a mut Vec<u8>) {
        let Some(metadata) = record.metadata_mut() else { return };
        let mut acl_names = None;
        let has_names = self.by_name || self.acls_by_name;
        for extension in metadata.extensions.iter().take_while(|_| has_names) {
            let mut known = crate::locked(&self.known);
            let is_known = match extension {
                Extension::User(name) if self.by_name && metadata.uid != 0 => {
                    own(&mut known.0, name, accounts::user_number, &mut metadata.uid)
                }
                Extension::Group(name) if self.by_name && metadata.gid != 0 => {
                    own(&mut known.1, name, accounts::group_number, &mut metadata.gid)
                }
                Extension::AclNames(names) if self.acls_by_name => {
                    acl_names = Some(names);
                    true
                }
                _ => true,
            };
            if !is_known {
                self.has_unknown.store(true, Relaxed);
            }
        }
        if let Some(names) = acl_names
            && !self.localize_acls(metadata, names, buffer)
        {
            self.has_unknown_in_acl.store(true, Relaxed);
        }
        metadata.uid = self.user.unwrap_or(metadata.uid);
        metadata.gid = self.group.unwrap_or(metadata.gid);
    }

    /// Gives the users and groups in ACLs the numbers of their names. Returns whether each has got one.
    fn localize_acls<'a>(&self, metadata: &mut Metadata<'a>, names: AclNames<'a>, buffer: &'a mut Vec<u8>) -> bool {
        let mut known = crate::locked(&self.known);
        let mut numbers = HashMap::new();
        // No others are part of a proof of the tree.
        let acls = metadata.xattrs.iter().filter(|(name, _)| ACLS.contains(name));
        let used: BTreeSet<_> = acls.flat_map(|(_, acl)| acl_entries(acl)).filter_map(named_by).collect();
        for (tag, there, name) in names.iter().filter(|&(tag, there, _)| there != 0 && used.contains(&(tag, there))) {
            let mut here = there;
            let is_known = match tag {
                AclNames::USER => own(&mut known.0, name, accounts::user_number, &mut here),
                _ => own(&mut known.1, name, accounts::group_number, &mut here),
            };
            if is_known {
                numbers.insert((tag, there), here);
            }
        }
        drop(known);
        let mut have_all = true;
        for (name, value) in metadata.xattrs.iter() {
            let acl = if ACLS.contains(&name) { value } else { b"" };
            let here = renumbered(acl, |named| numbers.get(&named).copied().unwrap_or(named.1));
            let mut named = acl_entries(acl).iter().filter_map(named_by);
            have_all &= named.all(|named| here.is_some() && (named.1 == 0 || numbers.contains_key(&named)));
            Xattrs::push(buffer, name, here.as_deref().unwrap_or(value));
        }
        metadata.xattrs = Xattrs::new(buffer);
        have_all
    }

    /// Whether an entry was to have an owner or group whose name this host does not know, or an ACL with one that is
    /// not known by its name. A copy made from here then has another name, or none. Only root sets owners.
    pub fn lacks_names(&self, is_root: bool) -> bool {
        let owners_count = is_root && self.user.is_none() && self.group.is_none();
        self.has_unknown_in_acl.load(Relaxed) || owners_count && self.has_unknown.load(Relaxed)
    }
}

/// Replaces the number of an owner by that of its name here. Returns whether the name is known.
fn own(numbers: &mut Numbers, name: &[u8], look_up: fn(&[u8]) -> Option<u32>, number: &mut u32) -> bool {
    // However many names the sender has sent, it must not decide which of them have a number here.
    if numbers.len() >= NAMES_MAX && !numbers.contains_key(name) {
        numbers.clear();
    }
    let found = match numbers.get(name) {
        Some(found) => *found,
        None => *numbers.entry(name.to_vec()).or_insert_with(|| look_up(name)),
    };
    *number = found.unwrap_or(*number);
    found.is_some()
}

/// Returns the number of a name or number; `Some(None)` if the text is empty.
fn number(text: &str, look_up: fn(&[u8]) -> Option<u32>) -> Option<Option<u32>> {
    match text {
        "" => Some(None),
        _ => look_up(text.as_bytes()).or_else(|| text.parse().ok().filter(|&number| number != u32::MAX)).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::metadata::ACCESS_ACL;

    fn localized(owners: &Owners, uid: u32, user: &[u8]) -> u32 {
        let (mut extensions, mut buffer) = (Vec::new(), Vec::new());
        assert!(Extensions::push(&mut extensions, Extension::User(user), false));
        let metadata = Metadata { uid, extensions: Extensions::new(&extensions), ..Metadata::default() };
        let mut record = Record::Directory { name: b"d", metadata };
        owners.localize(&mut record, &mut buffer);
        record.metadata().expect("it has").uid
    }

    #[test]
    fn names_have_the_numbers_of_this_host() {
        let owners = Owners { by_name: true, ..Owners::default() };
        let daemon = accounts::user_number(b"daemon").expect("each system has one");
        assert_eq!(localized(&owners, 4711, b"daemon"), daemon);
        assert_eq!(localized(&owners, 0, b"daemon"), 0, "root is root");
        assert_eq!(localized(&owners, 0, b"nobody has this name"), 0);
        assert!(!owners.lacks_names(true));
        assert_eq!(localized(&owners, 4711, b"nobody has this name"), 4711);
        assert!(owners.lacks_names(true) && !owners.lacks_names(false));
        let given = Owners { by_name: true, group: Some(7), ..Owners::default() };
        assert_eq!(localized(&given, 4711, b"nobody has this name"), 4711);
        assert!(!given.lacks_names(true), "with --chown, owners are not compared");
        let numeric = TreeOptions { numeric_ids: true, ..TreeOptions::default() };
        assert_eq!(localized(&Owners::new(&numeric).expect("owners"), 4711, b"daemon"), 4711);
    }

    /// Returns an access ACL that gives rights to these users and groups.
    fn acl(users: &[u32], groups: &[u32]) -> Vec<u8> {
        let entry = |tag: u8, id: u32| [[tag, 0, 4, 0], id.to_le_bytes()].concat();
        let all = |tag, ids: &[u32]| ids.iter().flat_map(|&id| entry(tag, id)).collect();
        let [owner, group, mask, others] = [1, 4, 0x10, 0x20].map(|tag| entry(tag, u32::MAX));
        [vec![2, 0, 0, 0], owner, all(2, users), group, all(8, groups), mask, others].concat()
    }

    fn attributes(acl: &[u8]) -> Vec<u8> {
        let mut xattrs = Vec::new();
        assert!([ACCESS_ACL, b"user.other"].iter().all(|name| Xattrs::push(&mut xattrs, name, acl)));
        xattrs
    }

    /// Checks what becomes of an ACL, and that no other attribute changes. Returns whether a number has no name here.
    fn becomes(options: &TreeOptions, there: &[u8], names: &[(u8, u32, &[u8])], expected: &[u8]) -> bool {
        let (mut pushed, mut extensions, owners) = (Vec::new(), Vec::new(), Owners::new(options).expect("no --chown"));
        assert!(names.iter().all(|&(tag, number, name)| AclNames::push(&mut pushed, tag, number, name)));
        assert!(Extensions::push(&mut extensions, Extension::AclNames(AclNames::new(&pushed)), false));
        let (xattrs, mut buffer) = (attributes(there), Vec::new());
        let (xattrs, extensions) = (Xattrs::new(&xattrs), Extensions::new(&extensions));
        let metadata = Metadata { xattrs, extensions, ..Metadata::default() };
        let mut record = Record::Directory { name: b"d", metadata };
        owners.localize(&mut record, &mut buffer);
        let all: Vec<_> = record.metadata().expect("it has").xattrs.iter().collect();
        assert_eq!(all, [(ACCESS_ACL, expected), (b"user.other", there)]);
        owners.lacks_names(false)
    }

    #[test]
    fn users_and_groups_in_acls_have_the_numbers_of_this_host() {
        let [user, group] = [accounts::user_number(b"daemon"), accounts::group_number(b"daemon")];
        let (user, group) = (user.expect("each system has one"), group.expect("each system has one"));
        let daemon = |number| [(AclNames::USER, number, &b"daemon"[..]), (AclNames::GROUP, number, &b"daemon"[..])];
        let all = TreeOptions::default();
        let there = acl(&[0, 4711], &[4711]);
        assert!(!becomes(&all, &there, &daemon(4711), &acl(&[0, user], &[group])));
        assert!(!becomes(&all, &acl(&[], &[]), &[], &acl(&[], &[])), "it names nobody");
        // By numbers, as the caller has asked, whatever the sender says.
        let numeric = TreeOptions { numeric_ids: true, ..TreeOptions::default() };
        assert!(!becomes(&numeric, &there, &daemon(4711), &there));
        let without_owner = TreeOptions { owner: false, ..TreeOptions::default() };
        assert!(!becomes(&without_owner, &there, &daemon(4711), &acl(&[0, user], &[group])));
        // Those that have no name there, or none that is known here, keep their numbers.
        assert!(becomes(&all, &acl(&[4711, 4712], &[]), &daemon(4711)[..1], &acl(&[user, 4712], &[])));
        for unknown in [&b"nobody has this name"[..], b"\xff"] {
            assert!(becomes(&all, &there, &[(AclNames::USER, 4711, unknown)], &there));
        }
        assert!(!becomes(&all, &acl(&[0], &[0]), &daemon(0), &acl(&[0], &[0])), "root is root");
        // A second entry for daemon would have no effect, or another one.
        let twice = acl(&[user, 4711], &[4711]);
        assert!(becomes(&all, &twice, &daemon(4711), &twice));
        for malformed in [&there[..9], &[&[1][..], &there[1..]].concat(), b""] {
            assert!(!becomes(&all, malformed, &daemon(4711), malformed));
        }
    }

    #[test]
    fn names_that_no_acl_uses_are_not_looked_up() {
        let owners = Owners::new(&TreeOptions::default()).expect("no --chown");
        let xattrs = attributes(&acl(&[4711], &[]));
        let (mut pushed, mut extensions, mut buffer) = (Vec::new(), Vec::new(), Vec::new());
        let (user, group) = (AclNames::USER, AclNames::GROUP);
        for (tag, number) in [(user, 0), (user, 4711), (user, 4712), (group, 4711)] {
            assert!(AclNames::push(&mut pushed, tag, number, format!("of {tag} {number}").as_bytes()));
        }
        assert!(Extensions::push(&mut extensions, Extension::AclNames(AclNames::new(&pushed)), false));
        let (xattrs, extensions) = (Xattrs::new(&xattrs), Extensions::new(&extensions));
        let metadata = Metadata { xattrs, extensions, ..Metadata::default() };
        owners.localize(&mut Record::Directory { name: b"d", metadata }, &mut buffer);
        let known = owners.known.lock().expect("ours");
        assert!(known.0.keys().eq([&b"of 2 4711"[..]]) && known.1.is_empty(), "{known:?}");
    }

    #[test]
    fn records_have_the_names_in_acls() {
        let sent = |acl: &[u8]| {
            let (mut extensions, xattrs) = (Vec::new(), attributes(acl));
            Named::default().push_acls(Xattrs::new(&xattrs), &mut extensions);
            let names = Extensions::new(&extensions).iter().map(|extension| match extension {
                Extension::AclNames(names) => names.iter().map(|(tag, id, name)| (tag, id, name.to_vec())).collect(),
                other => panic!("{other:?}"),
            });
            names.collect::<Vec<Vec<_>>>()
        };
        let user = accounts::user_number(b"daemon").expect("each system has one");
        let named = (AclNames::USER, user, b"daemon".to_vec());
        assert_eq!(sent(&acl(&[0, user, u32::MAX - 7], &[0])), [[named]]);
        let unnamed = sent(&acl(&[u32::MAX - 7], &[]));
        assert!(unnamed.len() == 1 && unnamed[0].is_empty(), "{unnamed:?}");
        for names_nobody in [acl(&[], &[]), acl(&[0], &[0]), acl(&[user], &[])[..15].to_vec()] {
            assert!(sent(&names_nobody).is_empty());
        }
    }

    #[test]
    fn records_have_the_names_of_all_but_root() {
        let daemon = accounts::user_number(b"daemon").expect("each system has one");
        let mut extensions = Vec::new();
        Named::default().push(daemon, 0, &mut extensions);
        assert!(Extensions::new(&extensions).iter().eq([Extension::User(b"daemon")]));
    }

    #[test]
    fn no_more_names_are_remembered_than_there_is_room_for() {
        let owners = Owners { by_name: true, ..Owners::default() };
        {
            let mut known = owners.known.lock().expect("ours");
            known.0.extend((0..NAMES_MAX).map(|number| (number.to_string().into_bytes(), None)));
        }
        let daemon = accounts::user_number(b"daemon").expect("each system has one");
        assert_eq!(localized(&owners, 4711, b"daemon"), daemon, "the sender does not decide who is known");
        assert!(owners.known.lock().expect("ours").0.len() <= NAMES_MAX);
        let mut named = Named::default();
        named.users.extend((1..=NAMES_MAX as u32).map(|number| (number, None)));
        let mut extensions = Vec::new();
        named.push(u32::MAX - 1, 0, &mut extensions);
        assert!(extensions.is_empty() && named.users.len() == NAMES_MAX);
    }
}
