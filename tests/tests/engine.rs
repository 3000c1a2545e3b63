//! The law for whole answers: batches, drafts, cached prefixes, threads and pressure never change a token.

use martlet_cpu::{Cpu, CpuOptions, Isa};
use martlet_device::KvScheme;
use martlet_engine::{Accept, DrafterChoice, Engine, EngineOptions, Event, Finish, Request};
use martlet_tests::engines::{
    END, Outcome, PAGE_BYTES, START, all, compare, disk, fledgling, greedy, outcome, plain, request, run, sampled,
    start, start_on,
};
use martlet_tests::random::Rng;
use martlet_tests::{fixtures, random};

/// Every third of fledgling's own prompts, each with a greedy and a sampled answer.
fn requests(tokens: usize) -> Vec<Request> {
    let prompts: Vec<_> = fixtures::prompts().into_iter().step_by(3).collect();
    let greedy = prompts.iter().map(|(_, p)| request(p, greedy(), tokens));
    let sampled = prompts.iter().enumerate().map(|(i, (_, p))| request(p, sampled(i as u64), tokens));
    greedy.chain(sampled).collect()
}

#[test]
fn drafts_never_change_an_answer_and_are_often_right() {
    let checkpoint = fledgling();
    let requests = requests(48);
    let expected = all(&start(&checkpoint, 2, plain()), &requests);
    for drafter in [DrafterChoice::Mtp, DrafterChoice::Suffix, DrafterChoice::Auto] {
        for depth in [Some(1), Some(3), Some(5), None] {
            let engine = start(&checkpoint, 2, EngineOptions { drafter, draft_depth: depth, sequences: 4, ..plain() });
            compare(&all(&engine, &requests), &expected, &format!("{drafter} {depth:?}"));
            let stats = engine.stats();
            if drafter == DrafterChoice::Mtp && depth == Some(1) {
                let rate = stats.mtp.accepted as f64 / stats.mtp.drafted as f64;
                assert!(rate > 0.6, "the head was right in {rate:.2} of {} drafts", stats.mtp.drafted);
            }
            if drafter == DrafterChoice::Suffix {
                assert!(stats.suffix.accepted > 0 && stats.mtp.drafted == 0, "{stats:?}");
            }
        }
    }
}

/// Rejection sampling has another text for a seed, but not for greedy answers, and refuses fewer drafts.
#[test]
fn rejection_sampling_accepts_more_drafts() {
    let checkpoint = fledgling();
    let requests: Vec<Request> = requests(40).into_iter().map(|r| Request { stop: Vec::new(), ..r }).collect();
    let (greedy, sampled) = requests.split_at(requests.len() / 2);
    let expected = all(&start(&checkpoint, 2, plain()), greedy);
    let share = |accept| {
        let drafter = DrafterChoice::Mtp;
        let engine = start(&checkpoint, 2, EngineOptions { drafter, draft_depth: Some(2), accept, ..plain() });
        compare(&all(&engine, greedy), &expected, &format!("{accept}"));
        let before = engine.stats().mtp;
        all(&engine, sampled);
        let after = engine.stats().mtp;
        (after.accepted - before.accepted) as f64 / (after.drafted - before.drafted) as f64
    };
    let (same, rejection) = (share(Accept::Same), share(Accept::Rejection));
    assert!(rejection > same, "{rejection:.3} by rejection, {same:.3} by comparing");
}

#[test]
fn cached_prefixes_never_change_an_answer() {
    let checkpoint = fledgling();
    let requests = requests(24);
    let expected = all(&start(&checkpoint, 2, plain()), &requests);
    let engine = start(&checkpoint, 2, EngineOptions { prefix_cache: true, ..plain() });
    compare(&all(&engine, &requests), &expected, "cold");
    compare(&all(&engine, &requests), &expected, "warm");
    let stats = engine.stats();
    assert!(stats.cache.memory_hits as usize >= requests.len(), "{:?}", stats.cache);
    assert!(stats.cached_tokens > stats.prompt_tokens / 4, "{stats:?}");
    engine.clear_cache();
    compare(&all(&engine, &requests[..4]), &expected[..4], "after it was cleared");
}

/// The next turn, the same question again, an edited question, another user under the same instructions, and a client
/// that drops the answer's reasoning: each goes on from the longest prefix that they share.
#[test]
fn conversations_go_on_from_what_they_share() {
    let checkpoint = fledgling();
    let mut rng = Rng(5);
    let mut message = |len: usize| {
        let mut m = vec![START];
        m.extend(rng.ids(len, 4000));
        m.push(END);
        m
    };
    let (system, question, edited, other) = (message(150), message(60), message(60), message(60));
    let opening = [START, 7, 8, 9];
    let first: Vec<u32> = [&system[..], &question, &opening].concat();
    let engine = start(&checkpoint, 2, EngineOptions { prefix_cache: true, ..plain() });
    let fresh = start(&checkpoint, 2, plain());
    let turn = |prompt: &[u32]| {
        let r = request(prompt, greedy(), 40);
        let (found, timings) = run(&engine, r.clone());
        assert_eq!(found, run(&fresh, r).0);
        (found.tokens, timings.cached_tokens)
    };
    let (answer, cached) = turn(&first);
    assert_eq!(cached, 0);
    assert_eq!(turn(&first).1, first.len() - opening.len(), "the same question again");
    let shared = first.len() - opening.len();
    let next: Vec<u32> = [&first[..], &answer, &[END], &question, &opening].concat();
    let whole = first.len() + answer.len() - 1;
    assert_eq!(turn(&next).1, whole, "the next turn: all but the last token, which was never computed");
    let stripped: Vec<u32> = [&first[..], &answer[20..], &[END], &question, &opening].concat();
    assert_eq!(turn(&stripped).1, shared, "reasoning left out by the client");
    let edit: Vec<u32> = [&system[..], &edited, &opening].concat();
    assert_eq!(turn(&edit).1, system.len(), "an edited question");
    let stranger: Vec<u32> = [&system[..], &other, &question, &opening].concat();
    assert_eq!(turn(&stranger).1, system.len(), "another user, the same instructions");
    assert_eq!(turn(&other).1, 0);
}

#[test]
fn prompts_that_share_a_beginning_are_computed_once_even_at_once() {
    let checkpoint = fledgling();
    let mut rng = Rng(6);
    let shared = rng.ids(700, 4000);
    let requests: Vec<Request> =
        (0..4).map(|_| request(&[&shared[..], &rng.ids(20, 4000)].concat(), greedy(), 5)).collect();
    let expected = all(&start(&checkpoint, 2, plain()), &requests);
    let options = EngineOptions { prefix_cache: true, sequences: 4, prefill_chunk: 64, ..plain() };
    let engine = start(&checkpoint, 2, options);
    compare(&all(&engine, &requests), &expected, "at once");
    let stats = engine.stats();
    assert!(stats.prompt_tokens < 700 + 4 * 60, "{} tokens of prompts were computed", stats.prompt_tokens);
}

/// Less room than the sequences need together: some give theirs away and are computed again.
#[test]
fn sequences_without_room_wait_or_are_computed_again() {
    let checkpoint = fledgling();
    let mut rng = Rng(7);
    let requests: Vec<Request> = (0..6)
        .map(|i| Request { stop: Vec::new(), ..request(&rng.ids(100 + 20 * i, 4000), sampled(i as u64), 150) })
        .collect();
    let expected = all(&start(&checkpoint, 2, plain()), &requests);
    for (cache, pages) in [(false, 16), (true, 16)] {
        let options = EngineOptions {
            sequences: 6,
            prefix_cache: cache,
            drafter: DrafterChoice::Auto,
            pool_bytes: Some(pages * PAGE_BYTES),
            context: Some(400),
            ..plain()
        };
        let engine = start(&checkpoint, 2, options);
        compare(&all(&engine, &requests), &expected, &format!("{pages} pages"));
        let stats = engine.stats();
        assert!(stats.preempted > 0, "{stats:?}");
        assert!(stats.pages <= stats.pages_limit, "{stats:?}");
    }
}

/// The caller asks for memory back: kept states go, answers go on.
#[test]
fn memory_is_given_back_and_taken_again() {
    let checkpoint = fledgling();
    let engine = start(&checkpoint, 2, EngineOptions { prefix_cache: true, pool_bytes: Some(64 << 20), ..plain() });
    let requests = requests(8);
    let expected = all(&start(&checkpoint, 2, plain()), &requests[..6]);
    compare(&all(&engine, &requests[..6]), &expected, "before");
    let before = engine.stats();
    assert!(before.cache.entries >= 6, "{:?}", before.cache);
    engine.set_memory(5 << 20);
    compare(&all(&engine, &requests[..6]), &expected, "with little memory");
    let little = engine.stats();
    let held = little.pages as u64 * PAGE_BYTES + little.cache.state_bytes;
    assert!(held <= 5 << 20, "{held} bytes are held");
    assert!(little.cache.evicted > 0);
    engine.set_memory(u64::MAX);
    compare(&all(&engine, &requests[..6]), &expected, "with much again");
    assert!(engine.stats().cache.entries > little.cache.entries);
}

#[test]
fn a_full_queue_a_deadline_and_a_cancelled_request() {
    let engine = start(&fledgling(), 1, EngineOptions { queue: 2, ..plain() });
    let long = Request { stop: Vec::new(), ..request(&[1, 2, 3], greedy(), 900) };
    let first = engine.submit(long.clone()).unwrap();
    while !matches!(first.next(), Event::Token(_)) {}
    let second = engine.submit(long.clone()).unwrap();
    let late = std::time::Instant::now() + std::time::Duration::from_millis(20);
    let third = engine.submit(Request { deadline: Some(late), ..long.clone() }).unwrap();
    let refused = engine.submit(long.clone()).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(refused.starts_with("2 requests wait already"), "{refused}");
    assert_eq!(outcome(&third).0.finish, Finish::Deadline, "before its turn came");
    first.cancel();
    assert_eq!(outcome(&first).0.finish, Finish::Cancelled);
    second.cancel();
    assert_eq!(outcome(&second).0.finish, Finish::Cancelled);
    let late = std::time::Instant::now() + std::time::Duration::from_millis(60);
    let fourth = outcome(&engine.submit(Request { deadline: Some(late), ..long }).unwrap()).0;
    assert_eq!(fourth.finish, Finish::Deadline);
    assert!(!fourth.tokens.is_empty(), "what was there in time stays");
    // Nothing is left behind.
    run(&engine, request(&[1, 2, 3], greedy(), 1));
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.pages), (0, 0, 0));
}

#[test]
fn a_drafter_that_the_checkpoint_lacks_is_refused() {
    let checkpoint = random::checkpoint(&random::dense_config(), 3);
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let (model, experts) = martlet_model::Model::load(&cpu, &checkpoint, &mut |_, _| {}).unwrap();
    let options = EngineOptions { drafter: DrafterChoice::Mtp, ..plain() };
    let error = Engine::start(cpu, model, Box::new(experts), options).err().unwrap().to_string();
    assert!(error.contains("draft head"), "{error}");
}

/// Everything at once, at random: prompts that share beginnings, joining, cancelled, with every drafter, cache state,
/// thread count and pool size; each answer compared with the plain one.
#[test]
fn random_crossings() {
    let rounds = if std::env::var_os("MARTLET_FULL").is_some() { 120 } else { 6 };
    let dense = random::quantised(&random::checkpoint(&random::dense_config(), 21), 4, 64);
    let sparse = random::checkpoint(&random::moe_config(), 22);
    let checkpoints = [(fledgling(), 4000), (dense, 347), (sparse, 515)];
    let mut rng = Rng(99);
    let mut runs = 0;
    for round in 0..rounds {
        let (checkpoint, vocabulary) = &checkpoints[round % checkpoints.len()];
        let kv = [KvScheme::F16, KvScheme::F32, KvScheme::Q8][rng.below(3)];
        let requests = family(&mut rng, *vocabulary);
        let expected = all(&start(checkpoint, 1, EngineOptions { kv, ..plain() }), &requests);
        for _ in 0..2 {
            let options = random_options(&mut rng, kv);
            let what = format!(
                "round {round}: {} sequences, chunk {}, {} {:?}, cache {}, pool {:?}",
                options.sequences,
                options.prefill_chunk,
                options.drafter,
                options.draft_depth,
                options.prefix_cache,
                options.pool_bytes
            );
            let engine = start(checkpoint, 1 + rng.below(2), options);
            compare(&some_cancelled(&engine, &requests, &mut rng), &expected, &what);
            runs += requests.len();
        }
    }
    assert!(runs >= rounds * 2 * 24);
}

/// Requests whose prompts begin alike in many ways.
fn family(rng: &mut Rng, vocabulary: usize) -> Vec<Request> {
    let len = 40 + rng.below(160);
    let root = rng.ids(len, vocabulary);
    let mut prompts = vec![root];
    for _ in 0..23 {
        let base = prompts[rng.below(prompts.len())].clone();
        let cut = base.len() - rng.below(base.len().min(90));
        let mut prompt = base[..cut].to_vec();
        let new = rng.below(70);
        prompt.extend(rng.ids(new, vocabulary));
        prompts.push(prompt);
    }
    let requests = prompts.into_iter().map(|prompt| {
        let mut borders: Vec<usize> = (0..rng.below(5)).map(|_| rng.below(prompt.len())).collect();
        borders.sort_unstable();
        borders.dedup();
        let sampling = if rng.below(2) == 0 { greedy() } else { sampled(rng.bits() >> 20) };
        Request {
            borders,
            stop: vec![rng.below(vocabulary) as u32],
            max_tokens: Some(1 + rng.below(40)),
            logit_bias: if rng.below(4) == 0 { vec![(rng.below(vocabulary) as u32, 2.5)] } else { Vec::new() },
            logprobs: Some(0),
            sampling,
            prompt,
            ..Request::default()
        }
    });
    requests.collect()
}

fn random_options(rng: &mut Rng, kv: KvScheme) -> EngineOptions {
    let drafters = [DrafterChoice::None, DrafterChoice::Suffix, DrafterChoice::Auto];
    EngineOptions {
        context: Some(512),
        sequences: [1, 2, 5, 16][rng.below(4)],
        prefill_chunk: [5, 33, 64, 200][rng.below(4)],
        kv,
        pool_bytes: if rng.below(3) == 0 { Some(4 << 20) } else { None },
        prefix_cache: rng.below(4) > 0,
        drafter: drafters[rng.below(3)],
        draft_depth: if rng.below(2) == 0 { None } else { Some(1 + rng.below(5)) },
        ..EngineOptions::default()
    }
}

/// All answers in order, each asked for once or twice; of the others some are cancelled after a while.
fn some_cancelled(engine: &Engine, requests: &[Request], rng: &mut Rng) -> Vec<Outcome> {
    let mut handles = Vec::new();
    let mut doomed = Vec::new();
    for r in requests {
        if rng.below(4) == 0 {
            let handle = engine.submit(r.clone()).unwrap();
            if rng.below(2) == 0 {
                handle.next();
            }
            doomed.push(handle);
        }
        if rng.below(3) == 0 {
            doomed.drain(..doomed.len() / 2).for_each(|h| h.cancel());
        }
        handles.push(engine.submit(r.clone()).unwrap());
    }
    handles.iter().map(|h| outcome(h).0).collect()
}

/// Options with a disk tier in `dir`, as a process has them that was just started.
fn with_disk(dir: &std::path::Path, kv: KvScheme) -> EngineOptions {
    EngineOptions { prefix_cache: true, disk: Some(disk(dir)), model_key: b"fledgling".to_vec(), kv, ..plain() }
}

#[test]
fn states_on_disk_serve_the_next_process() {
    let checkpoint = fledgling();
    let mut rng = Rng(8);
    let long = rng.ids(300, 4000);
    let mut requests: Vec<Request> = requests(12);
    requests.extend((0..3).map(|i| request(&[&long[..200 + 40 * i], &rng.ids(9, 4000)].concat(), sampled(4), 12)));
    let expected = all(&start(&checkpoint, 2, plain()), &requests);
    let dir = tempfile::tempdir().unwrap();
    compare(&all(&start(&checkpoint, 2, with_disk(dir.path(), KvScheme::F16)), &requests), &expected, "first");

    // The same on another instruction set goes on with the same bytes.
    let cpu = Cpu::new(CpuOptions { threads: Some(1), isa: Some(Isa::Portable) }).unwrap();
    let engine = start_on(cpu, &checkpoint, with_disk(dir.path(), KvScheme::F16));
    compare(&all(&engine, &requests), &expected, "after a restart");
    let cache = engine.stats().cache;
    assert!(cache.disk_hits >= 5, "{cache:?}");
    drop(engine);

    // Another form of the cache, another model, and another device's arithmetic have nothing to do with it.
    let other = start(&checkpoint, 2, with_disk(dir.path(), KvScheme::F32));
    all(&other, &requests[..3]);
    assert_eq!(other.stats().cache.disk_hits, 0);
    drop(other);
    let stranger = EngineOptions { model_key: b"another".to_vec(), ..with_disk(dir.path(), KvScheme::F16) };
    let other = start(&checkpoint, 2, stranger);
    all(&other, &requests[..3]);
    assert_eq!(other.stats().cache.disk_hits, 0);
    drop(other);

    // Every file damaged somewhere: nothing but misses.
    for (i, entry) in std::fs::read_dir(dir.path()).unwrap().enumerate() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if bytes.len() > 64 {
            let at = (i * 7919) % bytes.len();
            bytes[at] ^= 1 << (i % 8);
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let engine = start(&checkpoint, 2, with_disk(dir.path(), KvScheme::F16));
    compare(&all(&engine, &requests), &expected, "with every file damaged");
}
