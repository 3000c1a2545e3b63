//! Headers that are wrong in every way, and checkpoints that are.

use super::*;
use crate::{Checkpoint, Layout, Limits, WeightsError};
use martlet_tensor::Float;
use martlet_tensor::scheme::ggml::BlockType;

/// Writes a file piece by piece.
#[derive(Clone)]
struct Writer {
    keys: Vec<u8>,
    key_count: u64,
    infos: Vec<u8>,
    tensors: u64,
    data: Vec<u8>,
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat()
}

impl Writer {
    fn new() -> Writer {
        Writer { keys: Vec::new(), key_count: 0, infos: Vec::new(), tensors: 0, data: Vec::new() }
    }

    fn key(mut self, name: &str, kind: u32, value: &[u8]) -> Writer {
        self.keys.extend([&text(name), &kind.to_le_bytes()[..], value].concat());
        self.key_count += 1;
        self
    }

    fn number(self, name: &str, n: u32) -> Writer {
        self.key(name, 4, &n.to_le_bytes())
    }

    /// `shape` innermost first, as in the file.
    fn info(mut self, name: &str, shape: &[u64], kind: u32, offset: u64) -> Writer {
        self.infos.extend(text(name));
        self.infos.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|d| self.infos.extend(d.to_le_bytes()));
        self.infos.extend([&kind.to_le_bytes()[..], &offset.to_le_bytes()].concat());
        self.tensors += 1;
        self
    }

    /// A tensor of small f32 numbers.
    fn tensor(mut self, name: &str, shape: &[u64]) -> Writer {
        let offset = self.data.len().next_multiple_of(32);
        self.data.resize(offset, 0);
        let n: u64 = shape.iter().product();
        (0..n).for_each(|i| self.data.extend((-0.5 - i as f32 / 64.0).to_le_bytes()));
        self.info(name, shape, 0, offset as u64)
    }

    fn finish(&self) -> Vec<u8> {
        let counts =
            [3u32.to_le_bytes().to_vec(), self.tensors.to_le_bytes().to_vec(), self.key_count.to_le_bytes().to_vec()];
        let mut file = [b"GGUF".to_vec(), counts.concat(), self.keys.clone(), self.infos.clone()].concat();
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file
    }
}

/// A qwen35 model of two layers (one of each kind) without its MLPs: enough to be opened.
fn tiny() -> Writer {
    let mut w = Writer::new().key("general.architecture", 8, &text("qwen35"));
    for (key, n) in [
        ("block_count", 2),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 16),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 8),
        ("rope.dimension_count", 4),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 4),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 4),
        ("ssm.inner_size", 16),
        ("full_attention_interval", 2),
    ] {
        w = w.number(&format!("qwen35.{key}"), n);
    }
    for (key, x) in [("attention.layer_norm_rms_epsilon", 1e-6f32), ("rope.freq_base", 1e7)] {
        w = w.key(&format!("qwen35.{key}"), 6, &x.to_le_bytes());
    }
    let sections = [&5u32.to_le_bytes()[..], &4u64.to_le_bytes()].concat();
    let sections = [1i32, 1, 0, 0].iter().fold(sections, |s, n| [s, n.to_le_bytes().to_vec()].concat());
    w.key("qwen35.rope.dimension_sections", 9, &sections)
        .tensor("token_embd.weight", &[8, 10])
        .tensor("output_norm.weight", &[8])
        .tensor("blk.0.attn_qkv.weight", &[8, 32])
        .tensor("blk.0.attn_gate.weight", &[8, 16])
        .tensor("blk.0.ssm_conv1d.weight", &[4, 32])
        .tensor("blk.0.ssm_a", &[4])
        .tensor("blk.0.ssm_dt.bias", &[4])
        .tensor("blk.0.ssm_beta.weight", &[8, 4])
        .tensor("blk.0.ssm_out.weight", &[16, 8])
}

fn open(files: Vec<(&str, Vec<u8>)>) -> Result<Checkpoint, WeightsError> {
    let leak = |(name, bytes): (&str, Vec<u8>)| (name.to_string(), &*Box::leak(bytes.into_boxed_slice()));
    Checkpoint::from_files(files.into_iter().map(leak).collect())
}

fn parse(file: &[u8]) -> Result<Header, GgufError> {
    read(file, &Limits::default())
}

fn error(file: &[u8]) -> String {
    parse(file).unwrap_err().to_string()
}

#[test]
fn values_of_all_types_are_read() {
    let list = |kind: u32, values: &[&[u8]]| {
        [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &values.concat()].concat()
    };
    let inner = list(0, &[&[1], &[2]]);
    let file = Writer::new()
        .key("i8", 1, &[0xff])
        .key("u16", 2, &[1, 2])
        .key("i16", 3, &[0xfe, 0xff])
        .key("f32", 6, &1.5f32.to_le_bytes())
        .key("bool", 7, &[1])
        .key("text", 8, &text("é"))
        .key("lists", 9, &list(9, &[&inner, &list(8, &[&text("a"), &text(""), &text("bé")])]))
        .key("u64", 10, &u64::MAX.to_le_bytes())
        .key("i64", 11, &i64::MIN.to_le_bytes())
        .key("f64", 12, &0.1f64.to_le_bytes())
        .info("t", &[32, 3], 8, 0);
    let file = Writer { data: vec![0; 3 * 34], ..file }.finish();
    let header = parse(&file).unwrap();
    let mut texts = Texts::default();
    ["a", "", "bé"].into_iter().for_each(|t| texts.push(t));
    assert_eq!(texts.iter().collect::<Vec<_>>(), ["a", "", "bé"]);
    let lists = Value::List(vec![Value::List(vec![Value::Unsigned(1), Value::Unsigned(2)]), Value::Texts(texts)]);
    for (key, value) in [
        ("i8", Value::Signed(-1)),
        ("u16", Value::Unsigned(513)),
        ("i16", Value::Signed(-2)),
        ("f32", Value::Float(1.5)),
        ("bool", Value::Bool(true)),
        ("text", Value::Text("é".into())),
        ("lists", lists),
        ("u64", Value::Unsigned(u64::MAX)),
        ("i64", Value::Signed(i64::MIN)),
        ("f64", Value::Float(0.1)),
    ] {
        assert_eq!(header.metadata.get(key), Some(&value), "{key}");
    }
    assert_eq!(header.tensors[0].shape, [3, 32]);
    assert_eq!(header.tensors[0].range, file.len() - 102..file.len());
}

#[test]
fn headers_that_lie_are_refused_by_name() {
    assert_eq!(error(b"GGU"), GgufError::Magic.to_string());
    assert!(error(b"GGUF\x01\0\0\0").contains("version 1"));
    assert!(error(b"GGUF\0\0\0\x03").contains("big-endian"));
    let whole = tiny().finish();
    for cut in 4..1400 {
        let text = error(&whole[..cut]);
        assert!(text.contains("truncated"), "{cut}: {text}");
    }
    let text_key = |length: u64| Writer::new().key("name", 8, &length.to_le_bytes()).finish();
    assert!(error(&text_key(u64::MAX)).contains("name at byte"));
    let array = |kind: u32, count: u64| {
        Writer::new().key("list", 9, &[&kind.to_le_bytes()[..], &count.to_le_bytes()].concat()).finish()
    };
    for kind in [0, 8, 9, 10] {
        assert!(error(&array(kind, u64::MAX)).contains("list"), "{kind}");
    }
    assert!(error(&array(13, 1)).contains("type 13"));
    let deep = [9u32.to_le_bytes().to_vec(), 1u64.to_le_bytes().to_vec()].concat().repeat(20);
    assert!(error(&Writer::new().key("deep", 9, &deep).finish()).contains("deep: nests arrays"));
    assert!(error(&Writer::new().key("a", 7, &[1]).key("a", 7, &[1]).finish()).contains("key a: is there twice"));
    assert!(
        error(&Writer::new().key("a", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]).finish()).contains("key a: is not UTF-8")
    );
    assert!(error(&Writer::new().number("general.alignment", 24).finish()).contains("general.alignment"));
    let few = Limits { metadata_values: 3, ..Limits::default() };
    let many = [&0u32.to_le_bytes()[..], &4u64.to_le_bytes(), &[0; 4]].concat();
    let text = read(&Writer::new().key("k", 9, &many).finish(), &few).unwrap_err().to_string();
    assert!(text.contains("key k") && text.contains("at most 3"), "{text}");
}

#[test]
fn tensors_that_lie_are_refused_by_name() {
    let one = |shape: &[u64], kind, offset| {
        let w = Writer::new().info("weird", shape, kind, offset);
        error(&Writer { data: vec![0; 4096], ..w }.finish())
    };
    for (text, what) in [
        (one(&[1 << 40, 1 << 40], 0, 0), "more than 2^64"),
        (one(&[u64::MAX], 0, 0), "truncated"),
        (one(&[1025], 0, 0), "takes 4100 bytes"),
        (one(&[8], 0, u64::MAX), "truncated"),
        (one(&[8], 0, 4), "no multiple of 32"),
        (one(&[48], 8, 0), "no multiple of its blocks' 32"),
        (one(&[256], 15, 0), "Q8_K, which is not supported; supported are F32"),
        (one(&[8], 26, 0), "I32, which is not supported"),
        (one(&[8], 99, 0), "number 99"),
        (one(&[0, 1 << 40, 1 << 40], 0, 0), "and no values"),
        (one(&[1; 9], 0, 0), "9 dimensions; at most 8"),
    ] {
        assert!(text.contains("tensor weird") && text.contains(what), "{text}");
    }
    let two = |name: &str, offset| {
        let w = Writer::new().info("a", &[16], 0, 0).info(name, &[16], 0, offset);
        error(&Writer { data: vec![0; 4096], ..w }.finish())
    };
    assert!(two("b", 32).contains("tensor b: begins at byte"));
    assert!(two("a", 64).contains("tensor a: is listed twice"));
}

#[test]
fn a_small_model_opens_with_its_heads_in_order() {
    let c = open(vec![("model.gguf", tiny().finish())]).unwrap();
    assert_eq!(c.layout(), Layout::Gguf);
    assert_eq!(c.config()["tie_word_embeddings"], true);
    assert_eq!(c.config()["rope_parameters"]["mrope_section"], serde_json::json!([1, 1, 0]));
    // Value -0.5 - i / 64 stands at place i of its tensor. Stored heads 0, 1, 2, 3 are 0, 2, 1, 3.
    let place = |v: f32| ((-v - 0.5) * 64.0) as usize;
    let first = |name: &str, every: usize| -> Vec<usize> {
        c.vector(&format!("layers.0.linear_attn.{name}")).unwrap().iter().step_by(every).map(|&v| place(v)).collect()
    };
    assert_eq!(first("in_proj_b.weight", 8), [0, 16, 8, 24]);
    assert_eq!(first("dt_bias", 1), [0, 2, 1, 3]);
    assert_eq!(first("in_proj_z.weight", 32), [0, 64, 32, 96]);
    assert_eq!(first("in_proj_qkv.weight", 32), [0, 32, 64, 96, 128, 192, 160, 224]);
    assert_eq!(first("conv1d.weight", 16), [0, 16, 32, 48, 64, 96, 80, 112]);
    assert_eq!(first("out_proj.weight", 4)[..5], [0, 8, 4, 12, 16]);
    let a = c.vector("layers.0.linear_attn.A_log").unwrap();
    for (i, a) in [0, 2, 1, 3].iter().zip(a) {
        assert!((a.exp() - (0.5 + *i as f32 / 64.0)).abs() < 1e-6);
    }
    assert_eq!(place(c.vector("norm.weight").unwrap()[1]), 1);
}

#[test]
fn models_that_are_something_else_are_refused() {
    let text = |w: Writer| open(vec![("m.gguf", w.finish())]).map(|_| ()).unwrap_err().to_string();
    let arch = |name: &str| text(Writer::new().key("general.architecture", 8, &self::text(name)));
    assert!(arch("llama").contains("general.architecture llama; supported are qwen3next, qwen35, qwen35moe"));
    assert!(arch("clip").contains("mmproj"));
    assert!(text(Writer::new()).contains("general.architecture is missing"));
    assert!(text(tiny().key("qwen35.rope.scaling.type", 8, &self::text("yarn"))).contains("rope.scaling.type"));
    assert!(text(tiny().number("qwen35.attention.value_length", 4)).contains("attention.value_length"));
    assert!(text(tiny().number("qwen35.nextn_predict_layers", 3)).contains("nextn_predict_layers"));
    assert!(text(tiny().number("split.count", 2)).contains("is one of 2 parts, but is not called NAME"));
    assert!(text(tiny().number("split.tensors.count", 2)).contains("says that all parts hold 2 tensors, found 9"));
    // An unknown tensor keeps its name, and the check against the model's tensors refuses it.
    let c = open(vec![("m.gguf", tiny().tensor("rope_freqs.weight", &[2]).finish())]).unwrap();
    assert!(c.has("rope_freqs.weight"));
}

#[test]
fn parts_belong_together() {
    let split = |no: u32| Writer::new().number("split.count", 2).number("split.no", no);
    let first = |w: Writer| w.number("split.count", 2).number("split.no", 0).finish();
    let (a, b) = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf");
    let more = split(1).tensor("output.weight", &[8, 10]).finish();
    let c = open(vec![(b, more.clone()), (a, first(tiny()))]).unwrap();
    assert_eq!(c.config()["tie_word_embeddings"], false);
    assert_eq!(c.vector("lm_head.weight").unwrap().len(), 80);
    let text = |files| open(files).map(|_| ()).unwrap_err().to_string();
    assert!(text(vec![(a, first(tiny()))]).contains("m-00002-of-00002.gguf is missing beside it"));
    assert!(text(vec![(a, first(tiny())), (b, split(5).finish())]).contains("has split.no Some(5), expected 1"));
    let twice = split(1).tensor("output_norm.weight", &[8]).finish();
    assert!(text(vec![(a, first(tiny())), (b, twice)]).contains("tensor output_norm.weight"));
    assert!(text(vec![("x.gguf", more.clone()), ("y.gguf", more)]).contains("x.gguf, y.gguf"));
}

#[test]
fn blocks_come_apart_with_their_columns_in_order() {
    // Heads of 32, one block each; head h has scale 1 + h, codes 0 to 31.
    let mut w = Writer::new().key("general.architecture", 8, &text("qwen35"));
    w.keys = tiny().keys;
    w.key_count = tiny().key_count;
    let mut file = w.clone();
    let block = |h: usize| {
        let mut bytes = Vec::new();
        Float::F16.put(1.0 + h as f32, &mut bytes);
        bytes.extend(0..32u8);
        bytes
    };
    file = file.tensor("token_embd.weight", &[8, 10]);
    let offset = file.data.len().next_multiple_of(32);
    file.data.resize(offset, 0);
    (0..8).for_each(|i| file.data.extend(block(i % 4)));
    let keys = String::from_utf8_lossy(&file.keys).into_owned();
    assert!(keys.contains("ssm.inner_size"));
    // inner_size 16 becomes 128: the key's value follows its name and type.
    let at = file.keys.windows(14).position(|w| w == b"ssm.inner_size").unwrap() + 18;
    file.keys[at..at + 4].copy_from_slice(&128u32.to_le_bytes());
    let c = open(vec![("m.gguf", file.info("blk.0.ssm_out.weight", &[128, 2], 8, offset as u64).finish())]).unwrap();
    let values = c.vector("layers.0.linear_attn.out_proj.weight").unwrap();
    let ones: Vec<f32> = values.chunks(32).map(|head| head[1]).collect();
    assert_eq!(ones, [1.0, 3.0, 2.0, 4.0, 1.0, 3.0, 2.0, 4.0]);
    assert_eq!(values[31], 31.0);
}

/// The golden blocks of every type (see tools/make_gguf_blocks.py) as matrices of a file.
#[test]
fn matrices_of_every_block_type_hold_the_golden_values() {
    let mut rest: &[u8] = include_bytes!("../../../../tests/fixtures/gguf/blocks.bin");
    let mut take = |n: usize| rest.split_off(..n).unwrap();
    let number = |b: &[u8]| u32::from_le_bytes(b.try_into().unwrap());
    let (mut file, mut all) = (tiny(), Vec::new());
    for _ in BlockType::all() {
        let number_in_file = number(take(4));
        let kind = BlockType::from_number(number_in_file).unwrap();
        let size = number(take(4)) as usize;
        let (blocks, n) = (take(size), size / kind.bytes() * kind.weights());
        let values: Vec<f32> = take(4 * n).as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect();
        let offset = file.data.len().next_multiple_of(32);
        file.data.resize(offset, 0);
        file.data.extend(blocks);
        file = file.info(&format!("{}.weight", kind.name()), &[n as u64 / 4, 4], number_in_file, offset as u64);
        all.push((kind, values));
    }
    let c = open(vec![("m.gguf", file.finish())]).unwrap();
    for (kind, values) in all {
        let matrix = c.matrix(&format!("{}.weight", kind.name())).unwrap();
        assert_eq!((matrix.rows(), matrix.scheme()), (4, kind.scheme()));
        assert_eq!(matrix.dequantise(), values, "{}", kind.name());
    }
}

/// Whatever the bytes: no panic, and what is accepted lies in the file.
fn examine(bytes: &[u8]) -> bool {
    let Ok(header) = parse(bytes) else { return false };
    header.tensors.iter().for_each(|t| assert!(t.range.end <= bytes.len()));
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"] {
        let _ = text_file(&header.metadata, name);
    }
    true
}

#[test]
fn mutated_files_never_panic() {
    let list = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &text("a"), &text("b c")].concat();
    let seed = tiny()
        .key("tokenizer.ggml.model", 8, &text("gpt2"))
        .key("tokenizer.ggml.pre", 8, &text("qwen35"))
        .key("tokenizer.ggml.tokens", 9, &list)
        .key("tokenizer.ggml.merges", 9, &list)
        .number("tokenizer.ggml.eos_token_id", 1)
        .finish();
    assert!(examine(&seed));
    let mut random = crate::mutate::Random::new(11);
    let accepted = (0..60_000).filter(|_| examine(&random.mutate(&seed))).count();
    assert!(accepted > 100, "mutations should not all be refused at once: {accepted}");
    // Whole checkpoints too, with every tensor read.
    let opened = (0..4000).filter(|_| {
        let Ok(c) = open(vec![("m.gguf", random.mutate(&seed))]) else { return false };
        c.names().for_each(|name| drop(c.vector(name)));
        true
    });
    assert!(opened.count() > 10);
}
