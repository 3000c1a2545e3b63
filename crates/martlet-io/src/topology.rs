//! The machine's cores.

use std::collections::BTreeSet;
use std::path::Path;

/// Physical cores that this process may use, at least 1. Two hardware threads of one core count once: weight
/// products are bound by memory and gain nothing from the second. CPU quotas and affinity masks are respected.
pub fn physical_cores() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    match cores(Path::new("/sys/devices/system/cpu")) {
        Some(cores) => cores.clamp(1, threads),
        None => threads,
    }
}

/// What the processor calls itself; `None` where the system does not say.
pub fn processor() -> Option<String> {
    named(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// The first name in a text like /proc/cpuinfo.
fn named(text: &str) -> Option<String> {
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name))?;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|name| !name.is_empty())
}

/// Distinct (package, core) pairs below `root`, as Linux lists them.
fn cores(root: &Path) -> Option<usize> {
    let mut seen = BTreeSet::new();
    for entry in std::fs::read_dir(root).ok()?.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix("cpu"));
        if !number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
            continue;
        }
        let read = |file: &str| std::fs::read_to_string(entry.path().join("topology").join(file)).ok();
        if let (Some(package), Some(core)) = (read("physical_package_id"), read("core_id")) {
            seen.insert((package, core));
        }
    }
    (!seen.is_empty()).then_some(seen.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_a_name() {
        let text = "processor\t: 0\nmodel name\t: Some  Core(TM) 7 @ 3 GHz  \nmodel name\t: other\n";
        assert_eq!(named(text).as_deref(), Some("Some Core(TM) 7 @ 3 GHz"));
        assert_eq!((named("processor\t: 0\n"), named("model name\t:  \n")), (None, None));
    }

    #[test]
    fn threads_of_one_core_count_once() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(cores(dir.path()), None);
        for (cpu, package, core) in [(0, 0, 0), (1, 0, 1), (2, 0, 0), (3, 1, 0)] {
            let topology = dir.path().join(format!("cpu{cpu}/topology"));
            std::fs::create_dir_all(&topology).unwrap();
            std::fs::write(topology.join("physical_package_id"), format!("{package}\n")).unwrap();
            std::fs::write(topology.join("core_id"), format!("{core}\n")).unwrap();
        }
        std::fs::create_dir_all(dir.path().join("cpufreq/topology")).unwrap();
        assert_eq!(cores(dir.path()), Some(3));
        assert!(physical_cores() >= 1);
    }
}
