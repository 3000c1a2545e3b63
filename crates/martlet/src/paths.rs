//! Where files of a person lie.

use etcetera::BaseStrategy;
use std::path::PathBuf;

/// The configuration file, and whether MARTLET_CONFIG names it (then it must exist). `None` where there is no home.
pub fn config_file(environment: &dyn Fn(&str) -> Option<String>) -> Option<(PathBuf, bool)> {
    if let Some(path) = environment("MARTLET_CONFIG").filter(|p| !p.is_empty()) {
        return Some((path.into(), true));
    }
    let base = etcetera::choose_base_strategy().ok()?;
    Some((base.config_dir().join("martlet").join("config.toml"), false))
}

/// The prefix cache on disk, unless a setting names another folder; `None` where there is no home.
pub fn cache_dir() -> Option<PathBuf> {
    let base = etcetera::choose_base_strategy().ok()?;
    Some(base.cache_dir().join("martlet").join("prefix"))
}

/// What is known of newer versions; `None` where there is no home.
pub fn news_file() -> Option<PathBuf> {
    let base = etcetera::choose_base_strategy().ok()?;
    Some(base.cache_dir().join("martlet").join("news.json"))
}

/// Installed models, unless a setting names another folder; `None` where there is no home.
pub fn models_dir() -> Option<PathBuf> {
    let base = etcetera::choose_base_strategy().ok()?;
    Some(base.data_dir().join("martlet").join("models"))
}

/// Where the line editor keeps what was typed; `None` where there is no home.
pub fn history_file() -> Option<PathBuf> {
    let base = etcetera::choose_base_strategy().ok()?;
    Some(base.data_dir().join("martlet").join("history.txt"))
}

/// Where units of systemd and files beside them lie: the folder that `XDG_CONFIG_HOME` names, or ~/.config.
pub fn config_home() -> Option<PathBuf> {
    Some(etcetera::choose_base_strategy().ok()?.config_dir())
}

/// `None` where there is none.
pub fn home() -> Option<PathBuf> {
    etcetera::home_dir().ok()
}
