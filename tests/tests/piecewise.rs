//! Packs that are written while their source arrives: file by file in any order, and over interruptions, the pack is the
//! one that is made of the whole source, to the byte.

use martlet_model::expected_tensors;
use martlet_session::ModelSource;
use martlet_tests::fixtures;
use martlet_tests::random::Rng;
use martlet_weights::Checkpoint;
use martlet_weights::pack::{Piecewise, Repository, pack, verify};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

const WHENCE: Repository<'static> = Repository { name: "nest/fledgling", revision: "a" };

fn shards() -> Vec<String> {
    (1..=3).map(|n| format!("model-0000{n}-of-00003.safetensors")).collect()
}

/// Fledgling, whose shards but for some are heads and holes.
fn view(dir: &Path, there: &BTreeSet<String>) -> PathBuf {
    let view = dir.join("view");
    let _ = std::fs::remove_dir_all(&view);
    std::fs::create_dir(&view).unwrap();
    for entry in std::fs::read_dir(fixtures::fledgling()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let to = view.join(&name);
        if !name.ends_with(".safetensors") || there.contains(&name) {
            std::fs::copy(&path, &to).unwrap();
            continue;
        }
        let mut head = vec![0; 8];
        let mut file = File::open(&path).unwrap();
        file.read_exact(&mut head).unwrap();
        let length = u64::from_le_bytes(head[..8].try_into().unwrap());
        Read::by_ref(&mut file).take(length).read_to_end(&mut head).unwrap();
        let mut out = File::create(&to).unwrap();
        out.write_all(&head).unwrap();
        out.set_len(std::fs::metadata(&path).unwrap().len()).unwrap();
    }
    view
}

fn open(dir: &Path, identity: &[u8]) -> Piecewise {
    let (spec, _, checkpoint) = ModelSource::Path(view(dir, &BTreeSet::new())).check().unwrap();
    let expected = expected_tensors(&spec, checkpoint.has("mtp.fc.weight"));
    Piecewise::open(&checkpoint, &expected, Some(&WHENCE), &dir.join("part"), identity).unwrap()
}

fn write(part: &mut Piecewise, dir: &Path, there: &BTreeSet<String>) {
    let checkpoint = Checkpoint::open(&view(dir, there)).unwrap();
    part.write(&checkpoint, &|file| there.contains(file), &mut |_| {}).unwrap();
}

/// All that is needed, from where it is; shards that nothing needs any more are not there.
fn complete(mut part: Piecewise, dir: &Path, order: &[String]) {
    let mut there = BTreeSet::new();
    for name in order.iter().filter(|name| part.needs(name)).cloned().collect::<Vec<_>>() {
        there.insert(name);
        write(&mut part, dir, &there);
        there.retain(|name| part.needs(name));
    }
    let holes = Checkpoint::open(&view(dir, &BTreeSet::new())).unwrap();
    part.finish(&holes, &dir.join("pack")).unwrap();
}

fn whole(dir: &Path) -> PathBuf {
    let (spec, _, checkpoint) = ModelSource::Path(fixtures::fledgling()).check().unwrap();
    let expected = expected_tensors(&spec, true);
    let to = dir.join("whole");
    pack(&checkpoint, &expected, &to, Some(&WHENCE), &mut |_, _| {}).unwrap();
    to
}

fn same(found: &Path, expected: &Path) {
    let names = |dir: &Path| -> BTreeSet<_> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(names(found), names(expected));
    for name in names(expected) {
        assert!(std::fs::read(found.join(&name)).unwrap() == std::fs::read(expected.join(&name)).unwrap(), "{name:?}");
    }
    verify(found, &mut |_, _| {}).unwrap();
}

#[test]
fn in_any_order_it_is_the_same_pack() {
    let dir = tempfile::tempdir().unwrap();
    let expected = whole(dir.path());
    let all = shards();
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let order = order.map(|i| all[i].clone());
        let part = open(dir.path(), b"x");
        assert_eq!(part.bytes().1, 0);
        complete(part, dir.path(), &order);
        same(&dir.path().join("pack"), &expected);
        std::fs::remove_dir_all(dir.path().join("pack")).unwrap();
    }
}

#[test]
fn what_is_written_is_not_needed_again() {
    let dir = tempfile::tempdir().unwrap();
    let expected = whole(dir.path());
    let (mut there, all) = (BTreeSet::new(), shards());
    let mut written = 0;
    for name in &all {
        let mut part = open(dir.path(), b"x");
        assert_eq!(part.bytes().1, written, "as before");
        there.insert(name.clone());
        write(&mut part, dir.path(), &there);
        there.retain(|name| part.needs(name));
        assert!(part.bytes().1 > written);
        written = part.bytes().1;
    }
    let part = open(dir.path(), b"x");
    assert_eq!(part.bytes().0, written);
    assert!(all.iter().all(|name| !part.needs(name)));
    // Files of other bytes are another pack.
    assert_eq!(open(&{ copy_of(&dir) }, b"y").bytes().1, 0);
    complete(part, dir.path(), &all);
    same(&dir.path().join("pack"), &expected);
}

fn copy_of(dir: &tempfile::TempDir) -> PathBuf {
    let to = dir.path().join("copy");
    std::fs::create_dir_all(to.join("part")).unwrap();
    for name in ["part/weights.bin", "part/experts.bin", "part.journal"] {
        std::fs::copy(dir.path().join(name), to.join(name)).unwrap();
    }
    to
}

#[test]
fn unfinished_it_is_no_pack() {
    let dir = tempfile::tempdir().unwrap();
    let mut part = open(dir.path(), b"x");
    let there = BTreeSet::from([shards()[0].clone()]);
    write(&mut part, dir.path(), &there);
    let holes = Checkpoint::open(&view(dir.path(), &BTreeSet::new())).unwrap();
    let error = part.finish(&holes, &dir.path().join("pack")).unwrap_err().to_string();
    assert!(error.contains("have not been packed"), "{error}");
    assert!(!dir.path().join("pack").exists());
    assert!(!dir.path().join("part/manifest.json").exists());
}

/// A journal that was cut anywhere, or damaged anywhere, costs work and nothing else.
#[test]
fn a_journal_that_was_cut_or_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (expected, all, mut rng) = (whole(dir.path()), shards(), Rng(3));
    let rounds = if std::env::var_os("MARTLET_FULL").is_some() { 60 } else { 8 };
    for round in 0..rounds {
        let mut part = open(dir.path(), b"x");
        let there = all[..2].iter().cloned().collect();
        write(&mut part, dir.path(), &there);
        drop(part);
        let path = dir.path().join("part.journal");
        let mut journal = std::fs::read(&path).unwrap();
        let at = rng.below(journal.len());
        match round % 2 {
            0 => journal.truncate(at),
            // A line that can not be read ends what is believed; one in the middle of a digest would be believed, and is
            // what no kill leaves.
            _ => journal[at..].iter_mut().take(40).for_each(|b| *b = b'?'),
        }
        std::fs::write(&path, &journal).unwrap();
        complete(open(dir.path(), b"x"), dir.path(), &all);
        same(&dir.path().join("pack"), &expected);
        std::fs::remove_dir_all(dir.path().join("pack")).unwrap();
    }
}

#[test]
fn files_that_were_cut_are_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut part = open(dir.path(), b"x");
    write(&mut part, dir.path(), &shards().into_iter().collect());
    drop(part);
    let weights = dir.path().join("part/weights.bin");
    let length = std::fs::metadata(&weights).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(length - 1).unwrap();
    assert_eq!(open(dir.path(), b"x").bytes().1, 0);
}
