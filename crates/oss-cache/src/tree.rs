//! The prefix tree: which blocks of tokens follow which, and where their pages are.
//!
//! A node is one block of `page_tokens` tokens after its parent's; the tree holds one reference
//! to each page that it names. Blocks are found by a chain of hashes and verified by their tokens
//! and their parent. A *tail* is a shorter block: the end of a prompt, found only by comparing
//! with the children of the block before it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::Xxh3;

use crate::pool::{NO_PAGE, PageId};
use crate::tier::Packed;

/// A node's number.
pub(crate) type NodeId = u32;
/// The empty prefix.
pub(crate) const ROOT: NodeId = 0;
pub(crate) const NO_NODE: NodeId = NodeId::MAX;
/// No place in the cold file.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// The hash of the empty prefix: any fixed number; it is part of the cold file's format.
const ROOT_HASH: u64 = 0x0055_e119_1e5a_11ed;
/// Hashes keep 63 bits, so that they fit signed integers elsewhere.
const HASH_MASK: u64 = u64::MAX >> 1;
/// Children compared when looking for a tail; the newest come first.
const MOST_COMPARED: usize = 256;

/// The hash of a block after its parent's: with one seed the same on every machine and in every
/// process.
fn chain(seed: u64, parent: u64, tokens: &[u32]) -> u64 {
    let mut hash = Xxh3::with_seed(seed);
    hash.update(&parent.to_le_bytes());
    let mut bytes = [0; 64];
    for part in tokens.chunks(bytes.len() / 4) {
        for (four, token) in bytes.chunks_exact_mut(4).zip(part) {
            four.copy_from_slice(&token.to_le_bytes());
        }
        hash.update(&bytes[..part.len() * 4]);
    }
    hash.digest() & HASH_MASK
}

/// The hash chain over all of some tokens, without a seed.
pub(crate) fn chain_all(page_tokens: usize, tokens: &[u32]) -> u64 {
    tokens.chunks(page_tokens).fold(ROOT_HASH, |parent, block| chain(0, parent, block))
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) hash: u64,
    pub(crate) parent: NodeId,
    first_child: NodeId,
    /// Siblings, the newest first.
    next: NodeId,
    previous: NodeId,
    /// Blocks before this one.
    pub(crate) index: u32,
    /// Tokens: `page_tokens`, or fewer for a tail.
    pub(crate) tokens: u32,
    /// Children with a resident page; the node's own pages stay while there are any.
    pub(crate) resident_children: u32,
    /// Sequences that stand here, and other reasons to keep the node.
    pub(crate) pins: u32,
    pub(crate) generation: u32,
    /// Resident pages.
    pub(crate) resident: u32,
    /// Sequences that have begun with the block, as far as they can be counted.
    pub(crate) uses: u8,
    /// When that was last, by the tree's clock: what follows the block may have been used later.
    pub(crate) used: u64,
    /// Near a message boundary: its window pages are not thinned.
    pub(crate) boundary: bool,
    /// Known to the eviction policy.
    pub(crate) in_policy: bool,
    /// Known to the list of window pages that may be thinned.
    pub(crate) in_windows: bool,
    /// Has pages that are still to be written to the cold file.
    pub(crate) in_backlog: bool,
    pub(crate) live: bool,
}

/// Where a resident page was before it was resident.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nowhere: it was computed; or a sequence has taken it over since it came back.
    #[default]
    Here,
    /// Among the compressed pages.
    Warm,
    /// In the file alone.
    Cold,
}

/// Where one group's page of a block may be; several may hold at once.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The resident page, or [`NO_PAGE`].
    pub(crate) hot: PageId,
    /// The slot in the cold file, or [`NO_SLOT`].
    pub(crate) cold: u32,
    /// The compressed page.
    pub(crate) warm: Option<Packed>,
    /// Where the resident page was.
    pub(crate) origin: Origin,
}

impl Places {
    const NOWHERE: Places =
        Places { hot: NO_PAGE, cold: NO_SLOT, warm: None, origin: Origin::Here };

    pub(crate) fn anywhere(&self) -> bool {
        self.hot != NO_PAGE || self.cold != NO_SLOT || self.warm.is_some()
    }
}

/// The hashes are good as they are.
#[derive(Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only u64 keys are hashed");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[derive(Debug)]
pub(crate) struct Tree {
    /// Of all hashes: who does not know it finds no two blocks with one hash.
    seed: u64,
    /// Counts uses.
    clock: u64,
    page_tokens: usize,
    groups: usize,
    nodes: Vec<Node>,
    /// `page_tokens` per node.
    tokens: Vec<u32>,
    /// `groups` per node.
    places: Vec<Places>,
    free: Vec<NodeId>,
    by_hash: HashMap<u64, NodeId, BuildHasherDefault<AsIs>>,
}

impl Tree {
    /// An empty tree with room for `expected` blocks; it grows beyond.
    pub(crate) fn new(page_tokens: usize, groups: usize, expected: usize) -> Tree {
        let mut tree = Tree {
            seed: 0,
            clock: 0,
            page_tokens,
            groups,
            nodes: Vec::with_capacity(expected),
            tokens: Vec::with_capacity(expected * page_tokens),
            places: Vec::with_capacity(expected * groups),
            free: Vec::new(),
            by_hash: HashMap::with_capacity_and_hasher(expected, BuildHasherDefault::default()),
        };
        let root = tree.allocate();
        let node = tree.node_mut(root);
        node.hash = ROOT_HASH;
        node.pins = 1;
        tree
    }

    fn allocate(&mut self) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.node_mut(id).live = true;
            return id;
        }
        let id = self.nodes.len() as NodeId;
        self.nodes.push(Node {
            hash: 0,
            parent: NO_NODE,
            first_child: NO_NODE,
            next: NO_NODE,
            previous: NO_NODE,
            index: 0,
            tokens: 0,
            resident_children: 0,
            pins: 0,
            generation: 0,
            resident: 0,
            uses: 0,
            used: 0,
            boundary: false,
            in_policy: false,
            in_windows: false,
            in_backlog: false,
            live: true,
        });
        self.tokens.resize(self.tokens.len() + self.page_tokens, 0);
        self.places.resize(self.places.len() + self.groups, Places::NOWHERE);
        id
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// Chooses the seed of all hashes of an empty tree.
    pub(crate) fn set_seed(&mut self, seed: u64) {
        let blocks = self.len();
        assert!(blocks == 0, "a new seed: got a tree of {blocks} blocks, expected none");
        self.seed = seed;
    }

    /// The hash of a block after one with the hash `parent`.
    pub(crate) fn chain(&self, parent: u64, tokens: &[u32]) -> u64 {
        chain(self.seed, parent, tokens)
    }

    /// A block is used now.
    pub(crate) fn use_now(&mut self, id: NodeId) {
        self.clock += 1;
        self.node_mut(id).used = self.clock;
    }

    /// The time by the tree's clock.
    pub(crate) fn now(&self) -> u64 {
        self.clock
    }

    /// A block was used at a time that an earlier process has told.
    pub(crate) fn used_at(&mut self, id: NodeId, time: u64) {
        self.clock = self.clock.max(time);
        let node = self.node_mut(id);
        node.used = node.used.max(time);
    }

    /// For each node when its block, or one that follows it, was last used.
    pub(crate) fn last_uses(&self) -> Vec<u64> {
        let mut last: Vec<u64> = self.nodes.iter().map(|node| node.used).collect();
        let mut blocks: Vec<NodeId> = self.ids().collect();
        blocks.sort_unstable_by_key(|&id| Reverse(self.depth(id)));
        for id in blocks {
            let parent = self.node(id).parent as usize;
            last[parent] = last[parent].max(last[id as usize]);
        }
        last
    }

    /// Blocks (tails included) in the tree.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.free.len() - 1
    }

    pub(crate) fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// All blocks in the tree, in no particular order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.ids_from(1)
    }

    /// All blocks in the tree by their numbers, from `first` once round.
    pub(crate) fn ids_from(&self, first: NodeId) -> impl Iterator<Item = NodeId> {
        let end = self.nodes.len() as NodeId;
        (first..end).chain(1..first.min(end)).filter(|&id| self.node(id).live)
    }

    /// Positions that a block and all before it hold.
    pub(crate) fn end(&self, id: NodeId) -> usize {
        match id {
            ROOT => 0,
            _ => self.node(id).index as usize * self.page_tokens + self.node(id).tokens as usize,
        }
    }

    /// Blocks up to and including this one.
    pub(crate) fn depth(&self, id: NodeId) -> usize {
        if id == ROOT { 0 } else { self.node(id).index as usize + 1 }
    }

    pub(crate) fn tokens(&self, id: NodeId) -> &[u32] {
        let start = id as usize * self.page_tokens;
        &self.tokens[start..start + self.node(id).tokens as usize]
    }

    pub(crate) fn places(&self, id: NodeId, group: usize) -> &Places {
        &self.places[id as usize * self.groups + group]
    }

    pub(crate) fn places_mut(&mut self, id: NodeId, group: usize) -> &mut Places {
        &mut self.places[id as usize * self.groups + group]
    }

    pub(crate) fn all_places(&self, id: NodeId) -> &[Places] {
        &self.places[id as usize * self.groups..][..self.groups]
    }

    /// Whether the cold file has a block's page.
    pub(crate) fn is_in_file(&self, id: NodeId) -> bool {
        self.all_places(id).iter().any(|place| place.cold != NO_SLOT)
    }

    /// The numbers of all resident pages, and [`NO_PAGE`]s.
    pub(crate) fn hot_pages_mut(&mut self) -> impl Iterator<Item = &mut PageId> {
        self.places.iter_mut().map(|places| &mut places.hot)
    }

    /// Notes a resident page, or its loss ([`NO_PAGE`]), and returns the one before.
    pub(crate) fn set_hot(&mut self, id: NodeId, group: usize, page: PageId) -> PageId {
        let places = self.places_mut(id, group);
        let before = std::mem::replace(&mut places.hot, page);
        places.origin = Origin::Here;
        let gained = u32::from(page != NO_PAGE);
        let lost = u32::from(before != NO_PAGE);
        let node = self.node_mut(id);
        let (parent, resident_before) = (node.parent, node.resident);
        node.resident = resident_before + gained - lost;
        let now = u32::from(node.resident > 0);
        let was = u32::from(resident_before > 0);
        if parent != NO_NODE {
            let parent = self.node_mut(parent);
            parent.resident_children = parent.resident_children + now - was;
        }
        before
    }

    /// The complete block `tokens` after `parent`.
    pub(crate) fn child(&self, parent: NodeId, tokens: &[u32]) -> Option<NodeId> {
        let id = *self.by_hash.get(&self.chain(self.node(parent).hash, tokens))?;
        (self.node(id).parent == parent && self.tokens(id) == tokens).then_some(id)
    }

    /// The complete block with this hash.
    pub(crate) fn by_hash(&self, hash: u64) -> Option<NodeId> {
        if hash == ROOT_HASH { Some(ROOT) } else { self.by_hash.get(&hash).copied() }
    }

    /// The children of a block, the newest first.
    pub(crate) fn children(&self, parent: NodeId) -> impl Iterator<Item = NodeId> {
        let next = |id: NodeId| (id != NO_NODE).then_some(id);
        std::iter::successors(next(self.node(parent).first_child), move |&id| {
            next(self.node(id).next)
        })
    }

    /// The child among those `suitable` that shares the most leading tokens, and how many.
    pub(crate) fn closest(
        &self,
        parent: NodeId,
        tokens: &[u32],
        suitable: impl Fn(NodeId) -> bool,
    ) -> Option<(NodeId, usize)> {
        let mut best = None;
        for id in self.children(parent).take(MOST_COMPARED) {
            let pairs = self.tokens(id).iter().zip(tokens);
            let common = pairs.take_while(|(a, b)| a == b).count();
            if common > best.map_or(0, |(_, most)| most) && suitable(id) {
                best = Some((id, common));
            }
        }
        best
    }

    /// Adds the block `tokens` after `parent`; none when a different block has the same hash.
    /// The block must not be there yet.
    pub(crate) fn insert(&mut self, parent: NodeId, tokens: &[u32]) -> Option<NodeId> {
        let hash = self.chain(self.node(parent).hash, tokens);
        let complete = tokens.len() == self.page_tokens;
        assert!(!tokens.is_empty() && tokens.len() <= self.page_tokens, "{} tokens", tokens.len());
        if complete && self.by_hash.contains_key(&hash) {
            return None;
        }
        let id = self.allocate();
        let index = self.depth(parent) as u32;
        let next = std::mem::replace(&mut self.node_mut(parent).first_child, id);
        if next != NO_NODE {
            self.node_mut(next).previous = id;
        }
        let node = self.node_mut(id);
        node.hash = hash;
        node.parent = parent;
        node.next = next;
        node.index = index;
        node.tokens = tokens.len() as u32;
        let start = id as usize * self.page_tokens;
        self.tokens[start..start + tokens.len()].copy_from_slice(tokens);
        if complete {
            self.by_hash.insert(hash, id);
        }
        Some(id)
    }

    /// Takes a block out. It must have no children, no pins and no pages anywhere.
    pub(crate) fn remove(&mut self, id: NodeId) {
        assert!(self.is_leaf(id) && self.node(id).pins == 0, "block {id} is still needed");
        assert!(!self.all_places(id).iter().any(Places::anywhere), "block {id} still has pages");
        let Node { hash, parent, next, previous, tokens, .. } = *self.node(id);
        match previous {
            NO_NODE => self.node_mut(parent).first_child = next,
            _ => self.node_mut(previous).next = next,
        }
        if next != NO_NODE {
            self.node_mut(next).previous = previous;
        }
        if tokens as usize == self.page_tokens {
            self.by_hash.remove(&hash);
        }
        let node = self.node_mut(id);
        node.live = false;
        node.boundary = false;
        node.in_backlog = false;
        node.uses = 0;
        node.used = 0;
        node.generation = node.generation.wrapping_add(1);
        (node.parent, node.next, node.previous) = (NO_NODE, NO_NODE, NO_NODE);
        self.free.push(id);
    }

    pub(crate) fn is_leaf(&self, id: NodeId) -> bool {
        self.node(id).first_child == NO_NODE
    }

    /// The ancestor of `id` with `depth` blocks, `id` itself included.
    pub(crate) fn ancestor(&self, mut id: NodeId, depth: usize) -> NodeId {
        while self.depth(id) > depth {
            id = self.node(id).parent;
        }
        id
    }

    /// Fills `path` with the blocks from the first to `id`.
    pub(crate) fn path(&self, id: NodeId, path: &mut Vec<NodeId>) {
        path.clear();
        let up = std::iter::successors(Some(id), |&id| Some(self.node(id).parent));
        path.extend(up.take_while(|&id| id != ROOT));
        path.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_chain_is_the_same_everywhere() {
        // Part of the cold file's format: a change makes all files useless.
        let tokens: Vec<u32> = (0..16).collect();
        let first = chain(0, ROOT_HASH, &tokens);
        let mut bytes = ROOT_HASH.to_le_bytes().to_vec();
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        assert_eq!(first, xxhash_rust::xxh3::xxh3_64(&bytes) & HASH_MASK);
        let second = chain(0, first, &[1, 2, 3]);
        assert_eq!((first, second), (8_056_607_479_778_832_025, 2_137_685_005_178_380_539));
        assert!(first >> 63 == 0 && second >> 63 == 0);
        assert_eq!(chain_all(16, &[tokens, vec![1, 2, 3]].concat()), second);
    }

    #[test]
    fn another_seed_gives_other_hashes() {
        let mut tree = Tree::new(2, 1, 0);
        let plain = tree.chain(ROOT_HASH, &[1, 2]);
        tree.set_seed(5);
        let a = tree.insert(ROOT, &[1, 2]).unwrap();
        assert_ne!(tree.node(a).hash, plain);
        let found = [tree.child(ROOT, &[1, 2]), tree.by_hash(tree.node(a).hash)];
        assert_eq!(found, [Some(a); 2]);
        assert_eq!(chain_all(2, &[1, 2]), plain, "a prompt's key has no seed");
    }

    #[test]
    fn a_block_was_used_when_one_that_follows_it_was() {
        let mut tree = Tree::new(2, 1, 0);
        let a = tree.insert(ROOT, &[1, 2]).unwrap();
        let b = tree.insert(a, &[3, 4]).unwrap();
        let c = tree.insert(a, &[5, 6]).unwrap();
        tree.used_at(b, 7);
        tree.use_now(c);
        tree.use_now(a);
        let last = tree.last_uses();
        assert_eq!([a, b, c].map(|id| last[id as usize]), [9, 7, 8]);
        tree.use_now(b);
        assert_eq!(tree.last_uses()[a as usize], 10);
    }

    #[test]
    fn a_block_is_found_after_its_own_parent_only() {
        let mut tree = Tree::new(2, 1, 0);
        let a = tree.insert(ROOT, &[1, 2]).unwrap();
        let b = tree.insert(ROOT, &[3, 4]).unwrap();
        let c = tree.insert(a, &[5, 6]).unwrap();
        assert_eq!((tree.child(ROOT, &[1, 2]), tree.child(ROOT, &[3, 4])), (Some(a), Some(b)));
        assert_eq!((tree.child(a, &[5, 6]), tree.child(b, &[5, 6])), (Some(c), None));
        assert_eq!((tree.depth(c), tree.end(c), tree.ancestor(c, 1)), (2, 4, a));
        let mut path = Vec::new();
        tree.path(c, &mut path);
        assert_eq!(path, [a, c]);
        let tail = tree.insert(a, &[5]).unwrap();
        assert_eq!(tree.end(tail), 3);
        assert_eq!(tree.closest(a, &[5, 7], |_| true), Some((tail, 1)));
        assert_eq!(tree.closest(a, &[5, 6], |_| true), Some((c, 2)));
        assert_eq!(tree.closest(a, &[5, 6], |id| id != c), Some((tail, 1)));
        assert_eq!(tree.closest(a, &[6], |_| true), None);
        tree.remove(c);
        assert_eq!((tree.child(a, &[5, 6]), tree.len()), (None, 3));
        assert_eq!(tree.children(a).collect::<Vec<_>>(), [tail]);
    }

    #[test]
    fn what_has_the_same_hash_but_other_tokens_is_not_taken_for_it() {
        let mut tree = Tree::new(2, 1, 0);
        let a = tree.insert(ROOT, &[1, 2]).unwrap();
        // A collision cannot be had, so the table is told a lie.
        let lie = tree.chain(ROOT_HASH, &[3, 4]);
        tree.by_hash.insert(lie, a);
        assert_eq!(tree.child(ROOT, &[3, 4]), None);
        assert_eq!(tree.insert(ROOT, &[3, 4]), None);
    }

    #[test]
    fn resident_children_are_counted() {
        let mut tree = Tree::new(2, 2, 0);
        let a = tree.insert(ROOT, &[1, 2]).unwrap();
        let b = tree.insert(a, &[3, 4]).unwrap();
        tree.set_hot(b, 0, 7);
        tree.set_hot(b, 1, 8);
        assert_eq!((tree.node(a).resident_children, tree.node(b).resident), (1, 2));
        assert_eq!(tree.set_hot(b, 0, NO_PAGE), 7);
        assert_eq!(tree.node(a).resident_children, 1);
        tree.set_hot(b, 1, NO_PAGE);
        assert_eq!(tree.node(a).resident_children, 0);
    }
}
