//! `martlet plan`: where the memory would go.

mod speed;

use crate::app::App;
use crate::settings::KV;
use crate::size;
use martlet_session::{Options, Plan, free_memory};
use serde::Serialize;
use speed::Speed;
use std::fmt::Write as _;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Checkpoint folder, pack, .safetensors or .gguf file [default: the model of the settings]
    #[arg(value_name = "MODEL")]
    pub path: Option<String>,
    /// Conversations at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub sequences: u16,
    /// Measure memory and disk too, which takes some seconds, and say how fast it would answer
    #[arg(long)]
    pub speed: bool,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  martlet plan ~/models/Qwen3.5-35B
  martlet plan ~/models/Qwen3.5-35B --memory 24GiB --kv q8
  martlet plan ~/models/Qwen3.5-35B.martlet --memory 8GiB --speed
  martlet plan ~/models/Qwen3.5-35B --context 64k && echo it fits
  martlet plan --json | jq .context

Nothing is loaded. Without --memory it is what the weights need, and seven
eighths of what is free beside them. Exit code 3: it does not fit.";

/// Tokens for which keys and values are counted.
const TOKENS: u64 = 1000;

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let source = app.model();
    let options = Options { sequences: args.sequences.into(), ..app.options()? };
    let plan = source.plan(&options)?;
    let speed = args.speed.then(|| Speed::measure(app, &source, &plan)).transpose()?;
    let shown = Shown::new(source.name(), &plan, free_memory(), speed);
    let text = match args.json {
        true => serde_json::to_string_pretty(&shown)? + "\n",
        false => shown.text(app.settings.memory.is_some()),
    };
    Ok(app.terminal.result(&text)?)
}

/// What is printed; sizes in bytes.
#[derive(Serialize)]
struct Shown {
    model: String,
    /// For everything.
    memory: Option<u64>,
    /// At the moment.
    free: Option<u64>,
    weights: u64,
    /// Slots for experts that are read from disk; 0: all are in memory.
    experts: u64,
    /// Buffers of a step of `prefill_chunk` prompt tokens.
    scratch: u64,
    prefill_chunk: usize,
    sequences: usize,
    /// Recurrent states of each sequence.
    state: u64,
    kv: &'static str,
    kv_per_1000_tokens: u64,
    /// Left for keys, values and caches.
    pool: Option<u64>,
    /// Tokens of the longest conversation.
    context: usize,
    model_context: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    speed: Option<Speed>,
}

impl Shown {
    fn new(model: String, plan: &Plan, free: Option<u64>, speed: Option<Speed>) -> Shown {
        Shown {
            model,
            memory: plan.memory,
            free,
            weights: plan.weights,
            experts: plan.experts,
            scratch: plan.scratch,
            prefill_chunk: plan.prefill_chunk,
            sequences: plan.sequences,
            state: plan.state,
            kv: KV.iter().find(|(_, scheme)| *scheme == plan.kv).map_or("other", |(name, _)| name),
            kv_per_1000_tokens: plan.page * TOKENS / martlet_session::PAGE as u64,
            pool: plan.pool,
            context: plan.context,
            model_context: plan.model_context,
            speed,
        }
    }

    fn text(&self, asked: bool) -> String {
        let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_string(), size::bytes);
        let origin = if asked { "as asked for" } else { "at most; --memory sets another limit" };
        let sequences = if self.sequences == 1 { "conversation" } else { "conversations" };
        let mut text = String::new();
        let mut line = |name: &str, size: String, what: &str| {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{name:14} {size:>12}  {what}");
        };
        line("model", self.model.clone(), "");
        line("memory", known(self.memory), &format!("{origin}; {} are free now", known(self.free)));
        line("weights", size::bytes(self.weights), "on the device");
        if self.experts > 0 {
            line(
                "experts",
                size::bytes(self.experts),
                "of them stay in memory; the others are read as they are chosen",
            );
        }
        line("buffers", size::bytes(self.scratch), &format!("for {} prompt tokens at a time", self.prefill_chunk));
        let states = self.state * self.sequences as u64;
        line("states", size::bytes(states), &format!("of {} {sequences}", self.sequences));
        line("left", known(self.pool), "for keys, values and the prefix cache");
        line("1,000 tokens", size::bytes(self.kv_per_1000_tokens), &format!("of keys and values ({})", self.kv));
        line("context", format!("{} tokens", self.context), &self.verdict());
        for (name, size, what) in self.speed.iter().flat_map(Speed::lines) {
            line(name, size, &what);
        }
        text.lines().map(|l| format!("{}\n", l.trim_end())).collect()
    }

    fn verdict(&self) -> String {
        match self.context.cmp(&self.model_context) {
            std::cmp::Ordering::Less => format!("of {} that the model was made for", self.model_context),
            std::cmp::Ordering::Equal => "all that the model was made for".to_string(),
            std::cmp::Ordering::Greater => format!("beyond the {} that the model was made for", self.model_context),
        }
    }
}
