//! Models for a server that switches between them.

use crate::{fixtures, random};
use martlet_server::{Found, Library};
use martlet_session::{ModelSource, Options};
use martlet_weights::safetensors::to_bytes;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a test does when a model is about to be opened, and the one before it is gone.
type Hook = Box<dyn Fn() + Send>;

/// A library whose models are the folders of a temporary folder, and whose own model is fledgling.
pub struct Shelf {
    dir: tempfile::TempDir,
    options: Options,
    version: AtomicU64,
    before_opening: Mutex<Option<Hook>>,
}

impl std::fmt::Debug for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shelf").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Shelf {
    pub fn new(options: Options) -> Shelf {
        let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        Shelf { dir, options, version: AtomicU64::new(1), before_opening: Mutex::default() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A model of random weights that speaks fledgling's tokens.
    pub fn add(&self, name: &str, seed: u64) -> PathBuf {
        let (from, to) = (fixtures::fledgling(), self.path(name));
        std::fs::create_dir(&to).unwrap_or_else(|e| panic!("{e}"));
        for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"] {
            std::fs::copy(from.join(file), to.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        }
        let config = small_config(&from);
        let weights = to_bytes("pt", &random::tensors(&config, seed));
        std::fs::write(to.join("config.json"), config.to_string()).unwrap_or_else(|e| panic!("{e}"));
        std::fs::write(to.join("model.safetensors"), weights).unwrap_or_else(|e| panic!("{e}"));
        to
    }

    pub fn remove(&self, name: &str) {
        std::fs::remove_dir_all(self.path(name)).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Lets all names mean other files than before.
    pub fn change(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Has something done whenever a model is opened.
    pub fn before_opening(&self, hook: impl Fn() + Send + 'static) {
        *self.before_opening.lock().unwrap_or_else(|e| e.into_inner()) = Some(Box::new(hook));
    }
}

/// A dense model with fledgling's vocabulary.
fn small_config(fledgling: &Path) -> serde_json::Value {
    let text = std::fs::read(fledgling.join("config.json")).unwrap_or_else(|e| panic!("{e}"));
    let theirs: serde_json::Value = serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{e}"));
    let vocabulary = &theirs.get("text_config").unwrap_or(&theirs)["vocab_size"];
    let mut config = random::dense_config();
    config["text_config"]["vocab_size"] = vocabulary.clone();
    config
}

impl Library for Shelf {
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    fn find(&self, name: &str) -> Option<Found> {
        let path = self.path(name);
        let version = self.version.load(Ordering::Relaxed);
        path.is_dir().then_some(Found { source: ModelSource::Path(path), version })
    }

    fn own(&self) -> ModelSource {
        ModelSource::Path(fixtures::fledgling())
    }

    fn options(&self) -> &Options {
        if let Some(hook) = &*self.before_opening.lock().unwrap_or_else(|e| e.into_inner()) {
            hook();
        }
        &self.options
    }
}
