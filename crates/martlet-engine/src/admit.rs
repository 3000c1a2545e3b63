//! Admission: a request becomes a sequence, or is refused with numbers before any work.

use crate::constraint::Rule;
use crate::sampling::{ParamError, Sampling};
use martlet_device::sampling::SampleParams;
use std::sync::Arc;
use std::time::Instant;

/// One answer to one prompt.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    /// Which of several answers to one prompt this is: each draws its own noise from the same seed.
    pub choice: u32,
    /// Tokens that end the answer.
    pub stop: Vec<u32>,
    /// At most so many tokens; `None`: until a stop token or the end of the context.
    pub max_tokens: Option<usize>,
    /// (token, addend to its logit)
    pub logit_bias: Vec<(u32, f32)>,
    /// Most probable tokens to report with each token; `None`: no log-probabilities.
    pub logprobs: Option<usize>,
    /// Where messages begin in the prompt, ascending: states are kept there for prompts that share these messages.
    pub borders: Vec<usize>,
    pub priority: Priority,
    /// When the answer is of no use any more: it ends there as it stands.
    pub deadline: Option<Instant>,
    /// What the answer must follow.
    pub constraint: Option<Arc<dyn Rule>>,
}

/// Who goes first when there is more to do than the device can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Somebody waits for it.
    #[default]
    Interactive,
    /// Served when nobody else waits for a prompt, and like the others once it has waited for half a minute.
    Background,
}

/// Why a request can not be served as it is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    #[error("the prompt is empty")]
    Empty,
    #[error(
        "the prompt has {prompt} tokens; with max_tokens {max_tokens} it needs {}, and the context holds {context}. \
         Shorten it, ask for fewer tokens, or start with a larger --context",
        prompt.saturating_add(*max_tokens)
    )]
    TooLong { prompt: usize, max_tokens: usize, context: usize },
    #[error("{place} has token {token}, but the model's vocabulary ends at {vocabulary}")]
    Token { place: &'static str, token: u32, vocabulary: usize },
    #[error("logit_bias of token {token} is {value}: it must be a number from -100 to 100, or -inf")]
    Bias { token: u32, value: f32 },
    #[error("logit_bias names token {token} twice")]
    BiasTwice { token: u32 },
    #[error("max_tokens is 0: ask for at least one token")]
    NoTokens,
    #[error(transparent)]
    Param(#[from] ParamError),
    #[error("{waiting} requests wait already, as many as may ({limit}): try again later")]
    Busy { waiting: usize, limit: usize },
    #[error("borders: {0} is no place of the prompt, or not after the one before it")]
    Border(usize),
    #[error("the engine has stopped")]
    Stopped,
}

impl Request {
    /// Checks a request against what the engine holds.
    pub(crate) fn check(&self, vocabulary: usize, context: usize) -> Result<SampleParams, Refused> {
        let params = SampleParams { choice: self.choice, ..self.sampling.resolve()? };
        if self.prompt.is_empty() {
            return Err(Refused::Empty);
        }
        if self.max_tokens == Some(0) {
            return Err(Refused::NoTokens);
        }
        let known = |place, token: u32| match (token as usize) < vocabulary {
            true => Ok(()),
            false => Err(Refused::Token { place, token, vocabulary }),
        };
        self.prompt.iter().try_for_each(|t| known("the prompt", *t))?;
        for (i, &(token, value)) in self.logit_bias.iter().enumerate() {
            known("logit_bias", token)?;
            if !(value == f32::NEG_INFINITY || (-100.0..=100.0).contains(&value)) {
                return Err(Refused::Bias { token, value });
            }
            if self.logit_bias[..i].iter().any(|(t, _)| *t == token) {
                return Err(Refused::BiasTwice { token });
            }
        }
        for (i, &border) in self.borders.iter().enumerate() {
            if border > self.prompt.len() || (i > 0 && border <= self.borders[i - 1]) {
                return Err(Refused::Border(border));
            }
        }
        let max_tokens = self.max_tokens.unwrap_or(1);
        if self.prompt.len().saturating_add(max_tokens) > context {
            return Err(Refused::TooLong { prompt: self.prompt.len(), max_tokens, context });
        }
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(r: Request) -> Result<SampleParams, Refused> {
        r.check(100, 50)
    }

    #[test]
    fn refusals_carry_both_numbers() {
        let long = Request { prompt: vec![1; 45], max_tokens: Some(6), ..Default::default() };
        let text = check(long.clone()).unwrap_err().to_string();
        assert!(text.contains("45 tokens") && text.contains("needs 51") && text.contains("holds 50"), "{text}");
        let endless = check(Request { max_tokens: Some(usize::MAX), ..long.clone() }).unwrap_err();
        assert!(endless.to_string().contains(&format!("needs {}", usize::MAX)), "{endless}");
        assert!(check(Request { max_tokens: Some(5), ..long.clone() }).is_ok());
        assert!(check(Request { max_tokens: None, ..long.clone() }).is_ok());
        assert!(matches!(check(Request { prompt: vec![1; 50], ..Default::default() }), Err(Refused::TooLong { .. })));
        assert_eq!(check(Request::default()), Err(Refused::Empty));
        assert!(matches!(
            check(Request { prompt: vec![100], ..Default::default() }),
            Err(Refused::Token { token: 100, vocabulary: 100, .. })
        ));
        let bias = |list: &[(u32, f32)]| {
            check(Request { prompt: vec![1], logit_bias: list.to_vec(), ..Default::default() }).unwrap_err()
        };
        assert!(matches!(bias(&[(1, f32::NAN)]), Refused::Bias { .. }));
        assert!(matches!(bias(&[(1, 1.0), (1, 2.0)]), Refused::BiasTwice { token: 1 }));
        let borders =
            |list: &[usize]| check(Request { prompt: vec![1; 9], borders: list.to_vec(), ..Default::default() });
        assert_eq!(
            (borders(&[4, 4]).err(), borders(&[10]).err()),
            (Some(Refused::Border(4)), Some(Refused::Border(10)))
        );
        assert!(borders(&[0, 4, 9]).is_ok());
    }
}
