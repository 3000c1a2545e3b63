//! Tools as the APIs declare them, and as the model sees them: functions with a JSON schema.

use crate::app::last_text;
use crate::ask::form;
use crate::error::{ApiError, Fields};
use crate::generate::Traced;
use crate::json::{fields, get, join, list, need, need_text, text};
use crate::options::Options;
use crate::thinking::Thinking;
use martlet_chat::Conversation;
use martlet_session::{Prompt, ToolChoice, TurnOptions};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Name of the one parameter that a custom tool (free text in) has for the model.
const CUSTOM_INPUT: &str = "input";

/// What a client calls a tool, by the name that the model sees.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    Function,
    /// Takes a text instead of JSON.
    Custom,
    /// A function of a group.
    Member {
        namespace: String,
        name: String,
    },
}

/// The tools of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    /// As the template prints them.
    pub declared: Vec<Value>,
    /// Where the request has the schema of each.
    pub schemas: Vec<String>,
    kinds: HashMap<String, Kind>,
    /// Tools that only their own provider could run.
    pub skipped: Vec<String>,
}

impl Tools {
    /// What the client calls the tool that the model calls `name`.
    pub fn kind(&self, name: &str) -> &Kind {
        self.kinds.get(name).unwrap_or(&Kind::Function)
    }

    pub fn has(&self, name: &str) -> bool {
        self.kinds.contains_key(name)
    }

    /// The model's name of a member of a namespace.
    pub fn member_name(namespace: &str, name: &str) -> String {
        match namespace.ends_with("__") {
            true => format!("{namespace}{name}"),
            false => format!("{namespace}__{name}"),
        }
    }

    /// Declares a tool in one fixed order of keys, so that the same tools are the same prompt.
    fn declare(
        &mut self,
        name: &str,
        path: &str,
        description: Option<&Value>,
        parameters: (&str, Option<&Value>),
        kind: Kind,
    ) -> Result<(), ApiError> {
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || "<>=\"".contains(c)) {
            return Err(ApiError::field(join(path, "name"), format!("\"{name}\" is no name for a tool")));
        }
        if self.kinds.insert(name.to_string(), kind).is_some() {
            return Err(ApiError::field(join(path, "name"), format!("there are two tools \"{name}\"")));
        }
        let mut function = Map::new();
        function.insert("name".into(), name.into());
        if let Some(description) = description {
            function.insert("description".into(), text(description, &join(path, "description"))?.into());
        }
        let none = || json!({"type": "object", "properties": {}});
        let (schema, parameters) = parameters;
        function.insert("parameters".into(), parameters.cloned().unwrap_or_else(none));
        self.schemas.push(join(path, schema));
        self.declared.push(json!({"type": "function", "function": function}));
        Ok(())
    }

    fn function(&mut self, at: &Map<String, Value>, path: &str, schema: &str) -> Result<(), ApiError> {
        let name = need_text(at, path, "name")?;
        let parameters = get(at, schema).map(|p| fields(p, &join(path, schema)).map(|_| p)).transpose()?;
        self.declare(name, path, get(at, "description"), (schema, parameters), Kind::Function)
    }

    fn custom(&mut self, at: &Map<String, Value>, path: &str) -> Result<(), ApiError> {
        let name = need_text(at, path, "name")?;
        let mut about = get(at, "description").and_then(Value::as_str).unwrap_or_default().to_string();
        let format =
            get(at, "format").and_then(|f| f.get("definition").or_else(|| f.get("grammar")?.get("definition")));
        if let Some(definition) = format.and_then(Value::as_str) {
            about = format!("{about}\n\nThe input follows this grammar:\n{definition}").trim_start().to_string();
        }
        let schema = json!({
            "type": "object",
            "properties": {CUSTOM_INPUT: {"type": "string", "description": "The whole input, as plain text"}},
            "required": [CUSTOM_INPUT]
        });
        self.declare(name, path, Some(&about.into()), ("format", Some(&schema)), Kind::Custom)
    }

    /// Of chat completions: `{type: function, function: {...}}` and `{type: custom, custom: {...}}`.
    pub fn of_chat(value: &Value, path: &str) -> Result<Tools, ApiError> {
        let mut tools = Tools::default();
        for (i, tool) in list(value, path)?.iter().enumerate() {
            let path = format!("{path}[{i}]");
            let tool = fields(tool, &path)?;
            match get(tool, "type").map(|t| text(t, &join(&path, "type"))).transpose()? {
                Some("function") | None => {
                    let path = join(&path, "function");
                    let function = get(tool, "function").ok_or_else(|| ApiError::field(path.as_str(), "is missing"))?;
                    tools.function(fields(function, &path)?, &path, "parameters")?;
                }
                Some("custom") => {
                    let custom = need(tool, &path, "custom")?;
                    let path = join(&path, "custom");
                    tools.custom(fields(custom, &path)?, &path)?;
                }
                Some(other) => tools.skipped.push(format!("{path} ({other})")),
            }
        }
        Ok(tools)
    }

    /// Of responses: functions and custom tools without a frame, groups of functions, and what only OpenAI runs.
    pub fn of_responses(value: &Value, path: &str) -> Result<Tools, ApiError> {
        let mut tools = Tools::default();
        for (i, tool) in list(value, path)?.iter().enumerate() {
            let path = format!("{path}[{i}]");
            let tool = fields(tool, &path)?;
            match need_text(tool, &path, "type")? {
                "function" => tools.function(tool, &path, "parameters")?,
                "custom" => tools.custom(tool, &path)?,
                "namespace" => tools.namespace(tool, &path)?,
                other => tools.skipped.push(format!("{path} ({other})")),
            }
        }
        Ok(tools)
    }

    fn namespace(&mut self, tool: &Map<String, Value>, path: &str) -> Result<(), ApiError> {
        let namespace = need_text(tool, path, "name")?;
        let members = list(need(tool, path, "tools")?, &join(path, "tools"))?;
        for (i, member) in members.iter().enumerate() {
            let path = format!("{path}.tools[{i}]");
            let member = fields(member, &path)?;
            if need_text(member, &path, "type")? != "function" {
                self.skipped.push(path);
                continue;
            }
            let name = need_text(member, &path, "name")?;
            let kind = Kind::Member { namespace: namespace.into(), name: name.into() };
            let full = Tools::member_name(namespace, name);
            let parameters = ("parameters", get(member, "parameters"));
            self.declare(&full, &path, get(member, "description"), parameters, kind)?;
        }
        Ok(())
    }

    /// Of messages: `{name, description, input_schema}`.
    pub fn of_messages(value: &Value, path: &str) -> Result<Tools, ApiError> {
        let mut tools = Tools::default();
        for (i, tool) in list(value, path)?.iter().enumerate() {
            let path = format!("{path}[{i}]");
            let tool = fields(tool, &path)?;
            match get(tool, "type").map(|t| text(t, &join(&path, "type"))).transpose()? {
                None | Some("custom") => tools.function(tool, &path, "input_schema")?,
                Some(other) => tools.skipped.push(format!("{path} ({other})")),
            }
        }
        Ok(tools)
    }

    /// A conversation's turn with these tools; gives its prompt, and the text of its last message.
    pub fn turn(
        &self,
        mut chat: Conversation,
        thinking: &Thinking,
        server: &Options,
        options: &mut TurnOptions,
    ) -> Result<(Prompt, String), ApiError> {
        chat.tools = self.declared.clone();
        // A format is of the answer's text. A call that must be made leaves no text to have it.
        if options.tool_choice.is_required() && options.format.is_some() {
            let message = "demands a call, and a format is asked for too: only one can hold";
            return Err(ApiError::field("tool_choice", message));
        }
        if chat.tools.is_empty() {
            options.tool_choice = ToolChoice::None;
        }
        thinking.apply(server.think, &mut chat, options);
        let last = last_text(&chat);
        Ok((Prompt::Chat(chat), last))
    }

    /// Where a request has what only its turn can find impossible.
    pub fn fields(&self, body: &Map<String, Value>, prompt: &'static str) -> Fields {
        Fields { prompt, form: form(body), schemas: self.schemas.clone() }
    }

    /// What a trace says of them.
    pub fn traced(&self, choice: Option<Value>) -> Traced {
        Traced { tools: self.declared.clone(), tool_choice: choice.unwrap_or(Value::Null) }
    }

    /// Puts a choice into a turn, where it can be kept.
    pub fn choose(&self, choice: ToolChoice, path: &str, options: &mut TurnOptions) -> Result<(), ApiError> {
        let named = match &choice {
            ToolChoice::AutoOf(names) | ToolChoice::RequiredOf(names) => names.as_slice(),
            ToolChoice::Required if self.declared.is_empty() => {
                return Err(ApiError::field(path, "a call is asked for, and there are no tools"));
            }
            _ => &[],
        };
        match named.iter().find(|name| !self.has(name)) {
            Some(name) => Err(ApiError::field(path, format!("there is no tool \"{name}\""))),
            None => {
                options.tool_choice = choice;
                Ok(())
            }
        }
    }
}

/// The `tool_choice` of both OpenAI APIs: a word, a tool (with or without a frame), or a list of allowed tools.
pub fn openai_choice(value: &Value, path: &str) -> Result<ToolChoice, ApiError> {
    if let Some(word) = value.as_str() {
        return match word {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" | "any" => Ok(ToolChoice::Required),
            other => Err(ApiError::field(path, format!("\"{other}\" is not known; auto, none and required are"))),
        };
    }
    let choice = fields(value, path)?;
    match need_text(choice, path, "type")? {
        "function" | "custom" => Ok(ToolChoice::RequiredOf(vec![tool_name(choice, path)?])),
        "allowed_tools" => {
            let framed = get(choice, "allowed_tools");
            let (allowed, path) = match framed {
                Some(inner) => (fields(inner, &join(path, "allowed_tools"))?, join(path, "allowed_tools")),
                None => (choice, path.to_string()),
            };
            let tools = join(&path, "tools");
            let names = list(need(allowed, &path, "tools")?, &tools)?.iter().enumerate().map(|(i, tool)| {
                let path = format!("{tools}[{i}]");
                tool_name(fields(tool, &path)?, &path)
            });
            let names = names.collect::<Result<_, _>>()?;
            let mode = join(&path, "mode");
            match get(allowed, "mode").map(|word| text(word, &mode)).transpose()? {
                Some("required") => Ok(ToolChoice::RequiredOf(names)),
                Some("auto") | None => Ok(ToolChoice::AutoOf(names)),
                Some(other) => Err(ApiError::field(mode, format!("\"{other}\" is not known; auto and required are"))),
            }
        }
        other => {
            Err(ApiError::unsupported(join(path, "type"), format!("a tool of type \"{other}\" can not be run here")))
        }
    }
}

/// A tool's name with or without its frame, the model's name where it is a member of a namespace.
fn tool_name(tool: &Map<String, Value>, path: &str) -> Result<String, ApiError> {
    for frame in ["function", "custom"] {
        if let Some(inner) = get(tool, frame) {
            let path = join(path, frame);
            return Ok(need_text(fields(inner, &path)?, &path, "name")?.to_string());
        }
    }
    let name = need_text(tool, path, "name")?;
    Ok(match get(tool, "namespace").and_then(Value::as_str) {
        Some(namespace) => Tools::member_name(namespace, name),
        None => name.to_string(),
    })
}

/// The arguments with which the model calls a custom tool, of its input.
pub fn custom_arguments(input: &str) -> Map<String, Value> {
    Map::from_iter([(CUSTOM_INPUT.to_string(), input.into())])
}

/// The input of a custom tool, of the arguments with which the model called it. A call that does not parse is given as
/// it is.
pub fn custom_input(arguments: &str) -> String {
    match serde_json::from_str::<Map<String, Value>>(arguments) {
        Ok(map) => match map.get(CUSTOM_INPUT) {
            Some(Value::String(input)) => input.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        },
        Err(_) => arguments.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_apis_declare_the_same_functions() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let chat = json!([{"function": {"parameters": schema, "strict": true, "name": "f", "description": "d"},
                           "type": "function"}]);
        let responses = json!([{"type": "function", "name": "f", "description": "d", "parameters": schema}]);
        let messages = json!([{"name": "f", "description": "d", "input_schema": schema,
                               "cache_control": {"type": "ephemeral"}}]);
        let (a, b, c) = (
            Tools::of_chat(&chat, "tools"),
            Tools::of_responses(&responses, "tools"),
            Tools::of_messages(&messages, "tools"),
        );
        let declared = a.unwrap().declared;
        assert_eq!((&declared, &declared), (&b.unwrap().declared, &c.unwrap().declared));
        assert_eq!(
            declared[0].to_string(),
            json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}})
                .to_string()
        );
    }

    #[test]
    fn tools_of_coding_agents() {
        let tools = json!([
            {"type": "web_search"},
            {"type": "custom", "name": "apply_patch", "description": "Edits.", "format":
                {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
            {"type": "namespace", "name": "mcp__files", "description": "d", "tools":
                [{"type": "function", "name": "read", "parameters": {"type": "object"}}]},
            {"type": "image_generation"}
        ]);
        let tools = Tools::of_responses(&tools, "tools").unwrap();
        assert_eq!(tools.skipped, ["tools[0] (web_search)", "tools[3] (image_generation)"]);
        assert_eq!(tools.kind("apply_patch"), &Kind::Custom);
        let member = Kind::Member { namespace: "mcp__files".into(), name: "read".into() };
        assert_eq!(tools.kind("mcp__files__read"), &member);
        let about = tools.declared[0]["function"]["description"].as_str().unwrap();
        assert_eq!(about, "Edits.\n\nThe input follows this grammar:\nstart: /.+/");
        assert_eq!(custom_input(r#"{"input": "*** Begin"}"#), "*** Begin");
        assert_eq!(Value::Object(custom_arguments("x")), json!({"input": "x"}));
        assert_eq!(custom_input("{\"input"), "{\"input");
    }

    #[test]
    fn choices_in_every_form() {
        let of = |v: Value| openai_choice(&v, "tool_choice").map_err(|e| e.param.unwrap());
        assert_eq!(of(json!("required")), Ok(ToolChoice::Required));
        let f = || ToolChoice::RequiredOf(vec!["f".into()]);
        assert_eq!(of(json!({"type": "function", "function": {"name": "f"}})), Ok(f()));
        assert_eq!(of(json!({"type": "function", "name": "f"})), Ok(f()));
        assert_eq!(of(json!({"type": "custom", "custom": {"name": "f"}})), Ok(f()));
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let framed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}});
        assert_eq!(of(framed), Ok(ToolChoice::AutoOf(vec!["f".into()])));
        let flat = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]});
        assert_eq!(of(flat), Ok(f()));
        let never = json!({"type": "allowed_tools", "allowed_tools": {"mode": "never", "tools": tools}});
        assert_eq!(of(never), Err("tool_choice.allowed_tools.mode".into()));
        assert_eq!(of(json!({"type": "web_search"})), Err("tool_choice.type".into()));
        assert_eq!(of(json!("maybe")), Err("tool_choice".into()));
        assert_eq!(of(json!({"type": "function"})), Err("tool_choice.name".into()));
    }

    #[test]
    fn a_choice_must_be_possible() {
        let tools = Tools::of_chat(&json!([{"type": "function", "function": {"name": "f"}}]), "tools").unwrap();
        let choose = |tools: &Tools, choice| tools.choose(choice, "tool_choice", &mut TurnOptions::default());
        assert_eq!(choose(&tools, ToolChoice::RequiredOf(vec!["f".into()])), Ok(()));
        let message = |tools: &Tools, choice| choose(tools, choice).unwrap_err().message;
        assert_eq!(message(&tools, ToolChoice::RequiredOf(vec!["g".into()])), "tool_choice: there is no tool \"g\"");
        assert_eq!(
            message(&Tools::default(), ToolChoice::Required),
            "tool_choice: a call is asked for, and there are no tools"
        );
        let twice = json!([{"name": "f"}, {"name": "f"}]);
        assert_eq!(Tools::of_messages(&twice, "tools").unwrap_err().param.as_deref(), Some("tools[1].name"));
    }
}
