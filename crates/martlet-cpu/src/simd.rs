//! Vectors of one instruction set, for kernels that the compiler does not vectorise well by itself. Every operation
//! acts on each lane alone and rounds as IEEE says, so a kernel gives the same bits on all of them, as long as it never
//! adds across lanes.
#![allow(unsafe_code)]

/// One register of f32. A register's width divides 64.
pub trait Simd {
    type V: Copy;
    /// Lanes of a register.
    const WIDTH: usize;
    /// Registers side by side that a kernel should work on, when six rows of them are sums at the same time.
    const COLUMNS: usize;

    /// # Safety
    /// Of this and of all others: the machine has the instruction set, and pointers are good for `WIDTH` values, not
    /// aligned to more than one byte.
    unsafe fn splat(x: f32) -> Self::V;
    /// # Safety
    /// As [`Simd::splat`].
    unsafe fn load(from: *const f32) -> Self::V;
    /// # Safety
    /// As [`Simd::splat`].
    unsafe fn store(to: *mut f32, v: Self::V);
    /// a * b + c, rounded once.
    /// # Safety
    /// As [`Simd::splat`].
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// # Safety
    /// As [`Simd::splat`].
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// Finite IEEE halves.
    /// # Safety
    /// As [`Simd::splat`].
    unsafe fn halves(from: *const u16) -> Self::V;
    /// # Safety
    /// As [`Simd::splat`].
    unsafe fn codes(from: *const i8) -> Self::V;
}

/// Asks for the lines of some values, which will be read soon.
#[inline(always)]
pub fn prefetch(values: &[f32]) {
    for line in values.chunks(16) {
        prefetch_line(line.as_ptr().cast());
    }
}

/// Asks for the line at an address; one without memory is no fault.
#[inline(always)]
pub fn prefetch_line(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, and it reads nothing that the program could see.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast())
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every AArch64 has the instruction, and it reads nothing that the program could see.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly))
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

/// What every machine has.
pub struct Plain;

impl Simd for Plain {
    type V = crate::lanes::Lanes;
    const WIDTH: usize = crate::lanes::LANES;
    const COLUMNS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; crate::lanes::LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: good for 16 values, as the caller promises.
        unsafe { from.cast::<Self::V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        // SAFETY: good for 16 values, as the caller promises.
        unsafe { to.cast::<Self::V>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, mut c: Self::V) -> Self::V {
        crate::lanes::fma_lanes(&mut c, a, b);
        c
    }

    #[inline(always)]
    unsafe fn mul(mut a: Self::V, b: Self::V) -> Self::V {
        for i in 0..Self::WIDTH {
            a[i] *= b[i];
        }
        a
    }

    #[inline(always)]
    unsafe fn halves(from: *const u16) -> Self::V {
        // SAFETY: good for 16 values, as the caller promises.
        let halves = unsafe { from.cast::<[u16; 16]>().read_unaligned() };
        halves.map(crate::lanes::widen_f16)
    }

    #[inline(always)]
    unsafe fn codes(from: *const i8) -> Self::V {
        // SAFETY: good for 16 values, as the caller promises.
        unsafe { from.cast::<[i8; 16]>().read_unaligned() }.map(f32::from)
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::*;

    pub struct Avx2;
    pub struct Avx512;

    macro_rules! vectors {
        ($name:ident, $v:ty, $width:literal, $columns:literal, $splat:ident, $load:ident, $store:ident, $fma:ident,
         $mul:ident, $halves:expr, $codes:expr) => {
            impl Simd for $name {
                type V = $v;
                const WIDTH: usize = $width;
                const COLUMNS: usize = $columns;

                #[inline(always)]
                unsafe fn splat(x: f32) -> Self::V {
                    // SAFETY: the machine has the instruction set, as the caller promises.
                    unsafe { $splat(x) }
                }

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self::V {
                    // SAFETY: as above; the pointer is good for a register.
                    unsafe { $load(from) }
                }

                #[inline(always)]
                unsafe fn store(to: *mut f32, v: Self::V) {
                    // SAFETY: as above.
                    unsafe { $store(to, v) }
                }

                #[inline(always)]
                unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                    // SAFETY: as above.
                    unsafe { $fma(a, b, c) }
                }

                #[inline(always)]
                unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
                    // SAFETY: as above.
                    unsafe { $mul(a, b) }
                }

                #[inline(always)]
                unsafe fn halves(from: *const u16) -> Self::V {
                    // SAFETY: as above.
                    unsafe { $halves(from) }
                }

                #[inline(always)]
                unsafe fn codes(from: *const i8) -> Self::V {
                    // SAFETY: as above.
                    unsafe { $codes(from) }
                }
            }
        };
    }

    vectors!(
        Avx2,
        __m256,
        8,
        2,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_mul_ps,
        |p: *const u16| _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
        |p: *const i8| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())))
    );
    vectors!(
        Avx512,
        __m512,
        16,
        4,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_mul_ps,
        |p: *const u16| _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())),
        |p: *const i8| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
    );
}

#[cfg(target_arch = "aarch64")]
pub use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Simd;
    use std::arch::aarch64::*;

    pub struct Neon;

    impl Simd for Neon {
        type V = float32x4_t;
        const WIDTH: usize = 4;
        /// 24 sums, 4 values and a factor in 32 registers.
        const COLUMNS: usize = 4;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self::V {
            // SAFETY: every AArch64 has NEON.
            unsafe { vdupq_n_f32(x) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self::V {
            // SAFETY: the pointer is good for a register, as the caller promises.
            unsafe { vld1q_f32(from) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, v: Self::V) {
            // SAFETY: as above.
            unsafe { vst1q_f32(to, v) }
        }

        #[inline(always)]
        unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            // SAFETY: every AArch64 has NEON.
            unsafe { vfmaq_f32(c, a, b) }
        }

        #[inline(always)]
        unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: every AArch64 has NEON.
            unsafe { vmulq_f32(a, b) }
        }

        #[inline(always)]
        unsafe fn halves(from: *const u16) -> Self::V {
            // SAFETY: as for `load`.
            unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))) }
        }

        #[inline(always)]
        unsafe fn codes(from: *const i8) -> Self::V {
            // SAFETY: as for `load`.
            unsafe {
                let four = vcreate_s8(u64::from(from.cast::<u32>().read_unaligned()));
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
            }
        }
    }
}
