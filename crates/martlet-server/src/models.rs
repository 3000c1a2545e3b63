//! What the server runs, in enough words for clients to set themselves up.

use crate::app::App;
use crate::error::ApiError;
use crate::metrics::View;
use crate::residence::Seen;
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
    /// Whether it is in memory. What only a model that was opened can tell is left out before.
    pub loaded: bool,
    /// Tokens of prompt and answer together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<usize>,
    /// Most tokens of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<usize>,
    /// What it reads and writes.
    pub modalities: Modalities,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// `reasoning_effort` may be one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_levels: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// How most weights are stored, such as `affine4 g64 bf16`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<&'static str>,
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
    let now = app.seen();
    let data: Vec<ModelInfo> = app.names().into_iter().filter_map(|name| info(app, &name, &now).ok()).collect();
    ModelList {
        object: "list",
        has_more: false,
        first_id: data.first().map(|m| m.id.clone()),
        last_id: data.last().map(|m| m.id.clone()),
        data,
    }
}

pub fn get(app: &App, name: &str) -> Result<ModelInfo, ApiError> {
    info(app, name, &app.seen())
}

fn info(app: &App, name: &str, (seen, views): &(Seen, Vec<View>)) -> Result<ModelInfo, ApiError> {
    // Further names are those of the server's own model.
    let model = app.asked(Some(name))?.name;
    let loaded = matches!(seen, Seen::Resident(resident) if resident.name() == model);
    let about = views.iter().find(|view| view.name == model).map(|view| view.served.about());
    let about = about.filter(|about| about.context > 0);
    let about = about.as_ref();
    let (context, chat) = (about.map(|a| a.context), about.map(|a| a.chat));
    let most = context.map(|c| c.saturating_sub(1));
    let levels = |chat| if chat { LEVELS.map(|(level, _)| level).to_vec() } else { Vec::new() };
    Ok(ModelInfo {
        id: name.to_string(),
        object: "model",
        kind: "model",
        created: app.created,
        created_at: crate::log::timestamp(std::time::UNIX_EPOCH + std::time::Duration::from_secs(app.created)),
        owned_by: "martlet",
        display_name: name.to_string(),
        root: about.map_or(model, |a| a.root.clone()),
        loaded,
        context_window: context,
        context_length: context,
        max_model_len: context,
        max_output_tokens: most,
        max_tokens: most,
        max_input_tokens: most,
        modalities: Modalities { input: vec!["text"], output: vec!["text"] },
        capabilities: chat.map(|chat| Capabilities {
            vision: false,
            tools: chat,
            reasoning: chat,
            structured_outputs: true,
            completion: true,
        }),
        reasoning_levels: chat.map(levels),
        architecture: about.map(|a| a.architecture.clone()),
        quantization: about.map(|a| a.scheme.clone()),
        device: about.map(|a| a.device),
    })
}
