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
    let log = Log::new("s", Duration::from_secs(keep));
    let (streams, cancel, cancelled) = (Streams::new(4), Arc::new(Cancel::default()), Arc::new(AtomicUsize::new(0)));
    let count = cancelled.clone();
    cancel.add(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let reader = Reader::first(log.clone(), cancel, streams.clone(), "chat", Client::default());
    Stream { log, streams, cancelled, reader: Some(reader) }
}

fn read(reader: &mut Reader) -> String {
    match reader.take() {
        Taken::Piece(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        Taken::Nothing => "nothing".into(),
        Taken::End => "end".into(),
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
    assert!(s.streams.resume("s", None, "chat", &Client::default()).is_err());
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
    assert!(s.streams.resume("s", None, "chat", &other).is_err(), "of another client");
    assert!(s.streams.resume("s", None, "messages", &Client::default()).is_err(), "of another API");
    assert!(s.streams.resume("s", Some(4), "chat", &Client::default()).is_err(), "beyond its end");

    let mut second = s.streams.resume("s", None, "chat", &Client::default()).unwrap();
    assert!(read(&mut second).starts_with("id: s:3\ndata: c\n\nevent: progress"));
    let mut third = s.streams.resume("s", Some(1), "chat", &Client::default()).unwrap();
    assert_eq!(read(&mut second), "end", "the third took over");
    assert!(read(&mut third).starts_with("id: s:2\ndata: b\n\nid: s:3"));
    s.log.finish();
    assert_eq!(read(&mut third), "end");
    drop(second);
    drop(third);
    assert!(s.streams.resume("s", None, "chat", &Client::default()).is_err(), "it was fetched");
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
