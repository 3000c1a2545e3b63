//! The device: its options, its handles, and the trait. Work is done at once; an operation returns when it is finished.

use crate::attend::Attention;
use crate::buffer::{Buffer, count, failed, unsupported};
use crate::delta::Delta;
use crate::isa::Isa;
use crate::kernel_set::KernelSet;
use crate::kernels::elementwise::Combine;
use crate::kernels::gdn::BORDER;
use crate::kernels::{attention, route};
use crate::kv::Kv;
use crate::pool::Pool;
use crate::products::{self, Experts, Scratch};
use crate::tiles::{Memory, Weights, allocate};
use martlet_device::sampling::{SampleRow, Sampled, sample_with};
use martlet_device::{
    AttentionSpec, Batch, DeltaSpec, Device, DeviceError, ExpertShape, Heads, KvSpec, MatrixSpec, RouteSpec, Routes,
    Rows,
};
use martlet_tensor::Matrix as Stored;

/// Most threads: more than any machine has cores, and few enough that the system still starts them.
const MAX_THREADS: usize = 1024;

/// How the device is made. The default takes what the machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the caller's included; `None`: one for each physical core.
    pub threads: Option<usize>,
    /// Instruction set; `None`: the best that the machine has. It can not change a result.
    pub isa: Option<Isa>,
}

/// The CPU device.
pub struct Cpu {
    copy: bool,
    memory: Memory,
    pool: Pool,
    kernels: KernelSet,
    scratch: Scratch,
    route_scratch: route::Scratch,
    attention: Attention,
}

/// Weights [out, in] in tiles.
pub struct Matrix(Weights);

impl Matrix {
    /// Bytes of memory of its own; none for weights in a mapped file.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// A vector of f32.
pub struct Vector(Vec<f32>);

/// Choices of a batch's rows.
pub struct RouteTable {
    spec: RouteSpec,
    experts: Vec<u32>,
    weights: Vec<f32>,
}

impl Cpu {
    /// Starts the threads and chooses the kernels. Fails when the machine lacks the instruction set asked for.
    pub fn new(options: CpuOptions) -> Result<Cpu, DeviceError> {
        let isa = options.isa.unwrap_or_else(Isa::best);
        if !isa.available() {
            let here = Isa::ALL.into_iter().filter(|isa| isa.available()).map(|isa| isa.to_string());
            let here = here.collect::<Vec<_>>().join(", ");
            return Err(unsupported(format!("use the instruction set {isa} on this machine, which has {here}")));
        }
        let threads = options.threads.unwrap_or_else(|| martlet_io::topology::physical_cores().min(MAX_THREADS));
        if threads == 0 || threads > MAX_THREADS {
            return Err(unsupported(format!("work with {threads} threads: from 1 to {MAX_THREADS} are expected")));
        }
        let pool = Pool::new(threads).map_err(|e| failed(format!("to start {threads} threads: {e}")))?;
        let (scratch, route_scratch) = (Scratch::default(), route::Scratch::default());
        let (kernels, attention) = (KernelSet::new(isa), Attention::default());
        Ok(Cpu { copy: false, memory: Memory::default(), pool, kernels, scratch, route_scratch, attention })
    }

    /// With `copy`, weights that a mapped file holds in tiles are copied into memory (in huge pages where the system has
    /// them), instead of being read there. It can not change a result.
    pub fn with_copied_weights(self, copy: bool) -> Cpu {
        Cpu { copy, ..self }
    }

    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    pub fn isa(&self) -> Isa {
        self.kernels.isa
    }

    /// `f(row, values)` for the first `rows` rows of y.
    fn rows(&self, y: &mut Buffer, rows: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
        let cols = y.cols.max(1);
        self.pool.chunks(y.first(rows), cols, cols, f);
    }

    /// `f(row, head, values)` for every head of the first `rows` rows of y.
    fn heads(&self, y: &mut Buffer, rows: usize, heads: Heads, f: impl Fn(usize, usize, &mut [f32]) + Sync) {
        let cols = y.cols;
        self.pool.heads(y.first(rows), cols, heads, heads.dim, f);
    }
}

impl Device for Cpu {
    type Matrix = Matrix;
    type Vector = Vector;
    type Experts = Experts;
    type Buffer = Buffer;
    type Kv = Kv;
    type Delta = Delta;
    type Routes = RouteTable;
    type Batch = Batch;

    fn name(&self) -> &'static str {
        crate::NAME
    }

    /// Neither threads nor instruction set are part of it: they change nothing.
    fn arithmetic_id(&self) -> String {
        format!("cpu r3 q8 gdn{BORDER} attn{}", attention::BLOCK)
    }

    fn matrix(&self, m: &Stored<'_>, exact: bool) -> Result<Matrix, DeviceError> {
        Ok(Matrix(Weights::load(m, exact, self.copy, &self.memory, &self.pool)?))
    }

    fn matrix_bytes(&self, spec: MatrixSpec) -> u64 {
        Weights::bytes_of(spec)
    }

    fn blank_matrix(&self, spec: MatrixSpec) -> Result<Matrix, DeviceError> {
        Ok(Matrix(Weights::blank(spec, &self.memory)?))
    }

    fn load_rows(&self, matrix: &mut Matrix, first: usize, rows: &Stored<'_>) -> Result<(), DeviceError> {
        matrix.0.fill(first, rows, &self.pool)
    }

    fn first_rows(&self, matrix: &Matrix, rows: usize) -> Result<Matrix, DeviceError> {
        Ok(Matrix(matrix.0.first_rows(rows)?))
    }

    fn vector(&self, values: &[f32]) -> Result<Vector, DeviceError> {
        Ok(Vector(values.to_vec()))
    }

    fn experts(&self, shape: ExpertShape, slots: usize) -> Result<Experts, DeviceError> {
        Ok(Experts::new(shape, slots))
    }

    fn load_expert(
        &self,
        experts: &mut Experts,
        slot: usize,
        gate: &Stored<'_>,
        up: &Stored<'_>,
        down: &Stored<'_>,
    ) -> Result<(), DeviceError> {
        experts.load(&self.pool, (&self.memory, self.copy), slot, [gate, up, down])
    }

    fn unload_expert(&mut self, experts: &mut Experts, slot: usize) {
        experts.unload(slot);
    }

    fn buffer(&self, rows: usize, cols: usize) -> Result<Buffer, DeviceError> {
        Buffer::new(rows, cols)
    }

    fn kv(&self, spec: KvSpec, pages: usize) -> Result<Kv, DeviceError> {
        Kv::new(spec, pages)
    }

    fn delta(&self, spec: DeltaSpec, slots: usize) -> Result<Delta, DeviceError> {
        Delta::new(spec, slots)
    }

    fn delta_slot_bytes(&self, spec: DeltaSpec) -> usize {
        Delta::slot_bytes(&spec)
    }

    fn routes(&self, rows: usize, spec: RouteSpec) -> Result<RouteTable, DeviceError> {
        if spec.chosen > spec.experts {
            return Err(unsupported(format!("choose {} of {} experts", spec.chosen, spec.experts)));
        }
        let len = rows.saturating_mul(spec.chosen);
        Ok(RouteTable { spec, experts: allocate("routes", len, 0)?, weights: allocate("routes", len, 0.0)? })
    }

    fn batch(&self, batch: &Batch, vocabulary: usize) -> Result<Batch, DeviceError> {
        batch.check()?;
        match batch.tokens.iter().position(|&t| t as usize >= vocabulary) {
            Some(row) => Err(DeviceError::Token { token: batch.tokens[row], row, vocabulary }),
            None => Ok(batch.clone()),
        }
    }

    fn embed(&mut self, table: &Matrix, b: &Batch, y: &mut Buffer) {
        let w = &table.0;
        self.rows(y, b.rows(), |r, y| (self.kernels.embed)(w, b.tokens[r] as usize, &mut y[..w.cols]));
    }

    fn rms_norm(&mut self, x: &Buffer, weight: &Vector, eps: f32, rows: Rows, b: &Batch, y: &mut Buffer, col: usize) {
        self.rows(y, count(rows, b), |r, y| (self.kernels.rms_norm)(x.row(r), &weight.0, eps, &mut y[col..]));
    }

    fn matmul(&mut self, w: &Matrix, x: &Buffer, rows: Rows, b: &Batch, y: &mut Buffer, col: usize) {
        products::project(&self.kernels, &self.pool, &mut self.scratch, &[(&w.0, col)], x, count(rows, b), y);
    }

    fn add(&mut self, y: &Buffer, b: &Batch, x: &mut Buffer) {
        self.rows(x, b.rows(), |r, x| (self.kernels.add)(&y.row(r)[..x.len()], x));
    }

    fn head_rms_norm(&mut self, x: &mut Buffer, heads: Heads, weight: &Vector, eps: f32, b: &Batch) {
        self.heads(x, b.rows(), heads, |_, _, h| (self.kernels.head_rms_norm)(h, &weight.0, eps));
    }

    fn head_l2_norm(&mut self, x: &mut Buffer, heads: Heads, eps: f32, factor: f32, b: &Batch) {
        self.heads(x, b.rows(), heads, |_, _, h| (self.kernels.head_l2_norm)(h, eps, factor));
    }

    fn rope(&mut self, x: &mut Buffer, heads: Heads, b: &Batch) {
        let half = b.rope.half;
        assert!(2 * half <= heads.dim, "rotation of {half} pairs in heads of {}", heads.dim);
        self.heads(x, b.rows(), heads, |r, _, h| {
            let row = r * half..(r + 1) * half;
            (self.kernels.rope)(h, &b.rope.cos[row.clone()], &b.rope.sin[row]);
        });
    }

    fn kv_append(&mut self, x: &Buffer, keys: Heads, values: Heads, kv: &mut Kv, b: &Batch) {
        kv.append(x, keys, values, b);
    }

    fn attention(&mut self, x: &Buffer, queries: Heads, kv: &Kv, spec: AttentionSpec, b: &Batch, y: &mut Buffer) {
        self.attention.run(&self.kernels, &self.pool, x, queries, kv, spec, b, y);
    }

    fn sigmoid_gate(&mut self, gate: &Buffer, heads: Heads, b: &Batch, y: &mut Buffer) {
        let packed = Heads::packed(0, heads.count, heads.dim);
        self.heads(y, b.rows(), packed, |r, h, y| (self.kernels.sigmoid_gate)(gate.head(r, heads, h), y));
    }

    fn conv_silu(&mut self, x: &Buffer, col: usize, w: &Vector, state: &mut Delta, b: &Batch, y: &mut Buffer) {
        state.conv_silu(&self.kernels, &self.pool, x, col, &w.0, b, y);
    }

    fn gdn_gates(
        &mut self,
        x: &Buffer,
        a: usize,
        beta: usize,
        a_log: &Vector,
        dt_bias: &Vector,
        b: &Batch,
        y: &mut Buffer,
    ) {
        let heads = a_log.0.len();
        self.rows(y, b.rows(), |r, y| {
            let x = x.row(r);
            (self.kernels.gdn_gates)(&x[a..a + heads], &x[beta..beta + heads], &a_log.0, &dt_bias.0, y);
        });
    }

    fn gdn(&mut self, qkv: &Buffer, gates: &Buffer, state: &mut Delta, b: &Batch, y: &mut Buffer) {
        state.gdn(&self.kernels, &self.pool, qkv, gates, b, y);
    }

    fn gdn_commit(&mut self, state: &mut Delta, slot: u32, accepted: usize) {
        state.commit(&self.kernels, &self.pool, slot, accepted);
    }

    fn gated_rms_norm(&mut self, z: &Buffer, heads: Heads, weight: &Vector, eps: f32, b: &Batch, y: &mut Buffer) {
        let packed = Heads::packed(0, heads.count, heads.dim);
        self.heads(y, b.rows(), packed, |r, h, y| {
            (self.kernels.gated_rms_norm)(z.head(r, heads, h), &weight.0, eps, y);
        });
    }

    fn silu_mul(&mut self, x: &Buffer, width: usize, b: &Batch, y: &mut Buffer) {
        self.rows(y, b.rows(), |r, y| {
            let (gate, up) = x.row(r).split_at(width);
            (self.kernels.silu_mul)(gate, up, &mut y[..width]);
        });
    }

    fn route(&mut self, x: &Buffer, spec: RouteSpec, b: &Batch, routes: &mut RouteTable) {
        assert_eq!(spec.chosen, routes.spec.chosen, "experts chosen for each row");
        let (rows, chosen) = (b.rows(), spec.chosen.max(1));
        let places = routes.experts.chunks_exact_mut(chosen).zip(routes.weights.chunks_exact_mut(chosen));
        for (r, (experts, weights)) in places.take(rows).enumerate() {
            let logits = &x.row(r)[..spec.experts];
            (self.kernels.route)(logits, &mut self.route_scratch, spec.renormalise, experts, weights);
        }
    }

    fn experts_forward(
        &mut self,
        experts: &Experts,
        slots: &[u32],
        x: &Buffer,
        routes: &RouteTable,
        b: &Batch,
        y: &mut Buffer,
    ) {
        let picked = (routes.spec.chosen, &routes.experts[..b.rows() * routes.spec.chosen]);
        products::experts(&self.kernels, &self.pool, &mut self.scratch, experts, slots, x, picked, y);
    }

    fn combine(
        &mut self,
        y: &Buffer,
        routes: &RouteTable,
        shared: &Buffer,
        gate: &Buffer,
        col: usize,
        b: &Batch,
        x: &mut Buffer,
    ) {
        let chosen = routes.spec.chosen;
        self.rows(x, b.rows(), |r, x| {
            let c = Combine {
                y: &y.values[r * chosen * y.cols..(r + 1) * chosen * y.cols],
                stride: y.cols,
                weights: &routes.weights[r * chosen..(r + 1) * chosen],
                shared: shared.row(r),
                gate: gate.row(r)[col],
            };
            (self.kernels.combine)(&c, x);
        });
    }

    fn gather(&mut self, x: &Buffer, b: &Batch, y: &mut Buffer) {
        self.rows(y, b.outputs.len(), |i, y| y.copy_from_slice(&x.row(b.outputs[i] as usize)[..y.len()]));
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn read(&mut self, x: &Buffer, rows: usize) -> Result<Vec<f32>, DeviceError> {
        x.read(rows)
    }

    fn write(&mut self, x: &mut Buffer, row: usize, values: &[f32]) -> Result<(), DeviceError> {
        x.write(row, values)
    }

    fn read_routes(&mut self, routes: &RouteTable, b: &Batch) -> Result<Routes, DeviceError> {
        let (chosen, len) = (routes.spec.chosen, b.rows() * routes.spec.chosen);
        let (Some(experts), Some(weights)) = (routes.experts.get(..len), routes.weights.get(..len)) else {
            return Err(failed(format!("read the routes of {} rows from room for fewer", b.rows())));
        };
        Ok(Routes { chosen, experts: experts.to_vec(), weights: weights.to_vec() })
    }

    fn read_kv(&mut self, kv: &Kv, pages: &[u32], len: usize) -> Result<[Vec<f32>; 2], DeviceError> {
        kv.read(pages, len)
    }

    fn read_delta(&mut self, state: &Delta, slot: u32) -> Result<[Vec<f32>; 2], DeviceError> {
        state.read(&self.kernels, slot)
    }

    fn delta_clear(&mut self, state: &mut Delta, slot: u32) {
        state.clear(slot);
    }

    fn delta_copy(&mut self, state: &mut Delta, from: u32, to: u32) {
        state.copy(from, to);
    }

    fn delta_export(&mut self, state: &Delta, slot: u32) -> Result<Vec<u8>, DeviceError> {
        state.export(slot)
    }

    fn delta_import(&mut self, state: &mut Delta, slot: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        state.import(slot, bytes)
    }

    fn kv_clear(&mut self, kv: &mut Kv, page: u32) {
        kv.clear(page);
    }

    fn kv_release(&mut self, kv: &mut Kv, page: u32) {
        kv.release(page);
    }

    fn kv_copy(&mut self, kv: &mut Kv, from: u32, to: u32) {
        kv.copy(from, to);
    }

    fn kv_export(&mut self, kv: &Kv, page: u32) -> Result<Vec<u8>, DeviceError> {
        kv.export(page)
    }

    fn kv_import(&mut self, kv: &mut Kv, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        kv.import(page, bytes)
    }

    fn project(&mut self, ws: &[(&Matrix, usize)], x: &Buffer, b: &Batch, y: &mut Buffer) {
        let ws: Vec<(&Weights, usize)> = ws.iter().map(|(w, col)| (&w.0, *col)).collect();
        products::project(&self.kernels, &self.pool, &mut self.scratch, &ws, x, b.rows(), y);
    }

    fn sample(&mut self, logits: &Buffer, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>, DeviceError> {
        if rows.len() > logits.rows() {
            return Err(failed(format!("sample {} rows of a buffer that has {}", rows.len(), logits.rows())));
        }
        let mut sampled = vec![Sampled::default(); rows.len()];
        let weigh = self.kernels.sample_weigh;
        self.pool.queue(&mut sampled, logits.cols, |i, s| *s = sample_with(logits.row(i), &rows[i], weigh));
        Ok(sampled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_lacks_is_refused() {
        let none = Cpu::new(CpuOptions { threads: Some(0), isa: None }).err().expect("no threads");
        assert_eq!(none.to_string(), "the cpu device can not work with 0 threads: from 1 to 1024 are expected");
        let many = Cpu::new(CpuOptions { threads: Some(usize::MAX), isa: None });
        assert!(many.is_err(), "the system would refuse them in its own, less polite way");
        for isa in Isa::ALL {
            let made = Cpu::new(CpuOptions { threads: Some(1), isa: Some(isa) });
            assert_eq!(made.map(|cpu| cpu.isa()).ok(), isa.available().then_some(isa));
            assert_eq!(isa.to_string().parse(), Ok(isa));
        }
        assert!("sse9".parse::<Isa>().is_err());
        let cpu = Cpu::new(CpuOptions::default()).expect("a CPU device");
        assert!(cpu.threads() >= 1 && cpu.isa() == Isa::best());
    }

    #[test]
    fn too_much_memory_is_an_error() {
        let cpu = Cpu::new(CpuOptions { threads: Some(1), isa: None }).expect("a CPU device");
        let e = cpu.buffer(usize::MAX / 8, 16).err().expect("more than any machine has");
        assert!(matches!(e, DeviceError::Memory { what: "activations", .. }), "{e}");
    }
}
