//! Which eviction policy keeps the right blocks: traces of requests replayed against the real
//! prefix tree with pages that hold nothing.
//!
//! ```
//! use oss_cache::{PolicyKind, simulate};
//!
//! let trace = simulate::multi_turn(1);
//! let outcome = simulate::replay(&trace, PolicyKind::Adaptive, 2_000);
//! assert!(outcome.hit_rate() > 0.6);
//! ```

use crate::policy::{Policy, PolicyKind};
use crate::pool::NO_PAGE;
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
/// # Panics
/// When a single request is longer than the capacity.
pub fn replay(trace: &Trace, policy: PolicyKind, capacity: usize) -> Outcome {
    let mut tree = Tree::new(1, 1, capacity);
    let mut policy = policy.build();
    let mut outcome = Outcome::default();
    for request in &trace.requests {
        assert!(request.len() <= capacity, "{} blocks, capacity {capacity}", request.len());
        let mut at = ROOT;
        let mut known = 0;
        for block in request.chunks(1) {
            let Some(child) = tree.child(at, block) else { break };
            at = child;
            known += 1;
        }
        outcome.asked += request.len() as u64;
        outcome.hits += known as u64;
        upwards(&tree, at, |block| policy.touch(block));
        for block in request[known..].chunks(1) {
            tree.node_mut(at).pins += 1;
            if tree.len() == capacity {
                evict(&mut tree, policy.as_mut());
                outcome.evicted += 1;
            }
            tree.node_mut(at).pins -= 1;
            at = tree.insert(at, block).expect("63 bits of hash do not collide here");
            tree.set_hot(at, 0, at);
            policy.insert(at, tree.node(at).hash);
        }
        upwards(&tree, at, |block| policy.renew(block));
    }
    outcome
}

fn upwards(tree: &Tree, mut at: NodeId, mut visit: impl FnMut(NodeId)) {
    while at != ROOT {
        visit(at);
        at = tree.node(at).parent;
    }
}

fn evict(tree: &mut Tree, policy: &mut dyn Policy) {
    let mut evictable = |block: NodeId| {
        let node = tree.node(block);
        node.resident_children == 0 && node.pins == 0
    };
    let victim = policy.victim(&mut evictable).expect("the request fits");
    tree.set_hot(victim, 0, NO_PAGE);
    tree.remove(victim);
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
            let repeated = replay(&repeated(seed), PolicyKind::default(), 2_000).hit_rate();
            assert!(repeated > 0.8, "repeated pattern: {repeated}");
            let chats = replay(&multi_turn(seed), PolicyKind::default(), 2_000).hit_rate();
            assert!(chats > 0.6, "multi-turn: {chats}");
        }
    }

    #[test]
    fn the_adaptive_policy_beats_lru_on_three_of_four_traces() {
        for (seed, capacity) in [(0, 2_000), (1, 2_000), (0, 4_000), (1, 4_000)] {
            let mut better = 0;
            for trace in judges(seed) {
                let lru = replay(&trace, PolicyKind::Lru, capacity).hit_rate();
                let adaptive = replay(&trace, PolicyKind::Adaptive, capacity).hit_rate();
                better += usize::from(adaptive > lru);
                let name = trace.name;
                assert!(adaptive > lru - 0.01, "{name}: {adaptive} is far below {lru}");
            }
            assert!(better >= 3, "better on {better} of 4 traces at {capacity} blocks");
        }
    }

    #[test]
    fn every_policy_finds_everything_while_there_is_room() {
        let trace = zipf(7);
        let distinct: std::collections::HashSet<u32> =
            trace.requests.iter().flatten().copied().collect();
        for kind in PolicyKind::ALL {
            let outcome = replay(&trace, kind, distinct.len());
            assert_eq!(outcome.asked - outcome.hits, distinct.len() as u64, "{}", kind.name());
            assert_eq!(outcome.evicted, 0);
        }
    }
}
