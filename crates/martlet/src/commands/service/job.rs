//! What a service runs: `martlet serve`, as it would run here with these flags and this environment.

use crate::embedded;
use crate::exit::Usage;
use crate::settings::{Origin, Settings};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Variables, besides those of settings, that say where files lie.
const PLACES: [&str; 3] = ["MARTLET_CONFIG", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"];

/// A command whose paths are absolute. No part of it holds control characters: the lines of a unit could not.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub executable: String,
    /// `serve` and its flags.
    pub args: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// The value of MARTLET_API_KEY. It is for nobody's eyes, and so neither in `args` nor in `environment`.
    pub keys: Option<String>,
    /// Where `serve` writes its log, besides standard error.
    pub log_file: Option<String>,
    pub address: SocketAddr,
    /// For requests to end when it stops.
    pub drain: Duration,
}

/// Where a command is given.
pub struct Surroundings<'a> {
    pub executable: PathBuf,
    /// Relative paths begin here.
    pub folder: PathBuf,
    pub environment: &'a dyn Fn(&str) -> Option<String>,
}

impl Job {
    /// Flags stay flags, and variables stay variables. What the configuration file says is read at each start; only
    /// its paths are settled now.
    pub fn new(settings: &Settings, script: Option<&Path>, around: &Surroundings<'_>) -> Result<Job, Usage> {
        let serve = &settings.serve;
        let mut job = Job {
            executable: existing("martlet", &around.executable.to_string_lossy(), around)?,
            args: vec!["serve".to_string()],
            environment: Vec::new(),
            keys: None,
            log_file: None,
            address: SocketAddr::new(serve.host, serve.port),
            drain: serve.drain,
        };
        for row in &settings.rows {
            if row.key == "api_key" {
                let ours = matches!(row.origin, Origin::Flag | Origin::Environment(_));
                job.keys = ours.then(|| plain("api_key", &serve.api_keys.join(","))).transpose()?;
            } else {
                let value = row.value.trim();
                let installed = (row.key == "model").then(|| settings.installed(value)).flatten();
                job.take(row.key, value, &row.origin, installed, around)?;
            }
        }
        if let Some(path) = script {
            job.args.push(format!("--script={}", existing("script", &path.to_string_lossy(), around)?));
        }
        for name in PLACES {
            if let Some(path) = (around.environment)(name).filter(|path| !path.is_empty()) {
                job.environment.push((name.to_string(), absolute(name, &path, around)?));
            }
        }
        Ok(job)
    }

    fn take(
        &mut self,
        key: &str,
        value: &str,
        origin: &Origin,
        installed: Option<PathBuf>,
        around: &Surroundings<'_>,
    ) -> Result<(), Usage> {
        let name = format!("--{}", key.replace('_', "-"));
        match (key, origin) {
            (_, Origin::Default) => {}
            ("model", _) if value != embedded::NAME => {
                // One that is installed goes by its path: the service may look elsewhere for names.
                let installed = installed.map(|path| path.to_string_lossy().into_owned());
                let path = existing(key, installed.as_deref().unwrap_or(value), around)?;
                self.args.push(format!("{name}={path}"));
            }
            ("models_dir", _) => {
                self.environment.push(("MARTLET_MODELS_DIR".to_string(), absolute(key, value, around)?));
            }
            ("trace", _) => self.args.push(format!("{name}={}", absolute(key, value, around)?)),
            ("log_file", _) => {
                let path = absolute(key, value, around)?;
                if let Some(folder) = Path::new(&path).parent() {
                    existing("the folder of log_file", &folder.to_string_lossy(), around)?;
                }
                self.log_to(path);
            }
            ("cache_dir", _) => {
                self.environment.push(("MARTLET_CACHE_DIR".to_string(), absolute(key, value, around)?));
            }
            ("quiet" | "no_auth" | "any_model", Origin::Flag) => self.args.push(name),
            (_, Origin::Flag) => self.args.push(format!("{name}={}", plain(key, value)?)),
            (_, Origin::Environment(name)) => self.environment.push((name.clone(), plain(name, value)?)),
            (_, Origin::File(_)) => {}
        }
        Ok(())
    }

    pub fn log_to(&mut self, path: String) {
        self.args.push(format!("--log-file={path}"));
        self.log_file = Some(path);
    }
}

fn plain(what: &str, value: &str) -> Result<String, Usage> {
    match value.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER) {
        true => {
            Err(Usage(format!("{what} is {value:?}: a service can not hold line breaks and other such characters")))
        }
        false => Ok(value.to_string()),
    }
}

fn absolute(what: &str, path: &str, around: &Surroundings<'_>) -> Result<String, Usage> {
    let path =
        std::path::absolute(around.folder.join(path)).map_err(|e| Usage(format!("{what} is \"{path}\": {e}")))?;
    plain(what, &path.to_string_lossy())
}

/// A service that can not find its files would only be started again and again.
fn existing(what: &str, path: &str, around: &Surroundings<'_>) -> Result<String, Usage> {
    let path = absolute(what, path, around)?;
    match Path::new(&path).exists() {
        true => Ok(path),
        false => Err(Usage(format!("{what} is \"{path}\", and there is no such thing"))),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::settings::{ConfigFile, Layers};

    /// A command that is hard to quote.
    pub fn example() -> Job {
        Job {
            executable: "/opt/my apps/martlet".into(),
            args: vec!["serve".into(), r#"--model=/m/100% "$x"\n <&>'é"#.into(), "--port=9000".into()],
            environment: vec![("MARTLET_CACHE_DIR".into(), r#"/c/a $b %c "d" \e"#.into())],
            keys: None,
            log_file: None,
            address: "127.0.0.1:9000".parse().unwrap(),
            drain: Duration::from_secs(30),
        }
    }

    fn job(flags: &[(&'static str, &str)], env: &[(&str, &str)], file: &str, folder: &Path) -> Result<Job, Usage> {
        let environment = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        let config = folder.join("config.toml");
        std::fs::write(&config, file).unwrap();
        let flags = flags.iter().map(|(k, v)| (*k, v.to_string())).collect();
        let file = ConfigFile::read(&config, true).unwrap();
        let settings = Settings::resolve(&Layers { flags, environment: &environment, file }).unwrap();
        let around = Surroundings { executable: "/bin/sh".into(), folder: folder.into(), environment: &environment };
        Job::new(&settings, None, &around)
    }

    #[test]
    fn flags_variables_and_files_stay_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
        std::fs::create_dir(dir.path().join("model")).unwrap();
        let flags = [("port", "9000"), ("no_auth", "true"), ("trace", "./t"), ("log_file", "log"), ("api_key", "a,b")];
        let env = [("MARTLET_SEQUENCES", "2"), ("MARTLET_CACHE_DIR", "c"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        let job = job(&flags, &env, "model = \"model\"\nthreads = 3\ndrain = 5", dir.path()).unwrap();
        let args = ["serve".to_string(), format!("--model={}", at("model")), "--port=9000".into(), "--no-auth".into()];
        let paths = [format!("--trace={}", at("t")), format!("--log-file={}", at("log"))];
        assert_eq!(job.args, [args.as_slice(), &paths].concat());
        let env = [("MARTLET_CACHE_DIR", at("c").as_str()), ("MARTLET_SEQUENCES", "2"), ("XDG_CACHE_HOME", "/x")]
            .map(|(n, v)| (n.to_string(), v.to_string()));
        assert_eq!(job.environment, env);
        assert_eq!((job.keys, job.log_file), (Some("a,b".into()), Some(at("log"))));
        assert_eq!((job.address.port(), job.drain.as_secs()), (9000, 5));
    }

    #[test]
    fn keys_of_the_file_stay_there() {
        let dir = tempfile::tempdir().unwrap();
        let found = job(&[], &[], "api_key = \"k\"", dir.path()).unwrap();
        assert_eq!((found.keys, found.args.len()), (None, 1));
        let found = job(&[], &[("MARTLET_API_KEY", "k")], "", dir.path()).unwrap();
        assert_eq!((found.keys, found.environment), (Some("k".into()), Vec::new()));
        let fledgling = job(&[("model", "fledgling")], &[], "", dir.path()).unwrap();
        assert_eq!(fledgling.args, ["serve", "--model=fledgling"]);
    }

    #[test]
    fn what_would_never_start_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |flags: &[(&'static str, &str)], word: &str| {
            let error = job(flags, &[], "", dir.path()).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refused(&[("model", "nowhere")], "nowhere\", and there is no such thing");
        refused(&[("log_file", "nowhere/log")], "the folder of log_file");
        refused(&[("alias", "a\nExecStart=b")], r#"alias is "a\nExecStart=b""#);
        refused(&[("api_key", "a\u{7}")], "api_key");
        refused(&[("trace", "a\u{fffd}")], "trace");
    }
}
