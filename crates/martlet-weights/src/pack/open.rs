//! A pack as tensors and modules, like those of other formats.

use super::manifest::{Manifest, Remake, Stack, read};
use super::{EXPERTS_FILE, MANIFEST_FILE, PARTS, WEIGHTS_FILE};
use crate::entries::{Entry, Piece};
use crate::error::WeightsError;
use crate::folder::Folder;
use crate::limits::Limits;
use crate::module::{Module, rows_cols};
use crate::source::{Raw, Source, SourceFile};
use martlet_tensor::tiles::Layout;
use martlet_tensor::{Dtype, Scheme};
use std::collections::BTreeMap;
use std::ops::Range;

/// What [`open`] found.
pub(crate) struct Opened {
    pub source: Source,
    pub modules: Vec<Module>,
    /// Names in a pack are canonical.
    pub entries: BTreeMap<String, Entry>,
    pub pack: Pack,
}

/// What a checkpoint remembers of its manifest.
#[derive(Debug)]
pub(crate) struct Pack {
    /// Of the manifest.
    pub digest: blake3::Hash,
    pub experts: Vec<Stack>,
}

/// Whether a folder is a pack, or part of one.
pub(crate) fn is_pack(folder: &Folder) -> bool {
    let safetensors = folder.has("model.safetensors") || folder.has(crate::index::INDEX_FILE);
    !safetensors && [MANIFEST_FILE, WEIGHTS_FILE].iter().any(|name| folder.has(name))
}

/// Reads the manifest and maps the files; their sizes must be the manifest's. No weight is looked at.
pub(crate) fn open(folder: &Folder, limits: &Limits) -> Result<Opened, WeightsError> {
    let (manifest, digest) = manifest(folder, limits)?;
    let missing = manifest.texts.iter().find(|t| !folder.has(&t.name));
    if let Some(text) = missing {
        let place = manifest.source.place();
        let again = Remake(Some(&place));
        return Err(WeightsError::file(folder.label(&text.name), format!("is missing; make the pack again: {again}")));
    }
    let mut files = vec![file(folder, &manifest, WEIGHTS_FILE, manifest.weights.bytes)?];
    if !manifest.experts.is_empty() {
        files.push(file(folder, &manifest, EXPERTS_FILE, manifest.experts_bytes)?);
    }
    let source = Source { files, ..Source::default() };
    let mut opened =
        Opened { source, modules: Vec::new(), entries: BTreeMap::new(), pack: Pack { digest, experts: Vec::new() } };
    for t in &manifest.tensors {
        let range = t.offset as usize..(t.offset + t.bytes) as usize;
        let piece = opened.add(t.name.clone(), t.shape.clone(), t.scheme, t.layout(), t.dtype(), 0, range);
        opened.entry(t.name.clone(), t.shape.clone(), vec![piece]);
    }
    for stack in &manifest.experts {
        let count = stack.xxh3.len();
        for (part, m) in PARTS.iter().zip(stack.parts()) {
            let expert = |e: usize| {
                let start = (stack.offset + e as u64 * stack.stride + m.offset) as usize;
                let name = format!("{}.{e}.{part}.weight", stack.name);
                opened.add(name, m.shape.to_vec(), m.scheme, m.layout(), Dtype::U8, 1, start..start + m.bytes as usize)
            };
            let pieces = (0..count).map(expert).collect();
            opened.entry(stack.part(part), [&[count], &m.shape[..]].concat(), pieces);
        }
    }
    opened.pack.experts = manifest.experts;
    Ok(opened)
}

/// The manifest of a folder, with its digest.
pub(super) fn manifest(folder: &Folder, limits: &Limits) -> Result<(Manifest, blake3::Hash), WeightsError> {
    let label = folder.label(MANIFEST_FILE);
    let Some(bytes) = folder.read(MANIFEST_FILE, limits.json_bytes)? else {
        let again = Remake(None);
        let text = format!("is missing: the pack was never finished, or is no more whole. Make it again: {again}");
        return Err(WeightsError::file(label, text));
    };
    let manifest = read(&bytes, limits).map_err(|source| WeightsError::Manifest { file: label, source })?;
    Ok((manifest, blake3::hash(&bytes)))
}

fn file(folder: &Folder, manifest: &Manifest, name: &str, expected: u64) -> Result<SourceFile, WeightsError> {
    let place = manifest.source.place();
    let again = Remake(Some(&place));
    if !folder.has(name) {
        return Err(WeightsError::file(folder.label(name), format!("is missing; make the pack again: {again}")));
    }
    let bytes = folder.open(name)?;
    let found = bytes.get().len() as u64;
    if found != expected {
        let text = format!("has {found} bytes, {MANIFEST_FILE} says {expected}; make the pack again: {again}");
        return Err(WeightsError::file(folder.label(name), text));
    }
    Ok(SourceFile { name: name.to_string(), bytes })
}

impl Opened {
    /// One stored tensor, as a piece of a canonical one.
    fn add(
        &mut self,
        name: String,
        shape: Vec<usize>,
        scheme: Scheme,
        tiles: Option<Layout>,
        dtype: Dtype,
        file: usize,
        range: Range<usize>,
    ) -> Piece {
        let (module, weight, scheme) = (self.modules.len(), self.source.tensors.len(), Some(scheme));
        let (scales, biases, global, repack) = (None, None, None, None);
        let rows = 0..rows_cols(&shape).0;
        self.source.tensors.push(Raw { name: name.clone(), dtype, shape: shape.clone(), file, range });
        self.modules.push(Module { name, weight, scales, biases, global, scheme, shape, repack, tiles });
        Piece { module, rows }
    }

    fn entry(&mut self, name: String, shape: Vec<usize>, pieces: Vec<Piece>) {
        self.entries.insert(name, Entry { shape, pieces, vision_kernel_mlx: false });
    }
}
