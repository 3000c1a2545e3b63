//! Rendered prompts, equal to the letter to those of transformers (tools/make_template_goldens.py makes the goldens).

use martlet_chat::{ChatModel, ChatTemplate, Conversation, TemplateError, TextFiles};
use martlet_tests::fixtures;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

const FIXTURES: &str = "tests/fixtures/templates";
const OWN: [&str; 7] = ["generation", "macros", "namespaces", "simple", "strings", "tests", "values"];
const PUBLISHED: [&str; 7] =
    ["qwen3", "qwen3_instruct_2507", "qwen3_vl", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8"];

struct Case {
    name: String,
    chat: Conversation,
    add_generation_prompt: bool,
}

fn cases() -> Vec<Case> {
    let json = fixtures::json(&format!("{FIXTURES}/conversations.json"));
    let read = |(name, value): (&String, &Value)| {
        let mut fields = value.as_object().unwrap().clone();
        let add_generation_prompt = fields.remove("add_generation_prompt").is_none_or(|v| v == true);
        let chat = Conversation::from_json(&Value::Object(fields)).unwrap_or_else(|e| panic!("{name}: {e}"));
        Case { name: name.clone(), chat, add_generation_prompt }
    };
    let cases: Vec<Case> = json.as_object().unwrap().iter().map(read).collect();
    assert!(cases.len() >= 40, "{} conversations", cases.len());
    cases
}

/// The special tokens of fledgling's tokenizer_config.json, with which the goldens were made.
fn special_tokens() -> Map<String, Value> {
    let config = fixtures::json("models/fledgling/tokenizer_config.json");
    let names = ["bos_token", "eos_token", "unk_token", "pad_token"];
    names.iter().filter_map(|&name| Some((name.into(), config.get(name).filter(|v| v.is_string())?.clone()))).collect()
}

fn template(path: &str) -> ChatTemplate {
    let source = std::fs::read_to_string(fixtures::project(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    ChatTemplate::new(&source, special_tokens()).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// What differs from the golden, if anything does.
fn difference(rendered: Result<String, TemplateError>, golden: &Value) -> Option<String> {
    let (text, raises) = (golden["text"].as_str(), golden["raises"].as_str());
    match &rendered {
        Ok(found) if text == Some(found) => None,
        Err(TemplateError::Raised { message, .. }) if raises == Some(message) => None,
        Err(TemplateError::Failed { .. } | TemplateError::NoMessages) if golden["error"].is_string() => None,
        Ok(found) => {
            let text = text.unwrap_or_default();
            let same = found.chars().zip(text.chars()).take_while(|(a, b)| a == b).count();
            let around = |t: &str| t.chars().skip(same.saturating_sub(20)).take(60).collect::<String>();
            Some(format!("at character {same}: found {:?}, expected {:?}", around(found), around(text)))
        }
        Err(error) => Some(format!("found    {error}\nexpected {golden}")),
    }
}

fn check(template_name: &str, render: impl Fn(&Case) -> Result<String, TemplateError>) {
    let goldens = fixtures::json(&format!("{FIXTURES}/{template_name}.json"));
    let mut faults = Vec::new();
    let cases = cases();
    for case in &cases {
        let golden = goldens.get(&case.name).unwrap_or_else(|| panic!("{template_name}: no golden of {}", case.name));
        faults.extend(difference(render(case), golden).map(|d| format!("{template_name}, {}:\n{d}", case.name)));
    }
    let shown = faults.iter().take(3).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(faults.is_empty(), "{} of {} renderings differ\n{shown}", faults.len(), cases.len());
}

#[test]
fn our_templates_render_as_in_transformers() {
    for name in OWN {
        let template = template(&format!("{FIXTURES}/{name}.jinja"));
        check(name, |case| template.render(&case.chat, case.add_generation_prompt));
    }
}

#[test]
fn fledgling_s_template_renders_as_in_transformers() {
    let template = template("models/fledgling/chat_template.jinja");
    check("fledgling", |case| template.render(&case.chat, case.add_generation_prompt));
}

#[test]
fn published_templates_render_as_in_transformers() {
    let folder = fixtures::project("target/test-data/chat_templates");
    if fixtures::prepared("equality with the published templates of Qwen3 to 3.8", folder.clone()).is_none() {
        return;
    }
    let sums = fixtures::json(&format!("{FIXTURES}/published.json"));
    let cases = cases();
    let mut faults = Vec::new();
    for name in PUBLISHED {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let template = ChatTemplate::new(&source, special_tokens()).unwrap_or_else(|e| panic!("{name}: {e}"));
        for case in &cases {
            let rendered = template.render(&case.chat, case.add_generation_prompt);
            let sum = rendered.as_ref().map_or("error".into(), |text| hex(&Sha256::digest(text)));
            if sums[&case.name][name] != sum.as_str() {
                faults.push(format!("{name}, {}: {rendered:?}", case.name));
            }
        }
    }
    let shown = faults.iter().take(3).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(faults.is_empty(), "{} renderings differ; found\n{shown}", faults.len());
}

#[test]
fn published_templates_take_what_clients_send() {
    let folder = fixtures::project("target/test-data/chat_templates");
    if fixtures::prepared("late system messages under the published templates", folder.clone()).is_none() {
        return;
    }
    let tokenizer = std::fs::read(fixtures::project("models/fledgling/tokenizer.json")).unwrap();
    let chat = serde_json::json!([
        {"role": "developer", "content": "First."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n", "tool_calls": [
            {"function": {"name": "f", "arguments": "not JSON"}}]},
        {"role": "tool", "content": null},
        {"role": "system", "content": "Second."},
        {"role": "assistant", "content": "It is"},
    ]);
    for name in PUBLISHED.iter().filter(|name| name.starts_with("qwen3_5") || name.starts_with("qwen3_6")) {
        let template = std::fs::read(folder.join(format!("{name}.jinja"))).unwrap();
        let files = [("chat_template.jinja", template), ("tokenizer.json", tokenizer.clone())];
        let model = ChatModel::load(&TextFiles::from_owned(*name, files)).unwrap();
        let prompt = model.prompt(&Conversation::from_json(&chat).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(!prompt.opens_thinking, "{name}");
        let parts =
            ["<think>\nhm\n</think>", "not JSON", "<|im_start|>system\nSecond.<|im_end|>\n<|im_start|>assistant"];
        let mut rest = prompt.text.as_str();
        for part in parts {
            let at = rest.find(part).unwrap_or_else(|| panic!("{name}: no {part:?} in {}", prompt.text));
            rest = &rest[at..];
        }
        assert!(rest.ends_with("</think>\n\nIt is"), "{name}: {}", prompt.text);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn fledgling_s_golden_prompts_are_rendered_and_encoded() {
    let files = TextFiles::from_folder(&fixtures::project("models/fledgling")).unwrap();
    let model = ChatModel::load(&files).unwrap();
    let image = model.tokenizer.token_to_id("<|image_pad|>").unwrap();
    let mut checked = 0;
    for entry in std::fs::read_dir(fixtures::project("tests/fixtures/fledgling-golden")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.starts_with(|c: char| c.is_ascii_digit()) || !name.ends_with(".json") {
            continue;
        }
        let golden = fixtures::json(&format!("tests/fixtures/fledgling-golden/{name}"));
        let request = serde_json::json!({
            "messages": golden["messages"], "tools": golden["tools"], "enable_thinking": golden["enable_thinking"],
        });
        let prompt = model.render(&Conversation::from_json(&request).unwrap(), true).unwrap();
        assert_eq!(prompt, golden["prompt"].as_str().unwrap(), "{name}");
        // The golden ids repeat the token of a picture for each of its patches; the prompt has it once.
        let mut expected: Vec<u32> = serde_json::from_value(golden["prompt_ids"].clone()).unwrap();
        expected.dedup_by(|a, b| a == b && *a == image);
        assert_eq!(model.tokenizer.encode(&prompt).unwrap(), expected, "{name}");
        checked += 1;
    }
    assert!(checked >= 40, "{checked} cases");
}
