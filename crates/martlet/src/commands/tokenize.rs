//! `martlet tokenize`: text to token ids, and back.

use crate::app::App;
use crate::exit::Usage;
use crate::input;
use martlet_chat::SpecialTokens;
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The text, or with --decode the ids; standard input if it is missing
    pub input: Option<String>,
    /// Turn ids into text
    #[arg(long)]
    pub decode: bool,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  martlet tokenize \"hello world\"
  martlet tokenize --decode 3630,4056,232
  martlet tokenize --json -m MODEL < prompt.txt

Special tokens such as <|im_end|> are read and shown as tokens. One newline at
the end of standard input is dropped.";

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let text = match &args.input {
        Some(text) => text.clone(),
        None => {
            input::piped()?.ok_or_else(|| Usage("there is no text: give it as an argument, or pipe it in".into()))?
        }
    };
    let tokenizer = app.model().text()?.tokenizer;
    let (ids, text) = if args.decode {
        let ids = input::ids(&text)?;
        let text = tokenizer.decode(&ids, SpecialTokens::Show);
        (ids, text)
    } else {
        (tokenizer.encode(&text)?, text)
    };
    if args.json {
        let tokens: Vec<_> = ids.iter().map(|&id| tokenizer.decode(&[id], SpecialTokens::Show)).collect();
        return Ok(app.terminal.result(&format!("{}\n", json!({"text": text, "ids": ids, "tokens": tokens})))?);
    }
    if args.decode {
        return Ok(app.terminal.answer(&format!("{text}\n"))?);
    }
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    Ok(app.terminal.result(&format!("{}\n", ids.join(",")))?)
}
