//! Owners and groups between hosts: records carry names, and each host has its own numbers for them.
//!
//! Root keeps its number. So does an owner that has no name at the sender, or a name that the receiver does not know.
//! Names come from the peer, so at most [`NAMES_MAX`] different names are looked up, each once.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rd_proto::tree::{Extension, Extensions, Record};

use crate::fs::accounts;
use crate::options::TreeOptions;

/// Maximum number of different names, or numbers, that are looked up in one copy. Later ones keep their numbers.
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
    /// Whether names are looked up here.
    by_name: bool,
    /// `--chown`: user and group that all entries get.
    user: Option<u32>,
    group: Option<u32>,
    known: Mutex<(Numbers, Numbers)>,
    /// Whether a name from the sender is not known here.
    has_unknown: AtomicBool,
}

impl Owners {
    /// Creates the numbers that the options ask for.
    ///
    /// # Errors
    ///
    /// Fails with what is wrong with `--chown`.
    pub fn new(options: &TreeOptions) -> Result<Self, &'static str> {
        let by_name = options.owner && !options.numeric_ids;
        let mut owners = Self { by_name, ..Self::default() };
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

    /// Replaces the owners in a record from the sender by those that its entry gets here.
    pub fn localize(&self, record: &mut Record<'_>) {
        let Some(metadata) = record.metadata_mut() else { return };
        if self.by_name {
            for extension in metadata.extensions.iter() {
                let mut known = self.known.lock().expect("no panics under it");
                let is_known = match extension {
                    Extension::User(name) if metadata.uid != 0 => {
                        own(&mut known.0, name, accounts::user_number, &mut metadata.uid)
                    }
                    Extension::Group(name) if metadata.gid != 0 => {
                        own(&mut known.1, name, accounts::group_number, &mut metadata.gid)
                    }
                    _ => true,
                };
                if !is_known {
                    self.has_unknown.store(true, Relaxed);
                }
            }
        }
        metadata.uid = self.user.unwrap_or(metadata.uid);
        metadata.gid = self.group.unwrap_or(metadata.gid);
    }

    /// Whether an entry was to have an owner or group whose name this host does not know. A copy made from here then
    /// has another name, or none.
    pub fn lacks_names(&self) -> bool {
        self.has_unknown.load(Relaxed) && self.user.is_none() && self.group.is_none()
    }
}

/// Replaces the number of an owner by that of its name here. Returns whether the name is known.
fn own(numbers: &mut Numbers, name: &[u8], look_up: fn(&[u8]) -> Option<u32>, number: &mut u32) -> bool {
    let found = match numbers.get(name) {
        Some(found) => *found,
        None if numbers.len() >= NAMES_MAX => None,
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
    use rd_proto::tree::Metadata;

    use super::*;

    fn localized(owners: &Owners, uid: u32, user: &[u8]) -> u32 {
        let mut extensions = Vec::new();
        assert!(Extensions::push(&mut extensions, Extension::User(user), false));
        let metadata = Metadata { uid, extensions: Extensions::new(&extensions), ..Metadata::default() };
        let mut record = Record::Directory { name: b"d", metadata };
        owners.localize(&mut record);
        record.metadata().expect("it has").uid
    }

    #[test]
    fn names_have_the_numbers_of_this_host() {
        let owners = Owners { by_name: true, ..Owners::default() };
        let daemon = accounts::user_number(b"daemon").expect("each system has one");
        assert_eq!(localized(&owners, 4711, b"daemon"), daemon);
        assert_eq!(localized(&owners, 0, b"daemon"), 0, "root is root");
        assert_eq!(localized(&owners, 0, b"nobody has this name"), 0);
        assert!(!owners.lacks_names());
        assert_eq!(localized(&owners, 4711, b"nobody has this name"), 4711);
        assert!(owners.lacks_names());
        let given = Owners { by_name: true, group: Some(7), ..Owners::default() };
        assert_eq!(localized(&given, 4711, b"nobody has this name"), 4711);
        assert!(!given.lacks_names(), "with --chown, owners are not compared");
        let numeric = TreeOptions { numeric_ids: true, ..TreeOptions::default() };
        assert_eq!(localized(&Owners::new(&numeric).expect("owners"), 4711, b"daemon"), 4711);
    }

    #[test]
    fn records_have_the_names_of_all_but_root() {
        let daemon = accounts::user_number(b"daemon").expect("each system has one");
        let mut extensions = Vec::new();
        Named::default().push(daemon, 0, &mut extensions);
        assert!(Extensions::new(&extensions).iter().eq([Extension::User(b"daemon")]));
    }

    #[test]
    fn no_more_names_are_looked_up_than_there_is_room_for() {
        let owners = Owners { by_name: true, ..Owners::default() };
        {
            let mut known = owners.known.lock().expect("ours");
            known.0.extend((0..NAMES_MAX).map(|number| (number.to_string().into_bytes(), None)));
        }
        assert_eq!(localized(&owners, 4711, b"daemon"), 4711);
        assert_eq!(owners.known.lock().expect("ours").0.len(), NAMES_MAX);
        let mut named = Named::default();
        named.users.extend((1..=NAMES_MAX as u32).map(|number| (number, None)));
        let mut extensions = Vec::new();
        named.push(u32::MAX - 1, 0, &mut extensions);
        assert!(extensions.is_empty() && named.users.len() == NAMES_MAX);
    }
}
