//! What `martlet bench` found, and the arithmetic behind its figures.

use super::streaming::Streaming;
use super::versus::Versus;
use martlet_session::machine::Machine;
use martlet_session::{KvScheme, OperationTime, PAGE, StreamStats};
use martlet_session::{Operation, Plan};
use serde::Serialize;

/// All of it; times in seconds, sizes in bytes. Keys stay as they are, new ones may come.
#[derive(Debug, Serialize)]
pub struct Report {
    pub martlet: &'static str,
    pub model: String,
    pub device: &'static str,
    pub threads: usize,
    pub machine: Machine,
    /// How keys and values are kept.
    pub kv: &'static str,
    /// Bytes a second that so many threads read from memory; null where it could not be measured.
    pub read_bandwidth: Option<f64>,
    /// Bytes a second that the disk gives of experts at its best, many reads in flight; null where none are read.
    pub disk_read: Option<f64>,
    /// Weights in all, and those that one token reads.
    pub parameters: u64,
    pub active_parameters: u64,
    /// Stored bytes of all weights, and of those that one token reads.
    pub weight_bytes: u64,
    pub weight_bytes_per_token: u64,
    /// Keys and values of one token in all layers.
    pub kv_bytes_per_token: u64,
    pub repeats: usize,
    pub prefill: Vec<Prefill>,
    pub decode: Vec<Decode>,
    pub batches: Vec<Batch>,
    pub turns: Vec<TurnAgain>,
    pub operations: Operations,
    /// What was not measured, and why.
    pub skipped: Vec<String>,
    /// Somebody stopped it: what is there is of fewer runs, or missing.
    pub interrupted: bool,
    /// Experts that were read from disk; null where all are in memory.
    pub experts: Option<Experts>,
    /// The same of each figure, beside what the disk allows.
    pub streaming: Vec<Streaming>,
    /// The most memory that the process had resident.
    pub peak_memory: Option<u64>,
    pub versus: Vec<Versus>,
}

/// Seconds of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Seconds {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub runs: usize,
}

impl Seconds {
    /// `None` of no runs. Of an even number the median is the mean of the middle two.
    pub fn new(mut runs: Vec<f64>) -> Option<Seconds> {
        runs.sort_by(f64::total_cmp);
        let (min, max, middle) = (*runs.first()?, *runs.last()?, runs.len() / 2);
        let median = if runs.len() % 2 == 1 { runs[middle] } else { (runs[middle - 1] + runs[middle]) / 2.0 };
        Some(Seconds { median, min, max, runs: runs.len() })
    }
}

/// What was read of experts, over everything measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Experts {
    /// That fit into memory at a time.
    pub slots: u64,
    /// Of layers of steps, each once for all rows; those that were there, and those that were read.
    pub needed: u64,
    pub hits: u64,
    pub reads: u64,
    /// Needed or not.
    pub bytes_read: u64,
    /// Of those read where there had been guesses, how many were guessed; of the guesses, how many were right.
    pub recall: Option<f64>,
    pub precision: Option<f64>,
    /// Reads that began before the router had chosen, and those of them that it then chose; bytes of the others.
    pub ahead: u64,
    pub ahead_used: u64,
    pub bytes_wasted: u64,
    /// Anything was being read for so long, and there was nothing else to do for so long.
    pub busy_seconds: f64,
    pub waited_seconds: f64,
}

impl From<StreamStats> for Experts {
    fn from(s: StreamStats) -> Experts {
        Experts {
            slots: s.slots,
            needed: s.needed,
            hits: s.hits,
            reads: s.reads,
            bytes_read: s.bytes_read,
            recall: s.recall(),
            precision: s.precision(),
            ahead: s.ahead,
            ahead_used: s.ahead_used,
            bytes_wasted: s.bytes_wasted,
            busy_seconds: s.busy.as_secs_f64(),
            waited_seconds: s.waited.as_secs_f64(),
        }
    }
}

/// A prompt that nothing of is cached, up to its first token.
#[derive(Debug, PartialEq, Serialize)]
pub struct Prefill {
    pub tokens: usize,
    pub seconds: Seconds,
    pub tokens_per_second: f64,
}

impl Prefill {
    pub fn new(tokens: usize, runs: Vec<f64>) -> Option<Prefill> {
        let seconds = Seconds::new(runs)?;
        Some(Prefill { tokens, seconds, tokens_per_second: rate(tokens, seconds.median) })
    }
}

/// Tokens one after another, after a context of some tokens.
#[derive(Debug, PartialEq, Serialize)]
pub struct Decode {
    pub context: usize,
    /// Tokens of a run.
    pub tokens: usize,
    /// For one token.
    pub seconds: Seconds,
    pub tokens_per_second: f64,
    /// Weights, and keys and values of the middle of the run, that one token reads.
    pub bytes_per_token: u64,
    pub bytes_per_second: f64,
    /// Of the read bandwidth.
    pub share_of_bandwidth: Option<f64>,
    /// Of the generated tokens: another one means other tokens.
    pub fingerprint: String,
}

/// What the bytes of a token are counted from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bytes {
    pub weights: u64,
    /// Keys and values of one token.
    pub kv: u64,
    /// A second.
    pub bandwidth: Option<f64>,
}

impl Decode {
    /// `runs`: seconds of `tokens` tokens each.
    pub fn new(context: usize, tokens: usize, runs: Vec<f64>, fingerprint: String, bytes: Bytes) -> Option<Decode> {
        let seconds = Seconds::new(runs.into_iter().map(|s| s / tokens.max(1) as f64).collect())?;
        let bytes_per_token = bytes.weights + bytes.kv * (context + tokens / 2) as u64;
        let bytes_per_second = bytes_per_token as f64 / seconds.median.max(f64::MIN_POSITIVE);
        Some(Decode {
            context,
            tokens,
            seconds,
            tokens_per_second: rate(1, seconds.median),
            bytes_per_token,
            bytes_per_second,
            share_of_bandwidth: bytes.bandwidth.map(|b| bytes_per_second / b),
            fingerprint,
        })
    }
}

/// Sequences side by side.
#[derive(Debug, PartialEq, Serialize)]
pub struct Batch {
    pub sequences: usize,
    /// Of a step that gives each a token.
    pub seconds: Seconds,
    /// Of all together.
    pub tokens_per_second: f64,
    /// Time of a step by that of one sequence, where that was measured.
    pub times_of_one: Option<f64>,
}

impl Batch {
    /// `runs`: (sequences, seconds of a step), any number of each.
    pub fn all(counts: &[usize], runs: &[(usize, f64)]) -> Vec<Batch> {
        let of = |n: usize| Seconds::new(runs.iter().filter(|r| r.0 == n).map(|r| r.1).collect());
        let one = of(1).map(|s| s.median);
        let batch = |&sequences: &usize| {
            let seconds = of(sequences)?;
            let times_of_one = one.map(|one| seconds.median / one);
            Some(Batch { sequences, seconds, tokens_per_second: rate(sequences, seconds.median), times_of_one })
        };
        counts.iter().filter_map(batch).collect()
    }
}

/// A new turn on a cached prefix, up to its first token.
#[derive(Debug, PartialEq, Serialize)]
pub struct TurnAgain {
    /// Tokens before the turn.
    pub prefix: usize,
    /// Those of them that came from the cache.
    pub cached: usize,
    pub new: usize,
    pub seconds: Seconds,
    /// Of the tokens that were computed.
    pub tokens_per_second: f64,
    /// What the prefix took when nothing was cached.
    pub seconds_without_cache: f64,
}

impl TurnAgain {
    pub fn new(prefix: usize, cached: usize, new: usize, cold: f64, runs: Vec<f64>) -> Option<TurnAgain> {
        let seconds = Seconds::new(runs)?;
        let computed = (prefix + new).saturating_sub(cached);
        let tokens_per_second = rate(computed, seconds.median);
        Some(TurnAgain { prefix, cached, new, seconds, tokens_per_second, seconds_without_cache: cold })
    }
}

/// Where the device's time goes; null where it was not measured.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Operations {
    pub prefill: Option<Spent>,
    pub decode: Option<Spent>,
}

/// Time by kind of operation.
#[derive(Debug, PartialEq, Serialize)]
pub struct Spent {
    /// Tokens of the prompt, or of the context.
    pub tokens: usize,
    /// Of a step of the decode, or of the whole prompt: all kinds together.
    pub seconds: f64,
    pub kinds: Vec<Kind>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Kind {
    pub operation: &'static str,
    pub calls: f64,
    pub seconds: f64,
    /// Of the time of all kinds.
    pub share: f64,
}

impl Spent {
    /// `per_step`: the times are divided by the steps, of which each has the output head computed once.
    pub fn new(tokens: usize, times: &[OperationTime], per_step: bool) -> Option<Spent> {
        let steps = match per_step {
            true => times.iter().find(|t| t.operation == Operation::Head).map(|t| t.calls)?,
            false => 1,
        };
        let all: f64 = times.iter().map(|t| t.time.as_secs_f64()).sum();
        let kind = |t: &OperationTime| Kind {
            operation: t.operation.name(),
            calls: t.calls as f64 / steps as f64,
            seconds: t.time.as_secs_f64() / steps as f64,
            share: t.time.as_secs_f64() / all.max(f64::MIN_POSITIVE),
        };
        let mut kinds: Vec<Kind> = times.iter().map(kind).collect();
        kinds.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Some(Spent { tokens, seconds: all / steps as f64, kinds })
    }
}

/// Bytes of keys and values that one token adds in the layers of the model itself.
pub fn kv_bytes(spec: &martlet_model::ModelSpec, kv: KvScheme) -> u64 {
    (spec.page_bytes(false, kv).iter().sum::<usize>() / PAGE) as u64
}

/// The name of how a session keeps keys and values.
pub fn kv_name(plan: &Plan) -> &'static str {
    crate::settings::KV.iter().find(|(_, scheme)| *scheme == plan.kv).map_or("other", |(name, _)| name)
}

/// FNV-1a of token ids.
pub fn fingerprint(tokens: &[u32]) -> String {
    let bytes = tokens.iter().flat_map(|t| t.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

/// A report, for tests of what shows it.
#[cfg(test)]
pub mod tests_support {
    use super::*;
    use crate::commands::bench::versus::Row;

    pub fn report() -> Report {
        let seconds = |median, min, max| Seconds { median, min, max, runs: 3 };
        let kind = |operation, calls, seconds| Kind { operation, calls, seconds, share: seconds / 0.02 };
        Report {
            martlet: "0.0.0",
            model: "m".into(),
            device: "cpu",
            threads: 2,
            machine: Machine {
                processor: Some("a processor".into()),
                system: "linux",
                architecture: "x86_64",
                cores: 2,
                instruction_sets: vec!["portable".into(), "avx2".into()],
                memory: Some(8 << 30),
            },
            kv: "f16",
            read_bandwidth: Some(3e10),
            parameters: 1_500_000_000,
            active_parameters: 1_200_000_000,
            weight_bytes: 1 << 30,
            weight_bytes_per_token: 512 << 20,
            experts: None,
            disk_read: None,
            streaming: Vec::new(),
            kv_bytes_per_token: 12 << 10,
            repeats: 3,
            prefill: vec![Prefill { tokens: 512, seconds: seconds(2.048, 2.0, 2.1), tokens_per_second: 250.0 }],
            decode: vec![Decode {
                context: 0,
                tokens: 128,
                seconds: seconds(0.02, 0.019, 0.021),
                tokens_per_second: 50.0,
                bytes_per_token: (512 << 20) + (768 << 10),
                bytes_per_second: 26.88e9,
                share_of_bandwidth: Some(0.896),
                fingerprint: "ab".into(),
            }],
            batches: Vec::new(),
            turns: Vec::new(),
            operations: Operations {
                prefill: None,
                decode: Some(Spent {
                    tokens: 1,
                    seconds: 0.02,
                    kinds: vec![kind("weight products", 96.0, 0.015), kind("attention", 6.0, 0.005)],
                }),
            },
            skipped: vec!["a turn after 64297 tokens: the context holds 4096".into()],
            interrupted: false,
            peak_memory: Some(1181116006),
            versus: vec![Versus {
                name: "other".into(),
                threads: Some(4),
                rows: vec![Row { test: "pp512".into(), ours: 250.0, theirs: 100.0, ratio: 2.5 }],
                not_compared: vec!["tg32".into()],
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const BYTES: Bytes = Bytes { weights: 1_000_000, kv: 100, bandwidth: Some(1e9) };

    #[test]
    fn medians_are_medians() {
        let of = |runs: &[f64]| Seconds::new(runs.to_vec()).map(|s| (s.median, s.min, s.max, s.runs));
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0, 3)));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), Some((2.5, 1.0, 4.0, 4)));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_share_is_bytes_by_time_by_bandwidth() {
        // 10 tokens in 20, 40 and 30 ms after 95: one takes 3 ms, and reads the weights and 100 tokens of 100 bytes.
        let d = Decode::new(95, 10, vec![0.02, 0.04, 0.03], "x".into(), BYTES).unwrap();
        assert_eq!(d.bytes_per_token, 1_000_000 + 100 * 100);
        assert!((d.seconds.median - 0.003).abs() < 1e-12 && (d.tokens_per_second - 1000.0 / 3.0).abs() < 1e-9);
        assert!((d.bytes_per_second - 1_010_000.0 / 0.003).abs() < 1e-3);
        assert!((d.share_of_bandwidth.unwrap() - 1_010_000.0 / 0.003 / 1e9).abs() < 1e-12);
        let unknown = Bytes { bandwidth: None, ..BYTES };
        assert_eq!(Decode::new(0, 1, vec![1.0], String::new(), unknown).unwrap().share_of_bandwidth, None);
        assert_eq!(Decode::new(0, 1, Vec::new(), String::new(), BYTES), None);
    }

    #[test]
    fn batches_are_compared_with_one_sequence() {
        let runs = [(1, 0.2), (4, 0.4), (1, 0.3), (4, 0.2), (1, 0.1), (4, 0.3)];
        let batches = Batch::all(&[1, 4, 8], &runs);
        assert_eq!(batches.len(), 2, "nothing is known of 8");
        assert_eq!((batches[0].times_of_one, batches[0].tokens_per_second), (Some(1.0), 5.0));
        assert!((batches[1].times_of_one.unwrap() - 1.5).abs() < 1e-12);
        assert!((batches[1].tokens_per_second - 4.0 / 0.3).abs() < 1e-9);
        assert_eq!(Batch::all(&[4], &runs[1..2])[0].times_of_one, None);
    }

    #[test]
    fn a_turn_counts_what_was_computed() {
        let t = TurnAgain::new(1000, 990, 40, 9.0, vec![0.5]).unwrap();
        assert_eq!((t.tokens_per_second, t.seconds_without_cache), (100.0, 9.0));
    }

    #[test]
    fn time_by_kind_adds_up() {
        let time = |operation, calls, ms| OperationTime { operation, calls, time: Duration::from_millis(ms) };
        let times =
            [time(Operation::Products, 40, 60), time(Operation::Head, 10, 20), time(Operation::Attention, 20, 120)];
        let step = Spent::new(7, &times, true).unwrap();
        assert!((step.seconds - 0.02).abs() < 1e-12, "200 ms in 10 steps");
        let kinds: Vec<_> = step.kinds.iter().map(|k| (k.operation, k.calls)).collect();
        assert_eq!(kinds, [("attention", 2.0), ("weight products", 4.0), ("output head", 1.0)]);
        assert!((step.kinds.iter().map(|k| k.share).sum::<f64>() - 1.0).abs() < 1e-12);
        assert!((step.kinds[0].seconds - 0.012).abs() < 1e-12);
        assert!((Spent::new(7, &times, false).unwrap().seconds - 0.2).abs() < 1e-12);
        assert_eq!(Spent::new(7, &times[..1], true), None, "no step came to its end");
    }

    #[test]
    fn fingerprints_tell_tokens_apart() {
        assert_eq!(fingerprint(&[]), "cbf29ce484222325");
        assert_ne!(fingerprint(&[1, 2]), fingerprint(&[2, 1]));
    }
}
