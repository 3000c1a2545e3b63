//! An opened checkpoint: canonical tensors over mapped files.

use crate::entries::{self, Entry, Piece};
use crate::error::{Problem, WeightsError};
use crate::folder::{Bytes, Folder};
use crate::gguf::{self, Gguf};
use crate::index::INDEX_FILE;
use crate::limits::Limits;
use crate::mlx::Settings;
use crate::module::{self, Module};
use crate::names;
use crate::pack::{self, Pack};
use crate::report::FileSummary;
use crate::source::{Source, SourceFile};
use martlet_tensor::{Matrix, Scheme};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const CONFIG_FILE: &str = "config.json";

/// Whose conventions a checkpoint follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Hugging Face: norms stored as value - 1, convolutions [C, 1, taps].
    Hf,
    /// MLX: norms stored as they multiply, convolutions [C, taps, 1].
    Mlx,
    /// llama.cpp: norms stored as they multiply, convolutions [C, taps], `A_log` as -exp(A_log).
    Gguf,
    /// A pack: norms stored as they multiply, matrices in tiles.
    Pack,
}

/// A checkpoint whose files are mapped and whose tensors are known by their canonical names (those of Hugging Face's
/// Qwen3.5 without prefix; experts as stacks `layers.N.mlp.experts.{gate,up,down}_proj.weight` of [E, out, in]).
/// Nothing is read before it is asked for.
#[derive(Debug)]
pub struct Checkpoint {
    folder: Folder,
    pub(crate) source: Source,
    pub(crate) modules: Vec<Module>,
    pub(crate) entries: BTreeMap<String, Entry>,
    config: Value,
    gguf: Option<Gguf>,
    pack: Option<Pack>,
    layout: Layout,
    mtp_norm_shift: bool,
}

/// How a matrix is stored; a stack [E, out, in] has E * out rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixForm {
    /// Of its rows, once they are rewritten where that is needed.
    pub scheme: Scheme,
    pub rows: usize,
    pub cols: usize,
    /// Whether it lies in tiles: a device may use them where they are, as a whole.
    pub tiles: bool,
    /// In the files, scales and biases included.
    pub bytes: u64,
}

/// How a canonical tensor is stored.
pub(crate) struct Described {
    pub scheme: Scheme,
    /// In the files, scales and biases included.
    pub bytes: u64,
}

impl Checkpoint {
    /// Opens a folder (config.json and model.safetensors, or the index and its shards; mtp.safetensors if there is
    /// one), a single .safetensors file with config.json beside it, a .gguf file (the first of several parts, or the
    /// only one of a folder without safetensors files), or the folder of a pack. Fails when files, headers and config do not
    /// agree; [`Checkpoint::check`] then compares the tensors with what a model needs.
    pub fn open(path: &Path) -> Result<Checkpoint, WeightsError> {
        if path.is_dir() {
            return Checkpoint::load(Folder::Disk(path.to_path_buf()), None);
        }
        if !path.exists() {
            return Err(WeightsError::file(path.display().to_string(), "no such file or folder"));
        }
        let name = path.file_name().and_then(|n| n.to_str());
        match name.filter(|n| n.ends_with(".safetensors") || gguf::is_gguf(n)) {
            Some(name) => {
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
                let folder = Folder::Disk(parent.unwrap_or(Path::new(".")).to_path_buf());
                Checkpoint::load(folder, Some(name))
            }
            None => {
                let text = "is no checkpoint: a folder, or a .safetensors or .gguf file is expected";
                Err(WeightsError::file(path.display().to_string(), text))
            }
        }
    }

    /// Whether [`Checkpoint::open`] would take a GGUF file: `path` is one, or a folder with one and no safetensors files.
    /// Fails where a folder holds several.
    pub fn is_gguf(path: &Path) -> Result<bool, WeightsError> {
        match path.is_dir() {
            true => Ok(gguf::find(&Folder::Disk(path.to_path_buf()))?.is_some()),
            false => Ok(path.file_name().and_then(|n| n.to_str()).is_some_and(gguf::is_gguf)),
        }
    }

    /// A checkpoint of files (name, bytes) that are part of the program.
    pub fn from_files(files: Vec<(String, &'static [u8])>) -> Result<Checkpoint, WeightsError> {
        Checkpoint::load(Folder::Memory(files), None)
    }

    fn load(folder: Folder, only: Option<&str>) -> Result<Checkpoint, WeightsError> {
        let limits = Limits::default();
        let gguf = match only {
            Some(name) => gguf::is_gguf(name).then(|| name.to_string()),
            None => gguf::find(&folder)?,
        };
        if let Some(name) = gguf {
            return Checkpoint::load_gguf(folder, &name, &limits);
        }
        if only.is_none() && pack::is_pack(&folder) {
            return Checkpoint::load_pack(folder, &limits);
        }
        let (config, label) = (read_config(&folder, &limits)?, folder.label(CONFIG_FILE));
        let settings = Settings::new(&config).map_err(|e| WeightsError::file(&label, e))?;
        let source = Source::open(&folder, only, &limits)?;
        Checkpoint::assemble(folder, source, &settings, config)
    }

    /// A checkpoint of tensors that are in memory, or made as they are asked for.
    pub(crate) fn from_source(source: Source, config: Value) -> Result<Checkpoint, WeightsError> {
        let settings = Settings::new(&config).map_err(|e| WeightsError::file(CONFIG_FILE, e))?;
        Checkpoint::assemble(Folder::Memory(Vec::new()), source, &settings, config)
    }

    fn assemble(
        folder: Folder,
        source: Source,
        settings: &Settings,
        config: Value,
    ) -> Result<Checkpoint, WeightsError> {
        let (modules, problems) = module::modules(&source, settings, &config);
        if !problems.is_empty() {
            return Err(WeightsError::Tensors(problems));
        }
        let layout = entries::layout(&source, &modules).map_err(|e| match e {
            Some(problem) => problem.into(),
            None => {
                let text = "there is no linear_attn.conv1d.weight, by which the layout is told";
                WeightsError::file(folder.label(""), text)
            }
        })?;
        let entries = entries::entries(&source, &modules, &config)?;
        let mtp_norm_shift = layout == Layout::Hf;
        let (gguf, pack) = (None, None);
        Ok(Checkpoint { folder, source, modules, entries, config, gguf, pack, layout, mtp_norm_shift })
    }

    fn load_pack(folder: Folder, limits: &Limits) -> Result<Checkpoint, WeightsError> {
        let pack::Opened { source, modules, entries, pack } = pack::open(&folder, limits)?;
        let config = read_config(&folder, limits)?;
        let (gguf, pack, layout, mtp_norm_shift) = (None, Some(pack), Layout::Pack, false);
        Ok(Checkpoint { folder, source, modules, entries, config, gguf, pack, layout, mtp_norm_shift })
    }

    fn load_gguf(folder: Folder, name: &str, limits: &Limits) -> Result<Checkpoint, WeightsError> {
        let files = gguf::Files::open(&folder, name, limits)?;
        let config = gguf::config(&files.metadata, &files.source);
        let config = config.map_err(|what| WeightsError::file(folder.label(name), what))?;
        let (modules, tiled_heads, problems) = gguf::modules(&files, &config);
        if !problems.is_empty() {
            return Err(WeightsError::Tensors(problems));
        }
        let mut entries = entries::entries(&files.source, &modules, &config)?;
        if let Some(heads) = tiled_heads {
            gguf::group_rows(&mut entries, &heads);
        }
        let gguf = Some(Gguf { metadata: files.metadata });
        let (source, pack, layout, mtp_norm_shift) = (files.source, None, Layout::Gguf, false);
        Ok(Checkpoint { folder, source, modules, entries, config, gguf, pack, layout, mtp_norm_shift })
    }

    /// config.json; of a GGUF file, what its metadata say in that form.
    pub fn config(&self) -> &Value {
        &self.config
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Bytes of all weight files.
    pub fn file_bytes(&self) -> u64 {
        self.source.files.iter().map(|f| f.bytes.len() as u64).sum()
    }

    /// A file beside the weights (tokenizer.json, generation_config.json, ...), or `None` when there is none. Of a GGUF
    /// file, one made from its metadata; of random weights, their config alone.
    pub fn text_file(&self, name: &str) -> Result<Option<Vec<u8>>, WeightsError> {
        if name == CONFIG_FILE && (self.gguf.is_some() || self.source.pool.is_some()) {
            return Ok(Some(self.config.to_string().into_bytes()));
        }
        if let Some(gguf) = &self.gguf {
            let file = self.source.files.first().map_or("", |f| &f.name);
            return gguf::text_file(&gguf.metadata, name)
                .map_err(|what| WeightsError::file(self.folder.label(file), what));
        }
        self.folder.read(name, Limits::default().text_bytes)
    }

    /// Names of the text files that belong to the checkpoint: config, tokenizer, templates, generation and image settings,
    /// licences. Sorted.
    pub(crate) fn text_names(&self) -> Result<Vec<String>, WeightsError> {
        if self.gguf.is_some() {
            let made = [CONFIG_FILE, "chat_template.jinja", "generation_config.json"];
            return Ok(made.into_iter().chain(["tokenizer.json", "tokenizer_config.json"]).map(String::from).collect());
        }
        if self.source.pool.is_some() {
            return Ok(vec![CONFIG_FILE.into()]);
        }
        let mut names = self.folder.names()?;
        names.retain(|name| {
            let extension = name.rsplit_once('.').map_or("", |(_, e)| e);
            let text = ["json", "jinja", "txt", "model", "tiktoken"].contains(&extension);
            let licence = name.starts_with("LICENSE") || name.starts_with("NOTICE");
            (text || licence) && ![INDEX_FILE, pack::MANIFEST_FILE].contains(&name.as_str())
        });
        Ok(names)
    }

    /// Names of the files that a canonical tensor is made of.
    pub(crate) fn files_of(&self, name: &str) -> Result<BTreeSet<String>, WeightsError> {
        let mut files = BTreeSet::new();
        for module in self.entry(name)?.pieces.iter().map(|piece| &self.modules[piece.module]) {
            let tensors = [Some(module.weight), module.scales, module.biases, module.global];
            let file = |tensor: usize| self.source.files[self.source.tensors[tensor].file].name.clone();
            files.extend(tensors.into_iter().flatten().map(file));
        }
        Ok(files)
    }

    /// Name of the first weight file.
    pub(crate) fn file_name(&self) -> Option<&str> {
        self.source.files.first().map(|f| f.name.as_str())
    }

    pub(crate) fn pack_digest(&self) -> Option<blake3::Hash> {
        self.pack.as_ref().map(|p| p.digest)
    }

    /// Of a pack in a folder: the file of its experts, and where they lie in it. `None` where there is no such file.
    pub fn expert_file(&self) -> Option<(PathBuf, &[pack::Stack])> {
        match (&self.folder, &self.pack) {
            (Folder::Disk(dir), Some(pack)) if !pack.experts.is_empty() => {
                Some((dir.join(pack::EXPERTS_FILE), &pack.experts))
            }
            _ => None,
        }
    }

    /// Of a pack: has the system read all weights but experts into memory in the background. They are used with every
    /// token, and pages that come one by one make the first one late.
    pub fn prefetch(&self) {
        if self.pack.is_none() {
            return;
        }
        for file in self.source.files.iter().filter(|f| f.name.ends_with(pack::WEIGHTS_FILE)) {
            if let Bytes::Mapped(map) = &file.bytes {
                map.will_need();
            }
        }
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Whether the MTP head's norms are stored as value - 1. Follows the layout unless it is set: files that carry an
    /// MTP head beside MLX shards exist in both conventions, and only the acceptance of drafts tells them apart.
    pub fn set_mtp_norm_shift(&mut self, shift: bool) {
        self.mtp_norm_shift = shift;
    }

    /// See [`Checkpoint::set_mtp_norm_shift`].
    pub fn mtp_norm_shift(&self) -> bool {
        self.mtp_norm_shift
    }

    /// Canonical names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Shape of a tensor: [out, in], [E, out, in], [n]; convolutions [channels, taps].
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|e| e.shape.as_slice())
    }

    /// A matrix as it is stored; a stack [E, out, in] has E * out rows. What is rewritten for it is kept as long as the
    /// checkpoint: whoever goes through all tensors takes their [rows](Checkpoint::rows).
    pub fn matrix(&self, name: &str) -> Result<Matrix<'_>, WeightsError> {
        let entry = self.entry(name)?;
        if entry.vision_kernel_mlx {
            let text = "is stored as [O, T, P, P, C]; its values can be read, but not used as a matrix in place";
            return Err(self.problem(name, text).into());
        }
        self.stored(name)
    }

    /// All values of a (small) tensor in f32. Norms that multiply by 1 + w come as multipliers, whatever the layout.
    pub fn vector(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let entry = self.entry(name)?;
        let mut values = self.stored_rows(name, 0..self.row_count(name)?)?.matrix().dequantise();
        if entry.vision_kernel_mlx {
            values = entries::channels_first(&values, &entry.shape);
        }
        let shift = match name.starts_with("mtp.") {
            true => self.mtp_norm_shift,
            false => self.layout == Layout::Hf,
        };
        if shift && names::is_shifted_norm(name) {
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        Ok(values)
    }

    /// As [`Checkpoint::matrix`], in the order in which the values are stored.
    pub(crate) fn stored(&self, name: &str) -> Result<Matrix<'_>, WeightsError> {
        let entry = self.entry(name)?;
        let mut joined: Option<Matrix<'_>> = None;
        let mut rest = Vec::new();
        // Pieces of one module come one after the other.
        for pieces in entry.pieces.chunk_by(|a, b| a.module == b.module) {
            let matrix = self.modules[pieces[0].module].matrix(&self.source)?;
            for piece in pieces {
                let slice = matrix.slice(piece.rows.clone());
                match &joined {
                    None => joined = Some(slice),
                    Some(_) => rest.push(slice),
                }
            }
        }
        let joined = joined.map(|first| first.stack(&rest));
        match joined {
            Some(Ok(matrix)) => Ok(matrix),
            Some(Err(e)) => Err(self.problem(name, e.to_string()).into()),
            None => Err(self.problem(name, "has no rows").into()),
        }
    }

    /// How a matrix lies in its files, as [`Checkpoint::rows`] gives it.
    pub fn form(&self, name: &str) -> Result<MatrixForm, WeightsError> {
        let scheme = self.describe(name)?.scheme;
        let pieces = &self.entry(name)?.pieces;
        let tiles = pieces.iter().any(|p| self.modules[p.module].tiles.is_some());
        let cols = pieces.first().map_or(0, |p| module::rows_cols(&self.modules[p.module].shape).1);
        Ok(MatrixForm { scheme, rows: self.row_count(name)?, cols, tiles, bytes: self.stored_bytes(name) })
    }

    /// Scheme, columns and stored bytes of a canonical tensor, without rewriting what is rewritten when it is used, and
    /// without joining a pack's experts.
    pub(crate) fn describe(&self, name: &str) -> Result<Described, WeightsError> {
        let entry = self.entry(name)?;
        let mut modules = entry.pieces.iter().map(|p| &self.modules[p.module]);
        let first = modules.clone().find(|m| m.repack.is_some() || m.tiles.is_some());
        let Some((first, scheme)) = first.and_then(|m| Some((m, m.scheme?))) else {
            let matrix = self.stored(name)?;
            return Ok(Described { scheme: matrix.scheme(), bytes: matrix.bytes() as u64 });
        };
        let cols = |m: &Module| module::rows_cols(&m.shape).1;
        match modules.find(|m| m.scheme != Some(scheme) || cols(m) != cols(first)) {
            Some(_) => Err(self.problem(name, "is made of tensors of different types or widths").into()),
            None => Ok(Described { scheme, bytes: self.stored_bytes(name) }),
        }
    }

    pub(crate) fn entry(&self, name: &str) -> Result<&Entry, WeightsError> {
        self.entries.get(name).ok_or_else(|| self.missing(name).into())
    }

    /// The problem of a canonical tensor that no file holds.
    pub(crate) fn missing(&self, name: &str) -> Problem {
        let files: Vec<&str> = self.source.files.iter().map(|f| f.name.as_str()).collect();
        let file = match files.as_slice() {
            [file] => file.to_string(),
            files => format!("any of {} files", files.len()),
        };
        Problem { tensor: name.to_string(), file, what: "is missing".into() }
    }

    /// Stored bytes of a canonical tensor, scales and biases included; 0 when there is none of that name.
    pub(crate) fn stored_bytes(&self, name: &str) -> u64 {
        let pieces = self.entries.get(name).map_or(&[][..], |e| &e.pieces);
        let bytes = |piece: &Piece| {
            let module = &self.modules[piece.module];
            let rows = module::rows_cols(&module.shape).0.max(1) as u128;
            (module.bytes(&self.source) as u128 * piece.rows.len() as u128 / rows) as u64
        };
        pieces.iter().map(bytes).sum()
    }

    pub(crate) fn file_summaries(&self) -> Vec<FileSummary> {
        let summary = |(i, f): (usize, &SourceFile)| FileSummary {
            name: f.name.clone(),
            bytes: f.bytes.len() as u64,
            tensors: self.source.tensors.iter().filter(|t| t.file == i).count(),
        };
        self.source.files.iter().enumerate().map(summary).collect()
    }

    /// Weight files beside those of the checkpoint.
    pub(crate) fn unread_files(&self) -> Result<Vec<String>, WeightsError> {
        let mut names = self.folder.names()?;
        names.retain(|n| {
            (n.ends_with(".safetensors") || gguf::is_gguf(n)) && self.source.files.iter().all(|f| f.name != *n)
        });
        Ok(names)
    }

    /// A problem with a canonical tensor, under its stored name where it has one.
    pub(crate) fn problem(&self, name: &str, what: impl Into<String>) -> Problem {
        let module = self.entries.get(name).and_then(|e| e.pieces.first());
        match module.map(|p| &self.source.tensors[self.modules[p.module].weight]) {
            Some(t) => self.source.problem(t, what),
            None => Problem { tensor: name.to_string(), file: "no file".into(), what: what.into() },
        }
    }
}

fn read_config(folder: &Folder, limits: &Limits) -> Result<Value, WeightsError> {
    let label = folder.label(CONFIG_FILE);
    let Some(text) = folder.read(CONFIG_FILE, limits.json_bytes)? else {
        return Err(WeightsError::file(label, "is missing"));
    };
    serde_json::from_slice(&text).map_err(|e| WeightsError::file(&label, e))
}

#[cfg(test)]
mod tests;
