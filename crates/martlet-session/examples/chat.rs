//! A chat with history and streaming: `cargo run --release --example chat -- models/fledgling`.

use martlet_chat::{Conversation, Message, Role};
use martlet_session::{Answer, Event, ModelSource, Options, Prompt, Session, TurnOptions};
use std::io::{BufRead, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or("models/fledgling".into());
    let session = Session::open(&ModelSource::Path(path.into()), &Options::default(), &mut |_, _| {})?;
    let mut chat = Conversation::default();
    for line in std::io::stdin().lock().lines() {
        chat.messages.push(Message::text(Role::User, line?));
        let answer = stream(&session, &chat)?;
        let mut message = Message::text(Role::Assistant, answer.text);
        message.reasoning_content = Some(answer.reasoning).filter(|r| !r.is_empty());
        chat.messages.push(message);
    }
    Ok(())
}

/// Prints the answer while it comes; thinking goes to standard error.
fn stream(session: &Session, chat: &Conversation) -> Result<Answer, Box<dyn std::error::Error>> {
    let mut answer = Answer::default();
    for event in session.start(&Prompt::Chat(chat.clone()), &TurnOptions::default())? {
        let event = event?;
        match &event {
            Event::Text(piece) => print!("{piece}"),
            Event::Reasoning(piece) => eprint!("{piece}"),
            Event::Finished(outcome) => println!("\n[{} tokens]", outcome.usage.generated_tokens),
            Event::Prefill { .. } | Event::Token(_) => {}
        }
        std::io::stdout().flush()?;
        answer.add(event);
    }
    Ok(answer)
}
