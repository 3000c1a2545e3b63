//! Shapes that operations are told about: fixed when a model is loaded, the same for every step.

use martlet_tensor::Scheme;

/// A weight matrix: what a device needs to know to make room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixSpec {
    pub scheme: Scheme,
    pub rows: usize,
    pub cols: usize,
    /// Its products never quantise the activations.
    pub exact: bool,
}

/// A matrix that is loaded in several pieces is cut at multiples of so many rows.
pub const ROW_STEP: usize = 16;

/// Tokens in one page of a KV cache.
pub const PAGE: usize = 64;

/// "This expert is not loaded", in a table from experts to slots.
pub const NO_SLOT: u32 = u32::MAX;

/// Equal heads inside one row of a buffer: head h is the columns `first + h * stride ..` of length `dim`. A stride of
/// `2 * dim` picks every second one, as in a query projection that holds [q, gate] for each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub first: usize,
    pub stride: usize,
    pub count: usize,
    pub dim: usize,
}

impl Heads {
    /// `count` heads side by side from column `first` on.
    pub fn packed(first: usize, count: usize, dim: usize) -> Heads {
        Heads { first, stride: dim, count, dim }
    }

    /// First column of head `h`.
    pub fn at(&self, h: usize) -> usize {
        self.first + h * self.stride
    }

    /// One column past the last head.
    pub fn end(&self) -> usize {
        if self.count == 0 { self.first } else { self.at(self.count - 1) + self.dim }
    }
}

/// How keys and values are stored. They are rounded when they are written, never later, and what is stored is finite:
/// NaN becomes 0, and what is beyond [`KvScheme::largest`] that value with its sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvScheme {
    F32,
    /// IEEE half, rounded to nearest even.
    F16,
    /// Whole numbers from -127 to 127 with one f32 scale for each key and each value of a token and kv head:
    /// scale = max |x| / 127, code = x / scale (both divisions rounded to f32, as is every operation here), rounded to
    /// nearest even; the stored value is code * scale. Where the scale would be less than the smallest normal f32, it
    /// and all codes are 0.
    Q8,
}

impl KvScheme {
    /// The largest value that is stored.
    pub fn largest(self) -> f32 {
        match self {
            KvScheme::F32 => f32::MAX,
            KvScheme::F16 => 65504.0,
            // 127 * 2^120: no product of code and scale overflows.
            KvScheme::Q8 => 127.0 * f32::from_bits((127 + 120) << 23),
        }
    }

    /// Bytes of one stored head of `dim` values: the key, or the value, of one token.
    pub fn head_bytes(self, dim: usize) -> usize {
        match self {
            KvScheme::F32 => 4 * dim,
            KvScheme::F16 => 2 * dim,
            KvScheme::Q8 => dim + size_of::<f32>(),
        }
    }
}

/// The KV cache of one attention layer: pages of [`PAGE`] tokens with `kv_heads` keys and values of `dim` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpec {
    pub kv_heads: usize,
    pub dim: usize,
    pub scheme: KvScheme,
}

impl KvSpec {
    /// Bytes of one token: keys and values of all heads.
    pub fn token_bytes(&self) -> usize {
        2 * self.kv_heads * self.scheme.head_bytes(self.dim)
    }

    /// Bytes of one page: keys and values.
    pub fn page_bytes(&self) -> usize {
        PAGE * self.token_bytes()
    }
}

/// Causal grouped-query attention. Query head h reads kv head h / (heads / kv_heads).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    /// Factor of the scores, dim^-0.5 in every model so far.
    pub scale: f32,
}

/// The sequence state of one Gated DeltaNet layer: a recurrent state [key_dim, value_dim] for each value head, and the
/// last `taps - 1` inputs of the convolution. Value head h uses key head h / (value_heads / key_heads).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSpec {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub taps: usize,
    /// Most tentative rows (drafts) that one sequence holds at a time.
    pub max_tentative: usize,
}

impl DeltaSpec {
    /// Columns of the convolution's input: all q, all k, all v, heads in order.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// The heads of q, k and v inside the convolution's output, which begins at column `first`.
    pub fn qkv(&self, first: usize) -> [Heads; 3] {
        let keys = self.key_heads * self.key_dim;
        [
            Heads::packed(first, self.key_heads, self.key_dim),
            Heads::packed(first + keys, self.key_heads, self.key_dim),
            Heads::packed(first + 2 * keys, self.value_heads, self.value_dim),
        ]
    }
}

/// Widths of one expert: gate and up [width, hidden], down [hidden, width].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    pub hidden: usize,
    pub width: usize,
}

/// How a router chooses: softmax over all `experts`, the `chosen` largest (compared as logits, so that no rounding of an
/// exponential decides; ties to the lower index), and, where
/// `renormalise` is set, their weights divided by their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteSpec {
    pub experts: usize,
    pub chosen: usize,
    pub renormalise: bool,
}

/// A router's choices as the host sees them: for each row `chosen` experts, largest probability first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    pub chosen: usize,
    /// [rows, chosen]
    pub experts: Vec<u32>,
    /// [rows, chosen]
    pub weights: Vec<f32>,
}
