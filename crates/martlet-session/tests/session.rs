//! Turns on the small model of the repository.

use martlet_chat::{Conversation, Message, Role};
use martlet_session::{
    Answer, DeviceKind, DrafterChoice, Event, FinishReason, ModelSource, Options, Prompt, Sampling, Session,
    SessionError, TurnOptions,
};
use std::path::Path;
use std::sync::OnceLock;

/// Opened once: turns of all tests share it, and wait for each other.
fn session() -> &'static Session {
    static SESSION: OnceLock<Session> = OnceLock::new();
    SESSION.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/fledgling");
        let mut seen = Vec::new();
        let options = Options { context: Some(1024), prefill_chunk: Some(16), ..Options::default() };
        let session = Session::open(&ModelSource::Path(path), &options, &mut |done, total| seen.push((done, total)));
        assert!(seen.is_sorted() && seen.last().is_some_and(|(done, total)| done == total), "{seen:?}");
        session.unwrap()
    })
}

fn ask(text: &str, thinking: bool) -> Prompt {
    let chat = Conversation::new(vec![Message::text(Role::User, text)]);
    Prompt::Chat(Conversation { enable_thinking: Some(thinking), ..chat })
}

fn greedy() -> TurnOptions {
    TurnOptions { sampling: Sampling { temperature: Some(0.0), ..Default::default() }, ..Default::default() }
}

fn answer(prompt: &Prompt, options: &TurnOptions) -> Answer {
    session().start(prompt, options).unwrap().answer().unwrap()
}

#[test]
fn a_conversation_gives_reasoning_then_text_then_the_outcome() {
    // A prompt of its own: nothing of it comes from the prefix cache.
    let turn = session().start(&ask("Write in upper case: tamilo", true), &greedy()).unwrap();
    let events: Vec<Event> = turn.map(Result::unwrap).collect();
    let kinds: String = events
        .iter()
        .map(|e| match e {
            Event::Prefill { .. } => 'p',
            Event::Reasoning(_) => 'r',
            Event::Text(_) => 't',
            Event::Token(_) => 'k',
            Event::Finished(_) => 'f',
            _ => '?',
        })
        .collect();
    let once = kinds.chars().fold(String::new(), |s, c| if s.ends_with(c) { s } else { s + &c.to_string() });
    assert_eq!(once, "prtf", "{kinds}");
    let mut whole = Answer::default();
    events.into_iter().for_each(|e| whole.add(e));
    assert_eq!((whole.reasoning.as_str(), whole.text.as_str()), ("Every letter becomes a capital.", "TAMILO"));
    let outcome = whole.outcome.unwrap();
    assert_eq!(outcome.reason, FinishReason::EndToken(4098));
    assert!(outcome.usage.reasoning_tokens > 0 && outcome.usage.reasoning_tokens < outcome.usage.generated_tokens);
    assert_eq!(outcome.usage.generated_tokens, outcome.timings.generated_tokens);
}

#[test]
fn text_and_ids_are_raw_prompts() {
    let chat = ask("Compute 72 + 37.", false);
    let ids = session().prompt_ids(&chat).unwrap();
    let text = session().text().unwrap().tokenizer.decode(&ids, martlet_chat::SpecialTokens::Show);
    let expected = answer(&chat, &greedy());
    assert_eq!(expected.text, "72 + 37 = 109.");
    for prompt in [Prompt::Ids(ids), Prompt::Text(text)] {
        assert_eq!(answer(&prompt, &greedy()).text, expected.text);
    }
}

#[test]
fn a_stop_string_ends_the_answer_and_not_the_reasoning() {
    let options = TurnOptions { stop: vec!["EVI".into(), "letter".into()], tokens: true, ..greedy() };
    let stopped = answer(&ask("Write in upper case: vevivo", true), &options);
    assert_eq!((stopped.reasoning.as_str(), stopped.text.as_str()), ("Every letter becomes a capital.", "V"));
    let outcome = stopped.outcome.unwrap();
    assert_eq!(outcome.reason, FinishReason::StopString("EVI".into()));
    assert_eq!(outcome.usage.generated_tokens, stopped.tokens.len());
}

#[test]
fn another_thread_can_cancel_and_the_session_goes_on() {
    let options = TurnOptions { ignore_eos: true, ..greedy() };
    let turn = session().start(&Prompt::Ids(vec![1]), &options).unwrap();
    let cancel = turn.canceller();
    let mut cancelling = None;
    let mut last = None;
    for event in turn {
        if matches!(event, Ok(Event::Text(_))) && cancelling.is_none() {
            let cancel = cancel.clone();
            cancelling = Some(std::thread::spawn(cancel));
        }
        last = Some(event.unwrap());
    }
    cancelling.unwrap().join().unwrap();
    let Some(Event::Finished(outcome)) = last else { panic!("{last:?}") };
    assert_eq!(outcome.reason, FinishReason::Cancelled);
    // A turn that nobody listens to ends too.
    drop(session().start(&Prompt::Ids(vec![1]), &options).unwrap());
    assert_eq!(answer(&ask("Compute 72 + 37.", false), &greedy()).text, "72 + 37 = 109.");
}

#[test]
fn refusals_come_before_any_work() {
    let refuse = |prompt: &Prompt, options: &TurnOptions| session().start(prompt, options).err().unwrap();
    let long = refuse(&Prompt::Ids(vec![1; 1024]), &greedy());
    assert!(matches!(long, SessionError::Refused(_)) && long.to_string().contains("1024"), "{long}");
    let stop = refuse(&Prompt::Ids(vec![1]), &TurnOptions { stop: vec!["".into()], ..greedy() });
    assert!(matches!(stop, SessionError::EmptyStop { index: 1 }), "{stop}");
    let empty = refuse(&Prompt::Chat(Conversation::default()), &greedy());
    assert!(matches!(empty, SessionError::Prompt(_)), "{empty}");
}

#[test]
fn a_model_that_is_not_there_is_named() {
    let open = Session::open(&ModelSource::Path("nowhere/at-all".into()), &Options::default(), &mut |_, _| {});
    let error = open.err().unwrap().to_string();
    assert!(error.starts_with("cannot open model \"at-all\": ") && error.contains("no such file"), "{error}");
}

#[test]
fn the_context_is_what_was_asked_for_or_what_fits() {
    assert_eq!(session().context(), 1024);
    assert_eq!(session().device(), "cpu");
    let source = ModelSource::Path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/dense"));
    let options = Options { device: DeviceKind::Reference, context: Some(1 << 40), ..Options::default() };
    let error = Session::open(&source, &options, &mut |_, _| {}).err().unwrap().to_string();
    assert!(error.contains("context of 1099511627776 tokens") && error.contains("longest that fits"), "{error}");
}

fn source(path: &str) -> ModelSource {
    ModelSource::Path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path))
}

#[test]
fn the_memory_is_planned_before_anything_is_loaded() {
    let memory = 256 << 20;
    let options = Options { memory: Some(memory), context: Some(512), ..Options::default() };
    let plan = source("models/fledgling").plan(&options).unwrap();
    assert_eq!(plan.fixed() + plan.pool.unwrap(), memory);
    assert!(plan.weights > 10 << 20 && plan.scratch > 0 && plan.state > 0, "{plan:?}");
    let session = Session::open(&source("models/fledgling"), &options, &mut |_, _| {}).unwrap();
    assert_eq!((session.context(), session.plan().context), (512, 512));
    assert_eq!((session.plan().memory, session.plan().scratch), (Some(memory), plan.scratch));
    let (stored, loaded) = (plan.weights as f64, session.plan().weights as f64);
    assert!((0.8..1.25).contains(&(loaded / stored)), "{stored} {loaded}");

    let mut loaded = 0;
    let small = Options { memory: Some(8 << 20), ..Options::default() };
    let error = Session::open(&source("models/fledgling"), &small, &mut |done, _| loaded = done).err().unwrap();
    assert_eq!(loaded, 0, "nothing is loaded");
    assert!(error.to_string().contains("of weights") && error.to_string().contains("8.0 MiB may be used"), "{error}");
    let planned = source("models/fledgling").plan(&small).unwrap_err();
    assert_eq!(planned.to_string(), error.to_string());
}

#[test]
fn the_reference_device_takes_no_more_than_it_needs() {
    let options = Options { device: DeviceKind::Reference, context: Some(512), ..Options::default() };
    let plan = source("models/fledgling").plan(&options).unwrap();
    let pool = plan.pool.unwrap();
    assert!(pool >= plan.kv_bytes(512) && pool <= 2 * plan.kv_bytes(512) + 8 * plan.state, "{plan:?}");
    assert_eq!(plan.memory, Some(plan.fixed() + pool));
}

#[test]
fn less_memory_and_an_empty_cache_never_change_a_text() {
    let options = Options { context: Some(512), prefill_chunk: Some(32), ..Options::default() };
    let session = Session::open(&source("models/fledgling"), &options, &mut |_, _| {}).unwrap();
    let turn = || session.start(&ask("Write in upper case: vevivo", true), &greedy()).unwrap().answer().unwrap();
    let (first, again) = (turn(), turn());
    let cached = |a: &Answer| a.outcome.as_ref().unwrap().usage.cached_tokens;
    assert_eq!((cached(&first), cached(&again) > 0), (0, true));
    session.clear_cache();
    assert_eq!(cached(&turn()), 0, "what was kept is gone");
    session.set_memory(session.plan().fixed());
    let refused = session.start(&ask("hello", false), &greedy()).unwrap().answer().unwrap_err();
    assert!(matches!(refused, SessionError::Engine(_)), "{refused}");
    session.set_memory(u64::MAX);
    let last = turn();
    assert_eq!([&first, &again].map(|a| &a.text), [&last.text; 2]);
    let stats = session.stats();
    assert!(stats.finished >= 3 && stats.cached_tokens > 0 && stats.failed == 1, "{stats:?}");
}

/// Slots for experts give way with the rest, and come back.
#[test]
fn less_memory_for_experts_from_disk_never_changes_a_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pack");
    let (spec, _, checkpoint) = source("models/fledgling").check().unwrap();
    let expected = martlet_model::expected_tensors(&spec, checkpoint.has("mtp.fc.weight"));
    martlet_weights::pack::pack(&checkpoint, &expected, &path, None, &mut |_, _| {}).unwrap();
    let options = Options { memory: Some(40 << 20), context: Some(512), ..Options::default() };
    let session = Session::open(&ModelSource::Path(path), &options, &mut |_, _| {}).unwrap();
    let ask = |text: &str| session.start(&ask(text, false), &greedy()).unwrap().answer().unwrap().text;
    let expected = ask("Write in upper case: vevivo");
    assert_eq!(expected, answer(&self::ask("Write in upper case: vevivo", false), &greedy()).text);
    let slots = || session.stream_stats().unwrap().slots;
    let all = slots();
    session.set_memory(session.plan().fixed());
    assert_eq!(ask("Write in upper case: vevivo"), expected);
    let fewer = slots();
    session.set_memory(u64::MAX);
    assert_eq!(ask("Write in upper case: vevivo"), expected);
    assert!(fewer < all && slots() == all, "{all}, {fewer}, {}", slots());
}

#[test]
fn a_turn_ends_at_its_deadline() {
    let options = TurnOptions { deadline: Some(std::time::Instant::now()), ..greedy() };
    assert_eq!(answer(&ask("hello", false), &options).outcome.unwrap().reason, FinishReason::Deadline);
}

#[test]
fn a_draft_head_that_is_not_there_is_an_error() {
    let options = Options { device: DeviceKind::Reference, drafter: DrafterChoice::Mtp, ..Options::default() };
    let error = Session::open(&source("tests/fixtures/dense-mlx-q4"), &options, &mut |_, _| {}).err().unwrap();
    assert!(error.to_string().contains("auto, suffix and none"), "{error}");
}
