//! Hugging Face: Qwen3.5 packs the experts of a layer, Qwen3-Next (and FP8 files of 3.5) has one matrix for each, and
//! joins the projections of its linear layers.

use super::Target;

pub(super) fn target(name: &str) -> Option<Target> {
    if let Some((layer, rest)) = name.split_once(".mlp.experts.") {
        return experts(&format!("{layer}.mlp.experts"), rest);
    }
    let layer = |suffix: &str| name.strip_suffix(suffix);
    if let Some(l) = layer(".linear_attn.in_proj_qkvz.weight") {
        return Some(Target::Qkvz {
            qkv: format!("{l}.linear_attn.in_proj_qkv.weight"),
            z: format!("{l}.linear_attn.in_proj_z.weight"),
        });
    }
    layer(".linear_attn.in_proj_ba.weight").map(|l| Target::Ba {
        b: format!("{l}.linear_attn.in_proj_b.weight"),
        a: format!("{l}.linear_attn.in_proj_a.weight"),
    })
}

fn experts(stack: &str, rest: &str) -> Option<Target> {
    match rest {
        "gate_up_proj" => {
            Some(Target::GateUp { gate: format!("{stack}.gate_proj.weight"), up: format!("{stack}.up_proj.weight") })
        }
        "down_proj" => Some(Target::Whole(format!("{stack}.down_proj.weight"))),
        _ => {
            let (index, projection) = rest.split_once('.')?;
            let known = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"];
            known
                .contains(&projection)
                .then_some(Target::Expert { stack: format!("{stack}.{projection}"), index: index.parse().ok()? })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_of_both_kinds() {
        let stack = |p: &str| format!("layers.3.mlp.experts.{p}_proj.weight");
        assert_eq!(
            target("layers.3.mlp.experts.17.up_proj.weight"),
            Some(Target::Expert { stack: stack("up"), index: 17 })
        );
        assert_eq!(
            target("layers.3.mlp.experts.gate_up_proj"),
            Some(Target::GateUp { gate: stack("gate"), up: stack("up") })
        );
        assert_eq!(target("layers.3.mlp.experts.down_proj"), Some(Target::Whole(stack("down"))));
        for other in ["layers.3.mlp.experts.x.up_proj.weight", "layers.3.mlp.experts.1.up_proj.bias", "norm.weight"] {
            assert_eq!(target(other), None, "{other}");
        }
    }
}
