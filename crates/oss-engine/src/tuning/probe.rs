//! Measures the machine: how fast threads read memory, multiply, and meet.

use std::cmp::Reverse;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oss_kernels::{Activation, InputBuffer, Panel, Product, linear, prepare};
use oss_memory::{Buffer, Pages};
use oss_quant::{Dtype, GROUP_ROWS, Matrix, Packing};
use oss_simd::Isa;
use oss_threads::{PerWorker, Team, TeamOptions};
use oss_weights::{Container, TensorInfo};

use crate::error::Result;
use crate::tuning::ThreadProfile;

/// Bytes that are read again and again: more than caches hold for long, or, where there is no room
/// for that, more than a core's own caches hold.
pub(crate) const MEMORY: [usize; 3] = [64 << 20, 32 << 20, 16 << 20];
/// Bytes that a worker reads at a time.
const PIECE: usize = 1 << 20;
/// Input rows of a product, as a chunk of a prompt has them.
const ROWS: usize = 8;
/// The size of the multiplied matrix, small enough for the cores' own caches.
const MATRIX: (usize, usize) = (64, 1024);
/// Products and empty phases that are timed together.
const BATCH: usize = 16;

/// Bytes that measuring takes which reads `memory` bytes, with up to so many threads.
pub(crate) fn bytes(memory: usize, packing: Packing, threads: usize) -> usize {
    let input = |activation| InputBuffer::new(ROWS, packing.padded_cols(), activation).bytes();
    let input = Activation::ALL.map(input).into_iter().max().unwrap_or(0);
    let products = 4 * ROWS * packing.groups() * GROUP_ROWS + size_of::<Panel>();
    memory + packing.bytes() + input + threads * products
}

/// What is measured, and on what.
pub(crate) struct Probe {
    isa: Isa,
    activation: Activation,
    packing: Packing,
    matrix: Vec<u8>,
    input: InputBuffer,
    memory: Buffer,
    pin: bool,
    until: Instant,
}

impl Probe {
    /// Makes ready to measure for at most `limit`, this call included, by reading `memory` bytes;
    /// threads that are bound to CPUs if `pin` says so.
    ///
    /// # Errors
    /// When the system refuses memory.
    pub(crate) fn new(
        isa: Isa,
        activation: Activation,
        packing: Packing,
        memory: usize,
        (pin, limit): (bool, Duration),
    ) -> Result<Self> {
        let until = Instant::now() + limit;
        let mut memory = Buffer::new(memory, Pages::Transparent)?;
        // Pages that were never written all read as the same one.
        memory.fill(1);
        let input = rows(isa, activation, packing.padded_cols());
        Ok(Self {
            isa,
            activation,
            matrix: vec![0; packing.bytes()],
            packing,
            input,
            memory,
            pin,
            until,
        })
    }

    /// The same with another way for activations to meet weights.
    pub(crate) fn with_activation(self, activation: Activation) -> Self {
        let input = rows(self.isa, activation, self.packing.padded_cols());
        Self { activation, input, ..self }
    }

    /// Measures so many threads, for at most `share` of what is left of the time.
    ///
    /// # Errors
    /// When the system refuses threads, or to bind them.
    pub(crate) fn measure(&self, threads: usize, share: f64) -> Result<ThreadProfile> {
        let left = self.until.saturating_duration_since(Instant::now()).mul_f64(share);
        let team = Team::with_options(&TeamOptions { pin: self.pin, ..TeamOptions::new(threads) })?;
        let _affinity = team.pin_caller()?;
        let part = |share: f64| Instant::now() + left.mul_f64(share);
        Ok(ThreadProfile {
            threads,
            read_bytes_per_s: self.reading(&team, part(0.6)),
            products_per_s: self.multiplying(&team, part(0.3)),
            phase_s: meeting(&team, part(0.1)),
        })
    }

    /// Bytes a second that the team reads from memory: the best pass counts, others were disturbed.
    fn reading(&self, team: &Team, until: Instant) -> f64 {
        let sink = AtomicU64::new(0);
        let words = self.memory.view::<u64>();
        best(until, 1, || {
            team.phase(self.memory.len() / PIECE, (), |unit, ()| {
                let piece = &words[unit.index * PIECE / 8..][..PIECE / 8];
                sink.fetch_or(piece.iter().fold(0, |all, word| all | word), Ordering::Relaxed);
            });
            self.memory.len() as f64
        })
    }

    /// Multiplications a second that the team does with weights of the model's most common format.
    fn multiplying(&self, team: &Team, until: Instant) -> f64 {
        let matrix = Matrix { packing: self.packing, bytes: &self.matrix };
        let product = Product { matrix, input: self.input.view(), activation: self.activation };
        let rows: Vec<u32> = (0..ROWS as u32).collect();
        let (isa, groups) = (self.isa, self.packing.groups());
        let out = vec![0.0; ROWS * groups * GROUP_ROWS];
        let mut scratch = vec![(out, Panel::ZERO); team.threads()];
        best(until, 4, || {
            let units = team.threads() * BATCH;
            team.phase(units, PerWorker::new(&mut scratch), |_, (out, panel)| {
                linear(isa, product, (&rows, 0..groups), panel, out);
                black_box(&mut *out);
            });
            (units * ROWS * MATRIX.0 * MATRIX.1) as f64
        })
    }
}

/// Seconds of a phase with next to nothing in it.
fn meeting(team: &Team, until: Instant) -> f64 {
    let phases = best(until, 8, || {
        (0..BATCH).for_each(|_| {
            team.phase(team.threads(), (), |unit, ()| {
                black_box(unit.index);
            });
        });
        BATCH as f64
    });
    phases.recip()
}

/// What a pass does a second, at best; at least `least` passes are made.
fn best(until: Instant, least: usize, mut pass: impl FnMut() -> f64) -> f64 {
    let mut best = 0.0_f64;
    let mut passes = 0;
    while passes < least || Instant::now() < until {
        let begin = Instant::now();
        let done = pass();
        best = best.max(done / begin.elapsed().as_secs_f64().max(1e-9));
        passes += 1;
    }
    best
}

/// Input rows, in the forms that products take.
fn rows(isa: Isa, activation: Activation, cols: usize) -> InputBuffer {
    let mut rows = InputBuffer::new(ROWS, cols, activation);
    let x: Vec<f32> = (0..cols).map(|i| (i % 7) as f32 - 3.0).collect();
    for row in 0..ROWS {
        prepare(isa, activation, &x, rows.row(row));
    }
    rows
}

/// What a model's file says that matters here.
pub(crate) struct Census {
    /// Elements of all tensors.
    pub(crate) elements: usize,
    /// The type that most bytes of its matrices have, and the probe's matrix in it.
    pub(crate) common: Option<(Dtype, Packing)>,
}

impl Census {
    pub(crate) fn new(container: &Container) -> Self {
        let elements = container.tensors().map(TensorInfo::elements).sum();
        let mut bytes: Vec<(Dtype, usize)> = Vec::new();
        for tensor in container.tensors().filter(|tensor| tensor.shape.len() > 1) {
            match bytes.iter_mut().find(|(dtype, _)| *dtype == tensor.dtype) {
                Some((_, sum)) => *sum += tensor.bytes(),
                None => bytes.push((tensor.dtype, tensor.bytes())),
            }
        }
        bytes.sort_by_key(|(_, bytes)| Reverse(*bytes));
        let common = bytes.into_iter().find_map(|(dtype, _)| {
            let packing = Packing::for_dtype(dtype, MATRIX.0, MATRIX.1).ok()?;
            Some((dtype, packing))
        });
        Self { elements, common }
    }
}
