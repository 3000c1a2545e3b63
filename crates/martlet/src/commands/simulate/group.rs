//! A control group for one command: Linux's own limits for its memory and its reads.
//!
//! Version 2 has one tree for all; of version 1, memory and reads have one tree each. The new group lies beside or below
//! that of this process, as near as this user may make one.

use crate::size;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Names of our groups begin so; the number of the process follows.
const NAME: &str = "martlet-simulate-";

/// What the command may take at most; `None`: as much as it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes.
    pub memory: Option<u64>,
    /// Bytes a second, from each disk.
    pub read: Option<u64>,
}

/// What there is on this machine.
#[derive(Debug)]
pub struct Found {
    /// Where the trees are mounted.
    root: PathBuf,
    /// /proc/self/cgroup.
    membership: String,
    /// Disks, as "major:minor".
    disks: Vec<String>,
    process: u32,
}

/// The limits in force; a group is removed by [`Group::end`], or by the next run.
#[derive(Debug)]
pub struct Group {
    dirs: Vec<Dir>,
    memory: Held,
    read: Held,
    process: u32,
}

/// A folder of a tree, made by us.
#[derive(Debug)]
struct Dir {
    path: PathBuf,
    /// Where this process belongs.
    home: PathBuf,
}

/// Whether a limit is in force.
#[derive(Debug)]
enum Held {
    /// By a group, and what else there is to say of it.
    By(PathBuf, &'static str),
    /// Not asked for, or why not.
    Not(String),
}

/// The two limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Memory,
    Read,
}

/// One tree.
struct Tree {
    root: PathBuf,
    own: PathBuf,
    second: bool,
}

impl Found {
    pub fn here() -> Found {
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let disks = disks(Path::new("/sys/block"));
        Found { root: "/sys/fs/cgroup".into(), membership, disks, process: std::process::id() }
    }

    /// The trees that can hold a limit: those of version 1 first, where a controller lies if it lies there at all.
    fn trees(&self, kind: Kind) -> Vec<Tree> {
        let controller = if kind == Kind::Memory { "memory" } else { "blkio" };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for line in self.membership.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let own = PathBuf::from(path.trim_start_matches('/'));
            if controllers.is_empty() {
                let hybrid = self.root.join("unified");
                let root = if hybrid.is_dir() { hybrid } else { self.root.clone() };
                second.push(Tree { root, own, second: true });
            } else if controllers.split(',').any(|c| c == controller) {
                first.push(Tree { root: self.root.join(controllers), own, second: false });
            }
        }
        first.into_iter().chain(second).collect()
    }
}

/// Disks of the machine; what only stands for memory or files is none.
fn disks(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let real = |name: &str| !["loop", "ram", "zram"].iter().any(|p| name.starts_with(p));
    let entries = entries.filter(|e| real(&e.file_name().to_string_lossy()));
    let numbers = entries.filter_map(|e| fs::read_to_string(e.path().join("dev")).ok());
    numbers.map(|n| n.trim().to_string()).collect()
}

impl Group {
    /// Makes as much of the limits hold as this user may.
    pub fn new(found: &Found, limits: &Limits) -> Group {
        let none = || Held::Not("it was not asked for".into());
        let mut group = Group { dirs: Vec::new(), memory: none(), read: none(), process: found.process };
        if let Some(bytes) = limits.memory {
            group.memory = group.hold(found, Kind::Memory, bytes);
        }
        if let Some(bytes) = limits.read {
            group.read = group.hold(found, Kind::Read, bytes);
        }
        group
    }

    fn hold(&mut self, found: &Found, kind: Kind, bytes: u64) -> Held {
        if kind == Kind::Read && found.disks.is_empty() {
            return Held::Not("no disk was found".into());
        }
        let mut why = "this system has no control groups".to_string();
        for tree in found.trees(kind) {
            for parent in tree.parents() {
                match self.hold_below(&tree, &parent, kind, bytes, &found.disks) {
                    Ok((path, remark)) => return Held::By(path, remark),
                    Err(e) => why = format!("a control group below {}: {e}", parent.display()),
                }
            }
        }
        Held::Not(why)
    }

    /// Makes the group below `parent`, unless it is there already for the other limit, and sets the limit.
    fn hold_below(
        &mut self,
        tree: &Tree,
        parent: &Path,
        kind: Kind,
        bytes: u64,
        disks: &[String],
    ) -> io::Result<(PathBuf, &'static str)> {
        if tree.second {
            offer(parent, kind)?;
        }
        let path = parent.join(format!("{NAME}{}", self.process));
        let ours = self.dirs.iter().any(|d| d.path == path);
        if !ours {
            // A process is in one group of a tree.
            if self.dirs.iter().any(|d| d.path.starts_with(&tree.root)) {
                return Err(io::Error::other("the other limit is held elsewhere"));
            }
            remove_dead(parent);
            fs::create_dir(&path)?;
        }
        let set = set(&path, tree.second, kind, bytes, disks);
        match (&set, ours) {
            (Ok(_), false) => self.dirs.push(Dir { path: path.clone(), home: tree.root.join(&tree.own) }),
            (Err(_), false) => drop(fs::remove_dir(&path)),
            _ => {}
        }
        set.map(|remark| (path, remark))
    }

    pub fn holds_memory(&self) -> bool {
        matches!(self.memory, Held::By(..))
    }

    pub fn holds_reads(&self) -> bool {
        matches!(self.read, Held::By(..))
    }

    /// What is in force, a line for each limit.
    pub fn said(&self, limits: &Limits) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(bytes) = limits.memory {
            let bytes = size::bytes(bytes);
            lines.push(match &self.memory {
                Held::By(path, remark) => format!("memory: {bytes}, held by Linux ({}){remark}", path.display()),
                Held::Not(why) => {
                    format!("memory: {bytes}, NOT held by the system ({why}): only martlet's own budget is smaller")
                }
            });
        }
        if let Some(bytes) = limits.read {
            let speed = size::speed(bytes);
            lines.push(match &self.read {
                Held::By(path, remark) => format!("disk: {speed}, held by Linux ({}){remark}", path.display()),
                Held::Not(why) => {
                    format!("disk: {speed}, NOT held by the system ({why}): only martlet's reads of experts are slower")
                }
            });
        }
        lines
    }

    /// Calls `start` within the group: what it starts stays there, this process comes back.
    pub fn enter<T>(&self, start: impl FnOnce() -> T) -> anyhow::Result<T> {
        let moved = self.dirs.iter().try_for_each(|d| self.go(&d.path));
        let started = moved.as_ref().ok().map(|()| start());
        for dir in &self.dirs {
            self.go(&dir.home)?;
        }
        moved?;
        Ok(started.expect("it was started, since nothing went wrong"))
    }

    fn go(&self, to: &Path) -> anyhow::Result<()> {
        use anyhow::Context;
        let procs = to.join("cgroup.procs");
        fs::write(&procs, self.process.to_string()).with_context(|| format!("{} can not be written", procs.display()))
    }

    /// Bytes at the peak, as Linux counts them: with files that it kept for the group.
    pub fn most_memory(&self) -> Option<u64> {
        let Held::By(path, _) = &self.memory else { return None };
        let number = |name: &str| -> Option<u64> { fs::read_to_string(path.join(name)).ok()?.trim().parse().ok() };
        number("memory.peak").or_else(|| number("memory.max_usage_in_bytes"))
    }

    /// Whether a process was ended because memory was short.
    pub fn was_short(&self) -> bool {
        let Held::By(path, _) = &self.memory else { return false };
        ["memory.events", "memory.oom_control"].iter().any(|name| {
            let text = fs::read_to_string(path.join(name)).unwrap_or_default();
            text.lines().filter_map(|l| l.strip_prefix("oom_kill ")).any(|n| n.trim() != "0")
        })
    }

    /// Removes the group. A line if that can not be done yet.
    pub fn end(self) -> Option<String> {
        let left: Vec<String> = self
            .dirs
            .iter()
            .filter(|d| fs::remove_dir(&d.path).is_err())
            .map(|d| d.path.display().to_string())
            .collect();
        let running = "still holds processes that the command has left; the next run removes it when they are gone";
        (!left.is_empty()).then(|| format!("{} {running}", left.join(", ")))
    }
}

impl Tree {
    /// Where a group can be made: below that of this process, or beside it or one of those above.
    fn parents(&self) -> Vec<PathBuf> {
        self.own.ancestors().map(|own| self.root.join(own)).collect()
    }
}

/// Has the groups below `parent` count what the limit is about. Fails where this user may not, or where processes are in
/// `parent` itself.
fn offer(parent: &Path, kind: Kind) -> io::Result<()> {
    let controller = if kind == Kind::Memory { "memory" } else { "io" };
    let words = |name: &str| fs::read_to_string(parent.join(name));
    let has = |text: &str| text.split_whitespace().any(|c| c == controller);
    if has(&words("cgroup.subtree_control")?) {
        return Ok(());
    }
    if !has(&words("cgroup.controllers")?) {
        return Err(io::Error::other(format!("there is no controller \"{controller}\"")));
    }
    fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"))
}

/// Sets a limit of a group.
fn set(path: &Path, second: bool, kind: Kind, bytes: u64, disks: &[String]) -> io::Result<&'static str> {
    let write = |name: &str, text: String| fs::write(path.join(name), text);
    let limit = bytes.to_string();
    // The file for swap is not there where the kernel has none, or does not count it.
    let remark = |swap: io::Result<()>| if swap.is_ok() { ", without swap" } else { "; swap is not held" };
    match (second, kind) {
        (true, Kind::Memory) => {
            write("memory.max", limit)?;
            return Ok(remark(write("memory.swap.max", "0".into())));
        }
        (false, Kind::Memory) => {
            write("memory.limit_in_bytes", limit.clone())?;
            // Memory and swap together.
            return Ok(remark(write("memory.memsw.limit_in_bytes", limit)));
        }
        (true, Kind::Read) => disks.iter().try_for_each(|d| write("io.max", format!("{d} rbps={bytes}")))?,
        (false, Kind::Read) => {
            disks.iter().try_for_each(|d| write("blkio.throttle.read_bps_device", format!("{d} {bytes}")))?;
        }
    }
    Ok("; files that are in memory already cost nothing")
}

/// Removes groups of runs that were killed. One that holds processes stays.
fn remove_dead(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|n| n.strip_prefix(NAME)).and_then(|n| n.parse::<u32>().ok());
        if process.is_some_and(|p| !Path::new("/proc").join(p.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of plain files, with what a kernel would have in a folder.
    fn found(root: &Path, membership: &str) -> Found {
        let disks = vec!["254:0".to_string(), "8:0".to_string()];
        Found { root: root.into(), membership: membership.into(), disks, process: 77 }
    }

    fn file(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn text(path: PathBuf) -> String {
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    const BOTH: Limits = Limits { memory: Some(8 << 30), read: Some(1_500_000_000) };

    #[test]
    fn version_1_has_a_group_in_each_tree() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for own in ["memory/a", "blkio"] {
            fs::create_dir_all(root.join(own)).unwrap();
        }
        let group = Group::new(&found(root, "5:memory:/a\n6:blkio:/\n0::/\n"), &BOTH);
        assert!(group.holds_memory() && group.holds_reads(), "{group:?}");
        let (memory, read) = (root.join("memory/a/martlet-simulate-77"), root.join("blkio/martlet-simulate-77"));
        assert_eq!(text(memory.join("memory.limit_in_bytes")), "8589934592");
        assert_eq!(text(memory.join("memory.memsw.limit_in_bytes")), "8589934592");
        // A plain file has the last of the lines.
        assert_eq!(text(read.join("blkio.throttle.read_bps_device")), "8:0 1500000000");
        group.enter(|| assert_eq!(text(memory.join("cgroup.procs")), "77")).unwrap();
        assert_eq!(
            (text(root.join("memory/a/cgroup.procs")), text(root.join("blkio/cgroup.procs"))),
            ("77".into(), "77".into())
        );
        file(memory.join("memory.max_usage_in_bytes"), "4096\n");
        file(memory.join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
        assert_eq!((group.most_memory(), group.was_short()), (Some(4096), true));
        let said = group.said(&BOTH);
        assert!(
            said[0].starts_with("memory: 8.00 GiB, held by Linux")
                && said[1].starts_with("disk: 1.50 GB/s, held by Linux"),
            "{said:?}"
        );
        // Plain folders with files stay; a kernel's would go.
        assert!(group.end().unwrap().contains("still holds"));
    }

    #[test]
    fn version_2_has_one_group_where_the_controllers_are() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        // The group of the shell has processes and offers nothing; that of the user offers memory, and could offer reads.
        file(root.join("user/shell/cgroup.subtree_control"), "");
        file(root.join("user/shell/cgroup.controllers"), "pids");
        file(root.join("user/cgroup.subtree_control"), "memory pids");
        file(root.join("user/cgroup.controllers"), "io memory pids");
        let group = Group::new(&found(root, "0::/user/shell\n"), &BOTH);
        let path = root.join("user/martlet-simulate-77");
        assert!(group.holds_memory() && group.holds_reads() && group.dirs.len() == 1, "{group:?}");
        assert_eq!(text(root.join("user/cgroup.subtree_control")), "+io");
        assert_eq!(
            (text(path.join("memory.max")), text(path.join("memory.swap.max"))),
            ("8589934592".into(), "0".into())
        );
        assert_eq!(text(path.join("io.max")), "8:0 rbps=1500000000");
        group.enter(|| ()).unwrap();
        assert_eq!(text(root.join("user/shell/cgroup.procs")), "77");
        file(path.join("memory.peak"), "5000\n");
        file(path.join("memory.events"), "oom 3\noom_kill 0\n");
        assert_eq!((group.most_memory(), group.was_short()), (Some(5000), false));
    }

    #[test]
    fn what_can_not_be_held_is_said_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let group = Group::new(&found(root, ""), &BOTH);
        let said = group.said(&BOTH);
        assert!(!group.holds_memory() && !group.holds_reads());
        assert!(said.iter().all(|l| l.contains("NOT held") && l.contains("no control groups")), "{said:?}");
        assert_eq!((group.most_memory(), group.was_short(), group.enter(|| 5).unwrap()), (None, false, 5));
        assert_eq!(group.end(), None);
        file(root.join("cgroup.subtree_control"), "cpu");
        file(root.join("cgroup.controllers"), "cpu");
        let group = Group::new(&found(root, "0::/\n"), &BOTH);
        assert!(group.said(&BOTH)[0].contains("there is no controller \"memory\""), "{:?}", group.said(&BOTH));
        assert!(!root.join("martlet-simulate-77").exists());
        let only = Limits { memory: Some(1 << 30), read: None };
        assert_eq!(Group::new(&found(root, "0::/\n"), &only).said(&only).len(), 1);
    }

    #[test]
    fn groups_of_runs_that_were_killed_go() {
        let dir = tempfile::tempdir().unwrap();
        let (dead, alive) = (format!("{NAME}{}", u32::MAX), format!("{NAME}{}", std::process::id()));
        for name in [&dead, &alive, "other"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        remove_dead(dir.path());
        let there = |name: &str| dir.path().join(name).exists();
        assert_eq!((there(&dead), there(&alive), there("other")), (false, true, true));
    }

    #[test]
    fn disks_are_what_is_no_loop_and_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        for (name, number) in [("vda", "254:0\n"), ("loop3", "7:3\n"), ("zram0", "253:0\n"), ("nvme0n1", "259:1\n")] {
            file(dir.path().join(name).join("dev"), number);
        }
        let mut found = disks(dir.path());
        found.sort();
        assert_eq!(found, ["254:0", "259:1"]);
    }
}
