//! What reading experts from disk took, beside what the disk and the rest of the work allow.

use super::report::Spent;
use martlet_session::StreamStats;
use serde::Serialize;

/// Reading during the runs of one figure: means of a prompt, or of a token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Streaming {
    /// "prefill": of a prompt of so many tokens; "decode": of a token after so many.
    pub what: &'static str,
    pub tokens: usize,
    /// What it took. A mean too: runs that find other experts there take other times.
    pub seconds: f64,
    /// Experts that layers needed, and those of them that were read.
    pub needed: f64,
    pub reads: f64,
    pub bytes_read: f64,
    /// As of [`super::report::Experts`].
    pub recall: Option<f64>,
    pub precision: Option<f64>,
    pub ahead: f64,
    pub ahead_used: f64,
    pub bytes_wasted: f64,
    /// Something was being read for so long, and there was nothing else to do for so long.
    pub busy_seconds: f64,
    pub waited_seconds: f64,
    /// What the bytes take at the disk's best, and its share of the time.
    pub disk_seconds: Option<f64>,
    pub disk_share: Option<f64>,
    /// Of a token: what everything but experts takes, which can not overlap with reading.
    pub dense_seconds: Option<f64>,
    /// (disk_seconds + dense_seconds) / seconds.
    pub share_of_bound: Option<f64>,
}

impl Streaming {
    fn new(what: &'static str, tokens: usize, units: usize, runs: &[(f64, StreamStats)]) -> Streaming {
        let mean = |sum: f64| sum / (units * runs.len()).max(1) as f64;
        let sum = |of: fn(&StreamStats) -> f64| mean(runs.iter().map(|(_, s)| of(s)).sum());
        let all = runs.iter().fold(StreamStats::default(), |all, (_, s)| all.with_guesses(s));
        Streaming {
            what,
            tokens,
            seconds: mean(runs.iter().map(|(seconds, _)| seconds).sum()),
            needed: sum(|s| s.needed as f64),
            reads: sum(|s| s.reads as f64),
            bytes_read: sum(|s| s.bytes_read as f64),
            recall: all.recall(),
            precision: all.precision(),
            ahead: sum(|s| s.ahead as f64),
            ahead_used: sum(|s| s.ahead_used as f64),
            bytes_wasted: sum(|s| s.bytes_wasted as f64),
            busy_seconds: sum(|s| s.busy.as_secs_f64()),
            waited_seconds: sum(|s| s.waited.as_secs_f64()),
            disk_seconds: None,
            disk_share: None,
            dense_seconds: None,
            share_of_bound: None,
        }
    }

    /// `runs`: seconds of each, and what was read.
    pub fn prefill(tokens: usize, runs: &[(f64, StreamStats)]) -> Streaming {
        Streaming::new("prefill", tokens, 1, runs)
    }

    /// The same, of `tokens` tokens each after `context`.
    pub fn decode(context: usize, tokens: usize, runs: &[(f64, StreamStats)]) -> Streaming {
        Streaming::new("decode", context, tokens, runs)
    }

    /// `disk`: bytes a second at its best; `spent`: where a token's time goes.
    pub fn bound(&mut self, disk: Option<f64>, spent: Option<&Spent>) {
        self.disk_seconds = disk.map(|d| self.bytes_read / d);
        self.disk_share = self.disk_seconds.map(|s| s / self.seconds.max(f64::MIN_POSITIVE));
        let others = |s: &Spent| s.kinds.iter().filter(|k| k.operation != "experts").map(|k| k.seconds).sum::<f64>();
        self.dense_seconds = spent.filter(|_| self.what == "decode").map(others);
        let bound = self.disk_seconds.zip(self.dense_seconds).map(|(disk, dense)| disk + dense);
        self.share_of_bound = bound.map(|b| b / self.seconds.max(f64::MIN_POSITIVE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::report::tests_support::report;
    use std::time::Duration;

    #[test]
    fn a_token_is_compared_with_disk_and_dense_work() {
        let mut report = report();
        let mut run = StreamStats::default();
        (run.needed, run.reads, run.bytes_read) = (128 * 8, 128 * 2, 128 * 2000);
        run.waited = Duration::from_millis(128);
        (run.guess_missing, run.guesses, run.guesses_right) = (40, 15, 10);
        (run.ahead, run.ahead_used, run.bytes_wasted) = (128 * 3, 128 * 2, 128 * 500);
        let mut s = Streaming::decode(0, 128, &[(3.0, run), (2.12, run)]);
        assert_eq!((s.needed, s.reads, s.bytes_read), (8.0, 2.0, 2000.0));
        assert!((s.waited_seconds - 1e-3).abs() < 1e-9);
        assert_eq!((s.recall, s.precision), (Some(0.25), Some(10.0 / 15.0)));
        assert_eq!((s.ahead, s.ahead_used, s.bytes_wasted), (3.0, 2.0, 500.0));
        let spent = report.operations.decode.as_mut().unwrap();
        spent.kinds[1].operation = "experts";
        s.bound(Some(1e6), Some(spent));
        // 2 ms of reading and 15 ms of weight products, of 20 ms.
        assert!((s.seconds - 0.02).abs() < 1e-9);
        assert!((s.share_of_bound.unwrap() - 0.85).abs() < 1e-9, "{s:?}");
        assert!((s.disk_share.unwrap() - 0.1).abs() < 1e-9, "{s:?}");
        s.bound(None, None);
        assert_eq!((s.disk_seconds, s.share_of_bound), (None, None));
        let p = Streaming::prefill(512, &[(1.0, run)]);
        assert_eq!((p.what, p.tokens, p.reads), ("prefill", 512, 256.0));
    }
}
