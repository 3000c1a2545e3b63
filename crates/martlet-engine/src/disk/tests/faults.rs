//! Disks that are full, fail, or can not be written.

use super::crash::helper;
use super::shared::Step;
use super::*;
use std::fs;

/// Fails as a full disk does at a step with so many bytes written, as often as `times` says.
fn full(at: Step, after: u64, times: u64) -> Probe {
    let left = AtomicU64::new(times);
    Box::new(move |step, written| {
        let fails = step == at && written >= after;
        match fails && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    })
}

#[test]
fn a_full_disk_costs_the_segment_and_nothing_else() {
    let whole = size(100, 300);
    let steps = [0, 1, 216, 217, 2000, whole - 400].map(|after| (Step::Write, after));
    for (step, after) in steps.into_iter().chain([(Step::Sync, 0), (Step::Publish, 0)]) {
        let bench = Bench::new();
        store(&bench.open(), 1, None, 0, 100);
        let cache = DiskCache::open_probed(bench.options(), bench.clock(), full(step, after, 1)).unwrap();
        store(&cache, 2, Some(1), 100, 300);
        assert_eq!((load(&cache, 2), load(&cache, 1)), (None, Some(restored(&CHAIN[..1]))), "{step:?} {after}");
        assert_eq!((temporaries(&bench.dir()), cache.stats().dropped_failed), (0, 1), "{step:?} {after}");
        let log = bench.log();
        assert!(log.len() == 1 && log[0].contains("is not stored: no storage space"), "{log:?}");
        // One is dropped unasked, then the disk is tried again.
        store(&cache, 2, Some(1), 100, 300);
        assert_eq!((cache.stats().dropped_failed, cache.contains(&key(2))), (2, false));
        store(&cache, 2, Some(1), 100, 300);
        assert_eq!(load(&cache, 2), Some(restored(&CHAIN[..2])), "{step:?} {after}");
    }
}

#[test]
fn a_disk_that_stays_full_is_asked_ever_more_rarely() {
    let bench = Bench::new();
    let cache = DiskCache::open_probed(bench.options(), bench.clock(), full(Step::Write, 0, u64::MAX)).unwrap();
    (0..1000).for_each(|n| store(&cache, n, None, 0, 64));
    assert_eq!((cache.stats().dropped_failed, cache.stats().entries), (1000, 0));
    // Tries 1, 3, 7, 15, ..., 255, 511, 767.
    assert_eq!(bench.log().len(), 10);
}

/// A limit of the system on the length of files is as good as a full disk.
#[cfg(unix)]
#[test]
fn a_write_that_the_system_refuses_is_survived() {
    let bench = Bench::new();
    store(&bench.open(), 1, None, 0, 100);
    let helper = helper("limited", &bench.dir());
    let mut command = std::process::Command::new("sh");
    // 8 blocks of 512 or 1024 bytes.
    command.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]).arg(helper.get_program());
    command.args(helper.get_args()).envs(helper.get_envs().filter_map(|(k, v)| Some((k, v?))));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("limited: refused, then stored"), "{output:?}");
    let cache = bench.open();
    assert_eq!((cache.lengths(), temporaries(&bench.dir())), (vec![64, 100], 0));
    assert_eq!(load(&cache, 3), Some(restored(&[(3, 0, 64)])));
}

/// In the helper.
pub fn limited(dir: PathBuf) {
    let bench = Bench::new();
    let cache = bench.open_with(|o| o.dir = dir);
    store(&cache, 2, None, 0, 64 * 20);
    let refused = bench.log();
    assert!(refused.len() == 1 && refused[0].contains("is not stored"), "{refused:?}");
    store(&cache, 3, None, 0, 64); // dropped unasked
    store(&cache, 3, None, 0, 64);
    assert!(!cache.contains(&key(2)) && load(&cache, 1).is_some() && load(&cache, 3).is_some());
    println!("limited: refused, then stored");
}

/// A real full disk, where we may mount one.
#[cfg(target_os = "linux")]
#[test]
fn a_small_file_system_fills_up() {
    if std::env::var_os("MARTLET_FULL").is_none() {
        eprintln!("NOT RUN: a full file system (MARTLET_FULL=1, as root)");
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.dir()).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=256k", "tmpfs"];
    let mounted = std::process::Command::new("mount").args(mount).arg(bench.dir()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("NOT RUN: a full file system (mounting needs root)");
        return;
    }
    let cache = bench.open();
    (0..200).for_each(|n| store(&cache, n, None, 0, 64 * (1 + n % 20)));
    let stats = cache.stats();
    let log = bench.log();
    drop(cache);
    let cache = bench.open();
    let intact = (0..200).filter(|&n| cache.contains(&key(n))).map(|n| load(&cache, n).is_some());
    let intact: Vec<bool> = intact.collect();
    let left = temporaries(&bench.dir());
    drop(cache);
    assert!(std::process::Command::new("umount").arg(bench.dir()).status().unwrap().success());
    assert!(stats.dropped_failed > 0 && stats.stored > 5, "{stats:?}");
    assert!(!log.is_empty() && log.iter().all(|line| line.contains("is not stored")), "{log:?}");
    assert!(intact.len() as u64 == stats.stored && intact.iter().all(|&ok| ok) && left == 0);
}

/// A folder that can not be written is read. Root can write everywhere: its helper runs as nobody.
#[cfg(unix)]
#[test]
fn a_folder_that_can_not_be_written_is_read() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let bench = Bench::new();
    store_chain(&bench.open());
    let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for name in names(&bench.dir()) {
        chmod(&bench.dir().join(name), 0o444);
    }
    // One is damaged, one was left by a crash: neither can be deleted.
    fs::write(bench.dir().join(format::temporary_name(&key(8), 1, 1)), "x").unwrap();
    let damaged = path(&bench.dir(), 4);
    chmod(&damaged, 0o644);
    fs::write(&damaged, "x").unwrap();
    chmod(&bench.dir(), 0o555);
    chmod(bench.folder.path(), 0o755);
    let mut helper = helper("read-only", &bench.dir());
    if fs::write(bench.dir().join("probe"), "x").is_ok() {
        fs::remove_file(bench.dir().join("probe")).unwrap();
        helper.uid(65534).gid(65534);
    }
    let output = helper.output();
    chmod(&bench.dir(), 0o755);
    let Ok(output) = output else {
        eprintln!("NOT RUN: a folder that can not be written (run the tests as another user than root)");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("read-only: read, not written"), "{output:?}");
    assert_eq!(temporaries(&bench.dir()), 1);
}

/// In the helper.
pub fn read_only(dir: PathBuf) {
    let bench = Bench::new();
    let cache = bench.open_with(|o| o.dir = dir.clone());
    assert_eq!((load(&cache, 3), load(&cache, 4)), (Some(restored(&CHAIN)), None));
    store(&cache, 9, None, 0, 64);
    assert_eq!((cache.stats().dropped_failed, cache.verify(&mut |_, _| {}).entries), (1, 3));
    assert!(cache.clear().is_err());
    let log = bench.log();
    assert!(log.len() == 2 && log[0].contains("nothing can be stored here"), "{log:?}");
    assert!(log[1].contains("not used"), "{log:?}");
    println!("read-only: read, not written");
}
