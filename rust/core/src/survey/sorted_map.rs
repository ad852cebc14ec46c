//! A map of few keys, in one block of memory.

#![deny(unsafe_code)]

/// Values by key, the lowest key first. Most keys of a survey arrive in ascending order, and there are at most a few thousand;
/// an instance of `BTreeMap` takes about 8 KB of machine code more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// Returns the value of a key, a new default one if there is none.
    pub fn entry(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let index = self.0.binary_search_by(|(other, _)| other.cmp(&key)).unwrap_or_else(|index| {
            self.0.insert(index, (key, V::default()));
            index
        });
        &mut self.0[index].1
    }
}

impl<K, V> SortedMap<K, V> {
    /// Returns how many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns keys and values.
    #[must_use]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Returns the keys.
    #[must_use]
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Returns the values, in the order of their keys.
    #[must_use]
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::SortedMap;

    #[test]
    fn as_the_map_of_the_standard_library() {
        let (mut ours, mut theirs) = (SortedMap::<u64, u64>::default(), BTreeMap::<u64, u64>::new());
        assert!(ours.is_empty());
        for i in 0..500_u64 {
            let key = i.wrapping_mul(0x9e37_79b9) >> 4 & 127;
            *ours.entry(key) += i;
            *theirs.entry(key).or_default() += i;
        }
        assert_eq!(ours.len(), theirs.len());
        assert!(ours.iter().rev().eq(theirs.iter().rev()));
        assert!(ours.keys().eq(theirs.keys()) && ours.values().eq(theirs.values()));
        assert!(ours.into_iter().eq(theirs));
    }
}
