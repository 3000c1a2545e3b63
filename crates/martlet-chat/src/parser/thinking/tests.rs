use super::*;
use proptest::prelude::*;

/// All reasoning and all text of an output that comes in the given pieces.
fn split<'a>(open: bool, pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
    let mut splitter = ThinkingSplitter::new(open);
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(splitter.push(piece));
    }
    events.extend(splitter.finish());
    let (mut reasoning, mut text) = (String::new(), String::new());
    for event in events {
        match event {
            Event::Reasoning(part) => {
                assert!(text.is_empty(), "reasoning comes before text");
                reasoning.push_str(&part);
            }
            Event::Text(part) => text.push_str(&part),
        }
    }
    (reasoning, text)
}

#[test]
fn outputs_of_the_family_are_split() {
    let cases = [
        // prompt ends inside <think>, output, reasoning, text
        (true, "hm\n</think>\n\nyes", "hm", "yes"),
        (true, "\nhm\n</think>\n\nyes\n", "hm", "yes\n"),
        (true, "\n</think>\n\nyes", "", "yes"),
        (true, "</think>yes", "", "yes"),
        (true, "a\n\nb\n\n\n</think>\n\n\nyes", "a\n\nb", "yes"),
        (true, "cut off\n", "cut off\n", ""),
        (true, "cut </thin", "cut </thin", ""),
        (true, "a </thinking> b</think>c", "a </thinking> b", "c"),
        (true, "a</th</think>c</think>d", "a</th", "c</think>d"),
        (true, "a <think> b</think>c", "a <think> b", "c"),
        (true, "", "", ""),
        (false, "<think>\nhm\n</think>\n\nyes", "hm", "yes"),
        (false, "\n <think>hm</think> yes", "hm", " yes"),
        (false, "no thinking", "", "no thinking"),
        (false, "  indented", "", "  indented"),
        (false, "a <think>b</think>", "", "a <think>b</think>"),
        (false, "<thin", "", "<thin"),
        (false, " \n", "", " \n"),
        (
            true,
            "a\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
            "a",
            "<tool_call>\n<function=f>\n</function>\n</tool_call>",
        ),
    ];
    for (open, output, reasoning, text) in cases {
        let expected = (reasoning.to_string(), text.to_string());
        assert_eq!(split(open, [output]), expected, "{output:?} at once");
        let letters: Vec<String> = output.chars().map(String::from).collect();
        assert_eq!(split(open, letters.iter().map(String::as_str)), expected, "{output:?} by letter");
    }
}

#[test]
fn certain_text_is_not_held_back() {
    let mut splitter = ThinkingSplitter::new(true);
    assert_eq!(splitter.push("one two"), [Event::Reasoning("one two".into())]);
    assert_eq!(splitter.push("\n</thi"), []);
    assert_eq!(splitter.push("s"), [Event::Reasoning("\n</this".into())]);
    assert!(splitter.is_reasoning());
    assert_eq!(splitter.push("</think>\n\nyes"), [Event::Text("yes".into())]);
    assert_eq!(splitter.push("</thi"), [Event::Text("</thi".into())]);
    assert!(!splitter.is_reasoning());
}

#[test]
fn much_white_space_is_text() {
    let output = " ".repeat(65) + "<think>x</think>";
    assert_eq!(split(false, [output.as_str()]), (String::new(), output.clone()));
    assert_eq!(split(false, output.split_inclusive(' ')), (String::new(), output.clone()));
}

#[test]
fn the_prompt_tells_whether_thinking_is_open() {
    assert!(prompt_opens_thinking("<|im_start|>assistant\n<think>\n"));
    assert!(!prompt_opens_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert!(!prompt_opens_thinking("say <think><|im_end|>\n<|im_start|>assistant\n"));
}

proptest! {
    #[test]
    fn pieces_change_nothing(
        parts in prop::collection::vec(
            prop::sample::select(vec!["<think>", "</think>", "\n", "<", "</", "think>", "é", "a", " "]), 0..20),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        open: bool,
    ) {
        let output = parts.concat();
        let mut borders: Vec<usize> = cuts.iter().map(|c| c.index(output.len() + 1)).collect();
        borders.retain(|&b| output.is_char_boundary(b));
        borders.extend([0, output.len()]);
        borders.sort_unstable();
        let pieces = borders.windows(2).map(|w| &output[w[0]..w[1]]);
        prop_assert_eq!(split(open, pieces), split(open, [output.as_str()]));
    }
}
