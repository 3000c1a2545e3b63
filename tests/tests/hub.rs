//! Fetching from a hub that misbehaves: every file arrives as it is listed, or an error says why, and nothing looks whole
//! that is not.

use martlet_hub::{FetchProgress, Hub, HubCache, HubError, HubOptions, RemoteFile, Snapshot, Timing, select};
use martlet_tests::fixtures;
use martlet_tests::hub::{Fault, Hub as Served, Manner, REPOSITORY};
use martlet_weights::Checkpoint;
use std::path::Path;
use std::time::Duration;

/// As patient as tests may be: a busy machine is no fault.
fn timing() -> Timing {
    Timing {
        connect: Duration::from_secs(10),
        stall: Duration::from_secs(4),
        least: 4096,
        first_wait: Duration::from_millis(5),
        longest_wait: Duration::from_millis(50),
        attempts: 6,
    }
}

fn hub_at(url: String, cache: Option<&Path>) -> Hub {
    let options =
        HubOptions { endpoint: url, connections: 3, segment: 1 << 20, timing: timing(), ..HubOptions::default() };
    Hub::new(options, cache.map(HubCache::new)).unwrap()
}

fn listed(hub: &Hub) -> Result<(Snapshot, Vec<RemoteFile>), HubError> {
    let snapshot = hub.snapshot(REPOSITORY, "main")?;
    let files = select::select(&snapshot, None, |file| hub.small_file(&snapshot, file))?;
    Ok((snapshot, files))
}

fn fetch(hub: &Hub, dir: &Path) -> Result<FetchProgress, HubError> {
    let (snapshot, files) = listed(hub)?;
    hub.fetch(&snapshot, &files, dir, 0, &mut |_| {})
}

/// What was fetched is what is served, to the byte.
fn whole(dir: &Path) {
    Checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"));
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name();
        let same = std::fs::read(dir.join(&name)).unwrap() == std::fs::read(fixtures::fledgling().join(&name)).unwrap();
        assert!(same, "{name:?}");
    }
}

/// A folder that no one takes for a checkpoint.
fn not_whole(dir: &Path) {
    assert!(!dir.join("config.json").exists());
    assert!(Checkpoint::open(dir).is_err());
}

/// Serves so, with these faults, and fetches; the bytes sent beyond those of the files.
fn survives(manner: Manner, faults: &[(&str, Fault)]) -> u64 {
    let served = Served::serve(&fixtures::fledgling(), manner);
    let hub = hub_at(served.url(), None);
    let (snapshot, files) = listed(&hub).unwrap();
    let before = served.sent();
    faults.iter().for_each(|(file, fault)| served.fault(file, *fault));
    let dir = tempfile::tempdir().unwrap();
    let done = hub.fetch(&snapshot, &files, dir.path(), 0, &mut |_| {}).unwrap_or_else(|e| panic!("{faults:?}: {e}"));
    assert_eq!((done.done, done.checked, done.found), (done.total, done.total, 0));
    assert_eq!(served.faults_left(), 0, "{faults:?}: all were met");
    whole(dir.path());
    served.sent() - before - done.total
}

const WEIGHTS: &str = "model-00002-of-00003.safetensors";

#[test]
fn a_good_hub() {
    assert_eq!(survives(Manner::default(), &[]), 0);
}

#[test]
fn breaks_and_stalls_lose_nothing_that_came() {
    for fault in [Fault::Drop(0), Fault::Drop(1), Fault::Drop(300_001), Fault::Stall(123_457)] {
        let lost = survives(Manner::default(), &[(WEIGHTS, fault), ("tokenizer.json", fault)]);
        // Bytes that are too few to tell what they are come again.
        assert!(lost <= 2 && (lost == 0 || fault == Fault::Drop(1)), "{fault:?}: {lost}");
    }
}

#[test]
fn a_trickle_is_given_up() {
    survives(Manner::default(), &[(WEIGHTS, Fault::Trickle)]);
}

#[test]
fn busy_servers_are_asked_again() {
    let faults = [429, 503, 500, 408].map(|status| (WEIGHTS, Fault::Status(status, None)));
    survives(Manner::default(), &faults);
    let started = std::time::Instant::now();
    survives(Manner::default(), &[("", Fault::Status(429, Some(1)))]);
    // At most ten times the longest wait of these tests.
    assert!(started.elapsed() >= Duration::from_millis(500), "{:?}", started.elapsed());
}

#[test]
fn what_is_not_the_file_is_not_taken_for_it() {
    for fault in [Fault::Page, Fault::DisguisedPage, Fault::Length(-7), Fault::Length(7), Fault::OtherRevision] {
        survives(Manner::default(), &[("model-00001-of-00003.safetensors", fault), ("config.json", fault)]);
    }
}

#[test]
fn a_wrong_bit_is_found_and_the_file_fetched_again() {
    let size = std::fs::metadata(fixtures::fledgling().join(WEIGHTS)).unwrap().len();
    assert_eq!(survives(Manner::default(), &[(WEIGHTS, Fault::Flip)]), size);
    survives(Manner::default(), &[("config.json", Fault::Flip), ("vocab.json", Fault::Flip)]);
}

#[test]
fn links_lead_elsewhere_and_expire() {
    for links in [1_000_000, 25, 15] {
        assert_eq!(survives(Manner { links: Some(links), ..Manner::default() }, &[]), 0, "{links}");
    }
}

#[test]
fn servers_without_ranges_or_lengths() {
    let whole = Manner { whole: true, ..Manner::default() };
    survives(whole, &[(WEIGHTS, Fault::Drop(3_000_000))]);
    survives(Manner { lengthless: true, ..Manner::default() }, &[(WEIGHTS, Fault::Drop(3_000))]);
    survives(Manner { lengthless: true, ..whole }, &[]);
}

#[test]
fn a_hub_that_stays_wrong_is_told_with_its_fault() {
    for (fault, word) in [
        (Fault::Page, "web page"),
        (Fault::DisguisedPage, "web page"),
        (Fault::Status(503, None), "status 503"),
        (Fault::Length(1), "were asked for"),
        (Fault::OtherRevision, "were asked for"),
        (Fault::Drop(0), "the connection broke"),
        (Fault::Flip, "has arrived damaged 3 times"),
    ] {
        let served = Served::serve(&fixtures::fledgling(), Manner::default());
        let hub = hub_at(served.url(), None);
        let (snapshot, files) = listed(&hub).unwrap();
        (0..500).for_each(|_| served.fault("model-00001-of-00003.safetensors", fault));
        let dir = tempfile::tempdir().unwrap();
        let error = hub.fetch(&snapshot, &files, dir.path(), 0, &mut |_| {}).unwrap_err().to_string();
        let named = "model-00001-of-00003.safetensors";
        assert!(error.contains(word) && error.contains(named), "{fault:?}: {error}");
        not_whole(dir.path());
    }
}

#[test]
fn the_token_is_shown_to_the_hub_alone() {
    let served =
        Served::serve(&fixtures::fledgling(), Manner { private: true, links: Some(1 << 40), ..Manner::default() });
    let error = fetch(&hub_at(served.url(), None), Path::new("nowhere")).unwrap_err().to_string();
    assert!(error.contains("status 401") && error.contains("HF_TOKEN is not set"), "{error}");
    let options = HubOptions {
        endpoint: served.url(),
        token: Some("hf_secret".into()),
        timing: timing(),
        ..HubOptions::default()
    };
    let hub = Hub::new(options, None).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fetch(&hub, dir.path()).unwrap();
    whole(dir.path());
    assert_eq!(served.leaked(), 0);
}

#[test]
fn a_revision_that_moves_on_changes_nothing() {
    let served = Served::serve(&fixtures::fledgling(), Manner::default());
    let hub = hub_at(served.url(), None);
    let (snapshot, files) = listed(&hub).unwrap();
    served.move_on("b");
    assert_eq!(hub.snapshot(REPOSITORY, &snapshot.commit).unwrap().commit, "a".repeat(40), "the old one is there");
    let dir = tempfile::tempdir().unwrap();
    hub.fetch(&snapshot, &files, dir.path(), 0, &mut |_| {}).unwrap();
    whole(dir.path());
    assert_eq!(hub.snapshot(REPOSITORY, "main").unwrap().commit, "b".repeat(40));
    let error = hub.snapshot(REPOSITORY, "gone").unwrap_err();
    assert!(matches!(error, HubError::NotFound { .. }) && error.to_string().contains("revision gone"), "{error}");
}

#[test]
fn what_is_here_is_not_fetched_again() {
    let served = Served::serve(&fixtures::fledgling(), Manner::default());
    let hub = hub_at(served.url(), None);
    let (snapshot, files) = listed(&hub).unwrap();
    let dir = tempfile::tempdir().unwrap();
    hub.fetch(&snapshot, &files, dir.path(), 0, &mut |_| {}).unwrap();
    let sent = served.sent();
    let again = hub.fetch(&snapshot, &files, dir.path(), 0, &mut |_| {}).unwrap();
    assert_eq!((served.sent(), again.found), (sent, again.total));
    // One that was changed meanwhile is.
    let path = dir.path().join(WEIGHTS);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    std::fs::write(dir.path().join("old.safetensors"), "of another revision").unwrap();
    hub.fetch(&snapshot, &files, dir.path(), 0, &mut |_| {}).unwrap();
    assert_eq!(served.sent() - sent, bytes.len() as u64);
    whole(dir.path());
}

/// The layout in which other tools keep what they have fetched.
fn cache_of(dir: &Path, snapshot: &Snapshot, files: &[RemoteFile]) {
    let repository = dir.join(format!("models--{}", REPOSITORY.replace('/', "--")));
    let (blobs, named) = (repository.join("blobs"), repository.join("snapshots").join(&snapshot.commit));
    for folder in [&blobs, &named, &repository.join("refs")] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(repository.join("refs/main"), &snapshot.commit).unwrap();
    for file in files {
        let blob = blobs.join(file.digest.to_string());
        std::fs::copy(fixtures::fledgling().join(&file.name), &blob).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(&blob, named.join(&file.name)).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn the_cache_of_other_tools_is_used_and_left_alone() {
    let served = Served::serve(&fixtures::fledgling(), Manner::default());
    let (snapshot, files) = listed(&hub_at(served.url(), None)).unwrap();
    let (cache, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    cache_of(cache.path(), &snapshot, &files);
    let damaged = files.iter().find(|f| f.name == WEIGHTS).unwrap();
    let blob = cache.path().join("models--nest--fledgling/blobs").join(damaged.digest.to_string());
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[77] ^= 1;
    std::fs::write(&blob, &bytes).unwrap();
    let sent = served.sent();
    fetch(&hub_at(served.url(), Some(cache.path())), dir.path()).unwrap();
    whole(dir.path());
    assert_eq!(served.sent() - sent, damaged.size, "a damaged file alone is fetched");
    assert!(std::fs::read(&blob).unwrap() == bytes, "and the cache is not ours to mend");

    // Without the network: all or nothing.
    std::fs::copy(fixtures::fledgling().join(WEIGHTS), &blob).unwrap();
    let options = HubOptions { offline: true, endpoint: "http://127.0.0.1:1".into(), ..HubOptions::default() };
    let hub = Hub::new(options, Some(HubCache::new(cache.path()))).unwrap();
    let other = tempfile::tempdir().unwrap();
    fetch(&hub, other.path()).unwrap();
    whole(other.path());
    assert!(matches!(hub.snapshot("nest/other", "main"), Err(HubError::Offline { .. })));
}

#[test]
fn a_full_disk_is_told_before_the_first_byte() {
    let served = Served::serve(&fixtures::fledgling(), Manner::default());
    let hub = hub_at(served.url(), None);
    let (snapshot, files) = listed(&hub).unwrap();
    let (dir, sent) = (tempfile::tempdir().unwrap(), served.sent());
    let error = hub.fetch(&snapshot, &files, dir.path(), 1 << 60, &mut |_| {}).unwrap_err();
    assert!(matches!(error, HubError::NoRoom { .. }), "{error}");
    assert_eq!(served.sent(), sent);
}
