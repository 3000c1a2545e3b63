//! What an answer must follow, from what its turn asks for: thinking, then a format or tool calls, and a script over it.

use crate::{SessionError, TurnOptions};
use martlet_chat::grammar::{AnswerMatcher, AnswerRule, Body, CallGrammar, CompiledFormat, MAX_ROLLBACK, Thinking};
use martlet_chat::{ChatModel, GrammarError, ToolChoice, Vocabulary};
use martlet_engine::{Constraint, Rule};
use serde_json::Value;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// Tokens of a script that are looked through for one that fits.
const MAX_SKIP: usize = 4096;
/// The token that every template of the family ends a message with.
const MESSAGE_END: &str = "<|im_end|>";

/// What is known of a turn beside its options.
pub(crate) struct Place<'a> {
    pub text: Option<&'a ChatModel>,
    /// Tools of the conversation.
    pub tools: &'a [Value],
    /// The prompt ends inside thinking.
    pub thinking: bool,
    /// It does not, but the model may begin to think.
    pub may_think: bool,
}

/// The rule of a turn; `None` where anything may come.
pub(crate) fn rule(options: &TurnOptions, place: &Place<'_>) -> Result<Option<Arc<dyn Rule>>, SessionError> {
    let required = options.tool_choice.is_required();
    let named = options.tool_choice.names().is_some_and(|names| !names.is_empty());
    let with_calls = required || named || (!place.tools.is_empty() && options.tool_choice != ToolChoice::None);
    let thinks = place.thinking || place.may_think;
    let budget = options.thinking_budget.filter(|_| thinks);
    let answers = options.format.is_some() || with_calls || budget.is_some();
    if !answers && options.script.is_none() {
        return Ok(None);
    }
    let Some(text) = place.text else {
        let message = "it has no tokenizer, so it is not known what its tokens mean".to_string();
        return Err(GrammarError::Vocabulary(message).into());
    };
    let answer = match answers {
        true => {
            let vocabulary = text.vocabulary()?;
            let thinking = Thinking { open: place.thinking, may_open: place.may_think, budget };
            let body = body(options, place.tools, with_calls, text, &vocabulary)?;
            Some(AnswerRule::new(vocabulary, thinking, body))
        }
        false => None,
    };
    let script = match &options.script {
        Some(script) => {
            let tokens = text.tokenizer.encode(script)?.into();
            // Of several end tokens the one that ends a message, where there is one.
            let mut ends = text.generation.stop_ids.clone();
            let message_end = text.tokenizer.token_to_id(MESSAGE_END);
            ends.sort_by_key(|end| Some(*end) != message_end);
            Some(Script { tokens, ends, size: text.tokenizer.vocabulary_size() })
        }
        None => None,
    };
    Ok(Some(Arc::new(TurnRule { answer, script })))
}

fn body(
    options: &TurnOptions,
    tools: &[Value],
    with_calls: bool,
    text: &ChatModel,
    vocabulary: &Arc<Vocabulary>,
) -> Result<Body, GrammarError> {
    let required = options.tool_choice.is_required();
    // A turn that must call tools has no answer that could have a form.
    let format = options.format.as_ref().filter(|_| !required).map(|f| CompiledFormat::new(f, vocabulary));
    let calls = match with_calls {
        true => match CallGrammar::new(tools, options.tool_choice.names(), text.call_form(), vocabulary) {
            // None that has a name: then there are none to call.
            Err(GrammarError::NoTools) if !required => None,
            read => Some(Arc::new(read?)),
        },
        false => None,
    };
    Ok(Body { format: format.transpose()?.map(Arc::new), calls, required, single: options.single_tool_call })
}

struct TurnRule {
    answer: Option<AnswerRule>,
    script: Option<Script>,
}

impl fmt::Debug for TurnRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnRule").field("scripted", &self.script.is_some()).finish_non_exhaustive()
    }
}

impl Rule for TurnRule {
    fn start(&self) -> Box<dyn Constraint> {
        let answer = self.answer.as_ref().map(AnswerRule::start);
        match &self.script {
            None => Box::new(Answer { answer }),
            Some(script) => Box::new(Scripted { answer, script: script.clone(), at: 0, places: VecDeque::new() }),
        }
    }
}

struct Answer {
    answer: Option<AnswerMatcher>,
}

impl Constraint for Answer {
    fn mask(&mut self) -> Option<Vec<u32>> {
        self.answer.as_mut()?.mask()
    }

    fn allows(&mut self, token: u32) -> bool {
        self.answer.as_mut().is_none_or(|a| a.allows(token))
    }

    fn advance(&mut self, token: u32) {
        self.answer.iter_mut().for_each(|a| a.advance(token));
    }

    fn rollback(&mut self, tokens: usize) {
        self.answer.iter_mut().for_each(|a| a.rollback(tokens));
    }
}

/// What the model is made to say.
#[derive(Clone)]
struct Script {
    tokens: Arc<[u32]>,
    ends: Vec<u32>,
    size: usize,
}

/// A script under a rule. Where the rule forbids the script's next token, the script is skipped forward to the first that
/// fits; where none does, the model goes on by itself under the rule, until one does. A token that is not the next one of
/// the script takes it behind the place where that token comes, if it does: so a thinking that a budget closes goes on
/// behind the script's own closing tag. Behind the script the answer is ended as soon as the rule lets it.
struct Scripted {
    answer: Option<AnswerMatcher>,
    script: Script,
    /// Tokens of the script that are said or skipped.
    at: usize,
    /// Where the script was before each of the latest tokens.
    places: VecDeque<usize>,
}

impl Scripted {
    fn fits(&mut self, token: u32) -> bool {
        self.answer.as_mut().is_none_or(|a| a.allows(token))
    }

    /// The token that must come next.
    fn due(&mut self) -> Option<u32> {
        let script = self.script.clone();
        let left = script.tokens.iter().skip(self.at).take(MAX_SKIP);
        let ends = if self.at >= script.tokens.len() { script.ends.as_slice() } else { &[] };
        left.chain(ends).copied().find(|token| self.fits(*token))
    }
}

impl Constraint for Scripted {
    fn mask(&mut self) -> Option<Vec<u32>> {
        match self.due() {
            Some(token) => {
                let mut mask = vec![0; self.script.size.div_ceil(32)];
                mask[token as usize / 32] |= 1 << (token % 32);
                Some(mask)
            }
            None => self.answer.as_mut()?.mask(),
        }
    }

    fn allows(&mut self, token: u32) -> bool {
        match self.due() {
            Some(due) => token == due,
            None => self.fits(token),
        }
    }

    fn advance(&mut self, token: u32) {
        self.places.push_back(self.at);
        if self.places.len() > MAX_ROLLBACK {
            self.places.pop_front();
        }
        let left = self.script.tokens.iter().skip(self.at).take(MAX_SKIP);
        self.at += left.into_iter().position(|t| *t == token).map_or(0, |skipped| skipped + 1);
        self.answer.iter_mut().for_each(|a| a.advance(token));
    }

    fn rollback(&mut self, tokens: usize) {
        for _ in 0..tokens {
            self.at = self.places.pop_back().unwrap_or(self.at);
        }
        self.answer.iter_mut().for_each(|a| a.rollback(tokens));
    }
}
