//! The similarity of texts, for errors and reports that name what was probably meant.

/// Levenshtein distance: the fewest characters to insert, delete or replace.
pub(crate) fn distance(left: &str, right: &str) -> usize {
    distances(left, right, 1).last().unwrap_or(0)
}

/// The place in `texts` of the one that contains what is spelled most like `wanted`; of equals the one of the most
/// similar length, then the first.
#[must_use]
pub fn nearest(wanted: &str, texts: &[String]) -> Option<usize> {
    let score = |text: &str| {
        let length = text.chars().count().abs_diff(wanted.chars().count());
        // Skipping a beginning is free, and the best end is taken.
        (distances(text, wanted, 0).min(), length)
    };
    texts.iter().enumerate().min_by_key(|(_, text)| score(text)).map(|(place, _)| place)
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
    fn the_nearest_may_be_a_part() {
        let texts = ["decoder/x", "encoder/attention/query", "head"].map(str::to_owned);
        assert_eq!(nearest("encodr/", &texts), Some(1));
        assert_eq!(nearest("heat", &texts), Some(2));
        assert_eq!(nearest("a", &[]), None);
    }
}
