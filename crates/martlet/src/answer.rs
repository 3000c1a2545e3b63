//! A turn on the terminal: pieces as they come, then one line of statistics; or one JSON object.

use crate::app::App;
use martlet_session::{Answer, Event, FinishReason, Outcome, Prompt, Session, Turn, TurnOptions};
use serde::Serialize;
use std::io;
use std::time::{Duration, Instant};

/// How a turn is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Text as it comes.
    Pieces,
    /// Nothing until one object at the end.
    Json,
}

/// A finished turn.
pub struct Finished {
    pub answer: Answer,
    pub outcome: Outcome,
    pub prompt_ids: Vec<u32>,
}

impl Finished {
    pub fn is_cancelled(&self) -> bool {
        self.outcome.reason == FinishReason::Cancelled
    }
}

/// Runs a turn to its end and shows it. Ctrl-C cancels it.
pub fn run(
    app: &App,
    session: &Session,
    prompt: &Prompt,
    options: &TurnOptions,
    show: Show,
) -> anyhow::Result<Finished> {
    let options = TurnOptions { tokens: options.tokens || show == Show::Json, ..options.clone() };
    let turn = session.start(prompt, &options)?;
    let _guard = app.interrupt.during(turn.canceller());
    let finished = match show {
        Show::Pieces => pieces(app, turn)?,
        Show::Json => collect(app, turn, &mut |_| Ok(()))?,
    };
    match show {
        Show::Pieces => app.terminal.note(&statistics(&finished.outcome)),
        Show::Json => {
            let json = serde_json::to_string(&Report::new(session, prompt, &options, &finished))?;
            app.terminal.result(&format!("{json}\n"))?;
        }
    }
    Ok(finished)
}

/// Shows text as it comes: reasoning aside, the answer on standard output, each ended by a newline. A tool call is a
/// line of its own, `NAME ARGUMENTS`.
fn pieces(app: &App, turn: Turn) -> anyhow::Result<Finished> {
    let terminal = &app.terminal;
    let mut reasoning_ends = None;
    let mut answer_ends = None;
    let finished = collect(app, turn, &mut |event| match event {
        Event::Reasoning(piece) => {
            reasoning_ends = piece.chars().last();
            terminal.reasoning(piece);
            Ok(())
        }
        Event::Text(piece) => {
            if reasoning_ends.take().is_some() {
                terminal.reasoning("\n\n");
            }
            answer_ends = piece.chars().last();
            terminal.answer(piece)
        }
        Event::ToolCall { name, .. } => {
            if reasoning_ends.take().is_some() {
                terminal.reasoning("\n\n");
            }
            let line = if answer_ends.is_some_and(|c| c != '\n') { "\n" } else { "" };
            answer_ends = Some(' ');
            terminal.answer(&format!("{line}{name} "))
        }
        Event::ToolArguments { piece, .. } => terminal.answer(piece),
        Event::ToolCallEnd { .. } => {
            answer_ends = Some('\n');
            terminal.answer("\n")
        }
        _ => Ok(()),
    })?;
    if reasoning_ends.is_some_and(|c| c != '\n') {
        terminal.reasoning("\n");
    }
    if answer_ends.is_some_and(|c| c != '\n') {
        terminal.answer("\n")?;
    }
    Ok(finished)
}

/// Collects a turn, calling `each` with its events; a prefill of more than a second shows how far it is.
fn collect(app: &App, turn: Turn, each: &mut dyn FnMut(&Event) -> io::Result<()>) -> anyhow::Result<Finished> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let started = Instant::now();
    let prompt_ids = turn.prompt_ids().to_vec();
    let mut progress = None;
    let mut answer = Answer::default();
    for event in turn {
        let event = event?;
        match &event {
            Event::Prefill { done, total } if started.elapsed() > PATIENCE => {
                let bar = progress.get_or_insert_with(|| app.terminal.progress("reading the prompt", *total as u64));
                bar.set(*done as u64, *total as u64);
            }
            Event::Prefill { .. } => {}
            _ => progress = None,
        }
        each(&event)?;
        answer.add(event);
    }
    let outcome = answer.outcome.clone().ok_or_else(|| anyhow::anyhow!("the turn ended without an outcome"))?;
    Ok(Finished { answer, outcome, prompt_ids })
}

/// The line at the end.
fn statistics(outcome: &Outcome) -> String {
    let (usage, timings) = (&outcome.usage, &outcome.timings);
    let finish = match &outcome.reason {
        FinishReason::StopString(stop) => format!("stop at {stop:?}"),
        reason => reason.as_str().to_string(),
    };
    let cached = match usage.cached_tokens {
        0 => String::new(),
        n => format!(" (cached {n})"),
    };
    let drafts = match usage.drafted_tokens {
        0 => String::new(),
        n => format!(" | drafts {} of {n} right", usage.accepted_tokens),
    };
    format!(
        "[prompt {} tokens{cached}, {:.0} tok/s | generated {} tokens, {:.0} tok/s{drafts} | first token {:.2} s | \
         {finish} | seed {}]",
        usage.prompt_tokens,
        timings.prefill_rate(),
        usage.generated_tokens,
        timings.decode_rate(),
        (timings.queued + timings.prefill).as_secs_f64(),
        timings.seed,
    )
}

/// The JSON object of a turn. Log-probabilities are written so that reading them gives the same f32.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    device: &'a str,
    /// Tokens of the longest sequence.
    context: usize,
    prompt_ids: &'a [u32],
    /// Generated, the end token included.
    token_ids: Vec<u32>,
    /// None when the checkpoint has no tokenizer.
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
    finish_reason: &'static str,
    /// The token or the string that ended the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_token: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_string: Option<&'a str>,
    /// One for each of `token_ids`, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Logprob>>,
    usage: Usage,
    timings: Timings,
    seed: u64,
}

#[derive(Serialize)]
struct Call<'a> {
    name: &'a str,
    /// A JSON object as text; its beginning, if the answer was cut.
    arguments: &'a str,
}

#[derive(Serialize)]
struct Logprob {
    id: u32,
    logprob: Option<f32>,
    top: Vec<TopLogprob>,
}

#[derive(Serialize)]
struct TopLogprob {
    id: u32,
    logprob: f32,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    /// Of the prompt, from the prefix cache.
    cached_tokens: usize,
    generated_tokens: usize,
    reasoning_tokens: usize,
    /// Guesses of next tokens that were checked, and those that were right.
    drafted_tokens: usize,
    accepted_tokens: usize,
}

/// Seconds, and tokens a second.
#[derive(Serialize)]
struct Timings {
    queued: f64,
    prefill: f64,
    decode: f64,
    time_to_first_token: f64,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
}

impl<'a> Report<'a> {
    fn new(session: &'a Session, prompt: &Prompt, options: &TurnOptions, finished: &'a Finished) -> Report<'a> {
        let Finished { answer, outcome, prompt_ids } = finished;
        let (usage, timings) = (&outcome.usage, &outcome.timings);
        let logprob = |t: &martlet_session::TokenInfo| Logprob {
            id: t.id,
            logprob: t.logprob,
            top: t.top.iter().map(|&(id, logprob)| TopLogprob { id, logprob }).collect(),
        };
        Report {
            model: session.name(),
            device: session.device(),
            context: session.context(),
            prompt_ids,
            token_ids: answer.tokens.iter().map(|t| t.id).collect(),
            text: session.text().map(|_| answer.text.as_str()),
            reasoning: matches!(prompt, Prompt::Chat(_)).then_some(answer.reasoning.as_str()),
            tool_calls: answer.calls.iter().map(|c| Call { name: &c.name, arguments: &c.arguments }).collect(),
            finish_reason: outcome.reason.as_str(),
            stop_token: match &outcome.reason {
                FinishReason::EndToken(token) => Some(*token),
                _ => None,
            },
            stop_string: match &outcome.reason {
                FinishReason::StopString(text) => Some(text),
                _ => None,
            },
            logprobs: options.logprobs.map(|_| answer.tokens.iter().map(logprob).collect()),
            usage: Usage {
                prompt_tokens: usage.prompt_tokens,
                cached_tokens: usage.cached_tokens,
                generated_tokens: usage.generated_tokens,
                reasoning_tokens: usage.reasoning_tokens,
                drafted_tokens: usage.drafted_tokens,
                accepted_tokens: usage.accepted_tokens,
            },
            timings: Timings {
                queued: timings.queued.as_secs_f64(),
                prefill: timings.prefill.as_secs_f64(),
                decode: timings.decode.as_secs_f64(),
                time_to_first_token: (timings.queued + timings.prefill).as_secs_f64(),
                prefill_tokens_per_second: timings.prefill_rate(),
                decode_tokens_per_second: timings.decode_rate(),
            },
            seed: timings.seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_written_so_that_they_round_trip() {
        for bits in [0xb87b_a882_u32, 0x8000_0001, 0xc2c7_ffff, 0xbf80_0000] {
            let value = f32::from_bits(bits);
            let text = serde_json::to_string(&TopLogprob { id: 1, logprob: value }).unwrap();
            let read: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!((read["logprob"].as_f64().unwrap() as f32).to_bits(), bits, "{text}");
        }
    }
}
