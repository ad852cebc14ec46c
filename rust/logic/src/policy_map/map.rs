//! Keys in order, with values; which keys match a path, and which of them wins.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::index::Index;
use super::matching::Slot;
use super::pattern::{Engine, Pattern};
use castwise_core::codec::options::Named;
use castwise_core::sort_few::sort_triples;

/// What happens where several keys match a path that is not itself a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// The lookup fails.
    Raise,
    /// The key that was inserted first wins.
    First,
    /// The longest key wins, the first of equally long ones.
    Longest,
}

impl Named for Overlap {
    const ARGUMENT: &'static str = "on_overlap";
    const NAMES: &'static [(&'static str, Self)] =
        &[("raise", Self::Raise), ("first", Self::First), ("longest", Self::Longest)];
}

/// One key.
#[derive(Debug)]
pub struct Key<V> {
    /// As it was given.
    pub text: Box<str>,
    /// What it maps to.
    pub value: V,
    pattern: Pattern,
}

impl<V> Key<V> {
    /// Returns the engine that matches paths against it.
    pub fn engine(&self) -> Engine {
        self.pattern.engine()
    }

    /// Returns the texts of its groups (see [`Pattern::groups`]).
    pub fn groups<'a>(&self, path: &'a str) -> Option<Vec<Option<&'a str>>> {
        self.pattern.groups(path)
    }
}

/// The result of a lookup, before Python is asked.
#[derive(Debug)]
pub struct Matches<'a, V> {
    /// The key that is the path itself.
    pub exact: Option<&'a Key<V>>,
    /// Keys that match (true), and keys that only Python can judge (false), in the order of insertion.
    pub matches: Vec<(&'a Key<V>, bool)>,
}

/// The map. Lookups take `&mut self` because they bring the index up to date.
#[derive(Debug)]
pub struct PolicyMap<V> {
    keys: BTreeMap<Slot, Key<V>>,
    slots: HashMap<Box<str>, Slot>,
    next: Slot,
    /// Inserted since the last lookup.
    fresh: Vec<Slot>,
    /// Each at least twice as large as the next, so keys may come one by one between lookups.
    segments: Vec<Segment>,
    /// Keys that only Python can match, for any path.
    python: BTreeSet<Slot>,
}

#[derive(Debug)]
struct Segment {
    slots: Vec<Slot>,
    index: Index,
}

impl<V> Default for PolicyMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> PolicyMap<V> {
    /// An empty map. The patterns of its keys say how they match.
    #[must_use]
    pub fn new() -> Self {
        Self {
            keys: BTreeMap::new(),
            slots: HashMap::new(),
            next: 0,
            fresh: Vec::new(),
            segments: Vec::new(),
            python: BTreeSet::new(),
        }
    }

    /// Adds a key at the end; `pattern` is what `Pattern::new` made of it.
    ///
    /// # Errors
    /// The value, if the map has the key.
    pub fn insert(&mut self, text: &str, pattern: Pattern, value: V) -> Result<(), V> {
        if self.slots.contains_key(text) {
            return Err(value);
        }
        let slot = self.next;
        match pattern.engine() {
            Engine::Exact => {}
            Engine::Linear(_) => self.fresh.push(slot),
            Engine::Python => {
                self.python.insert(slot);
            }
        }
        self.next += 1;
        self.slots.insert(text.into(), slot);
        self.keys.insert(slot, Key { text: text.into(), value, pattern });
        Ok(())
    }

    /// Takes a key out.
    pub fn remove(&mut self, text: &str) -> Option<V> {
        let slot = self.slots.remove(text)?;
        let key = self.keys.remove(&slot)?;
        self.python.remove(&slot);
        // Segments keep the slots of removed keys until half of them are removed.
        let indexed: usize = self.segments.iter().map(|segment| segment.slots.len()).sum();
        if indexed + self.fresh.len() > 2 * self.keys.len() + 16 {
            self.fresh = self.live().collect();
            self.segments.clear();
        }
        Some(key.value)
    }

    /// Returns a key.
    #[must_use]
    pub fn key(&self, text: &str) -> Option<&Key<V>> {
        self.keys.get(self.slots.get(text)?)
    }

    /// Takes out the key that was inserted last.
    pub fn pop_last(&mut self) -> Option<(Box<str>, V)> {
        let text = self.keys.values().next_back()?.text.clone();
        self.remove(&text).map(|value| (text, value))
    }

    fn live(&self) -> impl Iterator<Item = Slot> {
        self.keys.iter().filter(|(_, key)| matches!(key.engine(), Engine::Linear(_))).map(|(&slot, _)| slot)
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, text: &str) -> Option<&V> {
        self.slots.get(text).map(|slot| &self.keys[slot].value)
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Keys in the order of insertion.
    #[must_use]
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Key<V>> {
        self.keys.values()
    }

    /// The key that is the path, or else the keys that match it; with `all`, both.
    pub fn find(&mut self, path: &str, all: bool) -> Matches<'_, V> {
        let exact = self.slots.get(path).copied();
        let mut slots = Vec::new();
        if exact.is_none() || all {
            self.refresh();
            for segment in &mut self.segments {
                segment.index.candidates(path, |slot, sure| slots.push((slot, sure.into(), 0)));
            }
            slots.extend(self.python.iter().map(|&slot| (slot, 0, 0)));
            sort_triples(&mut slots);
            slots.dedup_by_key(|&mut (slot, ..)| slot);
        }
        let judged = slots.into_iter().filter_map(|(slot, sure, _)| {
            let key = self.keys.get(&slot).filter(|_| Some(slot) != exact)?;
            if sure == 1 {
                return Some((key, true));
            }
            key.pattern.matches(path).map_or(Some((key, false)), |matches| matches.then_some((key, true)))
        });
        Matches { matches: judged.collect(), exact: exact.map(|slot| &self.keys[&slot]) }
    }

    /// Indexes the keys added since the last lookup, merging segments that are not much larger.
    fn refresh(&mut self) {
        if self.fresh.is_empty() {
            return;
        }
        let mut slots = std::mem::take(&mut self.fresh);
        for slot in &slots {
            if let Some(key) = self.keys.get_mut(slot) {
                key.pattern.prepare();
                if key.engine() == Engine::Python {
                    self.python.insert(*slot);
                }
            }
        }
        while let Some(last) = self.segments.pop_if(|last| last.slots.len() < 2 * slots.len()) {
            slots.extend(last.slots);
        }
        slots.retain(|slot| self.keys.get(slot).is_some_and(|key| key.engine() != Engine::Python));
        let index = Index::new(slots.iter().map(|slot| (*slot, &self.keys[slot].pattern)));
        self.segments.push(Segment { slots, index });
    }
}

impl Overlap {
    /// Returns which of the matching keys wins, by its place among them, given in the order of insertion.
    ///
    /// # Errors
    /// There are several, and they may not overlap.
    #[expect(clippy::result_unit_err, reason = "the caller has the keys, and so all there is to say")]
    pub fn winner(self, matches: &[&str]) -> Result<Option<usize>, ()> {
        match (self, matches) {
            (_, []) => Ok(None),
            (Self::Raise, [_, _, ..]) => Err(()),
            (Self::Longest, _) => {
                let longest_first =
                    |&place: &usize| (matches[place].chars().count(), std::cmp::Reverse(place));
                Ok((0..matches.len()).max_by_key(longest_first))
            }
            _ => Ok(Some(0)),
        }
    }
}
