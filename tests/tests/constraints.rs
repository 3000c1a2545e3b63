//! Answers that follow a rule are the same with drafts, under penalties, biases and filters, and without room; and the
//! rule is led along one path, from its start to the end of the answer.

use martlet_engine::{
    Constraint, DrafterChoice, Engine, EngineError, EngineOptions, Event, Finish, Request, Rule, Sampling,
};
use martlet_tests::engines::{
    END, Outcome, PAGE_BYTES, compare, fledgling, greedy, outcome, plain, request, sampled, start,
};
use martlet_tests::fixtures;
use martlet_weights::Checkpoint;
use std::sync::{Arc, Mutex};

/// What a rule allows after the tokens so far.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Two small sets in turn: much repeats, so that look-ups are often right.
    Alternating,
    /// Every third token, which ones depends on all before; anything at every fourth place.
    Thirds,
}

/// So many tokens of a shape, then the stop token. Notes where each answer under it has ended.
#[derive(Debug)]
struct Counted {
    shape: Shape,
    tokens: usize,
    paths: Arc<Mutex<Vec<Vec<u32>>>>,
}

const VOCABULARY: u32 = 4096;

impl Rule for Counted {
    fn start(&self) -> Box<dyn Constraint> {
        let Counted { shape, tokens, paths } = self;
        Box::new(Automaton { shape: *shape, tokens: *tokens, path: Vec::new(), paths: paths.clone() })
    }
}

struct Automaton {
    shape: Shape,
    tokens: usize,
    path: Vec<u32>,
    paths: Arc<Mutex<Vec<Vec<u32>>>>,
}

impl Automaton {
    fn allows(&self, token: u32) -> bool {
        let n = self.path.len();
        if n >= self.tokens {
            return n == self.tokens && token == END;
        }
        match self.shape {
            Shape::Alternating => token / 4 == 100 + (n as u32) % 2,
            Shape::Thirds if n % 4 == 3 => true,
            Shape::Thirds => token < VOCABULARY && (token + self.path.iter().sum::<u32>()).is_multiple_of(3),
        }
    }
}

impl Constraint for Automaton {
    fn mask(&mut self) -> Option<Vec<u32>> {
        if self.path.len() < self.tokens && matches!(self.shape, Shape::Thirds) && self.path.len() % 4 == 3 {
            return None;
        }
        let mut mask = vec![0; END as usize / 32 + 1];
        (0..=END).filter(|t| self.allows(*t)).for_each(|t| mask[t as usize / 32] |= 1 << (t % 32));
        Some(mask)
    }

    fn allows(&mut self, token: u32) -> bool {
        Automaton::allows(self, token)
    }

    fn advance(&mut self, token: u32) {
        assert!(self.allows(token), "{token} after {:?}", self.path);
        self.path.push(token);
    }

    fn rollback(&mut self, tokens: usize) {
        let rest = self.path.len().checked_sub(tokens).expect("nothing lies before the start");
        self.path.truncate(rest);
    }
}

impl Drop for Automaton {
    fn drop(&mut self) {
        self.paths.lock().unwrap().push(std::mem::take(&mut self.path));
    }
}

/// Each prompt under both rules, with several ways to sample; some end at their length before the rule's end.
fn requests(paths: &Arc<Mutex<Vec<Vec<u32>>>>) -> Vec<Request> {
    let prompts: Vec<_> = fixtures::prompts().into_iter().step_by(13).collect();
    let mut list = Vec::new();
    for (i, (_, prompt)) in prompts.iter().enumerate() {
        for shape in [Shape::Alternating, Shape::Thirds] {
            let seed = Some(i as u64);
            let min_p = Sampling { temperature: Some(1.3), min_p: Some(0.2), seed, ..Sampling::default() };
            let hot = Sampling { temperature: Some(1.0), frequency_penalty: Some(1.5), seed, ..Sampling::default() };
            for (j, sampling) in [greedy(), sampled(i as u64), min_p, hot].into_iter().enumerate() {
                let tokens = 14 + 5 * j;
                let rule = Counted { shape, tokens, paths: paths.clone() };
                list.push(Request {
                    constraint: Some(Arc::new(rule)),
                    logit_bias: if j % 2 == 0 {
                        vec![(401, 3.0), (405, f32::NEG_INFINITY), (12, -2.0)]
                    } else {
                        vec![]
                    },
                    ..request(prompt, sampling, if i == 1 { tokens - 4 } else { tokens + 5 })
                });
            }
        }
    }
    list
}

/// Answers, and where the rules' automata ended.
fn follow(checkpoint: &Checkpoint, options: EngineOptions) -> (Vec<Outcome>, martlet_engine::Stats) {
    let paths = Arc::new(Mutex::new(Vec::new()));
    let requests = requests(&paths);
    let engine = start(checkpoint, 2, options);
    let handles: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    let found: Vec<Outcome> = handles.iter().map(|h| outcome(h).0).collect();
    let stats = engine.stats();
    drop(engine);
    let mut ended = paths.lock().unwrap().clone();
    let said = |o: &Outcome| o.tokens.iter().copied().filter(|t| *t != END).collect::<Vec<u32>>();
    let mut expected: Vec<Vec<u32>> = found.iter().map(said).collect();
    ended.sort();
    expected.sort();
    assert!(ended == expected, "each automaton ends behind its answer");
    (found, stats)
}

#[test]
fn rules_are_followed_alike_with_every_drafter_and_without_room() {
    let checkpoint = fledgling();
    let (expected, _) = follow(&checkpoint, plain());
    assert!(
        expected.iter().any(|o| o.finish == Finish::Stop(END)) && expected.iter().any(|o| o.finish == Finish::Length)
    );
    let with = |drafter, draft_depth| EngineOptions { drafter, draft_depth, sequences: 5, ..plain() };
    let (mut mtp, mut suffix, mut preempted) = ((0, 0), (0, 0), 0);
    let mut settings: Vec<EngineOptions> = (1..=5).map(|depth| with(DrafterChoice::Mtp, Some(depth))).collect();
    settings.extend([1, 4, 12].map(|depth| with(DrafterChoice::Suffix, Some(depth))));
    settings.push(with(DrafterChoice::Auto, None));
    // Too little room, with and without kept states.
    for (drafter, depth, prefix_cache) in [(DrafterChoice::Auto, Some(3), false), (DrafterChoice::Mtp, None, true)] {
        let pool_bytes = Some(8 * PAGE_BYTES);
        settings.push(EngineOptions { pool_bytes, context: Some(448), prefix_cache, ..with(drafter, depth) });
    }
    for options in settings {
        let what = format!("{} {:?}, {:?} bytes", options.drafter, options.draft_depth, options.pool_bytes);
        let (found, stats) = follow(&checkpoint, options);
        compare(&found, &expected, &what);
        mtp = (mtp.0 + stats.mtp.drafted, mtp.1 + stats.mtp.accepted);
        suffix = (suffix.0 + stats.suffix.drafted, suffix.1 + stats.suffix.accepted);
        preempted += stats.preempted;
        assert_eq!((stats.running, stats.waiting), (0, 0), "{what}");
    }
    println!("drafted and accepted: head {mtp:?}, look-up {suffix:?}; {preempted} preempted");
    for (drafted, accepted) in [mtp, suffix] {
        assert!(accepted > 0 && accepted < drafted, "head {mtp:?}, look-up {suffix:?}");
    }
    assert!(preempted > 0);
}

#[test]
fn tokens_drawn_before_the_mask_are_those_drawn_under_it() {
    let checkpoint = fledgling();
    // Each way to sample as it is, and in other words that make the sampler filter, so that it needs the mask first.
    let hot = Sampling { temperature: Some(1.0), seed: Some(7), ..Sampling::default() };
    let penalised = Sampling { presence_penalty: Some(1.5), temperature: Some(0.7), ..hot.clone() };
    let all = Some(1 << 20);
    let pairs = [
        (greedy(), Sampling { temperature: Some(1.0), top_k: Some(1), ..greedy() }),
        (hot.clone(), Sampling { top_k: all, ..hot }),
        (penalised.clone(), Sampling { top_k: all, ..penalised }),
    ];
    for (drafter, depth) in
        [(DrafterChoice::None, None), (DrafterChoice::Mtp, Some(3)), (DrafterChoice::Suffix, Some(4))]
    {
        let engine = start(&checkpoint, 1, EngineOptions { drafter, draft_depth: depth, sequences: 3, ..plain() });
        for (_, prompt) in fixtures::prompts().into_iter().step_by(17) {
            for shape in [Shape::Alternating, Shape::Thirds] {
                let run = |sampling: &Sampling| {
                    let rule = Counted { shape, tokens: 24, paths: Arc::default() };
                    let request =
                        Request { constraint: Some(Arc::new(rule)), ..request(&prompt, sampling.clone(), 30) };
                    outcome(&engine.submit(request).unwrap()).0
                };
                for (first, masked) in &pairs {
                    assert_eq!(run(first), run(masked), "{drafter} {shape:?} {first:?}");
                }
            }
        }
    }
}

#[test]
fn choices_of_one_seed_differ() {
    let engine = start(&fledgling(), 1, plain());
    let ask = |choice| {
        let hot = Sampling { temperature: Some(1.2), seed: Some(3), ..Sampling::default() };
        outcome(&engine.submit(Request { choice, ..request(&[1, 2, 3, 4], hot, 16) }).unwrap()).0
    };
    assert_eq!(ask(1), ask(1));
    assert_ne!(ask(0).tokens, ask(1).tokens);
}

/// A rule that allows nothing.
#[derive(Debug)]
struct Nothing;

impl Rule for Nothing {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(Nothing)
    }
}

impl Constraint for Nothing {
    fn mask(&mut self) -> Option<Vec<u32>> {
        Some(Vec::new())
    }

    fn allows(&mut self, _: u32) -> bool {
        false
    }

    fn advance(&mut self, _: u32) {}

    fn rollback(&mut self, _: usize) {}
}

#[test]
fn a_rule_without_any_token_ends_its_own_request_alone() {
    let engine: Engine =
        start(&fledgling(), 1, EngineOptions { sequences: 3, drafter: DrafterChoice::Auto, ..plain() });
    let good = request(&[1, 2, 3, 4], greedy(), 30);
    let expected = outcome(&engine.submit(good.clone()).unwrap()).0;
    let beside = engine.submit(good.clone()).unwrap();
    let bad = engine.submit(Request { constraint: Some(Arc::new(Nothing)), ..good }).unwrap();
    let last = loop {
        match bad.next() {
            Event::Prefill { .. } => {}
            other => break other,
        }
    };
    assert_eq!(last, Event::Failed(EngineError::Impossible { position: 4 }));
    assert_eq!(outcome(&beside).0, expected);
    let stats = engine.stats();
    assert_eq!((stats.failed, stats.running, stats.pages), (1, 0, 0));
}
