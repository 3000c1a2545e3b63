//! Texts and conversations to tokens, and back.

use crate::app::App;
use crate::error::ApiError;
use crate::json;
use crate::openai::messages;
use crate::tools::Tools;
use martlet_chat::SpecialTokens;
use martlet_session::Prompt;
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

pub fn tokenize(app: &App, body: &Map<String, Value>) -> Result<(Tokens, Vec<String>), ApiError> {
    let (request, unknown) = json::read::<TokenizeRequest>(body)?;
    app.check_model(request.model.as_deref())?;
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
    let tokens = app.session.prompt_ids(&prompt)?;
    let strings =
        || app.session.text().map(|t| tokens.iter().map(|id| t.tokenizer.decode(&[*id], SpecialTokens::Show)));
    let token_strs = request.return_token_strs.unwrap_or(false).then(strings).flatten().map(Iterator::collect);
    let count = tokens.len();
    Ok((Tokens { count, max_model_len: app.session.context(), token_strs, tokens }, unknown))
}

pub fn detokenize(app: &App, body: &Map<String, Value>) -> Result<(Detokenized, Vec<String>), ApiError> {
    let (request, unknown) = json::read::<DetokenizeRequest>(body)?;
    app.check_model(request.model.as_deref())?;
    let Some(text) = app.session.text() else {
        return Err(ApiError::unsupported("tokens", "the checkpoint has no tokenizer"));
    };
    let vocabulary = app.session.spec().vocabulary;
    if let Some(i) = request.tokens.iter().position(|id| *id as usize >= vocabulary) {
        let message = format!("is {}, and the vocabulary ends at {vocabulary}", request.tokens[i]);
        return Err(ApiError::field(format!("tokens[{i}]"), message));
    }
    let prompt = text.tokenizer.decode(&request.tokens, SpecialTokens::Show);
    Ok((Detokenized { content: prompt.clone(), prompt }, unknown))
}
