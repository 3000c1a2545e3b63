//! Settings: flag > MARTLET_* environment > configuration file > default, with the origin of each value.

mod serve;

pub use serve::ServeSettings;

use crate::size;
use crate::terminal::ColorChoice;
use martlet_hub::Store;
use martlet_session::{Accept, DeviceKind, DrafterChoice, Experts, Isa, KvScheme, Load, LookAhead, Sampling};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Every setting: key in the file (the environment variable is MARTLET_ and the key in capitals), what a missing value
/// means, and what it is.
pub const SETTINGS: [(&str, &str, &str); 50] = [
    (
        "model",
        "fledgling",
        "installed model, checkpoint folder, pack, .safetensors or .gguf file, or fledgling (built in)",
    ),
    ("models_dir", "martlet/models in the platform's data folder", "folder of the installed models"),
    ("device", "auto", "auto, reference or cpu"),
    ("load", "map", "weights of a pack: map uses its files where they lie, copy copies them into memory"),
    ("experts", "auto", "of a pack: resident in memory, stream from disk as they are chosen, or auto: as memory goes"),
    ("look_ahead", "auto", "read experts before they are chosen, which never changes a text: auto, off or always"),
    ("threads", "one for each physical core", "threads that compute"),
    ("isa", "the best that there is", "instructions of the cpu device, such as avx2; never changes a result"),
    ("context", "the model's own, as far as memory goes", "tokens of prompt and answer together"),
    (
        "prefill_chunk",
        "256; 2048 where experts are read from disk",
        "most prompt tokens computed in one step; never changes a result",
    ),
    ("memory", "most of what is free", "bytes for weights, keys, values and caches together, such as 12GiB"),
    ("disk_limit", "none", "experts are read from disk at most so fast, such as 1.5GB/s, as from a slower one"),
    ("kv", "f16 (f32 on the reference device)", "how keys and values are kept: f16, f32, or q8 (half of f16)"),
    ("accept", "same", "same: drafts never change a text; rejection: more drafts are right, and texts depend on them"),
    ("drafter", "auto", "who guesses next tokens, which never changes a text: auto, none, mtp or suffix"),
    (
        "prefix_cache",
        "true",
        "keep states, so that a prompt that begins like an earlier one is computed from where it differs",
    ),
    (
        "disk_cache",
        "0",
        "bytes of such states on disk, such as 20GiB; they hold conversations, so it is off (0) by default",
    ),
    ("cache_dir", "martlet/prefix in the platform's cache folder", "folder of the prefix cache on disk"),
    ("color", "auto", "auto, always or never"),
    ("quiet", "false", "print nothing but answers and errors"),
    (
        "update_check",
        "true",
        "ask once a day whether a newer version is out, on a terminal, in builds that know where; nothing is sent",
    ),
    ("think", "the template's choice", "true: think before the answer; false: do not"),
    ("system", "none", "system message of a chat"),
    ("max_tokens", "-1", "most tokens of an answer; negative: until its end or the context's"),
    ("temperature", "the checkpoint's", "0 is greedy; higher is more varied"),
    ("top_k", "the checkpoint's", "sample from so many most probable tokens; 0: from all"),
    ("top_p", "the checkpoint's", "sample from the most probable tokens that sum to this"),
    ("min_p", "the checkpoint's", "least probability of a token, as a share of the largest"),
    ("repetition_penalty", "the checkpoint's", "divides the logits of tokens that occurred; 1: off"),
    ("presence_penalty", "the checkpoint's", "subtracted once from the logits of answered tokens; 0: off"),
    ("frequency_penalty", "the checkpoint's", "subtracted for each time that a token was answered; 0: off"),
    ("seed", "a new one each time", "the same seed gives the same text"),
    ("host", "127.0.0.1", "server: the address to listen on; beyond loopback it needs api_key or no_auth"),
    ("port", "8080", "server: the port; 0: any free one"),
    ("api_key", "none", "server: keys, separated by commas, one of which a client must show"),
    ("no_auth", "false", "server: listen beyond loopback without keys"),
    ("allow_origin", "none", "server: web origins whose pages may use it, separated by commas"),
    ("allow_host", "none", "server: names besides localhost and addresses under which it may be called"),
    ("model_name", "the checkpoint's", "server: the model's name for clients"),
    ("alias", "none", "server: further names of the model, separated by commas"),
    ("any_model", "false", "server: answer whatever model a client asks for"),
    (
        "models",
        "installed",
        "server: installed: requests may name any installed model, one is in memory; one: its own alone",
    ),
    ("sequences", "4", "server: answers at a time; more wait"),
    ("queue", "256", "server: requests that may run and wait; more are refused with 429"),
    ("loop_guard", "thinking", "server: where an answer that repeats itself is ended: thinking, all or off"),
    ("body_limit", "32MiB", "server: largest body of a request"),
    ("resume", "0", "server: seconds for which a stream goes on without its reader"),
    ("drain", "30", "server: seconds for running requests when it stops"),
    ("trace", "none", "server: a folder for traces of answers; they hold what was said"),
    ("log_file", "none", "server: a file for the access log, besides standard error"),
];

/// All settings of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// None: the model inside the program.
    pub model: Option<String>,
    /// None: [`crate::paths::models_dir`].
    pub models_dir: Option<PathBuf>,
    pub device: DeviceKind,
    pub load: Load,
    pub experts: Experts,
    pub look_ahead: LookAhead,
    pub threads: Option<usize>,
    pub isa: Option<Isa>,
    pub context: Option<usize>,
    pub prefill_chunk: Option<usize>,
    pub memory: Option<u64>,
    /// Bytes a second.
    pub disk_limit: Option<u64>,
    pub kv: Option<KvScheme>,
    pub accept: Accept,
    pub drafter: DrafterChoice,
    pub prefix_cache: bool,
    /// Bytes of the prefix cache on disk; 0: there is none.
    pub disk_cache: u64,
    /// None: [`crate::paths::cache_dir`].
    pub cache_dir: Option<PathBuf>,
    pub color: ColorChoice,
    pub quiet: bool,
    /// Only builds that know where releases are ask: [`crate::news`].
    pub update_check: bool,
    pub think: Option<bool>,
    pub system: Option<String>,
    /// None: until the end of the answer or of the context.
    pub max_tokens: Option<usize>,
    pub sampling: Sampling,
    pub serve: ServeSettings,
    /// For `config show`, in the order of [`SETTINGS`].
    pub rows: Vec<Row>,
}

/// One setting, its value, and where it came from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub key: &'static str,
    pub value: String,
    #[serde(serialize_with = "as_text")]
    pub origin: Origin,
    pub meaning: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    Flag,
    Environment(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("flag"),
            Origin::Environment(name) => write!(f, "environment ({name})"),
            Origin::File(path) => write!(f, "file ({})", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

fn as_text<S: serde::Serializer>(origin: &Origin, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(origin)
}

/// A setting that can not be used.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    #[error("{}: {source}", path.display())]
    Syntax { path: PathBuf, source: toml::de::Error },
    #[error("{}: {message}", path.display())]
    Read { path: PathBuf, message: String },
    #[error("{}: unknown key \"{key}\"{}", path.display(), did_you_mean(nearest))]
    UnknownKey { path: PathBuf, key: String, nearest: Option<&'static str> },
    #[error("{}: {key} is {found}; a string, a number, true or false is expected", path.display())]
    Kind { path: PathBuf, key: String, found: &'static str },
    #[error("{key} = \"{value}\" (from {origin}): {message}")]
    Value { key: &'static str, value: String, origin: Origin, message: String },
}

fn did_you_mean(nearest: &Option<&str>) -> String {
    nearest
        .map_or_else(|| "; `martlet config show` lists all".to_string(), |name| format!("; the nearest is \"{name}\""))
}

/// Where values may come from.
pub struct Layers<'a> {
    /// (key, value) of flags that were given.
    pub flags: Vec<(&'static str, String)>,
    /// The environment.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// The configuration file, if there is one.
    pub file: Option<ConfigFile>,
}

/// A configuration file: values by key, as text.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigFile {
    path: PathBuf,
    values: Vec<(&'static str, String)>,
}

impl ConfigFile {
    /// Reads a file; `None` when it is missing and `must_exist` is not set.
    pub fn read(path: &Path, must_exist: bool) -> Result<Option<ConfigFile>, SettingsError> {
        match std::fs::read_to_string(path) {
            Ok(text) => ConfigFile::parse(path, &text).map(Some),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !must_exist => Ok(None),
            Err(e) => Err(SettingsError::Read { path: path.to_path_buf(), message: e.to_string() }),
        }
    }

    fn parse(path: &Path, text: &str) -> Result<ConfigFile, SettingsError> {
        let path = path.to_path_buf();
        let table: toml::Table = text.parse().map_err(|source| SettingsError::Syntax { path: path.clone(), source })?;
        let mut values = Vec::new();
        for (key, value) in table {
            let Some(known) = SETTINGS.iter().map(|s| s.0).find(|name| *name == key) else {
                let nearest = nearest(&key);
                return Err(SettingsError::UnknownKey { path, key, nearest });
            };
            let text = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(n) => n.to_string(),
                toml::Value::Float(x) => x.to_string(),
                toml::Value::Boolean(b) => b.to_string(),
                toml::Value::Datetime(_) => return Err(SettingsError::Kind { path, key, found: "a date" }),
                toml::Value::Array(_) => return Err(SettingsError::Kind { path, key, found: "a list" }),
                toml::Value::Table(_) => return Err(SettingsError::Kind { path, key, found: "a table" }),
            };
            values.push((known, text));
        }
        Ok(ConfigFile { path, values })
    }
}

/// The text of a configuration file in which the model is another one, and nothing else. Fails where that is not so.
pub fn with_model(text: &str, name: &str) -> anyhow::Result<String> {
    let old: toml::Table = text.parse()?;
    let line = format!("model = {}", toml::Value::from(name));
    let is_model = |l: &&str| l.split('=').next().is_some_and(|key| key.trim() == "model");
    let new = match text.lines().find(is_model) {
        Some(found) => text.replacen(found, &line, 1),
        None => format!("{line}\n{text}"),
    };
    let mut expected = old;
    expected.insert("model".into(), name.into());
    match new.parse::<toml::Table>() {
        Ok(found) if found == expected => Ok(new),
        _ => anyhow::bail!("its line is written in a way that can not be changed safely; please do so by hand"),
    }
}

/// The known key that looks most like `key`, if any does.
fn nearest(key: &str) -> Option<&'static str> {
    let likeness = |name: &str| strsim::jaro_winkler(name, key);
    let best = SETTINGS.iter().map(|s| s.0).max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    best.filter(|name| likeness(name) > 0.7)
}

impl Settings {
    /// Bytes a second that experts are read with from a disk that gives so many.
    pub fn disk_rate(&self, disk: f64) -> f64 {
        self.disk_limit.map_or(disk, |limit| disk.min(limit as f64))
    }

    /// The installed models; `None` where there is no home.
    pub fn store(&self) -> Option<Store> {
        self.models_dir.clone().or_else(crate::paths::models_dir).map(Store::new)
    }

    /// Where a model of this name is installed. A file or folder that is there goes before.
    pub fn installed(&self, name: &str) -> Option<PathBuf> {
        if Path::new(name).exists() { None } else { self.store()?.find(name) }
    }

    pub fn resolve(layers: &Layers<'_>) -> Result<Settings, SettingsError> {
        let mut r = Resolver { layers, rows: Vec::new() };
        let settings = Settings {
            model: r.pick("model", text)?,
            models_dir: r.pick("models_dir", text)?.map(PathBuf::from),
            device: r.pick("device", DeviceKind::from_str)?.unwrap_or_default(),
            load: r.pick("load", Load::from_str)?.unwrap_or_default(),
            experts: r.pick("experts", Experts::from_str)?.unwrap_or_default(),
            look_ahead: r.pick("look_ahead", LookAhead::from_str)?.unwrap_or_default(),
            threads: r.pick("threads", count)?,
            isa: r.pick("isa", |name| name.parse::<Isa>().map_err(|e| e.to_string()))?,
            context: r.pick("context", tokens)?,
            prefill_chunk: r.pick("prefill_chunk", count)?,
            memory: r.pick("memory", size::parse)?,
            disk_limit: r.pick("disk_limit", size::parse_speed)?,
            kv: r.pick("kv", kv)?,
            accept: r.pick("accept", Accept::from_str)?.unwrap_or_default(),
            drafter: r.pick("drafter", DrafterChoice::from_str)?.unwrap_or_default(),
            prefix_cache: r.pick("prefix_cache", flag)?.unwrap_or(true),
            disk_cache: r.pick("disk_cache", size_or_off)?.unwrap_or(0),
            cache_dir: r.pick("cache_dir", text)?.map(PathBuf::from),
            color: r.pick("color", ColorChoice::from_str)?.unwrap_or_default(),
            quiet: r.pick("quiet", flag)?.unwrap_or(false),
            update_check: r.pick("update_check", flag)?.unwrap_or(true),
            think: r.pick("think", flag)?,
            system: r.pick("system", text)?,
            max_tokens: r.pick("max_tokens", number::<i64>)?.and_then(|n| usize::try_from(n).ok()),
            sampling: Sampling {
                temperature: r.pick("temperature", number)?,
                top_k: r.pick("top_k", number)?,
                top_p: r.pick("top_p", number)?,
                min_p: r.pick("min_p", number)?,
                repetition_penalty: r.pick("repetition_penalty", number)?,
                presence_penalty: r.pick("presence_penalty", number)?,
                frequency_penalty: r.pick("frequency_penalty", number)?,
                seed: r.pick("seed", number)?,
            },
            serve: ServeSettings::resolve(&mut r)?,
            rows: Vec::new(),
        };
        Ok(Settings { rows: r.rows, ..settings })
    }
}

struct Resolver<'a> {
    layers: &'a Layers<'a>,
    rows: Vec<Row>,
}

impl Resolver<'_> {
    /// The value of a setting by the first layer that has one; `None`: by none.
    fn pick<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, SettingsError> {
        let &(_, default, meaning) = SETTINGS.iter().find(|s| s.0 == key).expect("all keys are in the table");
        let Some((value, origin)) = self.find(key) else {
            self.rows.push(Row { key, value: default.to_string(), origin: Origin::Default, meaning });
            return Ok(None);
        };
        match read(value.trim()) {
            Ok(typed) => {
                // Secrets are not shown.
                let value = if key == "api_key" { "(set)".to_string() } else { value };
                self.rows.push(Row { key, value, origin, meaning });
                Ok(Some(typed))
            }
            Err(message) => Err(SettingsError::Value { key, value, origin, message }),
        }
    }

    fn find(&self, key: &str) -> Option<(String, Origin)> {
        let in_list = |list: &[(&'static str, String)]| list.iter().find(|(k, _)| *k == key).map(|(_, v)| v.clone());
        if let Some(value) = in_list(&self.layers.flags) {
            return Some((value, Origin::Flag));
        }
        let name = format!("MARTLET_{}", key.to_uppercase());
        // An empty variable is how a shell unsets one for a single command.
        if let Some(value) = (self.layers.environment)(&name).filter(|v| !v.is_empty()) {
            return Some((value, Origin::Environment(name)));
        }
        let file = self.layers.file.as_ref()?;
        in_list(&file.values).map(|value| (value, Origin::File(file.path.clone())))
    }
}

fn text(value: &str) -> Result<String, String> {
    Ok(value.to_string())
}

fn flag(value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err("true or false is expected".to_string()),
    }
}

fn number<T: FromStr<Err: fmt::Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|e: T::Err| e.to_string())
}

fn count(value: &str) -> Result<usize, String> {
    match number(value)? {
        0 => Err("at least 1 is expected".to_string()),
        n => Ok(n),
    }
}

/// A number of tokens; `k` multiplies by 1024.
fn tokens(value: &str) -> Result<usize, String> {
    match value.strip_suffix(['k', 'K']) {
        Some(thousands) => count(thousands)?.checked_mul(1024).ok_or_else(|| "it is too large".to_string()),
        None => count(value),
    }
}

/// How keys and values are kept, by name.
pub const KV: [(&str, KvScheme); 3] = [("f16", KvScheme::F16), ("f32", KvScheme::F32), ("q8", KvScheme::Q8)];

fn kv(value: &str) -> Result<KvScheme, String> {
    let found = KV.iter().find(|(name, _)| *name == value).map(|(_, scheme)| *scheme);
    found.ok_or_else(|| "f16, f32 or q8 is expected".to_string())
}

/// A size; "off" is 0.
fn size_or_off(value: &str) -> Result<u64, String> {
    if value == "off" { Ok(0) } else { size::parse(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(flags: &[(&'static str, &str)], env: &[(&str, &str)], file: &str) -> Result<Settings, SettingsError> {
        let environment = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        let file = Some(ConfigFile::parse(Path::new("config.toml"), file)?);
        let flags = flags.iter().map(|(k, v)| (*k, v.to_string())).collect();
        Settings::resolve(&Layers { flags, environment: &environment, file })
    }

    fn origin(settings: &Settings, key: &str) -> String {
        settings.rows.iter().find(|r| r.key == key).unwrap().origin.to_string()
    }

    #[test]
    fn a_flag_goes_before_the_environment_before_the_file_before_the_default() {
        let file = "threads = 3\ntemperature = 0.25\nthink = false\nmodel = \"m\"";
        let all = resolve(&[("threads", "1")], &[("MARTLET_THREADS", "2"), ("MARTLET_MODEL", "")], file).unwrap();
        assert_eq!(all.threads, Some(1));
        assert_eq!(all.sampling.temperature, Some(0.25));
        assert_eq!(all.think, Some(false));
        assert_eq!(all.model.as_deref(), Some("m"), "an empty variable says nothing");
        assert_eq!(origin(&all, "threads"), "flag");
        assert_eq!(origin(&all, "temperature"), "file (config.toml)");
        assert_eq!(origin(&all, "seed"), "default");
        let env = resolve(&[], &[("MARTLET_THREADS", "2")], file).unwrap();
        assert_eq!(env.threads, Some(2));
        assert_eq!(origin(&env, "threads"), "environment (MARTLET_THREADS)");
    }

    #[test]
    fn every_setting_is_resolved_and_listed_once() {
        let rows = resolve(&[], &[], "").unwrap().rows;
        assert_eq!(rows.iter().map(|r| r.key).collect::<Vec<_>>(), SETTINGS.map(|s| s.0));
    }

    #[test]
    fn an_unknown_key_is_an_error_with_the_nearest_name() {
        let text = |file| resolve(&[], &[], file).unwrap_err().to_string();
        assert_eq!(text("treads = 2"), "config.toml: unknown key \"treads\"; the nearest is \"threads\"");
        assert_eq!(text("temp = 0.5"), "config.toml: unknown key \"temp\"; the nearest is \"temperature\"");
        assert!(text("zzz = 2").ends_with("`martlet config show` lists all"));
        assert!(text("threads = [2]").contains("threads is a list"));
        assert!(text("threads = ").starts_with("config.toml: "));
    }

    #[test]
    fn a_wrong_value_is_named_with_its_origin() {
        let error = resolve(&[], &[("MARTLET_DEVICE", "gpu")], "").unwrap_err().to_string();
        assert!(error.starts_with("device = \"gpu\" (from environment (MARTLET_DEVICE)): "), "{error}");
        assert!(error.contains("auto, reference, cpu"), "{error}");
        assert!(resolve(&[("threads", "0")], &[], "").unwrap_err().to_string().contains("at least 1"));
    }

    #[test]
    fn memory_caches_and_drafts() {
        let all = resolve(&[("memory", "12GiB"), ("kv", "q8")], &[("MARTLET_DRAFTER", "suffix")], "").unwrap();
        assert_eq!((all.memory, all.kv, all.drafter), (Some(12 << 30), Some(KvScheme::Q8), DrafterChoice::Suffix));
        assert_eq!((all.prefix_cache, all.disk_cache), (true, 0), "nothing said goes to disk unasked");
        let file = resolve(&[], &[], "prefix_cache = false\ndisk_cache = \"20GiB\"").unwrap();
        assert_eq!((file.prefix_cache, file.disk_cache), (false, 20 << 30));
        assert_eq!(resolve(&[("disk_cache", "off")], &[], "").unwrap().disk_cache, 0);
        let error = |key, value| resolve(&[(key, value)], &[], "").unwrap_err().to_string();
        assert_eq!(error("memory", "12"), "memory = \"12\" (from flag): the unit is missing: 12GiB? 12MiB?");
        assert!(error("kv", "q4").contains("f16, f32 or q8"));
        assert!(error("load", "lazy").contains("known are map, copy"));
        assert!(error("accept", "all").contains("same, rejection"));
        assert!(error("drafter", "oracle").contains("auto, none, mtp, suffix"));
    }

    #[test]
    fn the_model_of_a_file_is_changed_and_nothing_else() {
        let with = |text: &str| with_model(text, "a").map_err(|e| e.to_string());
        assert_eq!(with("").unwrap(), "model = \"a\"\n");
        assert_eq!(with("# mine\nmodel = 'b' # old\nport = 1\n").unwrap(), "# mine\nmodel = \"a\"\nport = 1\n");
        assert_eq!(with("port = 1").unwrap(), "model = \"a\"\nport = 1");
        assert!(with("system = \"\"\"\nmodel = 1\n\"\"\"").unwrap_err().contains("by hand"));
        assert!(with("model = ").is_err());
    }

    #[test]
    fn numbers_of_tokens() {
        let context = |text: &str| resolve(&[("context", text)], &[], "").unwrap().context;
        assert_eq!((context("4096"), context("48k")), (Some(4096), Some(49152)));
        let most = |text: &str| resolve(&[("max_tokens", text)], &[], "").unwrap().max_tokens;
        assert_eq!((most("-1"), most("0"), most("7")), (None, Some(0), Some(7)));
    }
}
