//! Declared orders: the tree over ranks along which the values of every element are combined.
//!
//! A node of a tree is a run of neighbouring ranks; its two children are the runs before and behind the rank
//! where it splits, and the one before is the left operand. An order says which nodes there are, and which
//! of them are rounded to the data type: types that are combined in a wider one are rounded at the end of a
//! step.

/// A tree over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// From rank 0 on, each rank onto the sum of those before it, rounded once at the end.
    Ranks,
    /// A node splits behind the largest power of two that is less than its ranks, and every node is rounded:
    /// a block of 2^k ranks that begins at a multiple of 2^k is a node, so that trees of fewer ranks nest.
    Nested,
}

/// Most ranks that are combined in the order of ranks: what one step of the interpreter and one exchange of a
/// fused kernel take.
pub const MOST_IN_RANK_ORDER: u32 = 8;

/// Most ranks whose tree is shown whole.
const MOST_SHOWN: u32 = 16;

impl Order {
    /// The order that a level of `HAWSER_REPRODUCIBLE` declares for so many ranks; None for level 0.
    pub fn of(level: u8, ranks: u32) -> Option<Self> {
        match level {
            0 => None,
            1 if ranks <= MOST_IN_RANK_ORDER => Some(Self::Ranks),
            _ => Some(Self::Nested),
        }
    }

    /// The rank at which a node of `first..end` splits; it has two ranks or more.
    pub fn split(self, first: u32, end: u32) -> u32 {
        match self {
            Self::Ranks => end - 1,
            Self::Nested => first + (end - first).next_power_of_two() / 2,
        }
    }

    /// The tree as brackets, such as `((0 1) (2 3))`; of many ranks the top of it, such as `(0..=63
    /// 64..=127)`.
    pub fn tree(self, ranks: u32) -> String {
        let whole = if ranks <= MOST_SHOWN { 1 } else { ranks.next_power_of_two() / 8 };
        self.node_text((0, ranks), whole)
    }

    /// A node as brackets, down to nodes of `whole` ranks.
    fn node_text(self, (first, end): (u32, u32), whole: u32) -> String {
        match end - first {
            1 => first.to_string(),
            count if count <= whole => format!("{first}..={}", end - 1),
            _ => {
                let middle = self.split(first, end);
                let [left, right] = [(first, middle), (middle, end)].map(|node| self.node_text(node, whole));
                format!("({left} {right})")
            }
        }
    }
}

/// The tree that a program is compared with, and what its values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Declared {
    /// The order.
    pub order: Order,
    /// The number of ranks.
    pub ranks: u32,
    /// Values are combined in a wider type, and each step rounds its result.
    pub is_narrow: bool,
    /// The operation gives the same bits when its operands change places: sums and products do (but for the
    /// payloads of NaN), maxima and minima need not where zeros have signs.
    pub commutes: bool,
}

impl Declared {
    /// The node that a step makes of its operands, each of which is a node.
    ///
    /// # Errors
    /// The difference from the tree in words.
    pub(super) fn join(
        &self,
        mut operands: impl ExactSizeIterator<Item = Option<(u32, u32)>>,
    ) -> Result<(u32, u32), String> {
        let count = operands.len();
        let lost = || "goes on with a value that is no part of the declared order".to_string();
        let mut all = operands.next().flatten().ok_or_else(lost)?;
        for next in operands {
            all = self.pair(all, next.ok_or_else(lost)?)?;
        }
        match self.order {
            Order::Nested if self.is_narrow && count > 2 => Err(format!(
                "combines {count} values before it rounds, where the declared order rounds each pair"
            )),
            Order::Ranks if self.is_narrow && all != (0, self.ranks) => Err(format!(
                "rounds {}, where the declared order rounds only the whole",
                named("the combination of", all)
            )),
            _ => Ok(all),
        }
    }

    /// The node that two nodes are the children of.
    fn pair(&self, left: (u32, u32), right: (u32, u32)) -> Result<(u32, u32), String> {
        let (low, high) = if self.commutes && right.0 < left.0 { (right, left) } else { (left, right) };
        let node = (low.0, high.1);
        let is_node = match self.order {
            Order::Ranks => node.0 == 0,
            Order::Nested => {
                let width = (node.1 - node.0.min(node.1)).next_power_of_two();
                node.0.is_multiple_of(width) && node.1 == (node.0 + width).min(self.ranks)
            }
        };
        if low.1 != high.0 || !is_node || self.order.split(node.0, node.1) != high.0 {
            return Err(format!(
                "combines {}, which the declared order {} does not",
                named(&format!("{} with", named("", left)), right),
                self.order.tree(self.ranks)
            ));
        }
        Ok(node)
    }
}

/// The words for a node, behind others.
fn named(before: &str, (first, end): (u32, u32)) -> String {
    let node =
        if end - first == 1 { format!("rank {first}") } else { format!("ranks {first} to {}", end - 1) };
    if before.is_empty() { node } else { format!("{before} {node}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_as_they_are_declared() {
        assert_eq!(Order::Ranks.tree(4), "(((0 1) 2) 3)");
        assert_eq!(Order::Nested.tree(8), "(((0 1) (2 3)) ((4 5) (6 7)))");
        assert_eq!(Order::Nested.tree(5), "(((0 1) (2 3)) 4)");
        assert_eq!(Order::Nested.tree(7), "(((0 1) (2 3)) ((4 5) 6))");
        assert_eq!(Order::Ranks.tree(1), "0");
        assert_eq!(Order::Nested.tree(20), "(((0..=3 4..=7) (8..=11 12..=15)) 16..=19)");
        let of = [(0, 4, None), (1, 8, Some(Order::Ranks)), (1, 9, Some(Order::Nested))];
        assert!(of.into_iter().all(|(level, ranks, order)| Order::of(level, ranks) == order));
        assert_eq!(Order::of(2, 2), Some(Order::Nested));
    }

    /// Every pair of neighbouring nodes is joined exactly where the tree has their parent.
    #[test]
    fn only_children_of_a_node_are_joined() {
        for order in [Order::Ranks, Order::Nested] {
            for ranks in 2..if cfg!(miri) { 6 } else { 24_u32 } {
                let declared = Declared { order, ranks, is_narrow: false, commutes: false };
                let mut nodes = Vec::new();
                let mut open = vec![(0, ranks)];
                while let Some((first, end)) = open.pop() {
                    nodes.push((first, end));
                    if end - first > 1 {
                        let middle = order.split(first, end);
                        open.extend([(first, middle), (middle, end)]);
                    }
                }
                for &left in &nodes {
                    for &right in &nodes {
                        let is_parent = left.1 == right.0
                            && nodes.contains(&(left.0, right.1))
                            && order.split(left.0, right.1) == right.0;
                        assert_eq!(
                            declared.pair(left, right).is_ok(),
                            is_parent,
                            "{order:?} of {ranks}: {left:?} {right:?}"
                        );
                    }
                }
            }
        }
    }
}
