//! Instruction sets: which there are, and which this machine has.

use std::fmt;
use std::str::FromStr;

/// An instruction set that the kernels are compiled for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// What every machine of the compiled target has.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// The same with AMX int8, which the system must permit.
    Amx,
    /// AArch64: NEON, which all of them have.
    Neon,
    /// The same with products of four bytes to a lane (FEAT_DotProd).
    Dotprod,
    /// The same with 2 x 8 by 8 x 2 products of bytes (FEAT_I8MM).
    I8mm,
}

impl Isa {
    /// Slowest first, among those that one machine can have.
    pub const ALL: [Isa; 7] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Amx, Isa::Neon, Isa::Dotprod, Isa::I8mm];

    /// Their names, in the same order.
    pub const NAMES: [&str; 7] = ["portable", "avx2", "avx512", "amx", "neon", "dotprod", "i8mm"];

    /// Whether this machine, under this operating system, can run it.
    pub fn available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => has_avx2() && has_avx512(),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => has_avx2() && has_avx512() && has_amx(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod => has_dotprod(),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => has_dotprod() && std::arch::is_aarch64_feature_detected!("i8mm"),
            _ => false,
        }
    }

    /// The fastest that this machine has.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Isa::Portable)
    }
}

// The features named here and the ones enabled in kernel_set.rs must agree.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

/// Asks the system too.
#[cfg(target_arch = "x86_64")]
fn has_amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // AMX-TILE and AMX-INT8.
    let bits = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).edx } else { 0 };
    bits >> 24 & 3 == 3 && crate::kernels::matmul::amx::permitted()
}

/// Asks the system, on Linux and macOS alike.
#[cfg(target_arch = "aarch64")]
fn has_dotprod() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Isa::NAMES[*self as usize])
    }
}

/// A name that is no instruction set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no instruction set is called {0:?}; there are {list}", list = Isa::NAMES.join(", "))]
pub struct UnknownIsa(String);

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Isa, UnknownIsa> {
        Isa::ALL.into_iter().find(|isa| isa.to_string() == name).ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}
