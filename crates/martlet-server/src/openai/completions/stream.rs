//! From events of turns to chunks of completions, and to the one response.

use super::types::{Completion, CompletionChoice, TextLogprobs};
use crate::error::{ApiError, Style};
use crate::generate::Adapter;
use crate::openai::chat::finish_of;
use crate::sse::Frame;
use crate::tokens::{Pending, TokenBytes};
use crate::usage::{SoFar, Sum, Usage, UsageIn};
use martlet_session::Event;
use serde_json::{Map, Value};

/// What is known from the beginning.
pub struct About {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub logprobs: bool,
    pub usage: UsageIn,
    pub bytes_of: TokenBytes,
}

/// The state of a response.
pub struct Completions {
    about: About,
    choices: Vec<CompletionChoice>,
    /// Of each choice, tokens whose text has not come yet, and the characters before them.
    pending: Vec<(Pending, usize)>,
    /// Of each prompt.
    usage: Vec<Sum>,
    /// Answers to each prompt.
    n: usize,
    so_far: SoFar,
}

impl Completions {
    /// `echoes`: what stands before the answer, for each choice. `n`: answers to each prompt.
    pub fn new(about: About, echoes: Vec<String>, n: usize) -> Completions {
        let usage = vec![Sum::default(); echoes.len().div_ceil(n)];
        let pending = echoes.iter().map(|echo| (Pending::default(), echo.chars().count())).collect();
        let choice = |(index, text)| CompletionChoice {
            index,
            text,
            logprobs: about.logprobs.then(TextLogprobs::default),
            finish_reason: None,
            stop_reason: None,
        };
        let choices = echoes.into_iter().enumerate().map(choice).collect();
        Completions { about, choices, pending, usage, n, so_far: SoFar::default() }
    }

    fn usage(&self) -> Sum {
        self.usage.iter().copied().sum()
    }

    fn frame(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> Frame {
        let About { id, created, model, usage: told, .. } = &self.about;
        Frame::data(&Completion {
            id: id.clone(),
            object: "text_completion",
            created: *created,
            model: model.clone(),
            choices,
            usage: told.of_chunk(usage, self.so_far),
        })
    }

    /// The tokens of the text that comes now.
    fn logprobs(&mut self, index: usize, text: &str) -> Option<TextLogprobs> {
        let all = self.choices[index].logprobs.as_mut()?;
        let (pending, at) = &mut self.pending[index];
        let mut new = TextLogprobs::default();
        for token in pending.take(text, &self.about.bytes_of) {
            new.text_offset.push(*at);
            *at += token.token.chars().count();
            new.token_logprobs.push(token.logprob);
            let top = token.top_logprobs.into_iter().map(|t| (t.token, Value::from(t.logprob)));
            new.top_logprobs.push(Map::from_iter(top));
            new.tokens.push(token.token);
        }
        all.tokens.extend(new.tokens.iter().cloned());
        all.token_logprobs.extend(&new.token_logprobs);
        all.top_logprobs.extend(new.top_logprobs.iter().cloned());
        all.text_offset.extend(&new.text_offset);
        Some(new)
    }
}

impl Adapter for Completions {
    fn begin(&mut self, prompt_tokens: usize, out: &mut Vec<Frame>) {
        self.so_far.prompt = prompt_tokens;
        for choice in self.choices.iter().filter(|c| !c.text.is_empty()) {
            out.push(self.frame(vec![choice.clone()], None));
        }
    }

    fn event(&mut self, index: usize, event: &Event, out: &mut Vec<Frame>) {
        self.so_far.generated += usize::from(matches!(event, Event::Token(_)));
        match event {
            Event::Token(token) if self.about.logprobs => self.pending[index].0.push(token.clone()),
            Event::Text(text) => {
                let logprobs = self.logprobs(index, text);
                self.choices[index].text += text;
                let text = text.clone();
                let piece = CompletionChoice { index, text, logprobs, finish_reason: None, stop_reason: None };
                out.push(self.frame(vec![piece], None));
            }
            Event::Finished(outcome) => {
                self.usage[index / self.n].add(outcome);
                let (finish, stop_reason) = finish_of(&outcome.reason);
                let choice = &mut self.choices[index];
                (choice.finish_reason, choice.stop_reason) = (Some(finish), stop_reason.clone());
                let last = CompletionChoice {
                    index,
                    text: String::new(),
                    logprobs: None,
                    finish_reason: Some(finish),
                    stop_reason,
                };
                out.push(self.frame(vec![last], None));
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<Frame>) {
        if self.about.usage != UsageIn::None {
            out.push(self.frame(Vec::new(), Some(self.usage().into())));
        }
        out.push(Frame::word("[DONE]"));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<Frame>) {
        out.push(Frame::data(&error.body(Style::OpenAi)));
        out.push(Frame::word("[DONE]"));
    }

    fn response(&self) -> Value {
        let response = Completion {
            id: self.about.id.clone(),
            object: "text_completion",
            created: self.about.created,
            model: self.about.model.clone(),
            choices: self.choices.clone(),
            usage: Some(Some(self.usage().into())),
        };
        serde_json::to_value(response).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use martlet_session::{FinishReason, TokenInfo};
    use std::sync::Arc;

    fn completions(logprobs: bool, echo: &str) -> Completions {
        let about = About {
            id: "cmpl-1".into(),
            created: 1,
            model: "m".into(),
            logprobs,
            usage: UsageIn::LastChunk,
            bytes_of: Arc::new(|id| vec![id as u8]),
        };
        Completions::new(about, vec![echo.into()], 1)
    }

    #[test]
    fn a_text_goes_on() {
        let events = [Event::Text("b".into()), Event::Text("c".into()), golden::finished(FinishReason::Length)];
        golden::check("openai/completions/echo", &mut completions(false, "a"), &events);
    }

    #[test]
    fn each_prompt_counts_once() {
        let Completions { about, .. } = completions(false, "");
        let mut four = Completions::new(about, vec![String::new(); 4], 2);
        (0..4).for_each(|choice| four.event(choice, &golden::finished(FinishReason::Length), &mut Vec::new()));
        let usage = &four.response()["usage"];
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&Value::from(14), &Value::from(20)));
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 6);
    }

    #[test]
    fn probabilities() {
        let token = |id: u8, top: &[(u32, f32)]| {
            Event::Token(TokenInfo { id: id.into(), logprob: Some(-0.5), top: top.to_vec() })
        };
        let events = [
            token(b'a', &[(97, -0.5), (98, -1.0)]),
            Event::Text("a".into()),
            token(b'b', &[]),
            token(b'c', &[]),
            Event::Text("bc".into()),
            golden::finished(FinishReason::EndToken(1)),
        ];
        golden::check("openai/completions/logprobs", &mut completions(true, ""), &events);
    }
}
