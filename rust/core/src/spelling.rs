//! The similarity of texts, for errors and reports that name what was probably meant.

/// Levenshtein distance: the fewest characters to insert, delete or replace.
fn distance(left: &str, right: &str) -> usize {
    distances(left, right, 1).last().unwrap_or(0)
}

/// The most meanings that are suggested for a wrong name.
const SUGGESTED: usize = 3;

/// Bytes of a wrong name, at most: longer ones, which come from files, mean nothing, and would take long to compare.
const LONGEST_NAME: usize = 256;

/// Steps that all comparisons of texts may take together: a second or two.
const MOST_STEPS: usize = 1 << 30;

/// The places of the `names` that a wrong one probably means: those that are equal but for abbreviations and separators
/// ("bf-16" is bfloat16), else those that begin or end with it, else those with the fewest other letters, if these are few, else
/// those that share the longest beginning, of half its letters or more.
#[must_use]
pub fn likely_names(wanted: &str, names: &[&str]) -> Vec<usize> {
    if wanted.len() > LONGEST_NAME {
        return Vec::new();
    }
    let (wanted, short) = (wanted.trim().to_lowercase(), abbreviated(wanted));
    let places = |of: &dyn Fn(&str) -> Option<usize>| {
        let scores: Vec<_> = names.iter().map(|name| of(name)).collect();
        let least = scores.iter().flatten().min().copied();
        (0..names.len()).filter(|&place| least.is_some() && scores[place] == least).collect::<Vec<_>>()
    };
    let equal = places(&|name| (abbreviated(name) == short).then_some(0));
    if !equal.is_empty() || short.chars().count() < 2 {
        return equal;
    }
    let longer = places(&|name| is_end_of(&short, &abbreviated(name)).then_some(0));
    if !longer.is_empty() {
        return longer;
    }
    let alike = places(&|name| {
        let few = |left: &str, right: &str| {
            let other = distance(left, right);
            let is_other_word = left.chars().next() != right.chars().next();
            let letters = left.chars().count();
            (other <= (letters / 3).max(if letters < 4 { 1 } else { 2 }))
                .then_some(2 * other + usize::from(is_other_word))
        };
        let spelled = few(&wanted, &name.to_lowercase());
        spelled.into_iter().chain(few(&short, &abbreviated(name))).min()
    });
    if !alike.is_empty() {
        return alike;
    }
    places(&|name| {
        let name = name.to_lowercase();
        let shared = wanted.chars().zip(name.chars()).take_while(|(left, right)| left == right).count();
        (shared > 2 && 2 * shared >= wanted.chars().count()).then(|| usize::MAX - shared)
    })
}

/// Whether a name is of a quantization of GGUF files, such as `Q8_0` and `q4_k_m`.
#[must_use]
pub fn is_gguf_type(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    let letters = name.strip_prefix(['i', 't']).unwrap_or(&name).as_bytes();
    let [b'q', digit, b'_', rest @ ..] = letters else { return false };
    digit.is_ascii_digit()
        && !rest.is_empty()
        && rest.iter().all(|&byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

/// Up to three of the meanings of names that a wrong name probably means; each name comes with its meaning.
#[must_use]
pub fn likely_meanings<T: PartialEq + Clone>(
    wanted: &str,
    names: impl IntoIterator<Item = (&'static str, T)>,
) -> Vec<T> {
    let (names, meanings): (Vec<_>, Vec<_>) = names.into_iter().unzip();
    let mut likely: Vec<T> = Vec::new();
    for place in likely_names(wanted, &names) {
        if !likely.contains(&meanings[place]) && likely.len() < SUGGESTED {
            likely.push(meanings[place].clone());
        }
    }
    likely
}

/// Whether a name begins or ends with a text, which must not cut a number in two.
fn is_end_of(text: &str, name: &str) -> bool {
    let is_digit = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_digit());
    let begins = name
        .strip_prefix(text)
        .is_some_and(|rest| !(is_digit(text.chars().next_back()) && is_digit(rest.chars().next())));
    let ends = name
        .strip_suffix(text)
        .is_some_and(|rest| !(is_digit(text.chars().next()) && is_digit(rest.chars().next_back())));
    begins || ends
}

/// A name after the last dot, in lower case, without separators, with "f" for "float" and "fp", and "i" for "int".
fn abbreviated(name: &str) -> String {
    let name = name.trim().rsplit('.').next().unwrap_or_default();
    let letters: String = name.chars().filter(|letter| letter.is_alphanumeric()).collect();
    letters.to_lowercase().replace("float", "f").replace("fp", "f").replace("int", "i")
}

/// The place in `texts` of the one that contains what is spelled most like `wanted`; of equals the one of the most
/// similar length, then the first. `None` if more than a third of the letters differ, or two of a short name: nobody meant
/// that.
#[must_use]
pub fn nearest(wanted: &str, texts: &[String]) -> Option<usize> {
    let score = |text: &str| {
        let length = text.chars().count().abs_diff(wanted.chars().count());
        // Skipping a beginning is free, and the best end is taken.
        (distances(text, wanted, 0).min().unwrap_or(0), length)
    };
    let letters = wanted.chars().filter(|letter| letter.is_alphanumeric()).count();
    // Names have none of the signs of a pattern, as `.*` and `\\.`, which thus do not tell.
    let signs = wanted.chars().count() - letters;
    let (place, (distance, _)) =
        texts.iter().map(|text| score(text)).enumerate().min_by_key(|(_, score)| *score)?;
    (distance <= (letters / 3).max(2) + signs).then_some(place)
}

/// For each of `wanted` what [`nearest`] returns; `None` for those that would take too long.
#[must_use]
pub fn nearest_of_each(wanted: &[String], texts: &[String]) -> Vec<Option<usize>> {
    let length: usize = texts.iter().map(String::len).sum();
    let mut left = MOST_STEPS;
    let place = |wanted: &String| {
        left = left.checked_sub(wanted.len().saturating_mul(length))?;
        nearest(wanted, texts)
    };
    wanted.iter().map(place).collect()
}

/// The distance of each beginning of `left` to the whole of `right`, the empty one first; `skip` is the cost of a
/// character of `left` that comes before the part that is compared.
fn distances(left: &str, right: &str, skip: usize) -> impl Iterator<Item = usize> {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    let rest: Vec<usize> = left
        .chars()
        .map(|a| {
            let mut diagonal = row[0];
            row[0] += skip;
            for (j, b) in right.iter().enumerate() {
                let substituted = diagonal + usize::from(a != *b);
                diagonal = row[j + 1];
                row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
            }
            row[right.len()]
        })
        .collect();
    std::iter::once(right.len()).chain(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_levenshteins() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
    }

    #[test]
    fn likely_names_are_equal_begin_alike_or_are_few_letters_away() {
        let names =
            ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "mixed_bfloat16", "bnb_nf4", "nvfp4"];
        let likely = |wanted| likely_names(wanted, &names).into_iter().map(|place| names[place]);
        let is = |wanted, expected: &[&str]| assert!(likely(wanted).eq(expected.iter().copied()), "{wanted}");
        is("bf-16", &["bfloat16"]);
        is("mixed_bf16", &["mixed_bfloat16"]);
        is("fp8", &["float8_e4m3fn", "float8_e5m2"]);
        is("fp8_e4m3", &["float8_e4m3fn"]);
        is("torch.bfloat61", &["bfloat16"]);
        is("floot16", &["float16"]);
        is("nvfp5", &["nvfp4"]);
        is("nf4", &["bnb_nf4"]);
        is("float12", &["float16"]);
        is("unit", &[]);
        is("mixed_floats", &["mixed_bfloat16"]);
        is("mixed_precision", &[]);
        is("something", &[]);
        is("", &[]);
        is("x.bf16", &["bfloat16"]);
        is(&format!("{}.bf16", "x".repeat(LONGEST_NAME)), &[]);
    }

    #[test]
    fn quantizations_of_gguf_are_known_by_their_form() {
        for name in ["Q8_0", "q4_k_m", "Q6_K", "IQ2_XXS", "iq4_nl", "TQ1_0"] {
            assert!(is_gguf_type(name), "{name}");
        }
        for name in ["q_proj", "int8", "q8", "qq8_0", "q8_0.weight", "mxfp4", ""] {
            assert!(!is_gguf_type(name), "{name}");
        }
    }

    #[test]
    fn what_would_take_too_long_has_no_nearest() {
        let texts = ["b".repeat(1 << 16)];
        let wanted = ["b".to_owned(), "b".repeat(MOST_STEPS >> 16), "c".to_owned()];
        assert_eq!(nearest_of_each(&wanted, &texts), [Some(0), None, Some(0)]);
    }

    #[test]
    fn the_nearest_may_be_a_part() {
        let texts = ["decoder/x", "encoder/attention/query", "head"].map(str::to_owned);
        assert_eq!(nearest("encodr/", &texts), Some(1));
        assert_eq!(nearest("heat", &texts), Some(2));
        assert_eq!(nearest("a", &[]), None);
        assert_eq!(nearest(r".*\.attxntion\.quxry", &texts), Some(1));
        assert_eq!(nearest("nomatch", &texts), None);
        assert_eq!(nearest(r".*\.nomatch\..*", &texts), None);
    }
}
