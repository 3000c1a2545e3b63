//! The only place that writes colours and progress. Answers go to standard output, everything else to standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::str::FromStr;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set or TERM is "dumb".
    #[default]
    Auto,
    Always,
    Never,
}

impl FromStr for ColorChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<ColorChoice, String> {
        match text {
            "auto" => Ok(ColorChoice::Auto),
            "always" => Ok(ColorChoice::Always),
            "never" => Ok(ColorChoice::Never),
            _ => Err("auto, always or never is expected".to_string()),
        }
    }
}

/// What standard output and standard error are, and how to write to them.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    color: bool,
    quiet: bool,
    /// Standard error is a terminal: progress may be drawn.
    live: bool,
    /// Standard output is a terminal: control characters of the model are made visible.
    out_is_terminal: bool,
}

impl Terminal {
    pub fn new(color: ColorChoice, quiet: bool, environment: &dyn Fn(&str) -> Option<String>) -> Terminal {
        let live = io::stderr().is_terminal();
        let plain = environment("NO_COLOR").is_some_and(|v| !v.is_empty())
            || environment("TERM").is_some_and(|term| term == "dumb");
        let color = match color {
            ColorChoice::Auto => live && !plain,
            ColorChoice::Always => true,
            ColorChoice::Never => false,
        };
        Terminal { color, quiet, live, out_is_terminal: io::stdout().is_terminal() }
    }

    /// Part of an answer, at once.
    pub fn answer(&self, piece: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.visible(piece, self.out_is_terminal).as_bytes())?;
        out.flush()
    }

    /// Result of a command.
    pub fn result(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Part of the reasoning, dimmed.
    pub fn reasoning(&self, piece: &str) {
        self.aside(&self.visible(piece, self.live));
    }

    /// A line beside the answer.
    pub fn note(&self, line: &str) {
        self.aside(&format!("{line}\n"));
    }

    /// Never fails: the answer is worth having where nobody reads standard error any more.
    fn aside(&self, text: &str) {
        if !self.quiet {
            let _ = io::stderr().lock().write_all(self.paint("2", text).as_bytes());
        }
    }

    /// An error: the first line after "error:", the rest as it is. Never fails: there is nowhere left to tell it.
    pub fn error(&self, lines: &[String]) {
        let mut err = io::stderr().lock();
        for (i, line) in lines.iter().enumerate() {
            let head = if i == 0 { format!("{} ", self.paint("1;31", "error:")) } else { String::new() };
            let _ = writeln!(err, "{head}{line}");
        }
    }

    /// Whether bars are drawn.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// A bar on standard error, if that is a terminal. It is gone when it is dropped.
    pub fn progress(&self, what: &'static str, total: u64) -> Progress {
        self.bar(what, total, "{msg} {bar:30} {percent}% {eta}")
    }

    /// The same for bytes, with the speed.
    pub fn progress_of_bytes(&self, what: &'static str, total: u64) -> Progress {
        self.bar(what, total, "{msg} {bar:30} {percent}% of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left")
    }

    fn bar(&self, what: &'static str, total: u64, template: &str) -> Progress {
        if !self.live || self.quiet {
            return Progress(None);
        }
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
        Progress(Some(bar.with_style(style).with_message(what)))
    }

    fn paint<'a>(&self, code: &str, text: &'a str) -> Cow<'a, str> {
        match self.color && !text.trim().is_empty() {
            true => Cow::Owned(format!("\x1b[{code}m{text}\x1b[0m")),
            false => Cow::Borrowed(text),
        }
    }

    /// Models write anything: on a terminal, control characters other than newline and tab are shown, not obeyed.
    fn visible<'a>(&self, text: &'a str, on_terminal: bool) -> Cow<'a, str> {
        let control = |c: char| c.is_control() && c != '\n' && c != '\t';
        match on_terminal && text.contains(control) {
            true => Cow::Owned(text.replace(control, "\u{fffd}")),
            false => Cow::Borrowed(text),
        }
    }
}

/// Progress of something that takes a while.
pub struct Progress(Option<ProgressBar>);

impl Progress {
    pub fn set(&self, done: u64, total: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terminal(color: bool) -> Terminal {
        Terminal { color, quiet: false, live: false, out_is_terminal: true }
    }

    #[test]
    fn colours_only_where_wanted() {
        assert_eq!(terminal(true).paint("2", "aside"), "\x1b[2maside\x1b[0m");
        assert_eq!(terminal(false).paint("2", "aside"), "aside");
        let color = |choice, env: &[(&str, &str)]| {
            let find = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
            Terminal::new(choice, false, &find).color
        };
        assert!(color(ColorChoice::Always, &[("NO_COLOR", "1")]));
        assert!(!color(ColorChoice::Auto, &[("NO_COLOR", "1")]));
        assert!(!color(ColorChoice::Never, &[]));
    }

    #[test]
    fn a_model_can_not_steer_the_terminal() {
        let t = terminal(false);
        assert_eq!(t.visible("a\x1b[2Jb\n\tc\u{9b}d", true), "a\u{fffd}[2Jb\n\tc\u{fffd}d");
        assert_eq!(t.visible("a\x1b[2Jb", false), "a\x1b[2Jb");
    }
}
