//! The text side of a checkpoint: its tokenizer, chat template, stop ids and sampling defaults, from a folder or from
//! files that are part of the program.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use crate::conversation::Conversation;
use crate::generation::{self, ConfigFile, GenerationDefaults, GenerationError};
use crate::grammar::{CallForm, GrammarError, Vocabulary};
use crate::template::{ChatTemplate, TemplateError};
use crate::tokenizer::{self, Tokenizer, TokenizerError};

/// The files that are read, where they exist.
pub const TEXT_FILES: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
];

#[derive(Debug, thiserror::Error)]
pub enum ChatModelError {
    #[error(
        "{origin} has no tokenizer.json, so text can not be turned into tokens. Put the model's tokenizer.json beside \
         its weights, or give token ids instead of text"
    )]
    NoTokenizer { origin: String },
    #[error(
        "{origin} has no chat template (chat_template.jinja, or \"chat_template\" in tokenizer_config.json), so a \
         conversation can not be rendered. Give a raw prompt instead"
    )]
    NoTemplate { origin: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: at most {limit} bytes are read", path.display())]
    TooLong { path: PathBuf, limit: usize },
    #[error("{origin}: {file}: {message}")]
    Format { origin: String, file: &'static str, message: String },
    #[error("{origin}: {source}")]
    Tokenizer { origin: String, source: TokenizerError },
    #[error("{origin}: {source}")]
    Template { origin: String, source: TemplateError },
    #[error("{origin}: {source}")]
    Generation { origin: String, source: GenerationError },
    #[error(transparent)]
    Render(#[from] TemplateError),
}

/// The small files of a checkpoint, by name, and where they come from (for errors).
#[derive(Clone, Debug)]
pub struct TextFiles {
    origin: String,
    files: BTreeMap<&'static str, Cow<'static, [u8]>>,
}

impl TextFiles {
    /// Reads those of [`TEXT_FILES`] that the folder has.
    pub fn from_folder(folder: &Path) -> Result<TextFiles, ChatModelError> {
        let mut files = BTreeMap::new();
        for name in TEXT_FILES {
            if let Some(bytes) = read_bounded(&folder.join(name))? {
                files.insert(name, Cow::Owned(bytes));
            }
        }
        Ok(TextFiles { origin: folder.display().to_string(), files })
    }

    /// Takes files that are part of the program; names outside [`TEXT_FILES`] are not used.
    pub fn from_embedded(
        origin: impl Into<String>,
        files: impl IntoIterator<Item = (&'static str, &'static [u8])>,
    ) -> TextFiles {
        let known = files.into_iter().filter(|(name, _)| TEXT_FILES.contains(name));
        TextFiles { origin: origin.into(), files: known.map(|(n, bytes)| (n, Cow::Borrowed(bytes))).collect() }
    }

    /// As [`TextFiles::from_embedded`], of files that were made or read elsewhere.
    pub fn from_owned(
        origin: impl Into<String>,
        files: impl IntoIterator<Item = (&'static str, Vec<u8>)>,
    ) -> TextFiles {
        let known = files.into_iter().filter(|(name, _)| TEXT_FILES.contains(name));
        TextFiles { origin: origin.into(), files: known.map(|(n, bytes)| (n, Cow::Owned(bytes))).collect() }
    }

    /// The bytes of a file, if there is one.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(AsRef::as_ref)
    }

    fn json(&self, file: &'static str) -> Result<Map<String, Value>, ChatModelError> {
        let Some(bytes) = self.get(file) else {
            return Ok(Map::new());
        };
        serde_json::from_slice(bytes).map_err(|e| ChatModelError::Format {
            origin: self.origin.clone(),
            file,
            message: e.to_string(),
        })
    }
}

fn read_bounded(path: &Path) -> Result<Option<Vec<u8>>, ChatModelError> {
    let io = |source| ChatModelError::Io { path: path.to_path_buf(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(e)),
    };
    let limit = tokenizer::MAX_FILE_BYTES;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() > limit {
        return Err(ChatModelError::TooLong { path: path.to_path_buf(), limit });
    }
    Ok(Some(bytes))
}

/// Where generation stops and how it samples by default. It needs no tokenizer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Ascending. Empty when the checkpoint names none.
    pub stop_ids: Vec<u32>,
    pub defaults: GenerationDefaults,
}

impl GenerationConfig {
    pub fn load(files: &TextFiles) -> Result<GenerationConfig, ChatModelError> {
        let read = || {
            let generation = ConfigFile::parse("generation_config.json", files.get("generation_config.json"))?;
            let config = ConfigFile::parse("config.json", files.get("config.json"))?;
            Ok(GenerationConfig {
                stop_ids: generation::stop_ids(&generation, &config)?,
                defaults: GenerationDefaults::read(&generation)?,
            })
        };
        read().map_err(|source| ChatModelError::Generation { origin: files.origin.clone(), source })
    }
}

/// Everything needed to talk to a model in text.
pub struct ChatModel {
    origin: String,
    pub tokenizer: Tokenizer,
    pub generation: GenerationConfig,
    template: Option<ChatTemplate>,
    /// Some checkpoints have a template of its own for conversations with tools.
    tool_template: Option<ChatTemplate>,
    call_form: CallForm,
    vocabulary: OnceLock<Result<Arc<Vocabulary>, GrammarError>>,
}

impl ChatModel {
    /// Reads all that the files say. The tokenizer must be there; a template is missed only when it is needed.
    pub fn load(files: &TextFiles) -> Result<ChatModel, ChatModelError> {
        let origin = files.origin.clone();
        let Some(json) = files.get("tokenizer.json") else {
            return Err(ChatModelError::NoTokenizer { origin });
        };
        let tokenizer = Tokenizer::from_bytes(json)
            .map_err(|source| ChatModelError::Tokenizer { origin: origin.clone(), source })?;
        let special_tokens = special_tokens(files)?;
        let mut generation = GenerationConfig::load(files)?;
        if generation.stop_ids.is_empty() {
            let eos = special_tokens.get("eos_token").and_then(Value::as_str);
            generation.stop_ids.extend(eos.and_then(|token| tokenizer.token_to_id(token)));
        }
        let mut sources = template_sources(files)?;
        let call_form = match sources.get("tool_use").or(sources.get("default")) {
            Some(source) if !source.contains("<function=") && source.contains("<tool_call>") => CallForm::Json,
            _ => CallForm::Xml,
        };
        let mut compile = |name| {
            let compiled = sources.remove(name).map(|source| ChatTemplate::new(&source, special_tokens.clone()));
            compiled.transpose().map_err(|source| ChatModelError::Template { origin: origin.clone(), source })
        };
        let (template, tool_template) = (compile("default")?, compile("tool_use")?);
        let vocabulary = OnceLock::new();
        Ok(ChatModel { origin, tokenizer, generation, template, tool_template, call_form, vocabulary })
    }

    /// The prompt of a conversation, ending where the assistant's answer begins when `add_generation_prompt` is set.
    pub fn render(&self, chat: &Conversation, add_generation_prompt: bool) -> Result<String, ChatModelError> {
        let for_tools = self.tool_template.as_ref().filter(|_| !chat.tools.is_empty());
        match for_tools.or(self.template.as_ref()) {
            Some(template) => Ok(template.render(chat, add_generation_prompt)?),
            None => Err(ChatModelError::NoTemplate { origin: self.origin.clone() }),
        }
    }

    /// How the template has tools called.
    pub fn call_form(&self) -> CallForm {
        self.call_form
    }

    /// The tokens as grammars see them; made when they are first needed.
    pub fn vocabulary(&self) -> Result<Arc<Vocabulary>, GrammarError> {
        let make = || Vocabulary::new(&self.tokenizer, &self.generation.stop_ids).map(Arc::new);
        self.vocabulary.get_or_init(make).clone()
    }

    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }
}

/// The variables such as `eos_token` that transformers passes to templates. A token is a string or `{"content": ...}`.
fn special_tokens(files: &TextFiles) -> Result<Map<String, Value>, ChatModelError> {
    const NAMES: [&str; 7] =
        ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    let config = files.json("tokenizer_config.json")?;
    let older = files.json("special_tokens_map.json")?;
    let mut tokens = Map::new();
    for name in NAMES {
        let value = [&config, &older].into_iter().find_map(|fields| fields.get(name).filter(|v| !v.is_null()));
        let text = value.and_then(|v| v.as_str().or_else(|| v.get("content")?.as_str()));
        if let Some(text) = text {
            tokens.insert(name.into(), text.into());
        }
    }
    Ok(tokens)
}

/// Template sources by name. A file of its own goes before the tokenizer's configuration, as in transformers.
fn template_sources(files: &TextFiles) -> Result<BTreeMap<String, String>, ChatModelError> {
    let format = |file, message: String| ChatModelError::Format { origin: files.origin.clone(), file, message };
    let default = |text: &str| BTreeMap::from([("default".to_string(), text.to_string())]);
    if let Some(bytes) = files.get("chat_template.jinja") {
        let text = std::str::from_utf8(bytes).map_err(|e| format("chat_template.jinja", e.to_string()))?;
        return Ok(default(text));
    }
    for file in ["chat_template.json", "tokenizer_config.json"] {
        match files.json(file)?.get("chat_template") {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => return Ok(default(text)),
            Some(Value::Array(named)) => {
                let pair = |entry: &Value| {
                    Some((entry.get("name")?.as_str()?.to_string(), entry.get("template")?.as_str()?.to_string()))
                };
                let message = "each entry of chat_template needs the strings \"name\" and \"template\"";
                return named.iter().map(pair).collect::<Option<_>>().ok_or_else(|| format(file, message.into()));
            }
            Some(_) => {
                let message = "chat_template must be a string, or a list of named templates";
                return Err(format(file, message.into()));
            }
        }
    }
    Ok(BTreeMap::new())
}

#[cfg(test)]
mod tests;
