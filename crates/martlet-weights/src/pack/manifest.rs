//! manifest.json: what lies where. Every number is checked before anything is made of it.

use super::{BLOB_ALIGN, CHUNK, EXPERTS_FILE, PARTS, WEIGHTS_FILE};
use crate::index::plain_name;
use crate::limits::{Limits, MAX_DIMENSIONS};
use martlet_tensor::tiles::{self, LINE, Layout, Tiles};
use martlet_tensor::{Dtype, Scheme, ShapeError, Shared};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;

/// What [`Manifest::format`] says.
pub(super) const FORMAT: &str = "martlet pack";

/// Why bytes are not the manifest of a pack that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("has {found} bytes; at most {limit} are read")]
    Limit { found: u64, limit: u64 },
    #[error("is damaged, or no manifest: {field}: {what}. Make the pack again: {}", Remake(None))]
    Json { field: String, what: String },
    #[error("is the manifest of something else (format {found:?}, expected \"{FORMAT}\")")]
    Format { found: String },
    #[error("is a pack of layout {found}; this martlet reads layout {}. Make it again: {}", tiles::VERSION, Remake(made_from.as_deref()))]
    Layout { found: u64, made_from: Option<Box<Source>> },
    #[error("is damaged: {field} {what}. Make the pack again: {}", Remake(made_from.as_deref()))]
    Field { field: String, what: String, made_from: Option<Box<Source>> },
}

/// The command that makes a pack again.
pub(super) struct Remake<'a>(pub Option<&'a Source>);

/// Where a pack's source is, as far as its manifest says so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Source {
    pub path: Option<String>,
    pub repository: Option<String>,
    pub revision: Option<String>,
}

impl fmt::Display for Remake<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self.0 {
            Some(Source { repository: Some(repository), revision, .. }) => {
                let revision = revision.as_ref().map_or_else(String::new, |r| format!("@{r}"));
                return write!(f, "martlet pull {repository}{revision}");
            }
            Some(source) => source.path.as_deref(),
            None => None,
        };
        match path {
            // As a shell reads it; paths with other signs are rare enough.
            Some(path) if path.contains(' ') => write!(f, "martlet pack \"{path}\" NEW_FOLDER"),
            Some(path) => write!(f, "martlet pack {path} NEW_FOLDER"),
            None => f.write_str("martlet pack SOURCE NEW_FOLDER"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always "martlet pack".
    pub format: String,
    /// [`tiles::VERSION`] of whoever wrote it.
    pub layout: u64,
    pub source: Origin,
    pub weights: Weights,
    /// Bytes of [`EXPERTS_FILE`]; 0: there is none.
    pub experts_bytes: u64,
    /// In the order in which they lie in [`WEIGHTS_FILE`].
    pub tensors: Vec<Tensor>,
    /// In the order in which they lie in [`EXPERTS_FILE`].
    pub experts: Vec<Stack>,
    /// Files beside the weights.
    pub texts: Vec<Text>,
}

/// What a pack was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Folder or file.
    pub path: String,
    /// "OWNER/NAME" at the hub, where `martlet pull` fetched it from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// The commit of its repository, where that is known.
    pub revision: Option<String>,
    /// Of its weight files.
    pub bytes: u64,
}

impl Origin {
    pub(super) fn place(&self) -> Source {
        let Origin { path, repository, revision, .. } = self.clone();
        Source { path: Some(path), repository, revision }
    }
}

/// [`WEIGHTS_FILE`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weights {
    pub bytes: u64,
    /// Of each [`CHUNK`] bytes; the last may be shorter.
    pub blake3: Vec<Digest>,
}

/// A tensor in [`WEIGHTS_FILE`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Canonical name.
    pub name: String,
    pub shape: Vec<usize>,
    #[serde(with = "text")]
    pub scheme: Scheme,
    pub form: Form,
    pub offset: u64,
    pub bytes: u64,
}

/// How a tensor lies in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Floats, row after row; norms as multipliers.
    Plain,
    /// A matrix in the tiles of its scheme.
    Tiles,
    /// A matrix whose products never quantise the activations: in tiles of floats.
    Exact,
}

/// All experts of a layer, in [`EXPERTS_FILE`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stack {
    /// Canonical name of the layer's experts: "layers.0.mlp.experts".
    pub name: String,
    /// Expert e begins at `offset + e * stride`.
    pub offset: u64,
    /// A multiple of [`BLOB_ALIGN`].
    pub stride: u64,
    /// Bytes of an expert; zeros follow up to the next.
    pub bytes: u64,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
    /// XXH3 (64 bits) of the `bytes` bytes of each expert.
    pub xxh3: Vec<Sum>,
    /// BLAKE3 of the same.
    pub blake3: Vec<Digest>,
}

/// One matrix of an expert, in tiles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    /// [out, in].
    pub shape: [usize; 2],
    #[serde(with = "text")]
    pub scheme: Scheme,
    /// From the expert's first byte.
    pub offset: u64,
    pub bytes: u64,
}

/// A file beside the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Text {
    pub name: String,
    pub bytes: u64,
    pub blake3: Digest,
}

/// A BLAKE3 digest, in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(#[serde(with = "text")] pub blake3::Hash);

/// An XXH3 checksum, in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum(pub u64);

impl Serialize for Sum {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{:016x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Sum {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Sum, D::Error> {
        let text = String::deserialize(d)?;
        let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u64::from_str_radix(&text, 16).ok().filter(|_| digits);
        number.map(Sum).ok_or_else(|| serde::de::Error::custom("16 hexadecimal digits are expected"))
    }
}

/// Values as the text that they are displayed as.
mod text {
    use super::*;

    pub fn serialize<T: fmt::Display, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(value)
    }

    pub fn deserialize<'de, T, D>(d: D) -> Result<T, D::Error>
    where
        T: std::str::FromStr<Err: fmt::Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What every version of a manifest has.
#[derive(Deserialize)]
struct Head {
    format: String,
    layout: u64,
    source: Option<Source>,
}

/// Parses a manifest and checks everything that it says against itself: shapes, sizes, places, numbers of digests.
pub fn read(bytes: &[u8], limits: &Limits) -> Result<Manifest, ManifestError> {
    if bytes.len() as u64 > limits.json_bytes {
        return Err(ManifestError::Limit { found: bytes.len() as u64, limit: limits.json_bytes });
    }
    let head: Head = parse(bytes)?;
    if head.format != FORMAT {
        return Err(ManifestError::Format { found: head.format });
    }
    if head.layout != tiles::VERSION {
        return Err(ManifestError::Layout { found: head.layout, made_from: head.source.map(Box::new) });
    }
    let manifest: Manifest = parse(bytes)?;
    match manifest.check() {
        Ok(()) => Ok(manifest),
        Err((field, what)) => {
            Err(ManifestError::Field { field, what, made_from: Some(Box::new(manifest.source.place())) })
        }
    }
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ManifestError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json)
        .map_err(|e| ManifestError::Json { field: e.path().to_string(), what: e.inner().to_string() })?;
    let error = |e: serde_json::Error| ManifestError::Json { field: "end".into(), what: e.to_string() };
    json.end().map_err(error)?;
    Ok(parsed)
}

/// What is wrong with a field.
type Wrong = (String, String);

impl Manifest {
    fn check(&self) -> Result<(), Wrong> {
        let digests = self.weights.bytes.div_ceil(CHUNK);
        if self.weights.blake3.len() as u64 != digests {
            let (found, bytes) = (self.weights.blake3.len(), self.weights.bytes);
            return Err((
                "weights.blake3".into(),
                format!("has {found} digests, expected {digests} for {bytes} bytes"),
            ));
        }
        let mut names = BTreeSet::new();
        for (i, t) in self.tensors.iter().enumerate() {
            let wrong = |(part, what): Wrong| (format!("tensors[{i}].{part} ({})", t.name), what);
            t.check(self.weights.bytes).map_err(wrong)?;
            if !names.insert(t.name.clone()) {
                return Err(wrong(("name".into(), "is there twice".into())));
            }
        }
        for (i, stack) in self.experts.iter().enumerate() {
            let wrong = |(part, what): Wrong| (format!("experts[{i}].{part} ({})", stack.name), what);
            stack.check(self.experts_bytes).map_err(wrong)?;
            if PARTS.iter().any(|part| !names.insert(stack.part(part))) {
                return Err(wrong(("name".into(), "is there twice".into())));
            }
        }
        match self.texts.iter().position(|t| !plain_name(&t.name)) {
            Some(i) => Err((format!("texts[{i}].name"), format!("{:?} is no plain file name", self.texts[i].name))),
            None => Ok(()),
        }
    }
}

impl Tensor {
    fn check(&self, file: u64) -> Result<(), Wrong> {
        let Tensor { shape, scheme, form, .. } = self;
        let weights = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d).filter(|n| *n > 0));
        let Some(weights) = weights.filter(|_| shape.len() <= MAX_DIMENSIONS) else {
            return Err(("shape".into(), format!("{shape:?} is no shape")));
        };
        let bytes = match (form, scheme, shape.as_slice()) {
            (Form::Plain, Scheme::Dense(float), _) => weights.checked_mul(float.size()),
            (Form::Plain, ..) => return Err(("form".into(), format!("is plain, which {scheme} has none of"))),
            (_, _, &[rows, cols]) => Layout::new(*scheme, *form == Form::Exact, rows, cols).map(|l| l.bytes()),
            _ => return Err(("shape".into(), format!("{shape:?} is no matrix, but in tiles"))),
        };
        let what = || format!("shape {shape:?} of {scheme}");
        place(self.offset, self.bytes, bytes, file, LINE as u64, WEIGHTS_FILE, what)
    }

    /// The layout of its tiles, where it is in tiles.
    pub(super) fn layout(&self) -> Option<Layout> {
        match (self.form, self.shape.as_slice()) {
            (Form::Tiles | Form::Exact, &[rows, cols]) => {
                Layout::new(self.scheme, self.form == Form::Exact, rows, cols)
            }
            _ => None,
        }
    }

    /// The type of its elements in the file.
    pub(super) fn dtype(&self) -> Dtype {
        match (self.form, self.scheme) {
            (Form::Plain, Scheme::Dense(float)) => float.into(),
            _ => Dtype::U8,
        }
    }
}

impl Stack {
    fn check(&self, file: u64) -> Result<(), Wrong> {
        let count = self.xxh3.len();
        if count == 0 || self.blake3.len() != count {
            let text =
                format!("are {}, and checksums {count}: one of each for each expert is expected", self.blake3.len());
            return Err(("blake3".into(), text));
        }
        if self.bytes == 0 || self.bytes > self.stride || !self.stride.is_multiple_of(BLOB_ALIGN) {
            let (stride, bytes) = (self.stride, self.bytes);
            let text = format!("is {stride} for experts of {bytes} bytes, expected the next multiple of {BLOB_ALIGN}");
            return Err(("stride".into(), text));
        }
        let all = self.stride.checked_mul(count as u64).and_then(|all| usize::try_from(all).ok());
        let Some(all) = all else {
            return Err(("stride".into(), format!("is {}, too much for {count} experts", self.stride)));
        };
        place(self.offset, all as u64, Some(all), file, BLOB_ALIGN, EXPERTS_FILE, || format!("{count} experts"))?;
        for (name, m) in [("gate", &self.gate), ("up", &self.up), ("down", &self.down)] {
            let ([rows, cols], scheme) = (m.shape, m.scheme);
            let bytes = m.layout().filter(|_| rows > 0).map(|l| l.bytes());
            let what = || format!("shape [{rows}, {cols}] of {scheme}");
            place(m.offset, m.bytes, bytes, self.bytes, LINE as u64, "an expert", what)
                .map_err(|(part, what)| (format!("{name}.{part}"), what))?;
        }
        Ok(())
    }

    /// Where expert `e` begins in its file.
    pub fn place(&self, e: usize) -> u64 {
        self.offset + e as u64 * self.stride
    }

    /// Gate, up and down of an expert from its bytes in memory. Fails where they are too few.
    pub fn matrices(&self, bytes: &Shared) -> Result<[martlet_tensor::Matrix<'static>; 3], ShapeError> {
        let matrix = |m: &Matrix| {
            let [rows, cols] = m.shape;
            let cols_error = || ShapeError::Cols { cols, scheme: m.scheme.to_string() };
            let layout = m.layout().ok_or_else(cols_error)?;
            let (start, expected) = (m.offset as usize, layout.bytes());
            let (what, found) = ("tiles", bytes.len().saturating_sub(start));
            let part = bytes.part(start..start + expected);
            let part = part.ok_or(ShapeError::Bytes { what, rows, expected, found })?;
            Ok(martlet_tensor::Matrix::tiled(m.scheme, Tiles::new(layout, &part)?))
        };
        Ok([matrix(&self.gate)?, matrix(&self.up)?, matrix(&self.down)?])
    }

    /// The three matrices, in the order of [`PARTS`].
    pub(super) fn parts(&self) -> [&Matrix; 3] {
        [&self.gate, &self.up, &self.down]
    }

    /// Canonical name of one of them, of all experts.
    pub(super) fn part(&self, part: &str) -> String {
        format!("{}.{part}.weight", self.name)
    }
}

impl Matrix {
    pub(super) fn layout(&self) -> Option<Layout> {
        Layout::new(self.scheme, false, self.shape[0], self.shape[1])
    }
}

/// Whether `bytes` bytes at `offset` are as many as `expected` and lie in `file`, which has `len`, at a multiple of
/// `align`.
fn place(
    offset: u64,
    bytes: u64,
    expected: Option<usize>,
    len: u64,
    align: u64,
    file: &str,
    what: impl Fn() -> String,
) -> Result<(), Wrong> {
    match expected {
        None => Err(("shape".into(), format!("{} can not be", what()))),
        Some(expected) if expected as u64 != bytes => {
            Err(("bytes".into(), format!("is {bytes}, expected {expected} for {}", what())))
        }
        Some(_) if !offset.is_multiple_of(align) => {
            Err(("offset".into(), format!("is {offset}, no multiple of {align}")))
        }
        Some(_) if offset.checked_add(bytes).is_none_or(|end| end > len) => {
            Err(("offset".into(), format!("is {offset}, from where {bytes} bytes go beyond the {len} of {file}")))
        }
        Some(_) => Ok(()),
    }
}
