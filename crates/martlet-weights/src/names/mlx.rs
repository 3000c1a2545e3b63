//! MLX: as Hugging Face, but the experts of a layer are stacks called `switch_mlp`.

use super::Target;

pub(super) fn target(name: &str) -> Option<Target> {
    let (layer, rest) = name.split_once(".mlp.switch_mlp.")?;
    Some(Target::Whole(format!("{layer}.mlp.experts.{rest}")))
}

/// The name that MLX gives a canonical tensor, without prefix.
fn from_canonical(name: &str) -> String {
    name.replace(".mlp.experts.", ".mlp.switch_mlp.")
}

/// The name under which MLX stores a canonical tensor. `wrapped`: the language model sits in a wrapper beside a vision
/// tower (Qwen3.5), or else stands alone (Qwen3-Next).
pub(crate) fn stored_name(name: &str, wrapped: bool) -> String {
    let name = from_canonical(name);
    if name.starts_with("mtp.") {
        return name;
    }
    if let Some(rest) = name.strip_prefix("visual.") {
        return format!("vision_tower.{rest}");
    }
    let wrapper = if wrapped { "language_model." } else { "" };
    let model = if name.starts_with("lm_head.") { "" } else { "model." };
    format!("{wrapper}{model}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_go_both_ways() {
        let (mlx, canonical) = ("layers.0.mlp.switch_mlp.up_proj.weight", "layers.0.mlp.experts.up_proj.weight");
        assert_eq!(target(mlx), Some(Target::Whole(canonical.into())));
        assert_eq!(from_canonical(canonical), mlx);
        assert_eq!(target("layers.0.mlp.gate.weight"), None);
    }
}
