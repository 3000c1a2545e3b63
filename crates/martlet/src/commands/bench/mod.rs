//! `martlet bench`: how fast a model runs here, and how near that is to what the memory gives.

pub mod measure;
pub mod report;
mod streaming;
mod table;
mod versus;

use super::synthetic::{WeightArgs, shapes};
use crate::app::App;
use crate::exit::{Interrupted, Usage};
use martlet_session::machine::{self, Machine};
use martlet_session::{DrafterChoice, ModelSource, Options, Session};
use measure::{Meter, Stop};
use report::{Batch, Bytes, Decode, Prefill, Report, Spent, TurnAgain};
use std::path::PathBuf;
use std::str::FromStr;
use streaming::Streaming;
use versus::Versus;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Lengths of prompts, such as 512,4k; none: leave this out
    #[arg(long, value_name = "N,..", default_value = "512,2048")]
    pub prefill: List,
    /// Tokens before those that are generated
    #[arg(long, value_name = "N,..", default_value = "0,4096")]
    pub decode: List,
    /// Sequences side by side
    #[arg(long, value_name = "N,..", default_value = "1,2,4,8")]
    pub batch: List,
    /// Tokens of conversations that get a new turn, all but it cached
    #[arg(long, value_name = "N,..", default_value = "10337,64297")]
    pub turn: List,
    /// Tokens of the new turn
    #[arg(long, value_name = "N", default_value_t = 288, value_parser = clap::value_parser!(u32).range(1..))]
    pub new: u32,
    /// Tokens that are generated in a run
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// Runs of which each figure is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: u16,
    /// Random weights in the shape of a released model, made in memory, instead of a checkpoint
    #[arg(long, value_name = "SHAPE", ignore_case = true, value_parser = shapes(), conflicts_with = "model")]
    pub synthetic: Option<String>,
    /// Compare with these files: JSON of llama-bench (-o json)
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub vs: Vec<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub weights: WeightArgs,
}

const EXAMPLES: &str = "\
Examples:
  martlet bench -m ~/models/Qwen3.5-4B-4bit
  martlet bench -m MODEL --turn none --batch none --repeat 5
  martlet bench --synthetic 35b-a3b --mode mxfp4
  llama-bench -m model.gguf -p 512,2048 -n 128 -d 0 -o json > other.json
  martlet bench -m MODEL --vs other.json --json

Prompts are random tokens, answers are greedy and go on past their end; no
drafts are made. Prompts are measured uncached, up to the first token. Bytes of
a token are those of the weights that it reads, as stored, and of the keys and
values before it; their share is of what as many threads read from memory here,
measured first. A fingerprint that differs between two runs means other tokens.
Times by operation are measured in runs of their own. Ctrl-C ends the measuring
and prints what there is.";

/// Numbers of tokens or sequences.
#[derive(Clone, Debug, PartialEq)]
pub struct List(pub Vec<usize>);

impl FromStr for List {
    type Err = String;

    fn from_str(text: &str) -> Result<List, String> {
        let number = |text: &str| {
            let (digits, factor) = match text.trim().strip_suffix(['k', 'K']) {
                Some(digits) => (digits, 1024),
                None => (text.trim(), 1),
            };
            let n = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(factor));
            n.ok_or_else(|| format!("\"{text}\" is no number; a list such as 512,4k is expected, or none"))
        };
        match text.trim() {
            "none" | "" => Ok(List(Vec::new())),
            list => list.split(',').map(number).collect::<Result<_, _>>().map(List),
        }
    }
}

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    args.check()?;
    let others = args.vs.iter().map(|path| Ok((path, versus::read(path)?))).collect::<Result<Vec<_>, Usage>>()?;
    let source = match &args.synthetic {
        Some(shape) => ModelSource::Synthetic(args.weights.model(shape)?),
        None => app.model(),
    };
    let mut report = measure(args, app, &source)?;
    report.versus = others.iter().map(|(path, tests)| Versus::new(path, tests, &report)).collect();
    let text = match args.json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => table::text(&report),
    };
    app.terminal.result(&text)?;
    if report.interrupted { Err(Interrupted.into()) } else { Ok(()) }
}

impl Args {
    fn check(&self) -> Result<(), Usage> {
        if self.synthetic.is_none() && !self.weights.is_default() {
            return Err(Usage(
                "--mode, --bits, --group, --skewed and --weight-seed are of random weights: add --synthetic SHAPE"
                    .into(),
            ));
        }
        for (name, list) in [("prefill", &self.prefill), ("batch", &self.batch), ("turn", &self.turn)] {
            if list.0.contains(&0) {
                return Err(Usage(format!("--{name} holds 0: at least 1 is expected; none leaves it out")));
            }
        }
        match self.turn.0.iter().find(|n| **n <= ANSWER) {
            Some(n) => Err(Usage(format!("--turn {n}: a conversation has more than {ANSWER} tokens here"))),
            None => Ok(()),
        }
    }
}

/// Tokens that the first turn of a conversation generates: as many as make the engine keep its end.
const ANSWER: usize = 16;
/// Tokens of the prompts of sequences side by side.
const BESIDE: usize = 32;

fn measure(args: &Args, app: &App, source: &ModelSource) -> anyhow::Result<Report> {
    let (_, found, checkpoint) = source.check()?;
    let options = Options {
        sequences: args.batch.0.iter().copied().max().unwrap_or(1),
        drafter: DrafterChoice::None,
        prefix_cache: true,
        disk: None,
        ..app.options()?
    };
    // Before the memory is full of weights, but not before it is known that they fit.
    let plan = source.plan(&options)?;
    let room = plan.context;
    let tests = Tests::new(args, room);
    let threads = machine::threads(app.settings.device, app.settings.threads);
    let bandwidth = machine::read_bandwidth(threads).ok();
    let disk = if plan.experts > 0 { machine::expert_reads(&checkpoint).ok().flatten() } else { None };
    let options = Options { context: options.context.or(Some(tests.longest().max(256).min(room))), ..options };
    let loading = app.terminal.progress("loading", 1);
    let session = Session::open(source, &options, &mut |done, total| loading.set(done as u64, total as u64))?;
    drop(loading);
    let kv = report::kv_bytes(session.spec(), session.plan().kv);
    let mut report = Report {
        martlet: env!("CARGO_PKG_VERSION"),
        model: source.name(),
        device: session.device(),
        threads,
        machine: Machine::here(),
        kv: report::kv_name(session.plan()),
        read_bandwidth: bandwidth,
        disk_read: disk.map(|d| app.settings.disk_rate(d.bytes_per_second())),
        parameters: found.parameters - found.draft_parameters,
        active_parameters: found.active_parameters,
        weight_bytes: found.bytes,
        weight_bytes_per_token: found.bytes_per_token,
        kv_bytes_per_token: kv,
        repeats: args.repeat.into(),
        prefill: Vec::new(),
        decode: Vec::new(),
        batches: Vec::new(),
        turns: Vec::new(),
        operations: report::Operations::default(),
        skipped: tests.skipped.clone(),
        interrupted: false,
        experts: None,
        streaming: Vec::new(),
        peak_memory: None,
        versus: Vec::new(),
    };
    let stop = Stop::default();
    let _guard = app.interrupt.during({
        let stop = stop.clone();
        move || stop.stop()
    });
    let progress = app.terminal.progress("measuring", tests.work());
    let meter = Meter::new(&session, progress, tests.work(), app.settings.sampling.seed.unwrap_or(1), stop.clone());
    let bytes = Bytes { weights: found.bytes_per_token, kv, bandwidth };
    let measured = tests.run(meter, bytes, &mut report);
    report.interrupted = stop.is_stopped();
    report.experts = session.stream_stats().map(report::Experts::from);
    report.peak_memory = machine::peak_memory();
    match measured {
        Err(e) if !report.interrupted => Err(e),
        _ => Ok(report),
    }
}

/// What is measured.
struct Tests {
    prefill: Vec<usize>,
    decode: Vec<usize>,
    batch: Vec<usize>,
    turn: Vec<usize>,
    new: usize,
    tokens: usize,
    repeats: usize,
    skipped: Vec<String>,
}

impl Tests {
    /// Those of the tests that were asked for which fit into a context of `room` tokens.
    fn new(args: &Args, room: usize) -> Tests {
        let (new, tokens, mut skipped) = (args.new as usize, args.tokens as usize, Vec::new());
        let mut fits = |list: &List, more: usize, what: &str| {
            let (fit, not): (Vec<_>, Vec<_>) = list.0.iter().partition(|n| n.saturating_add(more) <= room);
            skipped.extend(not.iter().map(|n| format!("{what} {n} tokens: the context holds {room}")));
            fit
        };
        let prefill = fits(&args.prefill, 1, "a prompt of");
        let decode = fits(&args.decode, tokens + 2, "decoding after");
        let turn = fits(&args.turn, new + 1, "a turn after");
        Tests { prefill, decode, batch: args.batch.0.clone(), turn, new, tokens, repeats: args.repeat.into(), skipped }
    }

    /// Tokens of the longest sequence.
    fn longest(&self) -> usize {
        let most = |list: &[usize], more: usize| list.iter().max().map_or(0, |n| n + more);
        let batch = if self.batch.is_empty() { 0 } else { BESIDE + self.tokens + 1 };
        let single = [most(&self.prefill, 1), most(&self.decode, self.tokens + 2), most(&self.turn, self.new + 1)];
        single.into_iter().max().unwrap_or(0).max(batch)
    }

    /// Tokens computed in all, those from the cache counted too: for the progress alone.
    fn work(&self) -> u64 {
        let (runs, tokens) = (self.repeats, self.tokens + 1);
        let sum = |list: &[usize]| list.iter().sum::<usize>();
        let rounds = sum(&self.prefill) + sum(&self.decode) + self.decode.len() * tokens;
        let batches = sum(&self.batch) * (BESIDE + tokens);
        let turns = sum(&self.turn) * (runs + 1) + self.turn.len() * runs * self.new;
        let spent = self.prefill.first().unwrap_or(&0) + self.decode.first().map_or(0, |n| n + tokens);
        ((rounds + batches) * runs + turns + spent) as u64
    }

    /// Puts what it finds into the report, also when it is stopped.
    fn run(&self, mut meter: Meter<'_>, bytes: Bytes, report: &mut Report) -> anyhow::Result<()> {
        // The first run takes pages and wakes threads.
        let warm = meter.ids(BESIDE.min(meter.session.context() - 1));
        meter.run(&warm, 1)?;
        self.rounds(&mut meter, bytes, report)?;
        for &prefix in &self.turn {
            meter.session.clear_cache();
            self.turn(&mut meter, prefix, report)?;
        }
        meter.session.clear_cache();
        self.operations(&mut meter, report)?;
        for s in &mut report.streaming {
            s.bound(report.disk_read, report.operations.decode.as_ref().filter(|d| d.tokens == s.tokens));
        }
        Ok(())
    }

    /// Prompts, decoding and batches in turn, so that a machine that slows down does so for all.
    fn rounds(&self, meter: &mut Meter<'_>, bytes: Bytes, report: &mut Report) -> anyhow::Result<()> {
        let contexts: Vec<Vec<u32>> = self.decode.iter().map(|n| meter.ids((*n).max(1))).collect();
        let mut prefill = vec![Vec::new(); self.prefill.len()];
        let mut decode = vec![Vec::new(); self.decode.len()];
        let mut prints = vec![String::new(); self.decode.len()];
        let mut batches = Vec::new();
        let mut read = [vec![Vec::new(); self.prefill.len()], vec![Vec::new(); self.decode.len()]];
        let mut round = || {
            for (i, &length) in self.prefill.iter().enumerate() {
                let prompt = meter.ids(length);
                let run = meter.run(&prompt, 1)?;
                prefill[i].push(run.first);
                read[0][i].extend(run.first_read.map(|read| (run.first, read)));
            }
            for (i, prompt) in contexts.iter().enumerate() {
                let run = meter.run(prompt, self.tokens + 1)?;
                read[1][i].extend(run.decode_read.map(|read| (run.decode, read)));
                let print = report::fingerprint(&run.tokens);
                if !prints[i].is_empty() && prints[i] != print {
                    let n = prompt.len();
                    anyhow::bail!("the same {n} tokens went on in two ways: {} and {print}", prints[i]);
                }
                prints[i] = print;
                decode[i].push(run.decode);
            }
            for &count in &self.batch {
                let prompts: Vec<Vec<u32>> = (0..count).map(|_| meter.ids(BESIDE)).collect();
                batches.push((count, meter.together(&prompts, self.tokens + 1)?));
            }
            anyhow::Ok(())
        };
        let done = (0..self.repeats).try_for_each(|_| round());
        report.prefill = self.prefill.iter().zip(prefill).filter_map(|(n, runs)| Prefill::new(*n, runs)).collect();
        let rows = self.decode.iter().zip(decode).zip(prints);
        report.decode =
            rows.filter_map(|((n, runs), print)| Decode::new(*n, self.tokens, runs, print, bytes)).collect();
        report.batches = Batch::all(&self.batch, &batches);
        let [first, then] = read;
        let prompts = self.prefill.iter().zip(&first).filter(|(_, runs)| !runs.is_empty());
        let tokens = self.decode.iter().zip(&then).filter(|(_, runs)| !runs.is_empty());
        report.streaming = prompts
            .map(|(n, runs)| Streaming::prefill(*n, runs))
            .chain(tokens.map(|(n, runs)| Streaming::decode(*n, self.tokens, runs)))
            .collect();
        done
    }

    /// A conversation of `prefix` tokens, its last ones generated, and then new turns on it.
    fn turn(&self, meter: &mut Meter<'_>, prefix: usize, report: &mut Report) -> anyhow::Result<()> {
        let mut tokens = meter.ids(prefix - ANSWER);
        // The last token of an answer is not computed: with one more, the kept state holds all of the prefix.
        let first = meter.run(&tokens, ANSWER + 1)?;
        tokens.extend(&first.tokens[..ANSWER]);
        let (mut runs, mut cached) = (Vec::new(), 0);
        let mut again = || {
            let prompt = [tokens.as_slice(), &meter.ids(self.new)].concat();
            let run = meter.run(&prompt, 1)?;
            cached = run.cached;
            runs.push(run.first);
            anyhow::Ok(())
        };
        let done = (0..self.repeats).try_for_each(|_| again());
        report.turns.extend(TurnAgain::new(prefix, cached, self.new, first.first, runs));
        done
    }

    /// Runs of their own, with the clock on.
    fn operations(&self, meter: &mut Meter<'_>, report: &mut Report) -> anyhow::Result<()> {
        let session = meter.session;
        if let Some(&length) = self.prefill.first() {
            let prompt = meter.ids(length);
            session.time_operations(true);
            let run = meter.run(&prompt, 1);
            session.time_operations(false);
            run?;
            report.operations.prefill = Spent::new(length, &session.operation_times(), false);
        }
        if let Some(&context) = self.decode.first() {
            let prompt = meter.ids(context.max(1));
            let run = meter.watched(&prompt, self.tokens + 1, &|| session.time_operations(true));
            session.time_operations(false);
            run?;
            report.operations.decode = Spent::new(context, &session.operation_times(), true);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_numbers_between_commas() {
        let of = |text: &str| text.parse::<List>().map(|l| l.0);
        assert_eq!(of("512, 4k,1"), Ok(vec![512, 4096, 1]));
        assert_eq!((of("none"), of("")), (Ok(Vec::new()), Ok(Vec::new())));
        for wrong in ["512,", "x", "-1", "1.5k"] {
            assert!(of(wrong).unwrap_err().contains("such as 512,4k"), "{wrong}");
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out_with_the_reason() {
        let args = Args {
            prefill: List(vec![512, 2048]),
            decode: List(vec![0, 1000]),
            batch: List(vec![1, 2]),
            turn: List(vec![300, 9000]),
            new: 288,
            tokens: 128,
            repeat: 3,
            synthetic: None,
            vs: Vec::new(),
            json: false,
            weights: WeightArgs { mode: "affine".into(), bits: None, group: None, skewed: false, weight_seed: 1 },
        };
        let tests = Tests::new(&args, 1024);
        assert_eq!(
            (tests.prefill.as_slice(), tests.decode.as_slice(), tests.turn.as_slice()),
            (&[512][..], &[0][..], &[300][..])
        );
        assert_eq!(tests.skipped.len(), 3);
        assert_eq!(tests.skipped[2], "a turn after 9000 tokens: the context holds 1024");
        assert_eq!(tests.longest(), 589);
        // Rounds: 512, and 0 + 129 tokens, 3 sequences of 32 + 129; a turn of 300 four times and 288 thrice; the clock's runs.
        assert_eq!(tests.work(), 3 * (512 + 129 + 3 * 161) + 4 * 300 + 3 * 288 + 512 + 129);
        let all = Tests::new(&args, 10_000);
        assert!(all.skipped.is_empty() && all.longest() == 9289);
        assert!(args.check().is_ok());
        assert!(Args { turn: List(vec![16]), ..args }.check().is_err());
    }
}
