//! A chat that streams, that Ctrl-C stops, and that goes on where it ended when it is started again:
//! `cargo run --release -p martlet-session --example chat -- models/fledgling chat.json`.

use martlet_chat::{Conversation, Message, Role};
use martlet_session::{Answer, Event, ModelSource, Options, Prompt, Session, TurnOptions, disk_options};
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (model, file) = (args.next().unwrap_or("models/fledgling".into()), args.next().unwrap_or("chat.json".into()));
    let stop: &AtomicBool = Box::leak(Box::default());
    ctrlc::set_handler(|| stop.store(true, Ordering::Relaxed))?;
    talk(model.as_ref(), file.as_ref(), stop, std::io::stdin().lock(), &mut std::io::stdout())
}

/// Answers line by line; the conversation lies in `file`, and what was computed of it in a folder beside it.
pub fn talk(model: &Path, file: &Path, stop: &AtomicBool, lines: impl BufRead, out: &mut impl Write) -> Result<()> {
    let options = Options { disk: Some(disk_options(file.with_extension("states"), 1 << 30)), ..Options::default() };
    let session = Session::open(&ModelSource::Path(model.into()), &options, &mut |_, _| {})?;
    let saved = file.try_exists()?.then(|| std::fs::read(file)).transpose()?;
    let mut chat: Conversation = saved.map_or(Ok(Conversation::default()), |json| serde_json::from_slice(&json))?;
    for line in lines.lines() {
        let line = line?;
        if let Some(mib) = line.strip_prefix("/memory ") {
            session.set_memory(mib.parse::<u64>()? << 20); // for a machine that runs short of it
            continue;
        }
        chat.messages.push(Message::text(Role::User, line));
        let answer = stream(&session, &chat, stop, out)?;
        let mut message = Message::text(Role::Assistant, answer.text);
        message.reasoning_content = Some(answer.reasoning).filter(|r| !r.is_empty());
        chat.messages.push(message);
        std::fs::write(file, serde_json::to_vec_pretty(&chat)?)?;
    }
    Ok(())
}

/// Writes the answer as it comes.
fn stream(session: &Session, chat: &Conversation, stop: &AtomicBool, out: &mut impl Write) -> Result<Answer> {
    let mut turn = session.start(&Prompt::Chat(chat.clone()), &TurnOptions::default())?;
    let mut answer = Answer::default();
    while let Some(event) = turn.next().transpose()? {
        match &event {
            Event::Text(piece) => write!(out, "{piece}")?,
            Event::Finished(o) => writeln!(out, "\n[{} of {} cached]", o.usage.cached_tokens, o.usage.prompt_tokens)?,
            _ => {}
        }
        out.flush()?;
        answer.add(event);
        if stop.swap(false, Ordering::Relaxed) {
            turn.cancel();
        }
    }
    Ok(answer)
}
