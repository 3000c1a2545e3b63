//! Many conversations at once never see anything of each other.

use martlet_chat::{SpecialTokens, Tokenizer};
use martlet_engine::{DrafterChoice, Engine, EngineOptions, Event, Finish, Handle, Request};
use martlet_tests::engines::{Outcome, PAGE_BYTES, all, fledgling, greedy, plain, request, run, sampled, start};
use martlet_tests::fixtures;
use martlet_tests::random::Rng;
use std::collections::{HashMap, HashSet};

const CONVERSATIONS: usize = 32;
const TURNS: usize = 2;
/// What everybody has a secret value of.
const NAMES: [&str; 4] = ["cold-robin", "lazy-hawk", "green-pencil", "happy-ladder"];

/// A conversation with the plain engine: what it was asked at each turn, and what it was answered.
struct Conversation {
    /// One for each of [`NAMES`], nobody else's.
    secrets: Vec<String>,
    turns: Vec<(Request, Outcome)>,
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(&std::fs::read(fixtures::fledgling().join("tokenizer.json")).unwrap()).unwrap()
}

fn talk(plain: &Engine, tokenizer: &Tokenizer, rng: &mut Rng, number: usize) -> Conversation {
    let secrets: Vec<String> = NAMES.iter().map(|_| format!("{:08x}", rng.bits() as u32)).collect();
    let lines: Vec<String> = NAMES.iter().zip(&secrets).map(|(name, secret)| format!("{name}: {secret}")).collect();
    let mut text = format!(
        "<|im_start|>system\nYou are a helpful assistant. Many people write to you, and each has values of their own. Give \
         everybody the value that they wrote, and nobody a value of another.<|im_end|>\n<|im_start|>user\n{}\n\n",
        lines.join("\n")
    );
    let mut turns = Vec::new();
    for turn in 0..TURNS {
        text += &format!("What is the value of {}?<|im_end|>\n", NAMES[(number + turn) % NAMES.len()]);
        text += "<|im_start|>assistant\n<think>\n\n</think>\n\n";
        let sampling = if number.is_multiple_of(2) { greedy() } else { sampled(rng.bits() >> 20) };
        let mut asked = request(&tokenizer.encode(&text).unwrap(), sampling, 24);
        if number.is_multiple_of(3) {
            // Some never stop, and say whatever comes to the model's mind.
            asked.stop.clear();
            asked.max_tokens = Some(70);
        }
        let answer = run(plain, asked.clone()).0;
        text += &format!("{}<|im_end|>\n<|im_start|>user\n", tokenizer.decode(&answer.tokens, SpecialTokens::Skip));
        turns.push((asked, answer));
    }
    Conversation { secrets, turns }
}

/// A turn that is being answered.
struct Running {
    conversation: usize,
    turn: usize,
    handle: Handle,
    found: Outcome,
}

#[test]
fn nobody_hears_what_another_has_written() {
    let (checkpoint, tokenizer, mut rng) = (fledgling(), tokenizer(), Rng(17));
    let alone = start(&checkpoint, 2, EngineOptions { context: Some(512), ..plain() });
    let conversations: Vec<Conversation> = (0..CONVERSATIONS).map(|i| talk(&alone, &tokenizer, &mut rng, i)).collect();
    drop(alone);

    let options = EngineOptions {
        sequences: 5,
        context: Some(512),
        prefix_cache: true,
        drafter: DrafterChoice::Auto,
        pool_bytes: Some(60 * PAGE_BYTES),
        ..plain()
    };
    let engine = start(&checkpoint, 2, options);
    without_room(&engine, &conversations);
    let mut next = vec![0; CONVERSATIONS];
    let mut running: Vec<Running> = Vec::new();
    let (mut cancelled, mut owners) = (0, HashMap::new());
    for (i, conversation) in conversations.iter().enumerate() {
        conversation.secrets.iter().for_each(|s| assert!(owners.insert(s.clone(), i).is_none()));
    }
    let mut told = HashSet::new();
    let mut check = |r: &Running| {
        let text = tokenizer.decode(&r.found.tokens, SpecialTokens::Skip);
        for (secret, &owner) in owners.iter().filter(|(secret, _)| text.contains(secret.as_str())) {
            assert_eq!(owner, r.conversation, "turn {}: {secret} in {text:?}", r.turn);
            told.insert(secret.clone());
        }
    };
    while !running.is_empty() || next.iter().any(|n| *n < TURNS) {
        let idle = |c: &usize| next[*c] < TURNS && running.iter().all(|r| r.conversation != *c);
        let idle: Vec<usize> = (0..CONVERSATIONS).filter(idle).collect();
        if running.len() < 9 && !idle.is_empty() {
            let conversation = idle[rng.below(idle.len())];
            let turn = next[conversation];
            let handle = engine.submit(conversations[conversation].turns[turn].0.clone()).unwrap();
            let finish = Finish::Cancelled;
            let found = Outcome { tokens: Vec::new(), logprobs: Vec::new(), finish };
            running.push(Running { conversation, turn, handle, found });
            continue;
        }
        // Memory comes and goes: with little of it nothing is kept, and sequences have to give way.
        if rng.below(12) == 0 {
            engine.set_memory(if rng.below(2) == 0 { 14 * PAGE_BYTES } else { u64::MAX });
        }
        // Somebody's next few events; then perhaps they go away, to come back later.
        let at = rng.below(running.len());
        let events = 1 + rng.below(40);
        let gone = (0..events).any(|_| hear(&mut running[at]));
        if !gone && rng.below(4) > 0 {
            continue;
        }
        let mut r = running.swap_remove(at);
        if !gone {
            cancelled += 1;
            r.handle.cancel();
            while !hear(&mut r) {}
        }
        check(&r);
        let expected = &conversations[r.conversation].turns[r.turn].1;
        if r.found.finish == Finish::Cancelled {
            assert!(expected.tokens.starts_with(&r.found.tokens), "{}: {:?}", r.conversation, r.found);
            assert!(expected.logprobs.starts_with(&r.found.logprobs), "{}: {:?}", r.conversation, r.found);
        } else {
            assert!(r.found == *expected, "{}: {:?}, not {expected:?}", r.conversation, r.found);
            next[r.conversation] += 1;
        }
    }
    let stats = engine.stats();
    println!("{cancelled} cancelled, {} of {} secrets told, {stats:?}", told.len(), owners.len());
    assert!(cancelled >= CONVERSATIONS / 4);
    assert!(told.len() >= CONVERSATIONS / 2, "{} secrets were told at all", told.len());
    assert!(stats.preempted > 0 && stats.cache.evicted > 0 && stats.cache.memory_hits > 0, "{stats:?}");
    assert_eq!((stats.running, stats.waiting), (0, 0));
}

/// Five answers at once where there is room for their prompts and no more: somebody has to give way.
fn without_room(engine: &Engine, conversations: &[Conversation]) {
    let turns: Vec<&(Request, Outcome)> = conversations.iter().step_by(3).map(|c| &c.turns[0]).take(5).collect();
    let pages: usize = turns.iter().map(|(r, _)| r.prompt.len().div_ceil(64)).sum();
    engine.set_memory(pages as u64 * PAGE_BYTES);
    let requests: Vec<Request> = turns.iter().map(|(request, _)| request.clone()).collect();
    for (found, (_, expected)) in all(engine, &requests).iter().zip(turns) {
        assert!(found == expected, "{found:?}, not {expected:?}");
    }
    assert!(engine.stats().preempted > 0, "{:?}", engine.stats());
    engine.set_memory(u64::MAX);
}

/// Takes in one event; true for the last one.
fn hear(r: &mut Running) -> bool {
    match r.handle.next() {
        Event::Prefill { .. } => false,
        Event::Token(token) | Event::End(token) => {
            r.found.tokens.push(token.id);
            r.found.logprobs.extend(token.logprob.map(f32::to_bits));
            false
        }
        Event::Finished { reason, .. } => {
            r.found.finish = reason;
            true
        }
        Event::Failed(e) => panic!("{e}"),
    }
}
