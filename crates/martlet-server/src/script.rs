//! A test mode: answers that come from a file instead of from the model, through the same sampler, grammar, parser and
//! streams.
//!
//! ```text
//! === answer when: weather
//! <think>
//! I should look.
//! </think>
//!
//! <tool_call> ... </tool_call>
//! === answer repeat when: title
//! A title
//! === answer
//! The last words.
//! ```
//!
//! A request takes the first answer that fits and was not taken: one without `when:` fits always, one with it where the
//! last user or tool message has the words. `repeat`: it may be taken again and again. The line breaks around an answer
//! are no part of it.

use crate::error::ApiError;
use axum::http::StatusCode;
use std::sync::{Mutex, PoisonError};

const MARK: &str = "=== answer";

/// Answers, and which of them were taken.
pub struct Script {
    answers: Mutex<Vec<Answer>>,
}

struct Answer {
    when: Option<String>,
    repeat: bool,
    taken: bool,
    text: String,
}

/// A script that can not be read.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ScriptError {
    /// The text does not begin as it should.
    #[error("line {line}: a script begins with a line \"=== answer\", and nothing stands before it")]
    Before {
        /// Counted from 1.
        line: usize,
    },
    /// A mark that is none.
    #[error("line {line}: \"{found}\" follows \"=== answer\"; repeat and when: WORDS may")]
    Mark {
        /// Counted from 1.
        line: usize,
        /// What follows.
        found: String,
    },
    /// No answer at all.
    #[error("there is no answer in it: each begins with a line \"=== answer\"")]
    Empty,
}

impl Script {
    /// Reads a script.
    pub fn parse(text: &str) -> Result<Script, ScriptError> {
        let mut answers: Vec<Answer> = Vec::new();
        for (i, line) in text.split_inclusive('\n').enumerate() {
            let number = i + 1;
            let bare = line.trim_end_matches(['\n', '\r']);
            match (bare.strip_prefix(MARK).filter(|rest| rest.is_empty() || rest.starts_with(' ')), answers.last_mut())
            {
                (Some(rest), _) => answers.push(Answer::marked(rest, number)?),
                (None, Some(answer)) => answer.text.push_str(line),
                (None, None) if bare.trim().is_empty() => {}
                (None, None) => return Err(ScriptError::Before { line: number }),
            }
        }
        if answers.is_empty() {
            return Err(ScriptError::Empty);
        }
        for answer in &mut answers {
            answer.text = answer.text.trim_matches(['\n', '\r']).to_string();
        }
        Ok(Script { answers: Mutex::new(answers) })
    }

    /// The next answer to a conversation that ends with `last`.
    pub(crate) fn next(&self, last: &str) -> Result<String, ApiError> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |a: &&mut Answer| !a.taken && a.when.as_deref().is_none_or(|words| last.contains(words));
        match answers.iter_mut().find(fits) {
            Some(answer) => {
                answer.taken = !answer.repeat;
                Ok(answer.text.clone())
            }
            None => {
                let end: String = last.chars().take(80).collect();
                let message = format!("the script has no answer left that fits \"{end}\"");
                Err(ApiError { status: StatusCode::CONFLICT, ..ApiError::bad_request("script_ended", message) })
            }
        }
    }
}

impl Answer {
    fn marked(rest: &str, line: usize) -> Result<Answer, ScriptError> {
        let mut rest = rest.trim();
        let repeat = rest == "repeat" || rest.starts_with("repeat ");
        if repeat {
            rest = rest["repeat".len()..].trim();
        }
        let when = match rest.strip_prefix("when:") {
            Some(words) => Some(words.trim().to_string()),
            None if rest.is_empty() => None,
            None => return Err(ScriptError::Mark { line, found: rest.to_string() }),
        };
        Ok(Answer { when, repeat, taken: false, text: String::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_takes_the_next_answer_that_fits() {
        let text =
            "\n=== answer repeat when: title\nT\n=== answer when: two words\n\n  a\n\nb\n\n=== answer\r\nlast\r\n";
        let script = Script::parse(text).unwrap();
        let next = |last: &str| script.next(last).map_err(|e| e.code);
        assert_eq!(next("a title please").as_deref(), Ok("T"));
        assert_eq!(next("these two words").as_deref(), Ok("  a\n\nb"));
        assert_eq!(next("these two words").as_deref(), Ok("last"));
        assert_eq!(next("these two words"), Err("script_ended"));
        assert_eq!(next("a title please").as_deref(), Ok("T"));
    }

    #[test]
    fn mistakes_are_named_by_line() {
        let error = |text: &str| Script::parse(text).err().unwrap();
        assert_eq!(error("\nhello\n=== answer\n"), ScriptError::Before { line: 2 });
        assert_eq!(error("=== answer\n=== answer if x\n"), ScriptError::Mark { line: 2, found: "if x".into() });
        assert_eq!(error("\n"), ScriptError::Empty);
        assert!(Script::parse("=== answer\n=== answers are fine\n").is_ok(), "that is text");
    }
}
