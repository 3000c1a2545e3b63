//! Fixtures, random checkpoints and the byte comparison that the tests of several crates share.

pub mod divergence;
pub mod engines;
pub mod fixtures;
pub mod hub;
pub mod law;
pub mod random;
pub mod server;
pub mod shelf;

use martlet_device::{Device, KvScheme};
use martlet_engine::{Capacity, Runner, SeqInput};
use martlet_model::Model;
use martlet_weights::Checkpoint;

/// A runner over a checkpoint, for steps of up to `rows` rows.
pub fn runner<D: Device>(d: D, checkpoint: &Checkpoint, kv: KvScheme, rows: usize) -> Runner<D> {
    let (model, experts) = Model::load(&d, checkpoint, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
    let capacity = Capacity { kv, pages: 160, sequences: 8, rows, outputs: rows };
    Runner::new(d, model, Box::new(experts), capacity).unwrap_or_else(|e| panic!("{e}"))
}

/// Logits of every token of `ids` [ids, vocabulary], computed `chunk` rows at a time in a fresh sequence, and `steps`
/// greedy tokens after them with the logits that each was chosen from (from the second on).
pub fn prefill_and_decode<D: Device>(
    runner: &mut Runner<D>,
    ids: &[u32],
    chunk: usize,
    steps: usize,
) -> (Vec<f32>, Vec<u32>, Vec<f32>) {
    let mut seq = runner.open().unwrap();
    let mut logits = Vec::new();
    for tokens in ids.chunks(chunk) {
        let outputs = tokens.len();
        runner.step(&mut [SeqInput { seq: &mut seq, tokens, tentative: 0, outputs }]).unwrap();
        logits.extend(runner.logits(outputs).unwrap());
    }
    let vocabulary = runner.spec().vocabulary;
    let mut tokens = vec![argmax(&logits[logits.len() - vocabulary..])];
    let mut rows = Vec::new();
    while tokens.len() < steps {
        let last = [tokens[tokens.len() - 1]];
        runner.step(&mut [SeqInput { seq: &mut seq, tokens: &last, tentative: 0, outputs: 1 }]).unwrap();
        let row = runner.logits(1).unwrap();
        tokens.push(argmax(&row));
        rows.extend(row);
    }
    runner.close(seq);
    (logits, tokens, rows)
}

/// Index of the largest value, the first of equal ones.
pub fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best }) as u32
}

/// Largest absolute difference; NaN where any value is NaN.
pub fn gap(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, |m, x| if x.is_nan() || x > m { x } else { m })
}
