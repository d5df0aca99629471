//! What do the cache's look-ups, moves between tiers and policies cost?
//!
//! Extents taken, given back and moved together, page-table look-ups per slot, prefix look-ups
//! per block (at most 1 µs is wanted), and whole traces replayed per policy with their hit rates;
//! then, in a table, compression and restoration of pages that no cache holds, on all threads: GB/s
//! of the pages, and what share of reading as many bytes that is.
#![expect(missing_docs, reason = "criterion_group makes public functions")]

#[path = "support/shares.rs"]
mod shares;

use std::cell::LazyCell;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use oss_cache::tier::codec;
use oss_cache::{EvictionPolicy, Group, KvCache, SequenceId, Shape, simulate};
use oss_machine::beyond_caches;
use oss_memory::{BuddyAllocator, Buffer, Extent, Pages};
use oss_simd::Isa;
use oss_testing::Seeded;
use oss_threads::PerWorker;
use shares::{Bound, Shares, Work};

/// Small slots, so that long prompts fit; the tables are those of a model with 24 layers.
fn cache() -> KvCache {
    let groups = vec![
        Group { layers: (0..24).step_by(2).collect(), window: Some(128) },
        Group { layers: (1..24).step_by(2).collect(), window: None },
    ];
    let shape = Shape { page_tokens: 16, n_kv_heads: 8, head_dim: 1, slot_bytes: 64, groups };
    KvCache::new(shape, 64 << 20).expect("a sound shape")
}

fn computed(cache: &mut KvCache, tokens: &[u32]) -> SequenceId {
    let id = cache.create();
    for chunk in tokens.chunks(512) {
        cache.reserve(id, chunk.len()).expect("room");
        cache.commit_tokens(id, chunk.iter().copied());
    }
    id
}

/// The metadata of 8,192 pages in pieces of 32.
fn extents(criterion: &mut Criterion) {
    const PAGES: usize = 8192;
    let mut group = criterion.benchmark_group("extents");
    group.throughput(Throughput::Elements(PAGES as u64));
    group.bench_function("8,192 pages of 16 sequences taken in turns, and given back", |bencher| {
        let mut allocator = BuddyAllocator::new(PAGES, 32);
        bencher.iter(|| {
            let mut last = [None; 16];
            for n in 0..PAGES {
                let last: &mut Option<Extent> = &mut last[n % 16];
                let next = last.map(|last| Extent::unit(last.first + 1));
                let next = next.filter(|&next| next.first % 32 != 0 && allocator.allocate_at(next));
                *last = next.or_else(|| allocator.allocate_with_room());
            }
            (0..PAGES).for_each(|page| allocator.free(Extent::unit(page)));
            black_box(allocator.used())
        });
    });
    group.bench_function(
        "a plan to free all pieces that can be, a third of all in use",
        |bencher| {
            let mut allocator = BuddyAllocator::new(PAGES, 32);
            let mut seeded = Seeded::new(1);
            let pages: Vec<Option<Extent>> = (0..PAGES).map(|_| allocator.allocate(1)).collect();
            let given_back = pages.into_iter().flatten().filter(|_| seeded.chance(0.67));
            given_back.for_each(|page| allocator.free(page));
            bencher.iter(|| black_box(allocator.plan_compaction(usize::MAX).len()));
        },
    );
    group.finish();
}

fn tables(criterion: &mut Criterion) {
    let mut cache = cache();
    let tokens: Vec<u32> = (0..4096).collect();
    let id = computed(&mut cache, &tokens);
    let mut group = criterion.benchmark_group("page table");
    group.throughput(Throughput::Elements(12 * 8 * 256));
    group.bench_function("slots of 4,096 positions in 12 layers", |bencher| {
        bencher.iter(|| {
            let mut sum = 0;
            for layer in (1..24).step_by(2) {
                for page in 0..256 {
                    for head in 0..8 {
                        sum += cache.slot_range(layer, id, page, head).start;
                    }
                }
            }
            black_box(sum)
        });
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("reserve and commit one position", |bencher| {
        bencher.iter(|| {
            if cache.len(id) > 8000 {
                cache.truncate(id, 4096).expect("within the sequence");
            }
            cache.reserve(id, 1).expect("room");
            cache.commit_tokens(id, [7].into_iter());
        });
    });
    group.finish();
}

fn prefix(criterion: &mut Criterion) {
    let mut cache = cache();
    let mut seeded = Seeded::new(1);
    // Two hundred other prompts share the first page, so that the tree is not a single path.
    for _ in 0..200 {
        let tokens: Vec<u32> = (0..16).chain((0..64).map(|_| seeded.bits() as u32)).collect();
        let id = computed(&mut cache, &tokens);
        cache.remove(id);
    }
    let tokens: Vec<u32> = (0..8192).collect();
    let id = computed(&mut cache, &tokens);
    cache.remove(id);
    let mut group = criterion.benchmark_group("prefix");
    for len in [512, 8192] {
        assert_eq!(cache.lookup(&tokens[..len]).len(), len);
        group.throughput(Throughput::Elements(len as u64 / 16));
        group.bench_with_input(
            BenchmarkId::new("look-up, blocks", len / 16),
            &len,
            |bencher, &len| {
                bencher.iter(|| black_box(cache.lookup(&tokens[..len])));
            },
        );
        group.bench_with_input(
            BenchmarkId::new("look-up, adopt, remove, blocks", len / 16),
            &len,
            |bencher, &len| {
                bencher.iter(|| {
                    let found = cache.lookup(&tokens[..len]);
                    let id = cache.create();
                    let adopted = cache.adopt(id, &found, usize::MAX).expect("a living sequence");
                    assert_eq!(adopted, len);
                    cache.remove(id);
                });
            },
        );
    }
    group.finish();
}

/// So many copies of some bytes, in memory.
fn copies(bytes: &[u8], n: usize) -> Buffer {
    let mut all = Buffer::new(n * bytes.len(), Pages::Transparent).expect("memory");
    all.chunks_exact_mut(bytes.len()).for_each(|to| to.copy_from_slice(bytes));
    all
}

fn compression(shares: &mut Shares) {
    /// Pages of a call for each thread.
    const PAGES: usize = 4;
    let team = shares.team.clone();
    // A page of gpt-oss in bf16: 12 layers, 8 heads, 16 positions of 64 keys and 64 values.
    let top = |value: f32| ((value.to_bits() >> 16) as u16).to_le_bytes();
    let normals = Seeded::new(2).normals(12 * 8 * 16 * 128, 1.5);
    let page: Vec<u8> = normals.into_iter().flat_map(top).collect();
    let mut compressed = Vec::new();
    assert!(codec::compress(&page, &mut compressed));
    let gain = page.len() as f64 / compressed.len() as f64;
    let n = beyond_caches() / compressed.len();
    let (pages, all_compressed) =
        (LazyCell::new(|| copies(&page, n)), LazyCell::new(|| copies(&compressed, n)));
    let at_once = PAGES * team.threads();
    let work =
        Work { bound: Bound::Memory, amount: at_once * page.len(), things: (at_once, "page") };
    let name = |what: &str| format!("{what} a page of bf16 normals, gain {gain:.2}");
    let mut first = 0;
    let mut scratch = vec![Vec::<u8>::new(); team.threads()];
    shares.kernel(&name("compress"), Isa::scalar(), work, || {
        let pages = &pages[..n * page.len()];
        team.phase(at_once, PerWorker::new(&mut scratch), |at, compressed| {
            let from = (first + at.index) % n * page.len();
            compressed.clear();
            assert!(codec::compress(&pages[from..][..page.len()], compressed));
        });
        first = (first + at_once) % n;
    });
    let mut scratch = vec![vec![0; page.len()]; team.threads()];
    shares.kernel(&name("restore"), Isa::scalar(), work, || {
        let all = &all_compressed[..n * compressed.len()];
        team.phase(at_once, PerWorker::new(&mut scratch), |at, restored| {
            let from = (first + at.index) % n * compressed.len();
            assert!(codec::restore(&all[from..][..compressed.len()], restored));
            black_box(restored);
        });
        first = (first + at_once) % n;
    });
}

fn policies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("replay with room for 2,000 blocks");
    group.sample_size(10);
    for trace in simulate::judges(1) {
        let blocks = trace.requests.iter().map(Vec::len).sum::<usize>();
        group.throughput(Throughput::Elements(blocks as u64));
        for kind in EvictionPolicy::ALL {
            let rate = simulate::replay(&trace, kind, 2_000).hit_rate();
            let name = format!("{}, {kind}", trace.name);
            println!("{name}: hit rate {rate:.3}");
            group.bench_function(name, |bencher| {
                bencher.iter(|| simulate::replay(&trace, kind, 2_000));
            });
        }
    }
    group.finish();
}

/// Resident blocks and compressed ones, each with a policy.
fn tiers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("replay, room for 1,000 blocks and 2,000 compressed");
    group.sample_size(10);
    for trace in simulate::judges(1) {
        let blocks = trace.requests.iter().map(Vec::len).sum::<usize>();
        group.throughput(Throughput::Elements(blocks as u64));
        let [lru, lfu, adaptive, _] = EvictionPolicy::ALL;
        for [upper, lower] in [[lru; 2], [lfu, lru], [lfu; 2], [adaptive, lru], [adaptive; 2]] {
            let replay = || simulate::replay_in_tiers(&trace, [upper, lower], [1_000, 2_000]);
            let rate = replay().hit_rate();
            let name = format!("{}, {upper} over {lower}", trace.name);
            println!("{name}: hit rate {rate:.3}");
            group.bench_function(name, |bencher| bencher.iter(replay));
        }
    }
    group.finish();
}

criterion_group!(benches, extents, tables, prefix, policies, tiers);

fn main() {
    benches();
    let mut shares = Shares::new();
    compression(&mut shares);
    shares.finish();
}
