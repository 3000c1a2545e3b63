//! Texts and conversations to tokens, and back.

use crate::app::App;
use crate::error::ApiError;
use crate::generate::Task;
use crate::json;
use crate::openai::messages;
use crate::tools::Tools;
use martlet_chat::SpecialTokens;
use martlet_session::{Prompt, Session};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A text, or messages with tools.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    pub model: Option<String>,
    pub prompt: Option<String>,
    /// Another name for `prompt`.
    pub content: Option<String>,
    #[schema(value_type = Option<Vec<Object>>)]
    pub messages: Option<Vec<Value>>,
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Value>,
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// The text of each token too.
    pub return_token_strs: Option<bool>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Tokens {
    pub tokens: Vec<u32>,
    pub count: usize,
    pub max_model_len: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_strs: Option<Vec<String>>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Detokenized {
    pub prompt: String,
    /// The same, under another name.
    pub content: String,
}

pub fn tokenize(app: &App, body: &Map<String, Value>) -> Result<Task<Tokens>, ApiError> {
    let (request, unknown) = json::read::<TokenizeRequest>(body)?;
    let model = app.asked(request.model.as_deref())?;
    let prompt = match (request.prompt.or(request.content), &request.messages) {
        (Some(text), None) => Prompt::Text(text),
        (None, Some(list)) => {
            let mut chat = messages::conversation(list)?;
            chat.template_kwargs = request.chat_template_kwargs.unwrap_or_default();
            let tools = request.tools.as_ref().map(|t| Tools::of_chat(t, "tools")).transpose()?;
            chat.tools = tools.unwrap_or_default().declared;
            Prompt::Chat(chat)
        }
        _ => return Err(ApiError::field("prompt", "give either a prompt or messages")),
    };
    let as_text = request.return_token_strs.unwrap_or(false);
    let work = move |session: &Session| {
        let tokens = session.prompt_ids(&prompt)?;
        let text = session.text().filter(|_| as_text);
        let strings = text.map(|t| tokens.iter().map(|id| t.tokenizer.decode(&[*id], SpecialTokens::Show)).collect());
        let (count, max_model_len) = (tokens.len(), session.context());
        Ok((Tokens { count, max_model_len, token_strs: strings, tokens }, unknown))
    };
    Ok(Task { model, work: Box::new(work) })
}

pub fn detokenize(app: &App, body: &Map<String, Value>) -> Result<Task<Detokenized>, ApiError> {
    let (request, unknown) = json::read::<DetokenizeRequest>(body)?;
    let model = app.asked(request.model.as_deref())?;
    let work = move |session: &Session| {
        let Some(text) = session.text() else {
            return Err(ApiError::unsupported("tokens", "the checkpoint has no tokenizer"));
        };
        let vocabulary = session.spec().vocabulary;
        if let Some(i) = request.tokens.iter().position(|id| *id as usize >= vocabulary) {
            let message = format!("is {}, and the vocabulary ends at {vocabulary}", request.tokens[i]);
            return Err(ApiError::field(format!("tokens[{i}]"), message));
        }
        let prompt = text.tokenizer.decode(&request.tokens, SpecialTokens::Show);
        Ok((Detokenized { content: prompt.clone(), prompt }, unknown))
    };
    Ok(Task { model, work: Box::new(work) })
}
