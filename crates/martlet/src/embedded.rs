//! The model inside the program.

use martlet_session::EmbeddedModel;

/// The name under which `-m` knows it.
pub const NAME: &str = "fledgling";

/// models/fledgling of the repository, quantised to 4 bits when the program was built.
pub const FLEDGLING: EmbeddedModel =
    EmbeddedModel { name: NAME, files: include!(concat!(env!("OUT_DIR"), "/fledgling.rs")) };

/// Said once at the start of a chat.
pub const WHO_SPEAKS: &str = "fledgling speaks, a tiny model inside martlet. A bigger one: -m FOLDER, with a Qwen3-Next, \
                              3.5 or 3.6 checkpoint (safetensors, Hugging Face or MLX form)";
