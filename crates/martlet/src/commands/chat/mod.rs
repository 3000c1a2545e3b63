//! `martlet chat`: one question, or a conversation.

mod command;
mod interactive;

use crate::answer::{self, Show};
use crate::app::App;
use crate::cli::{SamplingArgs, ThinkArgs};
use crate::exit::{Interrupted, Usage};
use crate::input;
use martlet_chat::{Message, Role};
use martlet_session::Prompt;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The question. Text that is piped in follows it. Without either, a conversation begins
    pub message: Option<String>,
    /// System message: what the model is told before all else
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub think: ThinkArgs,
    /// Print one JSON object instead of text (for one question)
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

const EXAMPLES: &str = "\
Examples:
  martlet chat hello
  martlet chat \"What is 4642 - 27?\"
  martlet chat --no-think --greedy \"What is 7 * 8?\"
  cat notes.txt | martlet chat \"Summarise this:\"
  martlet chat                     a conversation; /help lists its commands

The answer goes to standard output, thinking and everything else to standard
error: 2>/dev/null or --quiet leaves the answer alone.";

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    match question(args.message.as_deref(), input::piped()?)? {
        Some(question) => one_shot(args, app, question),
        None if args.json => {
            Err(Usage("--json answers one question: give it as an argument, or pipe it in".into()).into())
        }
        None => interactive::run(app, &app.turn_options(&args.sampling)),
    }
}

/// The argument, then what was piped in; `None` when there is neither.
fn question(argument: Option<&str>, piped: Option<String>) -> Result<Option<String>, Usage> {
    let piped_in = piped.is_some();
    let parts: Vec<&str> =
        [argument, piped.as_deref()].into_iter().flatten().filter(|p| !p.trim().is_empty()).collect();
    match parts.is_empty() {
        true if piped_in => Err(Usage("standard input is empty, so there is no question".into())),
        true => Ok(None),
        false => Ok(Some(parts.join("\n\n"))),
    }
}

fn one_shot(args: &Args, app: &App, question: String) -> anyhow::Result<()> {
    let mut chat = app.conversation();
    chat.messages.push(Message::text(Role::User, question));
    let session = app.open()?;
    let show = if args.json { Show::Json } else { Show::Pieces };
    let finished = answer::run(app, &session, &Prompt::Chat(chat), &app.turn_options(&args.sampling), show)?;
    if finished.is_cancelled() { Err(Interrupted.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_the_argument_and_then_what_was_piped_in() {
        let ask =
            |argument, piped: Option<&str>| question(argument, piped.map(String::from)).map_err(|e| e.to_string());
        assert_eq!(ask(Some("a"), None), Ok(Some("a".into())));
        assert_eq!(ask(None, Some("b")), Ok(Some("b".into())));
        assert_eq!(ask(Some("a"), Some("b")), Ok(Some("a\n\nb".into())));
        assert_eq!(ask(Some("a"), Some("")), Ok(Some("a".into())));
        assert_eq!(ask(None, None), Ok(None));
        assert!(ask(None, Some(" \n")).is_err());
    }
}
