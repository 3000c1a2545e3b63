//! Borrowed views of stored matrices.

use crate::scheme::{self, FP8_BLOCK, Scheme, affine};
use crate::tiles::Tiles;
use std::ops::Range;

/// Consecutive rows whose codes, scales and biases each lie in one piece, row after row.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub rows: usize,
    pub codes: &'a [u8],
    pub scales: &'a [u8],
    pub biases: &'a [u8],
    /// Factor of every scale ([`Scheme::Nvfp4`]; 1 elsewhere).
    pub global: f32,
    /// Row of the stored tensor at which the part begins, modulo 128: says which row of scale blocks is its first
    /// ([`Scheme::Fp8Block`]; 0 elsewhere).
    pub block_row: usize,
}

/// A matrix [rows, cols] as stored: a list of parts, so that a matrix joined or permuted from others needs no copy.
/// A stack of experts [E, out, in] is a matrix of E * out rows.
#[derive(Clone, Debug)]
pub struct Matrix<'a> {
    rows: usize,
    cols: usize,
    scheme: Scheme,
    parts: Parts<'a>,
    /// First row of each part.
    starts: Vec<usize>,
}

#[derive(Clone, Debug)]
enum Parts<'a> {
    Rows(Vec<Part<'a>>),
    Tiles(Vec<Tiles>),
}

/// One row of a [`Matrix`].
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub scheme: Scheme,
    pub codes: &'a [u8],
    pub scales: &'a [u8],
    pub biases: &'a [u8],
    pub global: f32,
}

/// The bytes given do not make the matrix that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("rows of {cols} values can not be stored as {scheme}")]
    Cols { cols: usize, scheme: String },
    #[error("{what} of {rows} rows take {expected} bytes, found {found}")]
    Bytes { what: &'static str, rows: usize, expected: usize, found: usize },
    #[error("matrices of {a} and {b} can not be joined")]
    Join { a: String, b: String },
}

impl<'a> Part<'a> {
    /// `rows` rows with the given bytes; scales and biases empty where the scheme has none.
    pub fn new(rows: usize, codes: &'a [u8], scales: &'a [u8], biases: &'a [u8]) -> Part<'a> {
        Part { rows, codes, scales, biases, global: 1.0, block_row: 0 }
    }

    fn check(&self, scheme: Scheme, cols: usize) -> Result<(), ShapeError> {
        let scale_rows = match scheme {
            Scheme::Fp8Block { .. } => (self.block_row + self.rows).div_ceil(FP8_BLOCK),
            _ => self.rows,
        };
        let want = [
            ("codes", self.codes.len(), self.rows.checked_mul(scheme.code_bytes(cols))),
            ("scales", self.scales.len(), scale_rows.checked_mul(scheme.scale_bytes(cols))),
            ("biases", self.biases.len(), self.rows.checked_mul(scheme.bias_bytes(cols))),
        ];
        for (what, found, expected) in want {
            let expected = expected.unwrap_or(usize::MAX);
            if found != expected {
                return Err(ShapeError::Bytes { what, rows: self.rows, expected, found });
            }
        }
        Ok(())
    }

    fn slice(&self, scheme: Scheme, cols: usize, rows: Range<usize>) -> Part<'a> {
        let cut = |bytes: &'a [u8], size: usize| &bytes[rows.start * size..rows.end * size];
        let (scales, block_row) = match scheme {
            Scheme::Fp8Block { .. } => {
                let (first, size) = ((self.block_row + rows.start) / FP8_BLOCK, scheme.scale_bytes(cols));
                let last = (self.block_row + rows.end).div_ceil(FP8_BLOCK);
                (&self.scales[first * size..last.max(first) * size], (self.block_row + rows.start) % FP8_BLOCK)
            }
            _ => (cut(self.scales, scheme.scale_bytes(cols)), 0),
        };
        Part {
            rows: rows.len(),
            codes: cut(self.codes, scheme.code_bytes(cols)),
            scales,
            biases: cut(self.biases, scheme.bias_bytes(cols)),
            global: self.global,
            block_row,
        }
    }
}

impl<'a> Matrix<'a> {
    /// A matrix of `parts`, one below the other. Fails when a part's bytes do not fit `scheme` and `cols`.
    pub fn new(scheme: Scheme, cols: usize, parts: Vec<Part<'a>>) -> Result<Matrix<'a>, ShapeError> {
        if !scheme.fits(cols) {
            return Err(ShapeError::Cols { cols, scheme: scheme.to_string() });
        }
        let mut starts = Vec::with_capacity(parts.len());
        let mut rows = 0;
        for part in &parts {
            part.check(scheme, cols)?;
            starts.push(rows);
            rows += part.rows;
        }
        Ok(Matrix { rows, cols, scheme, parts: Parts::Rows(parts), starts })
    }

    /// A matrix of `scheme` that lies in tiles already.
    pub fn tiled(scheme: Scheme, tiles: Tiles) -> Matrix<'a> {
        let (rows, cols) = (tiles.layout().rows, tiles.layout().cols);
        Matrix { rows, cols, scheme, parts: Parts::Tiles(vec![tiles]), starts: vec![0] }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The parts of a matrix that lies in tiles: one below the other, each with strips of its own.
    pub fn tiles(&self) -> Option<&[Tiles]> {
        match &self.parts {
            Parts::Tiles(tiles) => Some(tiles),
            Parts::Rows(_) => None,
        }
    }

    /// The parts of a matrix that does not lie in tiles.
    pub fn parts(&self) -> &[Part<'a>] {
        match &self.parts {
            Parts::Rows(parts) => parts,
            Parts::Tiles(_) => &[],
        }
    }

    /// Stored bytes, scales and biases included.
    pub fn bytes(&self) -> usize {
        match &self.parts {
            Parts::Rows(parts) => parts.iter().map(|p| p.codes.len() + p.scales.len() + p.biases.len()).sum(),
            Parts::Tiles(tiles) => tiles.iter().map(Tiles::bytes).sum(),
        }
    }

    /// The part that holds row `r`, and the row's place in it.
    fn find(&self, r: usize) -> (usize, usize) {
        assert!(r < self.rows, "row {r} of {}", self.rows);
        let i = self.starts.partition_point(|&s| s <= r) - 1;
        (i, r - self.starts[i])
    }

    /// Row `r` as it is stored; panics when it is not below [`Matrix::rows`], or the matrix lies in tiles, where rows have
    /// no bytes of their own.
    pub fn row(&self, r: usize) -> Row<'a> {
        let (i, r) = self.find(r);
        let Parts::Rows(parts) = &self.parts else { panic!("row {r} of a matrix in tiles") };
        let p = parts[i].slice(self.scheme, self.cols, r..r + 1);
        Row { scheme: self.scheme, codes: p.codes, scales: p.scales, biases: p.biases, global: p.global }
    }

    /// Row `r` in f32, one value for each column; panics when it is not below [`Matrix::rows`].
    pub fn dequantise_row(&self, r: usize, out: &mut [f32]) {
        match &self.parts {
            Parts::Rows(_) => self.row(r).dequantise(out),
            Parts::Tiles(tiles) => {
                let (i, r) = self.find(r);
                tiles[i].dequantise_row(r, out);
            }
        }
    }

    /// Rows `range` as a matrix of their own; panics when the range is out of bounds, or begins inside a strip of tiles.
    pub fn slice(&self, range: Range<usize>) -> Matrix<'a> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let (mut starts, mut rows) = (Vec::new(), 0);
        // Parts outside the range are not looked at: a stack of experts has many, and is cut into as many slices.
        let first = self.starts.partition_point(|&s| s <= range.start).saturating_sub(1);
        let last = self.starts.partition_point(|&s| s < range.end).max(first);
        // The rows of a part that has `len` from `start` on.
        let mut cut = |start: usize, len: usize| {
            let (a, b) = (range.start.max(start), range.end.min(start + len));
            (a < b).then(|| {
                starts.push(rows);
                rows += b - a;
                a - start..b - start
            })
        };
        let parts = match &self.parts {
            Parts::Rows(parts) => {
                let all = parts[first..last].iter().zip(&self.starts[first..last]);
                let some = |(p, &s): (&Part<'a>, &usize)| Some(p.slice(self.scheme, self.cols, cut(s, p.rows)?));
                Parts::Rows(all.filter_map(some).collect())
            }
            Parts::Tiles(tiles) => {
                let all = tiles[first..last].iter().zip(&self.starts[first..last]);
                let some = |(t, &s): (&Tiles, &usize)| Some(t.slice(cut(s, t.layout().rows)?));
                Parts::Tiles(all.filter_map(some).collect())
            }
        };
        Matrix { rows, cols: self.cols, scheme: self.scheme, parts, starts }
    }

    /// `others` below `self`; all must have the same scheme and number of columns, and all or none must lie in tiles.
    pub fn stack(mut self, others: &[Matrix<'a>]) -> Result<Matrix<'a>, ShapeError> {
        let name = |m: &Matrix<'_>| {
            let form = if m.tiles().is_some() { " in tiles" } else { "" };
            format!("{}{form} with {} columns", m.scheme, m.cols)
        };
        for other in others {
            match (&mut self.parts, &other.parts) {
                _ if (other.scheme, other.cols) != (self.scheme, self.cols) => {
                    return Err(ShapeError::Join { a: name(&self), b: name(other) });
                }
                (Parts::Rows(parts), Parts::Rows(more)) => parts.extend(more),
                (Parts::Tiles(parts), Parts::Tiles(more)) => parts.extend(more.iter().cloned()),
                _ => return Err(ShapeError::Join { a: name(&self), b: name(other) }),
            }
            self.starts.extend(other.starts.iter().map(|s| s + self.rows));
            self.rows += other.rows;
        }
        Ok(self)
    }

    /// The whole matrix in f32, row after row.
    pub fn dequantise(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        for (r, y) in out.chunks_mut(self.cols).enumerate() {
            self.dequantise_row(r, y);
        }
        out
    }
}

impl Row<'_> {
    /// Widens the row to f32; `out` has one value for each column.
    pub fn dequantise(&self, out: &mut [f32]) {
        scheme::dequantise(self, out);
    }

    /// Integer code of column `k` (for the schemes with integer codes of up to 8 bits).
    #[inline]
    pub fn code(&self, k: usize) -> u8 {
        affine::code(self.codes, self.scheme.bits(), k)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiles::Layout;
    use crate::{Float, Shared};
    use std::sync::Arc;

    fn dense(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn slices_and_stacks_keep_rows() {
        let bytes = dense(&(0..12).map(|v| v as f32).collect::<Vec<_>>());
        let m = Matrix::new(Scheme::Dense(Float::F32), 2, vec![Part::new(6, &bytes, &[], &[])]).unwrap();
        let joined = m.slice(4..6).stack(&[m.slice(0..1), m.slice(2..2), m.slice(1..3)]).unwrap();
        assert_eq!(joined.rows(), 5);
        assert_eq!(joined.dequantise(), [8.0, 9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(joined.slice(1..4).dequantise(), [10.0, 11.0, 0.0, 1.0, 2.0, 3.0]);
    }

    #[test]
    fn fp8_rows_keep_their_scale_blocks_when_cut() {
        let (rows, cols) = (300, 130);
        let codes = vec![0x38; rows * cols]; // 1.0
        let scales = dense(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let scheme = Scheme::Fp8Block { scale: Float::F32 };
        let m = Matrix::new(scheme, cols, vec![Part::new(rows, &codes, &scales, &[])]).unwrap();
        let all = m.dequantise();
        assert_eq!((all[0], all[129], all[128 * cols], all[299 * cols + 128]), (1.0, 2.0, 3.0, 6.0));
        assert_eq!(m.slice(100..290).slice(27..180).dequantise(), all[127 * cols..280 * cols]);
    }

    #[test]
    fn tiles_can_be_cut_between_strips_and_joined() {
        let (rows, cols) = (50, 64);
        let scheme = Scheme::Dense(Float::F32);
        let bytes = dense(&(0..rows * cols).map(|v| v as f32).collect::<Vec<_>>());
        let m = Matrix::new(scheme, cols, vec![Part::new(rows, &bytes, &[], &[])]).unwrap();
        let layout = Layout::new(scheme, false, rows, cols).unwrap();
        let mut tiles = vec![0; layout.bytes()];
        for (i, strip) in tiles.chunks_mut(layout.strip_bytes()).enumerate() {
            layout.pack(&m, i, strip);
        }
        let shared = Shared::new(Arc::new(tiles));
        let t = Matrix::tiled(scheme, Tiles::new(layout, &shared).unwrap());
        assert_eq!((t.rows(), t.cols(), t.bytes()), (rows, cols, 64 * cols * 4));
        assert_eq!(t.dequantise(), m.dequantise());
        let joined = t.slice(32..50).stack(&[t.slice(0..20), t.slice(16..17)]).unwrap();
        let expected = m.slice(32..50).stack(&[m.slice(0..20), m.slice(16..17)]).unwrap();
        assert_eq!(joined.dequantise(), expected.dequantise());
        assert_eq!(joined.slice(18..39).dequantise(), expected.slice(18..39).dequantise());
        assert_eq!(joined.tiles().map(<[Tiles]>::len), Some(3));
        assert!(t.clone().stack(&[m]).unwrap_err().to_string().contains("f32 in tiles with 64 columns"));
        let short = Tiles::new(layout, &shared.part(0..100).unwrap());
        assert!(matches!(short, Err(ShapeError::Bytes { what: "tiles", expected: 16384, found: 100, .. })));
        assert_eq!(Layout::new(scheme, false, usize::MAX, cols), None);
        assert_eq!(Layout::new(scheme, false, 1, usize::MAX / 16), None);
    }

    #[test]
    fn wrong_bytes_are_refused() {
        let scheme = Scheme::Affine { bits: 4, group: 64, scale: Float::Bf16 };
        assert!(matches!(Matrix::new(scheme, 96, vec![]), Err(ShapeError::Cols { cols: 96, .. })));
        let short = Matrix::new(scheme, 64, vec![Part::new(2, &[0; 64], &[0; 4], &[0; 2])]);
        assert!(matches!(short, Err(ShapeError::Bytes { what: "biases", expected: 4, found: 2, .. })));
    }
}
