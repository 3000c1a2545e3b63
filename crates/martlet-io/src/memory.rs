//! Memory that this process may use, and what it has used.
//!
//! A control group (container, systemd slice) may allow less than the machine has: the smaller one counts.

use std::path::{Path, PathBuf};

/// Bytes of memory, control-group limits respected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What the machine or the tightest control group has in all.
    pub total: u64,
    /// What can still be taken without swapping; file pages that can be dropped count as free.
    pub free: u64,
}

/// Memory as it stands now; `None` where the system does not say.
pub fn memory() -> Option<Memory> {
    let machine = machine()?;
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(groups(&text, Path::new("/sys/fs/cgroup")).iter().filter_map(|dir| group(dir)).fold(machine, tighter))
}

/// The most memory that this process has had resident, in bytes.
pub fn peak_resident() -> Option<u64> {
    if let Ok(text) = std::fs::read_to_string("/proc/self/status")
        && let Some(bytes) = field(&text, "VmHWM:")
    {
        return Some(bytes);
    }
    usage_peak()
}

/// Forgets the peak so far, so that [`peak_resident`] tells that from now on. False where the system can not.
pub fn forget_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Blocks of at least so many bytes are asked of the system one by one, and go back to it when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_BLOCK: libc::c_int = 1 << 20;

/// Has large blocks (a kept state, a body) go back to the system as soon as they are freed, for the whole process. glibc
/// learns from the first that is freed to keep blocks of that size, up to 32 MiB, in its heap, where those that live on
/// hold what lies between them: a server whose prefix cache renews its entries would take a third more than its budget.
pub fn return_freed_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code)]
    // SAFETY: mallopt may be called at any time; it only sets a number that later allocations look at.
    let _ = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_BLOCK) };
}

/// Has the allocator give back what it keeps for later, after much was freed: of what a tokenizer is read from, small
/// pieces stay behind that nobody else asks for.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code)]
    // SAFETY: malloc_trim may be called at any time; it only touches memory that nobody holds.
    let _ = unsafe { libc::malloc_trim(0) };
}

fn tighter(a: Memory, b: Memory) -> Memory {
    Memory { total: a.total.min(b.total), free: a.free.min(b.free) }
}

/// "Name:   123 kB" of /proc/meminfo and /proc/self/status, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(target_os = "linux")]
fn machine() -> Option<Memory> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(Memory { total: field(&text, "MemTotal:")?, free: field(&text, "MemAvailable:")? })
}

#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code)]
fn machine() -> Option<Memory> {
    // SAFETY: sysconf only reads its argument.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let total = u64::try_from(pages).ok()?.checked_mul(u64::try_from(size).ok()?)?;
    // The system does not tell cheaply what is in use; half is a budget that leaves room for the rest.
    Some(Memory { total, free: total / 2 })
}

#[allow(unsafe_code)]
fn usage_peak() -> Option<u64> {
    // SAFETY: rusage is plain integers, for which zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid rusage that outlives the call.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } != 0 {
        return None;
    }
    let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
    u64::try_from(usage.ru_maxrss).ok()?.checked_mul(unit)
}

/// Folders of the control groups of this process, from its own up to the root: a limit may be set on any of them.
/// `text` is /proc/self/cgroup: "0::/a/b" for version 2, "5:memory:/a/b" for version 1.
fn groups(text: &str, root: &Path) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let base = match controllers {
            "" => root.to_path_buf(),
            c if c.split(',').any(|c| c == "memory") => root.join("memory"),
            _ => continue,
        };
        let mut dir = PathBuf::from(path.trim_start_matches('/'));
        loop {
            dirs.push(base.join(&dir));
            if !dir.pop() {
                break;
            }
        }
    }
    dirs
}

/// Limit and rest of one control group; `None` when it sets no limit.
fn group(dir: &Path) -> Option<Memory> {
    let number = |name: &str| -> Option<u64> { std::fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok() };
    let stat = |key: &str| -> u64 {
        let text = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix(key).and_then(|l| l.strip_prefix(' ')));
        line.and_then(|v| v.trim().parse().ok()).unwrap_or(0)
    };
    let (total, used, droppable) = match number("memory.max") {
        Some(max) => (max, number("memory.current")?, stat("inactive_file") + stat("active_file")),
        None => {
            let limit = number("memory.limit_in_bytes")?;
            let files = stat("total_inactive_file") + stat("total_active_file");
            (limit, number("memory.usage_in_bytes")?, files)
        }
    };
    Some(Memory { total, free: total.saturating_sub(used.saturating_sub(droppable)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_answers() {
        let memory = memory().unwrap();
        assert!(memory.total > 1 << 20 && memory.free <= memory.total);
        let block = vec![1u8; 8 << 20];
        assert!(peak_resident().unwrap() > std::hint::black_box(&block).len() as u64);
        assert!(usage_peak().unwrap() > 8 << 20);
    }

    #[test]
    fn groups_are_walked_up_to_the_root() {
        let root = Path::new("/g");
        let dirs = groups("0::/user/me\n3:cpu:/x\n4:memory,rdma:/y\nbroken\n", root);
        let dirs: Vec<_> = dirs.iter().map(|d| d.to_string_lossy().trim_end_matches('/').to_string()).collect();
        assert_eq!(dirs, ["/g/user/me", "/g/user", "/g", "/g/memory/y", "/g/memory"]);
    }

    #[test]
    fn limits_of_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(group(dir.path()), None);
        write("memory.limit_in_bytes", "1000\n");
        write("memory.usage_in_bytes", "700\n");
        write("memory.stat", "total_inactive_file 200\n");
        let v1 = Memory { total: 1000, free: 500 };
        assert_eq!(group(dir.path()), Some(v1));
        write("memory.max", "max\n");
        assert_eq!(group(dir.path()), Some(v1));
        write("memory.max", "800\n");
        write("memory.current", "900\n");
        write("memory.stat", "inactive_file 40\nactive_file 10\n");
        assert_eq!(group(dir.path()), Some(Memory { total: 800, free: 0 }));
    }
}
