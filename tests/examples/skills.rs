//! Answers chat cases greedily, many at a time: one JSON object a line in (`chat`, `max_tokens`), one out (`text`, with
//! thinking and tool calls as the model writes them). `tools/skills.sh` makes the cases and scores the answers.

use martlet_chat::Conversation;
use martlet_session::{ModelSource, Options, Prompt, Sampling, Session, TurnOptions};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Instant;

/// Answers in the making at a time.
const AT_ONCE: usize = 12;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: skills MODEL <CASES >ANSWERS")?;
    let options = Options { sequences: AT_ONCE, context: Some(12 * 1024), ..Options::default() };
    let session = Session::open(&ModelSource::Path(folder.into()), &options, &mut |_, _| {})?;
    let (mut running, mut out) = (VecDeque::new(), std::io::stdout().lock());
    let (mut prompt, mut generated, started) = (0, 0, Instant::now());
    let mut finish = |turn: martlet_session::Turn| -> Result<(), Box<dyn Error>> {
        let answer = turn.answer()?;
        let usage = answer.outcome.as_ref().map(|o| o.usage).unwrap_or_default();
        prompt += usage.prompt_tokens;
        generated += usage.generated_tokens;
        writeln!(out, "{}", json!({"text": answer.text}))?;
        Ok(())
    };
    for line in std::io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let text = session.text().ok_or("the model has no tokenizer")?;
        // As raw text: the answer then holds thinking and markup as they come.
        let rendered = text.render(&Conversation::from_json(&case["chat"])?, true)?;
        let turn = TurnOptions {
            sampling: Sampling { temperature: Some(0.0), ..Sampling::default() },
            max_tokens: case["max_tokens"].as_u64().map(|n| n as usize),
            ..TurnOptions::default()
        };
        running.push_back(session.start(&Prompt::Text(rendered), &turn)?);
        if running.len() == AT_ONCE {
            running.pop_front().map(&mut finish).transpose()?;
        }
    }
    running.into_iter().try_for_each(&mut finish)?;
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{prompt} prompt and {generated} generated tokens in {seconds:.0} s");
    Ok(())
}
