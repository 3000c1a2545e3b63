use super::*;
use crate::report::Read;
use martlet_tensor::Dtype;

/// One linear layer of a small model, and a stack of experts.
fn config() -> Value {
    json!({"model_type": "qwen3_5_moe", "text_config": {"hidden_size": 256, "num_experts": 3,
        "moe_intermediate_size": 128, "linear_num_value_heads": 2, "linear_value_head_dim": 128}})
}

fn expected() -> Vec<Expected> {
    let one = |name: &str, shape: &[usize], kind| Expected {
        name: name.into(),
        shape: shape.to_vec(),
        kind,
        read: Read::Every,
    };
    vec![
        one("embed_tokens.weight", &[9000, 256], Kind::Matrix),
        one("layers.0.linear_attn.conv1d.weight", &[512, 4], Kind::Vector),
        one("layers.0.linear_attn.A_log", &[2], Kind::Vector),
        one("layers.0.linear_attn.in_proj_a.weight", &[2, 256], Kind::Matrix),
        one("layers.0.linear_attn.out_proj.weight", &[256, 256], Kind::Matrix),
        one("layers.0.mlp.gate.weight", &[3, 256], Kind::Matrix),
        one("layers.0.mlp.experts.up_proj.weight", &[3, 128, 256], Kind::Experts),
        one("norm.weight", &[256], Kind::Vector),
        one("mtp.fc.weight", &[256, 512], Kind::Matrix),
    ]
}

fn synthetic(options: Options) -> Synthetic {
    Synthetic::new(&config(), &expected(), options).unwrap()
}

fn all_options() -> Vec<Options> {
    let affine = [(1, 32), (2, 64), (3, 128), (4, 64), (5, 64), (6, 32), (8, 128)];
    let affine = affine.map(|(bits, group)| Options::new("affine", Some(bits), Some(group), 3).unwrap());
    let others = MODES[1..].iter().map(|mode| Options::new(mode, None, None, 3).unwrap());
    affine.into_iter().chain(others).collect()
}

#[test]
fn memory_and_files_hold_the_same_checkpoint() {
    // Files take time to reach the disk: one of each kind.
    let kinds = all_options().into_iter().filter(|o| !matches!(o.scheme.bits(), 1 | 2 | 3 | 6 | 32));
    for options in kinds {
        let scheme = options.scheme;
        let dir = tempfile::tempdir().unwrap();
        let dst = dir.path().join("made");
        let mut last = (0, 0);
        let bytes = synthetic(options).write(&dst, &mut |done, total| last = (done, total)).unwrap();
        assert!(last.0 > 0 && last.0 == last.1, "{last:?}");
        let (file, made) = (Checkpoint::open(&dst).unwrap(), synthetic(options).checkpoint().unwrap());
        let reports = [&file, &made].map(|c| c.check(&expected(), &[]).unwrap());
        assert_eq!(reports[0].bytes, reports[1].bytes, "{scheme}");
        assert_eq!(reports[0].bytes, synthetic(options).bytes(), "{scheme}");
        assert!((bytes - reports[0].bytes) < 8192, "{scheme}: headers are short");
        assert_eq!((file.config(), file.layout()), (made.config(), made.layout()));
        for e in expected() {
            let [a, b] = [&file, &made].map(|c| c.stored(&e.name).unwrap().dequantise());
            assert!(a == b && a.iter().all(|v| v.is_finite()), "{} as {scheme}", e.name);
        }
        assert_eq!(made.matrix("layers.0.linear_attn.out_proj.weight").unwrap().scheme(), scheme);
    }
}

#[test]
fn weights_deviate_as_those_of_trained_models() {
    for options in all_options() {
        let made = synthetic(options).checkpoint().unwrap();
        let values = made.matrix("layers.0.mlp.experts.up_proj.weight").unwrap().dequantise();
        let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64;
        let ratio = square.sqrt() * 256f64.sqrt();
        // Powers of two come near, no more.
        assert!((0.6..1.5).contains(&ratio), "{}: {ratio}", options.scheme);
        let distinct: std::collections::BTreeSet<u32> = values[..4096].iter().map(|v| v.to_bits()).collect();
        assert!(distinct.len() >= 2, "{}", options.scheme);
    }
}

#[test]
fn seeds_and_names_decide_the_values() {
    let of = |seed, name: &str| {
        let made = synthetic(Options { seed, ..Options::default() }).checkpoint().unwrap();
        made.stored(name).unwrap().dequantise()
    };
    let (table, gate) = ("embed_tokens.weight", "layers.0.mlp.gate.weight");
    assert_eq!(of(1, table), of(1, table));
    for name in [table, gate, "norm.weight", "layers.0.linear_attn.A_log"] {
        assert_ne!(of(1, name), of(2, name), "{name}");
    }
    let one = synthetic(Options::default()).checkpoint().unwrap();
    let two = synthetic(Options { seed: 2, ..Options::default() }).checkpoint().unwrap();
    assert_ne!(one.fingerprint(), two.fingerprint());
    // A table larger than a piece is made of several, each from a place of its own.
    let table = one.matrix(table).unwrap();
    assert_eq!(table.rows(), 9000);
    assert_ne!(table.slice(0..10).dequantise(), table.slice(8192..8202).dequantise());
}

#[test]
fn routers_keep_eight_bits_and_files_have_the_names_of_mlx() {
    let made = synthetic(Options::default()).checkpoint().unwrap();
    let gate = made.matrix("layers.0.mlp.gate.weight").unwrap().scheme();
    assert_eq!(gate, Scheme::Affine { bits: 8, group: 64, scale: Float::Bf16 });
    let setting = &made.config()["quantization"]["language_model.model.layers.0.mlp.gate"];
    assert_eq!((&setting["bits"], &setting["group_size"]), (&8.into(), &64.into()));
    let names: Vec<&str> = made.source.tensors.iter().map(|t| t.name.as_str()).collect();
    for name in ["language_model.model.layers.0.mlp.switch_mlp.up_proj.scales", "mtp.fc.biases"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let fp8 = synthetic(Options::new("fp8", None, None, 1).unwrap()).checkpoint().unwrap();
    assert_eq!(fp8.matrix("layers.0.mlp.gate.weight").unwrap().scheme(), Scheme::Dense(Float::Bf16));
    let scales = fp8.source.tensors.iter().find(|t| t.name.ends_with("switch_mlp.up_proj.weight_scale_inv")).unwrap();
    assert_eq!((scales.dtype, scales.shape.as_slice()), (Dtype::F32, &[3, 1, 2][..]));
}

#[test]
fn skewed_routers_have_rows_of_many_lengths_and_nothing_else_changes() {
    let many = Expected {
        name: "layers.0.mlp.gate.weight".into(),
        shape: vec![64, 256],
        kind: Kind::Matrix,
        read: Read::Every,
    };
    let made = |routing| {
        let expected: Vec<Expected> =
            expected().into_iter().map(|e| if e.name == many.name { many.clone() } else { e }).collect();
        let made = Synthetic::new(&config(), &expected, Options { routing, ..Options::default() }).unwrap();
        made.checkpoint().unwrap()
    };
    let (even, skewed) = (made(Routing::Even), made(Routing::Skewed));
    let ratio = |checkpoint: &Checkpoint| {
        let values = checkpoint.stored(&many.name).unwrap().dequantise();
        let lengths = values.chunks(256).map(|row| row.iter().map(|v| v * v).sum::<f32>().sqrt());
        let (least, most) = lengths.fold((f32::MAX, 0f32), |(a, b), l| (a.min(l), b.max(l)));
        most / least
    };
    assert!(ratio(&even) < 1.4, "{}", ratio(&even));
    assert!((1.9..3.0).contains(&ratio(&skewed)), "{}", ratio(&skewed));
    for e in expected().iter().filter(|e| e.name != many.name) {
        let [a, b] = [&even, &skewed].map(|c| c.stored(&e.name).unwrap().dequantise());
        assert!(a == b, "{}", e.name);
    }
    let floats = Options { routing: Routing::Skewed, ..Options::new("bf16", None, None, 1).unwrap() };
    let text = Synthetic::new(&config(), &expected(), floats).unwrap_err().to_string();
    assert!(text.contains("routers with scales"), "{text}");
}

#[test]
fn what_can_not_be_is_refused() {
    for (mode, bits, group, word) in [
        ("affine", Some(7), None, "no 7 bits"),
        ("bf16", Some(4), None, "no choice of bits"),
        ("gguf", None, None, "mode gguf is not known"),
    ] {
        let text = Options::new(mode, bits, group, 1).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    }
    let narrow = Expected { name: "x_proj.weight".into(), shape: vec![4, 96], kind: Kind::Matrix, read: Read::Every };
    let text = Synthetic::new(&config(), &[narrow], Options::default()).unwrap_err().to_string();
    assert!(text.contains("x_proj.weight") && text.contains("rows of 96"), "{text}");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("mine"), "x").unwrap();
    let text = synthetic(Options::default()).write(dir.path(), &mut |_, _| {}).unwrap_err().to_string();
    assert!(text.contains("not empty"), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
