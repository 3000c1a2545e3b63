//! Files that are not what they were, and things that lie in the folder by chance or malice.

use super::*;
use std::fs;

/// Damages the file of segment 2, in a folder that is open or not, and asks for everything.
fn damaged(what: &str, by: impl Fn(&Path)) {
    for open in [true, false] {
        let bench = Bench::new();
        let mut cache = bench.open();
        store_chain(&cache);
        by(&path(&bench.dir(), 2));
        if !open {
            drop(cache);
            cache = bench.open();
        }
        assert_eq!(load(&cache, 2), None, "{what}");
        assert_eq!(load(&cache, 3), None, "{what}: it continues 2");
        assert!(!cache.contains(&key(2)) && !cache.contains(&key(3)), "{what}");
        assert_eq!(load(&cache, 1), Some(restored(&CHAIN[..1])), "{what}");
        assert_eq!(load(&cache, 4), Some(restored(&[(1, 0, 100), (4, 100, 128)])), "{what}");
        let log = bench.log();
        assert!(!log.is_empty() && log.iter().all(|l| l.starts_with("prefix cache: ") && !l.contains('\n')), "{log:?}");
        let left = names(&bench.dir()).into_iter().filter(|n| matches!(Name::of(n), Name::Segment(_))).count();
        assert_eq!(left, 2, "{what}: {log:?}");
        // It can be stored again.
        store(&cache, 2, Some(1), 100, 300);
        assert_eq!(load(&cache, 2), Some(restored(&CHAIN[..2])), "{what}");
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_flipped_bit_is_a_miss() {
    let header = [0, 7, 12, 16, 47, 48, 79, 80, 88, 96, 104, 112, 143, 144, 175, 176, 207, 208, 215];
    let pages = [HEADER_BYTES, HEADER_BYTES + PAGE - 1, HEADER_BYTES + 2 * PAGE, HEADER_BYTES + 4 * PAGE - 1];
    for at in header.into_iter().chain(pages) {
        damaged(&format!("byte {at}"), |path| flip(path, at));
    }
}

#[test]
fn a_flipped_bit_of_a_state_is_a_miss_for_this_state_alone() {
    for at in [0, STATE / 2, STATE - 1] {
        let bench = Bench::new();
        let cache = bench.open();
        store_chain(&cache);
        flip(&path(&bench.dir(), 2), HEADER_BYTES + 4 * PAGE + at);
        assert_eq!(load(&cache, 3), Some(restored(&CHAIN)), "it needs only the pages of 2");
        assert_eq!(load(&cache, 2), None);
        assert!(bench.log()[0].contains("the checksum of its state is wrong"));
        assert_eq!((cache.stats().damaged, cache.stats().entries), (1, 2));
    }
}

#[test]
fn other_lengths_other_contents_and_other_names_are_misses() {
    let whole = size(100, 300) as usize;
    for length in [0, 1, 11, 12, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + PAGE, whole - 1] {
        damaged(&format!("{length} bytes"), |path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..length]).unwrap();
        });
    }
    damaged("a byte more", |path| fs::write(path, [fs::read(path).unwrap(), vec![0]].concat()).unwrap());
    damaged("zeros", |path| fs::write(path, vec![0; whole]).unwrap());
    damaged("a foreign file", |path| fs::write(path, "Dear diary").unwrap());
    damaged("a segment of another key", |p| {
        fs::copy(path(p.parent().unwrap(), 4), p).unwrap();
    });
    damaged("gone", |path| fs::remove_file(path).unwrap());
    damaged("another name", |path| fs::rename(path, path.with_extension("old")).unwrap());
}

#[test]
fn a_renamed_segment_is_not_taken_for_another() {
    let bench = Bench::new();
    store_chain(&bench.open());
    fs::rename(path(&bench.dir(), 4), path(&bench.dir(), 5)).unwrap();
    let cache = bench.open();
    assert!(!cache.contains(&key(4)) && !cache.contains(&key(5)));
    assert_eq!((load(&cache, 5), cache.stats().damaged), (None, 1));
    assert!(bench.log()[0].contains("another key than its name"));
}

#[test]
fn verify_finds_what_loads_would() {
    let bench = Bench::new();
    let cache = bench.open();
    store_chain(&cache);
    let total = folder_bytes(&bench.dir());
    assert_eq!(cache.verify(&mut |_, _| {}), Verified { entries: 4, bytes: total, damaged: 0 });
    flip(&path(&bench.dir(), 3), HEADER_BYTES + PAGE);
    flip(&path(&bench.dir(), 4), HEADER_BYTES + PAGE + STATE - 1);
    assert_eq!(cache.verify(&mut |_, _| {}), Verified { entries: 4, bytes: total, damaged: 2 });
    assert_eq!((cache.lengths(), cache.verify(&mut |_, _| {}).entries, bench.log().len()), (vec![100, 300], 2, 2));
}

#[test]
fn another_version_is_left_alone_until_all_is_cleared() {
    let bench = Bench::new();
    let cache = bench.open();
    store_chain(&cache);
    let newer = path(&bench.dir(), 50);
    let mut bytes = fs::read(path(&bench.dir(), 1)).unwrap();
    bytes[8] = 2;
    fs::write(&newer, &bytes).unwrap();
    drop(cache);
    let cache = bench.open();
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.other_versions, stats.other_version_bytes), (4, 1, bytes.len() as u64));
    assert!(!cache.contains(&key(50)) && cache.verify(&mut |_, _| {}).entries == 4 && newer.exists());
    store(&cache, 9, None, 0, 64);
    assert_eq!((cache.stats().other_versions, bench.log()), (1, vec![]));
    assert_eq!(cache.clear().unwrap().0, 6);
    assert!(!newer.exists() && cache.stats().other_versions == 0);
}

#[test]
fn whatever_lies_in_the_folder_is_left_alone() {
    let bench = Bench::new();
    let cache = bench.open();
    store_chain(&cache);
    drop(cache);
    let dir = bench.dir();
    fs::create_dir(path(&dir, 20)).unwrap();
    fs::create_dir(dir.join("folder")).unwrap();
    fs::write(dir.join("a \n\u{1b}[31m name"), "x").unwrap();
    fs::write(dir.join("x".repeat(255)), "x").unwrap();
    fs::File::create(dir.join("huge")).unwrap().set_len(1 << 42).unwrap();
    let mut things = 5;
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        fs::write(dir.join(std::ffi::OsStr::from_bytes(b"\xff\xfe.segment")), "x").unwrap();
        std::os::unix::fs::symlink(path(&dir, 1), path(&dir, 21)).unwrap();
        std::os::unix::fs::symlink("nowhere", path(&dir, 22)).unwrap();
        std::os::unix::fs::symlink(&dir, dir.join("loop")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(dir.join("s")).unwrap());
        fs::rename(dir.join("s"), path(&dir, 23)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path(&dir, 24)).status().unwrap().success());
        things += 6;
    }
    let cache = bench.open();
    assert_eq!(load(&cache, 3), Some(restored(&CHAIN)));
    for n in 20..25 {
        assert_eq!(load(&cache, n), None);
    }
    let log = bench.log();
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(log[0].contains(&format!("{things} things")) && !log[0].contains(['\n', '\u{1b}']), "{log:?}");
    cache.verify(&mut |_, _| {});
    cache.clear().unwrap();
    assert_eq!(names(&dir).len(), things + 1, "and the lock");
}

#[cfg(unix)]
#[test]
fn what_takes_a_segments_place_is_neither_followed_nor_waited_for() {
    let bench = Bench::new();
    let cache = bench.open();
    store_chain(&cache);
    let [two, three] = [2, 3].map(|n| path(&bench.dir(), n));
    let moved = bench.folder.path().join("moved");
    fs::rename(&three, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &three).unwrap();
    assert_eq!(load(&cache, 3), None);
    fs::remove_file(&two).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&two).status().unwrap().success());
    assert_eq!(load(&cache, 2), None);
    fs::remove_file(&two).unwrap();
    fs::create_dir(&two).unwrap();
    store(&cache, 2, Some(1), 100, 300);
    assert!(three.is_symlink() && two.is_dir() && moved.exists(), "they are not ours");
    assert_eq!((load(&cache, 1), cache.stats().dropped_failed), (Some(restored(&CHAIN[..1])), 1));
}

#[test]
fn a_huge_file_with_our_name_costs_nothing() {
    let bench = Bench::new();
    let cache = bench.open();
    store_chain(&cache);
    drop(cache);
    let huge = |n: u64, header: &[u8]| {
        let file = path(&bench.dir(), n);
        fs::write(&file, header).unwrap();
        fs::File::options().write(true).open(file).unwrap().set_len(1 << 35).unwrap();
    };
    huge(30, b"");
    // With a header that is true, but more than may be kept.
    let header = Header::shape(key(31), &segment(31, None, 0, 64)).unwrap();
    let header = Header { state_bytes: (1 << 32) - 1, page_bytes: 1 << 28, end: 64 * 126, ..header };
    let rest = (1 << 35) - header.file_bytes();
    let header = Header { end: 64 * (126 + rest / (1 << 28)), ..header };
    let header = Header { state_bytes: (1 << 32) - 1 - (header.file_bytes() - (1 << 35)) % (1 << 32), ..header };
    huge(31, &header.encode());
    let cache = bench.open();
    assert_eq!((load(&cache, 30), load(&cache, 31)), (None, None));
    assert_eq!((load(&cache, 3), cache.stats().entries), (Some(restored(&CHAIN)), 4));
    assert!(!path(&bench.dir(), 30).exists() && !path(&bench.dir(), 31).exists());
}

#[test]
fn a_lock_that_is_no_file_is_an_error() {
    for make in [
        |path: &Path| fs::create_dir(path).unwrap(),
        #[cfg(unix)]
        |path: &Path| {
            let file = path.with_extension("mine");
            fs::write(&file, "mine").unwrap();
            std::os::unix::fs::symlink(file, path).unwrap();
        },
        #[cfg(unix)]
        |path: &Path| assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success()),
    ] {
        let bench = Bench::new();
        fs::create_dir(bench.dir()).unwrap();
        make(&bench.dir().join(LOCK_NAME));
        let error = DiskCache::open(bench.options(), bench.clock()).err().unwrap().to_string();
        assert!(error.contains(LOCK_NAME) && error.contains("another folder may do"), "{error}");
    }
    let bench = Bench::new();
    fs::write(bench.dir(), "a file").unwrap();
    assert!(matches!(DiskCache::open(bench.options(), bench.clock()), Err(DiskError::Folder { .. })));
}

#[test]
fn segments_without_what_they_continue_are_deleted() {
    let bench = Bench::new();
    store_chain(&bench.open());
    fs::remove_file(path(&bench.dir(), 1)).unwrap();
    let cache = bench.open();
    assert_eq!((cache.stats().entries, names(&bench.dir()).len()), (0, 1));
    assert!(bench.log()[0].contains("3 segments were deleted"));
}
