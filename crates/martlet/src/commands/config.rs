//! `martlet config`: settings, and where they come from.

use crate::app::App;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub enum What {
    /// Print every setting, its value, and where it came from
    Show {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Print the path of the configuration file
    Path,
}

const EXAMPLES: &str = "\
A setting comes from its flag, else from the environment (MARTLET_THREADS for
threads), else from the configuration file, else it has its default. The file
is TOML, one `key = value` a line:

  model = \"/home/me/models/Qwen3.5-35B\"
  threads = 8
  temperature = 0.7

MARTLET_CONFIG names another file.";

pub fn show(json: bool, app: &App) -> anyhow::Result<()> {
    let text = if json { serde_json::to_string_pretty(&app.settings.rows)? + "\n" } else { table(app) };
    Ok(app.terminal.result(&text)?)
}

fn table(app: &App) -> String {
    let rows = &app.settings.rows;
    let widest = |of: fn(&crate::settings::Row) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let (key, value) = (widest(|r| r.key.len()), widest(|r| r.value.chars().count()));
    rows.iter().map(|r| format!("{:key$}  {:value$}  {}\n", r.key, r.value, r.origin)).collect()
}
