//! Canonical tensors as pieces of stored ones.

use crate::checkpoint::Layout;
use crate::error::{Problem, WeightsError};
use crate::module::{Module, rows_cols};
use crate::names::next::{Cut, Heads};
use crate::names::{self, Target};
use crate::source::Source;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;

/// One canonical tensor.
#[derive(Debug)]
pub(crate) struct Entry {
    pub shape: Vec<usize>,
    /// Rows of modules, one below the other.
    pub pieces: Vec<Piece>,
    /// MLX stores the kernel of the patch embedding with the channels last.
    pub vision_kernel_mlx: bool,
}

#[derive(Debug)]
pub(crate) struct Piece {
    /// Index of the module.
    pub module: usize,
    pub rows: Range<usize>,
}

/// Told by the convolutions of the linear layers: [C, taps, 1] is MLX, [C, 1, taps] Hugging Face. `Err(None)` when
/// there is none.
pub(crate) fn layout(source: &Source, modules: &[Module]) -> Result<Layout, Option<Problem>> {
    let mut found: Option<(Layout, &str)> = None;
    for m in modules.iter().filter(|m| m.name.ends_with(".linear_attn.conv1d.weight")) {
        let tensor = &source.tensors[m.weight];
        let problem = |what: String| Some(source.problem(tensor, what));
        let layout = match m.shape.as_slice() {
            [_, _, 1] => Layout::Mlx,
            [_, 1, _] => Layout::Hf,
            shape => {
                let text = format!("has shape {shape:?}, expected [channels, 1, taps] or [channels, taps, 1]");
                return Err(problem(text));
            }
        };
        match found {
            Some((other, name)) if other != layout => {
                return Err(problem(format!("is in {layout:?} layout, but {name} in {other:?}")));
            }
            _ => found = Some((layout, &tensor.name)),
        }
    }
    found.map(|(layout, _)| layout).ok_or(None)
}

/// The table of canonical tensors. Every module ends up in it.
pub(crate) fn entries(
    source: &Source,
    modules: &[Module],
    config: &Value,
) -> Result<BTreeMap<String, Entry>, WeightsError> {
    let mut table = Table { source, modules, entries: BTreeMap::new(), problems: Vec::new() };
    let mut stacks: BTreeMap<String, BTreeMap<usize, usize>> = BTreeMap::new();
    for (i, m) in modules.iter().enumerate() {
        match names::target(&m.name) {
            Target::Whole(name) => table.whole(i, name),
            Target::Expert { stack, index } => {
                if let Some(other) = stacks.entry(stack).or_default().insert(index, i) {
                    table.problem(i, format!("is expert {index}, and so is {}", modules[other].name));
                }
            }
            Target::GateUp { gate, up } => table.gate_up(i, gate, up),
            Target::Qkvz { qkv, z } => table.cut(i, [qkv, z], config, Heads::qkvz_rows, Heads::cut_qkvz),
            Target::Ba { b, a } => table.cut(i, [b, a], config, Heads::ba_rows, Heads::cut_ba),
        }
    }
    for (name, experts) in stacks {
        table.stack(name, &experts);
    }
    match table.problems.is_empty() {
        true => Ok(table.entries),
        false => Err(WeightsError::Tensors(table.problems)),
    }
}

struct Table<'a> {
    source: &'a Source,
    modules: &'a [Module],
    entries: BTreeMap<String, Entry>,
    problems: Vec<Problem>,
}

impl Table<'_> {
    fn problem(&mut self, module: usize, what: impl Into<String>) {
        let tensor = &self.source.tensors[self.modules[module].weight];
        self.problems.push(self.source.problem(tensor, what));
    }

    fn insert(&mut self, name: String, shape: Vec<usize>, pieces: Vec<Piece>) {
        let first = pieces.first().map(|p| p.module);
        let entry = Entry { shape, pieces, vision_kernel_mlx: false };
        if self.entries.insert(name.clone(), entry).is_some()
            && let Some(module) = first
        {
            self.problem(module, format!("is {name}, which another tensor is too"));
        }
    }

    fn whole(&mut self, module: usize, name: String) {
        let m = &self.modules[module];
        let mut shape = m.shape.clone();
        let rows = 0..rows_cols(&shape).0;
        if name.ends_with(".linear_attn.conv1d.weight")
            && let &[channels, a, b] = shape.as_slice()
        {
            shape = vec![channels, a.max(b)];
        }
        if name == "visual.patch_embed.proj.weight" {
            return self.vision_kernel(module, name, shape);
        }
        self.insert(name, shape, vec![Piece { module, rows }]);
    }

    /// [O, C, T, P, P], or MLX's [O, T, P, P, C]: told apart by the two equal sides of a patch.
    fn vision_kernel(&mut self, module: usize, name: String, shape: Vec<usize>) {
        let pieces = vec![Piece { module, rows: 0..rows_cols(&shape).0 }];
        let (shape, mlx) = match shape.as_slice() {
            [_, _, t, p, q] if p == q && t != p => (shape, false),
            [o, t, p, q, c] if p == q && c != q => (vec![*o, *c, *t, *p, *q], true),
            _ => {
                let text = format!("has shape {shape:?}, expected [O, C, T, P, P] or [O, T, P, P, C]");
                return self.problem(module, text);
            }
        };
        let entry = Entry { shape, pieces, vision_kernel_mlx: mlx };
        self.entries.insert(name, entry);
    }

    fn gate_up(&mut self, module: usize, gate: String, up: String) {
        let &[experts, both, width] = self.modules[module].shape.as_slice() else {
            let shape = &self.modules[module].shape;
            return self.problem(module, format!("has shape {shape:?}, expected [experts, 2 * width, hidden]"));
        };
        if !both.is_multiple_of(2) {
            return self.problem(module, format!("has {both} rows for each expert, expected an even number"));
        }
        let half = both / 2;
        for (name, first) in [(gate, 0), (up, half)] {
            let pieces = (0..experts).map(|e| Piece { module, rows: e * both + first..e * both + first + half });
            self.insert(name, vec![experts, half, width], pieces.collect());
        }
    }

    fn cut(
        &mut self,
        module: usize,
        names: [String; 2],
        config: &Value,
        rows: fn(&Heads) -> usize,
        cut: fn(&Heads) -> Cut,
    ) {
        let heads = match Heads::new(config) {
            Ok(heads) => heads,
            Err(text) => return self.problem(module, text),
        };
        let width = match self.modules[module].shape.as_slice() {
            &[found, width] if found == rows(&heads) => width,
            shape => {
                let text = format!(
                    "has shape {shape:?}, expected {} rows: config.json has {} key and {} value heads of {} and {}",
                    rows(&heads),
                    heads.keys,
                    heads.values,
                    heads.key_dim,
                    heads.value_dim
                );
                return self.problem(module, text);
            }
        };
        let (first, second) = cut(&heads);
        for (name, ranges) in names.into_iter().zip([first, second]) {
            let total = ranges.iter().map(|r| r.len()).sum();
            let pieces = ranges.into_iter().map(|rows| Piece { module, rows }).collect();
            self.insert(name, vec![total, width], pieces);
        }
    }

    /// One matrix for each expert, all alike and none missing.
    fn stack(&mut self, name: String, experts: &BTreeMap<usize, usize>) {
        let Some((_, &first)) = experts.first_key_value() else {
            return;
        };
        if let Some(gap) = (0..experts.len()).find(|e| !experts.contains_key(e)) {
            let last = experts.keys().next_back().copied().unwrap_or(0);
            let text = format!("belongs to {name}, of which experts up to {last} are there, but not {gap}");
            return self.problem(first, text);
        }
        let shape = self.modules[first].shape.clone();
        let &[rows, cols] = shape.as_slice() else {
            return self.problem(first, format!("has shape {shape:?}, expected a matrix"));
        };
        for &module in experts.values() {
            let m = &self.modules[module];
            if (&m.shape, m.scheme) != (&shape, self.modules[first].scheme) {
                let text = format!("has shape {:?}, expert 0 has {shape:?}, or their schemes differ", m.shape);
                return self.problem(module, text);
            }
        }
        let pieces = experts.values().map(|&module| Piece { module, rows: 0..rows });
        self.insert(name, vec![experts.len(), rows, cols], pieces.collect());
    }
}

/// From [O, T, P, P, C] to `shape` = [O, C, T, P, P].
pub(crate) fn channels_first(values: &[f32], shape: &[usize]) -> Vec<f32> {
    let (outputs, channels) = (shape[0], shape[1]);
    let inner: usize = shape[2..].iter().product();
    let mut out = Vec::with_capacity(values.len());
    for o in 0..outputs {
        for c in 0..channels {
            out.extend((0..inner).map(|i| values[(o * inner + i) * channels + c]));
        }
    }
    out
}
