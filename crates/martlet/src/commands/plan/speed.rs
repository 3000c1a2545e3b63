//! How fast a model would answer here: what a token reads, beside what memory and disk were measured to give.

use crate::app::App;
use crate::size;
use anyhow::Context;
use martlet_model::{MlpSpec, ModelSpec};
use martlet_session::machine::{expert_reads, read_bandwidth, threads};
use martlet_session::{ModelSource, Plan};
use martlet_weights::Checkpoint;
use serde::Serialize;

/// Decoding reaches 55 to 80 % of what memory gives (docs/performance.md, docs/streaming.md).
const REACHED: f64 = 0.65;

/// What was measured, and what follows. Bytes, and bytes a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Memory, by as many threads as compute.
    memory: f64,
    /// Weights that a token reads.
    bytes_per_token: u64,
    /// Where experts are read from disk.
    streaming: Option<Streaming>,
    /// Tokens a second: where routers choose evenly, and where they have favourites. The same with all in memory.
    tokens_per_second: [f64; 2],
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Streaming {
    /// What the disk gives, the setting `disk_limit` respected.
    disk: f64,
    /// Chosen experts of a token.
    bytes_per_token: u64,
    /// Share of all experts that the slots hold.
    held: f64,
    /// Share of the chosen that lie there: chosen evenly, and by routers with favourites.
    found: [f64; 2],
}

/// What experts take, all of them and those of a token.
struct Experts {
    all: u64,
    per_token: u64,
}

impl Speed {
    /// Measures memory (a second, and 1 GiB or a quarter of what is free), and the disk (some seconds) where experts would
    /// be read from it.
    pub fn measure(app: &App, source: &ModelSource, plan: &Plan) -> anyhow::Result<Speed> {
        let (spec, report, checkpoint) = source.check()?;
        let threads = threads(app.settings.device, app.settings.threads);
        let memory = read_bandwidth(threads).context("the speed of memory can not be measured")?;
        let experts = if plan.experts > 0 { Experts::of(&spec, &checkpoint) } else { None };
        let read = match experts {
            Some(_) => expert_reads(&checkpoint)?,
            None => None,
        };
        let disk = experts.zip(read).map(|(experts, read)| (experts, app.settings.disk_rate(read.bytes_per_second())));
        Ok(Speed::new(memory, report.bytes_per_token, plan.experts, disk))
    }

    /// `slots`: bytes of experts that stay in memory. `disk`: what experts take, and its speed.
    fn new(memory: f64, bytes_per_token: u64, slots: u64, disk: Option<(Experts, f64)>) -> Speed {
        let compute = bytes_per_token as f64 / (memory * REACHED).max(1.0);
        let streaming = disk.map(|(experts, disk)| {
            let held = (slots as f64 / experts.all.max(1) as f64).min(1.0);
            // The curve goes through what was found in memory of recorded choices with favourites: half where a fifth is
            // held, 72 % at 35 %, 85 % at half (docs/streaming.md).
            let found = [held, 1.0 - (1.0 - held).powf(2.9)];
            Streaming { disk, bytes_per_token: experts.per_token, held, found }
        });
        let reading = |i: usize| {
            streaming.as_ref().map_or(0.0, |s| s.bytes_per_token as f64 * (1.0 - s.found[i]) / s.disk.max(1.0))
        };
        let tokens_per_second = [0, 1].map(|i| 1.0 / (reading(i) + compute).max(f64::MIN_POSITIVE));
        Speed { memory, bytes_per_token, streaming, tokens_per_second }
    }

    /// Lines for people: name, size, what it is.
    pub fn lines(&self) -> Vec<(&'static str, String, String)> {
        let gives = |rate: f64| size::speed(rate as u64);
        let token = size::bytes(self.bytes_per_token);
        let mut lines =
            vec![("memory gives", gives(self.memory), format!("measured; a token reads {token} of weights"))];
        let [even, favourites] = self.tokens_per_second.map(|t| format!("{t:.1} tok/s"));
        let Some(s) = &self.streaming else {
            lines.push(("expected", even, "for one answer, without drafts".into()));
            return lines;
        };
        let experts = size::bytes(s.bytes_per_token);
        lines.push((
            "disk gives",
            gives(s.disk),
            format!("measured, or `disk_limit`; a token chooses experts of {experts}"),
        ));
        let percent = |x: f64| format!("{:.0} %", 100.0 * x);
        let found = |i: usize| format!("{} of the chosen experts are in memory", percent(s.found[i]));
        lines.push(("expected", even, format!("where routers choose evenly: {}", found(0))));
        lines.push(("", favourites, format!("where they have favourites: {}", found(1))));
        lines
    }
}

impl Experts {
    /// Of a pack; `None` where there are none. The draft head's are no token's.
    fn of(spec: &ModelSpec, checkpoint: &Checkpoint) -> Option<Experts> {
        let (_, stacks) = checkpoint.expert_file()?;
        let chosen = spec.layers.iter().find_map(|l| match l.mlp {
            MlpSpec::Experts { route, .. } => Some(route.chosen as u64),
            MlpSpec::Dense { .. } => None,
        })?;
        let layers = stacks.iter().filter(|s| s.name.starts_with("layers."));
        Some(Experts {
            all: stacks.iter().map(|s| s.xxh3.len() as u64 * s.bytes).sum(),
            per_token: layers.map(|s| chosen * s.bytes).sum(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape of 35b-a3b in 8 GiB, as docs/streaming.md has it measured.
    #[test]
    fn it_lies_near_what_was_measured() {
        let (expert, mib) = (1_769_472u64, 1u64 << 20);
        let experts = Experts { all: 40 * 256 * expert, per_token: 40 * 8 * expert };
        let speed = Speed::new(30e9, 1400 * mib, 3_600 * expert, Some((experts, 2.44e9)));
        let s = speed.streaming.as_ref().unwrap();
        assert!((s.held - 0.35).abs() < 0.01 && (s.found[1] - 0.716).abs() < 0.02, "{s:?}");
        let [even, favourites] = speed.tokens_per_second;
        // 5.31 and 7.33 were measured.
        assert!((4.0..6.0).contains(&even) && (6.0..9.0).contains(&favourites), "{speed:?}");
        assert_eq!(speed.lines().len(), 4);
    }

    #[test]
    fn with_all_in_memory_only_memory_counts() {
        let speed = Speed::new(20e9, 1_300_000_000, 0, None);
        assert_eq!(speed.tokens_per_second[0], speed.tokens_per_second[1]);
        assert!((speed.tokens_per_second[0] - 10.0).abs() < 1e-6);
        assert!(speed.lines()[1].1 == "10.0 tok/s", "{:?}", speed.lines());
        let none = Speed::new(0.0, 0, 0, Some((Experts { all: 0, per_token: 0 }, 0.0)));
        assert!(none.tokens_per_second.iter().all(|t| t.is_finite()));
    }
}
