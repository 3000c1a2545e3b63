use super::*;
use martlet_tensor::Float;

/// A file with this header text and so many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn error(bytes: &[u8]) -> String {
    read(bytes, &Limits::default()).unwrap_err().to_string()
}

fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

#[test]
fn written_files_are_read_back() {
    let tensors = [
        Tensor::floats("b", Float::Bf16, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        Tensor::floats("a", Float::F32, &[], &[7.0]),
        Tensor { name: "c".into(), dtype: Dtype::U32, shape: vec![2, 0], bytes: vec![] },
    ];
    let bytes = to_bytes("pt", &tensors);
    let mut streamed = Vec::new();
    write(&mut streamed, "pt", &tensors).unwrap();
    assert_eq!(bytes, streamed);
    let found = read(&bytes, &Limits::default()).unwrap();
    let key = |t: &TensorInfo| (t.name.clone(), t.dtype, t.shape.clone(), bytes[t.range.clone()].to_vec());
    let expected = tensors.map(|t| (t.name, t.dtype, t.shape, t.bytes));
    assert_eq!(found.iter().map(key).collect::<Vec<_>>(), expected);
}

#[test]
fn the_order_of_the_header_is_not_that_of_the_data() {
    let header = format!("{{{},{}}}", entry("a", "U8", "[4]", "[8,12]"), entry("b", "F32", "[2]", "[0,8]"));
    let found = read(&file(&header, 12), &Limits::default()).unwrap();
    assert_eq!(found.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(found[1].range, 8 + header.len() + 8..8 + header.len() + 12);
}

#[test]
fn lengths_are_not_believed() {
    assert!(error(b"1234567").contains("has 7 bytes"));
    let mut huge = (1u64 << 60).to_le_bytes().to_vec();
    huge.extend([0; 100]);
    let text = error(&huge);
    assert!(text.contains("header of 1152921504606846976 bytes, but the file has 108"), "{text}");
    let text = error(&u64::MAX.to_le_bytes());
    assert!(text.contains("18446744073709551615"), "{text}");
    let text = error(&file("{}", 0)[..9]);
    assert!(text.contains("header of 2 bytes, but the file has 9"), "{text}");
    let small = Limits { header_bytes: 10, ..Limits::default() };
    let text = read(&file("{            }", 0), &small).unwrap_err().to_string();
    assert!(text.contains("14 bytes; at most 10"), "{text}");
}

#[test]
fn truncated_files_name_the_tensor() {
    let header = format!("{{{},{}}}", entry("first", "F32", "[2]", "[0,8]"), entry("last", "F32", "[4]", "[8,24]"));
    let whole = file(&header, 24);
    assert!(read(&whole, &Limits::default()).is_ok());
    let text = error(&whole[..whole.len() - 1]);
    assert!(text.contains("last") && text.contains("byte 24") && text.contains("holds 23"), "{text}");
}

#[test]
fn offsets_must_tile_the_data() {
    let two = |a: &str, b: &str, data| {
        let header = format!("{{{},{}}}", entry("one", "U8", "[4]", a), entry("two", "U8", "[4]", b));
        error(&file(&header, data))
    };
    let text = two("[0,4]", "[3,7]", 7);
    assert!(text.contains("one and two overlap") && text.contains("byte 3"), "{text}");
    let text = two("[0,4]", "[0,4]", 4);
    assert!(text.contains("overlap"), "{text}");
    let text = two("[0,4]", "[5,9]", 9);
    assert!(text.contains("bytes 4 to 5") && text.contains("before two"), "{text}");
    let text = two("[1,5]", "[5,9]", 9);
    assert!(text.contains("bytes 0 to 1") && text.contains("before one"), "{text}");
    let text = two("[0,4]", "[4,8]", 12);
    assert!(text.contains("bytes 8 to 12") && text.contains("end of the file"), "{text}");
    let text = two("[0,4]", "[8,4]", 8);
    assert!(text.contains("two") && text.contains("begins at byte 8"), "{text}");
    let text = two("[0,4]", "[18446744073709551612,18446744073709551615]", 8);
    assert!(text.contains("two") && text.contains("holds 8"), "{text}");
    let text = two("[0,4]", "[-4,0]", 8);
    assert!(text.contains("two") && text.contains("not valid"), "{text}");
}

#[test]
fn shapes_and_types_are_checked() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        error(&file(&format!("{{{}}}", entry("weird", dtype, shape, offsets)), 16))
    };
    let text = one("F32", "[5]", "[0,16]");
    assert!(text.contains("weird") && text.contains("takes 20 bytes, found 16"), "{text}");
    let text = one("F32", "[4294967296,4294967296,4]", "[0,16]");
    assert!(text.contains("weird") && text.contains("more than 2^64"), "{text}");
    let text = one("F32", "[0,18446744073709551615]", "[0,16]");
    assert!(text.contains("weird") && text.contains("takes 0 bytes"), "{text}");
    let text = one("F4_E2M1", "[16]", "[0,16]");
    assert!(text.contains("weird") && text.contains("F4_E2M1") && text.contains("known are"), "{text}");
    let text = one("U8", "[1,1,1,1,1,1,1,1,16]", "[0,16]");
    assert!(text.contains("weird") && text.contains("more than 8 dimensions"), "{text}");
    let text = one("U8", "[1.5]", "[0,16]");
    assert!(text.contains("weird"), "{text}");
}

#[test]
fn names_are_listed_once_and_headers_are_json() {
    let twice = format!("{{{},{}}}", entry("same", "U8", "[4]", "[0,4]"), entry("same", "U8", "[4]", "[4,8]"));
    let text = error(&file(&twice, 8));
    assert!(text.contains("same") && text.contains("twice"), "{text}");
    for header in ["", "{", "[]", "null", "{\"a\":1}", "{\"a\":{}}", "\u{0}", "{}x", &"[".repeat(100_000)] {
        assert!(error(&file(header, 0)).contains("not valid"), "{header:.20}");
    }
    let more = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}}"#;
    let text = error(&file(more, 1));
    assert!(text.contains("tensor a") && text.contains("more"), "{text}");
    assert_eq!(read(&file(r#"{"__metadata__":{"format":"pt"}}"#, 0), &Limits::default()).unwrap(), []);
}

/// What must hold for any bytes: no panic, and what is accepted tiles the data.
fn examine(bytes: &[u8]) -> bool {
    let Ok(tensors) = read(bytes, &Limits::default()) else {
        return false;
    };
    let mut end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for t in &tensors {
        assert_eq!(t.range.start, end);
        assert_eq!(t.range.len(), t.shape.iter().product::<usize>() * t.dtype.size());
        end = t.range.end;
    }
    assert_eq!(end, bytes.len());
    true
}

#[test]
fn mutated_files_never_panic() {
    let header = format!(
        "{{\"__metadata__\":{{\"format\":\"pt\"}},{},{},{}}}",
        entry("a", "BF16", "[2,2]", "[0,8]"),
        entry("b", "U8", "[12]", "[12,24]"),
        entry("c", "F32", "[1]", "[8,12]")
    );
    let seed = file(&header, 24);
    assert!(examine(&seed));
    let mut random = crate::mutate::Random::new(7);
    let accepted = (0..60_000).filter(|_| examine(&random.mutate(&seed))).count();
    assert!(accepted > 100, "mutations should not all be refused at once: {accepted}");
}
