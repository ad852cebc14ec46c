//! Sorts lists, without the 5 KB of code that the standard library's sort is for each type.

/// Sorts a few items by insertion, which keeps the order of items that `are_in_order` either way.
pub fn sort_few<T>(items: &mut [T], are_in_order: impl Fn(&T, &T) -> bool) {
    for end in 1..items.len() {
        for place in (1..=end).rev() {
            if are_in_order(&items[place - 1], &items[place]) {
                break;
            }
            items.swap(place - 1, place);
        }
    }
}

/// Sorts lists of any length, whose items are written as three numbers.
#[inline(never)]
pub fn sort_triples(items: &mut [(usize, usize, usize)]) {
    items.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::sort_few;

    #[test]
    fn as_the_stable_sort() {
        for count in 0..40_u64 {
            let mut items: Vec<_> = (0..count).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 4 & 7, i)).collect();
            let mut wanted = items.clone();
            wanted.sort_by_key(|item| item.0);
            sort_few(&mut items, |left, right| left.0 <= right.0);
            assert_eq!(items, wanted);
        }
    }
}
