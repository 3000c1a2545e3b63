//! Weights in memory, in the tiles of [`martlet_tensor::tiles`]: packed once when a matrix is loaded, or used where a
//! mapped file holds them.
#![allow(unsafe_code)]

use crate::lanes::LANES;
use crate::pool::Pool;
use martlet_device::{DeviceError, MatrixSpec};
use martlet_io::Arena;
use martlet_tensor::{Matrix, Scheme, Shared};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

pub use martlet_tensor::tiles::{Codes, Kind, LINE, Scales, TILE_K};
use martlet_tensor::tiles::{Layout, Tiles};

/// A matrix [rows, cols] in tiles.
pub struct Weights {
    pub rows: usize,
    pub cols: usize,
    pub kind: Kind,
    /// Inputs that share a scale and an exact integer sum: 16, 32 or 64.
    pub group: usize,
    /// Inputs that share a scale of the activations: 16, 32 or 64.
    pub act_group: usize,
    scheme: Scheme,
    layout: Layout,
    bytes: Bytes,
    /// A factor for each output ([`Scales::F16Factor`]; empty elsewhere).
    factors: Vec<f32>,
}

/// Strips, at an address that is a multiple of [`LINE`].
enum Bytes {
    /// Held together with those who use its beginning ([`Weights::first_rows`]).
    Owned(Arc<Arena>),
    /// In somebody else's memory: a mapped file.
    Shared(Shared),
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Owned(arena) => arena,
            Bytes::Shared(shared) => shared,
        }
    }
}

/// `len` copies of `value`, or the error that says there is no memory for them. Zeros come from the system as they are
/// first touched: the KV cache of a long context costs only what sequences fill.
pub fn allocate<T: Copy>(what: &'static str, len: usize, value: T) -> Result<Vec<T>, DeviceError> {
    let bytes = len.saturating_mul(size_of::<T>());
    // `vec!` takes untouched pages for zeros, but ends the program where it gets none: so ask first.
    let asked = Vec::<T>::new().try_reserve_exact(len);
    asked.map_err(|_| DeviceError::Memory { device: crate::NAME, what, bytes })?;
    Ok(vec![value; len])
}

fn layout_of(spec: MatrixSpec) -> Result<Layout, DeviceError> {
    let no_memory = DeviceError::Memory { device: crate::NAME, what: "weights", bytes: usize::MAX };
    Layout::new(spec.scheme, spec.exact, spec.rows, spec.cols).ok_or(no_memory)
}

/// Where weights get their memory: regions of many matrices, so that nearly all of it lies in huge pages. An expert alone
/// is smaller than such a page.
#[derive(Default)]
pub struct Memory {
    /// What is left of the newest region.
    rest: Mutex<Option<Arena>>,
}

impl Memory {
    const REGION: usize = 64 << 20;

    /// `bytes` zeros, at a multiple of [`LINE`].
    fn take(&self, bytes: usize) -> Result<Arena, DeviceError> {
        let new =
            |size| Arena::new(size).map_err(|_| DeviceError::Memory { device: crate::NAME, what: "weights", bytes });
        if bytes > Self::REGION / 2 {
            return new(bytes);
        }
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let each = bytes.next_multiple_of(LINE);
        let region = match rest.take() {
            Some(region) if region.len() >= each => region,
            _ => new(Self::REGION)?,
        };
        Ok(rest.insert(region).split_to(each))
    }
}

impl Weights {
    /// Takes `m`, on all threads: packs it, or uses the tiles in which it lies already, without a copy unless `copy` asks
    /// for one. With `exact` the weights become plain floats, so that activations stay f32 too.
    pub fn load(m: &Matrix<'_>, exact: bool, copy: bool, memory: &Memory, pool: &Pool) -> Result<Weights, DeviceError> {
        let spec = MatrixSpec { scheme: m.scheme(), rows: m.rows(), cols: m.cols(), exact };
        let Some(tiles) = m.tiles() else {
            let mut weights = Weights::blank(spec, memory)?;
            weights.fill(0, m, pool)?;
            return Ok(weights);
        };
        let layout = layout_of(spec)?;
        let (bytes, factors) = stored(tiles, layout, copy, memory, pool)?;
        Ok(Weights::new(spec.scheme, layout, bytes, factors))
    }

    fn new(scheme: Scheme, layout: Layout, bytes: Bytes, factors: Vec<f32>) -> Weights {
        let Layout { rows, cols, kind, group, .. } = layout;
        Weights { rows, cols, kind, group, act_group: scheme.activation_group(), scheme, layout, bytes, factors }
    }

    /// Room for tiles, zero at first.
    pub fn blank(spec: MatrixSpec, memory: &Memory) -> Result<Weights, DeviceError> {
        let layout = layout_of(spec)?;
        let factors = if layout.has_factors() { layout.strips() * LANES } else { 0 };
        let bytes = Bytes::Owned(Arc::new(memory.take(layout.tile_bytes())?));
        Ok(Weights::new(spec.scheme, layout, bytes, allocate("factors of weights", factors, 0.0)?))
    }

    /// Packs `m` into the strips of the rows from `first` on, on all threads.
    pub fn fill(&mut self, first: usize, m: &Matrix<'_>, pool: &Pool) -> Result<(), DeviceError> {
        let (mut piece, strip) = (self.layout, self.layout.strip_bytes());
        piece.rows = m.rows();
        let last = first.saturating_add(m.rows());
        let alike = (m.scheme(), m.cols(), m.tiles().is_none()) == (self.scheme, self.cols, true);
        let fits =
            first.is_multiple_of(LANES) && last <= self.rows && (last == self.rows || last.is_multiple_of(LANES));
        let bytes = match &mut self.bytes {
            Bytes::Owned(arena) => Arc::get_mut(arena),
            Bytes::Shared(_) => None,
        };
        let Some(bytes) = bytes.filter(|_| alike && fits) else {
            let (rows, cols, scheme, more) = (self.rows, self.cols, self.scheme, m.rows());
            let text =
                format!("load {more} rows of {} at row {first} of a matrix [{rows}, {cols}] {scheme}", m.scheme());
            return Err(crate::buffer::failed(text));
        };
        let strips = first / LANES..first / LANES + piece.strips();
        let place = &mut bytes[strips.start * strip..strips.end * strip];
        pool.chunks(place, strip, LANES * m.cols(), |i, strip| piece.pack(m, i, strip));
        // Of most schemes there are none.
        let factors = piece.pack_factors(m);
        let of_rows = self.factors.iter_mut().skip(first);
        of_rows.zip(factors).for_each(|(to, factor)| *to = factor);
        Ok(())
    }

    /// The first rows as weights of their own, in the same memory.
    pub fn first_rows(&self, rows: usize) -> Result<Weights, DeviceError> {
        if rows > self.rows || !rows.is_multiple_of(LANES) {
            let text = format!("take {rows} rows of a matrix of {} as one of their own", self.rows);
            return Err(crate::buffer::failed(text));
        }
        let mut layout = self.layout;
        layout.rows = rows;
        let bytes = match &self.bytes {
            Bytes::Owned(arena) => Bytes::Owned(arena.clone()),
            Bytes::Shared(shared) => Bytes::Shared(shared.clone()),
        };
        Ok(Weights::new(self.scheme, layout, bytes, self.factors[..rows.min(self.factors.len())].to_vec()))
    }

    /// Bytes that weights take which do not lie in tiles yet.
    pub fn bytes_of(spec: MatrixSpec) -> u64 {
        layout_of(spec).map_or(u64::MAX, |layout| layout.bytes() as u64)
    }

    /// Strips of 16 outputs.
    pub fn strips(&self) -> usize {
        self.layout.strips()
    }

    /// Bytes of memory of its own; none for tiles in a mapped file.
    pub fn bytes(&self) -> usize {
        let strips = match &self.bytes {
            Bytes::Owned(arena) => arena.len(),
            Bytes::Shared(_) => 0,
        };
        strips + 4 * self.factors.len()
    }

    /// All tiles of the outputs 16 i to 16 i + 15.
    #[inline(always)]
    pub fn strip(&self, i: usize) -> &[u8] {
        let strip = self.layout.strip_bytes();
        &self.bytes[i * strip..(i + 1) * strip]
    }

    /// The same as little-endian words.
    #[inline(always)]
    pub fn words(&self, i: usize) -> &[[u32; LANES]] {
        let bytes = self.strip(i);
        // SAFETY: strips are whole lines in memory that is aligned to a line ([`Bytes`]); any 64 bytes are 16 words.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / LINE) }
    }

    /// Factors of the same outputs; 1 where the scheme has none.
    #[inline(always)]
    pub fn factors(&self, i: usize) -> [f32; LANES] {
        let mut f = [1.0; LANES];
        if !self.factors.is_empty() {
            f.copy_from_slice(&self.factors[i * LANES..(i + 1) * LANES]);
        }
        f
    }

    /// Output `n` in f32, equal to what the scheme's own decoder gives.
    #[inline(always)]
    pub fn row(&self, n: usize, y: &mut [f32]) {
        let (strip, lane) = (self.strip(n / LANES), n % LANES);
        let factor = self.factors(n / LANES)[lane];
        for (k, y) in y.iter_mut().enumerate() {
            *y = self.layout.value(strip, factor, lane, k);
        }
    }
}

/// The strips and factors of a matrix that lies in tiles.
fn stored(
    tiles: &[Tiles],
    layout: Layout,
    copy: bool,
    memory: &Memory,
    pool: &Pool,
) -> Result<(Bytes, Vec<f32>), DeviceError> {
    let [tiles] = tiles else {
        let text = format!("use a matrix of {} rows that lies in {} parts", layout.rows, tiles.len());
        return Err(crate::buffer::unsupported(text));
    };
    if tiles.layout() != layout {
        let (found, wanted) = (tiles.layout(), layout);
        return Err(crate::buffer::unsupported(format!("use tiles of {found:?}, expected {wanted:?}; pack again")));
    }
    let strips = tiles.strips();
    if !copy && strips.as_ptr().align_offset(LINE) == 0 {
        return Ok((Bytes::Shared(strips.clone()), tiles.factors()));
    }
    let mut bytes = memory.take(strips.len())?;
    let strip = layout.strip_bytes();
    pool.chunks(&mut bytes, strip, strip, |i, to| to.copy_from_slice(&strips[i * strip..(i + 1) * strip]));
    Ok((Bytes::Owned(Arc::new(bytes)), tiles.factors()))
}

#[cfg(test)]
impl Weights {
    /// Integer code of (output, k).
    pub fn code(&self, n: usize, k: usize) -> i32 {
        self.layout.code(self.strip(n / LANES), n % LANES, k)
    }

    /// Scale and bias of (output, k).
    pub fn scale(&self, n: usize, k: usize) -> (f32, f32) {
        self.layout.scale(self.strip(n / LANES), self.factors(n / LANES)[n % LANES], n % LANES, k)
    }

    /// Of [`Scales::Whole`]: d, and the scales of the tile that holds k.
    pub fn whole(&self, n: usize, k: usize) -> (f32, [i8; 4]) {
        let (strip, lane, t) = (self.strip(n / LANES), n % LANES, k / TILE_K);
        // A line of factors, and two tiles of 12 lines of codes and one of scales.
        let block = &strip[t / 2 * 27 * LINE..];
        let scales = &block[(1 + t % 2 * 13 + 12) * LINE + 4 * lane..][..4];
        let d = martlet_tensor::Float::F16.get(&block[4 * lane..], 0);
        (d, std::array::from_fn(|g| scales[g].cast_signed()))
    }

    pub fn value(&self, n: usize, k: usize) -> f32 {
        self.layout.value(self.strip(n / LANES), self.factors(n / LANES)[n % LANES], n % LANES, k)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::testing::{Random, every_scheme, random_matrix};

    #[test]
    fn zeros_cost_no_memory_until_they_are_written() {
        let resident = || martlet_io::memory::peak_resident().expect("the system tells");
        let before = resident();
        let zeros = allocate::<u16>("keys and values", 512 << 20, 0).expect("a reservation of 1 GiB");
        assert!(zeros[zeros.len() - 1] == 0 && resident() < before + (512 << 20));
    }

    /// The same matrix as a pack has it, mapped at a good or a bad address.
    fn tiles_are_used_in_place_or_copied(w: &Weights, m: &Matrix<'_>, exact: bool, pool: &Pool) {
        let factors: Vec<u8> = w.factors.iter().flat_map(|f| f.to_le_bytes()).collect();
        for shift in [0, 4] {
            // Twice the alignment: the allocator's addresses are multiples of 16.
            let mut memory = vec![0u8; w.bytes.len() + factors.len() + 2 * LINE];
            let start = memory.as_ptr().align_offset(LINE) + shift;
            memory[start..][..w.bytes.len()].copy_from_slice(&w.bytes);
            memory[start + w.bytes.len()..][..factors.len()].copy_from_slice(&factors);
            let all = Shared::new(std::sync::Arc::new(memory));
            let bytes = all.part(start..start + w.layout.bytes()).unwrap();
            let tiled = Matrix::tiled(m.scheme(), Tiles::new(w.layout, &bytes).unwrap());
            assert!(tiled.dequantise().iter().zip(m.dequantise()).all(|(a, b)| a.to_bits() == b.to_bits()));
            for copy in [false, true] {
                let again = Weights::load(&tiled, exact, copy, &Memory::default(), pool).unwrap();
                assert!(again.bytes[..] == w.bytes[..] && again.factors == w.factors);
                assert_eq!(matches!(again.bytes, Bytes::Shared(_)), !copy && shift == 0);
            }
            let dense = matches!(m.scheme(), martlet_tensor::Scheme::Dense(_));
            assert_eq!(
                Weights::load(&tiled, !exact, false, &Memory::default(), pool).is_ok(),
                dense,
                "tiles of the other kind"
            );
        }
    }

    /// The same in three pieces; its first 16 rows.
    fn pieces_make_the_whole(w: &Weights, m: &Matrix<'_>, exact: bool, pool: &Pool) {
        let spec = MatrixSpec { scheme: m.scheme(), rows: m.rows(), cols: m.cols(), exact };
        let mut pieces = Weights::blank(spec, &Memory::default()).unwrap();
        let cuts = [0, 16, 64, usize::MAX].map(|cut| m.rows().min(cut));
        for cut in cuts.windows(2).filter(|cut| cut[0] < cut[1]) {
            pieces.fill(cut[0], &m.slice(cut[0]..cut[1]), pool).unwrap();
        }
        assert!(pieces.bytes[..] == w.bytes[..] && pieces.factors == w.factors);
        assert_eq!(Weights::bytes_of(spec), w.bytes() as u64);
        assert!(pieces.fill(1, &m.slice(0..0), pool).is_err() && pieces.fill(m.rows() + 15, m, pool).is_err());
        let Ok(first) = w.first_rows(16) else { return assert!(m.rows() < 16) };
        let whole = Weights::load(&m.slice(0..16), exact, false, &Memory::default(), pool).unwrap();
        assert!(first.strip(0) == whole.strip(0) && first.factors(0) == whole.factors(0) && first.strips() == 1);
        assert!(first.strip(0).as_ptr() == w.strip(0).as_ptr() && w.first_rows(15).is_err());
    }

    #[test]
    fn packed_weights_are_the_stored_ones() {
        let (pool, memory) = (Pool::new(2).unwrap(), Memory::default());
        for scheme in every_scheme() {
            for (rows, cols) in [(1, 128), (16, 128), (37, 384), (5, 64), (130, 320), (3, 160), (18, 96)] {
                if !scheme.fits(cols) {
                    continue;
                }
                let stored = random_matrix(&mut Random::new(cols as u64), scheme, rows, cols);
                let want = stored.view().dequantise();
                for exact in [false, true] {
                    let w = Weights::load(&stored.view(), exact, false, &memory, &pool).unwrap();
                    for (i, want) in want.iter().enumerate() {
                        let got = w.value(i / cols, i % cols);
                        assert_eq!(got.to_bits(), want.to_bits(), "{scheme} {rows}x{cols} at {i}: {got} {want}");
                    }
                    tiles_are_used_in_place_or_copied(&w, &stored.view(), exact, &pool);
                    pieces_make_the_whole(&w, &stored.view(), exact, &pool);
                }
            }
        }
    }
}
