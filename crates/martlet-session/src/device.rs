//! The one place above the devices that names them.

use crate::{OpenError, Options};
use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::reference::Reference;
use martlet_device::{Device, KvScheme};
use std::fmt;
use std::str::FromStr;

/// What computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The best that this machine has.
    #[default]
    Auto,
    /// Plain loops in f32 on one thread: slow, and the definition of what is right.
    Reference,
    /// The processor, with the fastest instructions that it has.
    Cpu,
}

impl DeviceKind {
    /// The names of all kinds.
    pub const NAMES: [&str; 3] = ["auto", "reference", "cpu"];

    /// Its name, as it is read and printed.
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceKind::Auto => "auto",
            DeviceKind::Reference => "reference",
            DeviceKind::Cpu => "cpu",
        }
    }

    /// How keys and values are kept where nothing else is asked for: in full on the reference device.
    pub(crate) fn default_kv(self) -> KvScheme {
        match self {
            DeviceKind::Reference => KvScheme::F32,
            DeviceKind::Auto | DeviceKind::Cpu => KvScheme::F16,
        }
    }

    /// Whether room for keys and values is taken as a whole at the start, not as it is used.
    pub(crate) fn takes_all_room(self) -> bool {
        self == DeviceKind::Reference
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceKind, String> {
        [DeviceKind::Auto, DeviceKind::Reference, DeviceKind::Cpu]
            .into_iter()
            .find(|k| k.as_str() == text)
            .ok_or_else(|| format!("\"{text}\" is no device; known are {}", DeviceKind::NAMES.join(", ")))
    }
}

/// What is done with weights that a pack holds as the device reads them. It changes no text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Load {
    /// They are used where the files are mapped: nothing is read before it is needed, and the system may drop them.
    #[default]
    Map,
    /// They are copied into memory, in huge pages where the system has them: a slower start, and faster reading.
    Copy,
}

impl Load {
    /// The names of all kinds.
    pub const NAMES: [&str; 2] = ["map", "copy"];
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Load, String> {
        match text {
            "map" => Ok(Load::Map),
            "copy" => Ok(Load::Copy),
            _ => Err(format!("\"{text}\" is no way to load; known are {}", Load::NAMES.join(", "))),
        }
    }
}

/// Where the experts of a sparse model are. It changes no text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Experts {
    /// In memory if the model fits there, else read from disk.
    #[default]
    Auto,
    /// In memory.
    Resident,
    /// Read from disk as they are chosen; what fits is kept. From packs alone.
    Stream,
}

impl Experts {
    /// The names of all kinds.
    pub const NAMES: [&str; 3] = ["auto", "resident", "stream"];
}

impl FromStr for Experts {
    type Err = String;

    fn from_str(text: &str) -> Result<Experts, String> {
        match text {
            "auto" => Ok(Experts::Auto),
            "resident" => Ok(Experts::Resident),
            "stream" => Ok(Experts::Stream),
            _ => Err(format!("\"{text}\" is no place for experts; known are {}", Experts::NAMES.join(", "))),
        }
    }
}

/// Work that is the same on every device.
pub(crate) trait OnDevice {
    type Out;
    fn run<D: Device>(self, device: D) -> Result<Self::Out, OpenError>;
}

/// Runs `work` on the device that the options ask for.
pub(crate) fn with_device<W: OnDevice>(options: &Options, work: W) -> Result<W::Out, OpenError> {
    match options.device {
        DeviceKind::Reference => work.run(Reference::new()),
        DeviceKind::Auto | DeviceKind::Cpu => {
            let cpu = CpuOptions { threads: options.threads, isa: options.isa };
            let cpu = Cpu::new(cpu).map_err(|e| OpenError::Device(e.to_string()))?;
            work.run(cpu.with_copied_weights(options.load == Load::Copy))
        }
    }
}
