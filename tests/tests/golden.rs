//! fledgling in full precision on the reference device: the token ids, log-probabilities and drafts that transformers
//! and the training code gave.

use martlet_device::reference::Reference;
use martlet_device::{Device, KvScheme};
use martlet_engine::{DraftInput, Hidden, Runner, SeqInput};
use martlet_tests::{argmax, fixtures, runner};
use martlet_weights::Checkpoint;
use serde_json::Value;

/// The prompt of nearly four thousand tokens takes a minute: `MARTLET_FULL=1 cargo test --release -p martlet-tests`.
const LONG: &str = "40-retrieval_4000";

fn cases() -> Vec<Value> {
    let folder = fixtures::path("fledgling-golden");
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(folder.join(name)).expect("golden file")).expect("golden file")
    };
    let index = read("index.json");
    let names = index["cases"].as_array().expect("cases").iter().map(|c| c["name"].as_str().expect("name"));
    names.map(|n| read(&format!("{n}.json"))).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|v| v.as_u64().expect("id") as u32).collect()
}

/// Greedy tokens with, at each step, the logits they were chosen from and the three drafts that follow.
fn check<D: Device>(runner: &mut Runner<D>, case: &Value) {
    let name = case["name"].as_str().expect("name");
    let (prompt, greedy) = (ids(&case["prompt_ids"]), ids(&case["greedy_ids"]));
    let mut seq = runner.open().unwrap();
    runner.step(&mut [SeqInput { seq: &mut seq, tokens: &prompt, tentative: 0, outputs: 1 }]).unwrap();
    let mut next = prompt[1..].to_vec();
    let mut found = Vec::new();
    for step in 0..greedy.len() {
        let logits = runner.logits(1).unwrap();
        found.push(argmax(&logits));
        check_logprobs(name, step, &logits, &case["top5_logprobs"]);
        assert_eq!(found[step], greedy[step], "{name}: token {step}");

        // The head reads the rows of this step with the token after each, then its own drafts.
        next.push(greedy[step]);
        let mut start = seq.len() - next.len();
        let mut drafts = Vec::new();
        let mut hidden = Hidden::Step;
        for _ in 0..3 {
            let input = DraftInput { seq: &mut seq, start, tokens: &next, outputs: 1 };
            runner.draft(&mut [input], hidden).unwrap();
            start += next.len();
            drafts.push(argmax(&runner.draft_logits(1).unwrap()));
            next = vec![drafts[drafts.len() - 1]];
            hidden = Hidden::Drafted;
        }
        assert_eq!(drafts, ids(&case["mtp_drafts"][step]), "{name}: drafts after token {step}");
        next.clear();
        runner
            .step(&mut [SeqInput { seq: &mut seq, tokens: &greedy[step..step + 1], tentative: 0, outputs: 1 }])
            .unwrap();
    }
    runner.close(seq);
}

fn check_logprobs(name: &str, step: usize, logits: &[f32], expected: &Value) {
    let Some(top) = expected.get(step).and_then(Value::as_array) else { return };
    let max = logits.iter().copied().fold(f32::MIN, f32::max) as f64;
    let sum = max + logits.iter().map(|x| (*x as f64 - max).exp()).sum::<f64>().ln();
    for pair in top {
        let (id, logprob) = (pair[0].as_u64().expect("id") as usize, pair[1].as_f64().expect("logprob"));
        let found = logits[id] as f64 - sum;
        assert!((found - logprob).abs() < 1e-3, "{name}, step {step}, token {id}: {found}, expected {logprob}");
    }
}

fn run(cases: &[&Value]) {
    let rows = cases.iter().map(|c| ids(&c["prompt_ids"]).len()).max().unwrap_or(0);
    let checkpoint = Checkpoint::open(&fixtures::fledgling()).unwrap();
    let mut runner = runner(Reference::new(), &checkpoint, KvScheme::F32, rows);
    cases.iter().for_each(|c| check(&mut runner, c));
}

/// Two halves of about the same work, so that the two cores of a small machine share it.
fn half(of: usize) {
    let all = cases();
    let mut text: Vec<&Value> = all.iter().filter(|c| c["images"].as_array().is_none_or(Vec::is_empty)).collect();
    assert_eq!((all.len(), text.len()), (41, 36), "five cases have pictures, which are not run yet");
    text.retain(|c| c["name"] != LONG);
    text.sort_by_key(|c| ids(&c["prompt_ids"]).len());
    let mine: Vec<&Value> = text.into_iter().skip(of).step_by(2).collect();
    assert!(mine.len() >= 17);
    run(&mine);
}

#[test]
fn even_cases() {
    half(0);
}

#[test]
fn odd_cases() {
    half(1);
}

#[test]
fn retrieval_over_four_thousand_tokens() {
    if std::env::var_os("MARTLET_FULL").is_none() {
        eprintln!("NOT RUN: {LONG} (set MARTLET_FULL=1)");
        return;
    }
    let all = cases();
    run(&[all.iter().find(|c| c["name"] == LONG).expect(LONG)]);
}
