//! `martlet inspect`: what a checkpoint holds.

use crate::app::App;
use crate::size;
use martlet_chat::{Conversation, Message, Role};
use martlet_model::{MixerSpec, MlpSpec, ModelSpec};
use martlet_session::{DraftCheck, KvScheme, PAGE, check_drafts};
use martlet_weights::{Layout, Report};
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Checkpoint folder, pack, .safetensors or .gguf file [default: the model of the settings]
    #[arg(value_name = "MODEL")]
    pub path: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Run the draft head (MTP), and tell under which input convention its drafts are accepted
    #[arg(long)]
    pub check_mtp: bool,
}

const EXAMPLES: &str = "\
Examples:
  martlet inspect ~/models/Qwen3.5-35B
  martlet inspect ~/models/Qwen3.5-35B --json | jq .weights.bytes_per_token
  martlet inspect ~/models/Qwen3.5-35B --check-mtp

Every tensor is in use, or listed as ignored with the reason; one that is
missing or misshapen is an error.";

/// Tokens over which drafts are counted, and what they go on from.
const CHECKED_TOKENS: usize = 64;
const CHECK_QUESTION: &str = "Write a tiny story about a fox, a lamp and a river.";

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let source = app.model();
    let (spec, report, checkpoint) = source.check()?;
    let has_mtp = checkpoint.has("mtp.fc.weight");
    drop(checkpoint);
    let drafts = match args.check_mtp {
        true => Some(check(app, &spec)?),
        false => None,
    };
    let inspection = Inspection::new(source.name(), &spec, &report, has_mtp, drafts);
    let text = match args.json {
        true => serde_json::to_string_pretty(&inspection)? + "\n",
        false => inspection.text(),
    };
    Ok(app.terminal.result(&text)?)
}

fn check(app: &App, spec: &ModelSpec) -> anyhow::Result<Vec<Drafts>> {
    let source = app.model();
    let ids = match source.text() {
        Ok(text) => {
            let chat = Conversation::new(vec![Message::text(Role::User, CHECK_QUESTION)]);
            // Without a template the question is a text like any other.
            let prompt = text.render(&chat, true).unwrap_or_else(|_| CHECK_QUESTION.to_string());
            text.tokenizer.encode(&prompt)?
        }
        // Without a tokenizer any ids do: the model is compared with itself.
        Err(_) => (0..16).map(|i| i * 7 % spec.vocabulary as u32).collect(),
    };
    let checks = check_drafts(&source, &app.options()?, &ids, CHECKED_TOKENS)?;
    Ok(checks.iter().map(Drafts::new).collect())
}

/// What is printed.
#[derive(Serialize)]
struct Inspection<'a> {
    model: String,
    architecture: Architecture,
    weights: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtp_check: Option<Vec<Drafts>>,
}

#[derive(Serialize)]
struct Architecture {
    model_type: &'static str,
    layers: usize,
    attention_layers: usize,
    linear_layers: usize,
    hidden: usize,
    vocabulary: usize,
    context: usize,
    tied_head: bool,
    /// Of the first layer with experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    experts: Option<Experts>,
    /// Bytes of keys and values that a token adds, with 2 bytes a value.
    kv_bytes_per_token: usize,
    mtp: bool,
}

#[derive(Serialize)]
struct Experts {
    count: usize,
    chosen: usize,
    width: usize,
    shared_width: usize,
}

/// Acceptance of drafts under one convention.
#[derive(Serialize)]
struct Drafts {
    embedding_first: bool,
    hidden_after_norm: bool,
    norms_stored_minus_one: bool,
    accepted: usize,
    drafts: usize,
    acceptance: f64,
}

impl Drafts {
    fn new(check: &DraftCheck) -> Drafts {
        let report = &check.report;
        Drafts {
            embedding_first: report.convention.embedding_first,
            hidden_after_norm: report.convention.hidden_after_norm,
            norms_stored_minus_one: check.norm_shift,
            accepted: report.accepted,
            drafts: report.drafts,
            acceptance: report.acceptance(),
        }
    }
}

impl Architecture {
    fn new(spec: &ModelSpec, mtp: bool) -> Architecture {
        let attention = spec.layers.iter().filter(|l| matches!(l.mixer, MixerSpec::Attention(_))).count();
        let experts = spec.layers.iter().find_map(|l| match l.mlp {
            MlpSpec::Experts { route, width, shared } => {
                Some(Experts { count: route.experts, chosen: route.chosen, width, shared_width: shared })
            }
            MlpSpec::Dense { .. } => None,
        });
        Architecture {
            model_type: spec.model_type,
            layers: spec.layers.len(),
            attention_layers: attention,
            linear_layers: spec.layers.len() - attention,
            hidden: spec.hidden,
            vocabulary: spec.vocabulary,
            context: spec.context,
            tied_head: spec.tied,
            experts,
            kv_bytes_per_token: spec.page_bytes(mtp, KvScheme::F16).iter().sum::<usize>() / PAGE,
            mtp,
        }
    }
}

impl<'a> Inspection<'a> {
    fn new(
        model: String,
        spec: &ModelSpec,
        weights: &'a Report,
        mtp: bool,
        mtp_check: Option<Vec<Drafts>>,
    ) -> Inspection<'a> {
        Inspection { model, architecture: Architecture::new(spec, mtp), weights, mtp_check }
    }

    fn text(&self) -> String {
        let mut lines = Lines::default();
        self.architecture_lines(&mut lines);
        self.weight_lines(&mut lines);
        if let Some(checks) = &self.mtp_check {
            mtp_lines(checks, &mut lines);
        }
        lines.0
    }

    fn architecture_lines(&self, lines: &mut Lines) {
        let a = &self.architecture;
        lines.add("model", &self.model);
        let layout = match self.weights.layout {
            Layout::Hf => "Hugging Face",
            Layout::Mlx => "MLX",
            Layout::Gguf => "GGUF",
            Layout::Pack => "a pack",
        };
        lines.add("architecture", format!("{}, in the layout of {layout}", a.model_type));
        let layers =
            format!("{} ({} linear attention, {} full attention)", a.layers, a.linear_layers, a.attention_layers);
        lines.add("layers", layers);
        let head = if a.tied_head { "tied head" } else { "own head" };
        lines.add("sizes", format!("hidden {}, vocabulary {} ({head})", a.hidden, a.vocabulary));
        if let Some(e) = &a.experts {
            let (width, shared) = (e.width, e.shared_width);
            let text = format!("{} of {} a token, width {width}, and one shared of {shared}", e.chosen, e.count);
            lines.add("experts", text);
        }
        lines.add(
            "context",
            format!("{} tokens, {} of KV cache each (f16)", a.context, size::bytes(a.kv_bytes_per_token as u64)),
        );
        lines.add("draft head", if a.mtp { "yes (MTP)" } else { "none" });
    }

    fn weight_lines(&self, lines: &mut Lines) {
        let w = self.weights;
        let (all, active, draft) = (w.parameters, w.active_parameters, w.draft_parameters);
        let (all, active, draft) = (size::count(all), size::count(active), size::count(draft));
        lines.add("parameters", format!("{all} in all ({draft} in the draft head), {active} active for a token"));
        lines.add(
            "bytes",
            format!("{}, {} read for a token at decode", size::bytes(w.bytes), size::bytes(w.bytes_per_token)),
        );
        for s in &w.schemes {
            let bits = s.bytes as f64 * 8.0 / s.weights.max(1) as f64;
            let text = format!(
                "{} tensors, {} weights, {} ({bits:.2} bits each)",
                s.tensors,
                size::count(s.weights),
                size::bytes(s.bytes)
            );
            lines.add("scheme", format!("{:24} {text}", s.scheme));
        }
        for f in &w.files {
            lines.add("file", format!("{:24} {}, {} tensors", f.name, size::bytes(f.bytes), f.tensors));
        }
        for i in &w.ignored {
            lines.add(
                "ignored",
                format!("{}* ({} tensors, {}): {}", i.prefix, i.names.len(), size::bytes(i.bytes), i.reason),
            );
        }
        for name in &w.unread_files {
            lines.add("not read", format!("{name}: no file of the index"));
        }
        lines.add("missing", "nothing");
    }
}

fn mtp_lines(checks: &[Drafts], lines: &mut Lines) {
    for c in checks {
        let order = if c.embedding_first { "[embedding, hidden]" } else { "[hidden, embedding]" };
        let hidden = if c.hidden_after_norm { "after" } else { "before" };
        let norms = if c.norms_stored_minus_one { "value - 1" } else { "value" };
        let (share, accepted, drafts) = (c.acceptance * 100.0, c.accepted, c.drafts);
        lines.add("mtp check", format!("{share:5.1} % ({accepted} of {drafts}) with {order}, hidden {hidden} the final norm, norms stored as {norms}"));
    }
}

/// Lines of a name and a text.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, text: impl AsRef<str>) {
        // Writing to a String does not fail.
        let _ = writeln!(self.0, "{name:13} {}", text.as_ref());
    }
}
