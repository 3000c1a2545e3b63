//! What the server runs, in enough words for clients to set themselves up.

use crate::app::App;
use crate::error::ApiError;
use crate::thinking::LEVELS;
use serde::Serialize;
use utoipa::ToSchema;

/// A model, in the fields of OpenAI, Anthropic and others.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelInfo {
    pub id: String,
    /// `model`
    pub object: &'static str,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub created: u64,
    pub created_at: String,
    pub owned_by: &'static str,
    pub display_name: String,
    /// The model that this name stands for.
    pub root: String,
    /// Tokens of prompt and answer together.
    pub context_window: usize,
    pub context_length: usize,
    pub max_model_len: usize,
    /// Most tokens of an answer.
    pub max_output_tokens: usize,
    pub max_tokens: usize,
    pub max_input_tokens: usize,
    /// What it reads and writes.
    pub modalities: Modalities,
    pub capabilities: Capabilities,
    /// `reasoning_effort` may be one of them.
    pub reasoning_levels: Vec<&'static str>,
    pub architecture: String,
    /// How most weights are stored, such as `affine4 g64 bf16`.
    pub quantization: String,
    pub device: &'static str,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Modalities {
    pub input: Vec<&'static str>,
    pub output: Vec<&'static str>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Capabilities {
    pub vision: bool,
    pub tools: bool,
    pub reasoning: bool,
    pub structured_outputs: bool,
    pub completion: bool,
}

/// All names.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`
    pub object: &'static str,
    pub data: Vec<ModelInfo>,
    pub has_more: bool,
    pub first_id: Option<String>,
    pub last_id: Option<String>,
}

pub fn list(app: &App) -> ModelList {
    let names = [&app.model].into_iter().chain(&app.options.aliases);
    let data: Vec<ModelInfo> = names.map(|name| info(app, name)).collect();
    ModelList {
        object: "list",
        has_more: false,
        first_id: data.first().map(|m| m.id.clone()),
        last_id: data.last().map(|m| m.id.clone()),
        data,
    }
}

pub fn get(app: &App, name: &str) -> Result<ModelInfo, ApiError> {
    app.check_model(Some(name))?;
    Ok(info(app, name))
}

fn info(app: &App, name: &str) -> ModelInfo {
    let session = &app.session;
    let (context, chat) = (session.context(), session.text().is_some_and(|t| t.has_template()));
    ModelInfo {
        id: name.to_string(),
        object: "model",
        kind: "model",
        created: app.created,
        created_at: crate::log::timestamp(std::time::UNIX_EPOCH + std::time::Duration::from_secs(app.created)),
        owned_by: "martlet",
        display_name: name.to_string(),
        root: session.name().to_string(),
        context_window: context,
        context_length: context,
        max_model_len: context,
        max_output_tokens: context.saturating_sub(1),
        max_tokens: context.saturating_sub(1),
        max_input_tokens: context.saturating_sub(1),
        modalities: Modalities { input: vec!["text"], output: vec!["text"] },
        capabilities: Capabilities {
            vision: false,
            tools: chat,
            reasoning: chat,
            structured_outputs: true,
            completion: true,
        },
        reasoning_levels: if chat { LEVELS.map(|(level, _)| level).to_vec() } else { Vec::new() },
        architecture: session.spec().model_type.to_string(),
        quantization: session.scheme().to_string(),
        device: session.device(),
    }
}
