//! The command line: global flags and subcommands.

use crate::commands::{
    bench, benchtest, cache, chat, config, generate, inspect, models, pack, plan, pull, quantize, replay, serve,
    service, simulate, stats, synthetic, template, tokenize, trace_experts,
};
use crate::exit;
use crate::settings::KV;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use martlet_session::{DeviceKind, DrafterChoice, Experts, Isa, Load, LookAhead};
use std::path::PathBuf;

#[derive(Debug, Parser)]
#[command(
    name = "martlet",
    version,
    about = "Runs Qwen3-Next, 3.5 and 3.6 models on your own machine",
    after_help = exit::HELP,
    arg_required_else_help = true,
    // The last of several is meant: an alias may hold flags too.
    args_override_self = true
)]
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Talk to a model: one question, or a conversation
    Chat(chat::Args),
    /// Serve a model to programs, with the APIs of OpenAI and Anthropic
    Serve(serve::Args),
    /// Have `serve` run in the background, from login on
    Service(service::Args),
    /// Show what a running server does: model, requests, caches
    Stats(stats::Args),
    /// Go on from a raw prompt, a chat file, or token ids
    Generate(generate::Args),
    /// Turn text into token ids, or back
    Tokenize(tokenize::Args),
    /// Print the prompt that a chat file becomes
    Template(template::Args),
    /// Show what the output parser makes of a trace
    Replay(replay::Args),
    /// Show what a checkpoint holds
    Inspect(inspect::Args),
    /// Show what a model would take of the memory, and how long a context fits
    Plan(plan::Args),
    /// Fetch a model, and install it under a name
    Pull(pull::Args),
    /// Show the installed models
    List(models::ListArgs),
    /// Delete installed models
    Rm(models::RmArgs),
    /// Read an installed model, and tell whether it is as it was written
    Verify(models::OneArgs),
    /// Print where an installed model is
    Path(models::OneArgs),
    /// Write a checkpoint with packed weights (in the layout of MLX)
    Quantize(quantize::Args),
    /// Write a model in the form in which it is computed, which opens at once
    Pack(pack::Args),
    /// Measure how fast a model runs, beside what this machine's memory gives
    Bench(bench::Args),
    /// Measure machine and model within two minutes, for a report to share; nothing is sent
    Benchtest(benchtest::Args),
    /// Write a checkpoint of random weights in the shape of a released model, for measuring
    Synthetic(synthetic::Args),
    /// Record which experts a model chooses, and how often they would be in memory under several policies
    TraceExperts(trace_experts::Args),
    /// Run a command as if on a machine with less memory and a slower disk
    Simulate(simulate::Args),
    /// Look after what the prefix cache keeps on disk
    Cache(cache::Args),
    /// Show settings and where they come from
    Config(config::Args),
    /// Print a completion script for a shell
    Completions { shell: Shell },
    /// Write man pages to a folder
    Man { dir: PathBuf },
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub struct GlobalArgs {
    /// Name of an installed model, checkpoint folder, pack, .safetensors or .gguf file; "fledgling" is the tiny model inside martlet
    #[arg(short, long, global = true, value_name = "MODEL")]
    pub model: Option<String>,
    /// What computes
    #[arg(long, global = true, value_parser = DeviceKind::NAMES)]
    pub device: Option<String>,
    /// Weights of a pack: use its files where they lie, or copy them into memory [default: map]
    #[arg(long, global = true, value_parser = Load::NAMES)]
    pub load: Option<String>,
    /// Experts of a pack: in memory, or read from disk as they are chosen [default: auto, in memory if they fit]
    #[arg(long, global = true, value_parser = Experts::NAMES)]
    pub experts: Option<String>,
    /// Read experts from disk before they are chosen; it never changes a text [default: auto, where it pays]
    #[arg(long, global = true, value_parser = LookAhead::NAMES)]
    pub look_ahead: Option<String>,
    /// Threads that compute [default: one for each physical core]
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<String>,
    /// Instructions that the cpu device uses; it never changes a result [default: the best that there is]
    #[arg(long, global = true, value_parser = Isa::NAMES)]
    pub isa: Option<String>,
    /// Tokens of prompt and answer together, such as 8192 or 8k [default: the model's own, as far as memory goes]
    #[arg(long, global = true, value_name = "N")]
    pub context: Option<String>,
    /// Bytes for weights, keys, values and caches together, such as 12GiB [default: most of what is free]
    #[arg(long, global = true, value_name = "SIZE")]
    pub memory: Option<String>,
    /// How keys and values are kept; q8 takes half of f16 [default: f16]
    #[arg(long, global = true, value_parser = KV.map(|(name, _)| name))]
    pub kv: Option<String>,
    /// Who guesses next tokens; it never changes a text [default: auto, whatever pays]
    #[arg(long, global = true, value_parser = DrafterChoice::ALL.map(DrafterChoice::as_str))]
    pub drafter: Option<String>,
    /// When a draft of a sampled answer is right: if plain sampling gives it too, or (more are right, but texts depend on
    /// drafts) by rejection sampling
    #[arg(long, global = true, value_parser = ["same", "rejection"])]
    pub accept: Option<String>,
    /// Keep states, so that a prompt that begins like an earlier one is computed from where it differs [default: true]
    #[arg(long, global = true, value_name = "BOOL", value_parser = ["true", "false"])]
    pub prefix_cache: Option<String>,
    /// Keep so many bytes of such states on disk, such as 20GiB, for later runs. They hold what was said, for whoever
    /// can read the folder of `martlet cache`, so this is off by default
    #[arg(long, global = true, value_name = "SIZE")]
    pub disk_cache: Option<String>,
    /// When to use colours
    #[arg(long, global = true, value_parser = ["auto", "always", "never"])]
    pub color: Option<String>,
    /// Print nothing but answers and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// Flags of everything that generates.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sampling (default: the checkpoint's own values)")]
pub struct SamplingArgs {
    /// 0 is greedy; higher is more varied
    #[arg(long, visible_alias = "temperature", value_name = "X", allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// The most probable token each time: the same as --temp 0
    #[arg(long, conflicts_with = "temp")]
    pub greedy: bool,
    /// Sample from so many most probable tokens; 0: from all
    #[arg(long, value_name = "N")]
    pub top_k: Option<u32>,
    /// Sample from the most probable tokens that sum to this
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Least probability of a token, as a share of the largest
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that occurred; 1: off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from the logits of answered tokens; 0: off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Subtracted for each time that a token was answered; 0: off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Added to the logit of a token, from -100 to 100 or -inf (may be repeated)
    #[arg(long, value_name = "ID=VALUE", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same text
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Most tokens of the answer; negative: until its end or the context's [default: -1]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    pub max_tokens: Option<i64>,
    /// End the answer before this text (may be repeated)
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Most prompt tokens computed in one step; never changes a result
    #[arg(long, value_name = "N")]
    pub prefill_chunk: Option<String>,
}

/// Whether the model thinks before it answers.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ThinkArgs {
    /// Think before the answer
    #[arg(long, overrides_with = "no_think")]
    pub think: bool,
    /// Answer at once
    #[arg(long, overrides_with = "think")]
    pub no_think: bool,
}

impl ThinkArgs {
    pub fn choice(self) -> Option<bool> {
        (self.think || self.no_think).then_some(self.think)
    }
}

/// A flag as a setting.
type Flag = (&'static str, String);

fn add(flags: &mut Vec<Flag>, key: &'static str, value: Option<impl ToString>) {
    flags.extend(value.map(|v| (key, v.to_string())));
}

/// An argument goes before the flag.
fn nearer_model(flags: &mut Vec<Flag>, argument: Option<&String>) {
    flags.retain(|(key, _)| *key != "model" || argument.is_none());
    add(flags, "model", argument);
}

impl Cli {
    /// The flags that are settings too.
    pub fn flags(&self) -> Vec<Flag> {
        let mut flags = Vec::new();
        let GlobalArgs {
            model,
            device,
            load,
            experts,
            look_ahead,
            threads,
            isa,
            context,
            memory,
            kv,
            drafter,
            accept,
            prefix_cache,
            disk_cache,
            color,
            quiet,
        } = &self.global;
        let named = [
            ("model", model),
            ("device", device),
            ("load", load),
            ("experts", experts),
            ("look_ahead", look_ahead),
            ("threads", threads),
            ("isa", isa),
            ("context", context),
            ("memory", memory),
            ("kv", kv),
            ("drafter", drafter),
            ("accept", accept),
            ("prefix_cache", prefix_cache),
            ("disk_cache", disk_cache),
            ("color", color),
        ];
        named.into_iter().for_each(|(key, value)| add(&mut flags, key, value.as_ref()));
        add(&mut flags, "quiet", quiet.then_some(true));
        match &self.command {
            Command::Chat(args) => {
                args.sampling.add_flags(&mut flags);
                add(&mut flags, "think", args.think.choice());
                add(&mut flags, "system", args.system.as_ref());
            }
            Command::Generate(args) => {
                args.sampling.add_flags(&mut flags);
                add(&mut flags, "think", args.think.choice());
            }
            Command::Serve(args) => flags.extend(args.flags()),
            Command::Service(service::Args { what: service::What::Install(args) }) => flags.extend(args.serve.flags()),
            Command::Stats(args) => {
                add(&mut flags, "host", args.host.as_ref());
                add(&mut flags, "port", args.port.as_ref());
                add(&mut flags, "api_key", args.api_key.as_ref());
            }
            Command::Template(args) => add(&mut flags, "think", args.think.choice()),
            Command::Cache(args) => add(&mut flags, "cache_dir", args.what.place().dir.as_ref()),
            Command::Inspect(args) => nearer_model(&mut flags, args.path.as_ref()),
            Command::Plan(args) => nearer_model(&mut flags, args.path.as_ref()),
            _ => {}
        }
        flags
    }
}

impl SamplingArgs {
    fn add_flags(&self, flags: &mut Vec<Flag>) {
        add(flags, "temperature", if self.greedy { Some(0.0) } else { self.temp });
        add(flags, "top_k", self.top_k);
        add(flags, "top_p", self.top_p);
        add(flags, "min_p", self.min_p);
        add(flags, "repetition_penalty", self.repetition_penalty);
        add(flags, "presence_penalty", self.presence_penalty);
        add(flags, "frequency_penalty", self.frequency_penalty);
        add(flags, "seed", self.seed);
        add(flags, "max_tokens", self.max_tokens);
        add(flags, "prefill_chunk", self.prefill_chunk.as_ref());
    }
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, value) = text.split_once('=').ok_or("ID=VALUE is expected, such as 42=-5")?;
    let id = id.trim().parse().map_err(|_| format!("\"{id}\" is no token id"))?;
    let value = value.trim().parse().map_err(|_| format!("\"{value}\" is no number"))?;
    Ok((id, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    fn flags(line: &str) -> Vec<Flag> {
        Cli::try_parse_from(line.split(' ')).unwrap().flags()
    }

    fn sorted(mut flags: Vec<Flag>) -> Vec<Flag> {
        flags.sort();
        flags
    }

    #[test]
    fn flags_become_settings() {
        let found = flags("martlet -m x chat --temp 0.25 --no-think --max-tokens -1 -q hello");
        let expected =
            [("model", "x"), ("quiet", "true"), ("temperature", "0.25"), ("max_tokens", "-1"), ("think", "false")];
        assert_eq!(found, expected.map(|(k, v)| (k, v.to_string())));
        assert_eq!(flags("martlet generate --greedy --ids 1"), [("temperature", "0".to_string())]);
        assert_eq!(flags("martlet inspect -m a b"), [("model", "b".to_string())]);
        let planned = [("model", "b"), ("memory", "1G"), ("kv", "q8")].map(|(k, v)| (k, v.to_string()));
        assert_eq!(sorted(flags("martlet plan b --kv q8 --memory 1G")), sorted(planned.to_vec()));
        assert_eq!(logit_bias("7=-inf"), Ok((7, f32::NEG_INFINITY)));
        assert!(logit_bias("x=1").is_err() && logit_bias("1").is_err());
    }
}
