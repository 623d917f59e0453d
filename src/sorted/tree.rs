//! Keeps the shape of a sorted collection: which entry is before which.

use std::cmp::Ordering;

/// No position.
const NONE: u32 = u32::MAX;

/// A balanced binary tree of positions. The owner has the entries, each at its position in a list without gaps.
///
/// It is an AVL tree: the heights of two siblings differ by one at most, so a search takes at most 1.44 · log₂ n steps.
/// It knows nothing about the entries. So one copy of its code serves all of them.
#[derive(Clone)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    root: u32,
}

#[derive(Clone, Copy)]
struct Node {
    up: u32,
    /// The nodes below: the one before, and the one after.
    down: [u32; 2],
    /// The nodes on the longest path down, with this one.
    height: u8,
}

/// Where a new entry belongs.
#[derive(Clone, Copy)]
pub(super) struct Place {
    up: u32,
    side: usize,
}

impl Tree {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), root: NONE }
    }

    /// Searches for a key. `compare` says how the entry at a position compares to it.
    ///
    /// # Errors
    /// The key is missing. The place is where it belongs.
    pub(super) fn find(&self, compare: &mut dyn FnMut(usize) -> Ordering) -> Result<usize, Place> {
        let mut place = Place { up: NONE, side: 0 };
        let mut at = self.root;
        while at != NONE {
            let side = match compare(at as usize) {
                Ordering::Equal => return Ok(at as usize),
                Ordering::Greater => 0,
                Ordering::Less => 1,
            };
            place = Place { up: at, side };
            at = self.node(at).down[side];
        }
        Err(place)
    }

    /// Adds a node. Its position is behind all others.
    pub(super) fn insert(&mut self, place: Place) {
        let new = self.nodes.len() as u32;
        self.nodes.push(Node { up: place.up, down: [NONE; 2], height: 1 });
        match place.up {
            NONE => self.root = new,
            up => self.nodes[up as usize].down[place.side] = new,
        }
        self.balance_upwards(place.up);
    }

    /// Removes the node at this position. The node at the last position takes it, as with `Vec::swap_remove`.
    pub(super) fn remove(&mut self, position: usize) {
        let at = position as u32;
        let removed = *self.node(at);
        let [before, after] = removed.down;
        let changed;
        if before == NONE || after == NONE {
            self.put(removed.up, at, if before == NONE { after } else { before });
            changed = removed.up;
        } else {
            // The next node takes its place. That has nothing before it.
            let heir = self.outermost(after, 0);
            let Node { up, down: [_, rest], .. } = *self.node(heir);
            if up == at {
                changed = heir;
            } else {
                changed = up;
                self.put(up, heir, rest);
                self.link(heir, 1, after);
            }
            self.link(heir, 0, before);
            self.nodes[heir as usize].height = removed.height;
            self.put(removed.up, at, heir);
        }
        self.balance_upwards(changed);
        self.fill(at);
    }

    /// Returns the first position in the order, or the last one.
    pub(super) fn end(&self, side: usize) -> Option<usize> {
        match self.outermost(self.root, side) {
            NONE => None,
            at => Some(at as usize),
        }
    }

    /// Returns a walk over all positions in the order of their entries.
    pub(super) fn walk(&self) -> Walk<'_> {
        Walk { tree: self, ends: [0, 1].map(|side| self.outermost(self.root, side)) }
    }

    /// Returns a walk over some positions: those that neither stand before a range nor behind it.
    pub(super) fn walk_within(
        &self,
        is_before: &mut dyn FnMut(usize) -> bool,
        is_behind: &mut dyn FnMut(usize) -> bool,
    ) -> Walk<'_> {
        let first = self.border(1, is_before);
        let last = self.border(0, is_behind);
        let is_empty = first == NONE || last == NONE || is_behind(first as usize);
        Walk { tree: self, ends: if is_empty { [NONE; 2] } else { [first, last] } }
    }

    /// Returns the outermost node that is not outside. A search that meets a node outside continues on `inwards`.
    fn border(&self, inwards: usize, is_outside: &mut dyn FnMut(usize) -> bool) -> u32 {
        let mut found = NONE;
        let mut at = self.root;
        while at != NONE {
            let side = if is_outside(at as usize) {
                inwards
            } else {
                found = at;
                1 - inwards
            };
            at = self.node(at).down[side];
        }
        found
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    /// Returns the last node on this side of a subtree.
    fn outermost(&self, mut at: u32, side: usize) -> u32 {
        while at != NONE && self.node(at).down[side] != NONE {
            at = self.node(at).down[side];
        }
        at
    }

    /// Returns the next node on this side.
    fn neighbor(&self, mut at: u32, side: usize) -> u32 {
        let below = self.node(at).down[side];
        if below != NONE {
            return self.outermost(below, 1 - side);
        }
        loop {
            let up = self.node(at).up;
            if up == NONE || self.node(up).down[side] != at {
                return up;
            }
            at = up;
        }
    }

    fn height(&self, at: u32) -> u8 {
        if at == NONE { 0 } else { self.node(at).height }
    }

    fn link(&mut self, up: u32, side: usize, below: u32) {
        self.nodes[up as usize].down[side] = below;
        if below != NONE {
            self.nodes[below as usize].up = up;
        }
    }

    /// Puts a node, or none, where another one was below `up`.
    fn put(&mut self, up: u32, old: u32, new: u32) {
        if up != NONE {
            let side = usize::from(self.node(up).down[1] == old);
            self.link(up, side, new);
        } else {
            self.root = new;
            if new != NONE {
                self.nodes[new as usize].up = NONE;
            }
        }
    }

    /// Corrects heights from a node upwards, as far as they change.
    fn balance_upwards(&mut self, mut at: u32) {
        while at != NONE {
            let before = self.height(at);
            let top = self.balance(at);
            if self.height(top) == before {
                break;
            }
            at = self.node(top).up;
        }
    }

    /// Balances a node whose subtrees are balanced. Returns the node that is at its place then.
    fn balance(&mut self, at: u32) -> u32 {
        let [before, after] = self.node(at).down.map(|below| self.height(below));
        if before.abs_diff(after) < 2 {
            self.measure(at);
            return at;
        }
        let side = usize::from(after > before);
        let high = self.node(at).down[side];
        let [inner, outer] = [1 - side, side].map(|side| self.height(self.node(high).down[side]));
        if inner > outer {
            self.lift(high, 1 - side);
        }
        self.lift(at, side)
    }

    fn measure(&mut self, at: u32) {
        let [before, after] = self.node(at).down.map(|below| self.height(below));
        self.nodes[at as usize].height = before.max(after) + 1;
    }

    /// Puts the node below `at` above it, and returns it.
    fn lift(&mut self, at: u32, side: usize) -> u32 {
        let Node { up, down, .. } = *self.node(at);
        let lifted = down[side];
        let inner = self.node(lifted).down[1 - side];
        self.put(up, at, lifted);
        self.link(at, side, inner);
        self.link(lifted, 1 - side, at);
        self.measure(at);
        self.measure(lifted);
        lifted
    }

    /// Moves the last node to a position to which no other node refers any more.
    fn fill(&mut self, at: u32) {
        let last = self.nodes.len() as u32 - 1;
        if at != last {
            let moved = *self.node(last);
            self.put(moved.up, last, at);
            self.nodes[at as usize] = moved;
            for side in [0, 1] {
                self.link(at, side, moved.down[side]);
            }
        }
        self.nodes.pop();
        super::shrink(&mut self.nodes);
    }
}

/// Positions in the order of their entries, from both ends.
#[derive(Clone)]
pub(super) struct Walk<'a> {
    tree: &'a Tree,
    ends: [u32; 2],
}

impl Walk<'_> {
    fn step(&mut self, end: usize) -> Option<usize> {
        let at = self.ends[end];
        if at == NONE {
            return None;
        }
        if self.ends[0] == self.ends[1] {
            self.ends = [NONE; 2];
        } else {
            self.ends[end] = self.tree.neighbor(at, 1 - end);
        }
        Some(at as usize)
    }
}

impl Iterator for Walk<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.step(0)
    }
}

impl DoubleEndedIterator for Walk<'_> {
    fn next_back(&mut self) -> Option<usize> {
        self.step(1)
    }
}

#[cfg(test)]
impl Tree {
    pub(super) fn capacity(&self) -> usize {
        self.nodes.capacity()
    }

    /// Panics if links or heights are wrong, or if the tree is not balanced.
    pub(super) fn check(&self) {
        assert_eq!(self.check_below(NONE, self.root).1, self.nodes.len());
    }

    /// Returns the height and the number of nodes.
    fn check_below(&self, up: u32, at: u32) -> (u8, usize) {
        if at == NONE {
            return (0, 0);
        }
        assert_eq!(self.node(at).up, up);
        let [(before, left), (after, right)] = self.node(at).down.map(|below| self.check_below(at, below));
        assert!(before.abs_diff(after) < 2);
        assert_eq!(self.height(at), before.max(after) + 1);
        (self.height(at), left + right + 1)
    }
}
