//! What ARCHITECTURE.md promises about the crates, held against the manifests and the sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()))
}

/// The crates under crates/, by folder name.
fn crates() -> BTreeSet<String> {
    let entries = std::fs::read_dir(root().join("crates")).expect("crates");
    entries.map(|e| e.expect("entry").file_name().into_string().expect("name")).collect()
}

/// What a crate's manifest depends on among ours, without the prefix.
fn dependencies(name: &str) -> BTreeSet<String> {
    let manifest = read(format!("crates/{name}/Cargo.toml"));
    let section = manifest.split("[dependencies]").nth(1).unwrap_or_default();
    let lines = section.lines().take_while(|l| !l.starts_with('['));
    lines.filter_map(|l| l.strip_prefix("martlet-")?.split('.').next().map(str::to_string)).collect()
}

#[test]
fn the_map_lists_every_crate_and_its_arrows() {
    let page = read("ARCHITECTURE.md");
    for name in crates() {
        let row = page.lines().find(|l| l.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {name}"));
        let last = row.trim_end_matches(" |").rsplit('|').next().expect("a column").trim();
        let listed = last.split(", ").filter(|d| *d != "-").map(str::to_string).collect();
        assert_eq!(dependencies(&name), listed, "{name}: manifest and map");
    }
}

#[test]
fn model_and_engine_know_no_device() {
    for name in ["martlet-model", "martlet-engine"] {
        let manifest = read(format!("crates/{name}/Cargo.toml"));
        assert!(!manifest.contains("martlet-cpu"), "{name} names a device");
        for file in sources(&root().join("crates").join(name).join("src")) {
            let text = std::fs::read_to_string(&file).expect("source");
            assert!(!text.contains("cfg(feature"), "{} branches on a feature", file.display());
        }
    }
}

/// An architecture is a file, an entry in the list, and a fixture.
#[test]
fn every_architecture_has_its_file_and_its_fixture() {
    let list: BTreeSet<String> = martlet_model::ARCHITECTURES.iter().map(|(name, _)| name.to_string()).collect();
    let folder = root().join("crates/martlet-model/src/arch");
    let stem = |p: PathBuf| p.file_stem().expect("stem").to_string_lossy().into_owned();
    let files = sources(&folder).into_iter().map(stem).filter(|s| s != "mod" && s != "shared").collect();
    assert_eq!(list, files);
    for name in list {
        let fixture = std::fs::read_dir(martlet_tests::fixtures::path("")).expect("fixtures").any(|entry| {
            let config = entry.expect("entry").path().join("config.json");
            std::fs::read_to_string(config).is_ok_and(|c| c.contains(&format!("\"model_type\": \"{name}\"")))
        });
        assert!(fixture, "no fixture of model_type {name}");
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        match path.is_dir() {
            true => files.extend(sources(&path)),
            false => files.push(path),
        }
    }
    files
}
