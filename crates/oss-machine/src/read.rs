//! How fast memory can be read: the best of several ways to read it.

use crate::caches::cache_bytes;
use crate::{Error, best};
use oss_memory::{Buffer, Pages};
use oss_simd::{Isa, Kernel, Simd};
use oss_threads::{Chunks, Team};
use std::fmt;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that caches do not hold, at least.
const BYTES: usize = 512 << 20;
/// Bytes that a worker reads before it takes the next.
const UNIT: usize = 1 << 20;
/// Bytes of a stream that are read in one turn.
const TURN: usize = 256;
/// About so many bytes show which ways are worth reading all of them.
const SOME: usize = 128 << 20;
/// How many ways read all.
const FINALISTS: usize = 12;
/// How many of the ways are measured again in every sample.
const KEPT: usize = 4;
/// How many samples tell which of them is the best.
const SAMPLES: usize = 5;
/// The workers of a team that has just run a phase take up processors for half of this.
const ASLEEP: Duration = Duration::from_millis(2);

/// One way to read memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadWay {
    /// Threads that read.
    pub threads: usize,
    /// Whether the buffer asked for huge pages.
    pub huge_pages: bool,
    /// Places from which each thread reads in turn.
    pub streams: usize,
    /// How many bytes ahead lines are asked for.
    pub prefetch: usize,
    /// How often each line is asked for ahead.
    pub prefetches_per_line: usize,
}

impl fmt::Display for ReadWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = if self.huge_pages { "huge" } else { "ordinary" };
        let Self { threads, streams, prefetch, prefetches_per_line, .. } = self;
        write!(f, "{threads} threads, {pages} pages, {streams} streams, ")?;
        write!(f, "prefetch {prefetch} ({prefetches_per_line} times)")
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Bytes per second.
    pub rate: f64,
    /// How they were read.
    pub way: ReadWay,
}

/// Two buffers and teams to read them with.
pub struct ReadProbe {
    isa: Isa,
    /// Teams of different sizes, the largest last.
    teams: Vec<Team>,
    /// On ordinary and on huge pages.
    buffers: [Buffer; 2],
    /// The best ways that were found, the best first.
    ways: Vec<ReadWay>,
}

impl ReadProbe {
    /// Tries every way once with up to `threads` threads on a share of the memory, the best ones on
    /// all of it, keeps the best of these and finds by some samples which of them is the best.
    /// Takes about two seconds, more with many threads or large caches, and [`ReadProbe::bytes`] of
    /// memory: two times [`beyond_caches`].
    ///
    /// # Errors
    /// When the system refuses memory or threads.
    pub fn new(isa: Isa, threads: usize) -> Result<Self, Error> {
        let bytes = beyond_caches();
        let mut buffers =
            [Buffer::new(bytes, Pages::Ordinary)?, Buffer::new(bytes, Pages::Transparent)?];
        let sizes = (1..=threads).filter(|n| *n <= 4 || n.is_power_of_two() || *n == threads);
        let teams = sizes.map(Team::new).collect::<Result<Vec<_>, _>>()?;
        // Memory lies near to who touches it first: each worker of the largest team has its share.
        if let Some(largest) = teams.last() {
            for buffer in &mut buffers {
                let units = buffer.len().div_ceil(UNIT);
                largest.phase(units, Chunks::new(buffer, UNIT), |_, unit| unit.fill(1));
            }
        }
        let mut probe = Self { isa, teams, buffers, ways: Vec::new() };
        let tried = (0..).zip(probe.all_ways()).map(|(turn, way)| probe.measure_some(way, turn));
        let some = best_of(tried.collect(), FINALISTS);
        probe.ways = best_of(some.into_iter().map(|way| probe.measure(way)).collect(), KEPT);
        // The winner of one sweep may be the luckiest.
        let samples: Vec<Vec<Sample>> = (0..SAMPLES).map(|_| probe.sample()).collect();
        if let Some((best, _)) = best_way(&samples) {
            probe.ways.sort_by_key(|way| *way != best);
        }
        Ok(probe)
    }

    fn all_ways(&self) -> impl Iterator<Item = ReadWay> {
        let threads = self.teams.iter().map(Team::threads);
        threads.flat_map(|threads| {
            [false, true].into_iter().flat_map(move |huge_pages| {
                [1, 2, 4].into_iter().flat_map(move |streams| {
                    let ahead = [(0, 0), (1024, 1), (4096, 1), (8192, 1), (4096, 2), (8192, 2)];
                    ahead.map(|(prefetch, prefetches_per_line)| ReadWay {
                        threads,
                        huge_pages,
                        streams,
                        prefetch,
                        prefetches_per_line,
                    })
                })
            })
        })
    }

    /// Bytes of memory that the probe itself keeps resident.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.len()).sum()
    }

    /// The rates of the best ways now, always in the same order.
    #[must_use]
    pub fn sample(&self) -> Vec<Sample> {
        self.ways.iter().map(|way| self.measure(*way)).collect()
    }

    /// Bytes per second of other memory, read in the way that was best when the probe was made.
    #[must_use]
    pub fn rate_of(&self, memory: &[&[u8]]) -> f64 {
        self.rate(self.ways[0], memory)
    }

    fn measure(&self, way: ReadWay) -> Sample {
        let buffer = &self.buffers[usize::from(way.huge_pages)];
        Sample { rate: self.rate(way, &[buffer]), way }
    }

    /// Measures a way with every so many-th unit of its buffer, others in each turn: from one turn
    /// with a unit to the next as much of the buffer is read as caches would hold.
    fn measure_some(&self, way: ReadWay, turn: usize) -> Sample {
        let buffer = &self.buffers[usize::from(way.huge_pages)];
        let turns = (buffer.len() / SOME).max(1);
        let units: Vec<&[u8]> = buffer.chunks(UNIT).skip(turn % turns).step_by(turns).collect();
        Sample { rate: self.rate(way, &units), way }
    }

    fn rate(&self, way: ReadWay, memory: &[&[u8]]) -> f64 {
        let team = self.teams.iter().find(|team| team.threads() == way.threads);
        let team = team.expect("every way has its team");
        let units: Vec<&[u8]> = memory.iter().flat_map(|bytes| bytes.chunks(UNIT)).collect();
        let sink = AtomicI32::new(0);
        // Whoever ran before, another team or the model's, is to take up no processor, and this
        // team to be awake: waking it is no reading.
        thread::sleep(ASLEEP);
        team.phase(way.threads, (), |_, ()| {});
        let start = Instant::now();
        team.phase(units.len(), (), |unit, ()| {
            let bytes = units[unit.index];
            let read = match way.streams {
                1 => read::<1>(self.isa, bytes, way.prefetch, way.prefetches_per_line),
                2 => read::<2>(self.isa, bytes, way.prefetch, way.prefetches_per_line),
                _ => read::<4>(self.isa, bytes, way.prefetch, way.prefetches_per_line),
            };
            sink.fetch_or(read, Ordering::Relaxed);
        });
        let seconds = start.elapsed().as_secs_f64();
        black_box(sink);
        units.iter().map(|bytes| bytes.len()).sum::<usize>() as f64 / seconds
    }
}

/// The ways of the best samples, the best first.
fn best_of(mut samples: Vec<Sample>, most: usize) -> Vec<ReadWay> {
    samples.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    samples.iter().take(most).map(|sample| sample.way).collect()
}

/// The way to read that was best in some samples of one probe, by its median, and what it gave in
/// each of them: the best way of a single sample would be the luckiest. `None` of no samples.
#[must_use]
pub fn best_way(samples: &[Vec<Sample>]) -> Option<(ReadWay, Vec<f64>)> {
    let median = |rates: &Vec<f64>| {
        let mut sorted = rates.clone();
        sorted.sort_by(f64::total_cmp);
        f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
    };
    let ways = samples.first()?.iter().enumerate().map(|(n, sample)| {
        let rates: Vec<f64> = samples.iter().map(|sample| sample[n].rate).collect();
        (sample.way, rates)
    });
    ways.max_by(|(_, a), (_, b)| median(a).total_cmp(&median(b)))
}

/// Bytes that the caches do not hold: twice what the last ones of all CPUs hold together, since
/// each worker reads a share of them; at least 512 MiB.
#[must_use]
pub fn beyond_caches() -> usize {
    BYTES.max(2 * cache_bytes(Path::new("/")))
}

/// Bytes per second that one thread reads of so many bytes, again and again: the best of some
/// passes, about 20 ms, as others may be disturbed.
#[must_use]
pub fn cached_read_rate(isa: Isa, bytes: usize) -> f64 {
    const PASS: usize = 32 << 20;
    let bytes = bytes.next_multiple_of(TURN);
    // Vectors that cross lines take twice as long.
    let memory = vec![1; bytes + 63];
    let memory = &memory[memory.as_ptr().align_offset(64)..][..bytes];
    let times = (PASS / bytes).max(1);
    let mut sink = 0;
    let rate = best(times * bytes, || {
        for _ in 0..times {
            sink |= read::<1>(isa, black_box(memory), 0, 0);
        }
    });
    black_box(sink);
    rate
}

/// Reads bytes as so many streams, and prefetches each line so often and so many bytes ahead.
fn read<const STREAMS: usize>(isa: Isa, bytes: &[u8], ahead: usize, prefetches: usize) -> i32 {
    let len = bytes.len() / STREAMS;
    let streams = std::array::from_fn(|n| &bytes[n * len..][..len]);
    match prefetches {
        0 => isa.run(Read::<STREAMS, 0> { streams, ahead }),
        1 => isa.run(Read::<STREAMS, 1> { streams, ahead }),
        _ => isa.run(Read::<STREAMS, 2> { streams, ahead }),
    }
}

/// Reads streams, prefetches each line so often, and does next to nothing with them.
struct Read<'a, const STREAMS: usize, const PREFETCHES: usize> {
    streams: [&'a [u8]; STREAMS],
    ahead: usize,
}

impl<const STREAMS: usize, const PREFETCHES: usize> Kernel for Read<'_, STREAMS, PREFETCHES> {
    type Output = i32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        let mut acc = [s.zero_i32(); TURN / 64];
        for turn in 0..self.streams[0].len() / TURN {
            let at = turn * TURN;
            for stream in self.streams {
                let (lines, _) = stream[at..at + TURN].as_chunks::<64>();
                for (n, (acc, line)) in acc.iter_mut().zip(lines).enumerate() {
                    for _ in 0..PREFETCHES {
                        s.prefetch_once(stream, at + n * 64 + self.ahead);
                    }
                    *acc = s.or_i32(*acc, s.u8_as_i32(s.load_u8(line)));
                }
            }
        }
        let sum = s.or_i32(s.or_i32(acc[0], acc[1]), s.or_i32(acc[2], acc[3]));
        s.reduce_add_i32(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read_by_any_number_of_streams() {
        for isa in Isa::available() {
            for place in [0, 63, 256, 1023, 2047] {
                let mut bytes = vec![0; 2048];
                bytes[place] = 1;
                let expected = 1 << (8 * (place % 4));
                assert_eq!(read::<1>(isa, &bytes, 0, 0), expected, "{isa} {place}");
                assert_eq!(read::<2>(isa, &bytes, 512, 1), expected, "{isa} {place}");
                assert_eq!(read::<4>(isa, &bytes, 4096, 2), expected, "{isa} {place}");
            }
        }
    }

    #[test]
    fn the_best_way_is_that_of_the_best_median_not_of_the_best_sample() {
        let way = |threads| ReadWay {
            threads,
            huge_pages: true,
            streams: 1,
            prefetch: 4096,
            prefetches_per_line: 1,
        };
        let sample = |[one, two]: [f64; 2]| {
            vec![Sample { rate: one, way: way(1) }, Sample { rate: two, way: way(2) }]
        };
        let mut samples = vec![sample([9.0, 4.0]), sample([1.0, 5.0]), sample([2.0, 4.0])];
        assert_eq!(best_way(&samples), Some((way(2), vec![4.0, 5.0, 4.0])));
        samples.truncate(2);
        assert_eq!(best_way(&samples), Some((way(1), vec![9.0, 1.0])));
        assert_eq!(best_way(&[]), None);
    }
}
