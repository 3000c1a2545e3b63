//! A pack that is written while its source arrives, file by file, and goes on after a kill at any point.
//!
//! Safetensors begin with a list of their tensors, so the whole layout is known before the first weight is there. What is
//! written at a time is a *unit*, a tensor or the experts of a layer, at its place in the files to be, as soon as all files
//! that it is made of are there. Beside the folder lies a journal, which says what is written, with digests: first the
//! bytes are on the disk, then the line that says so. Whatever no unit needs any more can be deleted. **The manifest is
//! written when all units are, and the folder then takes its name.**

use super::manifest::{Digest, Manifest, Sum};
use super::write::{self, Out, Plan};
use super::{CHUNK, EXPERTS_FILE, PARTS, Repository, Summary, WEIGHTS_FILE};
use crate::checkpoint::Checkpoint;
use crate::error::WeightsError;
use crate::report::Expected;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// See the module.
pub struct Piecewise {
    /// The folder to be; its journal lies beside it.
    dir: PathBuf,
    plan: Plan,
    units: Vec<Unit>,
    /// Of every [`CHUNK`] of the weights, as far as it is complete.
    chunks: Vec<Option<Digest>>,
    journal: File,
}

/// What is written at a time.
struct Unit {
    what: What,
    /// Names of the source's files that it is made of.
    files: BTreeSet<String>,
    bytes: u64,
    done: bool,
}

/// By its index in the manifest.
#[derive(Clone, Copy)]
enum What {
    Tensor(usize),
    Stack(usize),
}

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The first one: what the pack is of.
    Pack(Digest),
    Tensor(usize),
    Stack {
        n: usize,
        xxh3: Vec<Sum>,
        blake3: Vec<Digest>,
    },
    Chunk(usize, Digest),
}

fn journal_path(dir: &Path) -> PathBuf {
    dir.with_added_extension("journal")
}

fn error(path: &Path) -> impl Fn(std::io::Error) -> WeightsError {
    move |e| WeightsError::file(path.display().to_string(), e)
}

impl Piecewise {
    /// Goes on with the pack in `dir`, or begins anew where what is there is of something else. The files of `src` must
    /// have their heads and lengths; their weights may be missing. `identity` tells the source's bytes from all others:
    /// digests of its files, say.
    pub fn open(
        src: &Checkpoint,
        expected: &[Expected],
        repository: Option<&Repository<'_>>,
        dir: &Path,
        identity: &[u8],
    ) -> Result<Piecewise, WeightsError> {
        let plan = Plan::new(src, expected, repository)?;
        let units = units(src, &plan.manifest)?;
        let mut hasher = blake3::Hasher::new();
        let planned = serde_json::to_vec(&plan.manifest).map_err(|e| WeightsError::file(super::MANIFEST_FILE, e))?;
        hasher.update(&planned).update(identity);
        let key = Digest(hasher.finalize());
        let chunks = vec![None; plan.manifest.weights.bytes.div_ceil(CHUNK) as usize];
        let journal = journal_path(dir);
        let (resumed, lines) = match files_are_there(dir, &plan.manifest) {
            true => resume(&journal, &key).map_err(error(&journal))?,
            false => (None, Vec::new()),
        };
        let new = || begin(dir, &journal, &plan.manifest, &key);
        let journal = resumed.map_or_else(new, Ok)?;
        let mut pack = Piecewise { dir: dir.to_path_buf(), plan, units, chunks, journal };
        // A line that does not fit is of no pack like this one: its unit is written again.
        lines.into_iter().for_each(|line| pack.take(line));
        Ok(pack)
    }

    /// Bytes of weights to be written, and those that are.
    pub fn bytes(&self) -> (u64, u64) {
        let sum = |done: bool| self.units.iter().filter(|u| u.done || !done).map(|u| u.bytes).sum();
        (sum(false), sum(true))
    }

    /// Whether something that is not written yet is made of this file.
    pub fn needs(&self, file: &str) -> bool {
        self.units.iter().any(|unit| !unit.done && unit.files.contains(file))
    }

    /// Writes all that is made of files that are `there`, and was not written before. It counts as written once it is on
    /// the disk. `progress` is told bytes as they are written.
    pub fn write(
        &mut self,
        src: &Checkpoint,
        there: &dyn Fn(&str) -> bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), WeightsError> {
        let ready = |unit: &Unit| !unit.done && unit.files.iter().all(|file| there(file));
        let ready: Vec<usize> = (0..self.units.len()).filter(|i| ready(&self.units[*i])).collect();
        let mut lines = Vec::new();
        for &i in &ready {
            lines.push(self.write_unit(src, self.units[i].what, progress)?);
        }
        if ready.is_empty() {
            return Ok(());
        }
        ready.iter().for_each(|i| self.units[*i].done = true);
        lines.extend(self.digest_chunks()?);
        for name in [WEIGHTS_FILE, EXPERTS_FILE] {
            let path = self.dir.join(name);
            match OpenOptions::new().write(true).open(&path) {
                Ok(file) => file.sync_data().map_err(error(&path))?,
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(error(&path)(e)),
            }
        }
        let mut text = Vec::new();
        lines.iter().for_each(|line| put(line, &mut text));
        let path = journal_path(&self.dir);
        self.journal.write_all(&text).and_then(|()| self.journal.sync_data()).map_err(error(&path))
    }

    /// Makes the pack whole, and gives it its name `dst`. All must be written. `src` need not have its weights any more.
    pub fn finish(mut self, src: &Checkpoint, dst: &Path) -> Result<Summary, WeightsError> {
        if let Some(unit) = self.units.iter().find(|unit| !unit.done) {
            let text = format!("{:?} of the source have not been packed", unit.files);
            return Err(WeightsError::file(self.dir.display().to_string(), text));
        }
        // A journal may have been cut between its tensors and their digests.
        self.digest_chunks()?;
        self.plan.manifest.weights.blake3 = self.chunks.iter().flatten().copied().collect();
        let bytes = self.plan.bytes();
        write::write_rest(src, &mut self.plan.manifest, &self.dir)?;
        // An empty folder of that name gives way; a full one makes the renaming fail.
        let _ = std::fs::remove_dir(dst);
        crate::staging::sync(&self.dir);
        std::fs::rename(&self.dir, dst).map_err(error(dst))?;
        crate::staging::sync(crate::staging::parent(dst));
        // What is left of it does no harm.
        let _ = std::fs::remove_file(journal_path(&self.dir));
        Ok(Summary { source_bytes: src.file_bytes(), bytes, left_out: self.plan.left_out })
    }

    fn write_unit(
        &mut self,
        src: &Checkpoint,
        what: What,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Line, WeightsError> {
        match what {
            What::Tensor(n) => {
                let tensor = &self.plan.manifest.tensors[n];
                let mut out = Out::at(&self.dir, WEIGHTS_FILE, tensor.offset)?;
                write::write_tensor(src, tensor, &mut |bytes| out.put(bytes))?;
                progress(tensor.bytes);
                Ok(Line::Tensor(n))
            }
            What::Stack(n) => {
                let stack = &mut self.plan.manifest.experts[n];
                (stack.xxh3, stack.blake3) = (Vec::new(), Vec::new());
                let mut out = Out::at(&self.dir, EXPERTS_FILE, stack.offset)?;
                write::write_stack(src, stack, self.plan.counts[n], &mut out, progress)?;
                Ok(Line::Stack { n, xxh3: stack.xxh3.clone(), blake3: stack.blake3.clone() })
            }
        }
    }

    /// Digests of the chunks of the weights that have become complete; they were just written, so that they are in memory.
    fn digest_chunks(&mut self) -> Result<Vec<Line>, WeightsError> {
        let path = self.dir.join(WEIGHTS_FILE);
        let mut incomplete = vec![false; self.chunks.len()];
        for unit in &self.units {
            if let (false, What::Tensor(n)) = (unit.done, unit.what) {
                let tensor = &self.plan.manifest.tensors[n];
                let last = (tensor.offset + tensor.bytes).div_ceil(CHUNK) as usize;
                incomplete[(tensor.offset / CHUNK) as usize..last].fill(true);
            }
        }
        let open = (0..self.chunks.len()).filter(|n| !incomplete[*n] && self.chunks[*n].is_none());
        let mut found: Vec<(usize, Result<Digest, std::io::Error>)> =
            open.map(|n| (n, Err(ErrorKind::Other.into()))).collect();
        write::parallel(found.iter_mut(), |(n, digest)| *digest = digest_of(&path, *n as u64));
        let mut lines = Vec::new();
        for (n, digest) in found {
            let digest = digest.map_err(error(&path))?;
            self.chunks[n] = Some(digest);
            lines.push(Line::Chunk(n, digest));
        }
        Ok(lines)
    }

    fn take(&mut self, line: Line) {
        let find = |units: &mut [Unit], wanted: &dyn Fn(What) -> bool| {
            units.iter_mut().filter(|u| wanted(u.what)).for_each(|u| u.done = true);
        };
        match line {
            Line::Pack(_) => {}
            Line::Tensor(of) => find(&mut self.units, &|what| matches!(what, What::Tensor(n) if n == of)),
            Line::Stack { n: of, xxh3, blake3 } => {
                let counts = &self.plan.counts;
                if counts.get(of).is_some_and(|count| [xxh3.len(), blake3.len()] == [*count; 2]) {
                    let stack = &mut self.plan.manifest.experts[of];
                    (stack.xxh3, stack.blake3) = (xxh3, blake3);
                    find(&mut self.units, &|what| matches!(what, What::Stack(n) if n == of));
                }
            }
            Line::Chunk(n, digest) => self.chunks.get_mut(n).into_iter().for_each(|chunk| *chunk = Some(digest)),
        }
    }
}

fn units(src: &Checkpoint, manifest: &Manifest) -> Result<Vec<Unit>, WeightsError> {
    let mut units = Vec::new();
    for (n, tensor) in manifest.tensors.iter().enumerate() {
        let files = src.files_of(&tensor.name)?;
        units.push(Unit { what: What::Tensor(n), files, bytes: tensor.bytes, done: false });
    }
    for (n, stack) in manifest.experts.iter().enumerate() {
        let mut files = BTreeSet::new();
        for part in PARTS {
            files.append(&mut src.files_of(&stack.part(part))?);
        }
        let next = manifest.experts.get(n + 1).map_or(manifest.experts_bytes, |next| next.offset);
        units.push(Unit { what: What::Stack(n), files, bytes: next - stack.offset, done: false });
    }
    Ok(units)
}

/// The files to be, and their sizes.
fn sizes(manifest: &Manifest) -> impl Iterator<Item = (&'static str, u64)> {
    let experts = (!manifest.experts.is_empty()).then_some((EXPERTS_FILE, manifest.experts_bytes));
    [(WEIGHTS_FILE, manifest.weights.bytes)].into_iter().chain(experts)
}

fn files_are_there(dir: &Path, manifest: &Manifest) -> bool {
    sizes(manifest).all(|(name, bytes)| std::fs::metadata(dir.join(name)).is_ok_and(|m| m.len() == bytes))
}

/// Makes the files in their full lengths, and a journal without units. The journal is last.
fn begin(dir: &Path, journal: &Path, manifest: &Manifest, key: &Digest) -> Result<File, WeightsError> {
    match std::fs::remove_file(journal) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(error(journal)(e)),
        _ => {}
    }
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(error(dir)(e)),
        _ => {}
    }
    std::fs::create_dir_all(dir).map_err(error(dir))?;
    for (name, bytes) in sizes(manifest) {
        let path = dir.join(name);
        File::create(&path).and_then(|file| file.set_len(bytes)).map_err(error(&path))?;
    }
    let mut text = Vec::new();
    put(&Line::Pack(*key), &mut text);
    let mut file = File::create_new(journal).map_err(error(journal))?;
    file.write_all(&text).and_then(|()| file.sync_data()).map_err(error(journal))?;
    Ok(file)
}

fn put(line: &Line, text: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(&mut *text, line);
    text.push(b'\n');
}

/// The lines of a journal that is of this pack. What a kill has left of a last line is cut off.
fn resume(path: &Path, key: &Digest) -> std::io::Result<(Option<File>, Vec<Line>)> {
    let mut text = Vec::new();
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok((None, Vec::new())),
        Err(e) => return Err(e),
    };
    file.read_to_end(&mut text)?;
    let (mut lines, mut good) = (Vec::new(), 0);
    for line in text.split_inclusive(|b| *b == b'\n') {
        let Some(Ok(read)) = line.strip_suffix(b"\n").map(serde_json::from_slice) else { break };
        lines.push(read);
        good += line.len();
    }
    if !matches!(lines.first(), Some(Line::Pack(found)) if found == key) {
        return Ok((None, Vec::new()));
    }
    file.set_len(good as u64)?;
    file.seek(SeekFrom::End(0))?;
    Ok((Some(file), lines))
}

fn digest_of(path: &Path, chunk: u64) -> std::io::Result<Digest> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(chunk * CHUNK))?;
    let mut hasher = blake3::Hasher::new();
    let mut part = file.take(CHUNK);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match part.read(&mut buffer)? {
            0 => return Ok(Digest(hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        };
    }
}
