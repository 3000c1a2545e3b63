//! Tensors that can not be used as they lie in the file: blocks, values stored in another form, columns in another
//! order. They are rewritten when first used, row by row on all cores, without changing a number (but for the logarithm
//! of `ssm_a`).

use super::modules::tiled;
use crate::names::next::Heads;
use martlet_tensor::scheme::ggml::{BlockType, Planes, pack};
use martlet_tensor::{Float, Scheme, math};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stored bytes below which one thread is fastest.
const ONE_THREAD: usize = 4 << 20;

/// How the rows of one tensor are rewritten, and the result once they are.
#[derive(Debug)]
pub(crate) struct Repack {
    pub how: How,
    /// Columns come in equal shares, one for each value head, in tiled order.
    pub columns: Option<Heads>,
    pub cell: OnceLock<Result<Planes, String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Blocks(BlockType),
    Float(Float),
    /// f32 values v become ln(-v).
    LogOfNegative,
}

impl Repack {
    pub fn new(how: How, columns: Option<Heads>) -> Repack {
        Repack { how, columns, cell: OnceLock::new() }
    }

    /// The scheme of the result.
    pub fn scheme(&self) -> Scheme {
        match self.how {
            // Scales that share a factor can be moved with a whole block of it only.
            How::Blocks(block) => match self.columns {
                Some(heads) if !block.scheme().fits(heads.value_dim) => block.plain_scheme(),
                _ => block.scheme(),
            },
            How::Float(float) => Scheme::Dense(float),
            How::LogOfNegative => Scheme::Dense(Float::F32),
        }
    }

    /// All rows, rewritten once; `bytes` are the stored ones, `rows` of `cols` weights.
    pub fn planes(&self, bytes: &[u8], rows: usize, cols: usize) -> Result<&Planes, String> {
        self.cell.get_or_init(|| self.make(bytes, rows, cols)).as_ref().map_err(String::clone)
    }

    /// The same of any rows, for whoever keeps them.
    pub fn make(&self, bytes: &[u8], rows: usize, cols: usize) -> Result<Planes, String> {
        let scheme = self.scheme();
        let sizes = [scheme.code_bytes(cols), scheme.scale_bytes(cols), scheme.bias_bytes(cols)];
        let mut all = Planes {
            codes: vec![0; rows * sizes[0]],
            scales: vec![0; rows * sizes[1]],
            biases: vec![0; rows * sizes[2]],
        };
        if rows == 0 || bytes.is_empty() {
            return Ok(all);
        }
        let threads = if bytes.len() < ONE_THREAD { 1 } else { martlet_io::topology::physical_cores() };
        let each = rows.div_ceil(threads);
        let mut jobs = Vec::new();
        let mut rest = (all.codes.as_mut_slice(), all.scales.as_mut_slice(), all.biases.as_mut_slice());
        for (i, stored) in bytes.chunks(each * (bytes.len() / rows)).enumerate() {
            let n = each.min(rows - i * each);
            let (codes, a) = rest.0.split_at_mut(n * sizes[0]);
            let (scales, b) = rest.1.split_at_mut(n * sizes[1]);
            let (biases, c) = rest.2.split_at_mut(n * sizes[2]);
            rest = (a, b, c);
            jobs.push((i * each, stored, [codes, scales, biases]));
        }
        let failed = AtomicBool::new(false);
        let work = |(first, stored, out): (usize, &[u8], [&mut [u8]; 3])| {
            let done = self.rows(first, stored, bytes.len() / rows, out, &failed);
            failed.fetch_or(done.is_err(), Ordering::Relaxed);
            done
        };
        let mut jobs = jobs.into_iter();
        let own = jobs.next();
        std::thread::scope(|scope| {
            let workers: Vec<_> = jobs.map(|job| scope.spawn(|| work(job))).collect();
            let mut done = own.map_or(Ok(()), work);
            for worker in workers {
                done = done.and(worker.join().expect("rewriting rows does not panic"));
            }
            done
        })?;
        Ok(all)
    }

    fn rows(
        &self,
        first: usize,
        stored: &[u8],
        row_bytes: usize,
        mut out: [&mut [u8]; 3],
        failed: &AtomicBool,
    ) -> Result<(), String> {
        let mut planes = Planes::default();
        for (r, row) in stored.chunks(row_bytes).enumerate() {
            if failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            planes.codes.clear();
            planes.scales.clear();
            planes.biases.clear();
            self.row(row, &mut planes).map_err(|e| format!("row {}: {e}", first + r))?;
            if let Some(heads) = &self.columns {
                for plane in [&mut planes.codes, &mut planes.scales, &mut planes.biases] {
                    *plane = group_heads(plane, heads);
                }
            }
            if let How::Blocks(_) = self.how {
                let mut packed = Vec::with_capacity(planes.codes.len());
                pack(&planes.codes, self.scheme().bits(), &mut packed);
                planes.codes = packed;
            }
            for (out, plane) in out.iter_mut().zip([&planes.codes, &planes.scales, &planes.biases]) {
                out[r * plane.len()..(r + 1) * plane.len()].copy_from_slice(plane);
            }
        }
        Ok(())
    }

    /// Appends one row, in the order in which it is stored.
    fn row(&self, row: &[u8], out: &mut Planes) -> Result<(), String> {
        match self.how {
            How::Blocks(block) => block.planes(row, self.scheme(), out).map_err(|e| e.to_string())?,
            How::Float(_) => out.codes.extend(row),
            How::LogOfNegative => {
                for i in 0..row.len() / 4 {
                    let v = Float::F32.get(row, i);
                    if !(v < 0.0 && v.is_finite()) {
                        return Err(format!("value {i} is {v}, expected a negative number"));
                    }
                    Float::F32.put(math::ln64(-f64::from(v)) as f32, &mut out.codes);
                }
            }
        }
        Ok(())
    }
}

/// Equal shares of a row, one for each value head, from the tiled order to the grouped one.
fn group_heads(plane: &[u8], heads: &Heads) -> Vec<u8> {
    let share = plane.len() / heads.values;
    tiled(heads).flat_map(|head| &plane[head * share..(head + 1) * share]).copied().collect()
}
