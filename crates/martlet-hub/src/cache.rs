//! The cache of Hugging Face's tools: what they have fetched need not be fetched again.
//!
//! `models--OWNER--NAME/` holds `refs/REVISION` (a commit), `snapshots/COMMIT/FILE` and `blobs/HASH`; the files of a
//! snapshot are links to the blobs, which are named after their hash. Nothing is ever written here.

use crate::digest::Digest;
use crate::listing::{RemoteFile, Snapshot, is_commit, plain_name};
use std::path::{Path, PathBuf};

/// The cache's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCache(PathBuf);

impl HubCache {
    pub fn new(dir: impl Into<PathBuf>) -> HubCache {
        HubCache(dir.into())
    }

    /// The folder that the environment says: `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else in `huggingface` in
    /// `XDG_CACHE_HOME`, else in ~/.cache/huggingface.
    pub fn from_environment(environment: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Option<HubCache> {
        let named = environment("HF_HUB_CACHE").filter(|v| !v.is_empty()).map(PathBuf::from);
        named.or_else(|| Some(hf_home(environment, home)?.join("hub"))).map(HubCache)
    }

    fn repository(&self, repository: &str) -> PathBuf {
        self.0.join(format!("models--{}", repository.replace('/', "--")))
    }

    /// Where a file of the right size is. Its bytes are not compared.
    pub(crate) fn file(&self, snapshot: &Snapshot, file: &RemoteFile) -> Option<PathBuf> {
        let repository = self.repository(&snapshot.repository);
        let blob = repository.join("blobs").join(file.digest.to_string());
        let named = repository.join("snapshots").join(&snapshot.commit).join(&file.name);
        let right = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == file.size);
        [blob, named].into_iter().find(right)?.canonicalize().ok()
    }

    /// What the cache knows of a revision, without the hub. Files that are no links have no hash, and are left out.
    pub(crate) fn snapshot(&self, repository: &str, revision: &str) -> Option<Snapshot> {
        let dir = self.repository(repository);
        let commit = match is_commit(revision) {
            true => revision.to_string(),
            // A branch such as "refs/pr/1" is a path here too; one with ".." would lead elsewhere.
            false if revision.split('/').any(|piece| !plain_name(piece)) => return None,
            false => std::fs::read_to_string(dir.join("refs").join(revision)).ok()?.trim().to_string(),
        };
        if !is_commit(&commit) {
            return None;
        }
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir.join("snapshots").join(&commit)).ok()?.flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            let target = entry.path().canonicalize().ok();
            let digest = target.as_ref().and_then(|t| Digest::parse(t.file_name()?.to_str()?));
            if let (Some(target), Some(digest), true) = (target, digest, plain_name(&name)) {
                let size = std::fs::metadata(target).ok()?.len();
                files.push(RemoteFile { name, size, digest });
            }
        }
        let snapshot = Snapshot { repository: repository.to_string(), commit, files };
        (!snapshot.files.is_empty()).then_some(snapshot)
    }
}

/// `HF_HOME`, or where it is by default.
fn hf_home(environment: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Option<PathBuf> {
    let named = |name| environment(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let caches = || named("XDG_CACHE_HOME").or_else(|| home.map(|h| h.join(".cache")));
    named("HF_HOME").or_else(|| Some(caches()?.join("huggingface")))
}

/// The token that the environment says: `HF_TOKEN`, else the file that `HF_TOKEN_PATH` names, else the one that logging
/// in has left in `HF_HOME`.
pub fn token(environment: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Option<String> {
    let text = |text: String| Some(text.trim().to_string()).filter(|t| !t.is_empty());
    if let Some(token) = environment("HF_TOKEN").and_then(text) {
        return Some(token);
    }
    let file = environment("HF_TOKEN_PATH").filter(|v| !v.is_empty()).map(PathBuf::from);
    let file = file.or_else(|| Some(hf_home(environment, home)?.join("token")))?;
    std::fs::read_to_string(file).ok().and_then(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_tokens_are_where_the_environment_says() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path();
        let cache = |env: &[(&str, &str)]| {
            let find = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
            HubCache::from_environment(&find, Some(home)).unwrap().0
        };
        assert_eq!(cache(&[]), home.join(".cache/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/h")]), Path::new("/h/hub"));
        assert_eq!(cache(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h")]), Path::new("/c"));
        std::fs::create_dir_all(home.join(".cache/huggingface")).unwrap();
        std::fs::write(home.join(".cache/huggingface/token"), "hf_file\n").unwrap();
        let none = |_: &str| None;
        assert_eq!(token(&none, Some(home)).as_deref(), Some("hf_file"));
        let set = |name: &str| (name == "HF_TOKEN").then(|| " hf_set ".to_string());
        assert_eq!(token(&set, Some(home)).as_deref(), Some("hf_set"));
        assert_eq!(token(&none, None), None);
    }

    #[test]
    fn a_revision_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let cache = HubCache::new(dir.path());
        for revision in ["../../x", "main/../..", "", "/etc/passwd"] {
            assert_eq!(cache.snapshot("a/b", revision), None, "{revision}");
        }
    }
}
