//! The reference device: plain f32 loops, the executable specification of every operation.
