//! The device trait. Operations stand in the order of a forward pass; each says what it computes (formula), on which
//! shapes, and what the law asks of its reduction. [`crate::reference`] computes them in plain loops.
//!
//! **The law.** The result for a row depends on that row's sequence and nothing else: not on how many rows a batch
//! has, which rows they are, how a prompt was cut into batches, or how many threads or multiprocessors work. So every
//! device fixes one reduction order for each operation and scheme: sums along K in slices of 256 absolute positions,
//! added in index order; attention in blocks of 256 absolute keys, merged in index order; expert outputs summed in
//! rank order.
//!
//! **Recording.** Operations record work on the device's one stream, in order, and can not fail at the call; errors
//! surface at [`Device::wait`] and at the reading operations. A CPU computes at once. A shape that does not fit is a
//! mistake of the caller and panics.

use crate::fused;
use crate::sampling::{SampleRow, Sampled};
use crate::{AttentionSpec, Batch, BatchError, DeltaSpec, ExpertShape, Heads, KvSpec, MatrixSpec, RouteSpec, Routes};
use martlet_tensor::Matrix;

/// Which rows of a buffer an operation works on: all rows of the batch, or one row for each of `Batch::outputs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    All,
    Outputs,
}

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("the {device} device can not {what}")]
    Unsupported { device: &'static str, what: String },
    #[error("the {device} device has no {bytes} bytes for {what}")]
    Memory { device: &'static str, what: &'static str, bytes: usize },
    #[error("batch: {0}")]
    Batch(#[from] BatchError),
    #[error("token {token} at row {row}: the model knows {vocabulary}")]
    Token { token: u32, row: usize, vocabulary: usize },
    #[error("stored state: {0}")]
    State(String),
    #[error("the {device} device failed: {what}")]
    Failed { device: &'static str, what: String },
}

/// A compute device with one in-order stream of work. Handles are opaque; all activations are f32.
pub trait Device: Sized + Send + 'static {
    /// Weights [out, in], kept in the scheme they came in.
    type Matrix: Send + Sync;
    /// Small constant vector of f32: norm weights, convolution taps, gate biases.
    type Vector: Send + Sync;
    /// Slots that hold one expert (gate, up, down) each.
    type Experts: Send;
    /// Activations [rows, cols].
    type Buffer: Send;
    /// Pages of keys and values of one attention layer.
    type Kv: Send;
    /// Recurrent and convolution state of one Gated DeltaNet layer, one slot for each sequence.
    type Delta: Send;
    /// A router's choices of one layer: [rows, chosen] experts and weights.
    type Routes: Send;
    /// A batch descriptor in device memory.
    type Batch: Send;

    /// Short name, for messages: "reference", "cpu".
    fn name(&self) -> &'static str;

    /// What a stored state depends on beside weights and tokens: device, kernel revision, activation scheme, form of
    /// the recurrence, split of the attention. Equal ids promise equal bits.
    fn arithmetic_id(&self) -> String;

    // --- memory -----------------------------------------------------------------------------------------------

    /// Takes a matrix into device memory. With `exact`, its products never quantise the activations (router, gates of
    /// shared experts, decay and beta projections).
    fn matrix(&self, m: &Matrix<'_>, exact: bool) -> Result<Self::Matrix, DeviceError>;

    /// Bytes of device memory that a matrix takes which does not lie in tiles yet.
    fn matrix_bytes(&self, spec: MatrixSpec) -> u64;

    /// Room for a matrix whose rows come in pieces: what [`Device::matrix`] gives once [`Device::load_rows`] has brought
    /// them all. So nobody needs to hold the whole matrix in the form in which it is stored.
    fn blank_matrix(&self, spec: MatrixSpec) -> Result<Self::Matrix, DeviceError>;

    /// Fills the rows of a blank matrix from `first` on, each once. `first` is a multiple of [`ROW_STEP`](crate::ROW_STEP),
    /// and `rows`, which do not lie in tiles, as many or the last ones.
    fn load_rows(&self, matrix: &mut Self::Matrix, first: usize, rows: &Matrix<'_>) -> Result<(), DeviceError>;

    /// The first `rows` rows, a multiple of [`ROW_STEP`](crate::ROW_STEP), as a matrix of their own that shares the memory
    /// of `matrix`.
    fn first_rows(&self, matrix: &Self::Matrix, rows: usize) -> Result<Self::Matrix, DeviceError>;

    fn vector(&self, values: &[f32]) -> Result<Self::Vector, DeviceError>;

    /// `slots` empty slots for experts of one shape.
    fn experts(&self, shape: ExpertShape, slots: usize) -> Result<Self::Experts, DeviceError>;

    /// Fills one slot. Where the matrices lie in tiles that the device can use in place, the slot keeps their owners.
    fn load_expert(
        &self,
        experts: &mut Self::Experts,
        slot: usize,
        gate: &Matrix<'_>,
        up: &Matrix<'_>,
        down: &Matrix<'_>,
    ) -> Result<(), DeviceError>;

    /// Empties one slot, and lets go of what it kept. Waits for the work that reads it.
    fn unload_expert(&mut self, experts: &mut Self::Experts, slot: usize);

    /// A zeroed buffer.
    fn buffer(&self, rows: usize, cols: usize) -> Result<Self::Buffer, DeviceError>;

    /// `pages` zeroed pages. A device that can takes their memory only as they are written.
    fn kv(&self, spec: KvSpec, pages: usize) -> Result<Self::Kv, DeviceError>;

    /// `slots` states of the empty sequence.
    fn delta(&self, spec: DeltaSpec, slots: usize) -> Result<Self::Delta, DeviceError>;

    /// Bytes of device memory that one slot of such states takes. A page of keys and values takes
    /// [`KvSpec::page_bytes`].
    fn delta_slot_bytes(&self, spec: DeltaSpec) -> usize;

    /// Room for the choices of `rows` rows.
    fn routes(&self, rows: usize, spec: RouteSpec) -> Result<Self::Routes, DeviceError>;

    /// Copies a checked batch to the device. Tokens must be below `vocabulary`.
    fn batch(&self, batch: &Batch, vocabulary: usize) -> Result<Self::Batch, DeviceError>;

    // --- the forward pass -------------------------------------------------------------------------------------

    /// y[r] = table[token of row r]; table [vocabulary, hidden].
    fn embed(&mut self, table: &Self::Matrix, b: &Self::Batch, y: &mut Self::Buffer);

    /// y[r, col..] = x[r] * rsqrt(mean(x[r]^2) + eps) * weight. `weight` is the multiplier itself (1 + w where a
    /// checkpoint stores w). The mean is over x's whole width.
    fn rms_norm(
        &mut self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        rows: Rows,
        b: &Self::Batch,
        y: &mut Self::Buffer,
        col: usize,
    );

    /// y[r, col + n] = sum over k of w[n, k] * x[r, k]; w [out, in], x's columns from 0 to in. Summed in slices of 256
    /// absolute k, slices added in index order.
    fn matmul(
        &mut self,
        w: &Self::Matrix,
        x: &Self::Buffer,
        rows: Rows,
        b: &Self::Batch,
        y: &mut Self::Buffer,
        col: usize,
    );

    /// x[r] += y[r, ..width of x].
    fn add(&mut self, y: &Self::Buffer, b: &Self::Batch, x: &mut Self::Buffer);

    /// Each head of x alone: h = h * rsqrt(mean(h^2) + eps) * weight, weight [dim].
    fn head_rms_norm(&mut self, x: &mut Self::Buffer, heads: Heads, weight: &Self::Vector, eps: f32, b: &Self::Batch);

    /// Each head of x alone: h = h * rsqrt(sum(h^2) + eps) * factor.
    fn head_l2_norm(&mut self, x: &mut Self::Buffer, heads: Heads, eps: f32, factor: f32, b: &Self::Batch);

    /// Rotates the first 2 * half dimensions of each head by the batch's tables, in halves:
    /// (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), x1 = dims [0, half), x2 = dims [half, 2 half).
    fn rope(&mut self, x: &mut Self::Buffer, heads: Heads, b: &Self::Batch);

    /// Writes keys and values of every row at its sequence's index: page = pages[index / 64], place = index % 64.
    /// What is stored is finite; [`crate::KvScheme`] says how it is rounded.
    fn kv_append(&mut self, x: &Self::Buffer, keys: Heads, values: Heads, kv: &mut Self::Kv, b: &Self::Batch);

    /// For each row and query head: s_j = scale * q . k_j over all keys j at or before the row's index;
    /// y[r, h * dim..] = sum of softmax(s)_j * v_j. Keys are taken in blocks of 256 absolute indices; each block gives
    /// (maximum, sum, weighted values), and blocks are merged in index order.
    fn attention(
        &mut self,
        x: &Self::Buffer,
        queries: Heads,
        kv: &Self::Kv,
        spec: AttentionSpec,
        b: &Self::Batch,
        y: &mut Self::Buffer,
    );

    /// y[r, h * dim + d] *= sigmoid(gate head h, d).
    fn sigmoid_gate(&mut self, gate: &Self::Buffer, heads: Heads, b: &Self::Batch, y: &mut Self::Buffer);

    /// Depthwise causal convolution and silu, with the sequence's history in `state`:
    /// y[r, c] = silu(sum over j < taps of w[c, j] * x[t - (taps - 1) + j, c]), w [channels, taps] (the last tap is the
    /// present row), x's columns from `col` on, y's from 0. Tentative rows are remembered until `gdn_commit`.
    fn conv_silu(
        &mut self,
        x: &Self::Buffer,
        col: usize,
        w: &Self::Vector,
        state: &mut Self::Delta,
        b: &Self::Batch,
        y: &mut Self::Buffer,
    );

    /// Decay and strength of each value head, x holding a (at column `a`) and b (at `beta`), value_heads columns each:
    /// y[r, h] = exp(-exp(a_log[h]) * softplus(a + dt_bias[h])), y[r, heads + h] = sigmoid(b).
    fn gdn_gates(
        &mut self,
        x: &Self::Buffer,
        a: usize,
        beta: usize,
        a_log: &Self::Vector,
        dt_bias: &Self::Vector,
        b: &Self::Batch,
        y: &mut Self::Buffer,
    );

    /// The gated delta rule, row after row of each sequence, for each value head with state S [key_dim, value_dim]:
    /// S = decay * S; u = beta * (v - S^T k); S = S + k u^T; y = S^T q.
    /// q, k, v lie in `qkv` as [`DeltaSpec::qkv`]`(0)` says, decay and beta in `gates` as `gdn_gates` leaves them;
    /// y [rows, value_heads * value_dim].
    /// A device may keep S at borders (absolute multiples of some C that divides 64) and the rows since then apart:
    /// the canonical form is part of its arithmetic id. Certain rows are folded in, tentative ones appended.
    fn gdn(
        &mut self,
        qkv: &Self::Buffer,
        gates: &Self::Buffer,
        state: &mut Self::Delta,
        b: &Self::Batch,
        y: &mut Self::Buffer,
    );

    /// Settles the tentative rows of `slot`: the first `accepted` of them stay, the others never were. Convolution
    /// history and recurrent state alike. Without tentative rows: nothing.
    fn gdn_commit(&mut self, state: &mut Self::Delta, slot: u32, accepted: usize);

    /// Each head: y = weight * (y * rsqrt(mean(y^2) + eps)) * silu(z), weight [dim]; y's heads packed from column 0.
    fn gated_rms_norm(
        &mut self,
        z: &Self::Buffer,
        heads: Heads,
        weight: &Self::Vector,
        eps: f32,
        b: &Self::Batch,
        y: &mut Self::Buffer,
    );

    /// y[r, i] = silu(x[r, i]) * x[r, width + i] for i < width.
    fn silu_mul(&mut self, x: &Self::Buffer, width: usize, b: &Self::Batch, y: &mut Self::Buffer);

    /// Chooses experts from the router's logits, x[r, ..experts].
    fn route(&mut self, x: &Self::Buffer, spec: RouteSpec, b: &Self::Batch, routes: &mut Self::Routes);

    /// For every (row, rank) whose expert e has a slot (`slots[e]`, [`crate::NO_SLOT`] where it has none):
    /// y[r * chosen + rank] = down(silu(gate x[r]) * up x[r]). Pairs without a slot are left alone, so that a layer can
    /// be computed in several calls as its experts arrive.
    fn experts_forward(
        &mut self,
        experts: &Self::Experts,
        slots: &[u32],
        x: &Self::Buffer,
        routes: &Self::Routes,
        b: &Self::Batch,
        y: &mut Self::Buffer,
    );

    /// x[r] += (sum over ranks, in order, of weight * y[r * chosen + rank]) + sigmoid(gate[r, col]) * shared[r].
    fn combine(
        &mut self,
        y: &Self::Buffer,
        routes: &Self::Routes,
        shared: &Self::Buffer,
        gate: &Self::Buffer,
        col: usize,
        b: &Self::Batch,
        x: &mut Self::Buffer,
    );

    /// y[i] = x[outputs[i]].
    fn gather(&mut self, x: &Self::Buffer, b: &Self::Batch, y: &mut Self::Buffer);

    // --- reading, writing, waiting ----------------------------------------------------------------------------

    /// Waits for all recorded work and reports what failed.
    fn wait(&mut self) -> Result<(), DeviceError>;

    /// The first `rows` rows of a buffer; waits.
    fn read(&mut self, x: &Self::Buffer, rows: usize) -> Result<Vec<f32>, DeviceError>;

    /// Overwrites rows from `row` on; `values` are whole rows.
    fn write(&mut self, x: &mut Self::Buffer, row: usize, values: &[f32]) -> Result<(), DeviceError>;

    /// Choices of the batch's rows; waits.
    fn read_routes(&mut self, routes: &Self::Routes, b: &Self::Batch) -> Result<Routes, DeviceError>;

    /// Keys and values, rounded as stored, of the first `len` tokens in `pages`: two arrays [kv_heads, len, dim].
    fn read_kv(&mut self, kv: &Self::Kv, pages: &[u32], len: usize) -> Result<[Vec<f32>; 2], DeviceError>;

    /// (convolution history [taps - 1, channels], oldest first; recurrent state [value_heads, key_dim, value_dim] with
    /// all certain rows folded in) of a slot.
    fn read_delta(&mut self, state: &Self::Delta, slot: u32) -> Result<[Vec<f32>; 2], DeviceError>;

    // --- sequences --------------------------------------------------------------------------------------------

    /// Makes `slot` the state of the empty sequence.
    fn delta_clear(&mut self, state: &mut Self::Delta, slot: u32);

    /// Copies one slot to another, pending rows included.
    fn delta_copy(&mut self, state: &mut Self::Delta, from: u32, to: u32);

    /// A slot's bytes, exactly as the device keeps them; only for the same arithmetic id. Little-endian.
    fn delta_export(&mut self, state: &Self::Delta, slot: u32) -> Result<Vec<u8>, DeviceError>;

    /// The reverse of `delta_export`. Bytes of the wrong size or form are an error, and the slot is as it was.
    fn delta_import(&mut self, state: &mut Self::Delta, slot: u32, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Makes every value of a page zero: what a page holds past its sequence's end is never a leftover.
    fn kv_clear(&mut self, kv: &mut Self::Kv, page: u32);

    /// The page holds nothing any more: its memory may go back to the system until it is written again. It reads as
    /// zeros.
    fn kv_release(&mut self, kv: &mut Self::Kv, page: u32) {
        self.kv_clear(kv, page);
    }

    /// Copies one page to another.
    fn kv_copy(&mut self, kv: &mut Self::Kv, from: u32, to: u32);

    /// A page's bytes as stored.
    fn kv_export(&mut self, kv: &Self::Kv, page: u32) -> Result<Vec<u8>, DeviceError>;

    /// The reverse of `kv_export`.
    fn kv_import(&mut self, kv: &mut Self::Kv, page: u32, bytes: &[u8]) -> Result<(), DeviceError>;

    // --- fused operations: right by composition, fast where a device overrides them ------------------------------

    /// Several products of one input: y[r, col..] for each (matrix, col).
    fn project(&mut self, ws: &[(&Self::Matrix, usize)], x: &Self::Buffer, b: &Self::Batch, y: &mut Self::Buffer) {
        fused::project(self, ws, x, b, y);
    }

    /// RMSNorm of x into `normed`, then several products of it into y.
    fn norm_project(
        &mut self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        ws: &[(&Self::Matrix, usize)],
        b: &Self::Batch,
        normed: &mut Self::Buffer,
        y: &mut Self::Buffer,
    ) {
        fused::norm_project(self, x, weight, eps, ws, b, normed, y);
    }

    /// x[r] += w y[r]; `tmp` takes the product.
    fn project_add(
        &mut self,
        w: &Self::Matrix,
        y: &Self::Buffer,
        b: &Self::Batch,
        tmp: &mut Self::Buffer,
        x: &mut Self::Buffer,
    ) {
        fused::project_add(self, w, y, b, tmp, x);
    }

    /// Norm and rotation of query and key heads, then the append of keys and values.
    fn qk_norm_rope_append(
        &mut self,
        x: &mut Self::Buffer,
        [q, k, v]: [Heads; 3],
        [q_norm, k_norm]: [&Self::Vector; 2],
        eps: f32,
        kv: &mut Self::Kv,
        b: &Self::Batch,
    ) {
        fused::qk_norm_rope_append(self, x, [q, k, v], [q_norm, k_norm], eps, kv, b);
    }

    /// One token for each output row, from logits [outputs, vocabulary]; see [`crate::sampling`]. Waits.
    fn sample(&mut self, logits: &Self::Buffer, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>, DeviceError> {
        fused::sample(self, logits, rows)
    }
}
