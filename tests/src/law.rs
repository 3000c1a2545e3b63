//! The law as byte identities: whatever the grouping, the same logits and the same tokens.

use crate::random::Rng;
use martlet_device::Device;
use martlet_device::sampling::{SampleParams, SampleRow};
use martlet_engine::{Runner, SeqInput};

/// What a run leaves: the bits of the logits of its last prompt tokens, and the tokens that followed.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub logits: Vec<u32>,
    pub tokens: Vec<u32>,
}

/// Sampling with everything that could depend on the order of things.
pub fn sampled(seed: u64) -> SampleParams {
    SampleParams {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.01,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        seed,
        choice: 0,
    }
}

pub fn greedy() -> SampleParams {
    SampleParams { temperature: 0.0, ..sampled(0) }
}

/// Prompt in chunks of `chunk`, then `steps` tokens, alone in each step or among `others` (which run beside it at lengths
/// of their own, and must not matter).
pub fn run<D: Device>(
    runner: &mut Runner<D>,
    prompt: &[u32],
    chunk: usize,
    steps: usize,
    params: &SampleParams,
    others: usize,
) -> Outcome {
    const KEPT: usize = 8;
    let vocabulary = runner.spec().vocabulary;
    let mut rng = Rng(others as u64);
    let mut seq = runner.open().unwrap();
    let mut crowd: Vec<_> = (0..others).map(|_| runner.open().unwrap()).collect();
    let mut tokens = prompt.to_vec();
    let mut logits = Vec::new();
    let mut at = 0;
    while tokens.len() < prompt.len() + steps {
        let rows = chunk.min(tokens.len() - at);
        let outputs = if at + rows == tokens.len() { rows.min(KEPT) } else { 0 };
        // The others come and go: rows in some steps, a fresh start when they get long.
        for other in crowd.iter_mut().filter(|o| o.len() > 400) {
            let fresh = runner.open().unwrap();
            runner.close(std::mem::replace(other, fresh));
        }
        let joins = at % 5 == 0 || rows > 1;
        let noise: Vec<Vec<u32>> =
            (0..others * joins as usize).map(|i| rng.ids(1 + (i + at) % 3, vocabulary)).collect();
        // Half of the others before it, half behind.
        let mut inputs = Vec::new();
        let (before, behind) = crowd.split_at_mut(others / 2);
        for (seq, tokens) in before.iter_mut().zip(&noise) {
            inputs.push(SeqInput { seq, tokens, tentative: 0, outputs: 0 });
        }
        inputs.push(SeqInput { seq: &mut seq, tokens: &tokens[at..at + rows], tentative: 0, outputs });
        for (seq, tokens) in behind.iter_mut().zip(noise.iter().skip(others / 2)) {
            inputs.push(SeqInput { seq, tokens, tentative: 0, outputs: 0 });
        }
        runner.step(&mut inputs).unwrap();
        at += rows;
        if at == tokens.len() {
            let all = runner.logits(outputs).unwrap();
            let last = &all[all.len() - vocabulary..];
            logits.extend(last.iter().map(|x| x.to_bits()));
            let seen = counts(prompt, &tokens[prompt.len()..]);
            let row =
                SampleRow { params, position: tokens.len() as u64, seen: &seen, bias: &[], mask: None, logprobs: None };
            tokens.push(martlet_device::sampling::sample(last, &row).token);
        }
    }
    runner.close(seq);
    crowd.into_iter().for_each(|s| runner.close(s));
    Outcome { logits, tokens: tokens.split_off(prompt.len()) }
}

fn counts(prompt: &[u32], answer: &[u32]) -> Vec<(u32, u32, u32)> {
    let mut seen: std::collections::BTreeMap<u32, (u32, u32)> = Default::default();
    prompt.iter().for_each(|t| seen.entry(*t).or_default().0 += 1);
    answer.iter().for_each(|t| seen.entry(*t).or_default().1 += 1);
    seen.into_iter().map(|(t, (p, a))| (t, p, a)).collect()
}

/// Every grouping of one prompt of `prompt` tokens gives the same bits: chunks of 1, 7, 64, 100 and all at once (as far
/// as `make`'s runner steps so many rows), alone and among five others, greedy and sampled.
pub fn identities<D: Device>(make: impl Fn() -> Runner<D>, prompt: usize) {
    const STEPS: usize = 12;
    let mut runner = make();
    let ids = Rng(prompt as u64).ids(prompt, runner.spec().vocabulary);
    let most = runner.max_rows();
    let plain = [greedy(), sampled(7)].map(|p| run(&mut runner, &ids, 64, STEPS, &p, 0));
    assert_ne!(plain[0].tokens, plain[1].tokens, "sampling at 0.8 from random weights strays from the best token");
    for chunk in [1, 7, 64, 100, prompt] {
        let chunk = chunk.min(most - 15);
        for others in [0, 5] {
            if (chunk, others) == (64, 0) {
                continue;
            }
            // The other kind of sampling does not touch the logits of the prompt: one each is enough.
            let kind = usize::from(others > 0);
            let params = [greedy(), sampled(7)][kind].clone();
            let other = run(&mut runner, &ids, chunk, STEPS, &params, others);
            assert!(other == plain[kind], "prompt of {prompt} in chunks of {chunk} among {others} others: other bits");
        }
    }
    let again = run(&mut make(), &ids, 64, STEPS, &greedy(), 0);
    assert!(again == plain[0], "a second run gives other bits");
}
