//! What batches, cached prefixes and drafts bring. Each figure is a median of runs,
//! interleaved except under `forced`: two models may not fit into memory.
//!
//!     cargo run --release -p martlet-tests --example engine_bench -- MODEL WHAT [NUMBER..]
//!
//! MODEL is a checkpoint folder, or fledgling (4 bits). WHAT is one of
//!   batch [N..]         tokens a second in all at N sequences (1 2 4 8 16 unless told)
//!   turn2 LENGTH [NEW]  time to the first token of the second turn: cold, from memory, from disk
//!   forced [PERCENT]    the draft head at a given acceptance (80 unless told), at depths 1 to 5 and as chosen
//!   drafts              drafters on fledgling's own prompts
//!   shared LENGTH       two prompts that share nine tenths, at once
//!   overload [N]        N requests at once (64), a quarter of them in the background: waits for the first token
//!   gap LENGTH          longest wait of a running answer while a prompt of LENGTH is admitted
//! Environment: ROUNDS (3), TOKENS (64), THREADS (2), CHUNK (256).

use martlet_cpu::{Cpu, CpuOptions};
use martlet_engine::disk::DiskOptions;
use martlet_engine::{DrafterChoice, Engine, EngineOptions, Event, Handle, Priority, Request, Stats, Timings};
use martlet_model::Model;
use martlet_tests::engines::greedy;
use martlet_tests::random::Rng;
use martlet_tests::{fixtures, random};
use martlet_weights::Checkpoint;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

struct Bench {
    checkpoint: Checkpoint,
    rounds: usize,
    tokens: usize,
    threads: usize,
    chunk: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(model), Some(what)) = (args.first(), args.get(1)) else {
        return Err(
            "a model and what to measure are expected; the head of tests/examples/engine_bench.rs lists all".into()
        );
    };
    let numbers = args[2..].iter().map(|a| a.parse()).collect::<Result<Vec<usize>, _>>()?;
    let number = |name: &str, default: usize| std::env::var(name).map_or(Ok(default), |v| v.parse());
    let checkpoint = match model.as_str() {
        "fledgling" => random::quantised(&Checkpoint::open(&fixtures::fledgling())?, 4, 64),
        path => Checkpoint::open(Path::new(path))?,
    };
    let bench = Bench {
        checkpoint,
        rounds: number("ROUNDS", 3)?,
        tokens: number("TOKENS", 64)?,
        threads: number("THREADS", 2)?,
        chunk: number("CHUNK", 256)?,
    };
    let first = |default| numbers.first().copied().unwrap_or(default);
    match what.as_str() {
        "batch" => bench.batch(if numbers.is_empty() { &[1, 2, 4, 8, 16] } else { &numbers }),
        "turn2" => bench.second_turn(first(4096), numbers.get(1).copied().unwrap_or(64))?,
        "forced" => bench.forced(first(80)),
        "drafts" => bench.drafts(),
        "shared" => bench.shared(first(2000)),
        "overload" => bench.overload(first(64)),
        "gap" => bench.gap(first(12_000)),
        other => return Err(format!("{other} is nothing that is measured here").into()),
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Events of one request with the time of each token.
struct Run {
    tokens: Vec<u32>,
    times: Vec<Instant>,
    timings: Timings,
}

fn collect(handle: &Handle) -> Run {
    let (mut tokens, mut times) = (Vec::new(), Vec::new());
    loop {
        match handle.next() {
            Event::Prefill { .. } => {}
            Event::Token(t) | Event::End(t) => {
                tokens.push(t.id);
                times.push(Instant::now());
            }
            Event::Finished { timings, .. } => return Run { tokens, times, timings },
            Event::Failed(e) => panic!("{e}"),
        }
    }
}

impl Bench {
    fn options(&self, context: usize) -> EngineOptions {
        EngineOptions {
            context: Some(context),
            pool_bytes: Some(4 << 30),
            prefill_chunk: self.chunk,
            prefix_cache: false,
            drafter: DrafterChoice::None,
            ..EngineOptions::default()
        }
    }

    fn engine(&self, options: EngineOptions) -> Engine {
        let cpu = Cpu::new(CpuOptions { threads: Some(self.threads), isa: None }).unwrap_or_else(|e| panic!("{e}"));
        let (model, experts) = Model::load(&cpu, &self.checkpoint, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
        Engine::start(cpu, model, Box::new(experts), options).unwrap_or_else(|e| panic!("{e}"))
    }

    fn vocabulary(&self) -> usize {
        martlet_model::read_config(self.checkpoint.config()).map_or(1, |s| s.vocabulary).min(4000)
    }

    fn request(&self, prompt: &[u32]) -> Request {
        Request { prompt: prompt.to_vec(), sampling: greedy(), max_tokens: Some(self.tokens), ..Request::default() }
    }

    /// Runs requests side by side; tokens a second in all while every one of them decodes.
    fn together(&self, engine: &Engine, requests: Vec<Request>) -> f64 {
        let handles: Vec<Handle> = requests.into_iter().map(|r| engine.submit(r).unwrap()).collect();
        let runs: Vec<Run> = std::thread::scope(|s| {
            let threads: Vec<_> = handles.into_iter().map(|h| s.spawn(move || collect(&h))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let from = runs.iter().map(|r| r.times[0]).max().unwrap();
        let to = runs.iter().map(|r| r.times[r.times.len() - 1]).min().unwrap();
        let count = runs.iter().flat_map(|r| &r.times).filter(|t| **t > from && **t <= to).count();
        count as f64 / (to - from).as_secs_f64()
    }

    fn batch(&self, counts: &[usize]) {
        let engine =
            self.engine(EngineOptions { sequences: counts.iter().copied().max().unwrap_or(1), ..self.options(1024) });
        let mut rates = vec![Vec::new(); counts.len()];
        let (mut shares, mut before) = (vec![Vec::new(); counts.len()], Stats::default());
        for round in 0..self.rounds {
            for (i, &count) in counts.iter().enumerate() {
                let mut rng = Rng((round * 100 + i) as u64);
                let requests = (0..count).map(|_| self.request(&rng.ids(32, self.vocabulary()))).collect();
                rates[i].push(self.together(&engine, requests));
                let stats = engine.stats();
                let device = (stats.device_time - before.device_time).as_secs_f64();
                let all = (stats.step_time - before.step_time).as_secs_f64();
                shares[i].push(100.0 * (all - device) / all);
                before = stats;
            }
        }
        let one = median(rates[0].clone());
        for ((count, rates), shares) in counts.iter().zip(rates).zip(shares) {
            let rate = median(rates);
            println!(
                "{count:3} sequences: {rate:8.1} tokens/s in all, {:.2} x {} sequence(s); {:.2} % of the time outside the device",
                rate / one,
                counts[0],
                median(shares)
            );
        }
    }

    fn second_turn(&self, length: usize, new: usize) -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let mut rng = Rng(7);
        let prompt = rng.ids(length, self.vocabulary());
        let border = length - 8;
        let first = Request { borders: vec![border], ..self.request(&prompt) };
        let disk = DiskOptions {
            dir: dir.path().to_path_buf(),
            bytes: 16 << 30,
            ttl: Duration::from_secs(3600),
            daily_writes: 64 << 30,
            queue_bytes: 4 << 30,
            log: Arc::new(|line| eprintln!("{line}")),
        };
        let options = || EngineOptions {
            prefix_cache: true,
            disk: Some(disk.clone()),
            model_key: b"bench".to_vec(),
            ..self.options(length + 2 * self.tokens + new + 64)
        };
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        let mut engine = self.engine(options());
        let answer = collect(&engine.submit(first)?).tokens;
        drop(engine); // what it stored is on disk now
        for round in 0..self.rounds {
            let mut second = prompt.clone();
            second.extend(&answer);
            second.extend(Rng(1000 + round as u64).ids(new, self.vocabulary()));
            let second = self.request(&second);
            engine = self.engine(options());
            for (i, expected) in [(2, true), (1, true)] {
                let run = collect(&engine.submit(second.clone())?);
                assert_eq!(run.timings.cached_tokens > 0, expected);
                times[i].push((run.timings.queued + run.timings.prefill).as_secs_f64());
                println!(
                    "  {}: {} tokens cached, {:.3} s",
                    ["cold", "memory", "disk"][i],
                    run.timings.cached_tokens,
                    times[i][round]
                );
            }
            drop(engine);
            let plain = self.engine(self.options(length + 2 * self.tokens + new + 64));
            let run = collect(&plain.submit(second)?);
            times[0].push((run.timings.queued + run.timings.prefill).as_secs_f64());
            println!("  cold: {:.3} s", times[0][round]);
        }
        let [cold, memory, disk] = times.map(median);
        println!(
            "turn 2 after {length} tokens, {new} new: cold {cold:.3} s, memory {memory:.4} s ({:.1} %), disk {disk:.4} s ({:.1} %)",
            100.0 * memory / cold,
            100.0 * disk / cold
        );
        Ok(())
    }

    /// The draft head with its drafts replaced, so that a share of them is right.
    fn forced(&self, percent: usize) {
        let prompt = Rng(3).ids(64, self.vocabulary());
        let request = self.request(&prompt);
        let plain = self.engine(self.options(1024));
        let text = Arc::new(Mutex::new(collect(&plain.submit(request.clone()).unwrap()).tokens));
        let start = prompt.len();
        let replace = move |position: usize, draft: u32| {
            // Right for a given share of positions, whatever the depth.
            let right = (Rng(position as u64).below(100)) < percent;
            let text = text.lock().unwrap();
            match text.get(position - start) {
                Some(token) if right => *token,
                Some(token) => token.wrapping_add(1) % 1000,
                None => draft,
            }
        };
        let replace: Arc<dyn Fn(usize, u32) -> u32 + Send + Sync> = Arc::new(replace);
        let depths = [Some(1), Some(2), Some(3), Some(4), Some(5), None];
        let rate = |r: &Run| r.timings.decode_rate();
        let (mut plain_rates, mut rates) = (Vec::new(), vec![Vec::new(); depths.len()]);
        let mut accepted = vec![0.0; depths.len()];
        for _ in 0..self.rounds {
            plain_rates.push(rate(&collect(&plain.submit(request.clone()).unwrap())));
        }
        drop(plain); // two models may not fit into memory
        for (i, depth) in depths.iter().enumerate() {
            let engine = self.engine(EngineOptions {
                drafter: if depth.is_some() { DrafterChoice::Mtp } else { DrafterChoice::Auto },
                draft_depth: *depth,
                replace_draft: Some(replace.clone()),
                ..self.options(1024)
            });
            for _ in 0..self.rounds {
                let run = collect(&engine.submit(request.clone()).unwrap());
                rates[i].push(rate(&run));
                accepted[i] = run.timings.accepted_tokens as f64 / run.timings.drafted_tokens.max(1) as f64;
            }
        }
        let plain = median(plain_rates);
        println!("plain: {plain:.2} tokens/s");
        for ((depth, rates), accepted) in depths.iter().zip(rates).zip(accepted) {
            let (name, rate) = (depth.map_or("as chosen".into(), |d| format!("depth {d}")), median(rates));
            println!(
                "{name}: {rate:.2} tokens/s, {:.2} x plain, {:.0} % of drafts right",
                rate / plain,
                100.0 * accepted
            );
        }
    }

    fn drafts(&self) {
        let choices = DrafterChoice::ALL;
        let engines = choices.map(|drafter| self.engine(EngineOptions { drafter, ..self.options(4096) }));
        let prompts = fixtures::prompts();
        let mut kinds: Vec<String> = Vec::new();
        for (name, _) in &prompts {
            let kind = name.split_once('-').map_or(name.as_str(), |(_, kind)| kind).to_string();
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        for kind in kinds {
            let mut seconds = vec![Vec::new(); choices.len()];
            let (mut tokens, mut right) = (0, vec![(0, 0); choices.len()]);
            for round in 0..=self.rounds {
                let mut times = vec![0.0; choices.len()];
                for (_, prompt) in prompts.iter().filter(|(name, _)| name.ends_with(&kind)) {
                    for i in 0..choices.len() {
                        let request = Request { stop: vec![4098], ..self.request(prompt) };
                        let run = collect(&engines[i].submit(request).unwrap());
                        times[i] += run.timings.decode.as_secs_f64();
                        tokens += if i == 0 && round > 0 { run.tokens.len() } else { 0 };
                        right[i].0 += run.timings.accepted_tokens;
                        right[i].1 += run.timings.drafted_tokens;
                    }
                }
                // The first round warms the policy.
                if round > 0 {
                    seconds.iter_mut().zip(times).for_each(|(all, t)| all.push(t));
                }
            }
            let plain = median(seconds[1].clone());
            let figures = choices.iter().zip(&seconds).zip(&right).map(|((choice, s), (right, drafted))| {
                format!(
                    "{choice} {:.2} x ({:.0} % of {drafted})",
                    plain / median(s.clone()),
                    100.0 * *right as f64 / (*drafted).max(1) as f64
                )
            });
            println!("{kind}, {} tokens: {}", tokens / self.rounds, figures.collect::<Vec<_>>().join(", "));
        }
    }

    fn shared(&self, length: usize) {
        let mut rng = Rng(4);
        let prompt = |rng: &mut Rng, shared: &[u32]| [shared, &rng.ids(length / 10, self.vocabulary())].concat();
        let mut seconds = [Vec::new(), Vec::new()];
        for _ in 0..self.rounds {
            let shared = rng.ids(length * 9 / 10, self.vocabulary());
            let pair = [prompt(&mut rng, &shared), prompt(&mut rng, &shared)];
            for (i, cache) in [false, true].into_iter().enumerate() {
                let options = EngineOptions { sequences: 2, prefix_cache: cache, ..self.options(length + 64) };
                let engine = self.engine(options);
                let started = Instant::now();
                let handles =
                    pair.clone().map(|p| engine.submit(Request { max_tokens: Some(1), ..self.request(&p) }).unwrap());
                handles.iter().for_each(|h| drop(collect(h)));
                seconds[i].push(started.elapsed().as_secs_f64());
            }
        }
        let [twice, once] = seconds.map(median);
        println!("two prompts of {length} that share nine tenths: {twice:.3} s computed twice, {once:.3} s shared");
    }

    /// Many more requests than sequences: who waits how long for the first token, and for the slowest of the next ones.
    fn overload(&self, count: usize) {
        let engine = self.engine(EngineOptions { sequences: 8, ..self.options(2048) });
        let mut rng = Rng(6);
        let requests = (0..count).map(|i| Request {
            priority: if i % 4 == 3 { Priority::Background } else { Priority::Interactive },
            prompt: rng.ids([40, 80, 160, 1000][i / 4 % 4], self.vocabulary()),
            ..self.request(&[])
        });
        let requests: Vec<Request> = requests.collect();
        let started = Instant::now();
        let handles: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        let runs: Vec<Run> = std::thread::scope(|s| {
            let threads: Vec<_> = handles.into_iter().map(|h| s.spawn(move || collect(&h))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for priority in [Priority::Interactive, Priority::Background] {
            let of = || requests.iter().zip(&runs).filter(|(r, _)| r.priority == priority).map(|(_, run)| run);
            let mut first: Vec<f64> = of().map(|r| (r.times[0] - started).as_secs_f64()).collect();
            first.sort_by(f64::total_cmp);
            let gaps = of().flat_map(|r| r.times.windows(2).map(|t| (t[1] - t[0]).as_secs_f64()));
            println!(
                "{priority:?}: first token after {:.2} s (median), {:.2} s (slowest of {}); longest wait within an answer {:.0} ms",
                median(first.clone()),
                first[first.len() - 1],
                first.len(),
                1000.0 * gaps.fold(0.0, f64::max)
            );
        }
    }

    fn gap(&self, length: usize) {
        let options = EngineOptions { sequences: 2, ..self.options(length + 4096) };
        let mut gaps = Vec::new();
        for _ in 0..self.rounds {
            let engine = self.engine(options.clone());
            let answer = engine.submit(Request { max_tokens: Some(3000), ..self.request(&[1, 2, 3]) }).unwrap();
            for _ in 0..20 {
                answer.next();
            }
            let prompt = Rng(5).ids(length, self.vocabulary());
            let long = engine.submit(Request { max_tokens: Some(1), ..self.request(&prompt) }).unwrap();
            let started = Instant::now();
            collect(&long);
            let took = started.elapsed();
            answer.cancel();
            drop(collect(&answer));
            gaps.push(engine.stats().longest_gap.as_secs_f64());
            println!("  prompt of {length} took {:.2} s beside the answer", took.as_secs_f64());
        }
        println!("longest wait between two tokens: {:.0} ms", 1000.0 * median(gaps));
    }
}
