//! `martlet generate`: go on from a raw prompt, a chat file, or token ids.

use crate::answer::{self, Show};
use crate::app::App;
use crate::cli::{SamplingArgs, ThinkArgs};
use crate::exit::{Interrupted, Usage};
use crate::input;
use martlet_session::{Prompt, TurnOptions};

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The text to go on from, as it is; standard input if it is missing
    #[arg(conflicts_with_all = ["prompt_file", "chat", "ids"])]
    pub prompt: Option<String>,
    /// A file with the text to go on from; "-" is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["chat", "ids"])]
    pub prompt_file: Option<String>,
    /// A chat file: {"messages": [...], "tools": [...], "enable_thinking": true}; "-" is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "ids")]
    pub chat: Option<String>,
    /// Token ids to go on from, such as 1,2,3; works without a tokenizer. "-" is standard input
    #[arg(long, value_name = "IDS")]
    pub ids: Option<String>,
    /// Go on when the model ends its answer
    #[arg(long)]
    pub ignore_eos: bool,
    /// Report the log-probability of each token, and of the N most probable ones (with --json)
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub think: ThinkArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

const EXAMPLES: &str = "\
Examples:
  martlet generate --chat chat.json --greedy
  martlet generate -m MODEL \"Once upon a time\" --max-tokens 50
  echo \"def add(a, b):\" | martlet generate -m MODEL --stop $'\\n\\n'
  martlet generate -m MODEL --ids 9707,11 --logprobs 5 --json

One newline at the end of standard input is dropped; a --prompt-file is taken
as it is. Keys of the JSON object: prompt_ids, token_ids (the end token
included), text, reasoning and tool_calls (with --chat), finish_reason (stop,
tool_calls, length, repetition or cancelled), stop_token or stop_string,
logprobs (natural, of the model before sampling), usage, timings (in seconds),
seed, model, device, context.";

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let prompt = prompt(args, app)?;
    let options = TurnOptions {
        ignore_eos: args.ignore_eos,
        logprobs: args.logprobs,
        // Without a tokenizer the ids are the output.
        tokens: true,
        ..app.turn_options(&args.sampling)
    };
    let session = app.open()?;
    let show = if args.json { Show::Json } else { Show::Pieces };
    let finished = answer::run(app, &session, &prompt, &options, show)?;
    if show == Show::Pieces && session.text().is_none() {
        let ids: Vec<String> = finished.answer.tokens.iter().map(|t| t.id.to_string()).collect();
        app.terminal.result(&format!("{}\n", ids.join(",")))?;
    }
    if finished.is_cancelled() { Err(Interrupted.into()) } else { Ok(()) }
}

fn prompt(args: &Args, app: &App) -> anyhow::Result<Prompt> {
    if let Some(path) = &args.chat {
        let mut chat = input::chat(path)?;
        input::choose_thinking(&mut chat, args.think.choice(), app.settings.think);
        return Ok(Prompt::Chat(chat));
    }
    if let Some(ids) = &args.ids {
        let ids = if ids == "-" { input::ids(&input::stdin()?)? } else { input::ids(ids)? };
        return Ok(Prompt::Ids(ids));
    }
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => Some(text.clone()),
        (None, Some(path)) => Some(input::file(path)?),
        (None, None) => input::piped()?,
    };
    match text {
        Some(text) => Ok(Prompt::Text(text)),
        None => {
            Err(Usage("there is no prompt: give a text, --prompt-file, --chat, --ids, or pipe a text in".into()).into())
        }
    }
}
