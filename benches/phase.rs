//! What does a phase cost? One release and one arrival on hot workers, with nothing to do.
#![expect(missing_docs, reason = "criterion_group makes public functions")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use oss_threads::{Chunks, Team};

fn phase(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("phase");
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in (0..).map(|power| 1 << power).take_while(|&threads| threads <= available) {
        let team = Team::new(threads).expect("the machine has that many threads");
        let mut slots = vec![0u64; 16 * threads];
        group.bench_function(BenchmarkId::new("one unit per thread", threads), |bencher| {
            bencher.iter(|| {
                team.phase(threads, Chunks::new(&mut slots, 16), |unit, part| {
                    part[0] += unit.index as u64;
                });
            });
        });
        let mut slots = vec![0u64; 360 * 16];
        group.bench_function(BenchmarkId::new("360 empty units", threads), |bencher| {
            bencher.iter(|| {
                team.phase(360, Chunks::new(&mut slots, 16), |unit, part| {
                    part[0] += unit.index as u64;
                });
            });
        });
    }
    group.finish();
}

criterion_group!(benches, phase);
criterion_main!(benches);
