//! MLX: as Hugging Face, but the experts of a layer are stacks called `switch_mlp`.

use super::Target;

pub(super) fn target(name: &str) -> Option<Target> {
    let (layer, rest) = name.split_once(".mlp.switch_mlp.")?;
    Some(Target::Whole(format!("{layer}.mlp.experts.{rest}")))
}

/// The name that MLX gives a canonical tensor, without prefix.
pub(crate) fn from_canonical(name: &str) -> String {
    name.replace(".mlp.experts.", ".mlp.switch_mlp.")
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
