//! The conversation at a prompt.

use super::command::{self, COMMANDS, Input};
use crate::answer::{self, Finished, Show};
use crate::app::{App, is_refusal};
use crate::{exit, input, paths, size};
use anyhow::Context as _;
use martlet_chat::{Arguments, Conversation, Message, Role, ToolCall};
use martlet_session::{AnswerCall, FinishReason, Prompt, Session, TurnOptions};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, Config, Context, Editor, Helper};
use std::io::{self, IsTerminal};
use std::path::Path;

/// A conversation that goes on.
struct Chat<'a> {
    app: &'a App,
    session: Session,
    conversation: Conversation,
    options: TurnOptions,
}

/// Reads, answers, and reads again until the person leaves.
pub fn run(app: &App, options: &TurnOptions) -> anyhow::Result<()> {
    let session = app.open()?;
    let mut chat = Chat { app, conversation: app.conversation(), options: options.clone(), session };
    // Where the answers go to a file, the prompt still belongs on the terminal.
    let behavior = if io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
    let config = Config::builder().behavior(behavior).build();
    let mut editor = Editor::<LineHelper, FileHistory>::with_config(config)?;
    editor.set_helper(Some(LineHelper));
    let history = paths::history_file();
    if let Some(path) = &history {
        // The first time there is none.
        let _ = editor.load_history(path);
    }
    app.terminal.note(&greeting(&chat.session));
    let mut interrupted = false;
    loop {
        match editor.readline(">>> ") {
            Ok(line) => {
                interrupted = false;
                if !line.trim().is_empty() {
                    editor.add_history_entry(line.as_str())?;
                }
                if !chat.handle(&line)? {
                    break;
                }
            }
            Err(ReadlineError::Interrupted) if !interrupted => interrupted = true,
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => break,
            Err(e) => return Err(e.into()),
        }
    }
    if let Some(path) = &history
        && let Err(e) = save_history(&mut editor, path)
    {
        // The conversation went well: its exit code says so.
        app.terminal.note(&format!("the history is not kept: {}: {e}", path.display()));
    }
    Ok(())
}

/// The line above the first prompt.
fn greeting(session: &Session) -> String {
    let (context, device, plan) = (session.context(), session.device(), session.plan());
    let memory = plan.pool.map_or_else(String::new, |pool| {
        format!(", memory: {} for weights, {} for the conversation", size::bytes(plan.weights), size::bytes(pool))
    });
    format!("/help lists the commands, Ctrl-D leaves. Context: {context} tokens, device: {device}{memory}.")
}

fn save_history(editor: &mut Editor<LineHelper, FileHistory>, path: &Path) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    Ok(editor.append_history(path)?)
}

impl Chat<'_> {
    /// Does what was typed; false at the end. Mistakes are told, and the conversation goes on.
    fn handle(&mut self, line: &str) -> anyhow::Result<bool> {
        let terminal = &self.app.terminal;
        let input = match command::parse(line) {
            Ok(input) => input,
            Err(advice) => {
                terminal.error(&[advice]);
                return Ok(true);
            }
        };
        match input {
            Input::Empty => {}
            Input::Quit => return Ok(false),
            Input::Help => terminal.note(&command::help()),
            Input::Say(text) => self.say(text)?,
            Input::System(text) => self.set_system(text),
            Input::Think(choice) => self.conversation.set_thinking(choice),
            Input::Temp(x) => self.options.sampling.temperature = x,
            Input::Clear => {
                self.conversation.messages.retain(|m| m.role == Role::System);
                terminal.note("the conversation is empty");
            }
            Input::Save(path) => self.tell(save(&self.conversation, &path)),
            Input::Load(path) => match input::chat(&path.to_string_lossy()) {
                Ok(chat) => {
                    terminal.note(&format!("{} messages", chat.messages.len()));
                    self.conversation = chat;
                }
                Err(e) => terminal.error(&exit::lines(&e)),
            },
        }
        Ok(true)
    }

    fn tell(&self, result: anyhow::Result<String>) {
        match result {
            Ok(text) => self.app.terminal.note(&text),
            Err(e) => self.app.terminal.error(&exit::lines(&e)),
        }
    }

    /// One turn. A question that got no answer is taken back: the arrow key brings it to the prompt again.
    fn say(&mut self, text: String) -> anyhow::Result<()> {
        self.conversation.messages.push(Message::text(Role::User, text));
        let prompt = Prompt::Chat(self.conversation.clone());
        match answer::run(self.app, &self.session, &prompt, &self.options, Show::Pieces) {
            Ok(Finished { answer, outcome, .. })
                if outcome.reason == FinishReason::Cancelled && answer.text.is_empty() && answer.calls.is_empty() =>
            {
                self.conversation.messages.pop();
            }
            Ok(finished) => self.conversation.messages.push(message(finished)),
            Err(e) if is_refusal(&e) => {
                self.conversation.messages.pop();
                self.app.terminal.error(&exit::lines(&e));
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn set_system(&mut self, text: Option<String>) {
        let messages = &mut self.conversation.messages;
        if messages.first().is_some_and(|m| m.role == Role::System) {
            messages.remove(0);
        }
        if let Some(text) = text {
            messages.insert(0, Message::text(Role::System, text));
        }
    }
}

/// The answer as a message of the history.
fn message(finished: Finished) -> Message {
    let mut message = Message::text(Role::Assistant, finished.answer.text);
    message.reasoning_content = Some(finished.answer.reasoning).filter(|r| !r.is_empty());
    let calls = finished.answer.calls.into_iter();
    let call = |c: AnswerCall| ToolCall { id: None, name: c.name, arguments: Arguments::parse(&c.arguments) };
    message.tool_calls = calls.map(call).collect();
    message
}

fn save(conversation: &Conversation, path: &Path) -> anyhow::Result<String> {
    let json = serde_json::to_string_pretty(conversation)? + "\n";
    std::fs::write(path, json).with_context(|| format!("{} can not be written", path.display()))?;
    Ok(format!("written to {}", path.display()))
}

/// What the line editor asks of us: whether a text is complete, and which commands there are.
struct LineHelper;

impl Helper for LineHelper {}
impl Highlighter for LineHelper {}

impl Hinter for LineHelper {
    type Hint = String;
}

impl Validator for LineHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match command::is_unfinished(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Completer for LineHelper {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = line.get(..at).unwrap_or_default();
        let names = COMMANDS.iter().map(|c| c.0).filter(|name| typed.starts_with('/') && name.starts_with(typed));
        Ok((0, names.map(str::to_string).collect()))
    }
}
