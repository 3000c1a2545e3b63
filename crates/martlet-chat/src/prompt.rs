//! From a conversation as clients send it to the prompt that the model goes on from.
//!
//! Checkpoints' templates are narrower than what clients send. Before they see a conversation, developers become the
//! system, thinking inside an assistant's text is told apart, arguments that are no JSON object become one, and a tool
//! result without content is empty. Two things that templates can not say are added around them:
//!
//! - *Later system messages.* Qwen's templates raise for them. Then they are rendered in place, as blocks of their own:
//!   moving them to the top would make another prompt of everything behind it, and no cached prefix would match.
//! - *A last message of the assistant* is gone on with, be it thinking that was not closed or text.

use std::borrow::Cow;

use serde_json::Map;

use crate::conversation::{Arguments, Content, Conversation, Message, Role};
use crate::model::{ChatModel, ChatModelError};
use crate::parser::prompt_opens_thinking;
use crate::template::TemplateError;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
/// What templates of the family take for no question of the user's, so that they keep the thinking behind the last
/// question.
const FRAME: (&str, &str) = ("<tool_response>", "</tool_response>");

/// What a model goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    pub text: String,
    /// The answer begins inside thinking.
    pub opens_thinking: bool,
}

impl ChatModel {
    /// The prompt of a conversation; [`ChatModel::render`] is the template alone.
    pub fn prompt(&self, chat: &Conversation) -> Result<ChatPrompt, ChatModelError> {
        let mut chat = chat.clone();
        chat.messages.iter_mut().for_each(Message::for_templates);
        let last = chat.messages.pop_if(|m| m.role == Role::Assistant && m.tool_calls.is_empty());
        let text = self.render_in_place(&chat)?;
        let opens_thinking = prompt_opens_thinking(&text);
        let prompt = ChatPrompt { text, opens_thinking };
        Ok(match last {
            Some(message) => go_on(prompt, &message),
            None => prompt,
        })
    }

    fn render_in_place(&self, chat: &Conversation) -> Result<String, ChatModelError> {
        let refused = match self.render(chat, true) {
            Err(e @ ChatModelError::Render(TemplateError::Raised { .. })) => e,
            other => return other,
        };
        let late = |(at, m): &(usize, &Message)| *at > 0 && m.role == Role::System && plain(m).is_some();
        let late: Vec<usize> = chat.messages.iter().enumerate().filter(late).map(|(at, _)| at).collect();
        if late.is_empty() {
            return Err(refused);
        }
        let mark = unused_word(chat);
        let mut marked = chat.clone();
        for &at in &late {
            marked.messages[at] = Message::text(Role::User, format!("{}{mark}{at};{}", FRAME.0, FRAME.1));
        }
        // What it says of the conversation as it was sent is what helps its sender.
        let mut text = self.render(&marked, true).map_err(|_| refused)?;
        for &at in &late {
            let words = plain(&chat.messages[at]).unwrap_or_default();
            let inner = format!("{}{mark}{at};{}", FRAME.0, FRAME.1);
            let block = format!("<|im_start|>user\n{inner}<|im_end|>");
            let words = words.trim();
            text = match text.contains(&block) {
                true => text.replacen(&block, &format!("<|im_start|>system\n{words}<|im_end|>"), 1),
                false => text.replacen(&inner, &format!("<system-reminder>\n{words}\n</system-reminder>"), 1),
            };
        }
        Ok(text)
    }
}

/// The text of a message that has nothing else.
fn plain(message: &Message) -> Option<Cow<'_, str>> {
    match &message.content {
        None => Some("".into()),
        Some(Content::Text(text)) => Some(text.into()),
        Some(Content::Parts(parts)) => parts.iter().map(|p| p.text()).collect::<Option<String>>().map(Cow::Owned),
    }
}

/// A word that no message has, to find places again.
fn unused_word(chat: &Conversation) -> String {
    let all = chat.to_json().to_string();
    (0u64..).map(|n| format!("martlet-place-{n}-")).find(|word| !all.contains(word)).unwrap_or_default()
}

/// `prompt` and the beginning of its answer.
fn go_on(prompt: ChatPrompt, message: &Message) -> ChatPrompt {
    let ChatPrompt { mut text, opens_thinking } = prompt;
    let said = plain(message).unwrap_or_default();
    let thought = message.reasoning_content.as_deref().unwrap_or_default();
    if !opens_thinking {
        text += &said;
        return ChatPrompt { text, opens_thinking };
    }
    let unclosed = said.trim_start().strip_prefix(OPEN).filter(|rest| !rest.contains(CLOSE));
    if let Some(rest) = unclosed {
        text += rest.trim_start_matches('\n');
    } else if said.is_empty() {
        text += thought;
    } else {
        text += &format!("{thought}\n{CLOSE}\n\n{said}");
        return ChatPrompt { text, opens_thinking: false };
    }
    ChatPrompt { text, opens_thinking }
}

impl Message {
    /// Puts what clients send into the words that the family's templates can read; twice is as good as once.
    pub fn for_templates(&mut self) {
        match self.role {
            Role::Developer => self.role = Role::System,
            Role::Assistant => self.split_thinking(),
            Role::Tool if self.content.is_none() => self.content = Some(Content::Text(String::new())),
            _ => {}
        }
        for call in &mut self.tool_calls {
            let arguments = std::mem::replace(&mut call.arguments, Arguments::Object(Map::new()));
            call.arguments = Arguments::Object(arguments.into_object());
        }
    }

    /// `<think>A</think>B` as thinking A and text B, where a client kept both in one. Thinking that it sent apart as well
    /// goes before.
    fn split_thinking(&mut self) {
        let Some(Content::Text(text)) = &self.content else { return };
        let Some((thought, said)) = text.trim_start().strip_prefix(OPEN).and_then(|rest| rest.split_once(CLOSE)) else {
            return;
        };
        let (thought, said) = (thought.trim_matches('\n').to_string(), said.trim_start_matches('\n').to_string());
        self.reasoning_content.get_or_insert(thought);
        self.content = Some(Content::Text(said));
    }
}

#[cfg(test)]
mod tests;
