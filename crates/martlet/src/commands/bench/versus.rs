//! Other programs' figures: the JSON of llama-bench (`-o json` or `-o jsonl`), beside our own.

use super::report::Report;
use crate::exit::Usage;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// One test of llama-bench. The fields that are compared; there are many more.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Theirs {
    /// Tokens of a prompt, 0 in a test of generation.
    n_prompt: usize,
    /// Tokens generated, 0 in a test of prompts.
    n_gen: usize,
    /// Tokens before the test; files of older versions do not have it.
    #[serde(default)]
    n_depth: usize,
    #[serde(default)]
    n_threads: Option<usize>,
    /// Tokens a second, the mean.
    avg_ts: f64,
    /// The same of each run.
    #[serde(default)]
    samples_ts: Vec<f64>,
}

/// A file, and what of it was compared.
#[derive(Debug, Serialize)]
pub struct Versus {
    /// The file's name without its ending.
    pub name: String,
    pub threads: Option<usize>,
    pub rows: Vec<Row>,
    /// Tests that have no counterpart among ours.
    pub not_compared: Vec<String>,
}

/// Tokens a second of both.
#[derive(Debug, PartialEq, Serialize)]
pub struct Row {
    /// As llama-bench names it: pp512, tg128 @ d4096.
    pub test: String,
    pub ours: f64,
    pub theirs: f64,
    /// Ours by theirs.
    pub ratio: f64,
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Vec<Theirs>, Usage> {
    let wrong = |what: String| Usage(format!("--vs {}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    parse(&text).map_err(wrong)
}

/// An array of tests, or one test on each line.
fn parse(text: &str) -> Result<Vec<Theirs>, String> {
    let expected = "the output of llama-bench with -o json or -o jsonl is expected";
    let tests: Vec<Theirs> = match text.trim_start().starts_with('[') {
        true => serde_json::from_str(text).map_err(|e| format!("{e}; {expected}"))?,
        false => {
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            let read = |(i, line): (usize, &str)| {
                serde_json::from_str(line).map_err(|e| format!("line {}: {e}; {expected}", i + 1))
            };
            lines.map(read).collect::<Result<_, _>>()?
        }
    };
    match tests.iter().find(|t| !t.speed().is_some_and(|s| s.is_finite() && s > 0.0)) {
        _ if tests.is_empty() => Err(format!("there is no test in it; {expected}")),
        Some(test) => Err(format!("the test {} has no speed", test.name())),
        None => Ok(tests),
    }
}

impl Theirs {
    /// The median of the runs, where they are given.
    fn speed(&self) -> Option<f64> {
        match super::report::Seconds::new(self.samples_ts.clone()) {
            Some(samples) => Some(samples.median),
            None => Some(self.avg_ts),
        }
    }

    fn name(&self) -> String {
        let test = match (self.n_prompt, self.n_gen) {
            (p, 0) => format!("pp{p}"),
            (0, g) => format!("tg{g}"),
            (p, g) => format!("pp{p}+tg{g}"),
        };
        if self.n_depth == 0 { test } else { format!("{test} @ d{}", self.n_depth) }
    }

    /// Our tokens a second in the same test.
    fn ours(&self, report: &Report) -> Option<f64> {
        match (self.n_prompt, self.n_gen, self.n_depth) {
            (p, 0, 0) => report.prefill.iter().find(|r| r.tokens == p).map(|r| r.tokens_per_second),
            (0, _, depth) => report.decode.iter().find(|r| r.context == depth).map(|r| r.tokens_per_second),
            _ => None,
        }
    }
}

impl Versus {
    pub fn new(path: &Path, tests: &[Theirs], report: &Report) -> Versus {
        let name = path.file_stem().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
        let (mut rows, mut not_compared) = (Vec::new(), Vec::new());
        for test in tests {
            match (test.ours(report), test.speed()) {
                (Some(ours), Some(theirs)) => {
                    rows.push(Row { test: test.name(), ours, theirs, ratio: ours / theirs });
                }
                _ => not_compared.push(test.name()),
            }
        }
        Versus { name, threads: tests.iter().find_map(|t| t.n_threads), rows, not_compared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::report::tests_support::report;

    const SAMPLE: &str = r#"[
      {"build_commit": "abc", "model_type": "x", "n_threads": 4, "n_prompt": 512, "n_gen": 0, "n_depth": 0,
       "avg_ns": 1, "avg_ts": 90.0, "stddev_ts": 1.0, "samples_ns": [1, 1, 1], "samples_ts": [80.0, 100.0, 120.0]},
      {"n_threads": 4, "n_prompt": 0, "n_gen": 128, "avg_ts": 20.0},
      {"n_threads": 4, "n_prompt": 0, "n_gen": 32, "n_depth": 4096, "avg_ts": 16.0, "samples_ts": []},
      {"n_threads": 4, "n_prompt": 512, "n_gen": 128, "avg_ts": 30.0}
    ]"#;

    #[test]
    fn tests_are_matched_by_lengths() {
        let tests = parse(SAMPLE).unwrap();
        let versus = Versus::new(Path::new("a/other.json"), &tests, &report());
        assert_eq!((versus.name.as_str(), versus.threads), ("other", Some(4)));
        let row = |test: &str, ours, theirs| Row { test: test.into(), ours, theirs, ratio: ours / theirs };
        // The median of the samples, and the mean where there are none.
        assert_eq!(versus.rows, [row("pp512", 250.0, 100.0), row("tg128", 50.0, 20.0)]);
        assert_eq!(versus.rows[0].ratio, 2.5);
        assert_eq!(versus.not_compared, ["tg32 @ d4096", "pp512+tg128"]);
    }

    #[test]
    fn lines_are_read_too() {
        let lines: Vec<String> =
            serde_json::from_str::<Vec<serde_json::Value>>(SAMPLE).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(parse(&(lines.join("\n") + "\n\n")).unwrap(), parse(SAMPLE).unwrap());
    }

    #[test]
    fn what_is_no_such_output_is_refused() {
        for (text, word) in [
            ("", "no test in it"),
            ("[]", "no test in it"),
            ("| model | size |", "line 1"),
            ("[{\"n_prompt\": 1}]", "n_gen"),
            ("[{\"n_prompt\": 8, \"n_gen\": 0, \"avg_ts\": 0}]", "the test pp8 has no speed"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        let error = read(Path::new("nowhere.json")).unwrap_err().to_string();
        assert!(error.starts_with("--vs nowhere.json: "), "{error}");
    }
}
