//! Tiny random checkpoints against what transformers, mlx-lm and mlx-vlm computed from the same files in f32.

use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::reference::Reference;
use martlet_device::{Device, KvScheme, Routes};
use martlet_engine::{DraftInput, Hidden, Runner, SeqInput, SeqState};
use martlet_model::{LayerCache, MlpSpec};
use martlet_tests::fixtures::{Expected, checkpoint};
use martlet_tests::{argmax, gap, prefill_and_decode, runner};

/// What two frameworks differ by is 3e-4; ours may take as much again and a little.
const TOLERANCE: f32 = 1e-3;

/// Relative errors (root mean square) with 8-bit activations.
const FIRST_LAYER: f64 = 0.05;
const PACKED_LOGITS: f64 = 0.5;

struct Trace {
    hidden: Vec<Vec<f32>>,
    routes: Vec<Option<Routes>>,
}

fn traced<D: Device>(runner: &mut Runner<D>, seq: &mut SeqState, ids: &[u32]) -> Trace {
    let mut trace = Trace { hidden: Vec::new(), routes: Vec::new() };
    let input = SeqInput { seq, tokens: ids, tentative: 0, outputs: ids.len() };
    let mut keep = |_, hidden, routes| {
        trace.hidden.push(hidden);
        trace.routes.push(routes);
    };
    runner.traced_step(&mut [input], Some(&mut keep)).unwrap();
    trace
}

fn close(name: &str, what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    let gap = gap(found, expected);
    assert!(gap <= tolerance, "{name}, {what}: largest gap {gap}, allowed {tolerance}");
}

/// Everything that the oracle recorded, on the reference device.
fn check_all(name: &str) {
    let expected = Expected::open(name);
    let ids = expected.ids("input_ids");
    let mut runner = runner(Reference::new(), &checkpoint(name), KvScheme::F32, ids.len());
    let mut seq = runner.open().unwrap();
    let trace = traced(&mut runner, &mut seq, &ids);
    for (layer, hidden) in trace.hidden.iter().enumerate() {
        close(name, &format!("layer {layer}"), hidden, &expected.f32(&format!("layer.{layer}")), TOLERANCE);
    }
    close(name, "logits", &runner.logits(ids.len()).unwrap(), &expected.f32("logits"), TOLERANCE);
    check_routes(name, &runner, &trace, &expected);
    check_states(name, &mut runner, &seq, ids.len(), &expected);
    check_mtp(name, &mut runner, &mut seq, &ids, &expected);
    runner.close(seq);
    check_greedy(name, &mut runner, &ids, &expected, TOLERANCE);
}

fn check_routes<D: Device>(name: &str, runner: &Runner<D>, trace: &Trace, expected: &Expected) {
    for (layer, routes) in trace.routes.iter().enumerate() {
        let sparse = matches!(runner.spec().layers[layer].mlp, MlpSpec::Experts { .. });
        assert_eq!(sparse, routes.is_some(), "{name}, layer {layer}");
        let Some(routes) = routes else { continue };
        assert_eq!(routes.experts, expected.ids(&format!("router.{layer}.experts")), "{name}, layer {layer}");
        let weights = expected.f32(&format!("router.{layer}.weights"));
        close(name, &format!("router weights {layer}"), &routes.weights, &weights, 1e-4);
    }
}

fn check_states<D: Device>(name: &str, runner: &mut Runner<D>, seq: &SeqState, len: usize, expected: &Expected) {
    let (pages, slot) = (seq.pages().to_vec(), seq.slot());
    let (d, cache) = runner.parts();
    let layers = cache.layers.len() - 1; // without the draft head
    for (i, layer) in cache.layers[..layers].iter().enumerate() {
        match layer {
            LayerCache::Kv(kv) => {
                let [keys, values] = d.read_kv(kv, &pages, len).unwrap();
                close(name, &format!("keys {i}"), &keys, &expected.f32(&format!("cache.{i}.keys")), TOLERANCE);
                close(name, &format!("values {i}"), &values, &expected.f32(&format!("cache.{i}.values")), TOLERANCE);
            }
            LayerCache::Delta(state) => {
                let [conv, recurrent] = d.read_delta(state, slot).unwrap();
                // The oracle keeps four inputs, channels first; ours the last three, oldest first.
                let theirs = expected.f32(&format!("cache.{i}.conv"));
                let channels = theirs.len() / 4;
                let theirs: Vec<f32> =
                    (1..4).flat_map(|t| (0..channels).map(move |c| (c, t))).map(|(c, t)| theirs[4 * c + t]).collect();
                close(name, &format!("convolution {i}"), &conv, &theirs, TOLERANCE);
                close(name, &format!("state {i}"), &recurrent, &expected.f32(&format!("cache.{i}.state")), TOLERANCE);
            }
        }
    }
}

/// Draft logits over the prompt, then a greedy chain from its last position.
fn check_mtp<D: Device>(name: &str, runner: &mut Runner<D>, seq: &mut SeqState, ids: &[u32], expected: &Expected) {
    let vocabulary = runner.spec().vocabulary;
    let mut tokens = ids[1..].to_vec();
    tokens.push(expected.ids("greedy_tokens")[0]);
    runner.draft(&mut [DraftInput { seq, start: 0, tokens: &tokens, outputs: ids.len() }], Hidden::Step).unwrap();
    let logits = runner.draft_logits(ids.len()).unwrap();
    close(name, "draft logits", &logits, &expected.f32("mtp.logits"), TOLERANCE);

    // Once more for the last row alone as output: its state feeds the chain.
    runner.draft(&mut [DraftInput { seq, start: 0, tokens: &tokens, outputs: 1 }], Hidden::Step).unwrap();
    let (mut drafts, mut rows) = (Vec::new(), Vec::new());
    for depth in 0..3 {
        let row = runner.draft_logits(1).unwrap();
        drafts.push(argmax(&row));
        rows.extend(row);
        if depth < 2 {
            let next = [drafts[depth]];
            let start = ids.len() + depth;
            runner.draft(&mut [DraftInput { seq, start, tokens: &next, outputs: 1 }], Hidden::Drafted).unwrap();
        }
    }
    assert_eq!(drafts, expected.ids("mtp.draft_tokens"), "{name}: drafts");
    assert_eq!(rows.len(), 3 * vocabulary);
    close(name, "chain logits", &rows, &expected.f32("mtp.draft_logits"), TOLERANCE);
}

fn check_greedy<D: Device>(name: &str, runner: &mut Runner<D>, ids: &[u32], expected: &Expected, tolerance: f32) {
    let steps = expected.ids("greedy_tokens").len();
    let (logits, tokens, rows) = prefill_and_decode(runner, ids, ids.len(), steps);
    close(name, "logits", &logits, &expected.f32("logits"), tolerance);
    assert_eq!(tokens, expected.ids("greedy_tokens"), "{name}: greedy tokens");
    close(name, "decode logits", &rows, &expected.f32("greedy_logits"), tolerance);
}

#[test]
fn qwen3_next_moe() {
    check_all("next-moe");
}

#[test]
fn qwen3_5_dense() {
    check_all("dense");
}

#[test]
fn qwen3_5_moe() {
    check_all("moe");
}

/// MLX conversions: the packed weights as they are, f32 activations.
#[test]
fn mlx_checkpoints() {
    for name in ["dense-mlx-q4", "dense-mlx-mxfp4", "dense-mlx-nvfp4", "moe-mlx-q4", "next-moe-mlx-mixed"] {
        let expected = Expected::open(name);
        let ids = expected.ids("input_ids");
        let mut runner = runner(Reference::new(), &checkpoint(name), KvScheme::F32, ids.len());
        check_greedy(name, &mut runner, &ids, &expected, TOLERANCE);
    }
}

/// The CPU device on plain weights: activations are not quantised there, so only rounding and the order of sums differ.
#[test]
fn cpu_on_plain_weights() {
    for name in ["next-moe", "dense", "moe"] {
        let expected = Expected::open(name);
        let ids = expected.ids("input_ids");
        let cpu = Cpu::new(CpuOptions { threads: None, isa: None }).unwrap();
        let mut runner = runner(cpu, &checkpoint(name), KvScheme::F32, ids.len());
        check_greedy(name, &mut runner, &ids, &expected, TOLERANCE);
        let mut seq = runner.open().unwrap();
        let trace = traced(&mut runner, &mut seq, &ids);
        check_routes(name, &runner, &trace, &expected);
        check_states(name, &mut runner, &seq, ids.len(), &expected);
        check_mtp(name, &mut runner, &mut seq, &ids, &expected);
    }
}

/// The CPU device on packed weights, whose products round activations to 8 bits in groups: an error of up to 1/254 of a
/// group's largest value, some 0.6 % of the output of one product with random weights; one layer chains five of
/// them, the recurrence and the product of two gates between. These random models then amplify any error (rounding the norms to bf16, 0.2 % at most, moves
/// their logits by a third of their spread), and their routers, near
/// ties, then choose other experts: the logits tell less.
#[test]
fn cpu_on_packed_weights() {
    for name in ["dense-mlx-q4", "dense-mlx-mxfp4", "dense-mlx-nvfp4", "moe-mlx-q4", "next-moe-mlx-mixed"] {
        let expected = Expected::open(name);
        let ids = expected.ids("input_ids");
        let cpu = Cpu::new(CpuOptions { threads: None, isa: None }).unwrap();
        let first_layer = |hidden: Trace| hidden.hidden.into_iter().next().expect("a layer");
        let mut exact = runner(Reference::new(), &checkpoint(name), KvScheme::F32, ids.len());
        let mut seq = exact.open().unwrap();
        let theirs = first_layer(traced(&mut exact, &mut seq, &ids));
        let mut runner = runner(cpu, &checkpoint(name), KvScheme::F32, ids.len());
        let mut seq = runner.open().unwrap();
        let first = relative(&first_layer(traced(&mut runner, &mut seq, &ids)), &theirs);
        let logits = relative(&runner.logits(ids.len()).unwrap(), &expected.f32("logits"));
        eprintln!("{name}: relative error {first:.4} after the first layer, {logits:.4} of the logits");
        assert!(first < FIRST_LAYER, "{name}: relative error after the first layer {first}");
        assert!(logits < PACKED_LOGITS, "{name}: relative error of the logits {logits}");
    }
}

/// Root mean square of the difference over that of `b`.
fn relative(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |it: &mut dyn Iterator<Item = f32>| it.map(|x| (x as f64).powi(2)).sum::<f64>();
    (square(&mut a.iter().zip(b).map(|(a, b)| a - b)) / square(&mut b.iter().copied())).sqrt()
}
