//! A map of bounded size that forgets what was not used for long.

use std::collections::hash_map::Entry;
use std::hash::Hash;

use rustc_hash::FxHashMap;

/// A map in two generations. What is used belongs to the young one; when that is full it becomes
/// the old one, and what nobody used in the meantime is dropped. So each call costs the same few
/// steps, no order of use is kept, and what was used among the last `capacity / 2` keys is there.
pub struct Cache<K, V> {
    young: FxHashMap<K, V>,
    old: FxHashMap<K, V>,
    generation: usize,
}

/// What a cache let go of. It is dropped by the caller, who may hold a lock until then.
#[must_use]
pub struct Evicted<K, V>(#[allow(dead_code, reason = "dropped, and not read")] FxHashMap<K, V>);

impl<K: Eq + Hash, V> Cache<K, V> {
    /// A cache of at most so many values.
    pub fn new(capacity: usize) -> Cache<K, V> {
        let (young, old) = Default::default();
        Cache { young, old, generation: (capacity / 2).max(1) }
    }

    /// The value of a key, which is young from now on.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        if !self.young.contains_key(key) {
            let (key, value) = self.old.remove_entry(key)?;
            self.young.insert(key, value);
        }
        self.young.get_mut(key)
    }

    /// Adds a value, or replaces the one that is there.
    pub fn insert(&mut self, key: K, value: V) -> Evicted<K, V> {
        self.old.remove(&key);
        let mut evicted = FxHashMap::default();
        if self.young.len() >= self.generation && !self.young.contains_key(&key) {
            evicted = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        }
        match self.young.entry(key) {
            Entry::Occupied(mut place) => drop(place.insert(value)),
            Entry::Vacant(place) => drop(place.insert(value)),
        }
        Evicted(evicted)
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_goes() {
        let mut cache = Cache::new(100);
        let mut evicted = 0;
        for key in 0..1000 {
            evicted += cache.insert(key, key * 2).0.len();
            assert!(cache.len() <= 100);
            if key % 40 == 0 {
                assert_eq!(cache.get(&0), Some(&mut 0), "after {key}");
            }
            assert_eq!(cache.get(&key), Some(&mut (key * 2)));
        }
        assert_eq!(evicted, 1000 - cache.len());
        assert!([1, 5000].iter().all(|key| cache.get(key).is_none()));
        // The last 50 keys are all there.
        assert!((950..1000).all(|key| cache.get(&key).is_some()));
    }

    #[test]
    fn a_value_is_replaced_in_either_generation() {
        let mut cache = Cache::new(4);
        for (key, value) in [(1, 'a'), (2, 'b'), (3, 'c'), (1, 'd'), (3, 'e')] {
            let _evicted = cache.insert(key, value);
        }
        assert_eq!(
            [1, 2, 3].map(|key| cache.get(&key).copied()),
            [Some('d'), Some('b'), Some('e')]
        );
        assert_eq!(cache.len(), 3);
        assert!(!cache.is_empty());
    }
}
