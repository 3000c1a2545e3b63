//! Formats as llguidance follows them.

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, regex_to_lark};
use serde_json::{Value, json};

use super::json::Follower;
use super::schema::{self, Options};
use super::{Format, GrammarError, Vocabulary};

/// Bytes of a regular expression, of a grammar, and of all choices together.
const MAX_REGEX_BYTES: usize = 64 << 10;
const MAX_LARK_BYTES: usize = 256 << 10;
const MAX_CHOICE_BYTES: usize = 256 << 10;
/// Brackets inside brackets in a regular expression or grammar: both are read recursively.
const MAX_BRACKETS: usize = 200;

/// Bounds on the work for one grammar and one mask. Those on the first come with an ordinary error; those on masks are
/// far above what real schemas need (some 100 ms), and end the answer.
pub(super) fn parser_limits() -> ParserLimits {
    ParserLimits {
        step_lexer_fuel: 1_000_000,
        step_max_items: 500_000,
        max_items_in_row: 10_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// A format, ready to be followed by any number of answers.
pub struct CompiledFormat {
    start: Follower,
}

impl CompiledFormat {
    /// Bounded work: what is too large, too deep, impossible or not supported is an error that says where.
    pub fn new(format: &Format, vocabulary: &Vocabulary) -> Result<CompiledFormat, GrammarError> {
        let start = match format {
            Format::JsonObject => return json(vocabulary, &json!({"type": "object"})),
            Format::JsonSchema(schema) => return json(vocabulary, schema),
            Format::Regex(regex) => {
                check_text("the regular expression", regex, MAX_REGEX_BYTES)?;
                compile(vocabulary, lark(format!("start: /{}/", regex_to_lark(regex, ""))))
                    .map_err(GrammarError::Regex)?
            }
            Format::Lark(text) => {
                check_text("the grammar", text, MAX_LARK_BYTES)?;
                compile(vocabulary, lark(text.clone())).map_err(GrammarError::Lark)?
            }
            Format::Choice(texts) => choice(vocabulary, texts)?,
        };
        Ok(CompiledFormat { start: Follower::new(start) })
    }

    /// At the beginning of an answer.
    pub(super) fn follower(&self) -> Follower {
        self.start.fork()
    }
}

fn json(vocabulary: &Vocabulary, schema: &Value) -> Result<CompiledFormat, GrammarError> {
    schema::check(schema)?;
    let prepared = schema::prepare(schema, None, Options::Exact);
    compile(vocabulary, TopLevelGrammar::from_json_schema(prepared))
        .map(|matcher| CompiledFormat { start: Follower::of_json(matcher) })
        .map_err(|m| schema::blame(vocabulary, schema, m))
}

/// A JSON value by `schema` (as [`schema::prepare`] made it) between two texts; the first may be empty.
pub(super) fn json_between(vocabulary: &Vocabulary, schema: Value, texts: [&str; 2]) -> Result<Follower, String> {
    let [begin, end] = texts.map(|t| if t.is_empty() { String::new() } else { quoted(t) });
    let outer = format!("start: {begin} @value END\nEND: {end}\n");
    let mut grammar = lark(outer);
    grammar
        .grammars
        .push(GrammarWithLexer { name: Some("value".into()), ..GrammarWithLexer::from_json_schema(schema) });
    compile(vocabulary, grammar).map(Follower::of_json)
}

fn choice(vocabulary: &Vocabulary, texts: &[String]) -> Result<Matcher, GrammarError> {
    if texts.is_empty() {
        return Err(GrammarError::Choice("there is nothing to choose from".into()));
    }
    if let Some(i) = texts.iter().position(String::is_empty) {
        return Err(GrammarError::Choice(format!("number {} is empty", i + 1)));
    }
    let found = texts.iter().map(String::len).sum();
    if found > MAX_CHOICE_BYTES {
        return Err(GrammarError::TooLarge { what: "choice", found, limit: MAX_CHOICE_BYTES, unit: "bytes" });
    }
    let list: Vec<String> = texts.iter().map(|t| quoted(t)).collect();
    let text = format!("start: CHOICE\nCHOICE: {}\n", list.join(" | "));
    compile(vocabulary, lark(text)).map_err(GrammarError::Choice)
}

fn lark(text: String) -> TopLevelGrammar {
    TopLevelGrammar::from_lark(text)
}

/// A text as a literal of Lark, which reads strings like JSON.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Compiles, and finds the first mask: what nothing can follow is an error now, not in the midst of an answer.
pub(super) fn compile(vocabulary: &Vocabulary, grammar: TopLevelGrammar) -> Result<Matcher, String> {
    let factory = vocabulary.factory().map_err(|e| e.to_string())?;
    let parser = factory.create_parser(grammar).map_err(|e| tidy(&format!("{e:#}")))?;
    let start = Matcher::new(Ok(parser));
    start.clone().compute_mask_or_eos().map_err(|e| tidy(&e.to_string()))?;
    Ok(start)
}

/// The message alone, on one line.
fn tidy(message: &str) -> String {
    let message = message.split("\n<").next().unwrap_or(message).trim();
    let message = if message.is_empty() || message == "NoExtensionBias" { "nothing can match it" } else { message };
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn check_text(what: &'static str, text: &str, limit: usize) -> Result<(), GrammarError> {
    if text.len() > limit {
        return Err(GrammarError::TooLarge { what, found: text.len(), limit, unit: "bytes" });
    }
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > MAX_BRACKETS {
        return Err(GrammarError::TooLarge { what, found: deepest, limit: MAX_BRACKETS, unit: "levels of brackets" });
    }
    Ok(())
}
