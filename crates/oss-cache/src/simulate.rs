//! Which eviction policy keeps the right blocks: traces of requests replayed against the real
//! prefix tree with pages that hold nothing.
//!
//! ```
//! use oss_cache::{EvictionPolicy, simulate};
//!
//! let trace = simulate::multi_turn(1);
//! let outcome = simulate::replay(&trace, EvictionPolicy::Adaptive, 2_000);
//! assert!(outcome.hit_rate() > 0.6);
//! ```

use crate::policy::{EvictionPolicy, Policy};
use crate::pool::NO_PAGE;
use crate::tier::Packed;
use crate::tree::{NodeId, ROOT, Tree};

/// Requests in order. A request is the list of its blocks; equal numbers are equal blocks.
#[derive(Clone, Debug)]
pub struct Trace {
    /// For tables.
    pub name: &'static str,
    /// Per request its blocks, the system prompt first.
    pub requests: Vec<Vec<u32>>,
}

/// What a replay counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Blocks asked for.
    pub asked: u64,
    /// Blocks that were there.
    pub hits: u64,
    /// Those of them that were compressed.
    pub warm_hits: u64,
    /// Blocks given up.
    pub evicted: u64,
}

impl Outcome {
    /// Blocks found per block asked for.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.asked.max(1) as f64
    }
}

/// Replays a trace against a tree of at most `capacity` blocks.
///
/// So it is for blocks in memory, and for those in a file as long: the file has every block as soon
/// as it is complete, and is told of every use.
///
/// # Panics
/// When a single request is longer than the capacity.
pub fn replay(trace: &Trace, policy: EvictionPolicy, capacity: usize) -> Outcome {
    replay_in_tiers(trace, [policy; 2], [capacity, 0])
}

/// Replays a trace against resident and compressed blocks, at most `capacities` of each, each tier
/// with its policy. A block that must go is compressed; one that is asked for is resident again.
///
/// # Panics
/// When a single request is longer than the first capacity.
pub fn replay_in_tiers(
    trace: &Trace,
    policies: [EvictionPolicy; 2],
    capacities: [usize; 2],
) -> Outcome {
    let mut replay = Replay {
        tree: Tree::new(1, 1, capacities.iter().sum()),
        policies: policies.map(EvictionPolicy::build),
        capacities,
        outcome: Outcome::default(),
    };
    trace.requests.iter().for_each(|request| replay.ask(request));
    replay.outcome
}

struct Replay {
    tree: Tree,
    /// Of resident blocks, and of compressed ones.
    policies: [Box<dyn Policy>; 2],
    capacities: [usize; 2],
    outcome: Outcome,
}

impl Replay {
    fn ask(&mut self, request: &[u32]) {
        let most = self.capacities[0];
        assert!(request.len() <= most, "{} blocks, capacity {most}", request.len());
        let mut path = vec![ROOT];
        for block in request.chunks(1) {
            let known = self.tree.child(path[path.len() - 1], block);
            let Some(child) = known.filter(|&child| self.tree.places(child, 0).anywhere()) else {
                break;
            };
            self.tree.node_mut(child).pins += 1;
            path.push(child);
        }
        let known = path.len() - 1;
        self.outcome.asked += request.len() as u64;
        self.outcome.hits += known as u64;
        let is_compressed = |&&block: &&NodeId| {
            let places = self.tree.places(block, 0);
            places.hot == NO_PAGE && places.warm.is_some()
        };
        let compressed: Vec<NodeId> = path.iter().filter(is_compressed).copied().collect();
        self.outcome.warm_hits += compressed.len() as u64;
        for &block in &compressed {
            self.tree.places_mut(block, 0).warm = None;
            self.policies[1].remove(block);
        }
        compressed.into_iter().for_each(|block| self.make_resident(block));
        for &block in path[1..].iter().rev() {
            let node = self.tree.node_mut(block);
            node.uses = node.uses.saturating_add(1);
            self.policies[0].touch(block);
        }
        for block in request[known..].chunks(1) {
            let at = path[path.len() - 1];
            let child = self.tree.child(at, block).or_else(|| self.tree.insert(at, block));
            let child = child.expect("63 bits of hash do not collide here");
            self.tree.node_mut(child).pins += 1;
            self.make_resident(child);
            path.push(child);
        }
        for &block in path[1..].iter().rev() {
            self.tree.node_mut(block).pins -= 1;
            self.policies[0].renew(block);
        }
    }

    fn make_resident(&mut self, block: NodeId) {
        if self.policies[0].len() == self.capacities[0] {
            self.evict();
        }
        self.tree.set_hot(block, 0, block);
        let node = self.tree.node(block);
        self.policies[0].insert(block, node.hash, node.uses);
    }

    fn evict(&mut self) {
        let tree = &self.tree;
        let mut evictable = |block: NodeId| {
            let node = tree.node(block);
            node.resident_children == 0 && node.pins == 0
        };
        let victim = self.policies[0].victim(&mut evictable).expect("the request fits");
        self.tree.set_hot(victim, 0, NO_PAGE);
        if self.capacities[1] > 0 && self.tree.places(victim, 0).warm.is_none() {
            self.tree.places_mut(victim, 0).warm = Some(Packed::Ready(Box::default()));
            let node = self.tree.node(victim);
            self.policies[1].insert(victim, node.hash, node.uses);
        }
        while self.policies[1].len() > self.capacities[1]
            && let Some(block) = self.policies[1].victim(&mut |_| true)
        {
            self.tree.places_mut(block, 0).warm = None;
            self.give_up(block);
        }
        if self.capacities[1] == 0 {
            self.give_up(victim);
        }
    }

    /// A block is in this tier no more: takes it out where it is in none, and then its parents.
    fn give_up(&mut self, mut block: NodeId) {
        let is_nowhere = |tree: &Tree, block| !tree.places(block, 0).anywhere();
        self.outcome.evicted += u64::from(is_nowhere(&self.tree, block));
        while block != ROOT
            && self.tree.is_leaf(block)
            && self.tree.node(block).pins == 0
            && is_nowhere(&self.tree, block)
        {
            let parent = self.tree.node(block).parent;
            self.tree.remove(block);
            block = parent;
        }
    }
}

/// Random numbers for traces: SplitMix64 (Steele, Lea, Flood 2014).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % n as u64) as usize
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }
}

/// Draws ranks with probability proportional to `1 / (rank + 1)^exponent`.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(n: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let mut weigh = |rank: usize| {
            sum += (rank as f64 + 1.0).powf(-exponent);
            sum
        };
        Zipf((0..n).map(&mut weigh).collect())
    }

    fn draw(&self, dice: &mut Dice) -> usize {
        let total = self.0.last().copied().unwrap_or(0.0);
        let at = dice.below(1 << 30) as f64 / (1u64 << 30) as f64 * total;
        self.0.partition_point(|&sum| sum <= at).min(self.0.len() - 1)
    }
}

/// Hands out blocks that nobody has seen.
struct Fresh(u32);

impl Fresh {
    fn blocks(&mut self, n: usize) -> impl Iterator<Item = u32> + use<> {
        let first = self.0;
        self.0 += n as u32;
        first..self.0
    }
}

/// Forty people chat at a time: one system prompt, turns of 4 to 30 blocks, 2 to 12 turns; who
/// has just been answered is likely to write again.
pub fn multi_turn(seed: u64) -> Trace {
    let (mut dice, mut fresh) = (Dice(seed), Fresh(0));
    let system: Vec<u32> = fresh.blocks(20).collect();
    let recency = Zipf::new(40, 0.7);
    let mut chats: Vec<(Vec<u32>, usize)> = vec![(system.clone(), 0); 40];
    let mut requests = Vec::new();
    for _ in 0..3_000 {
        let rank = recency.draw(&mut dice);
        let (mut blocks, mut turns) = chats.remove(rank);
        if turns == 0 {
            blocks.clone_from(&system);
            turns = dice.between(2, 12);
        }
        blocks.extend(fresh.blocks(dice.between(4, 30)));
        requests.push(blocks.clone());
        chats.insert(0, (blocks, turns - 1));
    }
    Trace { name: "multi-turn chats", requests }
}

/// Sixty system prompts of 20 to 120 blocks, Zipf popularity, each followed once by a question
/// that is never asked again.
pub fn system_prompts(seed: u64) -> Trace {
    let (mut dice, mut fresh) = (Dice(seed), Fresh(0));
    let systems: Vec<Vec<u32>> =
        (0..60).map(|_| fresh.blocks(dice.between(20, 120)).collect()).collect();
    let popularity = Zipf::new(systems.len(), 0.9);
    let request = |_| {
        let mut blocks = systems[popularity.draw(&mut dice)].clone();
        blocks.extend(fresh.blocks(dice.between(5, 60)));
        blocks
    };
    Trace { name: "shared system prompts", requests: (0..3_000).map(request).collect() }
}

/// Agents whose histories grow by a tool's answer each step, a dozen at a time, sharing four
/// preambles; now and then one sends out helpers that read something once and report.
pub fn agents(seed: u64) -> Trace {
    let (mut dice, mut fresh) = (Dice(seed), Fresh(0));
    let preambles: Vec<Vec<u32>> = (0..4).map(|_| fresh.blocks(60).collect()).collect();
    let mut running: Vec<(Vec<u32>, usize)> = vec![(Vec::new(), 0); 12];
    let mut requests = Vec::new();
    while requests.len() < 4_000 {
        let (history, steps) = &mut running[dice.below(12)];
        if *steps == 0 {
            history.clone_from(&preambles[dice.below(preambles.len())]);
            *steps = dice.between(5, 40);
        }
        *steps -= 1;
        history.extend(fresh.blocks(dice.between(1, 8)));
        requests.push(history.clone());
        if dice.below(6) == 0 {
            let preamble = &preambles[dice.below(preambles.len())];
            for _ in 0..dice.between(1, 4) {
                let page = fresh.blocks(dice.between(20, 120));
                requests.push(preamble.iter().copied().chain(page).collect());
            }
        }
    }
    Trace { name: "agents' histories", requests }
}

/// Questions about documents of 10 to 60 blocks, Zipf popularity.
pub fn zipf(seed: u64) -> Trace {
    let (mut dice, mut fresh) = (Dice(seed), Fresh(0));
    let documents: Vec<Vec<u32>> =
        (0..400).map(|_| fresh.blocks(dice.between(10, 60)).collect()).collect();
    let popularity = Zipf::new(documents.len(), 1.0);
    let request = |_| {
        let mut blocks = documents[popularity.draw(&mut dice)].clone();
        blocks.extend(fresh.blocks(dice.between(1, 6)));
        blocks
    };
    Trace { name: "Zipf documents", requests: (0..5_000).map(request).collect() }
}

/// Thirty prompts asked over and over, one question in ten new.
pub fn repeated(seed: u64) -> Trace {
    let (mut dice, mut fresh) = (Dice(seed), Fresh(0));
    let prompts: Vec<Vec<u32>> =
        (0..30).map(|_| fresh.blocks(dice.between(10, 60)).collect()).collect();
    let request = |index: usize| match dice.below(10) {
        0 => fresh.blocks(dice.between(10, 60)).collect(),
        _ => prompts[index % prompts.len()].clone(),
    };
    Trace { name: "repeated pattern", requests: (0..2_000).map(request).collect() }
}

/// The four traces that policies are judged by.
pub fn judges(seed: u64) -> [Trace; 4] {
    [multi_turn(seed), system_prompts(seed), agents(seed), zipf(seed)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_pattern_and_chats_are_found_again() {
        for seed in 0..3 {
            let repeated = replay(&repeated(seed), EvictionPolicy::default(), 2_000).hit_rate();
            assert!(repeated > 0.8, "repeated pattern: {repeated}");
            let chats = replay(&multi_turn(seed), EvictionPolicy::default(), 2_000).hit_rate();
            assert!(chats > 0.6, "multi-turn: {chats}");
        }
    }

    #[test]
    fn the_adaptive_policy_beats_lru_on_three_of_four_traces() {
        for (seed, capacity) in [(0, 2_000), (1, 2_000), (0, 4_000), (1, 4_000)] {
            let mut better = 0;
            for trace in judges(seed) {
                let lru = replay(&trace, EvictionPolicy::Lru, capacity).hit_rate();
                let adaptive = replay(&trace, EvictionPolicy::Adaptive, capacity).hit_rate();
                better += usize::from(adaptive > lru);
                let name = trace.name;
                assert!(adaptive > lru - 0.01, "{name}: {adaptive} is far below {lru}");
            }
            assert!(better >= 3, "better on {better} of 4 traces at {capacity} blocks");
        }
    }

    #[test]
    fn two_tiers_find_nearly_what_one_of_their_size_would() {
        for trace in judges(0) {
            let [lru, adaptive] = [EvictionPolicy::Lru, EvictionPolicy::Adaptive];
            let both = |kinds| replay_in_tiers(&trace, kinds, [1_000, 2_000]).hit_rate();
            let (name, alone) = (trace.name, replay(&trace, adaptive, 3_000).hit_rate());
            let (chosen, below_lru) = (both([adaptive; 2]), both([adaptive, lru]));
            assert!(chosen > alone - 0.03, "{name}: {chosen}, {alone} in one");
            assert!(chosen > below_lru - 0.01, "{name}: {chosen}, {below_lru} above LRU");
            let apart = both([lru; 2]) - replay(&trace, lru, 3_000).hit_rate();
            assert!(apart.abs() < 0.001, "{name}: by use alone, two tiers are one: {apart}");
        }
    }

    #[test]
    fn compressed_blocks_count_as_found_and_are_resident_again() {
        for kind in EvictionPolicy::ALL {
            let trace = multi_turn(1);
            let alone = replay(&trace, kind, 2_000);
            let both = replay_in_tiers(&trace, [kind; 2], [2_000, 1_000]);
            assert_eq!(alone.warm_hits, 0);
            assert!(both.warm_hits > 0 && both.hits > alone.hits, "{kind}: {both:?} {alone:?}");
            // What was missed and not given up is there; where chances cut a chain, what follows is
            // there and missed again.
            let left = both.asked - both.hits - both.evicted;
            assert!(
                kind == EvictionPolicy::Random || (2_000..=3_000).contains(&left),
                "{kind}: {left}"
            );
        }
    }

    #[test]
    fn every_policy_finds_everything_while_there_is_room() {
        let trace = zipf(7);
        let distinct: std::collections::HashSet<u32> =
            trace.requests.iter().flatten().copied().collect();
        for kind in EvictionPolicy::ALL {
            let outcome = replay(&trace, kind, distinct.len());
            assert_eq!(outcome.asked - outcome.hits, distinct.len() as u64, "{}", kind.name());
            assert_eq!(outcome.evicted, 0);
        }
    }
}
