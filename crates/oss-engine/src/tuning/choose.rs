//! From measured numbers to choices, each with its reason.

use crate::options::EngineOptions;
use crate::tuning::{Choice, Choosing, Observed, Origin, Profile, ThreadProfile, Tuning};

/// Phases of a layer of the forward pass, about.
pub(crate) const PHASES_OF_A_LAYER: usize = 11;
/// Another number of threads than the default has to be this much faster: the probes are short.
const CLEARLY: f64 = 0.9;
/// Reading the weights may add this share to what multiplying takes in a chunk of a prompt.
const READING: f64 = 0.1;
/// The chunks among which is chosen, in steps of a page.
const CHUNKS: (usize, usize) = (64, 256);
const PAGE: usize = 16;
/// Without measurements.
const CHUNK: usize = 128;
/// Where experts are read from their file, each is read once a chunk: as large a one as there is
/// scratch for, within these.
const CHUNKS_LARGER: (usize, usize) = (512, 4096);
/// Scratch for it may take this part of the memory, as experts need the rest.
const SCRATCH_PART: usize = 16;
const SEQUENCES: usize = 32;
/// The limits of sequences among which is chosen.
const LIMITS: (usize, usize) = (16, 64);

/// What a model asks of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Bytes of all packed matrices.
    pub(crate) all_bytes: f64,
    /// Bytes of those that one token needs.
    pub(crate) token_bytes: f64,
    /// Multiplications for each byte.
    pub(crate) products_per_byte: f64,
    /// Phases of a forward pass.
    pub(crate) phases: f64,
}

impl Needs {
    /// Seconds of a token: reading its weights or multiplying with them, whatever takes longer, and
    /// the phases.
    fn token_s(&self, machine: &ThreadProfile) -> f64 {
        let reading = self.token_bytes / machine.read_bytes_per_s;
        reading.max(self.multiplying_s(machine)) + self.phases * machine.phase_s
    }

    /// Seconds of multiplying one row with a token's weights.
    fn multiplying_s(&self, machine: &ThreadProfile) -> f64 {
        self.token_bytes * self.products_per_byte / machine.products_per_s
    }

    /// Seconds of reading all weights once.
    fn reading_s(&self, machine: &ThreadProfile) -> f64 {
        self.all_bytes / machine.read_bytes_per_s
    }
}

/// How rows are put together to steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batching {
    pub(crate) max_rows: usize,
    pub(crate) prefill_chunk: usize,
    pub(crate) max_sequences: usize,
    /// Whether observed step times may lower the number of sequences.
    pub(crate) adapts: bool,
}

impl Tuning {
    pub(crate) fn batching(&self) -> Batching {
        Batching {
            max_rows: self.max_rows.value,
            prefill_chunk: self.prefill_chunk.value,
            max_sequences: self.max_sequences.value,
            adapts: !self.max_sequences.given,
        }
    }
}

impl Batching {
    /// Sequences that are never too many, whatever their steps take.
    pub(crate) const AT_LEAST: usize = LIMITS.0;
}

fn given(value: usize) -> Choice {
    Choice { value, given: true, reason: "given as an option".to_owned() }
}

fn chosen(value: usize, reason: String) -> Choice {
    Choice { value, given: false, reason }
}

impl Choosing<'_> {
    /// Chooses what the options leave open.
    pub(crate) fn choose(&self, origin: Origin, profile: Profile) -> Tuning {
        let EngineOptions { max_rows, prefill_chunk, max_sequences, .. } = *self.options;
        let threads = self.given_threads().map_or_else(|| self.threads(&profile), given);
        let machine = profile.of(threads.value);
        let most = max_rows.unwrap_or(usize::MAX);
        let chunk = prefill_chunk.map_or_else(|| self.chunk(machine, most), given);
        let sequences = max_sequences.map_or_else(|| self.sequences(machine), given);
        let rows = max_rows.map_or_else(
            || {
                let reason = "a chunk of prompts beside a row of each sequence";
                chosen(chunk.value + sequences.value, reason.to_owned())
            },
            given,
        );
        Tuning {
            origin,
            profile,
            threads,
            prefill_chunk: chunk,
            max_rows: rows,
            max_sequences: sequences,
            observed: Observed::default(),
        }
    }

    /// The number of threads with the fastest token; the physical cores, unless another is clearly
    /// faster.
    fn threads(&self, profile: &Profile) -> Choice {
        let seconds = |machine: &ThreadProfile| self.subject.needs.token_s(machine);
        let Some(usual) = profile.of(self.cores).filter(|_| profile.threads.len() > 1) else {
            return chosen(self.cores, "one a physical core that may be used".to_owned());
        };
        let best = profile.threads.iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let best = best.expect("the usual number is among them");
        let ms = |machine: &ThreadProfile| seconds(machine) * 1e3;
        if best.threads == usual.threads {
            let reason = format!(
                "one a physical core; expected {:.2} ms a token, the least of {} measured numbers",
                ms(usual),
                profile.threads.len()
            );
            return chosen(usual.threads, reason);
        }
        if seconds(best) < CLEARLY * seconds(usual) {
            let reason = format!(
                "expected {:.2} ms a token, against {:.2} ms with one a physical core ({})",
                ms(best),
                ms(usual),
                usual.threads
            );
            return chosen(best.threads, reason);
        }
        let reason = format!(
            "one a physical core: expected {:.2} ms a token; {} threads ({:.2} ms) are not clearly \
             faster",
            ms(usual),
            best.threads,
            ms(best)
        );
        chosen(usual.threads, reason)
    }

    /// The shortest chunk in which reading all weights adds little to multiplying with them.
    fn chunk(&self, machine: Option<&ThreadProfile>, most: usize) -> Choice {
        if let Some(memory) = self.options.max_memory.filter(|_| self.is_larger_than_memory()) {
            let enough = memory / SCRATCH_PART / self.subject.row_bytes.max(1);
            let value = (enough - enough % PAGE).clamp(CHUNKS_LARGER.0, CHUNKS_LARGER.1);
            let reason = format!(
                "the model is larger than its memory: each chunk reads what is missing; scratch \
                 for {enough} rows takes a {SCRATCH_PART}th of the memory; within {} to {}",
                CHUNKS_LARGER.0, CHUNKS_LARGER.1
            );
            return chosen(value.min(most), reason);
        }
        let Some(machine) = machine else {
            return chosen(CHUNK.min(most), "the usual chunk: nothing was measured".to_owned());
        };
        let needs = &self.subject.needs;
        let (reading, row) = (needs.reading_s(machine), needs.multiplying_s(machine));
        let enough = (reading / (READING * row.max(1e-12))).min(1e6) as usize;
        let value = enough.next_multiple_of(PAGE).clamp(CHUNKS.0, CHUNKS.1).min(most);
        let reason = format!(
            "reading all weights takes {:.2} ms, multiplying a row with them {:.2} ms: in {enough} \
             rows reading adds {:.0} %; within {} to {}",
            reading * 1e3,
            row * 1e3,
            READING * 100.0,
            CHUNKS.0,
            CHUNKS.1
        );
        chosen(value, reason)
    }

    /// Twice as many sequences as share the reading of all weights for free.
    fn sequences(&self, machine: Option<&ThreadProfile>) -> Choice {
        let Some(machine) = machine else {
            return chosen(SEQUENCES, "the usual limit: nothing was measured".to_owned());
        };
        let needs = &self.subject.needs;
        let free = (needs.reading_s(machine) / needs.multiplying_s(machine).max(1e-12)).min(1e6);
        let value = (2.0 * free) as usize;
        let reason = format!(
            "multiplying outweighs reading from {:.0} sequences on; twice as many, in {} to {}, \
             fewer while steps take longer than max_step",
            free.ceil(),
            LIMITS.0,
            LIMITS.1
        );
        chosen(value.clamp(LIMITS.0, LIMITS.1), reason)
    }
}

#[cfg(test)]
mod tests {
    use oss_kernels::Activation;
    use oss_simd::Isa;

    use super::*;
    use crate::tuning::Subject;

    const GB: f64 = 1e9;

    fn machine(threads: usize, read: f64, products: f64) -> ThreadProfile {
        let (read_bytes_per_s, products_per_s) = (read * GB, products * GB);
        ThreadProfile { threads, read_bytes_per_s, products_per_s, phase_s: 1e-6 }
    }

    /// A model of 12 GB, of which a token needs 2, with two weights a byte.
    fn subject() -> Subject {
        let (all_bytes, token_bytes) = (12.0 * GB, 2.0 * GB);
        let needs = Needs { all_bytes, token_bytes, products_per_byte: 2.0, phases: 264.0 };
        let (isa, activation) = (Isa::scalar(), Activation::Int8);
        let row_bytes = 200_000;
        Subject { isa, activation, common: None, needs, has_experts: true, row_bytes }
    }

    /// What is chosen on a machine of four cores and eight hardware threads.
    fn choose(options: &EngineOptions, threads: &[ThreadProfile]) -> Tuning {
        let subject = subject();
        let choosing = Choosing { subject: &subject, options, cores: 4, cpus: 8, all: false };
        let profile = Profile { threads: threads.to_vec(), ..Profile::default() };
        choosing.choose(Origin::AtLoad, profile)
    }

    #[test]
    fn another_number_of_threads_has_to_be_clearly_faster_than_the_cores() {
        let open = EngineOptions::default();
        let threads = |all: &[ThreadProfile]| choose(&open, all).threads.value;
        let (half, cores) = (machine(2, 11.0, 100.0), machine(4, 20.0, 200.0));
        assert_eq!(threads(&[half, cores, machine(8, 20.5, 210.0)]), 4);
        assert_eq!(threads(&[half, cores, machine(8, 30.0, 210.0)]), 8);
        assert_eq!(threads(&[machine(2, 40.0, 400.0), cores]), 2);
        let slow_to_meet = ThreadProfile { phase_s: 1e-3, ..machine(8, 30.0, 210.0) };
        assert_eq!(threads(&[cores, slow_to_meet]), 4);
    }

    #[test]
    fn chunks_and_batches_grow_with_what_reading_takes_beside_multiplying() {
        let open = EngineOptions::default();
        let numbers = |products: f64| {
            let tuning = choose(&open, &[machine(4, 20.0, products)]);
            (tuning.prefill_chunk.value, tuning.max_sequences.value, tuning.max_rows.value)
        };
        // Reading all takes 600 ms; a row 100 ms, 40 ms, 4 ms.
        assert_eq!(numbers(40.0), (64, 16, 80));
        assert_eq!(numbers(100.0), (160, 30, 190));
        assert_eq!(numbers(1000.0), (256, 64, 320));
    }

    #[test]
    fn what_was_given_is_never_overruled() {
        let options = EngineOptions {
            threads: Some(3),
            prefill_chunk: Some(5),
            max_rows: Some(7),
            max_sequences: Some(9),
            ..EngineOptions::default()
        };
        let tuning = choose(&options, &[machine(3, 20.0, 100.0), machine(4, 90.0, 900.0)]);
        let choices =
            [&tuning.threads, &tuning.prefill_chunk, &tuning.max_rows, &tuning.max_sequences];
        assert_eq!(choices.map(|choice| choice.value), [3, 5, 7, 9]);
        assert!(choices.iter().all(|choice| choice.given));
        assert!(!tuning.batching().adapts);
        let narrow = EngineOptions { max_rows: Some(20), ..EngineOptions::default() };
        let tuning = choose(&narrow, &[machine(4, 20.0, 1000.0)]);
        assert_eq!((tuning.prefill_chunk.value, tuning.max_rows.value), (20, 20));
    }

    #[test]
    fn a_model_larger_than_its_memory_takes_large_chunks() {
        let chunk = |max_memory| {
            let options = EngineOptions { max_memory, ..EngineOptions::default() };
            choose(&options, &[]).prefill_chunk.value
        };
        assert_eq!([None, Some(12_000_000_000)].map(chunk), [CHUNK; 2]);
        let larger = [11_999_999_999, 8_000_000_000, 4_000_000_000, 1_000_000_000];
        let rows = larger.map(|memory| chunk(Some(memory)));
        assert_eq!(rows, [3744, 2496, 1248, 512]);
        assert!(rows[..3].iter().zip(larger).all(|(rows, memory)| rows * 200_000 <= memory / 16));
    }

    #[test]
    fn without_measurements_the_usual_numbers_are_taken_and_every_reason_says_so() {
        let tuning = choose(&EngineOptions::default(), &[]);
        assert_eq!(tuning.threads.value, 4);
        assert_eq!((tuning.prefill_chunk.value, tuning.max_sequences.value), (CHUNK, SEQUENCES));
        let text = tuning.to_string();
        assert_eq!(text.matches("nothing was measured").count(), 2, "{text}");
        assert!(text.contains("max_rows = 160: a chunk of prompts"), "{text}");
    }
}
