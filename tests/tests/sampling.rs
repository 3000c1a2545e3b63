//! The engine draws from the distribution that its settings describe, also where tokens come as drafts that were checked.
//!
//! For every setting thousands of answers to one prompt, each with a seed of its own, are held against exact probabilities:
//! the model's logits behind every possible beginning, filtered and penalised here in f64 by the formulas of
//! `martlet_device::sampling`'s head, apart from its code. Seeds are fixed, so that a run gives what the last one gave.
//! The 45 chi-square statistics are bounded where a right sampler stays with a probability of 1 - 3.4e-6 each (4.5 standard
//! deviations of the Wilson-Hilferty approximation): 1.5e-4 for all of them together.

use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::KvScheme;
use martlet_engine::{
    Accept, Constraint, DrafterChoice, Engine, EngineOptions, Request, Rule, Runner, Sampling, SeqInput,
};
use martlet_tests::engines::{outcome, plain, start};
use martlet_tests::{random, runner};
use martlet_weights::Checkpoint;
use std::collections::HashMap;
use std::sync::Arc;

const VOCABULARY: usize = 24;
const PROMPT: [u32; 5] = [3, 9, 3, 1, 9];
/// Three tokens each are looked at: 21,000 draws for a setting. A fourth is asked for, so that two can be drafts.
const ANSWERS: usize = 7000;
const TOKENS: usize = 4;
const DEVIATIONS: f64 = 4.5;

/// Logits behind the prompt and up to two tokens more.
struct Exact {
    logits: HashMap<Vec<u32>, Vec<f32>>,
}

impl Exact {
    fn of(checkpoint: &Checkpoint) -> Exact {
        let cpu = Cpu::new(CpuOptions { threads: Some(1), isa: None }).unwrap();
        let mut runner = runner(cpu, checkpoint, KvScheme::F16, 16);
        let all = 0..VOCABULARY as u32;
        let mut beginnings = vec![vec![]];
        beginnings.extend(all.clone().map(|a| vec![a]));
        beginnings.extend(all.clone().flat_map(|a| all.clone().map(move |b| vec![a, b])));
        let logits = beginnings.into_iter().map(|b| (b.clone(), behind(&mut runner, &b))).collect();
        Exact { logits }
    }

    /// Probabilities of the next token behind `answer`.
    fn next(&self, answer: &[u32], s: &Setting) -> Vec<f64> {
        let mut weights: Vec<f64> = self.logits[answer].iter().map(|x| f64::from(*x)).collect();
        s.bias.iter().for_each(|(token, addend)| weights[*token as usize] += f64::from(*addend));
        if s.ruled {
            (0..VOCABULARY).filter(|t| !allows(answer, *t as u32)).for_each(|t| weights[t] = f64::NEG_INFINITY);
        }
        for (token, weight) in weights.iter_mut().enumerate() {
            let times = |tokens: &[u32]| tokens.iter().filter(|t| **t as usize == token).count();
            let answered = times(answer);
            if answered + times(&PROMPT) > 0 {
                let repetition = number(s.sampling.repetition_penalty, 1.0);
                *weight = if *weight > 0.0 { *weight / repetition } else { *weight * repetition };
            }
            if answered > 0 {
                *weight -= number(s.sampling.presence_penalty, 0.0);
                *weight -= number(s.sampling.frequency_penalty, 0.0) * answered as f64;
            }
        }
        let temperature = number(s.sampling.temperature, 1.0);
        let best = weights.iter().copied().fold(f64::MIN, f64::max);
        let mut p: Vec<f64> = weights.iter().map(|w| ((w - best) / temperature).exp()).collect();
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
        let top_k = s.sampling.top_k.map_or(order.len(), |k| k as usize);
        order.truncate(top_k);
        let sum: f64 = order.iter().map(|t| p[*t]).sum();
        let mut reached = 0.0;
        let least = number(s.sampling.top_p, 1.0) * sum;
        let needed = order.iter().take_while(|t| {
            let more = reached < least;
            reached += p[**t];
            more
        });
        let mut kept: Vec<usize> = needed.copied().collect();
        let min_p = number(s.sampling.min_p, 0.0) * p[kept[0]];
        kept.retain(|t| p[*t] >= min_p);
        let sum: f64 = kept.iter().map(|t| p[*t]).sum();
        (0..p.len()).for_each(|t| p[t] = if kept.contains(&t) { p[t] / sum } else { 0.0 });
        p
    }
}

fn number(value: Option<f32>, neutral: f64) -> f64 {
    value.map_or(neutral, f64::from)
}

fn behind(runner: &mut Runner<Cpu>, answer: &[u32]) -> Vec<f32> {
    let tokens = [&PROMPT[..], answer].concat();
    let mut seq = runner.open().unwrap();
    runner.step(&mut [SeqInput { seq: &mut seq, tokens: &tokens, tentative: 0, outputs: 1 }]).unwrap();
    let logits = runner.logits(1).unwrap();
    runner.close(seq);
    logits
}

#[derive(Default)]
struct Setting {
    sampling: Sampling,
    bias: Vec<(u32, f32)>,
    /// The answer follows [`Halves`].
    ruled: bool,
}

/// About half of all tokens, which ones depends on the token before.
fn allows(answer: &[u32], token: u32) -> bool {
    (token * 7 + answer.last().map_or(1, |t| t * 5)) % 13 < 7
}

#[derive(Clone, Debug, Default)]
struct Halves(Vec<u32>);

impl Rule for Halves {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for Halves {
    fn mask(&mut self) -> Option<Vec<u32>> {
        let allowed = (0..VOCABULARY as u32).filter(|t| allows(&self.0, *t));
        Some(vec![allowed.fold(0, |mask, t| mask | 1 << t)])
    }

    fn allows(&mut self, token: u32) -> bool {
        allows(&self.0, token)
    }

    fn advance(&mut self, token: u32) {
        assert!(allows(&self.0, token), "{token} after {:?}", self.0);
        self.0.push(token);
    }

    fn rollback(&mut self, tokens: usize) {
        self.0.truncate(self.0.len() - tokens);
    }
}

fn settings() -> Vec<Setting> {
    let of = |sampling| Setting { sampling, ..Setting::default() };
    let hot = Sampling { temperature: Some(1.4), ..Sampling::default() };
    vec![
        of(Sampling::default()),
        of(Sampling { temperature: Some(0.7), ..Sampling::default() }),
        of(Sampling { top_k: Some(6), ..hot.clone() }),
        of(Sampling { top_p: Some(0.7), ..hot.clone() }),
        of(Sampling { min_p: Some(0.05), ..hot.clone() }),
        of(Sampling { repetition_penalty: Some(1.6), ..hot.clone() }),
        of(Sampling { presence_penalty: Some(0.9), ..hot.clone() }),
        of(Sampling { frequency_penalty: Some(1.1), ..hot.clone() }),
        Setting {
            sampling: hot.clone(),
            bias: vec![(3, 1.5), (7, f32::NEG_INFINITY), (11, -1.0)],
            ..Setting::default()
        },
        Setting { sampling: hot.clone(), ruled: true, ..Setting::default() },
        Setting {
            sampling: Sampling {
                top_k: Some(12),
                top_p: Some(0.9),
                min_p: Some(0.05),
                repetition_penalty: Some(1.2),
                presence_penalty: Some(0.3),
                frequency_penalty: Some(0.2),
                ..hot
            },
            bias: vec![(5, 1.0)],
            ..Setting::default()
        },
    ]
}

/// Chi-square of counts against probabilities, cells with fewer than five expected taken together; its degrees of freedom.
fn chi_square(cells: &[(f64, f64)], draws: f64) -> (f64, f64) {
    let term = |(count, p): (f64, f64)| (count - p * draws).powi(2) / (p * draws);
    let (large, small): (Vec<_>, Vec<_>) = cells.iter().copied().partition(|(_, p)| p * draws >= 5.0);
    let rest = small.iter().fold((0.0, 0.0), |(count, p), cell| (count + cell.0, p + cell.1));
    let whole = rest.1 * draws >= 5.0;
    let sum = large.iter().copied().map(term).sum::<f64>() + if whole { term(rest) } else { 0.0 };
    (sum, (large.len() + usize::from(whole)).saturating_sub(1) as f64)
}

/// What a right sampler stays below.
fn bound(freedom: f64) -> f64 {
    let spread = 2.0 / (9.0 * freedom);
    freedom * (1.0 - spread + DEVIATIONS * spread.sqrt()).powi(3)
}

fn engine(checkpoint: &Checkpoint, accept: Accept) -> Engine {
    let options = EngineOptions {
        sequences: 16,
        queue: ANSWERS,
        drafter: DrafterChoice::Mtp,
        draft_depth: Some(2),
        accept,
        pool_bytes: None,
        context: Some(64),
        ..plain()
    };
    start(checkpoint, 1, options)
}

/// Draws with setting `i` and looks at what came.
fn draw(i: usize, setting: &Setting, exact: &Exact, engine: &Engine) {
    let before = engine.stats().mtp;
    let request = |seed| Request {
        prompt: PROMPT.to_vec(),
        sampling: Sampling { seed: Some(seed * 100 + i as u64), ..setting.sampling.clone() },
        max_tokens: Some(TOKENS),
        logit_bias: setting.bias.clone(),
        constraint: setting.ruled.then(|| Arc::new(Halves::default()) as Arc<dyn Rule>),
        ..Request::default()
    };
    let handles: Vec<_> = (0..ANSWERS as u64).map(|seed| engine.submit(request(seed)).unwrap()).collect();
    let answers: Vec<Vec<u32>> = handles.iter().map(|h| outcome(h).0.tokens).collect();
    let after = engine.stats().mtp;
    let (drafted, accepted) = (after.drafted - before.drafted, after.accepted - before.accepted);
    assert!(accepted > ANSWERS as u64 / 20 && drafted > accepted, "setting {i}: {accepted} of {drafted} drafts");
    check(i, setting, exact, &answers);
}

#[test]
fn many_seeds_give_the_exact_distribution_of_each_setting() {
    let checkpoint = random::checkpoint(&random::tiny_config(), 31);
    let (exact, engine) = (Exact::of(&checkpoint), engine(&checkpoint, Accept::Same));
    settings().iter().enumerate().for_each(|(i, setting)| draw(i, setting, &exact, &engine));
}

#[test]
fn rejection_sampling_gives_the_exact_distribution_too() {
    let checkpoint = random::checkpoint(&random::tiny_config(), 31);
    let (exact, engine) = (Exact::of(&checkpoint), engine(&checkpoint, Accept::Rejection));
    let some = |i: &usize| [0, 5, 9, 10].contains(i) || settings()[*i].ruled;
    for i in (0..settings().len()).filter(some) {
        draw(i, &settings()[i], &exact, &engine);
    }
}

fn check(number: usize, setting: &Setting, exact: &Exact, answers: &[Vec<u32>]) {
    let count = |beginning: &[u32]| answers.iter().filter(|a| a.starts_with(beginning)).count() as f64;
    let (mut first, mut pairs, mut third) = (Vec::new(), Vec::new(), vec![(0.0, 0.0); VOCABULARY]);
    answers.iter().for_each(|a| third[a[2] as usize].0 += 1.0);
    for (a, pa) in exact.next(&[], setting).into_iter().enumerate() {
        let a = a as u32;
        first.push((count(&[a]), pa));
        for (b, pb) in exact.next(&[a], setting).into_iter().enumerate() {
            let b = b as u32;
            pairs.push((count(&[a, b]), pa * pb));
            for (c, pc) in exact.next(&[a, b], setting).into_iter().enumerate() {
                third[c].1 += pa * pb * pc;
            }
        }
    }
    for (what, cells) in [("first", first), ("first two", pairs), ("third", third)] {
        assert!((cells.iter().map(|c| c.1).sum::<f64>() - 1.0).abs() < 1e-9, "setting {number}: {what}");
        assert!(
            cells.iter().all(|(n, p)| *p > 0.0 || *n == 0.0),
            "setting {number}: {what}: drew what is filtered out"
        );
        let (chi, freedom) = chi_square(&cells, answers.len() as f64);
        println!("setting {number}, {what}: chi-square {chi:.1} of {freedom}, at most {:.1}", bound(freedom));
        assert!(freedom >= 1.0 && chi < bound(freedom), "setting {number}, {what}: {chi} of {freedom}");
    }
}

/// The check itself tells a distribution that is a little wrong.
#[test]
fn a_distribution_that_is_slightly_off_is_told() {
    assert!((bound(10.0) - 45.0).abs() < 3.0, "{}", bound(10.0));
    let draws = ANSWERS as f64;
    let even = vec![(draws / 10.0, 0.1); 10];
    assert_eq!(chi_square(&even, draws), (0.0, 9.0));
    let mut off = even;
    (off[0].0, off[1].0) = (off[0].0 * 1.2, off[1].0 * 0.8);
    let (chi, freedom) = chi_square(&off, draws);
    assert!(chi > bound(freedom), "{chi} of {freedom}");
}
