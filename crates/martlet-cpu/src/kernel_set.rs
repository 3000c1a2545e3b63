//! The table of kernels: every kernel body, compiled once for each instruction set, and chosen once at start.
//!
//! A body is plain Rust and always inlined into its wrapper, so the wrapper's target features decide what the compiler
//! makes of it. Rust never contracts or reorders float operations: all builds of one body give the same bits.
#![allow(unsafe_code)]

use crate::acts::{self, Starts, Tile};
use crate::isa::Isa;
use crate::kernels::{attention, conv_silu, elementwise, embed, gdn, matmul, norm, rope, route};
use crate::lanes::Lanes;
use crate::simd;
use crate::tiles::Weights;
use martlet_device::sampling;

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident = $body:path, ($($arg:ident: $type:ty),*) $(-> $out:ty)?;)*) => {
        /// The kernels of one instruction set.
        #[derive(Clone, Copy)]
        pub struct KernelSet {
            pub isa: Isa,
            $($(#[$doc])* pub $name: fn($($type),*) $(-> $out)?,)*
        }

        impl KernelSet {
            /// The kernels for `isa`, or for what every machine has where this one lacks `isa`.
            pub fn new(isa: Isa) -> KernelSet {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 if isa.available() => KernelSet { isa, $($name: avx2::$name),* },
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 if isa.available() => KernelSet { isa, $($name: avx512::$name),* },
                    #[cfg(target_arch = "x86_64")]
                    Isa::Amx if isa.available() => KernelSet { isa, matmul: amx::matmul, ..KernelSet::new(Isa::Avx512) },
                    #[cfg(target_arch = "aarch64")]
                    Isa::Neon => KernelSet { isa, matmul: neon::matmul, attention: neon::attention, ..KernelSet::new(Isa::Portable) },
                    #[cfg(target_arch = "aarch64")]
                    Isa::Dotprod if isa.available() => KernelSet { isa, matmul: neon::matmul_dotprod, ..KernelSet::new(Isa::Neon) },
                    #[cfg(target_arch = "aarch64")]
                    Isa::I8mm if isa.available() => KernelSet { isa, matmul: neon::matmul_i8mm, ..KernelSet::new(Isa::Neon) },
                    _ => KernelSet { isa: Isa::Portable, $($name: portable::$name),* },
                }
            }
        }

        mod portable {
            use super::*;
            /// Without it, a fused multiply-add is a call into the mathematical library: right, and slow.
            const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
            type CodeProducts = matmul::codes::Plain<FUSED>;
            type Vectors = simd::Plain;
            $(pub fn $name($($arg: $type),*) $(-> $out)? {
                $body($($arg),*)
            })*
        }

        #[cfg(target_arch = "x86_64")]
        mod avx2 {
            use super::*;
            type CodeProducts = matmul::avx2::Avx2;
            type Vectors = simd::Avx2;
            $(pub fn $name($($arg: $type),*) $(-> $out)? {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn compiled($($arg: $type),*) $(-> $out)? {
                    $body($($arg),*)
                }
                // SAFETY: reachable only through a `KernelSet` for AVX2, which exists only where the features do.
                unsafe { compiled($($arg),*) }
            })*
        }

        #[cfg(target_arch = "x86_64")]
        mod avx512 {
            use super::*;
            type CodeProducts = matmul::vnni::Vnni;
            type Vectors = simd::Avx512;
            $(pub fn $name($($arg: $type),*) $(-> $out)? {
                #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
                fn compiled($($arg: $type),*) $(-> $out)? {
                    $body($($arg),*)
                }
                // SAFETY: reachable only through a `KernelSet` for AVX-512, which exists only where the features do.
                unsafe { compiled($($arg),*) }
            })*
        }
    };
}

kernels! {
    /// One row to codes: (x, group, codes, d, ds).
    quantise = acts::quantise, (x: &[f32], group: usize, codes: &mut [Tile], d: &mut [f32], ds: &mut [f32]);
    /// One row's codes to where their sums begin: (codes, starts).
    starts = acts::starts, (codes: &[Tile], starts: &mut [Starts]);
    /// 16 outputs of some rows.
    matmul = matmul::matmul::<CodeProducts>, (p: &matmul::Product<'_>, out: &mut [Lanes]);
    /// One row of a table: (table, row, y).
    embed = embed::embed, (table: &Weights, row: usize, y: &mut [f32]);
    /// y = x * rsqrt(mean(x^2) + eps) * weight: (x, weight, eps, y).
    rms_norm = norm::rms_norm, (x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]);
    /// The same in place.
    head_rms_norm = norm::head_rms_norm, (h: &mut [f32], weight: &[f32], eps: f32);
    /// h = h * rsqrt(sum(h^2) + eps) * factor.
    head_l2_norm = norm::head_l2_norm, (h: &mut [f32], eps: f32, factor: f32);
    /// h = weight * (h * rsqrt(mean(h^2) + eps)) * silu(z): (z, weight, eps, h).
    gated_rms_norm = norm::gated_rms_norm, (z: &[f32], weight: &[f32], eps: f32, h: &mut [f32]);
    /// Rotates one head: (h, cos, sin).
    rope = rope::rope, (h: &mut [f32], cos: &[f32], sin: &[f32]);
    /// Some rows and heads over one block of keys: (what, block, scratch, result).
    attention = attention::block::<Vectors>, (a: &attention::Attend<'_>, block: usize, scratch: &mut attention::Scratch, out: &mut attention::Partial<'_>);
    /// Adds the next block's result: (all, next, pairs that are left out).
    attention_merge = attention::merge, (all: &mut attention::Partial<'_>, next: &attention::Partial<'_>, skipped: usize);
    /// y *= sigmoid(gate).
    sigmoid_gate = elementwise::sigmoid_gate, (gate: &[f32], y: &mut [f32]);
    /// y = silu(gate) * up.
    silu_mul = elementwise::silu_mul, (gate: &[f32], up: &[f32], y: &mut [f32]);
    /// gate = silu(gate) * up.
    silu_mul_in_place = elementwise::silu_mul_in_place, (gate: &mut [f32], up: &[f32]);
    /// x += y.
    add = elementwise::add, (y: &[f32], x: &mut [f32]);
    /// x += weighted expert outputs + sigmoid(gate) * shared.
    combine = elementwise::combine, (c: &elementwise::Combine<'_>, x: &mut [f32]);
    /// Decay and strength of every value head: (a, b, a_log, dt_bias, y).
    gdn_gates = elementwise::gdn_gates, (a: &[f32], b: &[f32], a_log: &[f32], dt_bias: &[f32], y: &mut [f32]);
    /// Some channels of the convolution for the rows of a sequence.
    conv_silu = conv_silu::conv_silu, (c: &mut conv_silu::Conv<'_, '_>);
    /// One value head's rows of a sequence.
    gdn = gdn::gdn, (h: &mut gdn::HeadRows<'_, '_>);
    /// Folds rows into a state.
    gdn_fold = gdn::fold, (state: &mut [f32], rows: gdn::Pending<'_>);
    /// Exponentials of sampling: (logits, max, temperature, y).
    sample_weigh = sampling::weigh, (x: &[f32], max: f32, temperature: f32, y: &mut [f32]);
    /// One row's choice of experts: (logits, scratch, renormalise, experts, weights).
    route = route::route, (x: &[f32], scratch: &mut route::Scratch, renormalise: bool, experts: &mut [u32], weights: &mut [f32]);
}

/// AMX has tiles for the products; all else is AVX-512.
#[cfg(target_arch = "x86_64")]
mod amx {
    use super::*;

    pub fn matmul(p: &matmul::Product<'_>, out: &mut [Lanes]) {
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        fn compiled(p: &matmul::Product<'_>, out: &mut [Lanes]) {
            matmul::matmul::<matmul::amx::Amx>(p, out)
        }
        // SAFETY: reachable only through a `KernelSet` for AMX, which exists only where the features do.
        unsafe { compiled(p, out) }
    }
}

/// Every AArch64 has NEON, so what the compiler makes of plain Rust uses it. Of their own are the products of integer
/// codes, which it does not find, and attention.
#[cfg(target_arch = "aarch64")]
mod neon {
    use super::*;
    use matmul::{dotprod::Dotprod, i8mm::I8mm, neon::Neon};

    pub fn matmul(p: &matmul::Product<'_>, out: &mut [Lanes]) {
        matmul::matmul::<Neon>(p, out)
    }

    /// Only for machines with FEAT_DotProd.
    pub fn matmul_dotprod(p: &matmul::Product<'_>, out: &mut [Lanes]) {
        matmul::matmul::<Dotprod>(p, out)
    }

    /// Only for machines with FEAT_DotProd and FEAT_I8MM.
    pub fn matmul_i8mm(p: &matmul::Product<'_>, out: &mut [Lanes]) {
        matmul::matmul::<I8mm>(p, out)
    }

    pub fn attention(
        a: &attention::Attend<'_>,
        block: usize,
        scratch: &mut attention::Scratch,
        out: &mut attention::Partial<'_>,
    ) {
        attention::block::<simd::Neon>(a, block, scratch, out)
    }
}
