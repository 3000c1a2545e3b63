//! What opening a checkpoint holds in memory beside the weights on the device. Bytes are counted, so that other work on the
//! machine changes nothing.

use martlet_cpu::{Cpu, CpuOptions};
use martlet_model::{Model, expected_tensors, read_config};
use martlet_tests::fixtures::{fledgling, path};
use martlet_weights::{Checkpoint, pack};
use std::path::Path;

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(2), isa: None }).unwrap()
}

/// Of a GGUF file one tensor is rewritten at a time (of a large one, a piece), and nothing of it is kept.
#[test]
fn rewritten_tensors_are_not_kept() {
    let checkpoint = Checkpoint::open(&path("gguf").join("dense-q8_0-00001-of-00002.gguf")).unwrap();
    let spec = read_config(checkpoint.config()).unwrap();
    Model::load_checked(&cpu(), &checkpoint, spec, &mut |_, _| {}).unwrap();
    let form = |name| checkpoint.form(name).unwrap();
    let bytes: Vec<usize> = checkpoint.names().map(|name| form(name).bytes as usize).collect();
    let (largest, most) = (*bytes.iter().max().unwrap(), checkpoint.most_rewritten());
    assert!(bytes.iter().sum::<usize>() > 4 * largest, "a fixture in which one tensor is not nearly all");
    // Scales of Q8_0 take 2 bytes for 32 weights, and as many zeros for their biases beside them.
    assert!(
        most > 0 && most <= largest + largest / 16,
        "{most} bytes of rewritten rows, {largest} of the largest tensor"
    );
}

/// Bytes of files in `folder` that lie in this process's memory.
#[cfg(target_os = "linux")]
fn resident(folder: &Path) -> usize {
    let (maps, folder) = (std::fs::read_to_string("/proc/self/smaps").unwrap(), folder.canonicalize().unwrap());
    let mut inside = false;
    let mut kib = 0;
    for line in maps.lines() {
        match line.strip_prefix("Rss:") {
            Some(rss) if inside => kib += rss.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap(),
            // A map begins with its addresses, all else with a word and a colon.
            None if !line.split(' ').next().unwrap_or("").ends_with(':') => {
                inside = line.contains(folder.to_str().unwrap());
            }
            _ => {}
        }
    }
    kib << 10
}

/// Loads what lies in `folder` and returns the most bytes of its files that stayed in memory between two tensors.
#[cfg(target_os = "linux")]
fn most_resident(device: &Cpu, folder: &Path) -> usize {
    let (checkpoint, mut most) = (Checkpoint::open(folder).unwrap(), 0);
    let spec = read_config(checkpoint.config()).unwrap();
    let mut look = |_: usize, _: usize| most = most.max(resident(folder));
    Model::load_checked(device, &checkpoint, spec, &mut look).unwrap();
    most
}

#[test]
#[cfg(target_os = "linux")]
fn pages_of_a_mapped_file_leave_memory_once_they_are_on_the_device() {
    /// Far less than the 45 MB of the checkpoint, and more than a page that the system maps as a whole (2 MiB).
    const FEW: usize = 6 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (source, packed) = (Checkpoint::open(&fledgling()).unwrap(), dir.path().join("pack"));
    let spec = read_config(source.config()).unwrap();
    pack::pack(&source, &expected_tensors(&spec, source.has("mtp.fc.weight")), &packed, None, &mut |_, _| {}).unwrap();
    let left = resident(&fledgling());
    assert!(left < FEW, "{left} bytes of the checkpoint lie in memory after it was packed");
    drop(source);
    for (what, device, folder) in
        [("safetensors", cpu(), fledgling()), ("a copied pack", cpu().with_copied_weights(true), packed)]
    {
        let most = most_resident(&device, &folder);
        assert!(most < FEW, "{most} bytes of {what} lay in memory");
    }
}
