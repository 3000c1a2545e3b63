//! A well-behaved hub on this machine that serves a checkpoint, to measure `martlet pull`:
//! cargo run --release -p martlet-tests --example hub -- FOLDER
use martlet_tests::hub::{Hub, Manner, REPOSITORY};
use std::path::Path;

fn main() {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("FOLDER of a checkpoint is expected");
        std::process::exit(2);
    };
    let hub = Hub::serve(Path::new(&folder), Manner::default());
    println!("HF_ENDPOINT={} martlet pull {REPOSITORY}", hub.url());
    loop {
        std::thread::park();
    }
}
