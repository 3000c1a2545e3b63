//! What may be typed in a conversation.

use std::path::PathBuf;

/// One input.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Nothing.
    Empty,
    Say(String),
    Help,
    /// Set the system message; `None` takes it away.
    System(Option<String>),
    Think(bool),
    /// Set the temperature; `None`: the checkpoint's.
    Temp(Option<f32>),
    Save(PathBuf),
    Load(PathBuf),
    Clear,
    Quit,
}

/// (command, argument, what it does), for help and completion.
pub const COMMANDS: [(&str, &str, &str); 9] = [
    ("/help", "", "show this"),
    ("/system", "TEXT", "set the system message; without TEXT take it away"),
    ("/think", "", "think before the answer"),
    ("/nothink", "", "answer at once"),
    ("/temp", "X", "set the temperature; 0 is greedy; without X the checkpoint's own"),
    ("/save", "FILE", "write the conversation to a chat file"),
    ("/load", "FILE", "go on with the conversation of a chat file"),
    ("/clear", "", "forget the conversation, but for its system message"),
    ("/quit", "", "leave, as Ctrl-D does"),
];

/// Reads what was typed. A text that begins with a slash and is no command is an error with advice; two slashes stand
/// for a text that begins with one.
pub fn parse(typed: &str) -> Result<Input, String> {
    let text = unframe(typed);
    if text.trim().is_empty() {
        return Ok(Input::Empty);
    }
    let Some(rest) = text.strip_prefix('/') else { return Ok(Input::Say(text)) };
    if rest.starts_with('/') {
        return Ok(Input::Say(rest.to_string()));
    }
    let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let argument = argument.trim();
    let alone = |input| match argument {
        "" => Ok(input),
        _ => Err(format!("/{name} takes no argument")),
    };
    let path = || match argument {
        "" => Err(format!("/{name} needs a file name")),
        _ => Ok(PathBuf::from(argument)),
    };
    match name {
        "help" | "?" => alone(Input::Help),
        "system" => Ok(Input::System(Some(argument.to_string()).filter(|a| !a.is_empty()))),
        "think" => alone(Input::Think(true)),
        "nothink" => alone(Input::Think(false)),
        "temp" if argument.is_empty() => Ok(Input::Temp(None)),
        "temp" => match argument.parse::<f32>() {
            Ok(x) if (0.0..=100.0).contains(&x) => Ok(Input::Temp(Some(x))),
            _ => Err(format!("/temp needs a number from 0 to 100, not \"{argument}\"")),
        },
        "save" => path().map(Input::Save),
        "load" => path().map(Input::Load),
        "clear" => alone(Input::Clear),
        "quit" | "exit" | "bye" => alone(Input::Quit),
        _ => Err(format!("/{name} is no command: /help lists them. To say a text that begins with /, double it: //")),
    }
}

/// Whether more lines follow: a block of """ is open, or the line ends with a backslash.
pub fn is_unfinished(typed: &str) -> bool {
    match typed.trim_start().strip_prefix(BLOCK) {
        Some(rest) => !rest.contains(BLOCK),
        None => typed.ends_with('\\') && !typed.ends_with("\\\\"),
    }
}

const BLOCK: &str = "\"\"\"";

/// The text without its """ or its backslashes at line ends.
fn unframe(typed: &str) -> String {
    if let Some(rest) = typed.trim_start().strip_prefix(BLOCK) {
        let (inside, after) = rest.split_once(BLOCK).unwrap_or((rest, ""));
        return format!("{}{after}", inside.trim_matches('\n'));
    }
    typed.replace("\\\n", "\n")
}

/// The text of /help.
pub fn help() -> String {
    let mut text: String = COMMANDS
        .iter()
        .map(|(name, argument, meaning)| format!("  {:14} {meaning}\n", format!("{name} {argument}")))
        .collect();
    text += "Several lines: end a line with \\, or put the text between \"\"\" and \"\"\".\n";
    text += "Ctrl-C stops an answer, or clears the line; twice on an empty line it leaves, as Ctrl-D does.";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        assert_eq!(parse("hello /there"), Ok(Input::Say("hello /there".into())));
        assert_eq!(parse("  "), Ok(Input::Empty));
        assert_eq!(parse("/help"), Ok(Input::Help));
        assert_eq!(parse("/system  Be brief. "), Ok(Input::System(Some("Be brief.".into()))));
        assert_eq!(parse("/system"), Ok(Input::System(None)));
        assert_eq!(parse("/think"), Ok(Input::Think(true)));
        assert_eq!(parse("/nothink"), Ok(Input::Think(false)));
        assert_eq!(parse("/temp 0.5"), Ok(Input::Temp(Some(0.5))));
        assert_eq!(parse("/temp"), Ok(Input::Temp(None)));
        assert_eq!(parse("/save a b.json"), Ok(Input::Save("a b.json".into())));
        assert_eq!(parse("/load x"), Ok(Input::Load("x".into())));
        assert_eq!(parse("/clear"), Ok(Input::Clear));
        assert_eq!(parse("/quit"), Ok(Input::Quit));
        assert_eq!(parse("//usr/bin"), Ok(Input::Say("/usr/bin".into())));
    }

    #[test]
    fn mistakes_are_explained() {
        for (typed, word) in [
            ("/usr/bin", "//"),
            ("/temp hot", "hot"),
            ("/temp -1", "-1"),
            ("/temp nan", "nan"),
            ("/temp 101", "from 0 to 100"),
            ("/save", "file name"),
            ("/clear all", "no argument"),
        ] {
            assert!(parse(typed).unwrap_err().contains(word), "{typed}");
        }
    }

    #[test]
    fn several_lines() {
        assert!(is_unfinished("one\\") && is_unfinished("\"\"\"one\ntwo") && is_unfinished("\"\"\""));
        assert!(!is_unfinished("one") && !is_unfinished("\"\"\"one\ntwo\n\"\"\"") && !is_unfinished("a path C:\\\\"));
        assert_eq!(parse("one\\\ntwo"), Ok(Input::Say("one\ntwo".into())));
        assert_eq!(parse("\"\"\"\none\n\n/two\n\"\"\""), Ok(Input::Say("one\n\n/two".into())));
        assert_eq!(parse("/system a\\\nb"), Ok(Input::System(Some("a\nb".into()))));
    }

    #[test]
    fn help_names_every_command() {
        for (name, argument, _) in COMMANDS {
            assert!(help().contains(name));
            let example = if argument == "X" { "1" } else { argument };
            assert!(parse(format!("{name} {example}").trim()).is_ok(), "{name}");
        }
    }
}
