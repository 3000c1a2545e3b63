//! Tensors into tiles, and tiles into files: planned in full before the first byte.

use super::manifest::{Digest, FORMAT, Form, Manifest, Matrix, Origin, Stack, Sum, Tensor, Text, Weights};
use super::{BLOB_ALIGN, CHUNK, EXPERTS_FILE, MANIFEST_FILE, PAGE, PARTS, Progress, Repository, Summary, WEIGHTS_FILE};
use crate::checkpoint::{Checkpoint, Layout as Kept};
use crate::error::WeightsError;
use crate::folder::Folder;
use crate::report::{Expected, Kind};
use martlet_tensor::tiles::{self, LANES, LINE, Layout};
use martlet_tensor::{Float, Matrix as Stored, Scheme};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Bytes of tiles that are made at a time, by all cores.
const BATCH: usize = 16 << 20;

/// The manifest to be, digests left open, and what stays out.
pub(super) struct Plan {
    pub manifest: Manifest,
    /// Experts of each stack.
    pub counts: Vec<usize>,
    pub left_out: Vec<String>,
}

impl Plan {
    pub fn new(
        src: &Checkpoint,
        expected: &[Expected],
        repository: Option<&Repository<'_>>,
    ) -> Result<Plan, WeightsError> {
        if src.layout() == Kept::Pack {
            let text = "is a pack already: pack the checkpoint that it was made from";
            return Err(WeightsError::file(src.folder().label(""), text));
        }
        let manifest = Manifest {
            format: FORMAT.into(),
            layout: tiles::VERSION,
            source: origin(src, repository),
            weights: Weights { bytes: 0, blake3: Vec::new() },
            experts_bytes: 0,
            tensors: Vec::new(),
            experts: Vec::new(),
            texts: Vec::new(),
        };
        let mut plan = Plan { manifest, counts: Vec::new(), left_out: Vec::new() };
        for e in expected {
            match e.kind {
                Kind::Vector => plan.tensor(src, &e.name, Form::Plain)?,
                Kind::Matrix => plan.tensor(src, &e.name, Form::Tiles)?,
                Kind::Exact => plan.tensor(src, &e.name, Form::Exact)?,
                // The gate stands for all three.
                Kind::Experts => {
                    if let Some(stack) = e.name.strip_suffix(".gate_proj.weight") {
                        plan.stack(src, stack)?;
                    }
                }
            }
        }
        let known: std::collections::BTreeSet<&str> = expected.iter().map(|e| e.name.as_str()).collect();
        for name in src.names().filter(|name| !known.contains(name)) {
            if !name.starts_with("visual.") {
                plan.left_out.push(name.to_string());
                continue;
            }
            let dense = matches!(src.describe(name)?.scheme, Scheme::Dense(_));
            let matrix = src.shape(name).is_some_and(|s| s.len() == 2);
            plan.tensor(src, name, if matrix && !dense { Form::Tiles } else { Form::Plain })?;
        }
        Ok(plan)
    }

    /// Bytes of weights that will be written; some text files come on top.
    pub fn bytes(&self) -> u64 {
        self.manifest.weights.bytes + self.manifest.experts_bytes
    }

    fn tensor(&mut self, src: &Checkpoint, name: &str, form: Form) -> Result<(), WeightsError> {
        let stored = src.describe(name)?.scheme;
        let shape = src.shape(name).unwrap_or(&[]).to_vec();
        let scheme = match (form, stored) {
            // A multiplier is a sum in f32: kept as it is.
            (Form::Plain, Scheme::Dense(float)) if name.starts_with("visual.") => Scheme::Dense(float),
            (Form::Plain, _) => Scheme::Dense(Float::F32),
            (Form::Tiles | Form::Exact, scheme) => scheme,
        };
        let mut tensor = Tensor { name: name.to_string(), shape, scheme, form, offset: 0, bytes: 0 };
        let (bytes, align) = match (tensor.layout(), scheme) {
            (Some(layout), _) => (layout.bytes(), PAGE),
            (None, Scheme::Dense(float)) if form == Form::Plain => {
                (tensor.shape.iter().product::<usize>() * float.size(), LINE as u64)
            }
            _ => return Err(src.problem(name, format!("of shape {:?} can not be packed", tensor.shape)).into()),
        };
        tensor.offset = self.manifest.weights.bytes.next_multiple_of(align);
        tensor.bytes = bytes as u64;
        self.manifest.weights.bytes = tensor.offset + tensor.bytes;
        self.manifest.tensors.push(tensor);
        Ok(())
    }

    fn stack(&mut self, src: &Checkpoint, name: &str) -> Result<(), WeightsError> {
        let (mut count, mut bytes, mut parts) = (0, 0u64, Vec::new());
        for part in PARTS {
            let tensor = format!("{name}.{part}.weight");
            let scheme = src.describe(&tensor)?.scheme;
            let &[experts, rows, cols] = src.shape(&tensor).unwrap_or(&[]) else {
                return Err(src.problem(&tensor, "is no stack of matrices").into());
            };
            let matrix = Matrix { shape: [rows, cols], scheme, offset: bytes, bytes: 0 };
            let Some(layout) = matrix.layout() else {
                return Err(src.problem(&tensor, format!("of shape [{rows}, {cols}] can not be packed")).into());
            };
            // Strips are whole lines, so the next matrix begins with one.
            bytes += layout.bytes() as u64;
            count = experts;
            parts.push(Matrix { bytes: layout.bytes() as u64, ..matrix });
        }
        let Ok([gate, up, down]) = <[Matrix; 3]>::try_from(parts) else { unreachable!("an expert has three parts") };
        let (offset, stride) = (self.manifest.experts_bytes, bytes.next_multiple_of(BLOB_ALIGN));
        let (xxh3, blake3) = (Vec::new(), Vec::new());
        self.manifest.experts_bytes += stride * count as u64;
        self.manifest.experts.push(Stack {
            name: name.to_string(),
            offset,
            stride,
            bytes,
            gate,
            up,
            down,
            xxh3,
            blake3,
        });
        self.counts.push(count);
        Ok(())
    }
}

/// What is known of a checkpoint's whereabouts.
fn origin(src: &Checkpoint, repository: Option<&Repository<'_>>) -> Origin {
    let bytes = src.file_bytes();
    if let Some(Repository { name, revision }) = repository {
        let (repository, revision) = (Some(name.to_string()), Some(revision.to_string()));
        return Origin { path: name.to_string(), repository, revision, bytes };
    }
    let Folder::Disk(dir) = src.folder() else {
        // Random weights name themselves.
        let path = src.file_name().filter(|_| src.source.pool.is_some()).unwrap_or("built in").into();
        return Origin { path, repository: None, revision: None, bytes };
    };
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.clone());
    let path = match (src.layout(), src.file_name()) {
        (Kept::Gguf, Some(name)) => dir.join(name),
        _ => dir.clone(),
    };
    Origin { path: path.display().to_string(), repository: None, revision: revision(&dir), bytes }
}

/// The commit of a checkpoint that the hub's own tools fetched: into their cache (`.../snapshots/COMMIT`), or into a
/// folder (`.cache/huggingface/download/*.metadata`, the commit on its first line).
fn revision(dir: &Path) -> Option<String> {
    let commit =
        |text: &str| (text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())).then(|| text.to_string());
    let snapshots = dir.parent().and_then(Path::file_name).is_some_and(|name| name == "snapshots");
    if snapshots && let Some(found) = dir.file_name().and_then(|name| commit(&name.to_string_lossy())) {
        return Some(found);
    }
    let metadata = dir.join(".cache/huggingface/download/config.json.metadata");
    std::fs::read_to_string(metadata).ok().and_then(|text| commit(text.lines().next()?.trim()))
}

/// Writes everything into `dir`, manifest.json last.
pub(super) fn write(src: &Checkpoint, plan: Plan, dir: &Path, progress: Progress<'_>) -> Result<Summary, WeightsError> {
    let Plan { mut manifest, counts, left_out } = plan;
    let bytes = manifest.weights.bytes + manifest.experts_bytes;
    let mut done = 0;
    let mut step = |more: u64| {
        done += more;
        progress(done, bytes);
    };
    let mut out = Out::create(dir, WEIGHTS_FILE)?;
    let mut digests = Chunks::default();
    for tensor in &manifest.tensors {
        let from = out.at;
        let mut put = |bytes: &[u8]| {
            digests.add(bytes);
            out.put(bytes)
        };
        put(&vec![0; (tensor.offset - from) as usize])?;
        write_tensor(src, tensor, &mut put)?;
        step(out.at - from);
    }
    out.finish()?;
    manifest.weights.blake3 = digests.finish();
    if !manifest.experts.is_empty() {
        let mut out = Out::create(dir, EXPERTS_FILE)?;
        for (stack, count) in manifest.experts.iter_mut().zip(counts) {
            write_stack(src, stack, count, &mut out, &mut step)?;
        }
        out.finish()?;
    }
    write_rest(src, &mut manifest, dir)?;
    Ok(Summary { source_bytes: src.file_bytes(), bytes, left_out })
}

/// Writes the text files, and the manifest.
pub(super) fn write_rest(src: &Checkpoint, manifest: &mut Manifest, dir: &Path) -> Result<(), WeightsError> {
    for name in src.text_names()? {
        if let Some(bytes) = src.text_file(&name)? {
            Out::create(dir, &name)?.all(&bytes)?;
            let blake3 = Digest(blake3::hash(&bytes));
            manifest.texts.push(Text { name, bytes: bytes.len() as u64, blake3 });
        }
    }
    let text = serde_json::to_vec(&manifest).map_err(|e| WeightsError::file(MANIFEST_FILE, e))?;
    Out::create(dir, MANIFEST_FILE)?.all(&text)
}

pub(super) fn write_tensor(
    src: &Checkpoint,
    tensor: &Tensor,
    put: &mut dyn FnMut(&[u8]) -> Result<(), WeightsError>,
) -> Result<(), WeightsError> {
    let Some(layout) = tensor.layout() else {
        let float = if let Scheme::Dense(float) = tensor.scheme { float } else { Float::F32 };
        let mut bytes = Vec::new();
        src.vector(&tensor.name)?.iter().for_each(|v| float.put(*v, &mut bytes));
        return put(&bytes);
    };
    let (form, strip) = (src.form(&tensor.name)?, layout.strip_bytes());
    fits(src, &tensor.name, [form.rows, form.cols], &layout)?;
    let batch = (BATCH / strip).max(1) * LANES;
    let mut all_factors = Vec::new();
    for first in (0..layout.rows).step_by(batch) {
        let rows = src.rows(&tensor.name, first..layout.rows.min(first + batch))?;
        let (matrix, mut piece) = (rows.matrix(), layout);
        piece.rows = matrix.rows();
        let mut bytes = vec![0; piece.tile_bytes()];
        parallel(bytes.chunks_mut(strip).enumerate(), |(i, strip)| piece.pack(&matrix, i, strip));
        put(&bytes)?;
        all_factors.extend(factors(&matrix, &piece));
    }
    put(&all_factors)
}

pub(super) fn write_stack(
    src: &Checkpoint,
    stack: &mut Stack,
    count: usize,
    out: &mut Out,
    step: &mut dyn FnMut(u64),
) -> Result<(), WeightsError> {
    let mut parts = Vec::new();
    for (part, m) in PARTS.iter().zip(stack.parts()) {
        let name = stack.part(part);
        let form = src.form(&name)?;
        let Some(layout) = m.layout().filter(|l| l.rows.checked_mul(count) == Some(form.rows)) else {
            return Err(src.problem(&name, format!("has {} rows, not those of {count} experts", form.rows)).into());
        };
        fits(src, &name, [layout.rows, form.cols], &layout)?;
        parts.push((name, layout, m.offset as usize));
    }
    let (stride, used) = (stack.stride as usize, stack.bytes as usize);
    let batch = (BATCH / stride).max(1);
    for first in (0..count).step_by(batch) {
        let here = batch.min(count - first);
        let mut bytes = vec![0; here * stride];
        let mut sums = vec![(0, blake3::Hash::from_bytes([0; 32])); here];
        let read = |(name, layout, _): &(String, Layout, usize)| {
            src.rows(name, first * layout.rows..(first + here) * layout.rows)
        };
        let held = parts.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let matrices: Vec<_> = held.iter().map(|rows| rows.matrix()).collect();
        parallel(bytes.chunks_mut(stride).zip(&mut sums).enumerate(), |(i, (blob, sum))| {
            for ((_, layout, offset), matrix) in parts.iter().zip(&matrices) {
                let rows = i * layout.rows..(i + 1) * layout.rows;
                let (matrix, place) = (matrix.slice(rows), &mut blob[*offset..*offset + layout.bytes()]);
                let (tiles, rest) = place.split_at_mut(layout.tile_bytes());
                for (i, strip) in tiles.chunks_mut(layout.strip_bytes()).enumerate() {
                    layout.pack(&matrix, i, strip);
                }
                rest.copy_from_slice(&factors(&matrix, layout));
            }
            *sum = (xxhash_rust::xxh3::xxh3_64(&blob[..used]), blake3::hash(&blob[..used]));
        });
        stack.xxh3.extend(sums.iter().map(|s| Sum(s.0)));
        stack.blake3.extend(sums.iter().map(|s| Digest(s.1)));
        out.put(&bytes)?;
        step(bytes.len() as u64);
    }
    Ok(())
}

/// Whether a matrix is what was planned for.
fn fits(src: &Checkpoint, name: &str, found: [usize; 2], layout: &Layout) -> Result<(), WeightsError> {
    let expected = [layout.rows, layout.cols];
    if found == expected {
        return Ok(());
    }
    Err(src.problem(name, format!("is {found:?}, expected {expected:?}")).into())
}

fn factors(matrix: &Stored<'_>, layout: &Layout) -> Vec<u8> {
    layout.pack_factors(matrix).iter().flat_map(|f| f.to_le_bytes()).collect()
}

/// `work` on every item, on all cores; whoever is free takes the next.
pub(super) fn parallel<T: Send>(items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let items = Mutex::new(items);
    let take = || {
        let next = || items.lock().unwrap_or_else(|e| e.into_inner()).next();
        while let Some(item) = next() {
            work(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..martlet_io::topology::physical_cores() {
            scope.spawn(take);
        }
        take();
    });
}

/// A file being written.
pub(super) struct Out {
    file: File,
    path: PathBuf,
    at: u64,
}

impl Out {
    fn create(dir: &Path, name: &str) -> Result<Out, WeightsError> {
        let path = dir.join(name);
        let file = File::create(&path).map_err(|e| WeightsError::file(path.display().to_string(), e))?;
        Ok(Out { file, path, at: 0 })
    }

    /// A file that is there, from a place on.
    pub fn at(dir: &Path, name: &str, at: u64) -> Result<Out, WeightsError> {
        let path = dir.join(name);
        let open = || {
            let mut file = OpenOptions::new().write(true).open(&path)?;
            file.seek(SeekFrom::Start(at))?;
            Ok(file)
        };
        let file = open().map_err(|e: std::io::Error| WeightsError::file(path.display().to_string(), e))?;
        Ok(Out { file, path, at })
    }

    pub fn put(&mut self, bytes: &[u8]) -> Result<(), WeightsError> {
        self.at += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|e| WeightsError::file(self.path.display().to_string(), e))
    }

    fn finish(self) -> Result<(), WeightsError> {
        self.file.sync_all().map_err(|e| WeightsError::file(self.path.display().to_string(), e))
    }

    fn all(mut self, bytes: &[u8]) -> Result<(), WeightsError> {
        self.put(bytes)?;
        self.finish()
    }
}

/// Digests of every [`CHUNK`] bytes of a stream.
#[derive(Default)]
struct Chunks {
    hasher: blake3::Hasher,
    /// Bytes in the chunk so far.
    filled: u64,
    done: Vec<Digest>,
}

impl Chunks {
    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min((CHUNK - self.filled) as usize));
            self.hasher.update(now);
            self.filled += now.len() as u64;
            bytes = rest;
            if self.filled == CHUNK {
                self.end();
            }
        }
    }

    fn end(&mut self) {
        self.done.push(Digest(self.hasher.finalize()));
        self.hasher.reset();
        self.filled = 0;
    }

    fn finish(mut self) -> Vec<Digest> {
        if self.filled > 0 {
            self.end();
        }
        self.done
    }
}
