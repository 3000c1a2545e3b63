//! Time by kind of operation: a device around a device. What it computes is the inner device's to the bit; while its
//! clock is off, an operation costs one look at a flag more.

use crate::sampling::{SampleRow, Sampled};
use crate::{
    AttentionSpec, Batch, DeltaSpec, Device, DeviceError, ExpertShape, Heads, KvSpec, MatrixSpec, RouteSpec, Routes,
    Rows,
};
use martlet_tensor::Matrix;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the time of a step is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Operation {
    /// Products with weights outside experts and output head; with the norms and additions that are fused into them.
    Products,
    /// The products of rows whose logits are wanted.
    Head,
    Experts,
    Router,
    Attention,
    Recurrence,
    Convolution,
    /// Norms, rotations, and appends of keys and values.
    Norms,
    /// What is left of the forward pass: embeddings, gates, additions.
    Elementwise,
    Sampling,
}

impl Operation {
    pub const ALL: [Operation; 10] = [
        Operation::Products,
        Operation::Head,
        Operation::Experts,
        Operation::Router,
        Operation::Attention,
        Operation::Recurrence,
        Operation::Convolution,
        Operation::Norms,
        Operation::Elementwise,
        Operation::Sampling,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Operation::Products => "weight products",
            Operation::Head => "output head",
            Operation::Experts => "experts",
            Operation::Router => "router",
            Operation::Attention => "attention",
            Operation::Recurrence => "recurrence",
            Operation::Convolution => "convolution",
            Operation::Norms => "norms",
            Operation::Elementwise => "elementwise",
            Operation::Sampling => "sampling",
        }
    }
}

const KINDS: usize = Operation::ALL.len();

/// Times of operations, while it is on.
#[derive(Debug, Default)]
pub struct Clock {
    on: AtomicBool,
    nanoseconds: [AtomicU64; KINDS],
    calls: [AtomicU64; KINDS],
}

/// What operations of one kind took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationTime {
    pub operation: Operation,
    pub calls: u64,
    pub time: Duration,
}

impl Clock {
    /// Begins, or stops. Beginning forgets what was measured before.
    pub fn set(&self, on: bool) {
        if on {
            self.nanoseconds.iter().chain(&self.calls).for_each(|n| n.store(0, Ordering::Relaxed));
        }
        self.on.store(on, Ordering::Relaxed);
    }

    /// What was measured, kinds without calls left out.
    pub fn times(&self) -> Vec<OperationTime> {
        let of = |operation: Operation| OperationTime {
            operation,
            calls: self.calls[operation as usize].load(Ordering::Relaxed),
            time: Duration::from_nanos(self.nanoseconds[operation as usize].load(Ordering::Relaxed)),
        };
        Operation::ALL.into_iter().map(of).filter(|t| t.calls > 0).collect()
    }

    fn add(&self, operation: Operation, time: Duration) {
        self.nanoseconds[operation as usize].fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        self.calls[operation as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// A device whose operations are timed while its clock is on.
pub struct Timed<D> {
    inner: D,
    clock: Arc<Clock>,
    /// The first failure that an operation was waited for.
    failed: Option<DeviceError>,
}

impl<D: Device> Timed<D> {
    pub fn new(inner: D) -> (Timed<D>, Arc<Clock>) {
        let clock = Arc::new(Clock::default());
        (Timed { inner, clock: clock.clone(), failed: None }, clock)
    }

    #[inline]
    fn time<R>(&mut self, operation: Operation, work: impl FnOnce(&mut D) -> R) -> R {
        if !self.clock.on.load(Ordering::Relaxed) {
            return work(&mut self.inner);
        }
        let started = Instant::now();
        let result = work(&mut self.inner);
        // What was only recorded is done now, so that its time is not another's.
        if let Err(e) = self.inner.wait() {
            self.failed.get_or_insert(e);
        }
        self.clock.add(operation, started.elapsed());
        result
    }
}

impl<D: Device> Device for Timed<D> {
    type Matrix = D::Matrix;
    type Vector = D::Vector;
    type Experts = D::Experts;
    type Buffer = D::Buffer;
    type Kv = D::Kv;
    type Delta = D::Delta;
    type Routes = D::Routes;
    type Batch = D::Batch;

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn arithmetic_id(&self) -> String {
        self.inner.arithmetic_id()
    }

    fn matrix(&self, m: &Matrix<'_>, exact: bool) -> Result<D::Matrix, DeviceError> {
        self.inner.matrix(m, exact)
    }

    fn matrix_bytes(&self, spec: MatrixSpec) -> u64 {
        self.inner.matrix_bytes(spec)
    }

    fn blank_matrix(&self, spec: MatrixSpec) -> Result<D::Matrix, DeviceError> {
        self.inner.blank_matrix(spec)
    }

    fn load_rows(&self, matrix: &mut D::Matrix, first: usize, rows: &Matrix<'_>) -> Result<(), DeviceError> {
        self.inner.load_rows(matrix, first, rows)
    }

    fn first_rows(&self, matrix: &D::Matrix, rows: usize) -> Result<D::Matrix, DeviceError> {
        self.inner.first_rows(matrix, rows)
    }

    fn vector(&self, values: &[f32]) -> Result<D::Vector, DeviceError> {
        self.inner.vector(values)
    }

    fn experts(&self, shape: ExpertShape, slots: usize) -> Result<D::Experts, DeviceError> {
        self.inner.experts(shape, slots)
    }

    fn load_expert(
        &self,
        experts: &mut D::Experts,
        slot: usize,
        gate: &Matrix<'_>,
        up: &Matrix<'_>,
        down: &Matrix<'_>,
    ) -> Result<(), DeviceError> {
        self.inner.load_expert(experts, slot, gate, up, down)
    }

    fn unload_expert(&mut self, experts: &mut D::Experts, slot: usize) {
        self.inner.unload_expert(experts, slot);
    }

    fn buffer(&self, rows: usize, cols: usize) -> Result<D::Buffer, DeviceError> {
        self.inner.buffer(rows, cols)
    }

    fn kv(&self, spec: KvSpec, pages: usize) -> Result<D::Kv, DeviceError> {
        self.inner.kv(spec, pages)
    }

    fn delta(&self, spec: DeltaSpec, slots: usize) -> Result<D::Delta, DeviceError> {
        self.inner.delta(spec, slots)
    }

    fn delta_slot_bytes(&self, spec: DeltaSpec) -> usize {
        self.inner.delta_slot_bytes(spec)
    }

    fn routes(&self, rows: usize, spec: RouteSpec) -> Result<D::Routes, DeviceError> {
        self.inner.routes(rows, spec)
    }

    fn batch(&self, batch: &Batch, vocabulary: usize) -> Result<D::Batch, DeviceError> {
        self.inner.batch(batch, vocabulary)
    }

    fn embed(&mut self, table: &D::Matrix, b: &D::Batch, y: &mut D::Buffer) {
        self.time(Operation::Elementwise, |d| d.embed(table, b, y));
    }

    fn rms_norm(
        &mut self,
        x: &D::Buffer,
        weight: &D::Vector,
        eps: f32,
        rows: Rows,
        b: &D::Batch,
        y: &mut D::Buffer,
        col: usize,
    ) {
        self.time(Operation::Norms, |d| d.rms_norm(x, weight, eps, rows, b, y, col));
    }

    fn matmul(&mut self, w: &D::Matrix, x: &D::Buffer, rows: Rows, b: &D::Batch, y: &mut D::Buffer, col: usize) {
        let operation = if rows == Rows::Outputs { Operation::Head } else { Operation::Products };
        self.time(operation, |d| d.matmul(w, x, rows, b, y, col));
    }

    fn add(&mut self, y: &D::Buffer, b: &D::Batch, x: &mut D::Buffer) {
        self.time(Operation::Elementwise, |d| d.add(y, b, x));
    }

    fn head_rms_norm(&mut self, x: &mut D::Buffer, heads: Heads, weight: &D::Vector, eps: f32, b: &D::Batch) {
        self.time(Operation::Norms, |d| d.head_rms_norm(x, heads, weight, eps, b));
    }

    fn head_l2_norm(&mut self, x: &mut D::Buffer, heads: Heads, eps: f32, factor: f32, b: &D::Batch) {
        self.time(Operation::Norms, |d| d.head_l2_norm(x, heads, eps, factor, b));
    }

    fn rope(&mut self, x: &mut D::Buffer, heads: Heads, b: &D::Batch) {
        self.time(Operation::Norms, |d| d.rope(x, heads, b));
    }

    fn kv_append(&mut self, x: &D::Buffer, keys: Heads, values: Heads, kv: &mut D::Kv, b: &D::Batch) {
        self.time(Operation::Norms, |d| d.kv_append(x, keys, values, kv, b));
    }

    fn attention(
        &mut self,
        x: &D::Buffer,
        queries: Heads,
        kv: &D::Kv,
        spec: AttentionSpec,
        b: &D::Batch,
        y: &mut D::Buffer,
    ) {
        self.time(Operation::Attention, |d| d.attention(x, queries, kv, spec, b, y));
    }

    fn sigmoid_gate(&mut self, gate: &D::Buffer, heads: Heads, b: &D::Batch, y: &mut D::Buffer) {
        self.time(Operation::Elementwise, |d| d.sigmoid_gate(gate, heads, b, y));
    }

    fn conv_silu(
        &mut self,
        x: &D::Buffer,
        col: usize,
        w: &D::Vector,
        state: &mut D::Delta,
        b: &D::Batch,
        y: &mut D::Buffer,
    ) {
        self.time(Operation::Convolution, |d| d.conv_silu(x, col, w, state, b, y));
    }

    fn gdn_gates(
        &mut self,
        x: &D::Buffer,
        a: usize,
        beta: usize,
        a_log: &D::Vector,
        dt_bias: &D::Vector,
        b: &D::Batch,
        y: &mut D::Buffer,
    ) {
        self.time(Operation::Elementwise, |d| d.gdn_gates(x, a, beta, a_log, dt_bias, b, y));
    }

    fn gdn(&mut self, qkv: &D::Buffer, gates: &D::Buffer, state: &mut D::Delta, b: &D::Batch, y: &mut D::Buffer) {
        self.time(Operation::Recurrence, |d| d.gdn(qkv, gates, state, b, y));
    }

    fn gdn_commit(&mut self, state: &mut D::Delta, slot: u32, accepted: usize) {
        self.time(Operation::Recurrence, |d| d.gdn_commit(state, slot, accepted));
    }

    fn gated_rms_norm(
        &mut self,
        z: &D::Buffer,
        heads: Heads,
        weight: &D::Vector,
        eps: f32,
        b: &D::Batch,
        y: &mut D::Buffer,
    ) {
        self.time(Operation::Norms, |d| d.gated_rms_norm(z, heads, weight, eps, b, y));
    }

    fn silu_mul(&mut self, x: &D::Buffer, width: usize, b: &D::Batch, y: &mut D::Buffer) {
        self.time(Operation::Elementwise, |d| d.silu_mul(x, width, b, y));
    }

    fn route(&mut self, x: &D::Buffer, spec: RouteSpec, b: &D::Batch, routes: &mut D::Routes) {
        self.time(Operation::Router, |d| d.route(x, spec, b, routes));
    }

    fn experts_forward(
        &mut self,
        experts: &D::Experts,
        slots: &[u32],
        x: &D::Buffer,
        routes: &D::Routes,
        b: &D::Batch,
        y: &mut D::Buffer,
    ) {
        self.time(Operation::Experts, |d| d.experts_forward(experts, slots, x, routes, b, y));
    }

    fn combine(
        &mut self,
        y: &D::Buffer,
        routes: &D::Routes,
        shared: &D::Buffer,
        gate: &D::Buffer,
        col: usize,
        b: &D::Batch,
        x: &mut D::Buffer,
    ) {
        self.time(Operation::Elementwise, |d| d.combine(y, routes, shared, gate, col, b, x));
    }

    fn gather(&mut self, x: &D::Buffer, b: &D::Batch, y: &mut D::Buffer) {
        self.time(Operation::Elementwise, |d| d.gather(x, b, y));
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.failed.take().map_or_else(|| self.inner.wait(), Err)
    }

    fn read(&mut self, x: &D::Buffer, rows: usize) -> Result<Vec<f32>, DeviceError> {
        self.inner.read(x, rows)
    }

    fn write(&mut self, x: &mut D::Buffer, row: usize, values: &[f32]) -> Result<(), DeviceError> {
        self.inner.write(x, row, values)
    }

    fn read_routes(&mut self, routes: &D::Routes, b: &D::Batch) -> Result<Routes, DeviceError> {
        self.inner.read_routes(routes, b)
    }

    fn read_kv(&mut self, kv: &D::Kv, pages: &[u32], len: usize) -> Result<[Vec<f32>; 2], DeviceError> {
        self.inner.read_kv(kv, pages, len)
    }

    fn read_delta(&mut self, state: &D::Delta, slot: u32) -> Result<[Vec<f32>; 2], DeviceError> {
        self.inner.read_delta(state, slot)
    }

    fn delta_clear(&mut self, state: &mut D::Delta, slot: u32) {
        self.inner.delta_clear(state, slot);
    }

    fn delta_copy(&mut self, state: &mut D::Delta, from: u32, to: u32) {
        self.inner.delta_copy(state, from, to);
    }

    fn delta_export(&mut self, state: &D::Delta, slot: u32) -> Result<Vec<u8>, DeviceError> {
        self.inner.delta_export(state, slot)
    }

    fn delta_import(&mut self, state: &mut D::Delta, slot: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.delta_import(state, slot, bytes)
    }

    fn kv_clear(&mut self, kv: &mut D::Kv, page: u32) {
        self.inner.kv_clear(kv, page);
    }

    fn kv_release(&mut self, kv: &mut D::Kv, page: u32) {
        self.inner.kv_release(kv, page);
    }

    fn kv_copy(&mut self, kv: &mut D::Kv, from: u32, to: u32) {
        self.inner.kv_copy(kv, from, to);
    }

    fn kv_export(&mut self, kv: &D::Kv, page: u32) -> Result<Vec<u8>, DeviceError> {
        self.inner.kv_export(kv, page)
    }

    fn kv_import(&mut self, kv: &mut D::Kv, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.kv_import(kv, page, bytes)
    }

    fn project(&mut self, ws: &[(&D::Matrix, usize)], x: &D::Buffer, b: &D::Batch, y: &mut D::Buffer) {
        self.time(Operation::Products, |d| d.project(ws, x, b, y));
    }

    fn norm_project(
        &mut self,
        x: &D::Buffer,
        weight: &D::Vector,
        eps: f32,
        ws: &[(&D::Matrix, usize)],
        b: &D::Batch,
        normed: &mut D::Buffer,
        y: &mut D::Buffer,
    ) {
        self.time(Operation::Products, |d| d.norm_project(x, weight, eps, ws, b, normed, y));
    }

    fn project_add(&mut self, w: &D::Matrix, y: &D::Buffer, b: &D::Batch, tmp: &mut D::Buffer, x: &mut D::Buffer) {
        self.time(Operation::Products, |d| d.project_add(w, y, b, tmp, x));
    }

    fn qk_norm_rope_append(
        &mut self,
        x: &mut D::Buffer,
        heads: [Heads; 3],
        norms: [&D::Vector; 2],
        eps: f32,
        kv: &mut D::Kv,
        b: &D::Batch,
    ) {
        self.time(Operation::Norms, |d| d.qk_norm_rope_append(x, heads, norms, eps, kv, b));
    }

    fn sample(&mut self, logits: &D::Buffer, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>, DeviceError> {
        self.time(Operation::Sampling, |d| d.sample(logits, rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Reference;
    use martlet_tensor::{Float, Part, Scheme};

    /// A default body in place of an inner device's own would be right, and slow, and nobody would notice.
    #[test]
    fn every_operation_goes_to_the_inner_device() {
        let methods = |text: &'static str| {
            text.lines().filter_map(|l| l.strip_prefix("    fn ")?.split(['(', '<']).next()).collect::<Vec<_>>()
        };
        let here = methods(include_str!("timed.rs"));
        let device = include_str!("device.rs").split("pub trait Device").nth(1).expect("the trait");
        let needed = methods(device);
        assert!(needed.len() > 40, "{needed:?}");
        for name in needed {
            assert!(here.contains(&name), "{name} is not passed on");
            let calls = [format!("inner.{name}("), format!("d.{name}(")];
            assert!(calls.iter().any(|c| include_str!("timed.rs").contains(c)), "{name} is not passed on");
        }
    }

    #[test]
    fn operations_are_timed_while_the_clock_is_on() {
        let (mut d, clock) = Timed::new(Reference::new());
        let bytes: Vec<u8> = (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let matrix = Matrix::new(Scheme::Dense(Float::F32), 2, vec![Part::new(4, &bytes, &[], &[])]).unwrap();
        let w = d.matrix(&matrix, false).unwrap();
        let batch = Batch { tokens: vec![0], outputs: vec![0], ..Batch::default() };
        let batch =
            Batch { seqs: vec![crate::SeqRows { rows: 1, certain: 1, pages: vec![0], ..Default::default() }], ..batch };
        let b = d.batch(&batch, 4).unwrap();
        let (mut x, mut y) = (d.buffer(1, 2).unwrap(), d.buffer(1, 4).unwrap());
        d.write(&mut x, 0, &[1.0, 2.0]).unwrap();
        let mut run = |d: &mut Timed<Reference>| {
            d.project(&[(&w, 0)], &x, &b, &mut y);
            d.matmul(&w, &x, Rows::Outputs, &b, &mut y, 0);
            d.read(&y, 1).unwrap()
        };
        assert_eq!(run(&mut d), [2.0, 8.0, 14.0, 20.0]);
        assert_eq!(clock.times(), [], "it is off");
        clock.set(true);
        run(&mut d);
        run(&mut d);
        clock.set(false);
        run(&mut d);
        let calls: Vec<_> = clock.times().iter().map(|t| (t.operation, t.calls)).collect();
        assert_eq!(calls, [(Operation::Products, 2), (Operation::Head, 2)]);
        assert!(clock.times().iter().all(|t| !t.time.is_zero()));
        clock.set(true);
        assert_eq!(clock.times(), [], "it begins anew");
    }
}
