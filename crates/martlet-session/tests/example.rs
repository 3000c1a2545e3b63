//! The example: its conversation goes on after a restart, from states on disk.

#[allow(dead_code)]
#[path = "../examples/chat.rs"]
mod chat;

use martlet_chat::Conversation;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the example writes when these lines are typed.
fn typed(lines: &str, file: &Path, stop: &AtomicBool) -> String {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/fledgling");
    let mut out = Vec::new();
    chat::talk(&model, file, stop, lines.as_bytes(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// (cached, all) of the prompt tokens, turn by turn.
fn cached(out: &str) -> Vec<(usize, usize)> {
    let lines = out.lines().filter_map(|l| l.strip_prefix('[')?.strip_suffix(" cached]")?.split_once(" of "));
    lines.map(|(cached, all)| (cached.parse().unwrap(), all.parse().unwrap())).collect()
}

#[test]
fn a_conversation_is_saved_and_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat.json");
    let never = AtomicBool::new(false);
    let list = (1..60).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let first = typed(&format!("Which number follows these? {list}\n/memory 512\nhello\n"), &file, &never);
    let [(0, _), (again, _)] = cached(&first)[..] else { panic!("{first}") };
    assert!(again > 64, "the first message is not computed twice: {first}");
    let saved = |messages| {
        let chat: Conversation = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(chat.messages.len(), messages);
    };
    saved(4);

    let second = typed("What is 2 + 2?\n", &file, &never);
    let [(restored, _)] = cached(&second)[..] else { panic!("{second}") };
    assert!(restored > 64, "states come back from disk: {second}");
    saved(6);

    // Whoever wants no answer any more gets none, and the conversation can go on.
    let stop = AtomicBool::new(true);
    typed("Write a story.\n", &file, &stop);
    assert!(!stop.load(Ordering::Relaxed));
    saved(8);
}
