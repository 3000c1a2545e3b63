//! Exit codes, and how an error looks on the terminal.

use crate::http::HttpError;
use crate::settings::SettingsError;
use martlet_hub::HubError;
use martlet_session::{EngineError, OpenError, SessionError};
use martlet_weights::WeightsError;
use std::io;

/// The end of `martlet --help`.
pub const HELP: &str = "\
Examples:
  martlet chat hello                        one question to the tiny model inside
  martlet chat                              a conversation
  martlet pull                              fetch the model that fits this machine
  martlet chat -m ~/models/Qwen3.5-35B-A3B  the same with a checkpoint folder
  git diff | martlet chat \"Review this:\"   question and text
  martlet inspect ~/models/Qwen3.5-35B-A3B  what a checkpoint holds
  martlet plan ~/models/Qwen3.5-35B-A3B     how long a context fits into memory
  martlet config show                       settings, and where they come from
  martlet serve                             a server for programs and browsers
  martlet stats                             what a running server does
  martlet service install                   have it run from now on

Settings come from flags, else from MARTLET_* variables (MARTLET_MODEL,
MARTLET_THREADS, ...), else from the file that `martlet config path` names.

Exit codes:
  0    done
  1    failed while working
  2    wrong usage: flags, settings, a file given to read
  3    the model can not be opened, or does not fit into memory
  4    the request was refused: too long, a value out of range, no template,
       a wrong API key
  5    the service is installed and does not run
  6    the service is not installed
  130  interrupted";

pub const FAILED: u8 = 1;
pub const USAGE: u8 = 2;
pub const MODEL: u8 = 3;
pub const REFUSED: u8 = 4;
pub const NOT_RUNNING: u8 = 5;
pub const NOT_INSTALLED: u8 = 6;
pub const INTERRUPTED: u8 = 130;

/// The person's own mistake: what was wrong and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// What a server refuses to tell: why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// The service is not as a command needs it, or `status` found so.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("the service does not run")]
    NotRunning,
    #[error("martlet is not installed as a service: `martlet service install` does that")]
    NotInstalled,
}

/// The work was interrupted; what was said is on the screen already.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// The command that `simulate` ran has ended so; what there was to say it has said itself.
#[derive(Debug, thiserror::Error)]
#[error("the command has ended with {0}")]
pub struct Ended(pub u8);

/// The exit code of an error.
pub fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            return 0; // the reader has what it wanted
        }
        if let Some(e) = cause.downcast_ref::<SessionError>() {
            return match e {
                SessionError::Open { .. } => MODEL,
                SessionError::Engine(_) => FAILED,
                _ => REFUSED,
            };
        }
        if cause.is::<Usage>() || cause.is::<SettingsError>() {
            return USAGE;
        }
        if matches!(cause.downcast_ref(), Some(HttpError::Url { .. } | HttpError::Key)) {
            return USAGE;
        }
        if let Some(e) = cause.downcast_ref::<HubError>() {
            return if e.is_usage() { USAGE } else { FAILED };
        }
        if cause.is::<Refused>() {
            return REFUSED;
        }
        match cause.downcast_ref::<ServiceError>() {
            Some(ServiceError::NotRunning) => return NOT_RUNNING,
            Some(ServiceError::NotInstalled) => return NOT_INSTALLED,
            None => {}
        }
        if let Some(Ended(code)) = cause.downcast_ref() {
            return *code;
        }
        if cause.is::<Interrupted>() {
            return INTERRUPTED;
        }
    }
    FAILED
}

/// The lines of an error, without the leading "error: ": what is wrong, then indented where, numbers, and what to do.
pub fn lines(error: &anyhow::Error) -> Vec<String> {
    match error.downcast_ref::<SessionError>() {
        Some(SessionError::Open { model, source }) => {
            let mut lines = vec![format!("cannot open model \"{model}\"")];
            lines.extend(causes(source));
            lines.extend(advice(source).map(|text| format!("  do      {text}")));
            lines
        }
        _ => {
            // An error that prints its own cause would say it twice.
            let mut text = error.to_string();
            for cause in error.chain().skip(1).map(ToString::to_string) {
                if !text.contains(&cause) {
                    text = format!("{text}: {cause}");
                }
            }
            let mut lines = text.lines().map(str::to_string);
            let first = lines.next();
            first.into_iter().chain(lines.map(|l| format!("  {l}"))).collect()
        }
    }
}

fn causes(error: &OpenError) -> Vec<String> {
    const SHOWN: usize = 5;
    let weights = match error {
        OpenError::Weights(e) | OpenError::Model(martlet_model::ModelError::Weights(e)) => Some(e),
        _ => None,
    };
    if let Some(WeightsError::Tensors(problems)) = weights {
        let shown = problems.iter().take(SHOWN);
        let pairs =
            shown.flat_map(|p| [format!("  tensor  {}  ({})", p.tensor, p.file), format!("  what    {}", p.what)]);
        let mut lines: Vec<String> = pairs.collect();
        if problems.len() > SHOWN {
            lines.push(format!("  and {} more", problems.len() - SHOWN));
        }
        return lines;
    }
    error.to_string().lines().map(|line| format!("  what    {line}")).collect()
}

fn advice(error: &OpenError) -> Option<&'static str> {
    use martlet_model::ModelError;
    Some(match error {
        OpenError::Weights(e) | OpenError::Model(ModelError::Weights(e)) => match e {
            WeightsError::Tensors(_) => {
                "config and weights seem to be of different revisions, or a file is damaged: fetch both again"
            }
            WeightsError::Safetensors { .. } | WeightsError::Index { .. } => {
                "the file is damaged or cut short: fetch it again"
            }
            _ => {
                "-m takes the name of an installed model (`martlet list` shows them, `martlet pull` fetches more), a checkpoint folder (config.json and *.safetensors), a pack, one .safetensors file or one .gguf file; without -m fledgling answers, which is built in"
            }
        },
        OpenError::Model(ModelError::ModelType { .. }) => "martlet runs the Qwen3-Next, 3.5 and 3.6 family",
        OpenError::Model(ModelError::Config { .. }) => "this variant is not supported yet",
        OpenError::Text(_) => "fetch the tokenizer and template files of the checkpoint again",
        OpenError::NoDrafts => "leave --drafter mtp and --check-mtp out: auto drafts with what there is",
        OpenError::Engine(EngineError::Room { .. }) => {
            "give it more with --memory, or let it take less: --kv q8, a smaller --prefill-chunk, a smaller model"
        }
        OpenError::Engine(_) => "try a smaller --context",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_weights::Problem;

    #[test]
    fn a_tensor_error_names_tensor_file_numbers_and_remedy() {
        let problem = Problem {
            tensor: "model.layers.7.mlp.gate.weight".into(),
            file: "model-00003-of-00011.safetensors".into(),
            what: "has shape [256, 2048], expected [512, 2048] by config.json".into(),
        };
        let source = Box::new(OpenError::Weights(WeightsError::Tensors(vec![problem; 7])));
        let error = anyhow::Error::from(SessionError::Open { model: "qwen".into(), source });
        let lines = lines(&error);
        assert_eq!(lines[0], "cannot open model \"qwen\"");
        assert_eq!(lines[1], "  tensor  model.layers.7.mlp.gate.weight  (model-00003-of-00011.safetensors)");
        assert_eq!(lines[2], "  what    has shape [256, 2048], expected [512, 2048] by config.json");
        assert_eq!(lines[11], "  and 2 more");
        assert!(lines[12].starts_with("  do      "));
        assert_eq!(code(&error), MODEL);
    }

    #[test]
    fn codes_have_meanings() {
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(code(&anyhow::Error::from(pipe).context("writing")), 0);
        assert_eq!(code(&Usage("no".into()).into()), USAGE);
        assert_eq!(code(&Interrupted.into()), INTERRUPTED);
        assert_eq!(code(&Refused("no".into()).into()), REFUSED);
        assert_eq!(code(&ServiceError::NotRunning.into()), NOT_RUNNING);
        assert_eq!(code(&ServiceError::NotInstalled.into()), NOT_INSTALLED);
        assert_eq!(code(&SessionError::EmptyStop { index: 1 }.into()), REFUSED);
        assert_eq!(code(&anyhow::anyhow!("what else")), FAILED);
    }
}
