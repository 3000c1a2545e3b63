//! The thread that reads segments, and the check of all of them. A part is given out when its checksum is right.

use super::folder::Unreadable;
use super::format::{Header, PAGE_TOKENS};
use super::shared::Shared;
use super::{Key, Restored};
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender};

/// What a check of all segments found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    pub entries: usize,
    pub bytes: u64,
    /// Entries that were damaged, or could not be read. They, and what continues them, are no longer there.
    pub damaged: usize,
}

/// Answers loads, until nobody can ask for more.
pub fn run(shared: &Shared, loads: &Receiver<(Key, Sender<Option<Restored>>)>) {
    while let Ok((key, answer)) = loads.recv() {
        let restored = if shared.lock().closing { None } else { restore(shared, &key) };
        let mut state = shared.lock();
        match restored {
            Some(_) => state.counts.hits += 1,
            None => state.counts.misses += 1,
        }
        drop(state);
        let _ = answer.send(restored); // who asked may be gone
    }
}

fn restore(shared: &Shared, key: &Key) -> Option<Restored> {
    let oldest = shared.now().saturating_sub(shared.options.ttl.as_secs());
    let chain = {
        let state = shared.lock();
        let fresh = state.index.get(key).is_some_and(|e| e.last_use >= oldest);
        if fresh { state.index.chain(key) } else { None }
    }?;
    let mut restored = Restored { pages: Vec::new(), state: Vec::new() };
    for header in &chain {
        if let Err(e) = read_into(shared, header, header.key == *key, &mut restored) {
            shared.discard(&header.key, &e);
            return None;
        }
    }
    let now = (shared.clock)();
    shared.folder.touch(key, now);
    let now = shared.now();
    shared.lock().index.touch(key, now);
    Some(restored)
}

/// Adds a segment's pages, and its state if it is wanted.
fn read_into(shared: &Shared, header: &Header, state: bool, to: &mut Restored) -> Result<(), Unreadable> {
    let (mut file, found) = shared.folder.open_segment(&header.key)?;
    if found != *header {
        return Err(Unreadable::Changed);
    }
    let mut hasher = blake3::Hasher::new();
    to.pages.truncate((header.start / PAGE_TOKENS) as usize);
    for _ in 0..header.page_count() {
        to.pages.push(read(&mut file, header.page_bytes, &mut hasher)?);
    }
    if *hasher.finalize().as_bytes() != header.pages_hash {
        return Err(Unreadable::Hash("pages"));
    }
    if state {
        hasher.reset();
        to.state = read(&mut file, header.state_bytes, &mut hasher)?;
        if *hasher.finalize().as_bytes() != header.state_hash {
            return Err(Unreadable::Hash("state"));
        }
    }
    Ok(())
}

/// Reads and hashes so many bytes, piece by piece while they are in the processor's cache. The length of the file was
/// held against them before.
fn read(file: &mut impl Read, bytes: u64, hasher: &mut blake3::Hasher) -> Result<Vec<u8>, Unreadable> {
    const PIECE: usize = 1 << 18;
    let mut buffer = Vec::new();
    let length = usize::try_from(bytes).map_err(|_| Unreadable::Memory(bytes))?;
    buffer.try_reserve_exact(length).map_err(|_| Unreadable::Memory(bytes))?;
    while buffer.len() < length {
        let done = buffer.len();
        let piece = PIECE.min(length - done);
        if file.by_ref().take(piece as u64).read_to_end(&mut buffer)? != piece {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        hasher.update(&buffer[done..]);
    }
    Ok(buffer)
}

/// Reads every segment, with little memory.
pub fn verify(shared: &Shared, progress: &mut dyn FnMut(u64, u64)) -> Verified {
    let headers = shared.lock().index.headers();
    let total = headers.iter().map(Header::file_bytes).sum();
    let mut found = Verified::default();
    for header in headers {
        progress(found.bytes, total);
        if shared.lock().index.get(&header.key).is_none() {
            continue; // it went with what it continued, or another thread saw to it
        }
        found.entries += 1;
        found.bytes += header.file_bytes();
        match check(shared, &header) {
            Ok(()) => {}
            Err(e @ (Unreadable::Gone | Unreadable::Changed)) => shared.discard(&header.key, &e),
            Err(e) => {
                found.damaged += 1;
                shared.discard(&header.key, &e);
            }
        }
    }
    found
}

fn check(shared: &Shared, header: &Header) -> Result<(), Unreadable> {
    let (file, found) = shared.folder.open_segment(&header.key)?;
    if found != *header {
        return Err(Unreadable::Changed);
    }
    let hash = |bytes: u64| -> io::Result<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        io::copy(&mut (&file).take(bytes), &mut hasher)?;
        Ok(hasher.finalize().into())
    };
    if hash(header.page_count() * header.page_bytes)? != header.pages_hash {
        return Err(Unreadable::Hash("pages"));
    }
    match hash(header.state_bytes)? == header.state_hash {
        true => Ok(()),
        false => Err(Unreadable::Hash("state")),
    }
}
