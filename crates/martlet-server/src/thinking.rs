//! One meaning of thinking on all APIs: off, on, or on for so many tokens.

use crate::error::ApiError;
use crate::json;
use martlet_chat::Conversation;
use martlet_session::TurnOptions;
use serde_json::{Map, Value};

/// Levels of effort, and the most tokens of thinking that each stands for (0: none; `None`: no limit).
pub const LEVELS: [(&str, Option<usize>); 7] = [
    ("none", Some(0)),
    ("minimal", Some(256)),
    ("low", Some(1024)),
    ("medium", Some(4096)),
    ("high", Some(16384)),
    ("xhigh", None),
    ("max", None),
];

/// What a request says of thinking; `None` where it says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Thinking {
    pub choice: Option<bool>,
    /// Said in tokens.
    pub budget: Option<usize>,
    /// A level's name; its budget leaves room for the answer.
    pub level: Option<&'static str>,
}

impl Thinking {
    /// An effort by name.
    pub fn effort(&mut self, name: &str, path: &str) -> Result<(), ApiError> {
        let Some((level, budget)) = LEVELS.iter().find(|(level, _)| *level == name) else {
            let known = LEVELS.map(|(level, _)| level).join(", ");
            return Err(ApiError::field(path, format!("\"{name}\" is no level of effort; known are {known}")));
        };
        self.level = Some(level);
        self.choice = Some(*budget != Some(0));
        Ok(())
    }

    /// `{type: enabled | disabled | adaptive, budget_tokens}`, or true or false.
    pub fn object(&mut self, value: &Value, path: &str) -> Result<(), ApiError> {
        if let Some(choice) = value.as_bool() {
            self.choice = Some(choice);
            return Ok(());
        }
        let fields = json::fields(value, path)?;
        match json::need_text(fields, path, "type")? {
            "disabled" => self.choice = Some(false),
            "enabled" | "adaptive" | "auto" => self.choice = Some(true),
            other => {
                let message = format!("\"{other}\" is not known; enabled, adaptive and disabled are");
                return Err(ApiError::field(json::join(path, "type"), message));
            }
        }
        if let Some(tokens) = json::get(fields, "budget_tokens") {
            self.tokens(tokens, &json::join(path, "budget_tokens"))?;
        }
        Ok(())
    }

    /// A number of tokens; negative: without limit; 0: off.
    pub fn tokens(&mut self, value: &Value, path: &str) -> Result<(), ApiError> {
        let Some(tokens) = value.as_i64() else { return Err(json::wrong(path, "a whole number", value)) };
        self.budget = usize::try_from(tokens).ok();
        if tokens == 0 {
            self.choice = Some(false);
        }
        Ok(())
    }

    /// Variables for the template; those that mean thinking here are read, and passed on all the same.
    pub fn variables(&mut self, variables: &Map<String, Value>, path: &str) -> Result<(), ApiError> {
        if let Some(choice) = json::get(variables, "enable_thinking") {
            let path = json::join(path, "enable_thinking");
            self.choice = Some(choice.as_bool().ok_or_else(|| json::wrong(&path, "true or false", choice))?);
        }
        if let Some(tokens) = json::get(variables, "thinking_budget") {
            self.tokens(tokens, &json::join(path, "thinking_budget"))?;
        }
        Ok(())
    }

    /// Puts it into a turn. `default`: the choice where the request makes none.
    pub fn apply(&self, default: Option<bool>, chat: &mut Conversation, options: &mut TurnOptions) {
        if let Some(choice) = self.choice {
            chat.set_thinking(choice);
        } else if !chat.template_kwargs.contains_key("enable_thinking") {
            chat.enable_thinking = default;
        }
        if let Some(level) = self.level {
            chat.template_kwargs.entry("reasoning_effort").or_insert(level.into());
        }
        if self.choice == Some(false) {
            return;
        }
        let level = self.level.and_then(|name| LEVELS.iter().find(|(level, _)| *level == name)).and_then(|(_, b)| *b);
        // A level is no promise of tokens: a quarter of the answer stays for the text.
        let room = |budget: usize| options.max_tokens.map_or(budget, |most| budget.min(most / 4 * 3));
        options.thinking_budget = self.budget.or(level.map(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn applied(thinking: &Thinking, max_tokens: Option<usize>) -> (Option<bool>, Option<usize>) {
        let (mut chat, mut options) = (Conversation::default(), TurnOptions { max_tokens, ..TurnOptions::default() });
        thinking.apply(None, &mut chat, &mut options);
        (chat.enable_thinking, options.thinking_budget)
    }

    #[test]
    fn levels_are_budgets_that_leave_room_for_the_answer() {
        let level = |name: &str, most| {
            let mut thinking = Thinking::default();
            thinking.effort(name, "reasoning_effort").unwrap();
            applied(&thinking, most)
        };
        assert_eq!(level("low", Some(4096)), (Some(true), Some(1024)));
        assert_eq!(level("high", Some(4096)), (Some(true), Some(3072)));
        assert_eq!(level("high", None), (Some(true), Some(16384)));
        assert_eq!(level("xhigh", Some(4096)), (Some(true), None));
        assert_eq!(level("none", None), (Some(false), None));
        let error = Thinking::default().effort("huge", "reasoning.effort").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("reasoning.effort"));
    }

    #[test]
    fn every_spelling_means_the_same() {
        let said = |read: &dyn Fn(&mut Thinking) -> Result<(), ApiError>| {
            let mut thinking = Thinking::default();
            read(&mut thinking).map(|()| applied(&thinking, None)).map_err(|e| e.param.unwrap())
        };
        let object = |v: Value| said(&move |t: &mut Thinking| t.object(&v, "thinking"));
        assert_eq!(object(json!({"type": "enabled", "budget_tokens": 2000})), Ok((Some(true), Some(2000))));
        assert_eq!(object(json!({"type": "disabled"})), Ok((Some(false), None)));
        assert_eq!(object(json!({"type": "adaptive"})), Ok((Some(true), None)));
        assert_eq!(object(json!(false)), Ok((Some(false), None)));
        assert_eq!(object(json!({"type": "sometimes"})), Err("thinking.type".into()));
        assert_eq!(object(json!({"type": "enabled", "budget_tokens": "x"})), Err("thinking.budget_tokens".into()));
        let variables =
            |v: Value| said(&move |t: &mut Thinking| t.variables(v.as_object().unwrap(), "chat_template_kwargs"));
        assert_eq!(variables(json!({"enable_thinking": false, "x": 1})), Ok((Some(false), None)));
        assert_eq!(variables(json!({"enable_thinking": 1})), Err("chat_template_kwargs.enable_thinking".into()));
        assert_eq!(variables(json!({"thinking_budget": 0})), Ok((Some(false), None)));
    }

    #[test]
    fn silence_leaves_the_choice_to_the_server_then_to_the_template() {
        let mut chat = Conversation::default();
        Thinking::default().apply(Some(false), &mut chat, &mut TurnOptions::default());
        assert_eq!(chat.enable_thinking, Some(false));
        assert_eq!(applied(&Thinking::default(), Some(10)), (None, None));
    }
}
