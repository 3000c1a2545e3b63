//! Outputs made of parts of the format, in any order: nothing panics, and no cut changes the events.

use super::*;
use proptest::prelude::*;

const PARTS: [&str; 40] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_call>\n<function=f>\n",
    "<function=f>",
    "<function=glob>",
    "<function=none>",
    "</function>",
    "</function>\n</tool_call>",
    "<parameter=x>",
    "<parameter=n>",
    "<parameter=o>\n",
    "<parameter=zz>\n",
    "</parameter>",
    "\n</parameter>\n",
    "<parameter=",
    "<function=",
    ">",
    "<",
    "</",
    "\n",
    "\n\n",
    " ",
    "a",
    "é",
    "日本",
    "42",
    "5.0",
    "null",
    "\"",
    "\\",
    "{\"name\": \"f\", \"arguments\": {",
    "{",
    "}",
    "[",
    "]",
    "}}",
    "\"x\": \"1\"",
    "\u{1}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn pieces_change_nothing(
        parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..24),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        open: bool,
        cut: bool,
        declared: bool,
    ) {
        let output = parts.concat();
        let declared = if declared { tools() } else { Vec::new() };
        let parser = OutputParser::new(open, &declared, &ToolChoice::Auto);
        let whole = parse(&parser, [output.as_str()], cut);
        show(&whole);
        let places: Vec<usize> = cuts.iter().map(|c| c.index(output.len() + 1)).collect();
        prop_assert_eq!(&parse(&parser, cut_at(&output, &places), cut), &whole);
        let letters: Vec<usize> = (0..output.len()).collect();
        prop_assert_eq!(&parse(&parser, cut_at(&output, &letters), cut), &whole);
    }

    #[test]
    fn any_string_comes_back_as_it_was(value in any::<String>(), typed in any::<String>()) {
        let end = "</parameter>";
        prop_assume!(!value.contains(end) && !typed.contains(end));
        let parser = OutputParser::new(false, &tools(), &ToolChoice::Auto);
        let output = format!(
            "<tool_call>\n<function=f>\n<parameter=x>\n{value}\n</parameter>\n<parameter=n>\n{typed}\n</parameter>\n</function>\n</tool_call>"
        );
        let events = parse(&parser, output.split_inclusive('e'), false);
        let [_, Event::Arguments { piece, .. }, _] = &events[..] else { panic!("{events:?}") };
        let arguments: Json = serde_json::from_str(piece).unwrap();
        prop_assert_eq!(arguments["x"].as_str(), Some(value.as_str()));
        match &arguments["n"] {
            Json::String(text) => prop_assert_eq!(text, &typed),
            Json::Number(_) => prop_assert!(typed.trim().parse::<f64>().is_ok()),
            other => prop_assert!(other.is_null(), "{}", other),
        }
    }
}

#[test]
fn without_tools_nothing_is_lost() {
    let mut random = Random(17);
    for _ in 0..500 {
        let output: String = (0..random.below(30)).map(|_| PARTS[random.below(PARTS.len())]).collect();
        for choice in [ToolChoice::None, ToolChoice::AutoOf(vec!["other".into()])] {
            let text = format!("-{output}");
            let events = parse(&OutputParser::new(false, &tools(), &choice), [text.as_str()], false);
            assert_eq!(events, [Event::Text(text)]);
        }
    }
}
