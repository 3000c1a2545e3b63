//! Rotation of one head, in halves: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), x1 = dims [0, half),
//! x2 = dims [half, 2 half).
//! order: fma(x1, cos, -(x2 sin)) and fma(x2, cos, x1 sin); the inner product is rounded.

#[inline(always)]
pub fn rope(h: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    let (sin, (a, b)) = (&sin[..half], h.split_at_mut(half));
    let b = &mut b[..half];
    for i in 0..half {
        let (x, y) = (a[i], b[i]);
        a[i] = x.mul_add(cos[i], -(y * sin[i]));
        b[i] = y.mul_add(cos[i], x * sin[i]);
    }
}
