//! What formats and tools cost with a real vocabulary:
//!
//! ```text
//! tools/prepare-test-data.sh
//! cargo run --release -p martlet-chat --example grammar_cost -- target/test-data/qwen/tokenizer.json
//! ```
//!
//! Times are of one thread. "check" is what an obedient model pays for a token, "mask" what is paid where the sampler
//! filters (top-k, top-p, min-p) or the model does not obey.

use martlet_chat::grammar::{AnswerRule, Body, CallForm, CallGrammar, CompiledFormat, Thinking};
use martlet_chat::{Format, Tokenizer, Vocabulary};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("the path of a tokenizer.json is needed")?;
    let tokenizer = Tokenizer::from_bytes(&std::fs::read(path)?)?;
    let end = tokenizer.token_to_id("<|im_end|>").ok_or("the vocabulary has no <|im_end|>")?;
    let started = Instant::now();
    let vocabulary = Arc::new(Vocabulary::new(&tokenizer, &[end])?);
    let tools_ready = started.elapsed();
    vocabulary.warm_up()?;
    println!(
        "{} tokens; once for a model: {:.0} ms for tools, {:.0} ms more for JSON and other grammars",
        vocabulary.size(),
        ms(tools_ready),
        ms(started.elapsed() - tools_ready)
    );

    for (name, schema, text) in schemas() {
        let started = Instant::now();
        let format = Arc::new(CompiledFormat::new(&Format::JsonSchema(schema), &vocabulary)?);
        let rule = rule(&vocabulary, Body { format: Some(format), ..Body::default() });
        report(name, &tokenizer, &rule, started, &text);
    }
    for count in [60, 300] {
        for required in [false, true] {
            let tools = tools(count);
            let bytes = Value::from(tools.clone()).to_string().len();
            let started = Instant::now();
            let calls = Some(Arc::new(CallGrammar::new(&tools, None, CallForm::Xml, &vocabulary)?));
            let rule = rule(&vocabulary, Body { calls, required, ..Body::default() });
            let name = format!("{count} tools, {} kB, {}", bytes / 1000, if required { "required" } else { "auto" });
            let before =
                if required { "" } else { "I will look at the file first, then change what is wrong with it.\n\n" };
            report(&name, &tokenizer, &rule, started, &format!("{before}{}", call(count / 2)));
        }
    }
    Ok(())
}

fn rule(vocabulary: &Arc<Vocabulary>, body: Body) -> AnswerRule {
    AnswerRule::new(vocabulary.clone(), Thinking::default(), body)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Follows `text` three times: with a mask and a check for each token, with checks alone, and from the start again.
fn report(name: &str, tokenizer: &Tokenizer, rule: &AnswerRule, started: Instant, text: &str) {
    let mut matcher = rule.start();
    let first = {
        matcher.mask();
        started.elapsed()
    };
    let ids = tokenizer.encode(text).expect("the text is tokenized");
    let (mut masks, mut checks, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    let timed = |list: &mut Vec<Duration>, work: &mut dyn FnMut()| {
        let started = Instant::now();
        work();
        list.push(started.elapsed());
    };
    for &id in &ids {
        timed(&mut masks, &mut || drop(matcher.mask()));
        let mut allowed = false;
        timed(&mut checks, &mut || allowed = matcher.allows(id));
        assert!(allowed, "{name}: {:?} is refused", tokenizer.id_to_token(id));
        timed(&mut steps, &mut || matcher.advance(id));
    }
    assert!(matcher.may_end(), "{name}: the text is not complete");
    println!(
        "{name}: ready in {:.1} ms; {} tokens: mask {}, check {}, step {}",
        ms(first),
        ids.len(),
        spread(masks),
        spread(checks),
        spread(steps)
    );
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize].as_secs_f64() * 1e6;
    format!("{:.0} us (99 %: {:.0}, most {:.0})", at(0.5), at(0.99), at(1.0))
}

fn schemas() -> Vec<(&'static str, Value, String)> {
    let person = json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "tags", "address"],
        "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["friend", "colleague", "family"]}},
            "address": {"type": "object", "required": ["city"], "properties": {"city": {"type": "string", "maxLength": 80}}}}});
    let people = json!({"type": "array", "items": person});
    let one = r#"{"name": "Grace Brewster Hopper", "age": 85, "tags": ["colleague", "friend"], "address": {"city": "New York City, in the state of New York"}}"#;
    let list = format!("[{}]", [one; 8].join(", "));
    vec![
        ("json_object", json!({"type": "object"}), one.to_string()),
        ("json_schema", person, one.to_string()),
        ("json_schema, array of 8", people, list),
    ]
}

/// Declarations as coding agents send them, about 1.7 kB each.
fn tools(count: usize) -> Vec<Value> {
    let words = "Reads the file at the given path and gives its lines with their numbers; binary files are refused. ";
    let tool = |i: usize| {
        json!({"type": "function", "function": {
            "name": format!("tool_{i}_{}", ["read", "write", "search", "run"][i % 4]),
            "description": words.repeat(8),
            "parameters": {"type": "object", "required": ["path", "edits"], "additionalProperties": false, "properties": {
                "path": {"type": "string", "description": words},
                "content": {"type": "string", "description": words},
                "mode": {"type": "string", "enum": ["create", "replace", "append"]},
                "limit": {"type": "integer", "minimum": 1},
                "recursive": {"type": "boolean"},
                "edits": {"type": "array", "items": {"type": "object", "required": ["old", "new"], "properties": {
                    "old": {"type": "string"}, "new": {"type": "string"}, "all": {"type": "boolean"}}}}}}}})
    };
    (0..count).map(tool).collect()
}

fn call(i: usize) -> String {
    let name = format!("tool_{i}_{}", ["read", "write", "search", "run"][i % 4]);
    let code = "fn main() {\n    let x: Vec<u8> = vec![];\n    if x.len() < 3 && !x.is_empty() {\n        println!(\"{}\", x[0]);\n    }\n}\n";
    format!(
        "<tool_call>\n<function={name}>\n<parameter=content>\n{}\n</parameter>\n<parameter=path>\nsrc/main.rs\n</parameter>\n\
         <parameter=edits>\n[{{\"old\": \"let x = 1;\", \"new\": \"let x = 2;\"}}, {{\"old\": \"a\", \"new\": \"b\", \"all\": true}}]\n\
         </parameter>\n<parameter=limit>\n120\n</parameter>\n<parameter=mode>\nreplace\n</parameter>\n</function>\n</tool_call>",
        code.repeat(4)
    )
}
