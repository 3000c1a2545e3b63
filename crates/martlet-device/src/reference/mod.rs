//! The reference device: plain f32 loops, the executable specification of every operation.
//!
//! One file per operation, each opening with its formula. Whoever writes another device reads these loops for what an
//! operation means; the order of sums that they use is this device's own, apart from what the trait fixes for all
//! (slices of 256 along K, attention blocks of 256 keys, expert ranks). Matrices are widened to f32 when they are
//! loaded, whatever their scheme. One thread, no state beside the handles: nothing here can depend on company.

mod add;
mod attention;
mod buffer;
mod combine;
mod conv_silu;
mod delta;
mod embed;
mod experts_forward;
mod gated_rms_norm;
mod gather;
mod gdn;
mod gdn_gates;
mod head_l2_norm;
mod head_rms_norm;
mod kv;
mod kv_append;
mod matmul;
mod rms_norm;
mod rope;
mod route;
mod sigmoid_gate;
mod silu_mul;
#[cfg(test)]
mod tests;

pub use buffer::Buffer;
pub use delta::Delta;
pub use experts_forward::Experts;
pub use kv::Kv;
pub use matmul::Matrix;
pub use route::RouteTable;

use crate::{
    AttentionSpec, Batch, DeltaSpec, Device, DeviceError, ExpertShape, Heads, KvSpec, MatrixSpec, RouteSpec, Routes,
    Rows,
};
use buffer::zeros;
use martlet_tensor::Matrix as Stored;

const NAME: &str = "reference";

/// The reference device. It holds nothing: all state lies in the handles.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference(());

impl Reference {
    pub fn new() -> Reference {
        Reference(())
    }
}

/// How many rows of a buffer an operation works on.
fn count(rows: Rows, b: &Batch) -> usize {
    match rows {
        Rows::All => b.rows(),
        Rows::Outputs => b.outputs.len(),
    }
}

/// 1 / (1 + e^-x).
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// x * sigmoid(x).
fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// a . b: 16 sums, the l-th over the indices l, l + 16, l + 32, ..., then added in the order of l.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, b) = (a.chunks_exact(16), b.chunks_exact(16));
    let (last_a, last_b) = (a.remainder(), b.remainder());
    let mut sums = [0.0; 16];
    for (a, b) in a.zip(b) {
        for l in 0..16 {
            sums[l] += a[l] * b[l];
        }
    }
    for l in 0..last_a.len() {
        sums[l] += last_a[l] * last_b[l];
    }
    sums.iter().sum()
}

impl Device for Reference {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Experts = Experts;
    type Buffer = Buffer;
    type Kv = Kv;
    type Delta = Delta;
    type Routes = RouteTable;
    type Batch = Batch;

    fn name(&self) -> &'static str {
        NAME
    }

    /// f32 activations; recurrence token by token; attention in blocks of 256 keys. `exp` comes from the platform's
    /// mathematical library, so the platform is part of the id.
    fn arithmetic_id(&self) -> String {
        format!("reference-1-f32-gdn1-attention256-{}-{}", std::env::consts::ARCH, std::env::consts::OS)
    }

    fn matrix(&self, m: &Stored<'_>, _exact: bool) -> Result<Matrix, DeviceError> {
        Matrix::new(m)
    }

    fn matrix_bytes(&self, spec: MatrixSpec) -> u64 {
        Matrix::bytes(spec)
    }

    fn blank_matrix(&self, spec: MatrixSpec) -> Result<Matrix, DeviceError> {
        Matrix::blank(spec.rows, spec.cols)
    }

    fn load_rows(&self, matrix: &mut Matrix, first: usize, rows: &Stored<'_>) -> Result<(), DeviceError> {
        matrix.load(first, rows)
    }

    fn first_rows(&self, matrix: &Matrix, rows: usize) -> Result<Matrix, DeviceError> {
        matrix.first_rows(rows)
    }

    fn vector(&self, values: &[f32]) -> Result<Vec<f32>, DeviceError> {
        Ok(values.to_vec())
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
        experts.load(slot, gate, up, down)
    }

    fn unload_expert(&mut self, experts: &mut Experts, slot: usize) {
        experts.unload(slot);
    }

    fn buffer(&self, rows: usize, cols: usize) -> Result<Buffer, DeviceError> {
        Ok(Buffer { cols, values: zeros("activations", &[rows, cols])? })
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
        Ok(RouteTable::new(rows, spec))
    }

    fn batch(&self, batch: &Batch, vocabulary: usize) -> Result<Batch, DeviceError> {
        batch.check()?;
        match batch.tokens.iter().position(|&t| t as usize >= vocabulary) {
            Some(row) => Err(DeviceError::Token { token: batch.tokens[row], row, vocabulary }),
            None => Ok(batch.clone()),
        }
    }

    fn embed(&mut self, table: &Matrix, b: &Batch, y: &mut Buffer) {
        embed::embed(table, &b.tokens, y);
    }

    fn rms_norm(&mut self, x: &Buffer, weight: &Vec<f32>, eps: f32, rows: Rows, b: &Batch, y: &mut Buffer, col: usize) {
        rms_norm::rms_norm(x, weight, eps, count(rows, b), y, col);
    }

    fn matmul(&mut self, w: &Matrix, x: &Buffer, rows: Rows, b: &Batch, y: &mut Buffer, col: usize) {
        matmul::matmul(w, x, count(rows, b), y, col);
    }

    fn add(&mut self, y: &Buffer, b: &Batch, x: &mut Buffer) {
        add::add(y, b.rows(), x);
    }

    fn head_rms_norm(&mut self, x: &mut Buffer, heads: Heads, weight: &Vec<f32>, eps: f32, b: &Batch) {
        head_rms_norm::head_rms_norm(x, heads, weight, eps, b.rows());
    }

    fn head_l2_norm(&mut self, x: &mut Buffer, heads: Heads, eps: f32, factor: f32, b: &Batch) {
        head_l2_norm::head_l2_norm(x, heads, eps, factor, b.rows());
    }

    fn rope(&mut self, x: &mut Buffer, heads: Heads, b: &Batch) {
        rope::rope(x, heads, &b.rope, b.rows());
    }

    fn kv_append(&mut self, x: &Buffer, keys: Heads, values: Heads, kv: &mut Kv, b: &Batch) {
        kv_append::kv_append(x, keys, values, kv, b);
    }

    fn attention(&mut self, x: &Buffer, queries: Heads, kv: &Kv, spec: AttentionSpec, b: &Batch, y: &mut Buffer) {
        attention::attention(x, queries, kv, spec, b, y);
    }

    fn sigmoid_gate(&mut self, gate: &Buffer, heads: Heads, b: &Batch, y: &mut Buffer) {
        sigmoid_gate::sigmoid_gate(gate, heads, b.rows(), y);
    }

    fn conv_silu(&mut self, x: &Buffer, col: usize, w: &Vec<f32>, state: &mut Delta, b: &Batch, y: &mut Buffer) {
        conv_silu::conv_silu(x, col, w, state, b, y);
    }

    fn gdn_gates(
        &mut self,
        x: &Buffer,
        a: usize,
        beta: usize,
        a_log: &Vec<f32>,
        dt_bias: &Vec<f32>,
        b: &Batch,
        y: &mut Buffer,
    ) {
        gdn_gates::gdn_gates(x, a, beta, a_log, dt_bias, b.rows(), y);
    }

    fn gdn(&mut self, qkv: &Buffer, gates: &Buffer, state: &mut Delta, b: &Batch, y: &mut Buffer) {
        gdn::gdn(qkv, gates, state, b, y);
    }

    fn gdn_commit(&mut self, state: &mut Delta, slot: u32, accepted: usize) {
        gdn::gdn_commit(state, slot, accepted);
    }

    fn gated_rms_norm(&mut self, z: &Buffer, heads: Heads, weight: &Vec<f32>, eps: f32, b: &Batch, y: &mut Buffer) {
        gated_rms_norm::gated_rms_norm(z, heads, weight, eps, b.rows(), y);
    }

    fn silu_mul(&mut self, x: &Buffer, width: usize, b: &Batch, y: &mut Buffer) {
        silu_mul::silu_mul(x, width, b.rows(), y);
    }

    fn route(&mut self, x: &Buffer, spec: RouteSpec, b: &Batch, routes: &mut RouteTable) {
        route::route(x, spec, b.rows(), routes);
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
        experts_forward::experts_forward(experts, slots, x, routes, b.rows(), y);
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
        combine::combine(y, routes, shared, gate, col, b.rows(), x);
    }

    fn gather(&mut self, x: &Buffer, b: &Batch, y: &mut Buffer) {
        gather::gather(x, &b.outputs, y);
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
        Ok(routes.first(b.rows()))
    }

    fn read_kv(&mut self, kv: &Kv, pages: &[u32], len: usize) -> Result<[Vec<f32>; 2], DeviceError> {
        kv.read(pages, len)
    }

    fn read_delta(&mut self, state: &Delta, slot: u32) -> Result<[Vec<f32>; 2], DeviceError> {
        state.read(slot)
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

    fn kv_copy(&mut self, kv: &mut Kv, from: u32, to: u32) {
        kv.copy(from, to);
    }

    fn kv_export(&mut self, kv: &Kv, page: u32) -> Result<Vec<u8>, DeviceError> {
        kv.export(page)
    }

    fn kv_import(&mut self, kv: &mut Kv, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        kv.import(page, bytes)
    }
}
