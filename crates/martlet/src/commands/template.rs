//! `martlet template`: the prompt that a chat file becomes.

use crate::app::App;
use crate::cli::ThinkArgs;
use crate::input;
use martlet_session::SessionError;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The chat file: {"messages": [...], "tools": [...], "enable_thinking": true}; "-" is standard input
    #[arg(value_name = "FILE", required_unless_present = "chat", conflicts_with = "chat")]
    pub file: Option<String>,
    /// The same as FILE
    #[arg(long, value_name = "FILE")]
    pub chat: Option<String>,
    /// End after the last message, without the beginning of an answer
    #[arg(long)]
    pub no_generation_prompt: bool,
    #[command(flatten)]
    pub think: ThinkArgs,
}

const EXAMPLES: &str = "\
Examples:
  martlet template chat.json
  echo '[{\"role\": \"user\", \"content\": \"hello\"}]' | martlet template - --no-think

The prompt is printed as it is, without a newline at its end.";

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let path = args.file.as_ref().or(args.chat.as_ref()).map_or("-", String::as_str);
    let mut chat = input::chat(path)?;
    input::choose_thinking(&mut chat, args.think.choice(), app.settings.think);
    let text = app.model().text()?;
    let prompt = text.render(&chat, !args.no_generation_prompt).map_err(SessionError::from)?;
    Ok(app.terminal.answer(&prompt)?)
}
