//! The two hashes by which a hub knows its files.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::fmt;

/// The hash of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    /// Of a large file: SHA-256 of its bytes, which is its id in Git LFS.
    Sha256([u8; 32]),
    /// Of a small file: its id as a blob of git, the SHA-1 of "blob SIZE\0" and its bytes.
    GitBlob([u8; 20]),
}

impl Digest {
    /// Reads hexadecimal digits; their number says which hash it is.
    pub fn parse(text: &str) -> Option<Digest> {
        match text.len() {
            64 => hex(text).map(Digest::Sha256),
            40 => hex(text).map(Digest::GitBlob),
            _ => None,
        }
    }

    pub(crate) fn is_of(&self, bytes: &[u8]) -> bool {
        let mut hasher = Hasher::new(self, bytes.len() as u64);
        hasher.update(bytes);
        hasher.finish() == *self
    }
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digit = |c: u8| (c as char).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(bytes)
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: &[u8] = match self {
            Digest::Sha256(bytes) => bytes,
            Digest::GitBlob(bytes) => bytes,
        };
        bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// Computes the hash of the same kind as another.
pub(crate) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    /// For a file of `size` bytes.
    pub fn new(like: &Digest, size: u64) -> Hasher {
        match like {
            Digest::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Digest::GitBlob(_) => Hasher::GitBlob(Sha1::new().chain_update(format!("blob {size}\0"))),
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::GitBlob(hasher) => hasher.update(bytes),
        }
    }

    pub fn finish(self) -> Digest {
        match self {
            Hasher::Sha256(hasher) => Digest::Sha256(hasher.finalize().into()),
            Hasher::GitBlob(hasher) => Digest::GitBlob(hasher.finalize().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_sha256sum() {
        // `printf hello | git hash-object --stdin`, `printf hello | sha256sum`
        let blob = Digest::parse("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0").unwrap();
        let sha = Digest::parse("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824").unwrap();
        assert!(blob.is_of(b"hello") && sha.is_of(b"hello"));
        assert!(!blob.is_of(b"hellp") && !sha.is_of(b"hellp"));
        assert_eq!(blob.to_string(), "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0");
        let not_hex = "g".repeat(40);
        for text in ["", "b6fc", not_hex.as_str(), "+6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"] {
            assert_eq!(Digest::parse(text), None, "{text}");
        }
    }
}
