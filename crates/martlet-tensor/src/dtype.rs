//! Element types as they occur in checkpoints.

use half::{bf16, f16};

/// Type of one stored element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    /// 8-bit float with 4 exponent bits, bias 7, no infinities.
    F8E4m3,
    U8,
    U32,
    I64,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F8E4m3 | Dtype::U8 => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::I64 => 8,
        }
    }

    /// The float type of dense weights or scales stored as this type.
    pub fn float(self) -> Option<Float> {
        match self {
            Dtype::F32 => Some(Float::F32),
            Dtype::F16 => Some(Float::F16),
            Dtype::Bf16 => Some(Float::Bf16),
            _ => None,
        }
    }
}

/// A floating-point type of dense weights, scales and biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::Bf16 => 2,
        }
    }

    /// Element `i` of little-endian `bytes`; the bytes may lie at any address.
    #[inline]
    pub fn get(self, bytes: &[u8], i: usize) -> f32 {
        match self {
            Float::F32 => f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]),
            Float::F16 => f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
            Float::Bf16 => bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        }
    }

    /// Appends `value` in this type, rounded to nearest even.
    pub fn put(self, value: f32, bytes: &mut Vec<u8>) {
        match self {
            Float::F32 => bytes.extend(value.to_le_bytes()),
            Float::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            Float::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
        }
    }

    /// `value` rounded to this type and widened again.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Float::F32 => value,
            Float::F16 => f16::from_f32(value).to_f32(),
            Float::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }
}

impl From<Float> for Dtype {
    fn from(float: Float) -> Dtype {
        match float {
            Float::F32 => Dtype::F32,
            Float::F16 => Dtype::F16,
            Float::Bf16 => Dtype::Bf16,
        }
    }
}

/// All elements of little-endian `bytes`, widened.
pub fn read_floats(float: Float, bytes: &[u8]) -> Vec<f32> {
    (0..bytes.len() / float.size()).map(|i| float.get(bytes, i)).collect()
}
