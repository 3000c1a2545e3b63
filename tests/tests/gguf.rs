//! GGUF versions of the oracle's checkpoints, made by tools/make_gguf.py with the changes of llama.cpp's converter:
//! they must compute what the checkpoints do that they were made of.

use martlet_chat::{ChatModel, SpecialTokens, TextFiles};
use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::reference::Reference;
use martlet_device::{Device, KvScheme};
use martlet_engine::{DraftInput, Hidden, SeqInput};
use martlet_session::{DeviceKind, ModelSource, Options, Prompt, Sampling, Session, SessionError, TurnOptions};
use martlet_tensor::{Float, Scheme};
use martlet_tests::fixtures::{Expected, checkpoint, fledgling, path, prepared, project};
use martlet_tests::{gap, prefill_and_decode, runner};
use martlet_weights::safetensors::{Tensor, to_bytes};
use martlet_weights::{Checkpoint, Layout, Limits, gguf};
use std::path::{Path, PathBuf};

/// As against the checkpoints themselves.
const TOLERANCE: f32 = 1e-3;

fn open(file: &Path) -> Checkpoint {
    let checkpoint = Checkpoint::open(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    assert_eq!(checkpoint.layout(), Layout::Gguf);
    checkpoint
}

/// A file that tools/prepare-test-data.sh makes of a checkpoint in the project, since the two hold the same weights.
fn made(name: &str) -> Option<PathBuf> {
    prepared(&format!("{name} as GGUF"), project(&format!("target/test-data/gguf/{name}.gguf")))
}

fn close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    let gap = gap(found, expected);
    assert!(gap <= tolerance, "{what}: largest gap {gap}, allowed {tolerance}");
}

/// Logits, greedy tokens and draft logits of the oracle.
fn check<D: Device>(d: D, name: &str, file: &Path) {
    let expected = Expected::open(name);
    let ids = expected.ids("input_ids");
    let mut runner = runner(d, &open(file), KvScheme::F32, ids.len());
    let steps = expected.ids("greedy_tokens");
    let (logits, tokens, rows) = prefill_and_decode(&mut runner, &ids, ids.len(), steps.len());
    close(&format!("{name}: logits"), &logits, &expected.f32("logits"), TOLERANCE);
    assert_eq!(tokens, steps, "{name}: greedy tokens");
    close(&format!("{name}: decode logits"), &rows, &expected.f32("greedy_logits"), TOLERANCE);

    let mut seq = runner.open().unwrap();
    runner.step(&mut [SeqInput { seq: &mut seq, tokens: &ids, tentative: 0, outputs: 1 }]).unwrap();
    let next: Vec<u32> = ids[1..].iter().chain(&steps[..1]).copied().collect();
    let draft = DraftInput { seq: &mut seq, start: 0, tokens: &next, outputs: ids.len() };
    runner.draft(&mut [draft], Hidden::Step).unwrap();
    let logits = runner.draft_logits(ids.len()).unwrap();
    close(&format!("{name}: draft logits"), &logits, &expected.f32("mtp.logits"), TOLERANCE);
}

#[test]
fn plain_weights_compute_what_the_oracle_does() {
    for name in ["moe", "next-moe"] {
        let Some(file) = made(name) else { continue };
        check(Reference::new(), name, &file);
        check(Cpu::new(CpuOptions { threads: None, isa: None }).unwrap(), name, &file);
    }
}

/// Every tensor is the safetensors checkpoint's, bit for bit but for the logarithm.
#[test]
fn plain_weights_are_the_same() {
    for name in ["moe", "next-moe"] {
        let Some(file) = made(name) else { continue };
        let (a, b) = (open(&file), checkpoint(name));
        assert!(a.names().eq(b.names()), "{name}: other tensors");
        for tensor in a.names() {
            assert_eq!(a.shape(tensor), b.shape(tensor), "{name}, {tensor}");
            let (x, y) = (a.vector(tensor).unwrap(), b.vector(tensor).unwrap());
            let tolerance = if tensor.ends_with("A_log") { 2e-7 } else { 0.0 };
            close(&format!("{name}, {tensor}"), &x, &y, tolerance);
        }
    }
}

/// One row as Q8_0 has it, written down once more: the largest magnitude of 32 becomes 127.
fn q8_0(row: &[f32]) -> Vec<f32> {
    let block = |x: &[f32]| {
        let d = x.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let stored = Float::F16.round(d);
        x.iter().map(|v| (v * inverse).round() * stored).collect::<Vec<f32>>()
    };
    row.chunks(32).flat_map(block).collect()
}

/// The dense fixture in two parts of Q8_0, against the fixture whose matrices are rounded to Q8_0 here.
#[test]
fn blocks_in_parts_compute_what_their_values_do() {
    let original = checkpoint("dense");
    let packed = open(&path("gguf").join("dense-q8_0-00001-of-00002.gguf"));
    let mut tensors = Vec::new();
    for name in original.names() {
        let matrix = packed.matrix(name).unwrap();
        let mut values = original.matrix(name).unwrap().dequantise();
        if matrix.scheme() == (Scheme::Symmetric { bits: 8 }) {
            values = values.chunks(matrix.cols()).flat_map(q8_0).collect();
            assert_eq!(matrix.dequantise(), values, "{name}");
        }
        let mut shape = original.shape(name).unwrap().to_vec();
        if name.ends_with("conv1d.weight") {
            shape.insert(1, 1);
        }
        tensors.push(Tensor::floats(format!("model.{name}"), Float::F32, &shape, &values));
    }
    for t in tensors.iter_mut().filter(|t| t.name.starts_with("model.mtp.")) {
        t.name = t.name.replace("model.", "");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), to_bytes("pt", &tensors)).unwrap();
    std::fs::copy(path("dense").join("config.json"), folder.path().join("config.json")).unwrap();
    let rounded = Checkpoint::open(folder.path()).unwrap();
    let ids = Expected::open("dense").ids("input_ids");
    let run = |c: &Checkpoint| {
        prefill_and_decode(&mut runner(Reference::new(), c, KvScheme::F32, ids.len()), &ids, ids.len(), 8)
    };
    let (found, expected) = (run(&packed), run(&rounded));
    close("logits", &found.0, &expected.0, TOLERANCE);
    assert_eq!(found.1, expected.1);
}

#[test]
fn the_tokenizer_is_the_one_it_was_made_of() {
    let bytes = std::fs::read(path("gguf").join("fledgling-vocab.gguf")).unwrap();
    let header = gguf::read(&bytes, &Limits::default()).unwrap();
    let files = martlet_chat::TEXT_FILES
        .iter()
        .filter_map(|name| Some((*name, gguf::text_file(&header.metadata, name).unwrap()?)));
    let ours = ChatModel::load(&TextFiles::from_owned("vocab", files)).unwrap();
    let theirs = ChatModel::load(&TextFiles::from_folder(&fledgling()).unwrap()).unwrap();
    assert_eq!(ours.generation.stop_ids, theirs.generation.stop_ids);
    assert_eq!(ours.tokenizer.special_ids(), theirs.tokenizer.special_ids());
    assert!(ours.has_template());
    let golden = std::fs::read_dir(path("fledgling-golden")).unwrap().map(|f| f.unwrap().path());
    let texts: Vec<String> = golden.filter_map(|f| std::fs::read_to_string(f).ok()).collect();
    assert!(texts.len() > 20);
    let odd =
        "<|im_start|>user\nA  b\tc 12345 naïve café e\u{301} 毛泽东 हिन्दी <think>\n\n</think>don't WE'LL<|im_end|>\n";
    for text in texts.iter().map(String::as_str).chain([odd]) {
        let ids = theirs.tokenizer.encode(text).unwrap();
        assert_eq!(ours.tokenizer.encode(text).unwrap(), ids);
        for special in [SpecialTokens::Show, SpecialTokens::Skip] {
            assert_eq!(ours.tokenizer.decode(&ids, special), theirs.tokenizer.decode(&ids, special));
        }
    }
}

fn answer(model: &Path, question: &str) -> Result<(String, Vec<u32>), SessionError> {
    let options = Options { device: DeviceKind::Cpu, ..Options::default() };
    let session = Session::open(&ModelSource::Path(model.into()), &options, &mut |_, _| {})?;
    let prompt = Prompt::Text(question.to_string());
    let ids = session.prompt_ids(&prompt)?;
    let sampling = Sampling { temperature: Some(0.0), ..Sampling::default() };
    let options = TurnOptions { sampling, max_tokens: Some(40), ..TurnOptions::default() };
    let turn = session.start(&prompt, &options)?;
    Ok((turn.answer()?.text, ids))
}

#[test]
fn fledgling_says_the_same_from_a_gguf_file() {
    let Some(made) = made("fledgling") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fledgling.gguf");
    std::fs::copy(made, &file).unwrap();
    let question = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let theirs = answer(&fledgling(), question).unwrap();
    assert_eq!(answer(&file, question).unwrap(), theirs);
    // The only model of a folder needs no name.
    assert_eq!(answer(folder.path(), question).unwrap(), theirs);
}
