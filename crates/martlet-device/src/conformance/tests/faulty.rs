//! The reference device with one fault.

use crate::conformance::rows::UNTOUCHED;
use crate::reference::{Buffer, Delta, Experts, Kv, Matrix, Reference, RouteTable};
use crate::sampling::{SampleRow, Sampled};
use crate::{
    AttentionSpec, Batch, DeltaSpec, Device, DeviceError, ExpertShape, Heads, KvSpec, MatrixSpec, RouteSpec, Routes,
    Rows, fused,
};
use martlet_tensor::{Matrix as Stored, Scheme};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All results are 2 % too large.
    Wrong,
    /// In batches of several rows one result is off by its last bit.
    Company,
    /// Nothing is done.
    Omitted,
    /// No fault, but products with quantised matrices round their activations to 8 bits.
    QuantisedActivations,
    /// Says so.
    Unsupported,
}

/// Operations that compute, and can be wrong.
pub const COMPUTING: [&str; 22] = [
    "embed",
    "rms_norm",
    "matmul",
    "add",
    "head_rms_norm",
    "head_l2_norm",
    "rope",
    "attention",
    "sigmoid_gate",
    "conv_silu",
    "gdn_gates",
    "gdn",
    "gated_rms_norm",
    "silu_mul",
    "route",
    "experts_forward",
    "combine",
    "project",
    "norm_project",
    "project_add",
    "qk_norm_rope_append",
    "sample",
];

/// The part of the suite that tries an operation.
pub fn home(operation: &'static str) -> &'static str {
    if operation == "conv_silu" { "gdn" } else { operation }
}

pub struct Faulty {
    inner: Reference,
    operation: &'static str,
    fault: Fault,
}

/// With the group of its activations, where they are quantised.
pub struct FaultyMatrix(Matrix, Option<usize>);

impl Faulty {
    pub fn new(operation: &'static str, fault: Fault) -> Faulty {
        Faulty { inner: Reference::new(), operation, fault }
    }

    /// The group of a matrix's activations, where they are quantised.
    fn group(&self, scheme: Scheme, exact: bool) -> Option<usize> {
        let quantised = self.fault == Fault::QuantisedActivations && !exact && !matches!(scheme, Scheme::Dense(_));
        quantised.then(|| scheme.activation_group())
    }

    fn is(&self, operation: &str, fault: Fault) -> bool {
        self.operation == operation && self.fault == fault
    }

    /// Harms the results that the operation left in `y`.
    fn harm(&mut self, operation: &str, b: &Batch, y: &mut Buffer) {
        let mut values = self.inner.read(y, y.rows()).expect("all rows can be read");
        if self.is(operation, Fault::Wrong) {
            // Values that the operation has not written give it away too easily.
            values.iter_mut().filter(|v| **v != UNTOUCHED).for_each(|v| *v *= 1.02);
        }
        if self.is(operation, Fault::Company) && b.rows() > 1 {
            // In the middle of the first row: the first columns may be none of the operation's.
            let at = y.cols() / 2;
            values[at] = f32::from_bits(values[at].to_bits() ^ 1);
        }
        self.inner.write(y, 0, &values).expect("all rows can be written");
    }

    /// x with each group of a row rounded to 127 steps of its largest magnitude.
    fn quantised(&self, x: &Buffer, width: usize, group: usize) -> Buffer {
        let mut d = self.inner;
        let mut values = d.read(x, x.rows()).expect("all rows can be read");
        for row in values.chunks_mut(x.cols()) {
            for group in row[..width].chunks_mut(group) {
                let step = group.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0;
                if step > 0.0 {
                    group.iter_mut().for_each(|v| *v = (*v / step).round() * step);
                }
            }
        }
        let mut y = d.buffer(x.rows(), x.cols()).expect("as large as x");
        d.write(&mut y, 0, &values).expect("as large as x");
        y
    }
}

impl Device for Faulty {
    type Matrix = FaultyMatrix;
    type Vector = Vec<f32>;
    type Experts = Experts;
    type Buffer = Buffer;
    type Kv = Kv;
    type Delta = Delta;
    type Routes = RouteTable;
    type Batch = Batch;

    fn name(&self) -> &'static str {
        "faulty"
    }

    fn arithmetic_id(&self) -> String {
        "faulty".to_string()
    }

    fn matrix(&self, m: &Stored<'_>, exact: bool) -> Result<FaultyMatrix, DeviceError> {
        Ok(FaultyMatrix(self.inner.matrix(m, exact)?, self.group(m.scheme(), exact)))
    }

    fn matrix_bytes(&self, spec: MatrixSpec) -> u64 {
        self.inner.matrix_bytes(spec)
    }

    fn blank_matrix(&self, spec: MatrixSpec) -> Result<FaultyMatrix, DeviceError> {
        Ok(FaultyMatrix(self.inner.blank_matrix(spec)?, self.group(spec.scheme, spec.exact)))
    }

    fn load_rows(&self, matrix: &mut FaultyMatrix, first: usize, rows: &Stored<'_>) -> Result<(), DeviceError> {
        self.inner.load_rows(&mut matrix.0, first, rows)
    }

    fn first_rows(&self, matrix: &FaultyMatrix, rows: usize) -> Result<FaultyMatrix, DeviceError> {
        Ok(FaultyMatrix(self.inner.first_rows(&matrix.0, rows)?, matrix.1))
    }

    fn vector(&self, values: &[f32]) -> Result<Vec<f32>, DeviceError> {
        self.inner.vector(values)
    }

    fn experts(&self, shape: ExpertShape, slots: usize) -> Result<Experts, DeviceError> {
        self.inner.experts(shape, slots)
    }

    fn load_expert(
        &self,
        experts: &mut Experts,
        slot: usize,
        gate: &Stored<'_>,
        up: &Stored<'_>,
        down: &Stored<'_>,
    ) -> Result<(), DeviceError> {
        self.inner.load_expert(experts, slot, gate, up, down)
    }

    fn unload_expert(&mut self, experts: &mut Experts, slot: usize) {
        self.inner.unload_expert(experts, slot);
    }

    fn buffer(&self, rows: usize, cols: usize) -> Result<Buffer, DeviceError> {
        self.inner.buffer(rows, cols)
    }

    fn kv(&self, spec: KvSpec, pages: usize) -> Result<Kv, DeviceError> {
        if self.is("kv", Fault::Unsupported) {
            return Err(DeviceError::Unsupported { device: "faulty", what: "keep keys".to_string() });
        }
        self.inner.kv(spec, pages)
    }

    fn delta(&self, spec: DeltaSpec, slots: usize) -> Result<Delta, DeviceError> {
        self.inner.delta(spec, slots)
    }

    fn delta_slot_bytes(&self, spec: DeltaSpec) -> usize {
        self.inner.delta_slot_bytes(spec)
    }

    fn routes(&self, rows: usize, spec: RouteSpec) -> Result<RouteTable, DeviceError> {
        self.inner.routes(rows, spec)
    }

    fn batch(&self, batch: &Batch, vocabulary: usize) -> Result<Batch, DeviceError> {
        self.inner.batch(batch, vocabulary)
    }

    fn embed(&mut self, table: &FaultyMatrix, b: &Batch, y: &mut Buffer) {
        self.inner.embed(&table.0, b, y);
        self.harm("embed", b, y);
    }

    fn rms_norm(&mut self, x: &Buffer, weight: &Vec<f32>, eps: f32, rows: Rows, b: &Batch, y: &mut Buffer, col: usize) {
        self.inner.rms_norm(x, weight, eps, rows, b, y, col);
        self.harm("rms_norm", b, y);
    }

    fn matmul(&mut self, w: &FaultyMatrix, x: &Buffer, rows: Rows, b: &Batch, y: &mut Buffer, col: usize) {
        match w.1 {
            Some(group) => {
                let x = self.quantised(x, w.0.cols(), group);
                self.inner.matmul(&w.0, &x, rows, b, y, col);
            }
            None => self.inner.matmul(&w.0, x, rows, b, y, col),
        }
        self.harm("matmul", b, y);
    }

    fn add(&mut self, y: &Buffer, b: &Batch, x: &mut Buffer) {
        self.inner.add(y, b, x);
        self.harm("add", b, x);
    }

    fn head_rms_norm(&mut self, x: &mut Buffer, heads: Heads, weight: &Vec<f32>, eps: f32, b: &Batch) {
        self.inner.head_rms_norm(x, heads, weight, eps, b);
        self.harm("head_rms_norm", b, x);
    }

    fn head_l2_norm(&mut self, x: &mut Buffer, heads: Heads, eps: f32, factor: f32, b: &Batch) {
        self.inner.head_l2_norm(x, heads, eps, factor, b);
        self.harm("head_l2_norm", b, x);
    }

    fn rope(&mut self, x: &mut Buffer, heads: Heads, b: &Batch) {
        self.inner.rope(x, heads, b);
        self.harm("rope", b, x);
    }

    fn kv_append(&mut self, x: &Buffer, keys: Heads, values: Heads, kv: &mut Kv, b: &Batch) {
        if !self.is("kv_append", Fault::Omitted) {
            self.inner.kv_append(x, keys, values, kv, b);
        }
    }

    fn attention(&mut self, x: &Buffer, queries: Heads, kv: &Kv, spec: AttentionSpec, b: &Batch, y: &mut Buffer) {
        self.inner.attention(x, queries, kv, spec, b, y);
        self.harm("attention", b, y);
    }

    fn sigmoid_gate(&mut self, gate: &Buffer, heads: Heads, b: &Batch, y: &mut Buffer) {
        self.inner.sigmoid_gate(gate, heads, b, y);
        self.harm("sigmoid_gate", b, y);
    }

    fn conv_silu(&mut self, x: &Buffer, col: usize, w: &Vec<f32>, state: &mut Delta, b: &Batch, y: &mut Buffer) {
        self.inner.conv_silu(x, col, w, state, b, y);
        self.harm("conv_silu", b, y);
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
        self.inner.gdn_gates(x, a, beta, a_log, dt_bias, b, y);
        self.harm("gdn_gates", b, y);
    }

    fn gdn(&mut self, qkv: &Buffer, gates: &Buffer, state: &mut Delta, b: &Batch, y: &mut Buffer) {
        self.inner.gdn(qkv, gates, state, b, y);
        self.harm("gdn", b, y);
    }

    fn gdn_commit(&mut self, state: &mut Delta, slot: u32, accepted: usize) {
        let accepted = if self.is("gdn_commit", Fault::Omitted) { 0 } else { accepted };
        self.inner.gdn_commit(state, slot, accepted);
    }

    fn gated_rms_norm(&mut self, z: &Buffer, heads: Heads, weight: &Vec<f32>, eps: f32, b: &Batch, y: &mut Buffer) {
        self.inner.gated_rms_norm(z, heads, weight, eps, b, y);
        self.harm("gated_rms_norm", b, y);
    }

    fn silu_mul(&mut self, x: &Buffer, width: usize, b: &Batch, y: &mut Buffer) {
        self.inner.silu_mul(x, width, b, y);
        self.harm("silu_mul", b, y);
    }

    /// Wrong: weights are renormalised when they should not be, and not when they should. Company: the first logit of
    /// the last row is lost.
    fn route(&mut self, x: &Buffer, spec: RouteSpec, b: &Batch, routes: &mut RouteTable) {
        let renormalise = spec.renormalise != self.is("route", Fault::Wrong);
        let mut x = x.clone();
        if self.is("route", Fault::Company) && b.rows() > 1 {
            let mut values = self.inner.read(&x, x.rows()).expect("all rows can be read");
            values[(b.rows() - 1) * x.cols()] = -100.0;
            self.inner.write(&mut x, 0, &values).expect("all rows can be written");
        }
        self.inner.route(&x, RouteSpec { renormalise, ..spec }, b, routes);
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
        self.inner.experts_forward(experts, slots, x, routes, b, y);
        self.harm("experts_forward", b, y);
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
        self.inner.combine(y, routes, shared, gate, col, b, x);
        self.harm("combine", b, x);
    }

    fn gather(&mut self, x: &Buffer, b: &Batch, y: &mut Buffer) {
        self.inner.gather(x, b, y);
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.inner.wait()
    }

    fn read(&mut self, x: &Buffer, rows: usize) -> Result<Vec<f32>, DeviceError> {
        self.inner.read(x, rows)
    }

    fn write(&mut self, x: &mut Buffer, row: usize, values: &[f32]) -> Result<(), DeviceError> {
        self.inner.write(x, row, values)
    }

    fn read_routes(&mut self, routes: &RouteTable, b: &Batch) -> Result<Routes, DeviceError> {
        self.inner.read_routes(routes, b)
    }

    fn read_kv(&mut self, kv: &Kv, pages: &[u32], len: usize) -> Result<[Vec<f32>; 2], DeviceError> {
        self.inner.read_kv(kv, pages, len)
    }

    fn read_delta(&mut self, state: &Delta, slot: u32) -> Result<[Vec<f32>; 2], DeviceError> {
        self.inner.read_delta(state, slot)
    }

    fn delta_clear(&mut self, state: &mut Delta, slot: u32) {
        if !self.is("delta_clear", Fault::Omitted) {
            self.inner.delta_clear(state, slot);
        } else {
            // The recurrence stays, drafts do not: the reference would not go on otherwise.
            self.inner.gdn_commit(state, slot, 0);
        }
    }

    fn delta_copy(&mut self, state: &mut Delta, from: u32, to: u32) {
        if !self.is("delta_copy", Fault::Omitted) {
            self.inner.delta_copy(state, from, to);
        }
    }

    fn delta_export(&mut self, state: &Delta, slot: u32) -> Result<Vec<u8>, DeviceError> {
        self.inner.delta_export(state, slot)
    }

    fn delta_import(&mut self, state: &mut Delta, slot: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        if self.is("delta_import", Fault::Omitted) { Ok(()) } else { self.inner.delta_import(state, slot, bytes) }
    }

    fn kv_clear(&mut self, kv: &mut Kv, page: u32) {
        if !self.is("kv_clear", Fault::Omitted) {
            self.inner.kv_clear(kv, page);
        }
    }

    fn kv_release(&mut self, kv: &mut Kv, page: u32) {
        if !self.is("kv_release", Fault::Omitted) {
            self.inner.kv_release(kv, page);
        }
    }

    fn kv_copy(&mut self, kv: &mut Kv, from: u32, to: u32) {
        if !self.is("kv_copy", Fault::Omitted) {
            self.inner.kv_copy(kv, from, to);
        }
    }

    fn kv_export(&mut self, kv: &Kv, page: u32) -> Result<Vec<u8>, DeviceError> {
        self.inner.kv_export(kv, page)
    }

    fn kv_import(&mut self, kv: &mut Kv, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        if self.is("kv_import", Fault::Omitted) { Ok(()) } else { self.inner.kv_import(kv, page, bytes) }
    }

    fn project(&mut self, ws: &[(&FaultyMatrix, usize)], x: &Buffer, b: &Batch, y: &mut Buffer) {
        fused::project(self, ws, x, b, y);
        self.harm("project", b, y);
    }

    fn norm_project(
        &mut self,
        x: &Buffer,
        weight: &Vec<f32>,
        eps: f32,
        ws: &[(&FaultyMatrix, usize)],
        b: &Batch,
        normed: &mut Buffer,
        y: &mut Buffer,
    ) {
        fused::norm_project(self, x, weight, eps, ws, b, normed, y);
        self.harm("norm_project", b, y);
    }

    fn project_add(&mut self, w: &FaultyMatrix, y: &Buffer, b: &Batch, tmp: &mut Buffer, x: &mut Buffer) {
        fused::project_add(self, w, y, b, tmp, x);
        self.harm("project_add", b, x);
    }

    fn qk_norm_rope_append(
        &mut self,
        x: &mut Buffer,
        heads: [Heads; 3],
        norms: [&Vec<f32>; 2],
        eps: f32,
        kv: &mut Kv,
        b: &Batch,
    ) {
        fused::qk_norm_rope_append(self, x, heads, norms, eps, kv, b);
        self.harm("qk_norm_rope_append", b, x);
    }

    /// Wrong: the token behind the right one. Company: the token of the first row for all.
    fn sample(&mut self, logits: &Buffer, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>, DeviceError> {
        let mut sampled = fused::sample(&mut self.inner, logits, rows)?;
        if self.is("sample", Fault::Wrong) {
            sampled.iter_mut().for_each(|s| s.token += 1);
        }
        if self.is("sample", Fault::Company) {
            let first = sampled[0].token;
            sampled.iter_mut().for_each(|s| s.token = first);
        }
        Ok(sampled)
    }
}
