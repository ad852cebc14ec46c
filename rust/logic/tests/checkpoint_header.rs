//! What a safetensors header may and may not say.

use castwise_logic::checkpoint::{Dtype, Header, HeaderError, TensorEntry, build, parse};
use safetensors::SafeTensors;

fn dtype(code: &str) -> Dtype {
    serde_json::from_str(&format!("{code:?}")).unwrap()
}

fn tensor(name: &str, code: &str, shape: &[usize]) -> (String, String, Vec<usize>) {
    (name.to_owned(), code.to_owned(), shape.to_vec())
}

fn refused(json: &str, data_len: u64) -> String {
    parse(json.as_bytes(), data_len).expect_err(json).to_string()
}

#[test]
fn built_headers_parse_to_what_was_asked() {
    let metadata =
        vec![("z".to_owned(), "last letter first".to_owned()), ("a".to_owned(), "\u{e9}\n\"".to_owned())];
    let asked = vec![
        tensor("bytes", "U8", &[3]),
        tensor("b", "F32", &[2, 2]),
        tensor("a", "F32", &[]),
        tensor("nibbles", "F4", &[2, 4]),
        tensor("empty", "BF16", &[0, 7]),
    ];
    let (bytes, placed) = build(asked.clone(), Some(metadata.clone())).unwrap();
    assert_eq!(bytes.len() % 8, 0);
    let stated = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(stated as usize, bytes.len() - 8);
    // "a", "b", "empty", "bytes", "nibbles", one after the other.
    assert_eq!(placed, [(2, 0), (1, 4), (4, 20), (0, 20), (3, 23)]);
    let ends = [4, 20, 20, 23, 27];
    let entries = placed.into_iter().zip(ends).map(|((position, begin), end)| {
        let (name, code, shape) = asked[position].clone();
        TensorEntry { name, dtype: dtype(&code), shape, begin, end }
    });
    let header = parse(&bytes[8..], 27).unwrap();
    assert_eq!(header, Header { tensors: entries.collect(), metadata: Some(metadata) });
}

#[test]
fn an_empty_checkpoint_is_valid() {
    let (bytes, placed) = build(Vec::new(), None).unwrap();
    assert!(placed.is_empty());
    assert!(parse(&bytes[8..], 0).unwrap().tensors.is_empty());
}

#[test]
fn entries_may_stand_in_any_order() {
    let json = r#"{"late":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},
                   "early":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let header = parse(json.as_bytes(), 6).unwrap();
    assert_eq!(header.tensors[0].name, "early");
    assert_eq!(header.tensors[1].dtype.code(), "U8");
}

#[test]
fn what_is_not_json_is_refused_with_its_place() {
    assert!(refused("GGUF", 0).contains("line 1 column 1"));
    assert!(refused("[]", 0).contains("an object that maps tensor names"));
    assert!(refused("{", 0).contains("EOF"));
    let deep = format!(r#"{{"t":{}{}}}"#, "[".repeat(5000), "]".repeat(5000));
    assert!(matches!(parse(deep.as_bytes(), 0), Err(HeaderError::Json(_))));
    assert_eq!(parse(b"{\"\xff", 0), Err(HeaderError::NotUtf8 { offset: 2 }));
}

#[test]
fn wrong_entries_name_their_tensor() {
    let one = |body: &str| format!(r#"{{"w":{{{body}}}}}"#);
    let code = one(r#""dtype":"F7","shape":[1],"data_offsets":[0,1]"#);
    let message = refused(&code, 1);
    assert!(message.contains("\"w\"") && message.contains("`F7`"), "{message}");
    let negative = one(r#""dtype":"U8","shape":[-1],"data_offsets":[0,1]"#);
    assert!(refused(&negative, 1).contains("\"w\""));
    let huge = one(r#""dtype":"U8","shape":[9223372036854775807,9223372036854775807],"data_offsets":[0,1]"#);
    assert!(refused(&huge, 1).contains("64 bits"));
    let short = one(r#""dtype":"F32","shape":[2],"data_offsets":[0,4]"#);
    assert!(refused(&short, 4).contains("tensor \"w\": its shape and dtype"));
    let half = one(r#""dtype":"F4","shape":[3],"data_offsets":[0,2]"#);
    assert!(refused(&half, 2).contains("whole number of bytes"));
    let backwards = one(r#""dtype":"U8","shape":[1],"data_offsets":[1,0]"#);
    assert!(refused(&backwards, 1).contains("\"w\""));
}

#[test]
fn the_culprit_is_the_tensor_that_is_wrong() {
    let json = r#"{"good":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                   "bad":{"dtype":"F32","shape":[9],"data_offsets":[1,5]}}"#;
    assert!(refused(json, 5).contains("tensor \"bad\""));
}

#[test]
fn overlaps_holes_and_leftovers_are_refused() {
    let two = |second: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},
                 "b":{{"dtype":"U8","shape":[4],"data_offsets":{second}}}}}"#
        )
    };
    assert!(refused(&two("[2,6]"), 6).contains("tensor \"b\": its bytes overlap"));
    assert!(refused(&two("[5,9]"), 9).contains("hole"));
    assert!(parse(two("[4,8]").as_bytes(), 8).is_ok());
    assert!(refused(&two("[4,8]"), 7).contains("truncated"));
    assert!(refused(&two("[4,8]"), 9).contains("belong to no tensor"));
}

#[test]
fn the_first_misplaced_of_many_is_named() {
    for (misplaced, begin) in [(0, 1), (7, 6), (999, 1000), (1000, 1001), (1000, 999), (2345, 0)] {
        let begin_of = |index| if index == misplaced { begin } else { index };
        let entry = |index| {
            let (begin, end) = (begin_of(index), index + 1);
            format!(r#""t{index}":{{"dtype":"U8","shape":[{}],"data_offsets":[{begin},{end}]}}"#, end - begin)
        };
        let json = format!("{{{}}}", (0..2500).map(entry).collect::<Vec<_>>().join(","));
        let message = refused(&json, 2500);
        assert!(message.starts_with(&format!("tensor \"t{misplaced}\": its bytes overlap")), "{message}");
    }
}

#[test]
fn names_are_unique() {
    let json = r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},
                   "a":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}}"#;
    assert!(refused(json, 0).contains("\"a\" occurs twice"));
    let twice = r#"{"__metadata__":{"k":"1","k":"2"}}"#;
    assert!(refused(twice, 0).contains("\"k\" occurs twice"));
    let same = vec![tensor("a", "U8", &[1]), tensor("a", "I8", &[1])];
    assert!(build(same, None).is_err());
    assert!(build(vec![tensor("__metadata__", "U8", &[1])], None).is_err());
}

#[test]
fn what_cannot_be_written_is_refused() {
    let message = build(vec![tensor("w", "F7", &[1])], None).unwrap_err().to_string();
    assert!(message.contains("\"w\"") && message.contains("F7"), "{message}");
    assert!(build(vec![tensor("w", "F4", &[3])], None).is_err());
    assert!(build(vec![tensor("w", "F32", &[usize::MAX])], None).is_err());
    let half = usize::MAX / 2 + 1;
    let both = vec![tensor("v", "U8", &[half]), tensor("w", "U8", &[half])];
    assert!(build(both, None).unwrap_err().to_string().contains("64 bits"));
}

#[test]
fn dtypes_are_those_of_the_safetensors_crate_in_its_order() {
    type Theirs = safetensors::Dtype;
    let unknown = |error: serde_json::Error| error.to_string();
    let listed = unknown(serde_json::from_str::<Theirs>("\"F7\"").unwrap_err());
    let ours = unknown(serde_json::from_str::<Dtype>("\"F7\"").unwrap_err());
    assert!(listed.starts_with(&ours), "{ours}");
    let codes: Vec<_> = listed.split('`').skip(3).step_by(2).collect();
    assert_eq!(codes.len(), 22, "{listed}");
    for (left, right) in codes.iter().zip(&codes[1..]) {
        assert!(dtype(left) < dtype(right), "{left} {right}");
    }
    for code in codes {
        let theirs: Theirs = serde_json::from_str(&format!("{code:?}")).unwrap();
        assert_eq!(dtype(code).bits(), theirs.bitsize(), "{code}");
    }
}

#[test]
fn what_is_refused_is_what_the_safetensors_crate_refuses() {
    let codes = ["BOOL", "F4", "F6_E2M3", "BF16", "F32", "C64", "F7"];
    let shapes =
        ["[]", "[0]", "[2]", "[3,1]", "[4,2]", "[8]", "[18446744073709551615,2]", "[2,-1]", "[1.0]", "2"];
    let ends = [0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64];
    let fields = |code: &str, shape: &str, begin: usize, end: usize| {
        format!(r#"{{"dtype":{code:?},"shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let mut entries = Vec::new();
    for (code, shape) in codes.into_iter().flat_map(|code| shapes.map(|shape| (code, shape))) {
        entries.extend(ends.map(|end| (fields(code, shape, 0, end), end)));
    }
    let whole = fields("U8", "[2]", 0, 2);
    for (field, other) in [
        ("\"dtype\":\"U8\",", ""),
        ("\"shape\":[2],", ""),
        (",\"data_offsets\":[0,2]", ""),
        ("\"dtype\"", "\"unknown\":[{}],\"dtype\""),
        ("\"dtype\"", "\"dtype\":\"I8\",\"dtype\""),
        ("[0,2]", "[0]"),
        ("[0,2]", "[0,2,2]"),
        ("[0,2]", "[2,0]"),
        ("\"U8\"", "null"),
        ("\"dtype\"", "\"dt\\u0079pe\""),
    ] {
        assert!(whole.contains(field), "{field}");
        entries.push((whole.replace(field, other), 2));
    }
    let mut accepted = 0;
    for (entry, end) in entries {
        for before in [r#""__metadata__":{"a":"b"},"#, r#""__metadata__":{"a":1},"#, "", r#""b":null,"#] {
            for (begin, len) in [(end, end + 2), (end + 1, end + 3), (end, end + 3), (end, end + 1)] {
                let second = fields("U8", "[2]", begin, begin + 2);
                let text = format!(r#"{{{before}"w":{entry},"second":{second}}}"#);
                let mut file = (text.len() as u64).to_le_bytes().to_vec();
                file.extend_from_slice(text.as_bytes());
                file.resize(file.len() + len, 0);
                let (theirs, ours) = (SafeTensors::deserialize(&file), parse(text.as_bytes(), len as u64));
                assert_eq!(ours.is_ok(), theirs.is_ok(), "{text} {len}: {ours:?} {theirs:?}");
                accepted += usize::from(ours.is_ok());
            }
        }
    }
    assert!(accepted > 50, "{accepted}");
    for entry in [r#"["F32",[1],[0,4]]"#, r#"{"dtype":{"F32":null},"shape":[1],"data_offsets":[0,4]}"#] {
        refused(&format!(r#"{{"w":{entry}}}"#), 4);
    }
}
