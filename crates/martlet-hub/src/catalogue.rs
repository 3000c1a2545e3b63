//! Short names of the family's published checkpoints: the one table to edit.
//!
//! Names of repositories and the two exact sizes are from public pages that mention them; nothing here was fetched. All
//! other sizes are estimates: parameters times 4.5 bits, and the vision tower in 16 bits. Memory is always an estimate:
//! the weights, and 1 GiB for states, keys and values, and buffers; streaming keeps experts on the disk but for a cache of
//! the most used ones.

/// A published checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Short name.
    pub name: &'static str,
    /// "OWNER/NAME".
    pub repository: &'static str,
    pub download: Size,
    /// Memory with all weights in it, in bytes; an estimate.
    pub resident: u64,
    /// Memory with its experts on the disk, in bytes, where it has some; an estimate.
    pub streaming: Option<u64>,
    /// As a public page gives it; `None` where none was seen, and the repository's own must be asked.
    pub licence: Option<&'static str>,
    /// Of those that fit, a machine gets the one with the highest rank. 0: only by name.
    pub rank: u32,
}

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Published(u64),
    Estimate(u64),
}

impl Size {
    pub fn bytes(self) -> u64 {
        match self {
            Size::Published(bytes) | Size::Estimate(bytes) => bytes,
        }
    }

    pub fn is_estimate(self) -> bool {
        matches!(self, Size::Estimate(_))
    }
}

use Size::{Estimate, Published};

/// Tenths of a GB.
const fn gb(tenths: u64) -> u64 {
    tenths * 100_000_000
}

const APACHE: Option<&str> = Some("Apache-2.0");

/// A model in 4 bits: weights of so many tenths of a GB, all in memory.
const fn dense(name: &'static str, repository: &'static str, tenths: u64, rank: u32) -> Model {
    let resident = gb(tenths) + (1 << 30);
    Model { name, repository, download: Estimate(gb(tenths)), resident, streaming: None, licence: None, rank }
}

/// The same with experts, of which a cache of some is enough.
const fn sparse(name: &'static str, repository: &'static str, download: Size, streaming: u64, rank: u32) -> Model {
    let bytes = match download {
        Published(bytes) | Estimate(bytes) => bytes,
    };
    let resident = bytes + (1 << 30);
    Model { name, repository, download, resident, streaming: Some(streaming), licence: None, rank }
}

const GIB: u64 = 1 << 30;

pub const MODELS: [Model; 12] = [
    dense("qwen3.5-0.8b", "mlx-community/Qwen3.5-0.8B-MLX-4bit", 7, 1),
    dense("qwen3.5-2b", "mlx-community/Qwen3.5-2B-MLX-4bit", 17, 2),
    dense("qwen3.5-4b", "mlx-community/Qwen3.5-4B-MLX-4bit", 31, 3),
    dense("qwen3.5-9b", "mlx-community/Qwen3.5-9B-MLX-4bit", 60, 4),
    dense("qwen3.5-27b", "mlx-community/Qwen3.5-27B-4bit", 161, 0),
    dense("qwen3.6-27b", "mlx-community/Qwen3.6-27B-4bit", 161, 5),
    dense("qwen3.8-27b", "mlx-community/Qwen3.8-27B-4bit", 161, 0),
    sparse("qwen3.5-35b-a3b", "mlx-community/Qwen3.5-35B-A3B-4bit", Estimate(gb(204)), 4 * GIB, 0),
    // 3 of its 35 billion weights work on a token, so it goes before 27B where it fits.
    Model {
        licence: APACHE,
        ..sparse("qwen3.6-35b-a3b", "mlx-community/Qwen3.6-35B-A3B-4bit", Published(gb(204)), 4 * GIB, 6)
    },
    sparse("qwen3-next-80b-a3b", "mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit", Published(gb(448)), 8 * GIB, 0),
    Model {
        licence: APACHE,
        ..sparse("qwen3-coder-next", "mlx-community/Qwen3-Coder-Next-4bit", Published(gb(448)), 8 * GIB, 0)
    },
    sparse("qwen3.5-122b-a10b", "mlx-community/Qwen3.5-122B-A10B-4bit", Estimate(gb(690)), 12 * GIB, 7),
];

/// The model of a short name, in any case.
pub fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|m| m.name.eq_ignore_ascii_case(name))
}

pub fn of_repository(repository: &str) -> Option<&'static Model> {
    MODELS.iter().find(|m| m.repository.eq_ignore_ascii_case(repository))
}

/// The best model whose weights fit into so much memory, and leave a quarter of it to others; else the smallest of all.
pub fn recommended(memory: u64) -> &'static Model {
    let ranked = || MODELS.iter().filter(|m| m.rank > 0);
    let fits = |m: &&Model| m.resident <= memory / 4 * 3;
    let best = ranked().filter(fits).max_by_key(|m| m.rank);
    best.or_else(|| ranked().min_by_key(|m| m.resident)).unwrap_or(&MODELS[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::valid_repository;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_holds_together() {
        assert_eq!(MODELS.iter().map(|m| m.name).collect::<BTreeSet<_>>().len(), MODELS.len());
        assert_eq!(MODELS.iter().map(|m| m.repository).collect::<BTreeSet<_>>().len(), MODELS.len());
        for m in &MODELS {
            assert!(valid_repository(m.repository), "{}", m.repository);
            assert!(m.resident > m.download.bytes() && m.streaming.is_none_or(|s| s < m.resident), "{}", m.name);
            assert_eq!(find(&m.name.to_uppercase()), Some(m));
            assert_eq!(of_repository(m.repository), Some(m));
        }
    }

    #[test]
    fn each_machine_gets_what_it_can_hold() {
        let names = [2, 4, 8, 16, 24, 32, 64, 128].map(|gib| recommended(gib * GIB).name);
        let expected = [
            "qwen3.5-0.8b",
            "qwen3.5-2b",
            "qwen3.5-4b",
            "qwen3.5-9b",
            "qwen3.6-27b",
            "qwen3.6-35b-a3b",
            "qwen3.6-35b-a3b",
            "qwen3.5-122b-a10b",
        ];
        assert_eq!(names, expected);
    }
}
