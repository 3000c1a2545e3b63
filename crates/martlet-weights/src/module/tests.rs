//! Tensors that do not fit together, and those that do in rarer ways.

use crate::safetensors::{Tensor, to_bytes};
use crate::{Checkpoint, WeightsError};
use martlet_tensor::{Dtype, Float, Scheme};
use serde_json::{Value, json};

/// A checkpoint of these tensors and one convolution.
fn open(config: Value, mut tensors: Vec<Tensor>) -> Result<Checkpoint, WeightsError> {
    tensors.push(floats("model.layers.9.linear_attn.conv1d.weight", &[2, 1, 4], &[0.5; 8]));
    let leak = |bytes: Vec<u8>| -> &'static [u8] { Box::leak(bytes.into_boxed_slice()) };
    Checkpoint::from_files(vec![
        ("model.safetensors".into(), leak(to_bytes("pt", &tensors))),
        ("config.json".into(), leak(config.to_string().into_bytes())),
    ])
}

fn error(config: Value, tensors: Vec<Tensor>) -> String {
    match open(config, tensors) {
        Ok(c) => c.check(&[], &[("", "everything")]).unwrap_err().to_string(),
        Err(e) => e.to_string(),
    }
}

fn floats(name: &str, shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::floats(name, Float::F32, shape, values)
}

fn raw(name: &str, dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Tensor {
    Tensor { name: name.into(), dtype, shape: shape.to_vec(), bytes: bytes.to_vec() }
}

/// Four rows of 64 weights in 4 bits.
fn packed(prefix: &str) -> Vec<Tensor> {
    vec![
        raw(&format!("{prefix}.weight"), Dtype::U32, &[4, 8], &[0x21; 128]),
        floats(&format!("{prefix}.scales"), &[4, 1], &[1.0; 4]),
        floats(&format!("{prefix}.biases"), &[4, 1], &[-1.0; 4]),
    ]
}

fn four_bits() -> Value {
    json!({"quantization": {"bits": 4, "group_size": 64}})
}

#[track_caller]
fn holds(text: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| text.contains(part)) && text.contains("(model.safetensors)"), "{text}");
}

#[test]
fn packed_modules_need_fitting_scales() {
    assert!(open(four_bits(), packed("lm_head")).is_ok());
    let mut tensors = packed("lm_head");
    tensors.remove(1);
    holds(&error(four_bits(), tensors), &["lm_head.weight", "no scales"]);
    let mut tensors = packed("lm_head");
    tensors.remove(2);
    holds(&error(four_bits(), tensors), &["lm_head.weight", "no biases", "affine with 4 bits"]);
    let mut tensors = packed("lm_head");
    tensors[1] = floats("lm_head.scales", &[2, 2], &[1.0; 4]);
    holds(&error(four_bits(), tensors), &["lm_head.weight", "[4, 8]", "[2, 2]"]);
    let mut tensors = packed("lm_head");
    tensors[2] = floats("lm_head.biases", &[4, 2], &[1.0; 8]);
    holds(&error(four_bits(), tensors), &["lm_head.weight", "biases of [4, 2]"]);
    let mut tensors = packed("lm_head");
    tensors.remove(0);
    holds(&error(four_bits(), tensors), &["lm_head.scales", "lm_head.weight, which is not there"]);
    let mut tensors = packed("lm_head");
    tensors[0] = floats("lm_head.weight", &[4, 8], &[1.0; 32]);
    holds(&error(four_bits(), tensors), &["lm_head.weight", "F32 and not packed"]);
    let named = json!({"quantization": {"lm_head": {"bits": 4, "group_size": 64}}});
    let dense = vec![floats("lm_head.weight", &[4, 64], &[1.0; 256])];
    holds(&error(named, dense), &["lm_head.weight", "F32", "affine with 4 bits"]);
}

#[test]
fn values_that_are_no_numbers_are_found() {
    for (part, value) in [(1, f32::NAN), (1, f32::INFINITY), (2, f32::NEG_INFINITY)] {
        let mut tensors = packed("lm_head");
        let name = tensors[part].name.clone();
        tensors[part] = floats(&name, &[4, 1], &[1.0, 1.0, value, 1.0]);
        holds(&error(four_bits(), tensors), &[&name, "value 2 is no finite number"]);
    }
    let norm = floats("model.norm.weight", &[4], &[0.0, f32::NAN, 0.0, 0.0]);
    holds(&error(json!({}), vec![norm]), &["model.norm.weight", "value 1"]);
    let mx = json!({"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}});
    let tensors =
        vec![raw("lm_head.weight", Dtype::U32, &[1, 4], &[0; 16]), raw("lm_head.scales", Dtype::U8, &[1, 1], &[255])];
    holds(&error(mx, tensors), &["lm_head.scales", "value 0"]);
}

#[test]
fn wrong_types_are_named() {
    let of = |dtype, bytes: &[u8]| vec![raw("model.norm.weight", dtype, &[2], bytes)];
    let c = open(json!({}), of(Dtype::I64, &[0; 16])).unwrap();
    holds(&c.vector("norm.weight").unwrap_err().to_string(), &["model.norm.weight", "I64, not weights"]);
    holds(&error(json!({}), of(Dtype::F8E4m3, &[0; 2])), &["model.norm.weight", "no weight_scale_inv"]);
    holds(&error(json!({}), of(Dtype::U32, &[0; 8])), &["model.norm.weight", "no scales"]);
}

#[test]
fn fp8_blocks_are_read_as_matrices_and_stacks() {
    let codes = |name: &str, shape: &[usize]| {
        let n: usize = shape.iter().product();
        raw(name, Dtype::F8E4m3, shape, &(0..n).map(|i| (i % 120) as u8).collect::<Vec<_>>())
    };
    let stack = "model.layers.0.mlp.experts.gate_up_proj";
    let tensors = vec![
        codes("lm_head.weight", &[130, 64]),
        floats("lm_head.weight_scale_inv", &[2, 1], &[1.0, 3.0]),
        codes(stack, &[2, 260, 64]),
        floats(&format!("{stack}_scale_inv"), &[2, 3, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    ];
    let c = open(json!({}), tensors).unwrap();
    let head = c.matrix("lm_head.weight").unwrap();
    assert_eq!(head.scheme(), Scheme::Fp8Block { scale: Float::F32 });
    let one = martlet_tensor::scheme::fp::e4m3;
    let code = |row: usize, col: usize| one(((row * 64 + col) % 120) as u8);
    assert_eq!(head.dequantise()[129 * 64 + 5], 3.0 * code(129, 5));
    let (gate, up) = ("layers.0.mlp.experts.gate_proj.weight", "layers.0.mlp.experts.up_proj.weight");
    assert_eq!(c.shape(up), Some(&[2, 130, 64][..]));
    // Row 129 of the second expert's gate is row 129 of its 260: the second block, of scale 5.
    assert_eq!(c.vector(gate).unwrap()[(130 + 129) * 64 + 7], 5.0 * code(260 + 129, 7));
    // Row 129 of its up projection is row 259: the third block.
    assert_eq!(c.vector(up).unwrap()[(130 + 129) * 64 + 7], 6.0 * code(260 + 259, 7));

    let wrong = vec![codes("lm_head.weight", &[130, 64]), floats("lm_head.weight_scale_inv", &[1, 2], &[1.0, 3.0])];
    holds(&error(json!({}), wrong), &["lm_head.weight", "[1, 2], expected [2, 1]"]);
}

#[test]
fn nvfp4_may_have_a_scale_of_the_whole_tensor() {
    let nv = json!({"quantization": {"bits": 4, "group_size": 16, "mode": "nvfp4"}});
    let name = "model.layers.0.mlp.switch_mlp.up_proj";
    let tensors = |global: Tensor| {
        vec![
            raw(&format!("{name}.weight"), Dtype::U32, &[2, 1, 2], &[0x11; 16]),
            raw(&format!("{name}.scales"), Dtype::U8, &[2, 1, 1], &[0x38; 2]),
            global,
        ]
    };
    let global = |shape: &[usize], values: &[f32]| floats(&format!("{name}.global_scale"), shape, values);
    let values =
        |g: Tensor| open(nv.clone(), tensors(g)).unwrap().vector("layers.0.mlp.experts.up_proj.weight").unwrap();
    // Code 1 is 0.5, scale 0x38 is 1; the factor is the stored maximum over 448 * 6.
    assert_eq!(values(global(&[], &[2688.0])), [0.5; 32]);
    assert_eq!(values(global(&[2], &[2688.0, 5376.0])), [[0.5; 16], [1.0; 16]].concat());
    let text = error(nv.clone(), tensors(global(&[3], &[1.0; 3])));
    holds(&text, &["up_proj.weight", "global_scale of [3]"]);
}

#[test]
fn tables_refuse_what_does_not_add_up() {
    let matrix = |name: &str| floats(name, &[2, 4], &[1.0; 8]);
    let expert = |e: usize| matrix(&format!("model.layers.0.mlp.experts.{e}.up_proj.weight"));
    holds(&error(json!({}), vec![expert(0), expert(2)]), &["experts up to 2", "but not 1"]);
    let other = floats("model.layers.0.mlp.experts.1.up_proj.weight", &[4, 2], &[1.0; 8]);
    holds(&error(json!({}), vec![expert(0), other]), &["experts.1.up_proj.weight", "[4, 2]"]);
    let twice = vec![matrix("lm_head.weight"), matrix("language_model.lm_head.weight")];
    holds(&error(json!({}), twice), &["lm_head.weight", "is the same as"]);
    let twice = vec![expert(0), floats("model.layers.0.mlp.switch_mlp.up_proj.weight", &[1, 2, 4], &[1.0; 8])];
    holds(&error(json!({}), twice), &["layers.0.mlp.experts.up_proj.weight, which another tensor is too"]);
    let mlx = floats("model.layers.1.linear_attn.conv1d.weight", &[2, 4, 1], &[0.5; 8]);
    holds(&error(json!({}), vec![mlx]), &["conv1d.weight", "Mlx", "Hf"]);
    let joint = matrix("model.layers.0.linear_attn.in_proj_qkvz.weight");
    holds(&error(json!({}), vec![joint.clone()]), &["in_proj_qkvz", "linear_num_key_heads"]);
    let heads = json!({
        "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 1, "linear_value_head_dim": 1
    });
    holds(&error(heads, vec![joint]), &["in_proj_qkvz", "[2, 4], expected 6 rows"]);
    let odd = floats("model.layers.0.mlp.experts.gate_up_proj", &[1, 3, 2], &[1.0; 6]);
    holds(&error(json!({}), vec![odd]), &["gate_up_proj", "3 rows"]);
    let c = open(json!({}), vec![]).unwrap();
    let text = c.matrix("lm_head.weight").unwrap_err().to_string();
    assert_eq!(text, "tensor lm_head.weight (model.safetensors): is missing");
}

#[test]
fn without_a_convolution_the_layout_is_unknown() {
    let leak = |bytes: Vec<u8>| -> &'static [u8] { Box::leak(bytes.into_boxed_slice()) };
    let bytes = to_bytes("pt", &[floats("norm.weight", &[2], &[1.0; 2])]);
    let files = vec![("model.safetensors".into(), leak(bytes)), ("config.json".into(), &b"{}"[..])];
    let text = Checkpoint::from_files(files).unwrap_err().to_string();
    assert!(text.contains("conv1d.weight"), "{text}");
}
