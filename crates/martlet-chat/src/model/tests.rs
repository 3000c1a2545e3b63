use super::*;
use crate::conversation::{Message, Role};
use crate::detokenize::SpecialTokens;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/fledgling");
const TOKENIZER: &[u8] = include_bytes!("../../../../models/fledgling/tokenizer.json");

fn load(files: &[(&'static str, &'static str)]) -> Result<ChatModel, ChatModelError> {
    let files = files.iter().map(|&(name, text)| (name, text.as_bytes()));
    ChatModel::load(&TextFiles::from_embedded("test", files.chain([("tokenizer.json", TOKENIZER)])))
}

fn hello() -> Conversation {
    Conversation::new(vec![Message::text(Role::User, "Hello")])
}

#[test]
fn a_folder_gives_all() {
    let model = ChatModel::load(&TextFiles::from_folder(Path::new(FOLDER)).unwrap()).unwrap();
    assert_eq!(model.generation.stop_ids, [4096, 4098]);
    assert_eq!(model.generation.defaults.temperature, Some(0.6));
    let prompt = model.render(&hello(), true).unwrap();
    assert_eq!(prompt, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n");
    let ids = model.tokenizer.encode(&prompt).unwrap();
    assert_eq!(model.tokenizer.decode(&ids, SpecialTokens::Show), prompt);
}

#[test]
fn without_a_tokenizer_the_error_says_what_to_do() {
    let files = TextFiles::from_embedded("here", []);
    let error = ChatModel::load(&files).err().unwrap().to_string();
    assert!(error.starts_with("here has no tokenizer.json"), "{error}");
    assert_eq!(GenerationConfig::load(&files).unwrap(), GenerationConfig::default(), "needs no tokenizer");
    let nowhere = TextFiles::from_folder(Path::new("/nonexistent/folder")).unwrap();
    assert!(nowhere.get("config.json").is_none());
}

#[test]
fn without_a_template_only_rendering_fails() {
    let model = load(&[]).unwrap();
    assert!(!model.has_template());
    assert!(model.render(&hello(), true).unwrap_err().to_string().starts_with("test has no chat template"));
}

#[test]
fn a_template_may_stand_in_three_places() {
    let config =
        ("tokenizer_config.json", r#"{"chat_template": "config {{ eos_token }}", "eos_token": {"content": "E"}}"#);
    let file = ("chat_template.jinja", "file {{ eos_token }}");
    let processor = ("chat_template.json", r#"{"chat_template": "processor {{ eos_token }}"}"#);
    let text = |files: &[_]| load(files).unwrap().render(&hello(), true).unwrap();
    assert_eq!(text(&[config]), "config E");
    assert_eq!(text(&[config, processor]), "processor E");
    assert_eq!(text(&[config, processor, file]), "file E");
}

#[test]
fn named_templates_are_chosen_by_tools() {
    let config =
        r#"{"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]}"#;
    let model = load(&[("tokenizer_config.json", config)]).unwrap();
    let mut chat = hello();
    assert_eq!(model.render(&chat, true).unwrap(), "plain");
    chat.tools.push(serde_json::json!({}));
    assert_eq!(model.render(&chat, true).unwrap(), "tools");
}

#[test]
fn the_end_token_is_the_last_resort_for_stopping() {
    let config = ("tokenizer_config.json", r#"{"eos_token": "<|im_end|>"}"#);
    assert_eq!(load(&[config]).unwrap().generation.stop_ids, [4098]);
    let named = ("generation_config.json", r#"{"eos_token_id": 7}"#);
    assert_eq!(load(&[config, named]).unwrap().generation.stop_ids, [7]);
}

#[test]
fn faults_name_the_file() {
    let error = |files: &[_]| load(files).err().unwrap().to_string();
    assert!(error(&[("tokenizer_config.json", "{")]).starts_with("test: tokenizer_config.json: EOF"));
    assert!(error(&[("tokenizer_config.json", r#"{"chat_template": 3}"#)]).contains("must be a string, or a list"));
    assert!(error(&[("tokenizer_config.json", r#"{"chat_template": [{}]}"#)]).contains("\"name\" and \"template\""));
    assert!(
        error(&[("generation_config.json", r#"{"top_p": 2}"#)]).starts_with("test: generation_config.json: top_p is 2")
    );
    let syntax = error(&[("chat_template.jinja", "a\n{% if %}")]);
    assert!(syntax.starts_with("test: the chat template is not valid Jinja: line 2"), "{syntax}");
}
