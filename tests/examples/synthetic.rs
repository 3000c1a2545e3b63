//! Writes a checkpoint of random weights in the shape of a released model:
//!
//!     cargo run --release -p martlet-tests --example synthetic -- SHAPE FOLDER

use martlet_tests::synthetic;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [shape, folder] = &args[..] else {
        return Err(
            format!("two arguments are expected: a shape ({}) and a folder", synthetic::names().join(", ")).into()
        );
    };
    synthetic::write(shape, 1, Path::new(folder))?;
    println!("{shape} is in {folder}");
    Ok(())
}
