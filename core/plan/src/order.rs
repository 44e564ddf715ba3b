//! Order of lists. Each kind of list that the standard library sorts costs the library 2 to 5 kB of code (docs/adr/0014): short ones
//! are kept in order as they are made, by [`insert`], long ones are brought into the order of their keys, by [`ascending`].

/// The places of keys in ascending order; equal ones as they stand.
pub fn ascending(keys: impl Iterator<Item = u128>) -> Vec<usize> {
    places(keys.zip(0..).collect())
}

#[inline(never)]
fn places(mut all: Vec<(u128, usize)>) -> Vec<usize> {
    all.sort_unstable();
    all.into_iter().map(|(_, place)| place).collect()
}

/// Puts an item into a short list that is in the order of its keys, behind equal ones.
pub fn insert<T, K: Ord>(list: &mut Vec<T>, item: T, key: impl Fn(&T) -> K) {
    let own = key(&item);
    let at = list.iter().position(|other| key(other) > own).unwrap_or(list.len());
    list.insert(at, item);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ones_keep_their_order() {
        assert_eq!(ascending([3, 1, 3, 0].into_iter()), [3, 1, 0, 2]);
        assert!(ascending(std::iter::empty()).is_empty());
        let mut list = Vec::new();
        for item in [(2, 'a'), (1, 'b'), (2, 'c'), (1, 'd'), (3, 'e')] {
            insert(&mut list, item, |item| item.0);
        }
        assert_eq!(list.iter().map(|item| item.1).collect::<String>(), "bdace");
    }
}
