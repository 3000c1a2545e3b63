use super::*;
use crate::{Limits, safetensors};
use martlet_tensor::{Float, Matrix, Part, read_floats};
use serde_json::json;
use std::path::Path;

/// The fixture holds one matrix in every mode, width and group that MLX has, with MLX's own decoding of it.
#[test]
fn every_mode_decodes_bit_for_bit() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/mlx-quant/cases.safetensors");
    let file = std::fs::read(path).unwrap();
    let tensors = safetensors::read(&file, &Limits::default()).unwrap();
    let get = |name: &str| tensors.iter().find(|t| t.name == name);
    let bytes = |name: &str| get(name).map_or(&[][..], |t| &file[t.range.clone()]);
    let x = read_floats(Float::F32, bytes("x"));
    let cases: Vec<&str> = tensors.iter().filter_map(|t| t.name.strip_suffix(".weight")).collect();
    assert_eq!(cases.len(), 7 * 3 + 3);
    for case in cases {
        let part = |part: &str| format!("{case}.{part}");
        let (mode, rest) = case.split_once("-b").unwrap();
        let (bits, group) = rest.split_once("-g").unwrap();
        let (bits, group): (u64, u64) = (bits.parse().unwrap(), group.parse().unwrap());
        let scales = get(&part("scales")).unwrap();
        let packed = Packed {
            module: "m",
            weight: &get(&part("weight")).unwrap().shape,
            scales: &scales.shape,
            scale_dtype: scales.dtype,
            biases: get(&part("biases")).is_some(),
            width: Some(256),
        };
        let config = json!({"quantization": {"mode": mode, "bits": bits, "group_size": group}});
        let scheme = Settings::new(&config).unwrap().scheme(&packed).unwrap();
        assert_eq!(Settings::default().scheme(&packed).unwrap(), scheme, "{case}: from the shapes alone");
        let rows = Part::new(16, bytes(&part("weight")), bytes(&part("scales")), bytes(&part("biases")));
        let found = Matrix::new(scheme, 256, vec![rows]).unwrap().dequantise();
        let dense = read_floats(Float::F32, bytes(&part("dense")));
        assert!(found.iter().zip(&dense).all(|(a, b)| a.to_bits() == b.to_bits()), "{case}");
        let y = read_floats(Float::F32, bytes(&part("y")));
        for (i, x) in x.chunks(256).enumerate() {
            for (j, w) in found.chunks(256).enumerate() {
                let sum: f64 = x.iter().zip(w).map(|(a, b)| *a as f64 * *b as f64).sum();
                let y = y[i * 16 + j] as f64;
                // MLX sums in f32: sums of some hundreds (1 bit, wide steps) are exact to 1e-6 of themselves.
                assert!((sum - y).abs() < 1e-4f64.max(1e-6 * y.abs()), "{case} {i} {j}: {sum} {y}");
            }
        }
    }
}

fn packed<'a>(weight: &'a [usize], scales: &'a [usize], width: Option<usize>) -> Packed<'a> {
    Packed { module: "layers.0.mlp.up_proj", weight, scales, scale_dtype: Dtype::F16, biases: true, width }
}

fn scheme(quantization: Value, packed: &Packed<'_>) -> Result<Scheme, String> {
    Settings::new(&json!({ "quantization": quantization }))?.scheme(packed)
}

#[test]
fn config_and_shapes_decide_together() {
    let affine = |bits, group| Scheme::Affine { bits, group, scale: Float::F16 };
    // 256 inputs: 4 bits in groups of 64, or 8 bits in groups of 32 if there were 128.
    let (weight, scales) = ([16, 32], [16, 4]);
    let usual = json!({"bits": 4, "group_size": 64});
    assert_eq!(scheme(usual.clone(), &packed(&weight, &scales, None)), Ok(affine(4, 64)));
    // A module that the config does not name, and whose inputs are known, may differ from the rest.
    assert_eq!(scheme(usual.clone(), &packed(&weight, &scales, Some(128))), Ok(affine(8, 32)));
    assert_eq!(scheme(json!({}), &packed(&weight, &scales, Some(512))), Ok(affine(2, 128)));
    // A module of its own settings, under the name that MLX gives it.
    let named =
        |setting: Value| json!({"bits": 4, "group_size": 64, "language_model.model.layers.0.mlp.up_proj": setting});
    let eight = json!({"bits": 8, "group_size": 32});
    assert_eq!(scheme(named(eight.clone()), &packed(&weight, &scales, None)), Ok(affine(8, 32)));
    assert_eq!(scheme(named(json!(true)), &packed(&weight, &scales, None)), Ok(affine(4, 64)));

    let text = scheme(named(eight), &packed(&weight, &scales, Some(256))).unwrap_err();
    for part in ["affine with 8 bits in groups of 32", "[16, 32]", "[16, 4]", "inputs of 256"] {
        assert!(text.contains(part), "{text}");
    }
    let text = scheme(named(json!(false)), &packed(&weight, &scales, Some(256))).unwrap_err();
    assert!(text.contains("dense (false)") && text.contains("[16, 32]"), "{text}");
    let text = scheme(json!({"bits": 3, "group_size": 64}), &packed(&weight, &scales, None)).unwrap_err();
    assert!(text.contains("affine with 3 bits in groups of 64") && text.contains("[16, 4]"), "{text}");
    let text = scheme(json!({}), &packed(&weight, &scales, None)).unwrap_err();
    assert!(text.contains("says nothing"), "{text}");
    // 7 bits do not exist.
    let text = scheme(json!({"bits": 7, "group_size": 64}), &packed(&[16, 56], &scales, Some(256))).unwrap_err();
    assert!(text.contains("7 bits"), "{text}");
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let text = |config: Value| Settings::new(&config).unwrap_err();
    assert!(text(json!({"quantization": {"bits": "four"}})).contains("bits is \"four\""));
    let found = text(json!({"quantization": {"bits": 4, "a.b": {"mode": "magic"}}}));
    assert!(found.contains("quantization, a.b") && found.contains("magic"), "{found}");
    let found = text(json!({"quantization_config": {"quant_method": "awq"}}));
    assert!(found.contains("awq") && found.contains("not supported"), "{found}");
    let found = text(json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}}));
    assert!(found.contains("[32,32]"), "{found}");
    assert!(Settings::new(&json!({"quantization_config": {"quant_method": "fp8"}})).is_ok());
    assert!(Settings::new(&json!({"quantization": null})).is_ok());
}
