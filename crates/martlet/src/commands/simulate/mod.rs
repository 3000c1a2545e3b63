//! `martlet simulate`: a command as if on a smaller machine.

mod group;

use crate::exit::{Ended, Usage};
use crate::settings::Settings;
use crate::size;
use crate::terminal::Terminal;
use anyhow::Context;
use group::{Found, Group, Limits};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitStatus};

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What the disk gives, such as 1.5GB/s [default: all that it has]
    #[arg(long, value_name = "SPEED", value_parser = size::parse_speed)]
    pub disk: Option<u64>,
    /// Any command, with its arguments, after `--`; `martlet` is this program
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  martlet simulate --memory 8GiB --disk 1.5GB/s -- martlet bench -m PACK
  martlet simulate --memory 4GiB -- martlet serve -m PACK
  sudo martlet simulate --disk 200MB/s -- martlet chat -m PACK hello

--memory is the memory of the whole machine: the program, what it computes with,
and files that the system keeps in memory for it. Where this user may make a
control group, Linux holds the command to both limits. Where not, martlet is
told to take less and to read slower, and other programs are not held back.
Which of it was in force is said before the command starts.

The exit code is the command's.";

/// Runs the command and waits for its end.
pub fn run(args: &Args, settings: &Settings, terminal: Terminal) -> anyhow::Result<()> {
    let limits = Limits { memory: settings.memory, read: args.disk };
    if limits == Limits::default() {
        return Err(Usage("what is to be smaller? --memory 8GiB, --disk 1.5GB/s, or both".into()).into());
    }
    // Ctrl-C is for the command, which gets it from the terminal too.
    ctrlc::set_handler(|| {})?;
    let found = Found::here();
    let group = Group::new(&found, &limits);
    group.said(&limits).iter().for_each(|line| terminal.note(line));
    let status = start(args, &limits, &group);
    if let (Ok(_), Some(most)) = (&status, group.most_memory()) {
        terminal.note(&format!("memory at its peak, with files that the system kept: {}", size::bytes(most)));
    }
    if group.was_short() {
        terminal.note("the limit of memory was reached: Linux ended a process");
    }
    if let Some(line) = group.end() {
        terminal.note(&line);
    }
    match code(status?) {
        0 => Ok(()),
        code => Err(Ended(code).into()),
    }
}

fn start(args: &Args, limits: &Limits, group: &Group) -> anyhow::Result<ExitStatus> {
    let (name, rest) = args.command.split_first().context("a command is missing")?;
    let program = if name == "martlet" { std::env::current_exe()?.into() } else { name.clone() };
    let mut command = Command::new(&program);
    command.args(rest);
    // A limit that holds is found by martlet itself, as on the machine that it stands for.
    command.env_remove("MARTLET_MEMORY").env_remove("MARTLET_DISK_LIMIT");
    if let Some(memory) = limits.memory.filter(|_| !group.holds_memory()) {
        command.env("MARTLET_MEMORY", format!("{}B", budget(memory)));
    }
    if let Some(read) = limits.read.filter(|_| !group.holds_reads()) {
        command.env("MARTLET_DISK_LIMIT", format!("{read}B/s"));
    }
    let mut child = group
        .enter(|| command.spawn())?
        .with_context(|| format!("{} can not be started", Path::new(&program).display()))?;
    Ok(child.wait()?)
}

/// What martlet would take of a machine of `memory` bytes; the program itself and the system need the rest.
fn budget(memory: u64) -> u64 {
    memory / 8 * 7
}

/// As shells tell it: a command that a signal has ended has 128 and the signal's number.
fn code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(u8::MAX);
    }
    status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1)
}
