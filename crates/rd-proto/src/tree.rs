//! A tree on the wire: records packed into chunks of item 0, beside chunks with the data of large files.
//!
//! The records of one transfer form one sequence, in the order of the walk. The names in one directory strictly ascend
//! (as bytes), and the entries of a directory stand between its record and [`Record::Leave`]. So the order itself
//! proves that no name comes twice, and the receiver need only remember the last name of each open directory
//! ([`Order`]).
//!
//! No record is cut by a chunk's end. A file whose data is not in its record ([`Record::Large`]) gets a number, the
//! `item` of the chunks that carry its data at their positions. These chunks may arrive in any order once the record
//! has arrived. [`Record::Closed`] says how much was sent and whether the file stayed the same while it was read.
//!
//! All of it comes from a peer, so decoding checks every length and every name, and [`Order`] checks the sequence.

pub mod answer;
pub mod blocks;
mod extension;
#[doc(hidden)]
pub mod fuzz;

use std::collections::BTreeSet;

pub use answer::{Answer, Verdict};
pub use extension::{AclNames, EXTENSIONS_BYTES_MAX, EXTENSIONS_MAX, Extension, Extensions};

use crate::reader::{ReadError, Reader};

/// Maximum length of an entry's name, in bytes (NAME_MAX of Linux).
pub const NAME_BYTES_MAX: usize = 255;

/// Maximum length of a symbolic link's target and of the path of a hard link's first name, in bytes (PATH_MAX less the
/// zero).
pub const PATH_BYTES_MAX: usize = 4095;

/// Maximum number of directories nested in each other.
pub const DEPTH_MAX: usize = 512;

/// Maximum number of large files that may be open at once.
pub const OPEN_MAX: usize = 64;

/// Maximum number of hard links to open large files, over all files. The receiver makes them when their file is
/// complete, and holds their directories open until then.
pub const OPEN_LINKS_MAX: usize = 64;

/// Maximum number of files at the sender that are listed and not settled.
///
/// Bounds what both ends remember of these files, and so how far a listing runs ahead of its answers.
pub const LISTED_MAX: usize = 16_384;

/// Maximum number of directories with files that are listed and not settled. Both ends hold these directories open.
pub const LISTED_DIRECTORIES_MAX: usize = 256;

/// Maximum length of all extended attributes of one entry together, encoded, in bytes.
pub const XATTRS_BYTES_MAX: usize = 128 << 10;

/// Minimum length of a file that is sent only after the receiver has said what it has of the file
/// ([`Answer::Blocks`]), in bytes.
pub const RESUME_BYTES_MIN: u64 = 64 << 20;

/// A time with the system's resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970; negative for earlier times.
    pub seconds: i64,
    /// Nanoseconds, below 10⁹.
    pub nanoseconds: u32,
}

/// Metadata of an entry: all but its name and contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata<'a> {
    /// Permission bits: the lower twelve of `st_mode`.
    pub mode: u32,
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// When the contents were last changed.
    pub modified: Time,
    /// When the entry was last read.
    pub accessed: Time,
    /// Extended attributes, including ACLs.
    pub xattrs: Xattrs<'a>,
    /// Metadata that not every version knows.
    pub extensions: Extensions<'a>,
}

impl Metadata<'static> {
    /// Metadata without permissions, of user and group 0, with both times in the year 1970.
    pub const ZERO: Self = Self {
        mode: 0,
        uid: 0,
        gid: 0,
        modified: Time { seconds: 0, nanoseconds: 0 },
        accessed: Time { seconds: 0, nanoseconds: 0 },
        xattrs: Xattrs::new(&[]),
        extensions: Extensions::new(&[]),
    };

    /// Metadata of a directory that only leads to what is listed.
    pub const IMPLIED: Self = Self { extensions: Extensions::IMPLIED, ..Self::ZERO };
}

/// Extended attributes, encoded as a sequence of name length (u16), name, value length (u32) and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Xattrs<'a>(&'a [u8]);

/// Name and value of one extended attribute.
pub type Xattr<'a> = (&'a [u8], &'a [u8]);

impl<'a> Xattrs<'a> {
    /// Appends an attribute to a buffer for [`Xattrs::new`]. Returns whether it fits: the name has 1 to
    /// [`NAME_BYTES_MAX`] bytes and no zero, and all attributes together have at most [`XATTRS_BYTES_MAX`].
    pub fn push(buffer: &mut Vec<u8>, name: &[u8], value: &[u8]) -> bool {
        if extension::short_name(name).is_err() || buffer.len() + 6 + name.len() + value.len() > XATTRS_BYTES_MAX {
            return false;
        }
        buffer.extend((name.len() as u16).to_le_bytes());
        buffer.extend(name);
        buffer.extend((value.len() as u32).to_le_bytes());
        buffer.extend(value);
        true
    }

    /// Wraps a buffer that [`Xattrs::push`] has filled.
    pub const fn new(buffer: &'a [u8]) -> Self {
        Self(buffer)
    }

    /// Returns whether there are no attributes.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over names and values.
    pub fn iter(self) -> impl Iterator<Item = Xattr<'a>> {
        let mut reader = Reader { rest: self.0 };
        std::iter::from_fn(move || Self::next(&mut reader).ok().flatten())
    }

    fn next(reader: &mut Reader<'a>) -> Result<Option<Xattr<'a>>, TreeError> {
        if reader.rest.is_empty() {
            return Ok(None);
        }
        let length = usize::from(reader.u16()?);
        let name = reader.bytes(length)?;
        let length = reader.u32()? as usize;
        let value = reader.bytes(length)?;
        Ok(Some((extension::short_name(name)?, value)))
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, TreeError> {
        let length = reader.u32()? as usize;
        if length > XATTRS_BYTES_MAX {
            return Err(TreeError::Length);
        }
        let bytes = reader.bytes(length)?;
        let mut each = Reader { rest: bytes };
        while Self::next(&mut each)?.is_some() {}
        Ok(Self(bytes))
    }
}

/// Kind of an entry that is neither a file, a directory nor a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket in the file system.
    Socket,
    /// A character device.
    Character,
    /// A block device.
    Block,
}

/// One step of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A directory, whose entries follow.
    Directory {
        /// Name of the directory.
        name: &'a [u8],
        /// Metadata, applied when the directory is left.
        metadata: Metadata<'a>,
    },
    /// The end of the directory that was entered last.
    Leave,
    /// A file with its contents.
    File {
        /// Name of the file.
        name: &'a [u8],
        /// Mode, owner, times, attributes.
        metadata: Metadata<'a>,
        /// Contents of the file.
        data: &'a [u8],
    },
    /// A file whose data comes in separate chunks. Ranges without a chunk are zeros.
    Large {
        /// Name of the file.
        name: &'a [u8],
        /// Mode, owner, times, attributes.
        metadata: Metadata<'a>,
        /// Number of the file, which its chunks carry: 1 for the first such file of a transfer, then one more for each.
        item: u32,
        /// Length of the file, in bytes.
        size: u64,
        /// Whether the file has holes, which are not sent where the receiver has given no digest.
        is_sparse: bool,
    },
    /// A symbolic link.
    Symlink {
        /// Name of the link.
        name: &'a [u8],
        /// Owner, times, attributes.
        metadata: Metadata<'a>,
        /// Target of the link: any bytes but zero.
        target: &'a [u8],
    },
    /// Another name of a file that came earlier.
    HardLink {
        /// Name of the link.
        name: &'a [u8],
        /// First name of the file: path components from the top of the transfer, with `/` between them.
        first: &'a [u8],
    },
    /// A FIFO, a socket or a device.
    Special {
        /// Name of the entry.
        name: &'a [u8],
        /// Mode, owner, times, attributes.
        metadata: Metadata<'a>,
        /// Kind of the entry.
        kind: Special,
        /// Major and minor number of a device; 0 for others.
        device: (u32, u32),
    },
    /// A file without its contents. The receiver answers with a [`Verdict`] whether it wants them.
    ///
    /// Listed files are numbered from 0 in the order of their records.
    Listed {
        /// Name of the file.
        name: &'a [u8],
        /// Mode, owner, times, attributes.
        metadata: Metadata<'a>,
        /// Length of the file, in bytes.
        size: u64,
    },
    /// The next record is that of a listed file, with its contents: a [`Record::File`] or [`Record::Large`] of the same
    /// name, to be placed in the listed file's directory. Or it is a [`Record::Vanished`] of that name.
    Wanted {
        /// Number of the listed file.
        number: u64,
    },
    /// The contents of a listed file have the digest that the receiver has answered.
    Same {
        /// Number of the listed file.
        number: u64,
    },
    /// In a dry run: the contents of a listed file have another digest than the receiver has answered, so they would be
    /// sent.
    Differs {
        /// Number of the listed file.
        number: u64,
    },
    /// A listed file could not be read after all.
    Gone {
        /// Number of the listed file.
        number: u64,
    },
    /// An entry has disappeared since its directory was read. What the receiver has under this name stays.
    Vanished {
        /// Name of the entry.
        name: &'a [u8],
    },
    /// Not all entries of the directory entered last have been or will be sent, so nothing may be deleted there.
    Incomplete,
    /// All chunks of a large file have been sent.
    Closed {
        /// Number of the file.
        item: u32,
        /// Number of bytes of data in all its chunks together.
        data_bytes: u64,
        /// Whether the file was read whole and did not change meanwhile. If false, the receiver must not publish it.
        is_intact: bool,
    },
    /// The walk is over; nothing follows.
    End {
        /// Number of entries that were not sent, or not intact.
        failures: u64,
    },
}

/// Why a record, or its place in the sequence, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// A record ends before its fields do.
    #[error("truncated record")]
    Short,
    /// A record's kind is unknown to this version.
    #[error("unknown record kind {0}")]
    Kind(u8),
    /// A length exceeds its limit.
    #[error("length out of bounds")]
    Length,
    /// A name is empty, `.` or `..`, or contains a slash or a zero.
    #[error("invalid name")]
    Name,
    /// A number or flag is out of its range.
    #[error("value out of bounds")]
    Value,
    /// A name comes twice, or the names in a directory do not ascend.
    #[error("names out of order")]
    Order,
    /// Directories are nested deeper than [`DEPTH_MAX`], or a directory is left that was not entered.
    #[error("directories nested incorrectly")]
    Depth,
    /// The number of a large file is not the next one, or the file is not open, or more than [`OPEN_MAX`] files are
    /// open.
    #[error("invalid number of a large file")]
    Item,
    /// The types of one entry's extensions do not ascend.
    #[error("extensions out of order")]
    Extension,
    /// The record after [`Record::Wanted`] is neither a file nor [`Record::Vanished`].
    #[error("listed file without its contents")]
    Wanted,
    /// A record follows the end.
    #[error("record after the end")]
    End,
}

impl From<ReadError> for TreeError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Short => Self::Short,
            ReadError::Flag => Self::Value,
        }
    }
}

const KIND_DIRECTORY: u8 = 1;
const KIND_LEAVE: u8 = 2;
const KIND_FILE: u8 = 3;
const KIND_LARGE: u8 = 4;
const KIND_SYMLINK: u8 = 5;
const KIND_HARD_LINK: u8 = 6;
const KIND_SPECIAL: u8 = 7;
const KIND_CLOSED: u8 = 8;
const KIND_END: u8 = 9;
const KIND_LISTED: u8 = 10;
const KIND_WANTED: u8 = 11;
const KIND_SAME: u8 = 12;
const KIND_GONE: u8 = 13;
const KIND_INCOMPLETE: u8 = 14;
const KIND_DIFFERS: u8 = 15;
const KIND_VANISHED: u8 = 16;

impl<'a> Record<'a> {
    /// Returns the length of the encoded record, in bytes.
    pub fn encoded_bytes(&self) -> usize {
        let mut out = Writer { target: &mut [], at: 0 };
        self.write(&mut out);
        out.at
    }

    /// Encodes the record at the start of `target` and returns its length. `None` if it does not fit; `target` may then
    /// hold a part of it.
    pub fn encode(&self, target: &mut [u8]) -> Option<usize> {
        let mut out = Writer { target, at: 0 };
        self.write(&mut out);
        (out.at <= out.target.len()).then_some(out.at)
    }

    fn write(&self, out: &mut Writer<'_>) {
        match *self {
            Self::Directory { name, metadata } => out.entry(KIND_DIRECTORY, name, &metadata),
            Self::Leave => out.put(&[KIND_LEAVE]),
            Self::Incomplete => out.put(&[KIND_INCOMPLETE]),
            Self::Listed { name, metadata, size } => {
                out.entry(KIND_LISTED, name, &metadata);
                out.put(&size.to_le_bytes());
            }
            Self::Wanted { number } => out.number(KIND_WANTED, number),
            Self::Same { number } => out.number(KIND_SAME, number),
            Self::Differs { number } => out.number(KIND_DIFFERS, number),
            Self::Gone { number } => out.number(KIND_GONE, number),
            Self::Vanished { name } => {
                out.put(&[KIND_VANISHED]);
                out.name(name);
            }
            Self::File { name, metadata, data } => {
                out.entry(KIND_FILE, name, &metadata);
                out.put(&(data.len() as u32).to_le_bytes());
                out.put(data);
            }
            Self::Large { name, metadata, item, size, is_sparse } => {
                out.entry(KIND_LARGE, name, &metadata);
                out.put(&item.to_le_bytes());
                out.put(&size.to_le_bytes());
                out.put(&[u8::from(is_sparse)]);
            }
            Self::Symlink { name, metadata, target } => {
                out.entry(KIND_SYMLINK, name, &metadata);
                out.path(target);
            }
            Self::HardLink { name, first } => {
                out.put(&[KIND_HARD_LINK]);
                out.name(name);
                out.path(first);
            }
            Self::Special { name, metadata, kind, device } => {
                out.entry(KIND_SPECIAL, name, &metadata);
                out.put(&[kind as u8]);
                out.put(&device.0.to_le_bytes());
                out.put(&device.1.to_le_bytes());
            }
            Self::Closed { item, data_bytes, is_intact } => {
                out.put(&[KIND_CLOSED]);
                out.put(&item.to_le_bytes());
                out.put(&data_bytes.to_le_bytes());
                out.put(&[u8::from(is_intact)]);
            }
            Self::End { failures } => out.number(KIND_END, failures),
        }
    }

    /// Encodes a [`Record::File`] without its data at the start of `target`, and returns the length of this head. The
    /// caller puts `data_bytes` of data behind it, so that data can be read to where it travels. `None` if head and
    /// data do not fit.
    pub fn encode_file_head(
        name: &[u8],
        metadata: &Metadata<'_>,
        data_bytes: usize,
        target: &mut [u8],
    ) -> Option<usize> {
        let length = Record::File { name, metadata: *metadata, data: &[] }.encode(target)?;
        if target.len() - length < data_bytes {
            return None;
        }
        target[length - 4..length].copy_from_slice(&(data_bytes as u32).to_le_bytes());
        Some(length)
    }

    /// Decodes the first record of `bytes` and advances `bytes` past it. `None` if no bytes are left.
    ///
    /// # Errors
    ///
    /// [`TreeError`] if the record is cut off, exceeds a limit, or holds an impossible name or value.
    pub fn decode(bytes: &mut &'a [u8]) -> Result<Option<Self>, TreeError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut reader = Reader { rest: bytes };
        let kind = reader.u8()?;
        let record = match kind {
            KIND_DIRECTORY => Self::Directory { name: reader.name()?, metadata: reader.metadata()? },
            KIND_LEAVE => Self::Leave,
            KIND_FILE => {
                let (name, metadata) = (reader.name()?, reader.metadata()?);
                let length = reader.u32()? as usize;
                Self::File { name, metadata, data: reader.bytes(length)? }
            }
            KIND_LARGE => {
                let (name, metadata) = (reader.name()?, reader.metadata()?);
                let (item, size) = (reader.u32()?, reader.length()?);
                Self::Large { name, metadata, item, size, is_sparse: reader.bool()? }
            }
            KIND_SYMLINK => {
                let (name, metadata) = (reader.name()?, reader.metadata()?);
                let target = reader.path()?;
                if target.contains(&0) {
                    return Err(TreeError::Name);
                }
                Self::Symlink { name, metadata, target }
            }
            KIND_HARD_LINK => {
                let name = reader.name()?;
                let first = reader.path()?;
                if !first.split(|&byte| byte == b'/').all(is_name) {
                    return Err(TreeError::Name);
                }
                Self::HardLink { name, first }
            }
            KIND_SPECIAL => {
                let (name, metadata) = (reader.name()?, reader.metadata()?);
                let kinds = [Special::Fifo, Special::Socket, Special::Character, Special::Block];
                let kind = *kinds.get(usize::from(reader.u8()?)).ok_or(TreeError::Value)?;
                Self::Special { name, metadata, kind, device: (reader.u32()?, reader.u32()?) }
            }
            KIND_CLOSED => {
                let (item, data_bytes) = (reader.u32()?, reader.u64()?);
                Self::Closed { item, data_bytes, is_intact: reader.bool()? }
            }
            KIND_END => Self::End { failures: reader.u64()? },
            KIND_LISTED => {
                let (name, metadata) = (reader.name()?, reader.metadata()?);
                Self::Listed { name, metadata, size: reader.length()? }
            }
            KIND_WANTED => Self::Wanted { number: reader.u64()? },
            KIND_SAME => Self::Same { number: reader.u64()? },
            KIND_DIFFERS => Self::Differs { number: reader.u64()? },
            KIND_GONE => Self::Gone { number: reader.u64()? },
            KIND_VANISHED => Self::Vanished { name: reader.name()? },
            KIND_INCOMPLETE => Self::Incomplete,
            kind => return Err(TreeError::Kind(kind)),
        };
        *bytes = reader.rest;
        Ok(Some(record))
    }

    /// Returns whether a large file's data is sent only after the receiver's answer.
    pub fn awaits_have(size: u64) -> bool {
        size >= RESUME_BYTES_MIN
    }

    /// Returns the name of the entry, if the record is one.
    pub fn name(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Directory { name, .. }
            | Self::File { name, .. }
            | Self::Large { name, .. }
            | Self::Symlink { name, .. }
            | Self::HardLink { name, .. }
            | Self::Special { name, .. }
            | Self::Listed { name, .. }
            | Self::Vanished { name } => Some(name),
            Self::Leave
            | Self::Wanted { .. }
            | Self::Same { .. }
            | Self::Differs { .. }
            | Self::Gone { .. }
            | Self::Incomplete
            | Self::Closed { .. }
            | Self::End { .. } => None,
        }
    }

    /// Returns the metadata of the entry, if the record is one that has its own.
    pub fn metadata(&self) -> Option<Metadata<'a>> {
        let mut record = *self;
        record.metadata_mut().copied()
    }

    /// Returns the metadata for changing it; see [`Record::metadata`].
    pub fn metadata_mut(&mut self) -> Option<&mut Metadata<'a>> {
        match self {
            Self::Directory { metadata, .. }
            | Self::File { metadata, .. }
            | Self::Large { metadata, .. }
            | Self::Symlink { metadata, .. }
            | Self::Special { metadata, .. }
            | Self::Listed { metadata, .. } => Some(metadata),
            _ => None,
        }
    }
}

/// Returns whether these bytes can name an entry of a directory.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// Checks that records come in the order of a walk. Uses memory only in proportion to the depth of the tree.
#[derive(Debug, Default)]
pub struct Order {
    /// The latest name in each open directory, the top first.
    last: Vec<Vec<u8>>,
    /// Names of the open directories below the top.
    path: Vec<Vec<u8>>,
    items: u32,
    open: BTreeSet<u32>,
    /// Whether the next record must be that of a listed file, whose name was checked before.
    expects_wanted: bool,
    ended: bool,
}

impl Order {
    /// Creates an order in which no record has come.
    pub fn new() -> Self {
        Self { last: vec![Vec::new()], ..Self::default() }
    }

    /// Checks the next record.
    ///
    /// # Errors
    ///
    /// [`TreeError`] if the record cannot follow the previous ones.
    pub fn check(&mut self, record: &Record<'_>) -> Result<(), TreeError> {
        if self.ended {
            return Err(TreeError::End);
        }
        let is_wanted = std::mem::take(&mut self.expects_wanted);
        if is_wanted && !matches!(record, Record::File { .. } | Record::Large { .. } | Record::Vanished { .. }) {
            return Err(TreeError::Wanted);
        }
        if let Some(name) = record.name().filter(|_| !is_wanted) {
            let last = self.last.last_mut().expect("the top is never left");
            if name <= last.as_slice() {
                return Err(TreeError::Order);
            }
            name.clone_into(last);
        }
        match *record {
            Record::Directory { name, .. } => {
                if self.path.len() == DEPTH_MAX {
                    return Err(TreeError::Depth);
                }
                self.path.push(name.to_vec());
                self.last.push(Vec::new());
            }
            Record::Leave => {
                self.path.pop().ok_or(TreeError::Depth)?;
                self.last.pop();
            }
            Record::Large { item, .. } => {
                if Some(item) != self.items.checked_add(1) || self.open.len() == OPEN_MAX {
                    return Err(TreeError::Item);
                }
                self.items = item;
                self.open.insert(item);
            }
            Record::Closed { item, .. } => {
                if !self.open.remove(&item) {
                    return Err(TreeError::Item);
                }
            }
            Record::HardLink { name, first } => {
                // The first name must come earlier in the walk; otherwise it would not exist yet.
                let here = self.path.iter().map(Vec::as_slice).chain([name]);
                if first.split(|&byte| byte == b'/').cmp(here) != std::cmp::Ordering::Less {
                    return Err(TreeError::Order);
                }
            }
            Record::End { .. } => {
                if !self.path.is_empty() {
                    return Err(TreeError::Depth);
                }
                if !self.open.is_empty() {
                    return Err(TreeError::Item);
                }
                self.ended = true;
            }
            Record::Wanted { .. } => self.expects_wanted = true,
            Record::File { .. }
            | Record::Symlink { .. }
            | Record::Special { .. }
            | Record::Listed { .. }
            | Record::Same { .. }
            | Record::Differs { .. }
            | Record::Gone { .. }
            | Record::Vanished { .. }
            | Record::Incomplete => {}
        }
        Ok(())
    }

    /// Returns whether [`Record::End`] has come.
    pub fn is_ended(&self) -> bool {
        self.ended
    }
}

/// Writes fields as far as there is room, and counts all of them.
struct Writer<'a> {
    target: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        if let Some(room) = self.target.get_mut(self.at..end) {
            room.copy_from_slice(bytes);
        }
        self.at = end;
    }

    fn number(&mut self, kind: u8, number: u64) {
        self.put(&[kind]);
        self.put(&number.to_le_bytes());
    }

    fn name(&mut self, name: &[u8]) {
        debug_assert!(is_name(name));
        self.put(&[name.len() as u8]);
        self.put(name);
    }

    fn path(&mut self, path: &[u8]) {
        debug_assert!(!path.is_empty() && path.len() <= PATH_BYTES_MAX);
        self.put(&(path.len() as u16).to_le_bytes());
        self.put(path);
    }

    fn entry(&mut self, kind: u8, name: &[u8], metadata: &Metadata<'_>) {
        self.put(&[kind]);
        self.name(name);
        for number in [metadata.mode, metadata.uid, metadata.gid] {
            self.put(&number.to_le_bytes());
        }
        for time in [metadata.modified, metadata.accessed] {
            self.put(&time.seconds.to_le_bytes());
            self.put(&time.nanoseconds.to_le_bytes());
        }
        self.put(&(metadata.xattrs.0.len() as u32).to_le_bytes());
        self.put(metadata.xattrs.0);
        let (count, extensions) = metadata.extensions.encoded();
        self.put(&[count]);
        self.put(extensions);
    }
}

impl<'a> Reader<'a> {
    fn name(&mut self) -> Result<&'a [u8], TreeError> {
        let length = usize::from(self.u8()?);
        let name = self.bytes(length)?;
        if is_name(name) { Ok(name) } else { Err(TreeError::Name) }
    }

    fn path(&mut self) -> Result<&'a [u8], TreeError> {
        let length = usize::from(self.u16()?);
        if length == 0 || length > PATH_BYTES_MAX {
            return Err(TreeError::Length);
        }
        Ok(self.bytes(length)?)
    }

    fn length(&mut self) -> Result<u64, TreeError> {
        let length = self.u64()?;
        if length > i64::MAX as u64 { Err(TreeError::Value) } else { Ok(length) }
    }

    fn time(&mut self) -> Result<Time, TreeError> {
        let time = Time { seconds: i64::from_le_bytes(self.array()?), nanoseconds: self.u32()? };
        if time.nanoseconds < 1_000_000_000 { Ok(time) } else { Err(TreeError::Value) }
    }

    fn metadata(&mut self) -> Result<Metadata<'a>, TreeError> {
        let (mode, uid, gid) = (self.u32()?, self.u32()?, self.u32()?);
        if mode > 0o7777 {
            return Err(TreeError::Value);
        }
        let (modified, accessed) = (self.time()?, self.time()?);
        let (xattrs, extensions) = (Xattrs::decode(self)?, Extensions::decode(self)?);
        Ok(Metadata { mode, uid, gid, modified, accessed, xattrs, extensions })
    }
}

#[cfg(test)]
mod tests;
