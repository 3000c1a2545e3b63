//! An agent of launchd. What it is, is tested by its text alone: nobody ran it on macOS yet.

use super::State;
use super::job::Job;
use std::fmt::Write as _;
use std::path::Path;

pub const LABEL: &str = "local.martlet";

const ARGUMENT: &str = "    <string>";
const LOG_FILE: &str = "--log-file=";

/// The agent's property list. It holds the keys, so it is for its owner's eyes; `errors` gets what is no access log.
pub fn plist(job: &Job, errors: &Path) -> String {
    let mut arguments = String::new();
    // The access log goes to its file, which is rotated; standard error would grow for ever.
    for word in [&job.executable].into_iter().chain(&job.args).map(String::as_str).chain(["--quiet"]) {
        let _ = writeln!(arguments, "{ARGUMENT}{}</string>", escaped(word));
    }
    let mut environment = String::new();
    let keys = job.keys.iter().map(|keys| ("MARTLET_API_KEY", keys));
    for (name, value) in job.environment.iter().map(|(name, value)| (name.as_str(), value)).chain(keys) {
        let _ = writeln!(environment, "    <key>{name}</key>\n    <string>{}</string>", escaped(value));
    }
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- {} -->
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>{LABEL}</string>
  <key>ProgramArguments</key>
  <array>
{arguments}  </array>
  <key>EnvironmentVariables</key>
  <dict>
{environment}  </dict>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>ThrottleInterval</key>
  <integer>10</integer>
  <key>ExitTimeOut</key>
  <integer>{}</integer>
  <key>ProcessType</key>
  <string>Interactive</string>
  <key>Umask</key>
  <integer>63</integer>
  <key>StandardErrorPath</key>
  <string>{}</string>
</dict>
</plist>
"#,
        super::MARK,
        job.drain.as_secs() + 15,
        escaped(&errors.to_string_lossy()),
    )
}

/// The log file of a property list.
pub fn log_file(plist: &str) -> Option<String> {
    let argument = |line: &str| Some(line.strip_prefix(ARGUMENT)?.strip_prefix(LOG_FILE)?.to_string());
    let found = plist.lines().find_map(argument)?;
    let text = found.strip_suffix("</string>")?;
    Some(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The commands that start what was just written.
pub fn start(plist: &str, again: bool) -> Vec<Vec<String>> {
    let load = launchctl(&["load", "-w", plist]);
    if again { vec![launchctl(&["unload", plist]), load] } else { vec![load] }
}

/// The command that ends it.
pub fn stop(plist: &str) -> Vec<String> {
    launchctl(&["unload", "-w", plist])
}

pub fn show() -> Vec<String> {
    launchctl(&["list", LABEL])
}

fn launchctl(words: &[&str]) -> Vec<String> {
    ["launchctl"].iter().chain(words).map(ToString::to_string).collect()
}

/// Reads what [`show`] prints.
pub fn state(shown: &str) -> State {
    let get = |name: &str| {
        let line = shown.lines().find_map(|line| line.trim().strip_prefix(name));
        line.map(|value| value.trim_matches([' ', '=', ';']))
    };
    let pid = get("\"PID\"").and_then(|pid| pid.parse().ok());
    let status = get("\"LastExitStatus\"").filter(|status| *status != "0");
    State {
        running: pid.is_some(),
        state: if pid.is_some() { "running" } else { "loaded" }.to_string(),
        since: None,
        enabled: None,
        pid,
        restarts: None,
        failure: status.map(|status| format!("last exit status {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::example;
    use super::*;

    #[test]
    fn an_agent_says_all() {
        let mut job = example();
        job.log_to("/l/a & b.log".into());
        job.keys = Some("k<1>".into());
        let text = plist(&job, Path::new("/l/errors"));
        let expected = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- Written by `martlet service install`, which writes over it. -->
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>local.martlet</string>
  <key>ProgramArguments</key>
  <array>
    <string>/opt/my apps/martlet</string>
    <string>serve</string>
    <string>--model=/m/100% "$x"\n &lt;&amp;&gt;'é</string>
    <string>--port=9000</string>
    <string>--log-file=/l/a &amp; b.log</string>
    <string>--quiet</string>
  </array>
  <key>EnvironmentVariables</key>
  <dict>
    <key>MARTLET_CACHE_DIR</key>
    <string>/c/a $b %c "d" \e</string>
    <key>MARTLET_API_KEY</key>
    <string>k&lt;1&gt;</string>
  </dict>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>ThrottleInterval</key>
  <integer>10</integer>
  <key>ExitTimeOut</key>
  <integer>45</integer>
  <key>ProcessType</key>
  <string>Interactive</string>
  <key>Umask</key>
  <integer>63</integer>
  <key>StandardErrorPath</key>
  <string>/l/errors</string>
</dict>
</plist>
"#;
        assert_eq!(text, expected);
        assert_eq!(log_file(&text).as_deref(), Some("/l/a & b.log"));
        assert_eq!(log_file(&plist(&example(), Path::new("/l"))), None);
    }

    #[test]
    fn what_launchd_lists_is_read() {
        let running = state("{\n\t\"Label\" = \"local.martlet\";\n\t\"LastExitStatus\" = 0;\n\t\"PID\" = 4711;\n};\n");
        assert_eq!((running.running, running.pid, running.failure), (true, Some(4711), None));
        let ended = state("{\n\t\"LastExitStatus\" = 768;\n};\n");
        assert_eq!((ended.running, ended.failure.as_deref()), (false, Some("last exit status 768")));
    }
}
