//! Quantises the small model of this repository to 4 bits, and makes it part of the program.

use martlet_weights::Checkpoint;
use martlet_weights::quantise::{Options, quantise_in_memory};
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

const MODEL: &str = "../../models/fledgling";
/// Files that the program never reads: tokenizer.json holds vocabulary and merges too.
const UNUSED: [&str; 3] = ["merges.txt", "vocab.json", "preprocessor_config.json"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={MODEL}");
    let out = std::env::var("OUT_DIR")?;
    let (files, _) = quantise_in_memory(&Checkpoint::open(Path::new(MODEL))?, Options::default())?;
    let mut list = String::from("&[\n");
    for (name, bytes) in files.iter().filter(|(name, _)| !UNUSED.contains(&name.as_str())) {
        std::fs::write(Path::new(&out).join(name), bytes)?;
        writeln!(list, "    ({name:?}, include_bytes!(concat!(env!(\"OUT_DIR\"), \"/\", {name:?}))),")?;
    }
    list.push_str("]\n");
    std::fs::write(Path::new(&out).join("fledgling.rs"), list)?;
    Ok(())
}
