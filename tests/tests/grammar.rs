//! Turns that must have a form: the answer has it with thinking and without, with drafts and without, and however the
//! model is sampled.

use martlet_chat::{Conversation, Message, Role, SpecialTokens};
use martlet_session::{
    Answer, AnswerCall, DeviceKind, DrafterChoice, FinishReason, Format, GrammarError, ModelSource, Options, Prompt,
    Sampling, Session, SessionError, ToolChoice, TurnOptions,
};
use martlet_tests::fixtures;
use serde_json::{Value, json};
use std::sync::OnceLock;

/// `<|im_end|>`
const END: u32 = 4098;

fn open(drafter: DrafterChoice, draft_depth: Option<usize>) -> Session {
    let options = Options {
        device: DeviceKind::Cpu,
        threads: Some(2),
        context: Some(1024),
        drafter,
        draft_depth,
        ..Options::default()
    };
    Session::open(&ModelSource::Path(fixtures::fledgling()), &options, &mut |_, _| {}).unwrap()
}

/// Without drafts, and with those of the head and of look-ups.
fn sessions() -> &'static [Session; 3] {
    static SESSIONS: OnceLock<[Session; 3]> = OnceLock::new();
    SESSIONS.get_or_init(|| {
        [open(DrafterChoice::None, None), open(DrafterChoice::Mtp, Some(3)), open(DrafterChoice::Suffix, Some(4))]
    })
}

fn ask(text: &str, thinking: bool, tools: Vec<Value>) -> Prompt {
    let chat = Conversation::new(vec![Message::text(Role::User, text)]);
    Prompt::Chat(Conversation { enable_thinking: Some(thinking), tools, ..chat })
}

/// Greedy, freely sampled, and as the family is.
fn samplings() -> [Sampling; 3] {
    let seed = Some(11);
    [
        Sampling { temperature: Some(0.0), ..Sampling::default() },
        Sampling { temperature: Some(1.0), top_k: Some(0), top_p: Some(1.0), seed, ..Sampling::default() },
        Sampling { temperature: Some(0.8), top_k: Some(20), top_p: Some(0.95), seed, ..Sampling::default() },
    ]
}

fn options(sampling: Sampling, tokens: usize) -> TurnOptions {
    TurnOptions { sampling, max_tokens: Some(tokens), tokens: true, ..TurnOptions::default() }
}

/// A call as the model writes it.
fn written(call: &AnswerCall) -> String {
    let arguments: serde_json::Map<String, Value> = serde_json::from_str(&call.arguments).unwrap();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let arguments: String =
        arguments.iter().map(|(k, v)| format!("<parameter={k}>\n{}\n</parameter>\n", text(v))).collect();
    format!("<tool_call>\n<function={}>\n{arguments}</function>\n</tool_call>", call.name)
}

/// The same answer from all sessions.
fn answer(prompt: &Prompt, options: &TurnOptions) -> Answer {
    let [plain, drafting @ ..] = sessions();
    let run = |session: &Session| session.start(prompt, options).unwrap().answer().unwrap();
    let expected = run(plain);
    for session in drafting {
        let found = run(session);
        assert_eq!(raw(&found), raw(&expected));
        assert_eq!((&found.text, &found.calls), (&expected.text, &expected.calls));
    }
    expected
}

/// Everything that was generated, markup included.
fn raw(answer: &Answer) -> String {
    let ids: Vec<u32> = answer.tokens.iter().map(|t| t.id).collect();
    sessions()[0].text().unwrap().tokenizer.decode(&ids, SpecialTokens::Show)
}

/// What comes behind the thinking, without the end token.
fn said(answer: &Answer) -> String {
    let raw = raw(answer);
    let body = raw.split_once("</think>").map_or(raw.as_str(), |(_, body)| body);
    let body = body.trim_start_matches('\n');
    // A turn of one call ends with it, before the tag around it.
    let called = answer.outcome.as_ref().is_some_and(|o| o.reason == FinishReason::ToolCalls);
    match body.strip_suffix("<|im_end|>") {
        Some(whole) => whole.to_string(),
        None if called => format!("{}\n</tool_call>", body.trim_end_matches("</tool_call>").trim_end()),
        None => "(not ended)".to_string(),
    }
}

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
        "type": "object", "required": ["city", "unit"], "properties": {
            "city": {"enum": ["New York", "Paris", "Rome"]}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "array", "maxItems": 3, "items": {"type": "integer", "minimum": 0, "maximum": 6}}}}}})
}

fn remind() -> Value {
    json!({"type": "function", "function": {"name": "remind", "parameters": {
        "type": "object", "required": ["at"], "properties": {"at": {"type": "integer", "minimum": 0, "maximum": 23}}}}})
}

#[test]
fn a_schema_is_followed() {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["name", "colour", "count"], "properties": {
        "name": {"type": "string", "maxLength": 12}, "colour": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9}, "more": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}});
    for thinking in [false, true] {
        for sampling in samplings() {
            let format = Some(Format::JsonSchema(schema.clone()));
            let budget = Some(40);
            let options = TurnOptions { format, thinking_budget: budget, ..options(sampling, 240) };
            let found = answer(&ask("Describe a ball.", thinking, vec![]), &options);
            let value: Value = serde_json::from_str(&found.text).unwrap_or_else(|e| panic!("{e}: {}", raw(&found)));
            assert!(value["name"].as_str().unwrap().chars().count() <= 12, "{value}");
            assert!(["red", "green", "blue"].contains(&value["colour"].as_str().unwrap()), "{value}");
            assert!(value["count"].as_u64().unwrap() <= 9, "{value}");
            let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
            keys.retain(|k| *k != "more");
            assert_eq!(keys, ["name", "colour", "count"]);
            assert_eq!(found.reasoning.is_empty(), !thinking, "{}", raw(&found));
            assert_eq!(found.outcome.unwrap().reason, FinishReason::EndToken(END));
        }
    }
}

/// Too much white space in JSON whose strings have none: more than a blank behind a colon or comma, any before a colon, and
/// elsewhere more than a newline with an indent.
fn odd_white_space(json: &str) -> Option<&str> {
    let odd_line = |line: &&str| {
        let text = line.trim_start();
        text.is_empty() || text.contains("  ") || line.len() - text.len() > 16
    };
    [" :", "\n:", ":\n"].into_iter().find(|odd| json.contains(odd)).or(json.lines().find(odd_line))
}

#[test]
fn white_space_is_bounded() {
    let word = json!({"enum": ["red", "green", "blue"]});
    let bird = json!({"type": "object", "additionalProperties": false, "required": ["name", "colours", "size"], "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,12}$"}, "colours": {"type": "array", "items": word, "minItems": 1, "maxItems": 3},
        "size": {"type": "object", "additionalProperties": false, "required": ["cm"], "properties": {"cm": {"enum": [5, 9, 12]}}}}});
    for sampling in samplings() {
        let options = TurnOptions { format: Some(Format::JsonSchema(bird.clone())), ..options(sampling, 120) };
        let found = answer(&ask("A bird, please.", false, vec![]), &options);
        assert_eq!(odd_white_space(&found.text), None, "{:?}", found.text);
        assert_eq!(found.outcome.unwrap().reason, FinishReason::EndToken(END));
    }
}

#[test]
fn other_forms_are_followed() {
    for sampling in samplings() {
        let ask_for = |format, prompt: &Prompt| {
            answer(prompt, &TurnOptions { format: Some(format), ..options(sampling.clone(), 60) }).text
        };
        let chat = ask("Yes or no?", false, vec![]);
        let choices = ["certainly".to_string(), "certainly not".to_string()];
        assert!(choices.contains(&ask_for(Format::Choice(choices.to_vec()), &chat)));
        let date = ask_for(Format::Regex(r"20\d\d-[01]\d".into()), &Prompt::Text("Today is ".into()));
        let form: String = date.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!((form.as_str(), &date[..2]), ("0000-00", "20"), "{date}");
        let ids = sessions()[0].prompt_ids(&Prompt::Text("One, two, ".into())).unwrap();
        let list = ask_for(Format::Lark("start: \"<\" /[a-z]{3,5}/ \">\"".into()), &Prompt::Ids(ids));
        let word = list.strip_prefix('<').and_then(|l| l.strip_suffix('>')).unwrap_or_else(|| panic!("{list}"));
        assert!((3..=5).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase()), "{list}");
    }
}

#[test]
fn a_call_that_must_come_comes() {
    let tools = || vec![weather(), remind()];
    for thinking in [false, true] {
        for sampling in samplings() {
            let prompt = ask("What is the weather in Paris?", thinking, tools());
            let must = |tool_choice| TurnOptions {
                tool_choice,
                single_tool_call: true,
                thinking_budget: Some(40),
                ..options(sampling.clone(), 400)
            };
            let found = answer(&prompt, &must(ToolChoice::Required));
            let any = said(&found);
            assert_eq!(found.outcome.as_ref().unwrap().reason, FinishReason::ToolCalls);
            let [call] = &found.calls[..] else { panic!("{any}") };
            assert_eq!(any, written(call));
            let named = said(&answer(&prompt, &must(ToolChoice::RequiredOf(vec!["remind".into()]))));
            let hour = named
                .strip_prefix("<tool_call>\n<function=remind>\n<parameter=at>\n")
                .unwrap_or_else(|| panic!("{named}"));
            let hour =
                hour.strip_suffix("\n</parameter>\n</function>\n</tool_call>").unwrap_or_else(|| panic!("{named}"));
            assert!(hour.parse::<u32>().is_ok_and(|h| h < 24), "{named}");
        }
    }
}

#[test]
fn a_call_that_may_come_is_well_formed() {
    // By itself fledgling leaves out what is required.
    let prompt = ask("What is the weather in Paris?", false, vec![weather()]);
    let [greedy, ..] = samplings();
    let with = answer(&prompt, &options(greedy.clone(), 200));
    let city = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n";
    let unit = "<parameter=unit>\ncelsius\n</parameter>\n";
    let end = "</function>\n</tool_call>";
    assert_eq!(raw(&with), format!("{city}{unit}{end}<|im_end|>"));
    assert_eq!(with.outcome.as_ref().unwrap().reason, FinishReason::ToolCalls);
    let without = answer(&prompt, &TurnOptions { tool_choice: ToolChoice::None, ..options(greedy.clone(), 200) });
    assert_eq!((without.text, without.calls), (format!("{city}{end}"), vec![]));
    assert_eq!(without.outcome.unwrap().reason, FinishReason::EndToken(END));
    // A tool that is not declared is not called.
    let script = "<tool_call>\n<function=get_time>\n</function>\n</tool_call>";
    let scripted = TurnOptions { script: Some(script.into()), ..options(greedy, 200) };
    let called = raw(&answer(&prompt, &scripted));
    assert_eq!(called, raw(&with));
}

#[test]
fn a_budget_ends_thinking() {
    let [greedy, ..] = samplings();
    for budget in [0, 1, 5] {
        let options = TurnOptions { thinking_budget: Some(budget), ..options(greedy.clone(), 60) };
        let found = answer(&ask("Write in upper case: tamilo", true, vec![]), &options);
        let close = found.tokens.iter().position(|t| t.id == 4121).expect("thinking is closed");
        assert_eq!((close, found.outcome.unwrap().usage.reasoning_tokens), (budget, budget));
    }
}

#[test]
fn a_script_is_said() {
    let [greedy, hot, _] = samplings();
    let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew York\n</parameter>\n<parameter=unit>\ncelsius\n\
                </parameter>\n</function>\n</tool_call>";
    let prompt = ask("What is the weather?", true, vec![weather(), remind()]);
    let script = format!("I should look.\n</think>\n\nI will look.\n\n{call}");
    let run = |options: TurnOptions| raw(&answer(&prompt, &options));
    let scripted = |sampling: &Sampling| TurnOptions { script: Some(script.clone()), ..options(sampling.clone(), 200) };
    for sampling in [&greedy, &hot] {
        assert_eq!(run(scripted(sampling)), format!("{script}<|im_end|>"));
        // Where a call must come, the text before it may not.
        let required = TurnOptions { tool_choice: ToolChoice::Required, ..scripted(sampling) };
        assert_eq!(run(required), format!("I should look.\n</think>\n\n{call}<|im_end|>"));
        // What a budget closes goes on behind the script's own tag.
        let short = TurnOptions { thinking_budget: Some(2), ..scripted(sampling) };
        assert_eq!(run(short), format!("I sh</think>\n\nI will look.\n\n{call}<|im_end|>"));
    }
    // A format takes of the script what fits.
    let format = Some(Format::JsonSchema(
        json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}),
    ));
    let framed = "Here it is: {\"a\": 12} Good?".to_string();
    let options = TurnOptions { format, script: Some(framed), ..options(greedy, 60) };
    let found = answer(&ask("Give me a.", false, vec![]), &options);
    let value: Value = serde_json::from_str(&found.text).unwrap_or_else(|e| panic!("{e}: {}", raw(&found)));
    assert_eq!(value["a"], 12);
}

#[test]
fn what_can_not_be_followed_is_refused_with_its_path() {
    let prompt = ask("Hello", false, vec![]);
    let refused = |options: TurnOptions| match sessions()[0].start(&prompt, &options) {
        Err(SessionError::Grammar(e)) => e,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused"),
    };
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=x)y"}}});
    let error = refused(TurnOptions { format: Some(Format::JsonSchema(schema)), ..Default::default() });
    assert_eq!(error.path(), Some("properties.a"), "{error}");
    let error = refused(TurnOptions { tool_choice: ToolChoice::Required, ..Default::default() });
    assert_eq!(error, GrammarError::NoTools);
    let error = refused(TurnOptions { tool_choice: ToolChoice::AutoOf(vec!["f".into()]), ..Default::default() });
    assert_eq!(error, GrammarError::UnknownTool { name: "f".into(), known: String::new() });
}

#[test]
fn choices_differ_and_come_again() {
    let prompt = ask("Tell me something.", false, vec![]);
    let run = |choice| raw(&answer(&prompt, &TurnOptions { choice, ..options(samplings()[1].clone(), 30) }));
    assert_eq!(run(2), run(2));
    assert_ne!(run(0), run(1));
}
