use super::*;

const BOTH: LoopGuard = LoopGuard { thinking: true, answer: true };

/// The token after which the text is said to repeat itself; words, digits and signs are tokens, as in the family.
fn found(text: &str) -> Option<usize> {
    let mut guard = RepeatGuard::new(BOTH);
    tokens(text).into_iter().position(|t| guard.push(t, true))
}

fn tokens(text: &str) -> Vec<u32> {
    let mut out = Vec::new();
    let mut word = 0u32;
    for c in text.chars() {
        if c.is_alphabetic() {
            word = word.wrapping_mul(31).wrapping_add(c as u32);
            continue;
        }
        if word != 0 {
            out.push(word | 1 << 31);
            word = 0;
        }
        if c != ' ' {
            out.push(c as u32);
        }
    }
    out
}

/// A sentence of its own for every number.
fn sentence(n: usize) -> String {
    let words = ["so", "then", "the", "sum", "of", "it", "must", "be", "less", "than", "what", "we", "had", "before"];
    let mut n = n * 2_654_435_761 % (1 << 31);
    let mut out = String::new();
    for _ in 0..12 {
        out += words[n % words.len()];
        out.push(' ');
        n = (n * 48271 + 11) % 2_147_483_647;
    }
    out + ".\n"
}

/// Sentences without the end of the last, which would be taken for a part of the loop behind them.
fn lead(sentences: std::ops::Range<usize>) -> String {
    let text: String = sentences.map(sentence).collect();
    text.trim_end_matches(".\n").to_string()
}

#[test]
fn short_loops_are_found() {
    let lead = lead(1..2);
    for (unit, stretch) in [
        ("word ", 400),
        ("wait, ", 400),
        ("Let me check this again. I think that the answer is 4.\n", 400),
        // Sixteen times 48 tokens.
        ("a b c d e f g h i j k l m n o p q r s t u v w x y z a c e g i k m o q s u w y b d f h j l n p . ", 768),
    ] {
        let at = found(&(lead.clone() + &unit.repeat(600)));
        assert_eq!(at, Some(tokens(&lead).len() + stretch - 1), "{unit}");
    }
}

#[test]
fn long_loops_are_found() {
    let lead = lead(100..200);
    // Of 4096 runs 1024 are different: one for each of the paragraph's tokens (14 a sentence), the others of the lead or
    // from it to the paragraph (31).
    for (sentences, stretch) in [(8, 3215), (20, 3383), (70, 4083)] {
        let paragraph: String = (0..sentences).map(sentence).collect();
        let at = found(&(lead.clone() + &paragraph.repeat(80)));
        assert_eq!(at, Some(tokens(&lead).len() + stretch - 1), "{sentences} sentences");
    }
}

#[test]
fn what_only_looks_alike_is_not_a_loop() {
    let lines = |line: &dyn Fn(usize) -> String| (0..3000).map(line).collect::<String>();
    let letters = |n: usize| ["ab", "cd", "ef", "gh", "ij"].map(|l| l.repeat(1 + n * 7919 % 13)).join("");
    let texts = [
        ("prose", lines(&sentence)),
        ("numbers", lines(&|n| format!("{n}\n"))),
        ("a table", lines(&|n| format!("| {n} | {} | {}.{:02} | yes |\n", n * n, n / 7, n * 37 % 100))),
        ("a table of few values", lines(&|n| format!("{n},0,0,0,1,0,0,0,0,0,0,0,1,0\n"))),
        (
            "JSON",
            lines(&|n| format!("{{\"id\": {n}, \"name\": \"item {n}\", \"price\": {}, \"tags\": []}},\n", n * 3 % 101)),
        ),
        ("a numbered list", lines(&|n| format!("{n}. Check that the file number {n} is there and can be read.\n"))),
        (
            "code",
            lines(&|n| {
                format!("    let value_{n} = table.get({n}).copied().unwrap_or_default();\n    sum += value_{n};\n")
            }),
        ),
        ("a match", lines(&|n| format!("        Kind::{}{n} => \"{}\",\n", letters(n), letters(n + 1)))),
        (
            "records",
            lines(&|n| {
                format!(
                    "<row><id>{n}</id><name>first</name><kind>second</kind><size>12</size><owner>nobody</owner></row>\n"
                )
            }),
        ),
        ("a rule", "-".repeat(300) + "\n"),
        ("a sequence", lines(&|n| format!("{}, ", (n * n + 41) % 9973))),
        (
            "tests of a hypothesis",
            lines(&|n| format!("For n = {n} we get {} which is {}, so it holds.\n", n * n + n, n * n)),
        ),
    ];
    for (name, text) in texts {
        assert_eq!(found(&text), None, "{name}");
    }
    let block: String = (0..40).map(sentence).collect();
    assert_eq!(found(&(block.repeat(2) + &(50..400).map(sentence).collect::<String>())), None, "a text said twice");
}

#[test]
fn it_looks_where_it_is_told_to() {
    let run = |options: LoopGuard, reasoning: bool| {
        let mut guard = RepeatGuard::new(options);
        (0..2000).position(|_| guard.push(7, reasoning))
    };
    let only = |thinking, answer| LoopGuard { thinking, answer };
    assert_eq!([true, false].map(|reasoning| run(LoopGuard::default(), reasoning)), [Some(399), None]);
    assert_eq!([true, false].map(|reasoning| run(only(false, true), reasoning)), [None, Some(399)]);
    // Thinking and answer are two texts.
    let mut guard = RepeatGuard::new(BOTH);
    assert!((0..300).all(|_| !guard.push(7, true)) && (0..300).all(|_| !guard.push(7, false)));
}

#[test]
fn memory_is_bounded() {
    let mut guard = RepeatGuard::new(BOTH);
    (0..100_000u32).for_each(|t| {
        guard.push(t.wrapping_mul(2_654_435_761), true);
    });
    assert_eq!((guard.runs.len(), guard.counts.len(), guard.last.len()), (RUNS, RUNS, PERIODS));
}
