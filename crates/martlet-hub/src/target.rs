//! What a person may name: a short name, a repository, a folder.

use crate::catalogue::{self, Model};
use crate::error::HubError;
use std::path::{Path, PathBuf};

/// What to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Repository {
        /// "OWNER/NAME".
        repository: String,
        /// Branch, tag or commit; "main" unless it was named.
        revision: String,
        /// Where it is in the table.
        model: Option<&'static Model>,
    },
    /// A checkpoint that is here.
    Local(PathBuf),
}

/// The branch that is meant when none is named.
const MAIN: &str = "main";

impl Target {
    /// Reads `NAME`, `OWNER/REPOSITORY`, either with `@REVISION`, or a path. Something that is there goes before a
    /// repository of the same name, but not before a short name.
    pub fn parse(text: &str) -> Result<Target, HubError> {
        let wrong = |what: String| HubError::Name { text: text.to_string(), what };
        let (name, revision) = text.rsplit_once('@').unwrap_or((text, MAIN));
        if let Some(model) = catalogue::find(name) {
            return Target::repository(text, model.repository, revision, Some(model));
        }
        let path = Path::new(text);
        if path.exists() {
            return Ok(Target::Local(path.to_path_buf()));
        }
        if path.is_absolute() || text.starts_with('.') {
            return Err(wrong("is not there".into()));
        }
        if valid_repository(name) {
            return Target::repository(text, name, revision, catalogue::of_repository(name));
        }
        let names: Vec<&str> = catalogue::MODELS.iter().map(|m| m.name).collect();
        Err(wrong(format!(
            "is no model that martlet knows ({}), no repository (OWNER/NAME), and no folder",
            names.join(", ")
        )))
    }

    fn repository(
        text: &str,
        repository: &str,
        revision: &str,
        model: Option<&'static Model>,
    ) -> Result<Target, HubError> {
        let harmless = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        if revision.is_empty() || !revision.chars().all(harmless) {
            let what = format!("has a revision, \"{revision}\", that is none");
            return Err(HubError::Name { text: text.to_string(), what });
        }
        Ok(Target::Repository { repository: repository.to_string(), revision: revision.to_string(), model })
    }

    /// The name that it is installed under, unless another one is given.
    pub fn short_name(&self) -> String {
        let last = |text: &str| text.rsplit(['/', '\\']).next().unwrap_or_default().to_string();
        let name = match self {
            Target::Repository { model: Some(model), .. } => return model.name.to_string(),
            Target::Repository { repository, .. } => last(repository),
            Target::Local(path) => {
                let path = path.canonicalize().unwrap_or_else(|_| path.clone());
                let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                let known = [".gguf", ".safetensors", ".martlet"];
                known.iter().find_map(|e| name.strip_suffix(e)).unwrap_or(&name).to_string()
            }
        };
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c.to_ascii_lowercase() } else { '-' };
        name.chars().map(plain).collect::<String>().trim_start_matches(['.', '-']).to_string()
    }
}

/// Whether a text is "OWNER/NAME", of the characters that hubs allow.
pub fn valid_repository(text: &str) -> bool {
    let piece = |p: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        (1..=96).contains(&p.len()) && p.chars().all(plain) && !p.starts_with(['.', '-']) && !p.contains("..")
    };
    text.split_once('/').is_some_and(|(owner, name)| piece(owner) && piece(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_repositories_and_paths() {
        let repository = |text: &str| match Target::parse(text).unwrap() {
            Target::Repository { repository, revision, model } => (repository, revision, model.map(|m| m.name)),
            local => panic!("{local:?}"),
        };
        let known = &catalogue::MODELS[0];
        assert_eq!(repository(known.name), (known.repository.into(), "main".into(), Some(known.name)));
        assert_eq!(repository(known.repository).2, Some(known.name));
        assert_eq!(repository("a/b@v1.0"), ("a/b".into(), "v1.0".into(), None));
        assert_eq!(repository("a/b@refs/pr/1").1, "refs/pr/1");
        for text in ["nonsense", "a/b/c", "../x", "/none", "a/..", "-a/b", "a/b@", "a/b@x y", ""] {
            assert!(Target::parse(text).is_err(), "{text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("Mein Modell \u{e9}\u{3000}");
        std::fs::create_dir(&folder).unwrap();
        let local = Target::parse(folder.to_str().unwrap()).unwrap();
        assert_eq!(local, Target::Local(folder));
        assert_eq!(local.short_name(), "mein-modell---");
        assert_eq!(Target::parse("A-b/Qwen3.5_X").unwrap().short_name(), "qwen3.5_x");
    }
}
