//! Who is served when: bounded pieces of prompts beside running answers, ranks, full queues, and too little room. Told by
//! counts and order; where a time is given, it only bounds how long a test may hang.

use martlet_engine::{
    Constraint, DrafterChoice, Engine, EngineOptions, Event, Finish, Handle, Priority, Refused, Request, Rule,
};
use martlet_tests::engines::{
    END, PAGE_BYTES, all, compare, disk, fledgling, greedy, outcome, plain, request, run, sampled, start,
};
use martlet_tests::random::Rng;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longer than anything here takes.
const HANG: Duration = Duration::from_secs(60);

/// An answer that goes on until it is cancelled or its room ends.
fn endless(prompt: &[u32], tokens: usize) -> Request {
    Request { stop: Vec::new(), ..request(prompt, sampled(1), tokens) }
}

fn next(handle: &Handle) -> Event {
    handle.next_within(HANG).expect("the engine does nothing")
}

/// Waits until an answer is on its way.
fn first_token(handle: &Handle) {
    while !matches!(next(handle), Event::Token(_)) {}
}

/// Events that have come by now, up to the last one.
fn so_far(handle: &Handle) -> Vec<Event> {
    let mut events = Vec::new();
    while !matches!(events.last(), Some(Event::Finished { .. } | Event::Failed(_))) {
        let Some(event) = handle.next_within(Duration::ZERO) else { break };
        events.push(event);
    }
    events
}

fn tokens_so_far(handle: &Handle) -> usize {
    so_far(handle).iter().filter(|e| matches!(e, Event::Token(_))).count()
}

/// Rows of each step in which a prompt was computed, up to its first token.
fn pieces(handle: &Handle) -> Vec<usize> {
    let (mut pieces, mut before) = (Vec::new(), 0);
    loop {
        match next(handle) {
            Event::Prefill { done, total } => {
                assert!(done < total && done > before, "{done} of {total} after {before}");
                pieces.push(done - before);
                before = done;
            }
            Event::Token(_) => return pieces,
            other => panic!("{other:?}"),
        }
    }
}

fn nothing_is_left(engine: &Engine) {
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.pages), (0, 0, 0), "{stats:?}");
}

#[test]
fn a_long_prompt_is_cut_into_bounded_pieces_and_every_answer_goes_on_between_them() {
    let checkpoint = fledgling();
    let mut rng = Rng(1);
    for (length, chunk, gap, bound) in [(12_000, 128, Duration::from_secs(100), 128), (600, 256, Duration::ZERO, 16)] {
        let options = EngineOptions {
            context: Some(13_000),
            sequences: 3,
            prefill_chunk: chunk,
            max_gap: gap,
            drafter: DrafterChoice::Auto,
            ..plain()
        };
        let engine = start(&checkpoint, 2, options);
        let answers: Vec<Handle> =
            (0..2).map(|i| engine.submit(endless(&rng.ids(20 + i, 4000), 4000)).unwrap()).collect();
        answers.iter().for_each(first_token);
        answers.iter().for_each(|a| _ = tokens_so_far(a));
        let long = engine.submit(endless(&rng.ids(length, 4000), 2)).unwrap();
        let pieces = pieces(&long);
        assert!(pieces.iter().all(|rows| *rows <= bound), "{pieces:?}");
        assert!(pieces.len() >= length / bound - 1, "{pieces:?}");
        for answer in &answers {
            // Each of its steps was one of theirs.
            let tokens = tokens_so_far(answer);
            assert!(tokens >= pieces.len(), "{tokens} tokens beside {} pieces", pieces.len());
            answer.cancel();
            while !matches!(next(answer), Event::Finished { reason: Finish::Cancelled, .. }) {}
        }
        outcome(&long);
        nothing_is_left(&engine);
    }
}

#[test]
fn two_hundred_requests_for_a_queue_of_sixty_four() {
    let engine = start(&fledgling(), 2, EngineOptions { sequences: 1, queue: 64, ..plain() });
    let first = engine.submit(endless(&[1, 2, 3], 900)).unwrap();
    first_token(&first);
    let mut rng = Rng(2);
    let mut waiting = Vec::new();
    for i in 0..200 {
        match engine.submit(request(&rng.ids(5, 4000), greedy(), 3)) {
            Ok(handle) => waiting.push(handle),
            Err(refused) => {
                assert_eq!(refused, Refused::Busy { waiting: 64, limit: 64 }, "request {i}");
                assert!(i >= 64);
            }
        }
    }
    assert_eq!(waiting.len(), 64);
    first.cancel();
    waiting.iter().for_each(|h| assert_ne!(outcome(h).0.finish, Finish::Cancelled));
    nothing_is_left(&engine);
    let stats = engine.stats();
    assert_eq!((stats.finished, stats.cancelled, stats.failed), (64, 1, 0));
    // The whole queue is free again.
    let handles: Vec<Handle> = (0..64).map(|_| engine.submit(request(&[7], greedy(), 1)).unwrap()).collect();
    handles.iter().for_each(|h| h.cancel());
    handles.iter().for_each(|h| _ = outcome(h));
    nothing_is_left(&engine);
}

#[test]
fn interactive_requests_overtake_background_ones_and_these_are_served_after_them() {
    let engine = start(&fledgling(), 2, EngineOptions { sequences: 1, ..plain() });
    let mut rng = Rng(3);
    let first = engine.submit(endless(&[1, 2, 3], 900)).unwrap();
    first_token(&first);
    let mut submit =
        |priority| engine.submit(Request { priority, ..request(&rng.ids(30, 4000), greedy(), 3) }).unwrap();
    let background: Vec<Handle> = (0..2).map(|_| submit(Priority::Background)).collect();
    let interactive: Vec<Handle> = (0..3).map(|_| submit(Priority::Interactive)).collect();
    first.cancel();
    while !matches!(next(&background[0]), Event::Token(_)) {}
    for handle in &interactive {
        let events = so_far(handle);
        assert!(matches!(events.last(), Some(Event::Finished { .. })), "{events:?}");
    }
    background.iter().for_each(|h| _ = outcome(h));
    nothing_is_left(&engine);
}

/// Interactive prompts never wait for more of a background prompt than the step in flight.
#[test]
fn a_background_prompt_stands_still_while_an_interactive_one_is_computed() {
    let options = EngineOptions { sequences: 2, prefill_chunk: 32, context: Some(4096), ..plain() };
    let engine = start(&fledgling(), 2, options);
    let mut rng = Rng(4);
    let slow = Request { priority: Priority::Background, ..request(&rng.ids(4000, 4000), greedy(), 2) };
    let slow = engine.submit(slow).unwrap();
    assert!(matches!(next(&slow), Event::Prefill { .. }));
    let quick = engine.submit(request(&rng.ids(320, 4000), greedy(), 2)).unwrap();
    // 320 rows are ten pieces of 32, and none is shared with the other prompt.
    assert_eq!(pieces(&quick), [32; 9]);
    slow.cancel();
    outcome(&quick);
    while !matches!(next(&slow), Event::Finished { .. }) {}
    nothing_is_left(&engine);
}

/// A stream of small requests does not keep out a large one that came before them.
#[test]
fn small_requests_do_not_overtake_a_large_one_that_waits_for_room() {
    let options = EngineOptions { sequences: 4, pool_bytes: Some(16 * PAGE_BYTES), context: Some(1024), ..plain() };
    let engine = start(&fledgling(), 2, options);
    let mut rng = Rng(5);
    let running: Vec<Handle> = (0..2).map(|_| engine.submit(endless(&rng.ids(200, 4000), 60)).unwrap()).collect();
    running.iter().for_each(first_token);
    // It takes all pages, so that nobody begins before it has ended.
    let before = Instant::now();
    let large = engine.submit(endless(&rng.ids(1000, 4000), 3)).unwrap();
    let small: Vec<(Handle, Instant)> =
        (0..12).map(|_| (engine.submit(request(&rng.ids(10, 4000), greedy(), 2)).unwrap(), Instant::now())).collect();
    running.iter().for_each(|h| _ = outcome(h));
    let timings = outcome(&large).1;
    let large_ended = before + timings.queued + timings.prefill + timings.decode;
    for (handle, submitted) in &small {
        let began = *submitted + outcome(handle).1.queued;
        assert!(began >= large_ended, "{:?} before the large one had ended", large_ended - began);
    }
    nothing_is_left(&engine);
}

/// Room that was there when prompts began, and went away: whoever was begun first goes on.
#[test]
fn prompts_that_lose_their_room_do_not_hold_each_other_up() {
    let options = EngineOptions { sequences: 2, prefill_chunk: 64, pool_bytes: Some(32 * PAGE_BYTES), ..plain() };
    let engine = start(&fledgling(), 1, options);
    let mut rng = Rng(6);
    let slow = Request { priority: Priority::Background, ..request(&rng.ids(800, 4000), greedy(), 2) };
    let expected = run(&engine, slow.clone()).0;
    for _ in 0..3 {
        let slow = engine.submit(slow.clone()).unwrap();
        while !matches!(next(&slow), Event::Prefill { done: 192.., .. }) {}
        let quick = engine.submit(request(&rng.ids(900, 4000), greedy(), 2)).unwrap();
        assert!(matches!(next(&quick), Event::Prefill { .. }));
        engine.set_memory(15 * PAGE_BYTES);
        // Without the rule both stand still until the background one has aged, half a minute later.
        let limit = Duration::from_secs(20);
        while !matches!(slow.next_within(limit).expect("both prompts stand still"), Event::Finished { .. }) {}
        outcome(&quick);
        engine.set_memory(u64::MAX);
    }
    assert_eq!(run(&engine, slow).0, expected);
    nothing_is_left(&engine);
}

/// The limit moves to what the answer just needs, and back, all the time: drafts never ask for more.
#[test]
fn drafts_never_need_room_that_the_answer_does_not() {
    let checkpoint = fledgling();
    let prompt: Vec<u32> = (0..100).map(|i| 500 + i % 7).collect();
    // It ends with the last place of a page, where drafts would need the next one.
    let rule = Some(Arc::new(Ends { after: 3 * 64 + 28 - 1 }) as Arc<dyn Rule>);
    let bias = (0..7).map(|i| (500 + i, 30.0)).collect();
    let wanted = Request { constraint: rule, logit_bias: bias, ..request(&prompt, greedy(), 600) };
    let text = run(&start(&checkpoint, 1, plain()), wanted.clone()).0.tokens;
    assert_eq!(text.len(), 3 * 64 + 28);
    for _ in 0..6 {
        let options = EngineOptions { drafter: DrafterChoice::Suffix, draft_depth: Some(12), ..plain() };
        let engine = start(&checkpoint, 1, options);
        let handle = engine.submit(wanted.clone()).unwrap();
        let (mut tokens, mut moves) = (Vec::new(), 0);
        loop {
            engine.set_memory(if moves % 2 == 0 { 5 * PAGE_BYTES } else { u64::MAX });
            moves += 1;
            match handle.next_within(Duration::from_micros(200)) {
                None | Some(Event::Prefill { .. }) => {}
                Some(Event::Token(token) | Event::End(token)) => tokens.push(token.id),
                Some(Event::Finished { .. }) => break,
                Some(other) => panic!("{other:?} after {} tokens", tokens.len()),
            }
        }
        assert_eq!(tokens, text);
        assert!(engine.stats().suffix.accepted > 0);
    }
}

/// Anything for some tokens, then [`END`].
#[derive(Clone, Debug)]
struct Ends {
    after: usize,
}

impl Rule for Ends {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for Ends {
    fn mask(&mut self) -> Option<Vec<u32>> {
        let end = (0..=END / 32).map(|word| if word == END / 32 { 1 << (END % 32) } else { 0 });
        (self.after == 0).then(|| end.collect())
    }

    fn allows(&mut self, token: u32) -> bool {
        self.after > 0 || token == END
    }

    fn advance(&mut self, _: u32) {
        self.after -= 1;
    }

    fn rollback(&mut self, tokens: usize) {
        self.after += tokens;
    }
}

/// All pages hold one kept state, and whoever goes on from it needs one more page: the state goes, and its bytes count as
/// room at once; what is computed again is stored again.
#[test]
fn a_kept_state_makes_room_for_whoever_wanted_it() {
    let checkpoint = fledgling();
    let mut rng = Rng(7);
    let prompt = rng.ids(150, 4000);
    let (first, second) = (request(&prompt[..100], greedy(), 2), request(&prompt, greedy(), 2));
    let expected = run(&start(&checkpoint, 1, plain()), second.clone()).0;
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let lines = log.clone();
    let tier = martlet_engine::disk::DiskOptions {
        log: Arc::new(move |line| lines.lock().unwrap().push(line.to_string())),
        ..disk(dir.path())
    };
    let options = EngineOptions { prefix_cache: true, disk: Some(tier), model_key: b"fledgling".to_vec(), ..plain() };
    let engine = start(&checkpoint, 1, options);
    run(&engine, first);
    let cache = engine.stats().cache;
    assert_eq!((cache.entries, engine.stats().pages), (1, 2), "{cache:?}");
    engine.set_memory(2 * PAGE_BYTES + cache.state_bytes);
    assert!(cache.state_bytes >= PAGE_BYTES, "a third page fits in once the state is gone");
    assert_eq!(run(&engine, second).0, expected);
    assert!(engine.stats().cache.evicted > 0);
    drop(engine);
    assert!(log.lock().unwrap().is_empty(), "{:?}", log.lock().unwrap());
}

/// What is done while nothing runs shows in the statistics.
#[test]
fn a_cleared_cache_is_seen_to_be_empty() {
    let engine = start(&fledgling(), 1, EngineOptions { prefix_cache: true, ..plain() });
    run(&engine, request(&Rng(8).ids(100, 4000), greedy(), 2));
    assert!(engine.stats().pages > 0 && engine.stats().cache.entries > 0);
    engine.clear_cache();
    let begun = Instant::now();
    while engine.stats().pages > 0 {
        assert!(begun.elapsed() < HANG, "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    nothing_is_left(&engine);
}

/// A large request that can not begin beside a running one takes nothing from the cache meanwhile.
#[test]
fn who_waits_in_vain_evicts_nothing() {
    let options = EngineOptions {
        sequences: 2,
        prefix_cache: true,
        pool_bytes: Some(40 * PAGE_BYTES),
        context: Some(2200),
        ..plain()
    };
    let checkpoint = fledgling();
    let engine = start(&checkpoint, 2, options);
    let mut rng = Rng(9);
    let kept: Vec<Request> =
        (0..2).map(|_| Request { borders: vec![76], ..request(&rng.ids(80, 4000), greedy(), 2) }).collect();
    let expected = all(&engine, &kept);
    // Two states, their four pages, and the nine of the running answer fit in; the 32 of the large one do not.
    engine.set_memory(2 * 2_066_304 + 15 * PAGE_BYTES);
    let running = engine.submit(endless(&rng.ids(400, 4000), 40)).unwrap();
    first_token(&running);
    let large = engine.submit(request(&rng.ids(2000, 4000), greedy(), 2)).unwrap();
    for _ in 0..20 {
        next(&running);
    }
    assert_eq!(engine.stats().cache.evicted, 0, "{:?}", engine.stats());
    large.cancel();
    outcome(&running);
    outcome(&large);
    compare(&all(&engine, &kept), &expected, "from what was kept");
    assert!(engine.stats().cache.memory_hits > 0);
}
