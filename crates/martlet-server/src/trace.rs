//! Traces: what a request's model said, token by token, for `martlet replay`. A file for each answer, of JSON lines: a
//! header, then tokens with their text, the events that came of them, and how it ended. No keys, no prompts; but what
//! was said.

use crate::app::App;
use crate::generate::Traced;
use crate::residence::Resident;
use martlet_chat::{Detokenizer, SpecialTokens, prompt_opens_thinking};
use martlet_session::{Event, Turn};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes of one trace; what comes later is left out, and the trace says so.
const FILE_BYTES: u64 = 16 << 20;
/// Files of the folder; the oldest make room.
const FILES: usize = 1000;

/// Where traces go.
pub struct Tracer {
    dir: PathBuf,
}

impl Tracer {
    pub fn new(dir: &Path) -> io::Result<Tracer> {
        std::fs::create_dir_all(dir)?;
        Ok(Tracer { dir: dir.to_path_buf() })
    }

    fn create(&self, name: &str) -> io::Result<File> {
        let mut names: Vec<PathBuf> = std::fs::read_dir(&self.dir)?.filter_map(|e| Some(e.ok()?.path())).collect();
        names.retain(|path| path.extension().is_some_and(|e| e == "jsonl"));
        names.sort_unstable(); // by time: it is what names begin with
        let extra = (names.len() + 1).saturating_sub(FILES);
        for old in &names[..extra] {
            std::fs::remove_file(old)?;
        }
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(self.dir.join(name))
    }
}

/// The trace of one answer. What goes wrong with it ends the trace, never the answer.
pub struct Trace {
    out: BufWriter<File>,
    left: u64,
    detokenizer: Option<Detokenizer>,
}

impl Trace {
    /// `None` where no traces are asked for, or the file can not be made.
    pub fn begin(app: &App, model: &Resident, id: &str, choice: usize, turn: &Turn, traced: &Traced) -> Option<Trace> {
        let tracer = app.tracer.as_ref()?;
        let time = crate::log::timestamp(SystemTime::now()).replace(':', "-");
        let file = tracer.create(&format!("{time}-{id}-{choice}.jsonl"));
        let file =
            file.inspect_err(|e| app.log.write(crate::log::Line::new("trace").add("id", id).add("error", e))).ok()?;
        let text = model.session.text();
        let prompt_end = text.map(|t| {
            let ids = turn.prompt_ids();
            t.tokenizer.decode(&ids[ids.len().saturating_sub(64)..], SpecialTokens::Show)
        });
        let detokenizer = text.map(|t| t.tokenizer.detokenizer(SpecialTokens::Skip));
        let mut trace = Trace { out: BufWriter::new(file), left: FILE_BYTES, detokenizer };
        trace.line(&json!({
            "martlet_trace": 1,
            "prompt_opens_thinking": prompt_end.is_some_and(|end| prompt_opens_thinking(&end)),
            "tools": traced.tools,
            "tool_choice": traced.tool_choice,
            "model": model.name(),
            "prompt_tokens": turn.prompt_ids().len(),
        }));
        Some(trace)
    }

    pub fn event(&mut self, event: &Event) {
        let line = match event {
            Event::Prefill { .. } => return,
            Event::Token(token) => {
                let piece = self.detokenizer.as_mut().map(|d| d.push(token.id).to_string());
                json!({"token": token.id, "text": piece})
            }
            Event::Reasoning(text) => json!({"event": "reasoning", "text": text}),
            Event::Text(text) => json!({"event": "text", "text": text}),
            Event::ToolCall { index, name } => json!({"event": "tool_call", "index": index, "name": name}),
            Event::ToolArguments { index, piece } => json!({"event": "tool_arguments", "index": index, "piece": piece}),
            Event::ToolCallEnd { index } => json!({"event": "tool_call_end", "index": index}),
            Event::Finished(outcome) => {
                let (usage, timings) = (&outcome.usage, &outcome.timings);
                json!({
                    "event": "finished",
                    "reason": outcome.reason.as_str(),
                    "generated_tokens": usage.generated_tokens,
                    "reasoning_tokens": usage.reasoning_tokens,
                    "cached_tokens": usage.cached_tokens,
                    "seed": timings.seed,
                    "queued_s": timings.queued.as_secs_f64(),
                    "prefill_s": timings.prefill.as_secs_f64(),
                    "decode_s": timings.decode.as_secs_f64(),
                })
            }
            _ => return,
        };
        self.line(&line);
        if matches!(event, Event::Finished(_)) {
            // The end must be there before anybody is told that the answer has ended.
            let _ = self.out.flush();
        }
    }

    fn line(&mut self, line: &Value) {
        let text = format!("{line}\n");
        match self.left.checked_sub(text.len() as u64) {
            Some(left) => {
                self.left = left;
                let _ = self.out.write_all(text.as_bytes());
            }
            None if self.left > 0 => {
                self.left = 0;
                let _ = self.out.write_all(b"{\"cut\":true}\n");
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(dir: &Path, left: u64) -> (Trace, PathBuf) {
        let file = Tracer::new(dir).unwrap().create("t.jsonl").unwrap();
        (Trace { out: BufWriter::new(file), left, detokenizer: None }, dir.join("t.jsonl"))
    }

    #[test]
    fn a_trace_is_bounded_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let (mut trace, path) = trace(dir.path(), 60);
        (0..9).for_each(|_| trace.event(&Event::Text("some text".into())));
        trace.out.flush().unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], r#"{"event":"text","text":"some text"}"#);
        assert_eq!(lines[1], r#"{"cut":true}"#);
    }

    #[test]
    fn the_oldest_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let tracer = Tracer::new(dir.path()).unwrap();
        (0..FILES + 2).for_each(|i| drop(tracer.create(&format!("{i:05}.jsonl")).unwrap()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), FILES);
        assert!(!dir.path().join("00001.jsonl").exists() && dir.path().join("00002.jsonl").exists());
    }
}
