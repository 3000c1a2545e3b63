//! `martlet stats`: what a running server does.

use crate::app::App;
use crate::exit::{Refused, Usage};
use crate::http::{self, Address, Limits};
use crate::settings::ServeSettings;
use crate::size;
use martlet_server::ServerStats;
use serde_json::Value;
use std::net::IpAddr;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The server, instead of --host and --port
    #[arg(long, value_name = "URL", conflicts_with_all = ["host", "port"])]
    pub url: Option<String>,
    /// Address that the server listens on [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// [default: 8080]
    #[arg(short, long, value_name = "N")]
    pub port: Option<String>,
    /// A key of the server. MARTLET_API_KEY keeps it out of the process list
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  martlet stats
  martlet stats --port 9000
  martlet stats --url http://box.lan:8080 --json | jq .requests.turns

Without flags it asks the server that `martlet serve` with the same settings
would be. Exit codes: 1 if no martlet answers, 4 if the API key is refused.";

/// The server answers from memory; its list of names is the longest part.
const LIMITS: Limits = Limits { time: Duration::from_secs(10), body: 1 << 20 };

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let serve = &app.settings.serve;
    let at = match &args.url {
        Some(url) => Address::parse(url)?,
        None => Address::parse(&address(serve)?)?,
    };
    let (status, body) = http::get(&at, "/stats", serve.api_keys.first().map(String::as_str), LIMITS)?;
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    match status {
        200 => {}
        401 | 403 => return Err(Refused(format!("{at} refuses to tell: {}", reason(status, &value))).into()),
        _ => anyhow::bail!("{at} is no martlet, or can not tell now: {}", reason(status, &value)),
    }
    let stats: ServerStats = serde::Deserialize::deserialize(&value)
        .map_err(|e| anyhow::anyhow!("{at} is no martlet, or one of another version: {e}"))?;
    let text = if args.json { serde_json::to_string_pretty(&value)? + "\n" } else { table(&at, &stats) };
    // Names come from elsewhere.
    Ok(app.terminal.answer(&text)?)
}

/// Where the server of these settings can be asked.
fn address(serve: &ServeSettings) -> Result<String, Usage> {
    if serve.port == 0 {
        return Err(Usage("port is 0, any free one: --port N or --url URL says which one it became".into()));
    }
    Ok(match serve.host {
        host if !host.is_unspecified() => std::net::SocketAddr::new(host, serve.port).to_string(),
        IpAddr::V4(_) => format!("127.0.0.1:{}", serve.port),
        IpAddr::V6(_) => format!("[::1]:{}", serve.port),
    })
}

/// What a server says about its refusal; the status where it says nothing.
fn reason(status: u16, body: &Value) -> String {
    let message = body.pointer("/error/message").and_then(Value::as_str).unwrap_or_default();
    let shown: String = message.chars().filter(|c| !c.is_control()).take(300).collect();
    let advice = if status == 401 { " (--api-key or MARTLET_API_KEY)" } else { "" };
    format!("{status}{}{shown}{advice}", if shown.is_empty() { "" } else { ", " })
}

fn table(at: &Address, stats: &ServerStats) -> String {
    let ServerStats { requests, tokens, cache, drafts, memory, stored_responses: stored, .. } = stats;
    let names = match stats.aliases.is_empty() {
        true => String::new(),
        false => format!(", also {}", stats.aliases.join(", ")),
    };
    let finished: Vec<String> = stats.finished.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    let bytes = |n: Option<u64>| n.map_or("unknown".to_string(), size::bytes);
    let rows = [
        ("server", format!("{at}, martlet {}, up {}", stats.version, time(stats.uptime_s))),
        ("model", format!("{} ({}) on {}{names}", stats.model, stats.architecture, stats.device)),
        ("switching", switching(stats)),
        ("context", format!("{} tokens, {} sequences at a time", stats.context, stats.sequences)),
        (
            "requests",
            format!(
                "{} of {} run or wait; in the engine {} run, {} wait",
                requests.turns, requests.limit, requests.engine_running, requests.engine_waiting
            ),
        ),
        ("connections", format!("{}; {} streams without a reader", stats.connections, requests.streams_detached)),
        ("finished", if finished.is_empty() { "none".to_string() } else { finished.join(", ") }),
        (
            "tokens",
            format!("{} generated; prompts: {} computed, {} cached", tokens.generated, tokens.prompt, tokens.cached),
        ),
        (
            "prefix cache",
            format!(
                "{} states, {}; found {} in memory, {} on disk, {} not; {} evicted",
                cache.entries,
                size::bytes(cache.state_bytes),
                cache.memory_hits,
                cache.disk_hits,
                cache.misses,
                cache.evicted
            ),
        ),
        ("KV pages", format!("{} of {}", cache.pages, cache.pages_limit)),
        ("drafts", format!("{} checked, {} right", drafts.drafted, drafts.accepted)),
        (
            "memory",
            format!("{}: {} weights, {} pool", bytes(memory.budget), size::bytes(memory.weights), bytes(memory.pool)),
        ),
        ("responses", format!("{} stored, {}", stored.count, size::bytes(stored.bytes as u64))),
    ];
    rows.iter().map(|(name, value)| format!("{name:12}  {value}\n")).collect()
}

/// How one model takes the place of another.
fn switching(stats: &ServerStats) -> String {
    let s = &stats.switching;
    match s.on {
        false => "off".to_string(),
        true => {
            let loading = if s.loading { "loading; " } else { "" };
            format!("{loading}{} loaded, {} could not be; {} requests wait", s.loads, s.failures, s.waiting)
        }
    }
}

/// Seconds in the two largest units.
fn time(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_for_people() {
        let stats = json!({
            "version": "0.1.0", "model": "m", "aliases": ["a", "b"], "architecture": "qwen3_5", "device": "cpu",
            "uptime_s": 93784, "context": 4096, "sequences": 4, "connections": 2,
            "requests": {"turns": 3, "limit": 256, "engine_running": 2, "engine_waiting": 1, "streams_detached": 0},
            "finished": {"length": 1, "stop": 7},
            "tokens": {"prompt": 100, "cached": 50, "generated": 80},
            "cache": {
                "entries": 5, "state_bytes": 2048, "memory_hits": 3, "disk_hits": 1, "misses": 4, "evicted": 0,
                "pages": 12, "pages_limit": 640
            },
            "drafts": {"drafted": 20, "accepted": 15},
            "memory": {"budget": null, "weights": 1048576, "pool": 3145728},
            "stored_responses": {"count": 1, "bytes": 512},
            "switching": {"on": true, "own": "m", "loading": false, "waiting": 3, "loads": 2, "failures": 1}
        });
        let text = table(&Address::parse("127.0.0.1:8080").unwrap(), &serde_json::from_value(stats).unwrap());
        let expected = "\
server        http://127.0.0.1:8080, martlet 0.1.0, up 1 d 2 h
model         m (qwen3_5) on cpu, also a, b
switching     2 loaded, 1 could not be; 3 requests wait
context       4096 tokens, 4 sequences at a time
requests      3 of 256 run or wait; in the engine 2 run, 1 wait
connections   2; 0 streams without a reader
finished      1 length, 7 stop
tokens        80 generated; prompts: 100 computed, 50 cached
prefix cache  5 states, 2.00 KiB; found 3 in memory, 1 on disk, 4 not; 0 evicted
KV pages      12 of 640
drafts        20 checked, 15 right
memory        unknown: 1.00 MiB weights, 3.00 MiB pool
responses     1 stored, 512 B
";
        assert_eq!(text, expected);
    }

    #[test]
    fn times_have_two_units() {
        assert_eq!([59, 3599, 86_399, 86_400].map(time), ["59 s", "59 min 59 s", "23 h 59 min", "1 d 0 h"]);
    }

    #[test]
    fn a_refusal_can_not_steer_the_terminal() {
        let said = json!({"error": {"message": "no\u{1b}[2J key"}});
        assert_eq!(reason(401, &said), "401, no[2J key (--api-key or MARTLET_API_KEY)");
        assert_eq!(reason(404, &Value::Null), "404");
    }
}
