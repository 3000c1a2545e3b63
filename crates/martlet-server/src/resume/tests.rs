use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

fn frames(texts: &[&str]) -> Vec<Frame> {
    texts.iter().map(|text| Frame::word(text)).collect()
}

struct Stream {
    log: Arc<Log>,
    streams: Arc<Streams>,
    cancelled: Arc<AtomicUsize>,
    reader: Option<Reader>,
}

fn stream(keep: u64) -> Stream {
    let streams = Streams::new(4, 1100);
    let log = streams.log("s", Duration::from_secs(keep));
    let (cancel, cancelled) = (Arc::new(Cancel::default()), Arc::new(AtomicUsize::new(0)));
    let count = cancelled.clone();
    cancel.add(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let reader = Reader::first(log.clone(), CancelOnDrop::new(cancel), streams.clone(), "chat", Client::default());
    Stream { log, streams, cancelled, reader: Some(reader) }
}

fn read(reader: &mut Reader) -> String {
    match reader.take() {
        Taken::Piece(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        Taken::Nothing => "nothing".into(),
        Taken::End => "end".into(),
        Taken::GivenUp => "given up".into(),
    }
}

#[test]
fn a_reader_gets_each_frame_once_and_its_going_cancels() {
    let mut s = stream(0);
    let mut reader = s.reader.take().unwrap();
    assert_eq!(read(&mut reader), "nothing");
    s.log.push(&mut frames(&["a", "b"]));
    assert_eq!(read(&mut reader), "data: a\n\ndata: b\n\n");
    assert_eq!(lock(&s.log.state).frames.len(), 0, "what was read is forgotten");
    s.log.push(&mut frames(&["c"]));
    s.log.finish();
    assert_eq!((read(&mut reader), read(&mut reader)), ("data: c\n\n".to_string(), "end".to_string()));
    drop(reader);
    assert_eq!(s.cancelled.load(Ordering::Relaxed), 1);
    assert!(s.streams.resume("s", 0, "chat", &Client::default()).is_err());
}

#[test]
fn a_kept_stream_goes_on_where_its_reader_was_or_where_it_says() {
    let mut s = stream(60);
    let mut reader = s.reader.take().unwrap();
    s.log.push(&mut frames(&["a", "b"]));
    assert_eq!(read(&mut reader), "id: s:1\ndata: a\n\nid: s:2\ndata: b\n\n");
    drop(reader);
    assert_eq!((s.streams.detached(), s.cancelled.load(Ordering::Relaxed)), (1, 0));
    s.log.push(&mut frames(&["c"]));
    s.log.push(&mut vec![Frame::progress(1, 2)]);

    let other = Client::of_key("another");
    assert!(s.streams.resume("s", 0, "chat", &other).is_err(), "of another client");
    assert!(s.streams.resume("s", 0, "messages", &Client::default()).is_err(), "of another API");
    assert!(s.streams.resume("s", 4, "chat", &Client::default()).is_err(), "beyond its end");

    let mut second = s.streams.resume("s", 2, "chat", &Client::default()).unwrap();
    assert!(read(&mut second).starts_with("id: s:3\ndata: c\n\nevent: progress"));
    let mut whole = s.streams.resume("s", 0, "chat", &Client::default()).unwrap();
    assert!(read(&mut whole).starts_with("id: s:1\ndata: a"), "who does not say what came gets all");
    let mut third = s.streams.resume("s", 1, "chat", &Client::default()).unwrap();
    assert_eq!(read(&mut second), "end", "the third took over");
    assert!(read(&mut third).starts_with("id: s:2\ndata: b\n\nid: s:3"));
    s.log.finish();
    assert_eq!(read(&mut third), "end");
    drop(second);
    drop(third);
    assert!(s.streams.resume("s", 0, "chat", &Client::default()).is_err(), "it was fetched");
}

#[test]
fn nobody_comes_back() {
    let mut s = stream(60);
    drop(s.reader.take());
    s.streams.sweep(Instant::now());
    assert_eq!((s.streams.detached(), s.cancelled.load(Ordering::Relaxed)), (1, 0));
    s.streams.sweep(Instant::now() + Duration::from_secs(61));
    assert_eq!((s.streams.detached(), s.cancelled.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn a_reader_who_goes_when_another_has_taken_over_changes_nothing() {
    let mut s = stream(60);
    let first = s.reader.take();
    let second = s.streams.resume("s", 0, "chat", &Client::default()).unwrap();
    drop(first);
    assert_eq!(s.streams.detached(), 0);
    drop(second);
    assert_eq!(s.streams.detached(), 1);
}

#[test]
fn what_waits_for_readers_is_bounded() {
    let mut s = stream(60);
    let mut reader = s.reader.take().unwrap();
    let long = "x".repeat(400);
    s.log.push(&mut frames(&[&long, "b"]));
    read(&mut reader);
    s.log.push(&mut frames(&[&long, "d"]));
    s.streams.sweep(Instant::now());
    assert_eq!(lock(&s.log.state).frames.len(), 4, "within the room nothing is forgotten");

    s.log.push(&mut frames(&[&long]));
    s.streams.sweep(Instant::now());
    assert_eq!((lock(&s.log.state).frames.len(), s.cancelled.load(Ordering::Relaxed)), (3, 0), "what was read went");
    let error = s.streams.resume("s", 1, "chat", &Client::default()).err().unwrap();
    assert!(error.message.contains("follows event 2"), "{}", error.message);
    let mut second = s.streams.resume("s", 2, "chat", &Client::default()).unwrap();

    assert!(s.log.push(&mut frames(&[&long])));
    s.streams.sweep(Instant::now());
    assert_eq!((read(&mut second), s.log.held()), ("given up".to_string(), 0));
    assert!(!s.log.push(&mut frames(&["e"])), "its turn hears of it");
    assert!(s.streams.resume("s", 2, "chat", &Client::default()).is_err());
}

#[test]
fn a_client_ends_its_kept_stream_and_fetches_what_there_is() {
    let mut s = stream(60);
    s.log.push(&mut frames(&["a"]));
    assert!(s.streams.cancel("s", &Client::of_key("another")).is_err());
    assert_eq!(s.cancelled.load(Ordering::Relaxed), 0);
    assert_eq!(s.streams.cancel("s", &Client::default()), Ok(true));
    assert_eq!(s.cancelled.load(Ordering::Relaxed), 1);
    s.log.finish();
    assert_eq!(s.streams.cancel("s", &Client::default()), Ok(true), "as often as one likes");
    assert_eq!(read(s.reader.as_mut().unwrap()), "id: s:1\ndata: a\n\n");

    let s = stream(60);
    s.log.finish();
    assert_eq!(s.streams.cancel("s", &Client::default()), Ok(false), "it had ended by itself");
}
