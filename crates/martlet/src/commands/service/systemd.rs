//! A unit of systemd's user manager.

use super::State;
use super::job::Job;
use std::fmt::Write as _;
use std::path::Path;

pub const UNIT: &str = "martlet.service";

/// The line of a unit that says where the log file is; systemd passes over sections that begin with X-.
const LOG_FILE: &str = "LogFile=";

/// Hardening that a user's manager can give by itself: what needs a mount namespace (ProtectSystem and its like) fails
/// where users may make none.
const HARDENING: &str = "\
UMask=0077
NoNewPrivileges=true
LockPersonality=true
MemoryDenyWriteExecute=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
SystemCallArchitectures=native
";

/// The unit; `keys` is the file of [`keys`], if there are any.
pub fn unit(job: &Job, keys: Option<&Path>) -> String {
    // `$` begins a variable in arguments, but not in the program's path.
    let args = job.args.iter().map(|arg| word(&arg.replace('$', "$$")));
    let command = [word(&job.executable)].into_iter().chain(args).collect::<Vec<_>>().join(" ");
    let mut environment = String::new();
    for (name, value) in &job.environment {
        let _ = writeln!(environment, "Environment={}", word(&format!("{name}={value}")));
    }
    if let Some(path) = keys {
        let _ = writeln!(environment, "EnvironmentFile={}", pattern(&path.to_string_lossy()));
    }
    let log = job.log_file.as_ref().map_or(String::new(), |path| format!("\n[X-martlet]\n{LOG_FILE}{path}\n"));
    format!(
        "# {}\n\
         [Unit]\n\
         Description=martlet, a server of language models, on {}\n\
         # Ten starts within ten minutes are enough.\n\
         StartLimitIntervalSec=600\n\
         StartLimitBurst=10\n\
         \n\
         [Service]\n\
         Type=exec\n\
         ExecStart={command}\n\
         {environment}\
         Restart=on-failure\n\
         RestartSec=5\n\
         # Wrong settings, or a model that can not be opened.\n\
         RestartPreventExitStatus=2 3\n\
         # Running requests may end first.\n\
         TimeoutStopSec={}\n\
         LimitNOFILE=4096\n\
         {HARDENING}\
         \n\
         [Install]\n\
         WantedBy=default.target\n\
         {log}",
        super::MARK,
        job.address,
        job.drain.as_secs() + 15,
    )
}

/// The file of variables that only its owner can read.
pub fn keys(keys: &str) -> String {
    let mut value = keys.to_string();
    ['\\', '"', '`', '$'].into_iter().for_each(|c| value = value.replace(c, &format!("\\{c}")));
    format!("# {}\nMARTLET_API_KEY=\"{value}\"\n", super::MARK)
}

/// The log file of a unit.
pub fn log_file(unit: &str) -> Option<String> {
    unit.lines().find_map(|line| line.strip_prefix(LOG_FILE)).map(str::to_string)
}

/// One word of a line: `%` begins specifiers everywhere, and quotes, backslashes and blanks are what they are in C.
fn word(text: &str) -> String {
    let text = text.replace('%', "%%");
    let bare = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%$".contains(c);
    match text.chars().all(bare) {
        true => text,
        false => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

/// A path that is not quoted, and read as a pattern of file names.
fn pattern(path: &str) -> String {
    let mut path = path.replace('%', "%%");
    ['\\', '*', '?', '['].into_iter().for_each(|c| path = path.replace(c, &format!("\\{c}")));
    path
}

/// The commands that start what was just written.
pub fn start(again: bool) -> Vec<Vec<String>> {
    let steps: &[&[&str]] = match again {
        false => &[&["daemon-reload"], &["enable", "--now", UNIT]],
        // What runs is the former unit.
        true => &[&["daemon-reload"], &["enable", UNIT], &["restart", UNIT]],
    };
    steps.iter().map(|step| systemctl(step)).collect()
}

/// The command that ends it.
pub fn stop() -> Vec<String> {
    systemctl(&["disable", "--now", UNIT])
}

/// The command after the unit is gone.
pub fn forget() -> Vec<String> {
    systemctl(&["daemon-reload"])
}

pub fn show() -> Vec<String> {
    let properties =
        "LoadState,ActiveState,SubState,StateChangeTimestamp,UnitFileState,MainPID,NRestarts,Result,ExecMainStatus";
    systemctl(&["show", UNIT, &format!("--property={properties}")])
}

/// The command that prints the journal.
pub fn journal(lines: u32, follow: bool) -> Vec<String> {
    let unit = format!("--user-unit={UNIT}");
    let lines = format!("--lines={lines}");
    let words = ["journalctl", "--no-pager", &unit, &lines].into_iter().chain(follow.then_some("--follow"));
    words.map(str::to_string).collect()
}

fn systemctl(words: &[&str]) -> Vec<String> {
    ["systemctl", "--user"].iter().chain(words).map(ToString::to_string).collect()
}

/// Reads what [`show`] prints.
pub fn state(shown: &str) -> State {
    let get = |name: &str| {
        let value = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.filter(|value| !value.is_empty())
    };
    let (active, sub) = (get("ActiveState").unwrap_or("unknown"), get("SubState").unwrap_or("unknown"));
    let failed = get("Result").filter(|result| *result != "success");
    let status = get("ExecMainStatus").unwrap_or("0");
    State {
        running: active == "active" && sub == "running",
        state: match get("LoadState") {
            Some("loaded") | None => format!("{active} ({sub})"),
            Some(other) => format!("{other}: `systemctl --user daemon-reload` reads the unit again"),
        },
        since: get("StateChangeTimestamp").map(str::to_string),
        enabled: get("UnitFileState").map(|state| state == "enabled"),
        pid: get("MainPID").and_then(|pid| pid.parse().ok()).filter(|pid| *pid != 0),
        restarts: get("NRestarts").and_then(|n| n.parse().ok()),
        failure: failed.map(|result| format!("{result}, exit status {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::example;
    use super::*;

    #[test]
    fn a_unit_says_all() {
        let text = unit(&example(), None);
        let expected = r#"# Written by `martlet service install`, which writes over it.
[Unit]
Description=martlet, a server of language models, on 127.0.0.1:9000
# Ten starts within ten minutes are enough.
StartLimitIntervalSec=600
StartLimitBurst=10

[Service]
Type=exec
ExecStart="/opt/my apps/martlet" serve "--model=/m/100%% \"$$x\"\\n <&>'é" --port=9000
Environment="MARTLET_CACHE_DIR=/c/a $b %%c \"d\" \\e"
Restart=on-failure
RestartSec=5
# Wrong settings, or a model that can not be opened.
RestartPreventExitStatus=2 3
# Running requests may end first.
TimeoutStopSec=45
LimitNOFILE=4096
UMask=0077
NoNewPrivileges=true
LockPersonality=true
MemoryDenyWriteExecute=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"#;
        assert_eq!(text, expected);
        assert_eq!(log_file(&text), None);
    }

    #[test]
    fn keys_and_logs_are_named_by_their_files() {
        let mut job = example();
        job.log_to("/var/my logs/100%.log".into());
        let text = unit(&job, Some(Path::new("/home/a b/[x]%/service.env")));
        assert!(text.contains("\nEnvironmentFile=/home/a b/\\[x]%%/service.env\n"), "{text}");
        assert!(text.contains(" \"--log-file=/var/my logs/100%%.log\"\n"), "{text}");
        assert_eq!(log_file(&text).as_deref(), Some("/var/my logs/100%.log"));
        assert!(keys(r#"a,b"c\d$e`f"#).ends_with("\nMARTLET_API_KEY=\"a,b\\\"c\\\\d\\$e\\`f\"\n"));
    }

    #[test]
    fn what_systemd_shows_is_read() {
        let running = state(
            "LoadState=loaded\nActiveState=active\nSubState=running\nStateChangeTimestamp=Wed 2026-12-02 09:00:00 UTC\n\
             UnitFileState=enabled\nMainPID=4711\nNRestarts=1\nResult=success\nExecMainStatus=0\n",
        );
        let expected = State {
            running: true,
            state: "active (running)".into(),
            since: Some("Wed 2026-12-02 09:00:00 UTC".into()),
            enabled: Some(true),
            pid: Some(4711),
            restarts: Some(1),
            failure: None,
        };
        assert_eq!(running, expected);
        let failed = state(
            "LoadState=loaded\nActiveState=failed\nSubState=failed\nMainPID=0\nResult=exit-code\nExecMainStatus=3",
        );
        assert_eq!((failed.running, failed.pid), (false, None));
        assert_eq!(failed.failure.as_deref(), Some("exit-code, exit status 3"));
        let again = state("LoadState=loaded\nActiveState=activating\nSubState=auto-restart\n");
        assert_eq!((again.running, again.state.as_str()), (false, "activating (auto-restart)"));
        let unread = state("LoadState=not-found\nActiveState=inactive\nSubState=dead\n");
        assert!(unread.state.contains("daemon-reload"));
        assert!(!state("").running);
    }
}
