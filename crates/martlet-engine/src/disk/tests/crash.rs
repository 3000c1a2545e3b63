//! Processes that are killed while they write. This test binary runs itself as the victim.

use super::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

const ROLE: &str = "MARTLET_DISK_TEST_ROLE";
const DIR: &str = "MARTLET_DISK_TEST_DIR";
const BUDGET: u64 = 200_000;

/// Runs this test binary as a helper that plays a role in a folder.
pub fn helper(role: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["disk::tests::crash::as_helper", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(DIR, dir);
    command
}

/// Does nothing unless it is called as a helper.
#[test]
fn as_helper() {
    let (Ok(role), Some(dir)) = (std::env::var(ROLE), std::env::var_os(DIR)) else {
        return;
    };
    match role.split_once(':').unwrap_or((&role, "0")) {
        ("write", seed) => write_for_ever(dir.into(), seed.parse().unwrap()),
        ("abort", at) => abort_at(dir.into(), at.parse().unwrap()),
        ("limited", _) => faults::limited(dir.into()),
        ("read-only", _) => faults::read_only(dir.into()),
        (role, _) => panic!("no role {role}"),
    }
}

/// Chain `c` has the segments 4c to 4c + 3, of 100 tokens each.
fn part(n: u64) -> (Option<u64>, u64, u64) {
    let start = n % 4 * 100;
    ((start > 0).then(|| n - 1), start, start + 100)
}

fn write_for_ever(dir: PathBuf, seed: u64) {
    let bench = Bench::new();
    let cache = bench.open_with(|o| (o.dir, o.bytes) = (dir, BUDGET));
    for n in seed * 1_000_000.. {
        let (parent, start, end) = part(n);
        cache.put(key(n), segment(n, parent, start, end));
        if n % 3 == 0 {
            cache.flush();
            println!("\nstored {n}");
            std::io::stdout().flush().unwrap();
        }
    }
}

/// Everything that the index offers loads as it was put; no leftover; the budget is kept. How many entries there are.
fn examine(dir: &Path) -> usize {
    let bench = Bench::new();
    let cache = bench.open_with(|o| (o.dir, o.bytes) = (dir.to_path_buf(), BUDGET));
    assert_eq!(temporaries(dir), 0);
    assert!(folder_bytes(dir) <= BUDGET);
    let keys = names(dir).into_iter().filter_map(|name| match Name::of(&name) {
        Name::Segment(key) => Some(number(&key)),
        _ => None,
    });
    let keys: Vec<u64> = keys.collect();
    for &n in &keys {
        let chain: Vec<_> = (n - n % 4..=n).map(|n| (n, part(n).1, part(n).2)).collect();
        assert_eq!(load(&cache, n), Some(restored(&chain)), "{n}: {:?}", bench.log());
    }
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.damaged), (keys.len(), 0), "{:?}", bench.log());
    keys.len()
}

/// What a helper has said; it stays open, since a helper that nobody listens to would end by itself.
type Said = std::io::Lines<BufReader<std::process::ChildStdout>>;

/// Waits until `count` more segments and one are said to be stored.
fn wait_for(child: &mut Child, count: u64) -> Said {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let stored = lines.by_ref().filter(|line| line.as_ref().expect("the helper lives").starts_with("stored "));
    assert_eq!(stored.take(count as usize + 1).count(), count as usize + 1, "the helper ended");
    lines
}

#[test]
fn killed_at_any_time_leaves_whole_segments() {
    let kills: u64 = if std::env::var_os("MARTLET_FULL").is_some() { 200 } else { 20 };
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("prefix");
    let (mut random, mut leftovers, mut entries) = (1u64, 0, 0);
    for kill in 1..=kills {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let spawn = |role: String| helper(&role, &dir).stdout(Stdio::piped()).spawn().unwrap();
        // Every third time two of them share the folder.
        let both = [Some(kill), (kill % 3 == 0).then_some(kill + 1000)].into_iter().flatten();
        let mut children: Vec<Child> = both.map(|seed| spawn(format!("write:{seed}"))).collect();
        let said: Vec<Said> = children.iter_mut().map(|child| wait_for(child, random >> 32 & 7)).collect();
        std::thread::sleep(Duration::from_micros(random >> 40 & 0x3fff));
        for child in &mut children {
            child.kill().unwrap();
            assert!(child.wait().unwrap().code().is_none(), "it was killed, and did not end by itself");
        }
        drop(said);
        leftovers += temporaries(&dir);
        entries += examine(&dir);
    }
    println!("{kills} kills: {leftovers} leftovers cleaned, {entries} entries found intact");
    assert!(entries > 0);
}

/// In the helper: the process ends at the `at`th step of storing 2 after 1.
fn abort_at(dir: PathBuf, at: u64) {
    let bench = Bench::new();
    store(&bench.open_with(|o| o.dir = dir.clone()), 0, None, 0, 100);
    let steps = AtomicU64::new(0);
    let probe: Probe = Box::new(move |_, _| {
        if steps.fetch_add(1, Ordering::Relaxed) == at {
            std::process::abort();
        }
        Ok(())
    });
    let options = DiskOptions { dir, ..bench.options() };
    let cache = DiskCache::open_probed(options, bench.clock(), probe).unwrap();
    store(&cache, 1, Some(0), 100, 200);
    println!("stored");
}

#[test]
fn an_end_at_any_step_leaves_whole_segments() {
    // The header, three pages, the state, the sync, the new name; after these it is stored.
    for at in 0..=7 {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("prefix");
        let output = helper(&format!("abort:{at}"), &dir).output().unwrap();
        assert_eq!(output.status.success(), at == 7, "step {at}: {output:?}");
        assert_eq!(temporaries(&dir), usize::from(at < 7), "step {at}");
        assert_eq!(examine(&dir), if at == 7 { 2 } else { 1 }, "step {at}");
    }
}
