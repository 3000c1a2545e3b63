//! Where the chat tests find their data: in the project, or prepared by a script because it belongs to others.

use std::io::Write as _;
use std::path::PathBuf;

/// A path below the project's root.
pub fn project(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// A JSON file below the project's root.
pub fn json(path: &str) -> serde_json::Value {
    let path = project(path);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Prepared data, or `None` with a loud word about what was not run. With MARTLET_REQUIRE_TEST_DATA=1 that is a failure.
pub fn prepared(what: &str, path: PathBuf) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    let message = format!("NOT RUN: {what}: {} is not there; tools/prepare-test-data.sh makes it", path.display());
    assert!(std::env::var_os("MARTLET_REQUIRE_TEST_DATA").is_none_or(|v| v != "1"), "{message}");
    // Past the test runner, which swallows what a passing test prints.
    let _ = writeln!(std::io::stderr(), "{message}");
    None
}
