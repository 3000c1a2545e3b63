//! What packed weights, and the CPU device's 8-bit activations beside them, cost fledgling: mean KL divergence against
//! its bf16 weights on the reference device in f32, over given tokens of its own conversations.
//!
//!     cargo run --release -p martlet-tests --example kl -- [TOKENS] [SCHEME..] [--json]
//!
//! TOKENS: 2000 unless told. SCHEME: such as 4/64, mxfp4; all unless told. The reference device is what takes the time.
//!
//! Another engine beside ours, on the same file with fledgling's weights and over the same tokens:
//!
//!     kl -- [TOKENS] --ids OUT            # writes the token ids, a line for each text
//!     kl -- [TOKENS] --file MODEL.gguf [--logits FILE]
//!
//! FILE: what the other engine computed, f32, all logits after every token of every text, in order.

use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::KvScheme;
use martlet_device::reference::Reference;
use martlet_tests::divergence::{Divergence, Logits, Mean, divergence, logits, schemes, texts};
use martlet_tests::fixtures;
use martlet_tests::random::packed;
use martlet_weights::Checkpoint;
use martlet_weights::quantise::{Mode, Options};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Of files that other engines read too.
const FILE_HEAD: &str = "\
| file | KL, exact activations | KL, CPU device | KL, the other engine | CPU device less the other | equal first tokens: exact, CPU, other |
| --- | --- | --- | --- | --- | --- |";

const HEAD: &str = "\
| weights | KL, exact activations | KL, CPU device | added | exact against CPU | equal first tokens: exact, CPU |
| --- | --- | --- | --- | --- | --- |";

/// One line of the table. A row about the cache of keys and values has nothing exact beside it.
struct Row {
    name: String,
    exact: Option<Divergence>,
    cpu: Divergence,
    /// KL(exact || CPU).
    apart: Option<Divergence>,
}

struct Bench {
    texts: Vec<Vec<u32>>,
    base: Logits,
    source: Checkpoint,
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().position(|a| a == "--json").map(|at| arguments.remove(at)).is_some();
    let mut value = |name: &str| {
        let at = arguments.iter().position(|a| a == name)?;
        arguments.remove(at);
        assert!(at < arguments.len(), "{name} wants a path behind it");
        Some(PathBuf::from(arguments.remove(at)))
    };
    let (ids, file, other) = (value("--ids"), value("--file"), value("--logits"));
    let tokens = arguments.first().and_then(|a| a.parse().ok());
    let wanted = &arguments[usize::from(tokens.is_some())..];
    let texts = texts(tokens.unwrap_or(2000));
    if let Some(path) = ids {
        let line = |ids: &Vec<u32>| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ") + "\n";
        return std::fs::write(path, texts.iter().map(line).collect::<String>()).expect("a file that can be written");
    }
    let source = Checkpoint::open(&fixtures::fledgling()).unwrap_or_else(|e| panic!("{e}"));
    let base = logits(Reference::new(), &source, KvScheme::F32, &texts);
    let bench = Bench { texts, base, source };
    if let Some(file) = file {
        return bench.file(&file, other.as_deref());
    }

    let mut rows = Vec::new();
    let mut report = |row: Row| {
        if json {
            rows.push(row.json());
        } else {
            println!("{}", row.line());
        }
    };
    if !json {
        println!("{} tokens of {} conversations\n\n{HEAD}", tokens_of(&bench.texts), bench.texts.len());
    }
    if wanted.is_empty() {
        report(bench.kv("bf16", &bench.source, KvScheme::F32));
        let packed = packed(&bench.source, Options::default());
        report(bench.kv("4/64, keys and values f16", &packed, KvScheme::F16));
        report(bench.kv("4/64, keys and values q8", &packed, KvScheme::Q8));
    }
    for scheme in schemes().into_iter().filter(|s| wanted.is_empty() || wanted.contains(&name(*s))) {
        report(bench.scheme(scheme));
    }
    if json {
        println!("{}", json!({"tokens": tokens_of(&bench.texts), "rows": rows}));
    }
}

fn tokens_of(texts: &[Vec<u32>]) -> usize {
    texts.iter().map(Vec::len).sum()
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(1), isa: None }).unwrap_or_else(|e| panic!("{e}"))
}

fn name(options: Options) -> String {
    match options.mode {
        Mode::Affine => format!("{}/{}", options.bits, options.group),
        mode => format!("{mode:?}").to_lowercase(),
    }
}

impl Bench {
    fn scheme(&self, options: Options) -> Row {
        let packed = packed(&self.source, options);
        let exact = logits(Reference::new(), &packed, KvScheme::F32, &self.texts);
        let cpu = logits(cpu(), &packed, KvScheme::F32, &self.texts);
        Row {
            name: name(options),
            exact: Some(divergence(&self.base, &exact)),
            cpu: divergence(&self.base, &cpu),
            apart: Some(divergence(&exact, &cpu)),
        }
    }

    /// Weights as a file has them, and what another engine made of it.
    fn file(&self, file: &Path, other: Option<&Path>) {
        let checkpoint = Checkpoint::open(file).unwrap_or_else(|e| panic!("{e}"));
        let of = |logits: Logits| divergence(&self.base, &logits);
        let mut all = vec![
            of(logits(Reference::new(), &checkpoint, KvScheme::F32, &self.texts)),
            of(logits(cpu(), &checkpoint, KvScheme::F32, &self.texts)),
        ];
        if let Some(path) = other {
            all.push(of(self.base.like(&std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))));
        }
        let mut cells: Vec<String> = all.iter().map(|d| with_error(d.mean())).collect();
        cells.resize(3, String::new());
        cells.push(all.get(2).map(|other| with_error(all[1].over(other))).unwrap_or_default());
        cells.push(all.iter().map(|d| format!("{:.2} %", 100.0 * d.equal())).collect::<Vec<_>>().join(", "));
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        println!("{} tokens\n\n{FILE_HEAD}\n| {name} | {} |", tokens_of(&self.texts), cells.join(" | "));
    }

    fn kv(&self, name: &str, checkpoint: &Checkpoint, kv: KvScheme) -> Row {
        let cpu = divergence(&self.base, &logits(cpu(), checkpoint, kv, &self.texts));
        Row { name: name.into(), exact: None, cpu, apart: None }
    }
}

fn with_error(mean: Mean) -> String {
    format!("{:.2e} ± {:.0e}", mean.value, mean.error)
}

impl Row {
    /// What the CPU device adds to the scheme's own divergence, as a share of it.
    fn added(&self) -> Option<Mean> {
        let exact = self.exact.as_ref()?;
        let (more, own) = (self.cpu.over(exact), exact.mean().value);
        Some(Mean { value: more.value / own, error: more.error / own })
    }

    fn line(&self) -> String {
        let percent = |m: Mean| format!("{:+.2} ± {:.2} %", 100.0 * m.value, 100.0 * m.error);
        let kl = |d: &Divergence| format!("{:.3e}", d.mean().value);
        let equal = |d: &Divergence| format!("{:.2} %", 100.0 * d.equal());
        let cells = [
            self.name.clone(),
            self.exact.as_ref().map(kl).unwrap_or_default(),
            kl(&self.cpu),
            self.added().map(percent).unwrap_or_default(),
            self.apart.as_ref().map(kl).unwrap_or_default(),
            self.exact.iter().chain([&self.cpu]).map(equal).collect::<Vec<_>>().join(", "),
        ];
        format!("| {} |", cells.join(" | "))
    }

    fn json(&self) -> Value {
        let both = |d: &Divergence| json!({"kl": d.mean().value, "error": d.mean().error, "equal": d.equal()});
        json!({
            "weights": self.name,
            "exact": self.exact.as_ref().map(both),
            "cpu": both(&self.cpu),
            "apart": self.apart.as_ref().map(both),
            "added": self.added().map(|m| json!({"share": m.value, "error": m.error})),
        })
    }
}
