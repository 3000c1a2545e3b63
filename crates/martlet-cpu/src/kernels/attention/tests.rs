use super::*;
use crate::isa::Isa;
use crate::kernel_set::KernelSet;
use crate::kernels::kv_block::Plane;
use crate::testing::Random;

/// The definition, in plain scalar steps; `stored(plane, j)` is what is stored for index j.
fn scalar(q: &[f32], keys: usize, scale: f32, stored: impl Fn(Plane, usize) -> Vec<f32>) -> Vec<f32> {
    let (mut max, mut weight, mut out) = (f32::NEG_INFINITY, 0.0f32, vec![0.0f32; q.len()]);
    for block in (0..keys).step_by(BLOCK) {
        let here = block..keys.min(block + BLOCK);
        let score = |j| stored(Plane::Keys, j).iter().zip(q).fold(0.0f32, |s, (k, q)| q.mul_add(*k, s));
        let s: Vec<f32> = here.clone().map(|j| scale * score(j)).collect();
        let m = s.iter().fold(f32::NEG_INFINITY, |m, s| m.max(*s));
        let p: Vec<f32> = s.iter().map(|s| exp(s - m)).collect();
        let mut o = vec![0.0f32; q.len()];
        for (j, p) in here.zip(&p) {
            for (o, v) in o.iter_mut().zip(stored(Plane::Values, j)) {
                *o = p.mul_add(v, *o);
            }
        }
        let merged = max.max(m);
        let (f, g) = (exp(max - merged), exp(m - merged));
        weight = total(&p).mul_add(g, weight * f);
        for (out, o) in out.iter_mut().zip(o) {
            *out = (o + 0.0).mul_add(g, *out * f);
        }
        max = merged;
    }
    out.iter().map(|o| o / weight).collect()
}

/// (first row, rows, heads of a group): alone, over a border of pages and of blocks, sets of all sizes.
const ROWS: [(usize, usize, usize); 6] = [(0, 1, 1), (62, 3, 2), (250, 9, 1), (255, 2, 3), (511, 1, 8), (0, 13, 3)];

#[test]
fn every_isa_gives_the_bits_of_scalar() {
    for (dim, (first, rows, group)) in [1, 20, 64, 72, 256, 512].into_iter().zip(ROWS).chain([(16, ROWS[2])]) {
        let mut r = Random::new((dim + first) as u64);
        let (kv_heads, kv_head) = (3, 1);
        // Pages in no order, among others.
        let pages: Vec<u32> = (0..(first + rows).div_ceil(PAGE) as u32).map(|p| 2 * (9 - p)).collect();
        let queries: Vec<f32> = r.vec(rows * group * dim).iter().map(|v| 4.0 * v).collect();
        let mut q = Vec::new();
        pack(|pair| &queries[pair * dim..], rows * group, dim, &mut q);
        for scheme in [KvScheme::F32, KvScheme::F16, KvScheme::Q8] {
            let head = PAGE * scheme.head_bytes(dim);
            let mut bytes = vec![0; 20 * 2 * kv_heads * head];
            for (i, block) in bytes.chunks_exact_mut(head).enumerate() {
                let plane = if i / kv_heads % 2 == 0 { Plane::Keys } else { Plane::Values };
                (0..PAGE).for_each(|token| kv_block::store(scheme, plane, block, token, &r.vec(dim)));
            }
            let stored = |plane: Plane, j: usize| {
                let block = (pages[j / PAGE] as usize * 2 + plane as usize) * kv_heads + kv_head;
                let mut row = vec![0.0; dim];
                kv_block::load(scheme, plane, &bytes[block * head..][..head], j % PAGE, &mut row);
                row
            };
            let pairs = rows * group;
            let want = |pair: usize| scalar(&queries[pair * dim..][..dim], first + pair / group + 1, 0.3, stored);
            let want: Vec<f32> = (0..pairs).flat_map(want).collect();
            let (q, bytes, pages) = (&q, &bytes, &pages);
            let a = Attend { q, dim, first, rows, group, scheme, bytes, pages, kv_heads, kv_head, scale: 0.3 };
            for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                assert_eq!(all_blocks(&KernelSet::new(isa), &a), want, "{rows} rows of {dim}, {scheme:?}, {isa}");
            }
        }
    }
}

fn all_blocks(kernels: &KernelSet, a: &Attend<'_>) -> Vec<f32> {
    let (pairs, mut scratch) = (a.pairs(), Scratch::default());
    let (mut all, mut next) = (vec![0.0; Partial::len(pairs, a.dim)], vec![f32::NAN; Partial::len(pairs, a.dim)]);
    let (mut all, mut next) = (Partial::new(&mut all, pairs), Partial::new(&mut next, pairs));
    all.clear();
    for block in 0..(a.first + a.rows).div_ceil(BLOCK) {
        (kernels.attention)(a, block, &mut scratch, &mut next);
        (kernels.attention_merge)(&mut all, &next, a.skipped(block));
    }
    let row = |pair: usize| all.values[pair * width(a.dim)..][..a.dim].iter().map(move |v| (pair, *v));
    (0..pairs).flat_map(row).map(|(pair, v)| v / all.sum[pair]).collect()
}

/// What a page holds past the rows has no part in their result, not even in the sign of a zero.
#[test]
fn keys_past_a_row_are_never_felt() {
    let (dim, scheme) = (64, KvScheme::F32);
    let head = PAGE * scheme.head_bytes(dim);
    let results = [0.0f32, -0.0, 1.0, -f32::MAX].map(|past| {
        let mut bytes = vec![0; 2 * head];
        for (plane, block) in [Plane::Keys, Plane::Values].into_iter().zip(bytes.chunks_exact_mut(head)) {
            // Values so small that their products round to a negative zero.
            kv_block::store(scheme, plane, block, 0, &vec![if plane == Plane::Keys { 1.0 } else { 0.0 }; dim]);
            kv_block::store(scheme, plane, block, 1, &vec![if plane == Plane::Keys { -99.0 } else { -1e-30 }; dim]);
            (2..PAGE).for_each(|token| kv_block::store(scheme, plane, block, token, &vec![past; dim]));
        }
        Isa::ALL
            .into_iter()
            .filter(|isa| isa.available())
            .map(|isa| {
                let q = vec![1.0; dim * 2];
                let a = |rows| Attend {
                    q: &q[..dim * rows],
                    dim,
                    first: 1,
                    rows,
                    group: 1,
                    scheme,
                    bytes: &bytes,
                    pages: &[0],
                    kv_heads: 1,
                    kv_head: 0,
                    scale: 1.0,
                };
                let alone = all_blocks(&KernelSet::new(isa), &a(1));
                let beside = all_blocks(&KernelSet::new(isa), &a(2))[..dim].to_vec();
                [alone, beside].map(|y| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>())
            })
            .collect::<Vec<_>>()
    });
    let first = &results[0][0][0];
    assert!(results.iter().flatten().flatten().all(|bits| bits == first), "{results:?}");
}
