//! What a measurement was made on: the processor, its instruction sets, memory, and how fast memory and disk are read.

use crate::DeviceKind;
use martlet_cpu::Isa;
use martlet_io::{bandwidth, memory, topology};
use martlet_stream::StreamError;
use martlet_weights::Checkpoint;
use serde::Serialize;
use std::io;
use std::path::Path;

pub use martlet_io::disk::FileRead;

/// The machine, as the system describes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// What the processor calls itself.
    pub processor: Option<String>,
    /// "linux", "macos", ...
    pub system: &'static str,
    /// "x86_64", "aarch64", ...
    pub architecture: &'static str,
    /// Physical cores that this process may use.
    pub cores: usize,
    /// Instruction sets that martlet has kernels for and the machine can run, slowest first.
    pub instruction_sets: Vec<String>,
    /// Bytes of memory, limits of control groups respected.
    pub memory: Option<u64>,
}

impl Machine {
    /// This machine.
    pub fn here() -> Machine {
        Machine {
            processor: topology::processor(),
            system: std::env::consts::OS,
            architecture: std::env::consts::ARCH,
            cores: topology::physical_cores(),
            instruction_sets: Isa::ALL.iter().filter(|isa| isa.available()).map(ToString::to_string).collect(),
            memory: memory::memory().map(|m| m.total),
        }
    }
}

/// Threads that a device of this kind computes with, where `asked` were asked for.
pub fn threads(device: DeviceKind, asked: Option<usize>) -> usize {
    match device {
        DeviceKind::Reference => 1,
        DeviceKind::Auto | DeviceKind::Cpu => asked.unwrap_or_else(topology::physical_cores),
    }
}

/// Bytes a second that `threads` threads read from memory. Takes about a second, and for that time 1 GiB, or a quarter of
/// what is free; where the system can, that memory is left out of [`peak_memory`].
pub fn read_bandwidth(threads: usize) -> io::Result<f64> {
    let room = memory::memory().map_or(bandwidth::ENOUGH, |m| (m.free / 4) as usize);
    let rate = bandwidth::read_bandwidth(threads, room.min(bandwidth::ENOUGH));
    memory::forget_peak();
    rate
}

/// Reads at most `limit` bytes of a file from disk.
pub fn read_file(path: &Path, limit: u64) -> io::Result<FileRead> {
    martlet_io::disk::read_file(path, limit)
}

/// How fast the disk gives experts of a pack, many reads in flight; `None` where the model is no pack with experts. Takes
/// some seconds.
pub fn expert_reads(checkpoint: &Checkpoint) -> Result<Option<FileRead>, StreamError> {
    martlet_stream::disk_speed(checkpoint)
}

/// Fills a new file with `bytes` bytes, down to the disk.
pub fn write_file(path: &Path, bytes: u64) -> io::Result<()> {
    martlet_io::disk::write_file(path, bytes)
}

/// The most memory that this process has had resident, in bytes.
pub fn peak_memory() -> Option<u64> {
    memory::peak_resident()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::here();
        assert!(machine.cores >= 1 && machine.instruction_sets[0] == "portable", "{machine:?}");
        assert_eq!(threads(DeviceKind::Reference, Some(9)), 1);
        assert_eq!(threads(DeviceKind::Cpu, Some(9)), 9);
        assert_eq!(threads(DeviceKind::Auto, None), machine.cores);
    }
}
