//! Extensions: metadata of an entry that not every version knows, as a list with ascending types.
//!
//! A new kind needs a variant of [`Extension`], its number in [`Extension::encode`] and [`Extension::decode`], a sample
//! in `samples`, and its row in `docs/PROTOCOL.md`. A peer that does not know the kind skips it. If the extension was
//! sent as critical, a receiver that does not know it does not make the entry.

use super::{NAME_BYTES_MAX, TreeError};
use crate::reader::Reader;

/// Maximum number of extensions of one entry.
pub const EXTENSIONS_MAX: usize = 16;

/// Maximum length of all extensions of one entry together, encoded, in bytes.
pub const EXTENSIONS_BYTES_MAX: usize = 2048;

/// Flag of a critical extension: a receiver that does not know the type must not make the entry.
const CRITICAL: u8 = 1;

/// Length of an extension's head, in bytes: type, flags and length of the value.
const HEAD_BYTES: usize = 5;

/// Maximum length in bytes of the names that [`AclNames::push`] takes. All other extensions then have room.
const ACL_NAMES_BYTES_MAX: usize = 1400;

/// An extension that this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension<'a> {
    /// Name of the owner at the sender.
    User(&'a [u8]),
    /// Name of the group at the sender.
    Group(&'a [u8]),
    /// BLAKE3 of all the contents.
    Digest(&'a [u8; 32]),
    /// Flags of the inode, as set by `chattr` (`FS_IOC_GETFLAGS`).
    Flags(u32),
    /// Marks a directory that only leads to what is listed (`--no-implied-dirs`). If it is missing it is made, and an
    /// existing one is not changed.
    Implied,
    /// The inode at the sender, which will remove the entry (`--remove-source-files`), or whose contents may be written
    /// over it (`--in-place`). If the receiver finds this very inode at the destination, the entry is not made.
    Inode {
        /// Number of the inode; if the entry is not to be removed, XOR the device's number rotated left by 32 bits.
        number: u64,
        /// Time of the inode's last change (ctime), in seconds and nanoseconds.
        changed: (i64, u32),
    },
    /// Names at the sender of the users and groups that the entry's ACLs name.
    AclNames(AclNames<'a>),
    /// Marks a directory that the user has named as a source. Where nothing comes of a source, what the receiver has of
    /// it is not deleted, because the source's disk may not be mounted.
    Source {
        /// Whether several sources are merged in the directory, and one of them is empty.
        lacks_one: bool,
    },
}

impl<'a> Extension<'a> {
    fn encode(&self, value: &mut Vec<u8>) -> u16 {
        match *self {
            Self::User(name) => {
                value.extend(name);
                1
            }
            Self::Group(name) => {
                value.extend(name);
                2
            }
            Self::Digest(digest) => {
                value.extend(digest);
                3
            }
            Self::Flags(flags) => {
                value.extend(flags.to_le_bytes());
                4
            }
            Self::Implied => 5,
            Self::Inode { number, changed: (seconds, nanoseconds) } => {
                value.extend(number.to_le_bytes());
                value.extend(seconds.to_le_bytes());
                value.extend(nanoseconds.to_le_bytes());
                6
            }
            Self::AclNames(names) => {
                value.extend(names.0);
                7
            }
            Self::Source { lacks_one } => {
                value.push(u8::from(lacks_one));
                8
            }
        }
    }

    /// Decodes a value. `None` if this version does not know the kind.
    fn decode(kind: u16, value: &'a [u8]) -> Result<Option<Self>, TreeError> {
        Ok(Some(match kind {
            1 => Self::User(short_name(value)?),
            2 => Self::Group(short_name(value)?),
            3 => Self::Digest(value.try_into().map_err(|_| TreeError::Length)?),
            4 => Self::Flags(u32::from_le_bytes(value.try_into().map_err(|_| TreeError::Length)?)),
            5 if value.is_empty() => Self::Implied,
            5 => return Err(TreeError::Length),
            6 => {
                let mut reader = Reader { rest: value };
                let (number, seconds, nanoseconds) = (reader.u64()?, reader.u64()? as i64, reader.u32()?);
                if !reader.rest.is_empty() {
                    return Err(TreeError::Length);
                }
                Self::Inode { number, changed: (seconds, nanoseconds) }
            }
            7 => Self::AclNames(AclNames::decode(value)?),
            8 => match value {
                [lacks_one @ (0 | 1)] => Self::Source { lacks_one: *lacks_one == 1 },
                [_] => return Err(TreeError::Value),
                _ => return Err(TreeError::Length),
            },
            _ => return Ok(None),
        }))
    }
}

/// Checks the name of a user, a group or an attribute.
pub(super) fn short_name(name: &[u8]) -> Result<&[u8], TreeError> {
    let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(&0);
    if is_name { Ok(name) } else { Err(TreeError::Name) }
}

/// Names of users and groups, encoded as a sequence of tag (u8), number (u32), name length (u8) and name. The pairs of
/// tag and number ascend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AclNames<'a>(&'a [u8]);

impl<'a> AclNames<'a> {
    /// Tag of a user, as in an ACL.
    pub const USER: u8 = 2;

    /// Tag of a group, as in an ACL.
    pub const GROUP: u8 = 8;

    /// Appends the name of a user or group to a buffer for [`AclNames::new`], in ascending order of tags and numbers.
    /// Returns whether the name was valid and fits.
    pub fn push(buffer: &mut Vec<u8>, tag: u8, number: u32, name: &[u8]) -> bool {
        let before = buffer.len();
        buffer.push(tag);
        buffer.extend(number.to_le_bytes());
        buffer.push(name.len() as u8);
        buffer.extend(name);
        let is_valid = short_name(name).is_ok() && AclNames::decode(buffer).is_ok();
        if !is_valid || buffer.len() > ACL_NAMES_BYTES_MAX {
            buffer.truncate(before);
        }
        buffer.len() > before
    }

    /// Wraps a buffer that [`AclNames::push`] has filled.
    pub const fn new(buffer: &'a [u8]) -> Self {
        Self(buffer)
    }

    /// Iterates over tags, numbers and names.
    pub fn iter(self) -> impl Iterator<Item = (u8, u32, &'a [u8])> {
        let mut reader = Reader { rest: self.0 };
        std::iter::from_fn(move || if reader.rest.is_empty() { None } else { Self::next(&mut reader).ok() })
    }

    fn next(reader: &mut Reader<'a>) -> Result<(u8, u32, &'a [u8]), TreeError> {
        let (tag, number, length) = (reader.u8()?, reader.u32()?, usize::from(reader.u8()?));
        Ok((tag, number, short_name(reader.bytes(length)?)?))
    }

    fn decode(value: &'a [u8]) -> Result<Self, TreeError> {
        let (mut reader, mut last) = (Reader { rest: value }, None);
        while !reader.rest.is_empty() {
            let (tag, number, _) = Self::next(&mut reader)?;
            if ![Self::USER, Self::GROUP].contains(&tag) || last >= Some((tag, number)) {
                return Err(TreeError::Value);
            }
            last = Some((tag, number));
        }
        Ok(Self(value))
    }
}

/// Extensions of one entry, encoded as a sequence of type (u16), flags (u8), value length (u16) and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions<'a>(&'a [u8]);

impl Extensions<'static> {
    /// [`Extension::Implied`] as the only extension, and critical.
    pub const IMPLIED: Self = Self(&[5, 0, CRITICAL, 0, 0]);
}

impl<'a> Extensions<'a> {
    /// Appends an extension to a buffer for [`Extensions::new`], in ascending order of types. With `is_critical`, a
    /// receiver that does not know the type does not make the entry. Returns whether the extension was valid and fits.
    pub fn push(buffer: &mut Vec<u8>, extension: Extension<'_>, is_critical: bool) -> bool {
        let mut value = Vec::new();
        let kind = extension.encode(&mut value);
        let pushed = Extensions(buffer);
        let (last, count) = (pushed.raw().last().map(|raw| raw.kind), pushed.raw().count());
        if last.is_some_and(|last| last >= kind)
            || count == EXTENSIONS_MAX
            || buffer.len() + HEAD_BYTES + value.len() > EXTENSIONS_BYTES_MAX
            || Extension::decode(kind, &value).is_err()
        {
            return false;
        }
        buffer.extend(kind.to_le_bytes());
        buffer.push(if is_critical { CRITICAL } else { 0 });
        buffer.extend((value.len() as u16).to_le_bytes());
        buffer.extend(value);
        true
    }

    /// Wraps a buffer that [`Extensions::push`] has filled.
    pub const fn new(buffer: &'a [u8]) -> Self {
        Self(buffer)
    }

    /// Returns the same extensions and, if it fits, a further one of a higher type, which is critical. `buffer`, which
    /// is empty, takes all of them.
    pub fn with<'b>(self, extension: Extension<'_>, buffer: &'b mut Vec<u8>) -> Extensions<'b> {
        buffer.extend(self.0);
        Extensions::push(buffer, extension, true);
        Extensions(buffer)
    }

    /// Iterates over the extensions that this version knows.
    pub fn iter(self) -> impl Iterator<Item = Extension<'a>> {
        self.raw().filter_map(|raw| Extension::decode(raw.kind, raw.value).ok().flatten())
    }

    /// Returns the type of the first critical extension that this version does not know. If there is one, the entry
    /// must not be made.
    pub fn unknown_critical(self) -> Option<u16> {
        self.raw().find(|raw| raw.is_critical && raw.is_unknown()).map(|raw| raw.kind)
    }

    fn raw(self) -> impl Iterator<Item = Raw<'a>> {
        let mut reader = Reader { rest: self.0 };
        std::iter::from_fn(move || if reader.rest.is_empty() { None } else { Raw::decode(&mut reader).ok() })
    }

    /// Returns the number of extensions, and their encoding.
    pub(super) fn encoded(self) -> (u8, &'a [u8]) {
        (self.raw().count() as u8, self.0)
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, TreeError> {
        let count = usize::from(reader.u8()?);
        if count > EXTENSIONS_MAX {
            return Err(TreeError::Length);
        }
        let all = reader.rest;
        let mut last = None;
        for _ in 0..count {
            let raw = Raw::decode(reader)?;
            if last.is_some_and(|last| last >= raw.kind) {
                return Err(TreeError::Extension);
            }
            last = Some(raw.kind);
            Extension::decode(raw.kind, raw.value)?;
        }
        let bytes = &all[..all.len() - reader.rest.len()];
        if bytes.len() > EXTENSIONS_BYTES_MAX { Err(TreeError::Length) } else { Ok(Self(bytes)) }
    }
}

struct Raw<'a> {
    kind: u16,
    is_critical: bool,
    value: &'a [u8],
}

impl<'a> Raw<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, TreeError> {
        let (kind, flags, length) = (reader.u16()?, reader.u8()?, usize::from(reader.u16()?));
        if flags & !CRITICAL != 0 {
            return Err(TreeError::Value);
        }
        if length > EXTENSIONS_BYTES_MAX {
            return Err(TreeError::Length);
        }
        Ok(Self { kind, is_critical: flags == CRITICAL, value: reader.bytes(length)? })
    }

    fn is_unknown(&self) -> bool {
        matches!(Extension::decode(self.kind, self.value), Ok(None))
    }
}

/// One extension of each kind, in the order of sending, whether it is sent as critical, and its bytes as
/// `docs/PROTOCOL.md` shows them.
#[cfg(test)]
fn samples() -> Vec<(Extension<'static>, bool, &'static str)> {
    vec![
        (Extension::User(b"alice"), false, "0100 00 0500 616c696365"),
        (Extension::Group(b"staff"), false, "0200 00 0500 7374616666"),
        (
            Extension::Digest(&[0xd1; 32]),
            false,
            "0300 00 2000 d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1",
        ),
        (Extension::Flags(0x80), false, "0400 00 0400 80000000"),
        (Extension::Implied, true, "0500 01 0000"),
        (
            Extension::Inode { number: 131, changed: (1_700_000_000, 5) },
            true,
            "0600 01 1400 8300000000000000 00f1536500000000 05000000",
        ),
        (
            Extension::AclNames(AclNames(b"\x02\xea\x03\0\0\x03bob\x08\x64\0\0\0\x05staff")),
            false,
            "0700 00 1400 02 ea030000 03 626f62 08 64000000 05 7374616666",
        ),
        (Extension::Source { lacks_one: true }, true, "0800 01 0100 01"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Metadata, Record};

    /// Decodes a record with these bytes as its extension area. Returns its unknown critical type, if any.
    fn with(area: &[u8]) -> Result<Option<u16>, TreeError> {
        let record = Record::Directory { name: b"d", metadata: Metadata::default() };
        let mut bytes = vec![0; record.encoded_bytes()];
        record.encode(&mut bytes).expect("room");
        assert_eq!(bytes.pop(), Some(0), "none");
        bytes.extend(area);
        let mut rest = bytes.as_slice();
        match Record::decode(&mut rest)? {
            Some(Record::Directory { metadata, .. }) if rest.is_empty() => Ok(metadata.extensions.unknown_critical()),
            other => panic!("{other:?} {rest:?}"),
        }
    }

    fn entry(kind: u16, flags: u8, value: &[u8]) -> Vec<u8> {
        [&kind.to_le_bytes()[..], &[flags], &(value.len() as u16).to_le_bytes(), value].concat()
    }

    fn area(entries: &[Vec<u8>]) -> Vec<u8> {
        [&[entries.len() as u8][..], &entries.concat()].concat()
    }

    /// `docs/PROTOCOL.md` shows these bytes.
    #[test]
    fn extensions_have_these_bytes_and_come_back() {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/PROTOCOL.md");
        let document = std::fs::read_to_string(document).expect("the document");
        let mut buffer = Vec::new();
        for (extension, is_critical, golden) in samples() {
            let before = buffer.len();
            assert!(Extensions::push(&mut buffer, extension, is_critical));
            let made: String = buffer[before..].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(made, golden.replace(' ', ""), "{extension:?}");
            assert!(document.contains(golden), "docs/PROTOCOL.md lacks {golden}");
            assert!(!Extensions::push(&mut buffer, extension, is_critical), "twice");
        }
        let (samples, extensions) = (samples().into_iter().map(|(extension, ..)| extension), Extensions::new(&buffer));
        assert!(extensions.iter().eq(samples.clone()));
        assert_eq!(with(&[&[samples.len() as u8][..], &buffer].concat()), Ok(None));
    }

    #[test]
    fn what_only_leads_to_others_says_so() {
        let mut buffer = Vec::new();
        assert!(Extensions::push(&mut buffer, Extension::Implied, true));
        assert_eq!(Extensions::new(&buffer), Extensions::IMPLIED);
    }

    #[test]
    fn a_further_one_comes_last() {
        let (mut buffer, mut all) = (Vec::new(), Vec::new());
        let [user, source] = [Extension::User(b"alice"), Extension::Source { lacks_one: false }];
        assert!(Extensions::push(&mut buffer, user, false));
        assert!(Extensions::new(&buffer).with(source, &mut all).iter().eq([user, source]));
        assert_eq!(Extensions::default().with(source, &mut Vec::new()), Extensions(&[8, 0, CRITICAL, 1, 0, 0]));
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        let mut buffer = Vec::new();
        for name in [&b""[..], b"a\0", &[b'a'; 256]] {
            assert!(!Extensions::push(&mut buffer, Extension::User(name), true), "{name:?}");
        }
        assert!(buffer.is_empty());
    }

    /// Whether names are left out must not depend on other extensions, because hosts compare what they have sent.
    #[test]
    fn names_in_acls_leave_room_for_all_others() {
        let longest = [b'a'; NAME_BYTES_MAX];
        let mut names = Vec::new();
        for (tag, number, name) in [
            (4, 1, &b"no tag of these"[..]),
            (AclNames::USER, 1, b""),
            (AclNames::USER, 1, b"a\0b"),
            (AclNames::USER, 1, &[b'a'; NAME_BYTES_MAX + 1]),
        ] {
            assert!(!AclNames::push(&mut names, tag, number, name), "{number}");
        }
        assert!(names.is_empty());
        let users = (1..1000).filter(|&number| AclNames::push(&mut names, AclNames::USER, number, &longest)).count();
        assert!(users == 5 && AclNames::push(&mut names, AclNames::USER, 1000, b"short"));
        assert!(!AclNames::push(&mut names, AclNames::USER, 1000, b"twice"));
        let names = AclNames::new(&names);
        assert_eq!(names.iter().last(), Some((AclNames::USER, 1000, &b"short"[..])));
        let (mut buffer, all) = (Vec::new(), samples().into_iter().map(|(extension, ..)| extension));
        for extension in all.map(|extension| match extension {
            Extension::User(_) => Extension::User(&longest),
            Extension::Group(_) => Extension::Group(&longest),
            Extension::AclNames(_) => Extension::AclNames(names),
            other => other,
        }) {
            assert!(Extensions::push(&mut buffer, extension, false), "{extension:?}");
        }
    }

    #[test]
    fn unknown_ones_are_skipped_and_critical_ones_named() {
        assert_eq!(with(&area(&[])), Ok(None));
        assert_eq!(with(&area(&[entry(0, 0, b""), entry(1, 1, b"alice"), entry(700, 0, b"what")])), Ok(None));
        assert_eq!(with(&area(&[entry(4, 1, &[0; 4]), entry(700, 1, b""), entry(701, 1, b"")])), Ok(Some(700)));
        let longest = vec![b'x'; EXTENSIONS_BYTES_MAX - HEAD_BYTES];
        assert_eq!(with(&area(&[entry(9, 0, &longest)])), Ok(None));
    }

    #[test]
    fn areas_out_of_bounds_are_refused() {
        let many: Vec<_> = (0..=EXTENSIONS_MAX as u16).map(|kind| entry(100 + kind, 0, b"")).collect();
        let half = vec![0; EXTENSIONS_BYTES_MAX / 2];
        for (bytes, error) in [
            (vec![1], TreeError::Short),
            (vec![1, 9, 0, 0, 1, 0], TreeError::Short),
            (area(&many), TreeError::Length),
            (area(&[entry(9, 0, &half), entry(10, 0, &half)]), TreeError::Length),
            (area(&[entry(9, 0, &vec![0; EXTENSIONS_BYTES_MAX + 1])]), TreeError::Length),
            (area(&[entry(9, 2, b"")]), TreeError::Value),
            (area(&[entry(9, 0, b""), entry(9, 0, b"")]), TreeError::Extension),
            (area(&[entry(9, 0, b""), entry(8, 0, b"")]), TreeError::Extension),
            (area(&[entry(1, 0, b"")]), TreeError::Name),
            (area(&[entry(2, 0, b"a\0b")]), TreeError::Name),
            (area(&[entry(3, 0, &[0; 31])]), TreeError::Length),
            (area(&[entry(4, 0, &[0; 5])]), TreeError::Length),
            (area(&[entry(5, 0, b"x")]), TreeError::Length),
            (area(&[entry(6, 0, &[0; 19])]), TreeError::Short),
            (area(&[entry(6, 0, &[0; 21])]), TreeError::Length),
            (area(&[entry(7, 0, b"\x02\x01\0\0\0\x02a")]), TreeError::Short),
            (area(&[entry(7, 0, b"\x02\x01\0\0\0\0")]), TreeError::Name),
            (area(&[entry(7, 0, b"\x04\x01\0\0\0\x01a")]), TreeError::Value),
            (area(&[entry(7, 0, b"\x02\x01\0\0\0\x01a\x02\x01\0\0\0\x01b")]), TreeError::Value),
            (area(&[entry(7, 0, b"\x08\x01\0\0\0\x01a\x02\x02\0\0\0\x01b")]), TreeError::Value),
            (area(&[entry(8, 0, b"")]), TreeError::Length),
            (area(&[entry(8, 0, b"\0\0")]), TreeError::Length),
            (area(&[entry(8, 0, b"\x02")]), TreeError::Value),
        ] {
            assert_eq!(with(&bytes), Err(error), "{bytes:?}");
        }
    }
}
