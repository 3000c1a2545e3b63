//! Qwen3-Next's joint projections of linear layers, cut by rows.
//!
//! in_proj_qkvz holds, for each key head: q (Dk rows), k (Dk), v (r * Dv), z (r * Dv), r value heads sharing a key
//! head. The canonical in_proj_qkv is all q, all k, all v, heads in order; in_proj_z all z. in_proj_ba holds, for each
//! key head: b (r rows), a (r).

use super::number;
use serde_json::Value;
use std::ops::Range;

/// Rows of a joint projection that make the first and the second of its parts.
pub(crate) type Cut = (Vec<Range<usize>>, Vec<Range<usize>>);

/// Shape of the linear layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub keys: usize,
    pub values: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

impl Heads {
    /// From the configuration; the error says what it lacks.
    pub fn new(config: &Value) -> Result<Heads, String> {
        let field = |key: &str| match number(config, key) {
            Some(n) if n > 0 && n < 1 << 20 => Ok(n),
            _ => Err(format!("config.json has no usable {key}, without which in_proj_qkvz can not be cut")),
        };
        let heads = Heads {
            keys: field("linear_num_key_heads")?,
            values: field("linear_num_value_heads")?,
            key_dim: field("linear_key_head_dim")?,
            value_dim: field("linear_value_head_dim")?,
        };
        match heads.values.is_multiple_of(heads.keys) {
            true => Ok(heads),
            false => Err(format!(
                "config.json: linear_num_value_heads {} is no multiple of linear_num_key_heads {}",
                heads.values, heads.keys
            )),
        }
    }

    /// Widths of q, k, v and z of one key head.
    fn widths(&self) -> [usize; 4] {
        let v = self.values / self.keys * self.value_dim;
        [self.key_dim, self.key_dim, v, v]
    }

    /// Rows of in_proj_qkvz.
    pub fn qkvz_rows(&self) -> usize {
        self.keys * self.widths().iter().sum::<usize>()
    }

    /// Rows of in_proj_qkvz that make in_proj_qkv, and those that make in_proj_z.
    pub fn cut_qkvz(&self) -> Cut {
        let [q, k, v, z] = self.widths();
        let each = |start: usize, width: usize| {
            let stride = q + k + v + z;
            (0..self.keys).map(move |h| h * stride + start..h * stride + start + width)
        };
        let qkv = each(0, q).chain(each(q, k)).chain(each(q + k, v)).collect();
        (qkv, each(q + k + v, z).collect())
    }

    /// in_proj_qkvz as rows of in_proj_qkv and in_proj_z, which bear the names given.
    pub fn join_qkvz(&self, qkv: &str, z: &str) -> Vec<(String, Range<usize>)> {
        let [q, k, v, _] = self.widths();
        let (keys, values) = (self.keys * q, self.keys * (q + k));
        let each = |h: usize| {
            let part =
                |name: &str, start: usize, width: usize| (name.to_string(), start + h * width..start + (h + 1) * width);
            [part(qkv, 0, q), part(qkv, keys, k), part(qkv, values, v), part(z, 0, v)]
        };
        (0..self.keys).flat_map(each).collect()
    }

    /// in_proj_ba as rows of in_proj_b and in_proj_a.
    pub fn join_ba(&self, b: &str, a: &str) -> Vec<(String, Range<usize>)> {
        let r = self.values / self.keys;
        let each = |h: usize| [b, a].map(|name| (name.to_string(), h * r..(h + 1) * r));
        (0..self.keys).flat_map(each).collect()
    }

    /// Rows of in_proj_ba.
    pub fn ba_rows(&self) -> usize {
        2 * self.values
    }

    /// Rows of in_proj_ba that make in_proj_b, and those that make in_proj_a.
    pub fn cut_ba(&self) -> Cut {
        let r = self.values / self.keys;
        let each = |start: usize| (0..self.keys).map(move |h| (2 * h) * r + start..(2 * h) * r + start + r);
        (each(0).collect(), each(r).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_cover_every_row_once() {
        let heads = Heads { keys: 2, values: 6, key_dim: 4, value_dim: 3 };
        let (qkv, z) = heads.cut_qkvz();
        assert_eq!(qkv, [0..4, 26..30, 4..8, 30..34, 8..17, 34..43]);
        assert_eq!(z, [17..26, 43..52]);
        assert_eq!(heads.qkvz_rows(), 52);
        let (b, a) = heads.cut_ba();
        assert_eq!((b, a, heads.ba_rows()), (vec![0..3, 6..9], vec![3..6, 9..12], 12));
    }
}
