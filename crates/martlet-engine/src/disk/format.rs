//! The file of one segment: a header of 216 bytes, the pages one after another, the state. And the names in the folder.
//!
//! | bytes | |
//! | --- | --- |
//! | 0..8 | magic |
//! | 8..12 | version, u32 |
//! | 12..16 | 1: the segment has a parent; 0: it begins the sequence |
//! | 16..48, 48..80 | key; the parent's key, or zeros |
//! | 80..96 | start, end: tokens, u64 |
//! | 96..112 | bytes of a page, of the state, u64 |
//! | 112..144, 144..176 | BLAKE3 of all pages, of the state |
//! | 176..208 | BLAKE3 of the bytes before |
//! | 208..216 | zeros |
//!
//! Numbers are little-endian. Pages and state have checksums of their own, so that an ancestor's state need not be read.

use super::{Key, Segment};
use std::ffi::OsStr;

/// Tokens of a page.
pub const PAGE_TOKENS: u64 = 64;
pub const HEADER_BYTES: usize = 216;
/// Most tokens of a sequence, bytes of a page, of a state and of a file: far above what models have, and low enough
/// that a header can not make sums overflow or ask for more than a machine may give.
pub const MAX_TOKENS: u64 = 1 << 28;
pub const MAX_PAGE_BYTES: u64 = 1 << 28;
pub const MAX_STATE_BYTES: u64 = 1 << 32;
pub const MAX_FILE_BYTES: u64 = 1 << 36;

const MAGIC: [u8; 8] = *b"martlet\x1a";
const VERSION: u32 = 1;
const NO_PARENT: Key = [0; 32];

/// What a file says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub key: Key,
    pub parent: Option<Key>,
    /// The segment holds the tokens `start..end`; the state is that after `end` tokens.
    pub start: u64,
    pub end: u64,
    pub page_bytes: u64,
    pub state_bytes: u64,
    pub pages_hash: [u8; 32],
    pub state_hash: [u8; 32],
}

/// Why bytes are no segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("it has format version {0}, this program knows {VERSION}")]
    Version(u32),
    #[error("it has {0} bytes, less than a header of {HEADER_BYTES}")]
    Short(u64),
    #[error("it does not begin as a segment does")]
    Magic,
    #[error("the checksum of its header is wrong")]
    HeaderHash,
    #[error("its header says {0}")]
    Header(String),
    #[error("it has {found} bytes, its header says {expected}")]
    Length { found: u64, expected: u64 },
}

impl Header {
    /// The header of a segment, without checksums; an error says what is wrong with the segment.
    pub fn shape(key: Key, segment: &Segment) -> Result<Header, FormatError> {
        let page_bytes = segment.pages.first().map_or(0, Vec::len) as u64;
        let header = Header {
            key,
            parent: segment.parent,
            start: segment.start,
            end: segment.end,
            page_bytes,
            state_bytes: segment.state.len() as u64,
            pages_hash: [0; 32],
            state_hash: [0; 32],
        };
        header.check()?;
        let (found, expected) = (segment.pages.len() as u64, header.page_count());
        if found != expected || segment.pages.iter().any(|p| p.len() as u64 != page_bytes) {
            let tokens = format!("tokens {}..{}", segment.start, segment.end);
            let what = format!("{tokens}: {expected} pages of {page_bytes} bytes, but {found} were given, or others");
            return Err(FormatError::Header(what));
        }
        Ok(header)
    }

    /// Fills in the checksums of what is stored.
    pub fn hash(&mut self, segment: &Segment) {
        let mut pages = blake3::Hasher::new();
        segment.pages.iter().for_each(|page| {
            pages.update(page);
        });
        self.pages_hash = pages.finalize().into();
        self.state_hash = blake3::hash(&segment.state).into();
    }

    /// Number of the first page; the page is shared with the parent where `start` is inside it.
    pub fn first_page(&self) -> u64 {
        self.start / PAGE_TOKENS
    }

    pub fn page_count(&self) -> u64 {
        self.end.div_ceil(PAGE_TOKENS) - self.first_page()
    }

    /// Tokens that the parent does not have.
    pub fn new_tokens(&self) -> u64 {
        self.end - self.start
    }

    /// Length of the file.
    pub fn file_bytes(&self) -> u64 {
        // `check` bounds all of them: no overflow.
        HEADER_BYTES as u64 + self.page_count() * self.page_bytes + self.state_bytes
    }

    fn check(&self) -> Result<(), FormatError> {
        let wrong = |what: String| Err(FormatError::Header(what));
        let Header { start, end, page_bytes, state_bytes, .. } = *self;
        if start >= end || end > MAX_TOKENS {
            return wrong(format!("tokens {start}..{end}, at most {MAX_TOKENS} are possible"));
        }
        if self.parent.is_some() != (start > 0) {
            return wrong(format!("tokens {start}..{end} and parent: {}", self.parent.is_some()));
        }
        if page_bytes == 0 || page_bytes > MAX_PAGE_BYTES || state_bytes > MAX_STATE_BYTES {
            return wrong(format!("pages of {page_bytes} and a state of {state_bytes} bytes"));
        }
        let pages = self.page_count().checked_mul(page_bytes).filter(|&bytes| bytes <= MAX_FILE_BYTES);
        match pages {
            Some(_) if self.file_bytes() <= MAX_FILE_BYTES => Ok(()),
            _ => wrong(format!("{} pages of {page_bytes} bytes, over {MAX_FILE_BYTES} in all", self.page_count())),
        }
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&u32::from(self.parent.is_some()).to_le_bytes());
        bytes[16..48].copy_from_slice(&self.key);
        bytes[48..80].copy_from_slice(&self.parent.unwrap_or(NO_PARENT));
        for (i, n) in [self.start, self.end, self.page_bytes, self.state_bytes].into_iter().enumerate() {
            bytes[80 + 8 * i..88 + 8 * i].copy_from_slice(&n.to_le_bytes());
        }
        bytes[112..144].copy_from_slice(&self.pages_hash);
        bytes[144..176].copy_from_slice(&self.state_hash);
        let hash = blake3::hash(&bytes[..176]);
        bytes[176..208].copy_from_slice(hash.as_bytes());
        bytes
    }

    /// Reads a header from the beginning of a file that has `file_bytes` bytes in all. What is accepted is exactly as
    /// long as it says.
    pub fn parse(file: &[u8], file_bytes: u64) -> Result<Header, FormatError> {
        let short = FormatError::Short(file_bytes.min(file.len() as u64));
        if file.len() >= 12 && file[..8] == MAGIC {
            // A later version may have a shorter header.
            let version = u32_at(file, 8);
            if version != VERSION {
                return Err(FormatError::Version(version));
            }
        }
        let Some(file) = file.get(..HEADER_BYTES) else {
            return Err(short);
        };
        if file[..8] != MAGIC {
            return Err(FormatError::Magic);
        }
        if *blake3::hash(&file[..176]).as_bytes() != hash_at(file, 176) || file[208..] != [0; 8] {
            return Err(FormatError::HeaderHash);
        }
        let parent = match (u32_at(file, 12), hash_at(file, 48)) {
            (1, key) => Some(key),
            (0, NO_PARENT) => None,
            (other, _) => return Err(FormatError::Header(format!("{other} parents"))),
        };
        let header = Header {
            key: hash_at(file, 16),
            parent,
            start: u64_at(file, 80),
            end: u64_at(file, 88),
            page_bytes: u64_at(file, 96),
            state_bytes: u64_at(file, 104),
            pages_hash: hash_at(file, 112),
            state_hash: hash_at(file, 144),
        };
        header.check()?;
        match header.file_bytes() {
            expected if expected == file_bytes => Ok(header),
            expected => Err(FormatError::Length { found: file_bytes, expected }),
        }
    }
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn hash_at(bytes: &[u8], at: usize) -> [u8; 32] {
    array_at(bytes, at)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// What a name in the folder stands for. Only segments and temporary files are ever deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    Segment(Key),
    Temporary,
    Lock,
    Other,
}

/// Also holds the bytes written on the day.
pub const LOCK_NAME: &str = "martlet-prefix.lock";
const SEGMENT: &str = ".segment";
const TEMPORARY: &str = ".tmp";

pub fn segment_name(key: &Key) -> String {
    hex(key) + SEGMENT
}

/// Of the `number`th file that process `process` writes.
pub fn temporary_name(key: &Key, process: u32, number: u64) -> String {
    format!("{}.{process}-{number}{TEMPORARY}", hex(key))
}

impl Name {
    pub fn of(name: &OsStr) -> Name {
        let Some(name) = name.to_str() else {
            return Name::Other;
        };
        if name == LOCK_NAME {
            return Name::Lock;
        }
        if let Some(key) = name.strip_suffix(SEGMENT).and_then(from_hex) {
            return Name::Segment(key);
        }
        let numbers = |text: &str| {
            let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            text.split_once('-').is_some_and(|(process, number)| digits(process) && digits(number))
        };
        let parts = name.strip_suffix(TEMPORARY).and_then(|stem| stem.split_once('.'));
        match parts.is_some_and(|(key, rest)| from_hex(key).is_some() && numbers(rest)) {
            true => Name::Temporary,
            false => Name::Other,
        }
    }
}

fn hex(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// 64 digits, small letters.
fn from_hex(text: &str) -> Option<Key> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let bytes = text.as_bytes();
    let mut key = [0; 32];
    if bytes.len() != 64 {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(bytes.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(start: u64, end: u64) -> Segment {
        let count = end.div_ceil(64) - start / 64;
        let parent = (start > 0).then_some([9; 32]);
        Segment { parent, start, end, pages: vec![vec![1; 10]; count as usize], state: vec![2; 7] }
    }

    fn parsed(header: &Header) -> Result<Header, FormatError> {
        Header::parse(&header.encode(), header.file_bytes())
    }

    #[test]
    fn what_is_encoded_is_parsed() {
        for (start, end, pages) in [(0, 1, 1), (0, 64, 1), (0, 65, 2), (64, 65, 1), (63, 65, 2), (70, 100, 1)] {
            let segment = segment(start, end);
            let mut header = Header::shape([7; 32], &segment).unwrap();
            header.hash(&segment);
            assert_eq!((header.page_count(), header.file_bytes()), (pages, 216 + 10 * pages + 7));
            assert_eq!(parsed(&header), Ok(header));
        }
    }

    #[test]
    fn a_segment_of_another_shape_is_refused() {
        let refused = |change: fn(&mut Segment)| {
            let mut s = segment(64, 200);
            change(&mut s);
            Header::shape([7; 32], &s).unwrap_err().to_string()
        };
        assert!(refused(|s| s.end = 64).contains("64..64"));
        assert!(refused(|s| s.end = u64::MAX).contains(&MAX_TOKENS.to_string()));
        assert!(refused(|s| s.parent = None).contains("parent: false"));
        assert!(refused(|s| s.pages.clear()).contains("pages of 0"));
        assert!(refused(|s| s.pages.truncate(2)).contains("3 pages of 10 bytes"));
        assert!(refused(|s| s.pages[1].clear()).contains("3 pages of 10 bytes"));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_seen() {
        let header = Header::shape([7; 32], &segment(64, 200)).unwrap();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&bytes, header.file_bytes()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn lengths_are_held_against_the_file() {
        let header = Header::shape([7; 32], &segment(0, 200)).unwrap();
        let bytes = header.encode();
        let long = header.file_bytes() + 1;
        assert_eq!(
            Header::parse(&bytes, long),
            Err(FormatError::Length { found: long, expected: header.file_bytes() })
        );
        for length in 0..HEADER_BYTES {
            assert_eq!(Header::parse(&bytes[..length], length as u64), Err(FormatError::Short(length as u64)));
        }
        assert_eq!(Header::parse(&[b'x'; 300], 300), Err(FormatError::Magic));
    }

    #[test]
    fn hostile_numbers_are_refused_though_the_checksum_is_right() {
        let header = Header::shape([7; 32], &segment(64, 200)).unwrap();
        for (page_bytes, end) in [(0, 200), (u64::MAX, 200), (MAX_PAGE_BYTES, MAX_TOKENS), (10, 1 << 40), (10, 64)] {
            assert!(parsed_bytes(&Header { page_bytes, end, ..header.clone() }).is_err(), "{page_bytes} {end}");
        }
        for state_bytes in [MAX_STATE_BYTES + 1, u64::MAX] {
            assert!(parsed_bytes(&Header { state_bytes, ..header.clone() }).is_err());
        }
        assert!(parsed_bytes(&Header { parent: None, ..header.clone() }).is_err());
        assert!(parsed_bytes(&Header { start: 201, ..header }).is_err());
    }

    fn parsed_bytes(header: &Header) -> Result<Header, FormatError> {
        Header::parse(&header.encode(), 1000)
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let mut bytes = Header::shape([7; 32], &segment(0, 9)).unwrap().encode();
        bytes[8] = 2;
        assert_eq!(Header::parse(&bytes, 1000), Err(FormatError::Version(2)));
        assert_eq!(Header::parse(&bytes[..12], 12), Err(FormatError::Version(2)));
    }

    #[test]
    fn names_are_ours_or_not() {
        let key = [0xa5; 32];
        assert_eq!(Name::of(segment_name(&key).as_ref()), Name::Segment(key));
        assert_eq!(Name::of(temporary_name(&key, 12, 3).as_ref()), Name::Temporary);
        assert_eq!(Name::of(LOCK_NAME.as_ref()), Name::Lock);
        let stem = hex(&key);
        let others = [
            "",
            "x",
            ".segment",
            ".tmp",
            "a.segment",
            &stem,
            &format!("{stem}.1.tmp"),
            &format!("{stem}.1-.tmp"),
            &format!("{stem}.x-1.tmp"),
            &format!("{stem}.tmp"),
            &format!("{}.segment", stem.to_uppercase()),
            &format!("{stem}.segment~"),
            &format!("x{stem}.segment"),
            &format!("{}é.segment", &stem[2..]),
        ];
        for name in others {
            assert_eq!(Name::of(name.as_ref()), Name::Other, "{name}");
        }
    }
}
