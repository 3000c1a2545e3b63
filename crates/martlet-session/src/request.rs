//! What a caller asks for, and the defaults where it asks for nothing.

use crate::SessionError;
use martlet_chat::{Conversation, Format, GenerationDefaults, ToolChoice};
use martlet_engine::{Priority, Sampling};
use martlet_model::ModelSpec;
use std::time::Instant;

/// Most stop strings of one request.
pub const MAX_STOPS: usize = 16;

/// What a turn goes on from.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Prompt {
    /// Rendered by the checkpoint's template; reasoning is told apart from the answer.
    Chat(Conversation),
    /// Tokenized as it is.
    Text(String),
    /// Works without a tokenizer.
    Ids(Vec<u32>),
}

/// How a turn is generated. Fields will be added: begin with `..TurnOptions::default()`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnOptions {
    /// What is not said comes from the checkpoint, see [`default_sampling`].
    pub sampling: Sampling,
    /// At most so many tokens; `None`: until the model ends its answer, or the context is full.
    pub max_tokens: Option<usize>,
    /// Go on when the model ends its answer.
    pub ignore_eos: bool,
    /// Strings that end the answer, at most [`MAX_STOPS`].
    pub stop: Vec<String>,
    /// (token, addend to its logit)
    pub logit_bias: Vec<(u32, f32)>,
    /// Most probable tokens to report with each token; `None`: no log-probabilities.
    pub logprobs: Option<usize>,
    /// Report each token.
    pub tokens: bool,
    /// Who goes first when there is more to do than the device can.
    pub priority: Priority,
    /// When the answer is of no use any more: the turn ends there as it stands, with [`crate::FinishReason::Deadline`].
    pub deadline: Option<Instant>,
    /// Which tools of the conversation the answer may or must call.
    pub tool_choice: ToolChoice,
    /// At most one call in the answer.
    pub single_tool_call: bool,
    /// What the answer must look like.
    pub format: Option<Format>,
    /// Most tokens of thinking: then it is closed with the model's own closing token.
    pub thinking_budget: Option<usize>,
    /// Where an answer that repeats itself is ended, with [`crate::FinishReason::Repetition`].
    pub loop_guard: LoopGuard,
    /// Which of several answers to one prompt this is: each draws its own noise from the same seed.
    pub choice: u32,
    /// For tests of clients: the model "says" this text, token by token, wherever the format allows it, then ends.
    pub script: Option<String>,
}

/// Where an answer that repeats itself is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopGuard {
    /// In thinking.
    pub thinking: bool,
    /// In the answer.
    pub answer: bool,
}

impl Default for LoopGuard {
    fn default() -> LoopGuard {
        LoopGuard { thinking: true, answer: false }
    }
}

impl TurnOptions {
    pub(crate) fn check(&self) -> Result<(), SessionError> {
        if self.stop.len() > MAX_STOPS {
            return Err(SessionError::TooManyStops { found: self.stop.len(), limit: MAX_STOPS });
        }
        match self.stop.iter().position(String::is_empty) {
            Some(i) => Err(SessionError::EmptyStop { index: i + 1 }),
            None => Ok(()),
        }
    }
}

/// Sampling where the caller says nothing: what the checkpoint's generation_config.json says (a value that it leaves
/// out is neutral); when it says nothing of sampling, the family's recommendation for thinking or not.
pub fn default_sampling(spec: &ModelSpec, generation: &GenerationDefaults, thinking: bool) -> Sampling {
    let number = |x: Option<f64>| x.map(|x| x as f32);
    let greedy = generation.do_sample == Some(false);
    let said = Sampling {
        temperature: if greedy { Some(0.0) } else { number(generation.temperature) },
        top_k: generation.top_k,
        top_p: number(generation.top_p),
        min_p: number(generation.min_p),
        repetition_penalty: number(generation.repetition_penalty),
        presence_penalty: number(generation.presence_penalty),
        frequency_penalty: number(generation.frequency_penalty),
        seed: None,
    };
    if said != Sampling::default() {
        return said;
    }
    let family = spec.sampling(thinking);
    Sampling {
        temperature: Some(family.temperature),
        top_k: Some(family.top_k),
        top_p: Some(family.top_p),
        presence_penalty: Some(family.presence_penalty),
        ..Sampling::default()
    }
}

/// `asked` over `defaults`. Who asks for temperature 0 wants the model's own most probable token: penalties then count
/// only if they were asked for too.
pub(crate) fn with_defaults(asked: &Sampling, defaults: &Sampling) -> Sampling {
    let mut defaults = defaults.clone();
    if asked.temperature == Some(0.0) {
        defaults.repetition_penalty = None;
        defaults.presence_penalty = None;
        defaults.frequency_penalty = None;
    }
    asked.or(&defaults)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec() -> ModelSpec {
        let config = json!({
            "model_type": "qwen3_5", "vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 64
        });
        martlet_model::read_config(&config).unwrap()
    }

    #[test]
    fn the_checkpoint_goes_before_the_family_as_a_whole() {
        let said = GenerationDefaults { temperature: Some(0.6), ..Default::default() };
        let sampling = default_sampling(&spec(), &said, true);
        assert_eq!(sampling, Sampling { temperature: Some(0.6), ..Default::default() });

        let silent = GenerationDefaults { do_sample: Some(true), ..Default::default() };
        let (thinking, not) = (default_sampling(&spec(), &silent, true), default_sampling(&spec(), &silent, false));
        assert_eq!((thinking.temperature, not.temperature), (Some(1.0), Some(0.7)));
        assert_eq!(thinking.presence_penalty, Some(1.5));

        let greedy = GenerationDefaults { do_sample: Some(false), ..Default::default() };
        assert_eq!(default_sampling(&spec(), &greedy, true).temperature, Some(0.0));
    }

    #[test]
    fn greedy_means_no_penalty_that_nobody_asked_for() {
        let defaults = default_sampling(&spec(), &GenerationDefaults::default(), true);
        let greedy = Sampling { temperature: Some(0.0), ..Default::default() };
        assert_eq!(with_defaults(&greedy, &defaults).presence_penalty, None);
        let asked = Sampling { presence_penalty: Some(0.5), ..greedy };
        assert_eq!(with_defaults(&asked, &defaults).presence_penalty, Some(0.5));
        assert_eq!(with_defaults(&Sampling::default(), &defaults).presence_penalty, Some(1.5));
    }

    #[test]
    fn stop_strings_are_checked() {
        let check = |stop: Vec<&str>| {
            let stop = stop.into_iter().map(String::from).collect();
            TurnOptions { stop, ..Default::default() }.check().map_err(|e| e.to_string())
        };
        assert!(check(vec!["a"; 16]).is_ok());
        assert!(check(vec!["a"; 17]).unwrap_err().contains("17"));
        assert!(check(vec!["a", ""]).unwrap_err().contains("number 2"));
    }
}
