//! Several caches on one folder at once.

use super::*;
use std::fs;

#[test]
fn each_finds_what_the_other_has_stored() {
    let bench = Bench::new();
    let (a, b) = (bench.open(), bench.open());
    store_chain(&a);
    assert!(!b.contains(&key(3)), "nobody has looked yet");
    store(&b, 9, None, 0, 64);
    assert_eq!(load(&b, 3), Some(restored(&CHAIN)));
    assert_eq!((b.stats().entries, b.stats().written_today), (5, folder_bytes(&bench.dir())));
    // The same segment by both: it is written once.
    store(&a, 9, None, 0, 64);
    assert_eq!((a.stats().entries, a.stats().stored, a.stats().written_today), (5, 4, folder_bytes(&bench.dir())));
    assert_eq!(load(&a, 9), Some(restored(&[(9, 0, 64)])));
}

#[test]
fn what_another_has_deleted_is_a_miss() {
    let bench = Bench::new();
    let (a, b) = (bench.open(), bench.open());
    store_chain(&a);
    b.clear().unwrap();
    assert!(a.contains(&key(3)));
    assert_eq!((load(&a, 3), load(&a, 1)), (None, None));
    assert!(bench.log()[0].contains("it is gone"));
    // What continues it is refused, and stored again with it.
    store(&a, 2, Some(1), 100, 300);
    assert!(!a.contains(&key(2)));
    store_chain(&a);
    assert_eq!(load(&a, 3), Some(restored(&CHAIN)));
    assert_eq!(a.stats().damaged, 0);
}

#[test]
fn the_same_prefix_cut_elsewhere_is_no_damage() {
    let bench = Bench::new();
    let a = bench.open();
    store(&a, 1, None, 0, 64);
    store(&a, 4, Some(1), 64, 128);
    // Another process evicts 4, and stores it anew, with the length that it had, as the begin of a sequence.
    fs::remove_file(path(&bench.dir(), 4)).unwrap();
    store(&bench.open(), 4, None, 0, 40);
    assert_eq!(fs::metadata(path(&bench.dir(), 4)).unwrap().len(), size(64, 128));
    assert_eq!(load(&a, 4), None);
    assert_eq!(load(&a, 4), Some(restored(&[(4, 0, 40)])));
    assert_eq!(a.stats().damaged, 0);
}

#[test]
fn only_the_leftovers_of_the_dead_are_deleted() {
    let bench = Bench::new();
    drop(bench.open());
    let living = bench.dir().join(format::temporary_name(&key(1), 4_000_000_000, 1));
    let dead = bench.dir().join(format::temporary_name(&key(2), std::process::id(), 2));
    let file = fs::File::create(&living).unwrap();
    file.lock().unwrap();
    fs::write(&dead, "half").unwrap();
    let cache = bench.open();
    assert!(living.exists() && !dead.exists());
    assert_eq!(bench.log(), ["prefix cache: 1 unfinished files of a process that has ended were deleted"]);
    assert_eq!((cache.clear().unwrap().0, living.exists()), (0, true));
    drop(file);
    drop(bench.open());
    assert!(!living.exists());
}

#[test]
fn a_name_that_is_taken_is_left_to_its_owner() {
    let bench = Bench::new();
    let cache = bench.open();
    let taken = bench.dir().join(format::temporary_name(&key(1), std::process::id(), 1));
    let file = fs::File::create(&taken).unwrap();
    file.lock().unwrap();
    store(&cache, 1, None, 0, 64);
    assert!(taken.exists() && load(&cache, 1).is_some());
}

#[test]
fn the_lock_of_another_is_waited_for_but_not_forever() {
    let bench = Bench::new();
    let cache = bench.open();
    let lock = fs::File::open(bench.dir().join(LOCK_NAME)).unwrap();
    lock.lock().unwrap();
    store(&cache, 1, None, 0, 64);
    assert_eq!(cache.stats().dropped_failed, 1);
    assert!(bench.log()[0].contains("another process held"));
    drop(lock);
    (0..2).for_each(|_| store(&cache, 1, None, 0, 64));
    assert!(load(&cache, 1).is_some());
}

#[test]
fn many_at_once_keep_the_budget_and_never_mix_bytes() {
    let bench = Bench::new();
    let budget = 20 * size(0, 128);
    let caches: Vec<DiskCache> = (0..3).map(|_| bench.open_with(|o| o.bytes = budget)).collect();
    std::thread::scope(|scope| {
        for (i, cache) in caches.iter().enumerate() {
            scope.spawn(move || {
                for n in 0..60 {
                    // Chains of two, some of them the same for all.
                    let root = 1000 + 2 * (n * (1 + i as u64 % 2));
                    store(cache, root, None, 0, 100);
                    store(cache, root + 1, Some(root), 100, 128);
                    if let Some(found) = load(cache, root + 1) {
                        assert_eq!(found, restored(&[(root, 0, 100), (root + 1, 100, 128)]));
                    }
                }
            });
        }
    });
    assert!(folder_bytes(&bench.dir()) <= budget && temporaries(&bench.dir()) == 0);
    let cache = bench.open();
    assert_eq!((cache.verify(&mut |_, _| {}).damaged, cache.stats().bytes), (0, folder_bytes(&bench.dir())));
    assert!(cache.stats().entries > 10);
    let damaged: u64 = caches.iter().map(|c| c.stats().damaged).sum();
    assert_eq!(damaged, 0, "{:?}", bench.log());
}
