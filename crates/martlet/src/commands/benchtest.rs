//! `martlet benchtest`: machine and model in two minutes, as a report to share.

use super::bench::measure::{Meter, Run, Stop};
use super::bench::report::{Bytes, Decode, Prefill, fingerprint, kv_bytes};
use crate::app::App;
use crate::exit::Interrupted;
use crate::paths;
use crate::size;
use martlet_chat::{Conversation, Message, Role};
use martlet_session::machine::{self, FileRead, Machine};
use martlet_session::{DrafterChoice, Event, ModelSource, Options, Prompt, Sampling, Session, TurnOptions};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Leave out how fast the disk is read; for a small model a file of 128 MiB is written for that, and removed
    #[arg(long)]
    pub no_disk: bool,
}

const EXAMPLES: &str = "\
Examples:
  martlet benchtest -m ~/models/Qwen3.5-4B-4bit > report.md
  tools/benchtests.py report.md other.md    # of martlet's sources: one table

The report is markdown on standard output. It names the processor, the model's
folder and figures, nothing else, and martlet sends it nowhere: look at it, and
share it yourself if you like.";

/// Where reports are welcome: the repository of the package, empty where it names none.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// The longest prompt, the most tokens of a decode and of an answer, and runs of which the median counts.
const PROMPTS: [usize; 4] = [512, 256, 128, 64];
const TOKENS: usize = 128;
const ANSWER: usize = 512;
const RUNS: usize = 3;
/// Seconds for the runs of prompts, of decoding, and for the answer; loading comes on top.
const PREFILL_TIME: f64 = 30.0;
const DECODE_TIME: f64 = 20.0;
const ANSWER_TIME: Duration = Duration::from_secs(45);

/// Bytes read from disk at most, and the least that say something.
const DISK_BYTES: u64 = 1 << 30;
const DISK_LEAST: u64 = 128 << 20;

/// What the answer is about; sampled as the checkpoint recommends, with a seed of its own.
const QUESTION: &str = "Write a long story about a fox, a lamp and a river.";

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let source = app.model();
    let disk = if args.no_disk { None } else { disk(&source) };
    let threads = machine::threads(app.settings.device, app.settings.threads);
    let bandwidth = machine::read_bandwidth(threads).ok();
    let (_, found, _) = source.check()?;
    let options = Options { drafter: DrafterChoice::None, disk: None, ..app.options()? };
    let started = Instant::now();
    let loading = app.terminal.progress("loading", 1);
    let session = Session::open(&source, &options, &mut |done, total| loading.set(done as u64, total as u64))?;
    drop(loading);
    let loaded = started.elapsed();
    let bytes = Bytes { weights: found.bytes_per_token, kv: kv_bytes(session.spec(), session.plan().kv), bandwidth };
    let stop = Stop::default();
    let _guard = app.interrupt.during({
        let stop = stop.clone();
        move || stop.stop()
    });
    let speed = speed(app, &session, bytes, stop.clone())?;
    let answer = answer(&session, &stop, speed.decode.tokens_per_second)?;
    let report = Report {
        machine: Machine::here(),
        model: source.name(),
        device: format!("{}, {threads} threads", session.device()),
        weights: (found.bytes, found.bytes_per_token),
        bandwidth,
        disk,
        loaded,
        speed,
        grams: grams(&answer),
        peak: machine::peak_memory(),
    };
    let text = report.text();
    app.terminal.result(&text)?;
    app.terminal.note(&match link(REPOSITORY, &report.title(), &text) {
        Some(link) => {
            format!("Nothing was sent. To share the report, open this page, look at it, and submit it:\n{link}")
        }
        None => {
            "Nothing was sent. This build names no repository, so there is no link for sharing the report".to_string()
        }
    });
    Ok(())
}

/// How fast the model's file is read; where it is too small to tell, one that is made for that.
fn disk(source: &ModelSource) -> Option<FileRead> {
    let file = match source {
        ModelSource::Path(path) => largest(path).filter(|(_, bytes)| *bytes >= DISK_LEAST).map(|(file, _)| file),
        _ => None,
    };
    match file {
        Some(file) => machine::read_file(&file, DISK_BYTES).ok(),
        None => {
            // Beside what the prefix cache keeps.
            let folder = paths::cache_dir()?.parent()?.to_path_buf();
            std::fs::create_dir_all(&folder).ok()?;
            // Goes away with its folder, whatever happens.
            let folder = tempfile::Builder::new().prefix("benchtest").tempdir_in(folder).ok()?;
            let file = folder.path().join("read");
            machine::write_file(&file, DISK_LEAST).ok()?;
            machine::read_file(&file, DISK_LEAST).ok()
        }
    }
}

/// The largest file of a folder, or the file itself, with its bytes.
fn largest(path: &Path) -> Option<(PathBuf, u64)> {
    let size = |path: PathBuf| {
        let meta = std::fs::metadata(&path).ok()?;
        meta.is_file().then_some((path, meta.len()))
    };
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().filter_map(|e| size(e.path())).max_by_key(|(_, bytes)| *bytes),
        Err(_) => size(path.to_path_buf()),
    }
}

struct Speed {
    prefill: Prefill,
    decode: Decode,
}

/// A first short run says how long the others may be.
fn speed(app: &App, session: &Session, bytes: Bytes, stop: Stop) -> anyhow::Result<Speed> {
    let (probe_prompt, probe_tokens) = (PROMPTS[PROMPTS.len() - 1], 8);
    let most = RUNS * (PROMPTS[0] + TOKENS) + probe_prompt;
    let progress = app.terminal.progress("measuring", most as u64);
    let mut meter = Meter::new(session, progress, most as u64, 1, stop);
    let prompt = meter.ids(probe_prompt);
    let probe = meter.run(&prompt, probe_tokens)?;
    let (length, tokens) = lengths(&probe, probe_prompt, probe_tokens, session.context());
    let (mut first, mut decode, mut print) = (Vec::new(), Vec::new(), String::new());
    for _ in 0..RUNS {
        let prompt = meter.ids(length);
        first.push(meter.run(&prompt, 1)?.first);
    }
    let prompt = meter.ids(1);
    for _ in 0..RUNS {
        let run = meter.run(&prompt, tokens + 1)?;
        print = fingerprint(&run.tokens);
        decode.push(run.decode);
    }
    let nothing = || anyhow::anyhow!("nothing was measured");
    Ok(Speed {
        prefill: Prefill::new(length, first).ok_or_else(nothing)?,
        decode: Decode::new(0, tokens, decode, print, bytes).ok_or_else(nothing)?,
    })
}

/// The longest prompt and the most tokens whose runs end in time.
fn lengths(probe: &Run, prompt: usize, tokens: usize, context: usize) -> (usize, usize) {
    let row = probe.first / prompt as f64;
    let fits = |n: &usize| *n < context && row * (*n * RUNS) as f64 <= PREFILL_TIME;
    let token = probe.decode / (tokens - 1) as f64;
    let many = (DECODE_TIME / RUNS as f64 / token.max(1e-9)) as usize;
    (PROMPTS.into_iter().find(fits).unwrap_or(prompt), many.clamp(8, TOKENS.min(context.saturating_sub(2)).max(8)))
}

/// Token ids of an answer, or of what follows random tokens where the checkpoint has no tokenizer.
fn answer(session: &Session, stop: &Stop, rate: f64) -> anyhow::Result<Vec<u32>> {
    let chat = Prompt::Chat(Conversation::new(vec![Message::text(Role::User, QUESTION)]));
    let prompt = match session.prompt_ids(&chat) {
        Ok(_) => chat,
        Err(_) => Prompt::Ids((0..16).map(|i| i * 7 % session.spec().vocabulary as u32).collect()),
    };
    let room = session.context().saturating_sub(session.prompt_ids(&prompt)?.len());
    let tokens = ((ANSWER_TIME.as_secs_f64() * rate) as usize).clamp(16, ANSWER).min(room.max(1));
    let options = TurnOptions {
        sampling: Sampling { seed: Some(1), ..Sampling::default() },
        max_tokens: Some(tokens),
        ignore_eos: true,
        tokens: true,
        deadline: Some(Instant::now() + 2 * ANSWER_TIME),
        loop_guard: martlet_session::LoopGuard { thinking: false, answer: false },
        ..TurnOptions::default()
    };
    let turn = session.start(&prompt, &options)?;
    stop.watch(turn.canceller());
    let mut ids = Vec::new();
    for event in turn {
        if let Event::Token(token) = event? {
            ids.push(token.id);
        }
    }
    if stop.is_stopped() { Err(Interrupted.into()) } else { Ok(ids) }
}

/// Runs of eight tokens: (distinct, all). A model that falls into a loop has few distinct ones.
fn grams(ids: &[u32]) -> (usize, usize) {
    let all = ids.windows(8);
    (all.clone().collect::<HashSet<_>>().len(), all.len())
}

struct Report {
    machine: Machine,
    model: String,
    device: String,
    /// Bytes in all, and of a token.
    weights: (u64, u64),
    bandwidth: Option<f64>,
    disk: Option<FileRead>,
    loaded: Duration,
    speed: Speed,
    grams: (usize, usize),
    peak: Option<u64>,
}

impl Report {
    fn title(&self) -> String {
        let processor = self.machine.processor.as_deref().unwrap_or(self.machine.architecture);
        format!("benchtest: {} on {processor}", self.model)
    }

    /// Keys are those that tools/benchtests.py looks for.
    fn text(&self) -> String {
        let (m, prefill, decode) = (&self.machine, &self.speed.prefill, &self.speed.decode);
        let giga = |x: f64| format!("{:.2} GB/s", x / 1e9);
        let known = |x: Option<String>| x.unwrap_or_else(|| "not measured".to_string());
        let share =
            decode.share_of_bandwidth.map_or_else(String::new, |s| format!(", {:.0} % of memory read", 100.0 * s));
        let (distinct, all) = self.grams;
        let rows = [
            ("martlet", env!("CARGO_PKG_VERSION").to_string()),
            ("system", format!("{} {}", m.system, m.architecture)),
            ("processor", m.processor.clone().unwrap_or_else(|| "unknown".to_string())),
            ("cores", m.cores.to_string()),
            ("instruction sets", m.instruction_sets.join(", ")),
            ("memory", m.memory.map_or_else(|| "unknown".to_string(), size::bytes)),
            ("memory read", known(self.bandwidth.map(giga))),
            ("disk read", known(self.disk.map(|d| giga(d.bytes_per_second())))),
            ("model", self.model.clone()),
            ("device", self.device.clone()),
            ("weights", format!("{}, {} for a token", size::bytes(self.weights.0), size::bytes(self.weights.1))),
            ("load", format!("{:.2} s", self.loaded.as_secs_f64())),
            ("prefill", format!("{:.2} tokens/s ({} tokens)", prefill.tokens_per_second, prefill.tokens)),
            ("decode", format!("{:.2} tokens/s{share}", decode.tokens_per_second)),
            ("time to first token", format!("{:.3} s ({} tokens)", prefill.seconds.median, prefill.tokens)),
            ("distinct 8-grams", format!("{:.1} % of {all}", 100.0 * distinct as f64 / all.max(1) as f64)),
            ("peak memory", self.peak.map_or_else(|| "unknown".to_string(), size::bytes)),
        ];
        let mut text = "### martlet benchtest\n\n| what | here |\n| --- | --- |\n".to_string();
        for (key, value) in rows {
            // Writing to a String does not fail. A bar would end the cell.
            let _ = writeln!(text, "| {key} | {} |", value.replace('|', "/"));
        }
        text
    }
}

/// A page that opens a new issue with this text; `None` where the package names no repository.
fn link(repository: &str, title: &str, text: &str) -> Option<String> {
    let repository = repository.trim_end_matches('/').trim_end_matches(".git");
    let page = format!("{repository}/issues/new?title={}&body={}", percent_encoded(title), percent_encoded(text));
    (!repository.is_empty()).then_some(page)
}

fn percent_encoded(text: &str) -> String {
    let byte = |b: u8| match b {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
        _ => format!("%{b:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_have_few_distinct_grams() {
        let loops: Vec<u32> = (0..107).map(|i| i % 5).collect();
        assert_eq!(grams(&loops), (5, 100));
        assert_eq!(grams(&(0..107).collect::<Vec<_>>()), (100, 100));
        assert_eq!(grams(&[1, 2, 3]), (0, 0));
    }

    #[test]
    fn a_link_opens_a_new_issue() {
        assert_eq!(link("", "a", "b"), None);
        let expected = "https://forge.example/x/issues/new?title=a%20b&body=%7C%20%C3%BC%20%7C%0A";
        assert_eq!(link("https://forge.example/x.git/", "a b", "| ü |\n").as_deref(), Some(expected));
    }

    #[test]
    fn slow_machines_get_short_runs() {
        let probe = |first, decode| Run { first, decode, ..Run::default() };
        // 64 tokens in 64 ms, 7 more in 70: 512 and 128 take a few seconds.
        assert_eq!(lengths(&probe(0.064, 0.07), 64, 8, 4096), (512, 128));
        // 50 ms a row: 3 times 128 rows take 19 s, 3 times 256 take 38 s; a token takes a second.
        assert_eq!(lengths(&probe(3.2, 7.0), 64, 8, 4096), (128, 8));
        assert_eq!(lengths(&probe(64.0, 700.0), 64, 8, 4096), (64, 8), "the least that says something");
        assert_eq!(lengths(&probe(0.064, 0.07), 64, 8, 256), (128, 128));
    }

    #[test]
    fn the_report_is_a_table() {
        let bytes = Bytes { weights: 1 << 20, kv: 0, bandwidth: Some(2e9) };
        let report = Report {
            machine: Machine {
                processor: Some("a | b".into()),
                system: "linux",
                architecture: "x86_64",
                cores: 2,
                instruction_sets: vec!["portable".into(), "avx2".into()],
                memory: None,
            },
            model: "m".into(),
            device: "cpu, 2 threads".into(),
            weights: (2 << 20, 1 << 20),
            bandwidth: Some(2e9),
            disk: Some(FileRead { bytes: 3_000_000_000, time: Duration::from_secs(2) }),
            loaded: Duration::from_millis(1500),
            speed: Speed {
                prefill: Prefill::new(512, vec![4.0]).unwrap(),
                decode: Decode::new(0, 100, vec![0.1], String::new(), bytes).unwrap(),
            },
            grams: (50, 200),
            peak: Some(1 << 30),
        };
        let text = report.text();
        for line in [
            "| processor | a / b |",
            "| memory | unknown |",
            "| memory read | 2.00 GB/s |",
            "| disk read | 1.50 GB/s |",
            "| weights | 2.00 MiB, 1.00 MiB for a token |",
            "| prefill | 128.00 tokens/s (512 tokens) |",
            // 1 MiB in a millisecond: 1.05 of 2 GB/s.
            "| decode | 1000.00 tokens/s, 52 % of memory read |",
            "| time to first token | 4.000 s (512 tokens) |",
            "| distinct 8-grams | 25.0 % of 200 |",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}\n{text}");
        }
        assert_eq!(report.title(), "benchtest: m on a | b");
    }
}
