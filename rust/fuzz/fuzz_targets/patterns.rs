//! Keys of maps: the index gives what each pattern by itself does, and the two ways to translate agree where both can.

#![no_main]

use castwise_logic::policy_map::{Classes, Matching, Overlap, Pattern, PolicyMap};
use libfuzzer_sys::fuzz_target;

/// More than a pattern of a model needs, and few enough for many runs a second.
const MOST: usize = 200;

fuzz_target!(|texts: (bool, bool, Vec<&str>)| {
    let (searches, interleaved, texts) = texts;
    let matching = if searches { Matching::Search } else { Matching::Full };
    let texts: Vec<&str> = texts.into_iter().filter(|text| text.len() <= MOST).take(8).collect();
    let (keys, paths) = texts.split_at(texts.len() / 2);
    let mut map = PolicyMap::new();
    let mut patterns = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        let mut pattern = Pattern::new(key, matching);
        let is_known = patterns.iter().any(|(known, _)| known == key);
        assert_eq!(map.insert(key, Pattern::new(key, matching), number).is_err(), is_known);
        pattern.prepare();
        if !is_known {
            patterns.push((*key, pattern));
        }
        if interleaved {
            let _ = map.find(key, false);
        }
    }
    for path in paths.iter().chain(keys) {
        check(path, &mut map, &patterns, matching);
    }
    if let Some(key) = keys.first() {
        assert!(map.remove(key).is_some());
        patterns.retain(|(known, _)| known != key);
        paths.iter().for_each(|path| check(path, &mut map, &patterns, matching));
    }
});

fn check(path: &str, map: &mut PolicyMap<usize>, patterns: &[(&str, Pattern)], matching: Matching) {
    // Wider than Python's classes, and the same for paths of ASCII.
    let classes = Classes {
        digit: "0-9".to_owned(),
        space: r"\x09-\x0d\x1c-\x20\x{85}".to_owned(),
        word: r"0-9A-Z_a-z\x{aa}-\x{ff}".to_owned(),
    };
    let found = map.find(path, true);
    assert_eq!(found.exact.is_some(), patterns.iter().any(|(key, _)| *key == path));
    let expected: Vec<_> = patterns
        .iter()
        .filter(|(key, _)| *key != path)
        .filter_map(|(key, pattern)| {
            let judged = pattern.matches(path);
            if let (Some(narrow), Some(wide)) = (judged, Pattern::wide(key, matching, &classes).matches(path))
                && path.is_ascii()
            {
                assert_eq!(narrow, wide, "{key:?} {path:?}");
            }
            judged.map_or(Some((*key, false)), |matches| matches.then_some((*key, true)))
        })
        .collect();
    let matches: Vec<_> = found.matches.iter().map(|&(key, sure)| (&*key.text, sure)).collect();
    // Of those that only Python can judge, the index may know better: they need a text that the path has not.
    let sure = |(_, sure): &&(&str, bool)| *sure;
    assert!(
        matches.iter().filter(sure).eq(expected.iter().filter(sure)),
        "{path:?}: {matches:?}, {expected:?}"
    );
    assert!(matches.iter().all(|found| expected.contains(found)), "{path:?}: {matches:?}, {expected:?}");
    let keys: Vec<_> = matches.iter().map(|&(key, _)| key).collect();
    for overlap in [Overlap::Raise, Overlap::First, Overlap::Longest] {
        assert!(
            overlap.winner(&keys).is_ok_and(|winner| winner.is_some() != keys.is_empty()) || keys.len() > 1
        );
    }
}
