use super::*;
use proptest::prelude::*;

/// Token `i` below 256 is the byte `i`; then a special token, a token outside the byte alphabet, and a gap before 300.
fn table() -> TokenTable {
    let mut table = TokenTable::default();
    let alphabet: Vec<char> = (0..0x144).filter_map(char::from_u32).filter(|&c| byte_of(c).is_some()).collect();
    for byte in 0..=255 {
        let written = alphabet.iter().find(|&&c| byte_of(c) == Some(byte)).unwrap();
        table.insert(u32::from(byte), &written.to_string(), false);
    }
    table.insert(256, "<|end|>", true);
    table.insert(257, "日本 ", false);
    table.insert(300, "Ġhi", false);
    table
}

fn stream(ids: &[u32], special: SpecialTokens) -> String {
    let mut detokenizer = Detokenizer::new(Arc::new(table()), special);
    let mut out = String::new();
    for &id in ids {
        out.push_str(detokenizer.push(id));
    }
    out + detokenizer.finish()
}

fn whole(ids: &[u32], special: SpecialTokens) -> String {
    let table = table();
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| table.shown(id, special)).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn the_alphabet_has_every_byte_once() {
    let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    for (c, byte) in [('Ġ', b' '), ('Ċ', b'\n'), ('a', b'a'), ('Ń', 0xad), ('ł', 0xa0), ('ġ', 0x7f), ('¡', 0xa1)]
    {
        assert_eq!(byte_of(c), Some(byte), "{c}");
    }
}

#[test]
fn a_character_comes_out_whole() {
    let mut detokenizer = Detokenizer::new(Arc::new(table()), SpecialTokens::Show);
    let pieces: Vec<String> = "é😀".bytes().map(|b| detokenizer.push(u32::from(b)).to_string()).collect();
    assert_eq!(pieces, ["", "é", "", "", "", "😀"]);
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn a_lone_byte_becomes_a_replacement_and_the_stream_goes_on() {
    assert_eq!(stream(&[0x80, 0x41], SpecialTokens::Show), "\u{fffd}A");
    assert_eq!(stream(&[0xe2, 0x82, 0x41], SpecialTokens::Show), "\u{fffd}A");
    assert_eq!(stream(&[0xf0, 0x9f], SpecialTokens::Show), "\u{fffd}");
    let mut detokenizer = Detokenizer::new(Arc::new(table()), SpecialTokens::Show);
    assert_eq!(detokenizer.push(0x80), "\u{fffd}", "at once, since no byte can repair it");
}

#[test]
fn special_tokens_are_shown_or_skipped() {
    let ids = [300, 256, 257, 299, 9999];
    assert_eq!(stream(&ids, SpecialTokens::Show), " hi<|end|>日本 ");
    assert_eq!(stream(&ids, SpecialTokens::Skip), " hi日本 ");
    assert_eq!(stream(&[0xc3, 256, 0xa9], SpecialTokens::Skip), "é", "as when all is decoded at once");
}

proptest! {
    #[test]
    fn any_ids_add_up_to_the_whole(
        ids in prop::collection::vec(
            prop_oneof![0u32..310, 0x80u32..0x100, prop::sample::select(vec![0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98])], 0..60),
        skip: bool,
    ) {
        let special = if skip { SpecialTokens::Skip } else { SpecialTokens::Show };
        prop_assert_eq!(stream(&ids, special), whole(&ids, special));
    }

    #[test]
    fn text_comes_back(text in any::<String>()) {
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        prop_assert_eq!(stream(&ids, SpecialTokens::Show), text);
    }
}
