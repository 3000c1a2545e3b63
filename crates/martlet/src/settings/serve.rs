//! Settings of the server.

use super::{Resolver, SettingsError, count, flag, number, size_or_off, text};
use martlet_session::LoopGuard;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeSettings {
    pub host: IpAddr,
    pub port: u16,
    pub api_keys: Vec<String>,
    pub no_auth: bool,
    pub allow_origins: Vec<String>,
    pub allow_hosts: Vec<String>,
    pub model_name: Option<String>,
    pub aliases: Vec<String>,
    pub any_model: bool,
    /// Whether requests may name any installed model.
    pub installed_models: bool,
    pub sequences: usize,
    pub queue: usize,
    pub loop_guard: LoopGuard,
    pub body_limit: u64,
    pub resume: Duration,
    pub drain: Duration,
    pub trace: Option<PathBuf>,
    pub log_file: Option<PathBuf>,
}

impl ServeSettings {
    pub(super) fn resolve(r: &mut Resolver<'_>) -> Result<ServeSettings, SettingsError> {
        Ok(ServeSettings {
            host: r.pick("host", host)?.unwrap_or(IpAddr::from([127, 0, 0, 1])),
            port: r.pick("port", number)?.unwrap_or(8080),
            api_keys: r.pick("api_key", words)?.unwrap_or_default(),
            no_auth: r.pick("no_auth", flag)?.unwrap_or(false),
            allow_origins: r.pick("allow_origin", words)?.unwrap_or_default(),
            allow_hosts: r.pick("allow_host", words)?.unwrap_or_default(),
            model_name: r.pick("model_name", text)?,
            aliases: r.pick("alias", words)?.unwrap_or_default(),
            any_model: r.pick("any_model", flag)?.unwrap_or(false),
            installed_models: r.pick("models", installed_models)?.unwrap_or(true),
            sequences: r.pick("sequences", count)?.unwrap_or(4),
            queue: r.pick("queue", count)?.unwrap_or(256),
            loop_guard: r.pick("loop_guard", loop_guard)?.unwrap_or_default(),
            body_limit: r.pick("body_limit", size_or_off)?.unwrap_or(32 << 20),
            resume: r.pick("resume", seconds)?.unwrap_or(Duration::ZERO),
            drain: r.pick("drain", seconds)?.unwrap_or(Duration::from_secs(30)),
            trace: r.pick("trace", text)?.map(PathBuf::from),
            log_file: r.pick("log_file", text)?.map(PathBuf::from),
        })
    }
}

/// "localhost" is the address that it always means.
fn host(value: &str) -> Result<IpAddr, String> {
    match value {
        "localhost" => Ok(IpAddr::from([127, 0, 0, 1])),
        _ => value.parse().map_err(|_| "an IP address is expected, such as 127.0.0.1 or 0.0.0.0".to_string()),
    }
}

/// Whether other models than the server's own may be had.
fn installed_models(value: &str) -> Result<bool, String> {
    match value {
        "installed" => Ok(true),
        "one" => Ok(false),
        _ => Err("installed or one is expected".to_string()),
    }
}

fn loop_guard(value: &str) -> Result<LoopGuard, String> {
    match value {
        "thinking" => Ok(LoopGuard { thinking: true, answer: false }),
        "all" => Ok(LoopGuard { thinking: true, answer: true }),
        "off" => Ok(LoopGuard { thinking: false, answer: false }),
        _ => Err("thinking, all or off is expected".to_string()),
    }
}

fn words(value: &str) -> Result<Vec<String>, String> {
    Ok(value.split(',').map(str::trim).filter(|w| !w.is_empty()).map(str::to_string).collect())
}

fn seconds(value: &str) -> Result<Duration, String> {
    Ok(Duration::from_secs(number(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Layers, Settings};

    fn resolve(flags: &[(&'static str, &str)]) -> Result<Settings, SettingsError> {
        let flags = flags.iter().map(|(k, v)| (*k, v.to_string())).collect();
        Settings::resolve(&Layers { flags, environment: &|_| None, file: None })
    }

    #[test]
    fn loopback_is_the_default_and_keys_are_not_shown() {
        assert!(resolve(&[]).unwrap().serve.host.is_loopback());
        let settings = resolve(&[("host", "0.0.0.0"), ("api_key", "a, b"), ("alias", "x,,y")]).unwrap();
        assert!(settings.serve.host.is_unspecified());
        assert_eq!((settings.serve.api_keys.len(), settings.serve.aliases.len()), (2, 2));
        assert_eq!(settings.rows.iter().find(|r| r.key == "api_key").unwrap().value, "(set)");
        assert!(resolve(&[("host", "everywhere")]).unwrap_err().to_string().contains("IP address"));
        assert!(resolve(&[("queue", "0")]).is_err());
    }

    #[test]
    fn other_models_can_be_refused() {
        let installed = |value| resolve(&[("models", value)]).map(|s| s.serve.installed_models);
        assert!(resolve(&[]).unwrap().serve.installed_models && installed("installed").unwrap());
        assert!(!installed("one").unwrap());
        assert!(installed("all").unwrap_err().to_string().ends_with("installed or one is expected"));
    }

    #[test]
    fn loops_are_looked_for_where_it_is_said() {
        let guard = |value| resolve(&[("loop_guard", value)]).map(|s| s.serve.loop_guard);
        assert_eq!(resolve(&[]).unwrap().serve.loop_guard, LoopGuard::default());
        assert_eq!(guard("all").unwrap(), LoopGuard { thinking: true, answer: true });
        assert_eq!(guard("off").unwrap(), LoopGuard { thinking: false, answer: false });
        assert!(guard("on").unwrap_err().to_string().ends_with("thinking, all or off is expected"));
    }
}
