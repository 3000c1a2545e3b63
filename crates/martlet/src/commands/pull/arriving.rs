//! A pack that is written while its checkpoint arrives: the disk holds the pack and the files that are on their way, never
//! the whole checkpoint beside it.
//!
//! In `.sources/NAME` lie the files that have arrived, and hidden beside them: `.heads`, the first bytes of the files of
//! weights, which say what they hold; `.view`, a checkpoint that has all of them, of which those that are not there (or
//! not any more) have heads and lengths alone; `.pack` and `.pack.journal`, what is written so far. While one file is
//! packed, the next one is fetched.

use super::{Pull, Shown};
use anyhow::Context;
use martlet_hub::{FetchProgress, Hub, HubError, RemoteFile, Snapshot, select};
use martlet_model::expected_tensors;
use martlet_session::{ModelSource, SessionError};
use martlet_weights::Checkpoint;
use martlet_weights::pack::{Piecewise, Repository, Summary};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Most bytes of a head that are read.
const HEAD: u64 = 100_000_000;
/// Bytes that nearly every head has room in.
const FIRST: u64 = 256 << 10;
/// How often progress is shown.
const TICK: Duration = Duration::from_millis(100);

/// What was done.
pub struct Done {
    pub downloaded: u64,
    pub summary: Summary,
}

/// The work on one snapshot.
pub struct Arriving<'a> {
    pub pull: &'a Pull<'a>,
    pub hub: &'a Hub,
    pub snapshot: &'a Snapshot,
    /// All files, in the order in which they are fetched.
    pub files: &'a [RemoteFile],
}

/// Numbers that the thread that fetches leaves for the one that shows them.
#[derive(Default)]
struct Fetched {
    /// Of files that have arrived, and of the one that arrives.
    before: AtomicU64,
    now: AtomicU64,
    /// Of these, found here.
    found: AtomicU64,
    found_now: AtomicU64,
}

/// Heads are used before anybody can check them.
#[derive(Debug, thiserror::Error)]
#[error("{file} of {repository} has arrived with another beginning each time")]
struct WrongHead {
    file: String,
    repository: String,
}

/// Times that heads may be wrong.
const SPOILED: u32 = 3;

impl Arriving<'_> {
    pub fn run(&self) -> anyhow::Result<Done> {
        for _ in 1..SPOILED {
            match self.try_run() {
                Err(e) if e.is::<WrongHead>() || e.is::<SessionError>() => self.forget_heads()?,
                done => return done,
            }
        }
        self.try_run()
    }

    fn forget_heads(&self) -> anyhow::Result<()> {
        let heads = self.pull.source.join(".heads");
        match std::fs::remove_dir_all(&heads) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context(heads.display().to_string()),
            _ => Ok(()),
        }
    }

    fn try_run(&self) -> anyhow::Result<Done> {
        let dir = &self.pull.source;
        self.hub.tidy(dir, self.files)?;
        let (shards, texts): (Vec<_>, Vec<_>) = self.files.iter().cloned().partition(|f| select::is_weights(&f.name));
        let fetched = self.hub.fetch_some(self.snapshot, &texts, dir, 0, &mut |_| true)?;
        let heads = self.heads(&shards)?;
        let view = self.view(&shards, &heads, &BTreeSet::new())?;
        let (spec, _, checkpoint) = ModelSource::Path(view.clone()).check()?;
        let expected = expected_tensors(&spec, checkpoint.has("mtp.fc.weight"));
        let whence = Repository { name: &self.snapshot.repository, revision: &self.snapshot.commit };
        let identity: String = shards.iter().map(|f| format!("{} {} {}\n", f.name, f.size, f.digest)).collect();
        let mut pack = Piecewise::open(&checkpoint, &expected, Some(&whence), &dir.join(".pack"), identity.as_bytes())?;
        drop(checkpoint);
        let wanted = |f: &&RemoteFile| self.pull.args.keep_source || pack.needs(&f.name);
        let wanted: Vec<RemoteFile> = shards.iter().filter(wanted).cloned().collect();
        self.has_room(&pack, &wanted)?;
        let counts = Fetched::default();
        self.pack_all(&shards, &wanted, &heads, &mut pack, &counts)?;
        let view = self.view(&shards, &heads, &BTreeSet::new())?;
        let summary = pack.finish(&Checkpoint::open(&view)?, &self.pull.path)?;
        for left in [".view", ".heads"] {
            // The rest of the folder goes by itself, or is kept.
            let _ = std::fs::remove_dir_all(dir.join(left));
        }
        let loaded = |all: &AtomicU64, found: &AtomicU64| all.load(Ordering::Relaxed) - found.load(Ordering::Relaxed);
        Ok(Done { downloaded: fetched.done - fetched.found + loaded(&counts.before, &counts.found), summary })
    }

    /// Fails where the disk has no room for the pack and for what lies beside it at a time.
    fn has_room(&self, pack: &Piecewise, wanted: &[RemoteFile]) -> anyhow::Result<()> {
        let (all, written) = pack.bytes();
        let mut sizes: Vec<u64> = wanted.iter().map(|f| f.size).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        // The one that is packed, the one that arrives, and a third whose tensors are in two files.
        let beside: u64 = sizes.iter().take(if self.pull.args.keep_source { usize::MAX } else { 3 }).sum();
        Ok(martlet_hub::has_room(&self.pull.source, beside, all - written)?)
    }

    /// The heads of the files of weights, in their order. They are kept, since nobody keeps the files.
    fn heads(&self, shards: &[RemoteFile]) -> anyhow::Result<Vec<Vec<u8>>> {
        let dir = self.pull.source.join(".heads");
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let head = |file: &RemoteFile| {
            let path = dir.join(format!("{}-{}", file.name, file.digest));
            if let Ok(head) = std::fs::read(&path)
                && head_bytes(&head).is_some_and(|n| n == head.len() as u64)
            {
                return Ok(head);
            }
            let mut head = self.hub.beginning(self.snapshot, file, FIRST)?;
            let bytes = head_bytes(&head).filter(|n| *n <= HEAD.min(file.size));
            let wrong = || WrongHead { file: file.name.clone(), repository: self.snapshot.repository.clone() };
            let bytes = bytes.ok_or_else(wrong)?;
            if bytes > head.len() as u64 {
                head = self.hub.beginning(self.snapshot, file, bytes)?;
            }
            head.truncate(bytes as usize);
            let begun = dir.join("new");
            std::fs::write(&begun, &head).and_then(|()| std::fs::rename(&begun, &path))?;
            Ok(head)
        };
        shards.iter().map(head).collect()
    }

    /// A folder with all files; the weights of those that are not `there` are holes.
    fn view(&self, shards: &[RemoteFile], heads: &[Vec<u8>], there: &BTreeSet<String>) -> anyhow::Result<PathBuf> {
        let view = self.pull.source.join(".view");
        let make = || -> std::io::Result<()> {
            if view.exists() {
                std::fs::remove_dir_all(&view)?;
            }
            std::fs::create_dir_all(&view)?;
            for (file, head) in shards.iter().zip(heads).filter(|(file, _)| !there.contains(&file.name)) {
                let mut out = File::create(view.join(&file.name))?;
                out.write_all(head)?;
                out.set_len(file.size)?;
            }
            // A link to a relative path would lead elsewhere.
            let dir = self.pull.source.canonicalize()?;
            let real = self.files.iter().filter(|f| there.contains(&f.name) || !shards.contains(f));
            real.map(|f| &f.name).try_for_each(|name| martlet_hub::link(&dir.join(name), &view.join(name)))
        };
        make().with_context(|| view.display().to_string())?;
        Ok(view)
    }

    /// Fetches and packs until nothing is missing.
    fn pack_all(
        &self,
        shards: &[RemoteFile],
        wanted: &[RemoteFile],
        heads: &[Vec<u8>],
        pack: &mut Piecewise,
        counts: &Fetched,
    ) -> anyhow::Result<()> {
        let total = shards.iter().map(|f| f.size).sum();
        let skipped = total - wanted.iter().map(|f| f.size).sum::<u64>();
        let shown = RefCell::new(Shown::new(self.pull.app));
        let show = || {
            let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
            let done = skipped + load(&counts.before) + load(&counts.now);
            let found = skipped + load(&counts.found) + load(&counts.found_now);
            let now = FetchProgress { done, found, total, checked: 0 };
            shown.borrow_mut().set(&now);
        };
        let stop = AtomicBool::new(false);
        // Without room: one file waits while another is packed, and none is fetched before that.
        let (arrived, arrivals) = sync_channel(0);
        std::thread::scope(|scope| {
            scope.spawn(|| self.fetch_all(wanted, arrived, counts, &stop));
            let packed = self.pack_arrivals(shards, heads, pack, arrivals, &show);
            // Also after an error here, so that nothing is fetched for nobody.
            stop.store(true, Ordering::Relaxed);
            packed
        })
    }

    fn fetch_all(
        &self,
        wanted: &[RemoteFile],
        arrived: SyncSender<Result<String, HubError>>,
        counts: &Fetched,
        stop: &AtomicBool,
    ) {
        for file in wanted {
            let files = std::slice::from_ref(file);
            let fetched = self.hub.fetch_some(self.snapshot, files, &self.pull.source, 0, &mut |now| {
                counts.now.store(now.done, Ordering::Relaxed);
                counts.found_now.store(now.found, Ordering::Relaxed);
                !stop.load(Ordering::Relaxed)
            });
            if let Ok(now) = &fetched {
                counts.now.store(0, Ordering::Relaxed);
                counts.found_now.store(0, Ordering::Relaxed);
                counts.before.fetch_add(now.done, Ordering::Relaxed);
                counts.found.fetch_add(now.found, Ordering::Relaxed);
            }
            let failed = fetched.is_err();
            if arrived.send(fetched.map(|_| file.name.clone())).is_err() || failed {
                return;
            }
        }
    }

    fn pack_arrivals(
        &self,
        shards: &[RemoteFile],
        heads: &[Vec<u8>],
        pack: &mut Piecewise,
        arrivals: Receiver<Result<String, HubError>>,
        show: &dyn Fn(),
    ) -> anyhow::Result<()> {
        let mut there = BTreeSet::new();
        loop {
            show();
            let name = match arrivals.recv_timeout(TICK) {
                Ok(arrived) => arrived?,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            self.compare_head(shards, heads, &name)?;
            there.insert(name);
            let checkpoint = Checkpoint::open(&self.view(shards, heads, &there)?)?;
            pack.write(&checkpoint, &|file| there.contains(file), &mut |_| show())?;
            // Mapped files keep their room.
            drop(checkpoint);
            self.view(shards, heads, &BTreeSet::new())?;
            if !self.pull.args.keep_source {
                let done: Vec<String> = there.iter().filter(|name| !pack.needs(name)).cloned().collect();
                for name in done {
                    let path = self.pull.source.join(&name);
                    std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
                    there.remove(&name);
                }
            }
        }
    }

    /// Whether a file whose hash is right begins with the head that the pack was planned by.
    fn compare_head(&self, shards: &[RemoteFile], heads: &[Vec<u8>], name: &str) -> anyhow::Result<()> {
        let Some((_, head)) = shards.iter().zip(heads).find(|(file, _)| file.name == name) else { return Ok(()) };
        let path = self.pull.source.join(name);
        let mut found = vec![0; head.len()];
        File::open(&path).and_then(|mut f| f.read_exact(&mut found)).with_context(|| path.display().to_string())?;
        if found == *head {
            return Ok(());
        }
        Err(WrongHead { file: name.to_string(), repository: self.snapshot.repository.clone() }.into())
    }
}

/// Bytes of a safetensors head, its length included; `None` where there are too few to tell.
fn head_bytes(head: &[u8]) -> Option<u64> {
    u64::from_le_bytes(*head.first_chunk::<8>()?).checked_add(8)
}

/// Whether files come in a form whose heads say what they hold.
pub fn can_arrive(files: &[RemoteFile]) -> bool {
    files.iter().any(|f| is_safetensors(&f.name))
        && files.iter().all(|f| !select::is_weights(&f.name) || is_safetensors(&f.name))
}

fn is_safetensors(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e == "safetensors")
}
