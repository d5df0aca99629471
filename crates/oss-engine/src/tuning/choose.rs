//! From measured numbers to choices, each with its reason.

use oss_model::{Model, State, Tiling};
use oss_quant::kv::PAGE_TOKENS;
use oss_simd::PrefetchPolicy;
use oss_threads::Team;

use crate::error::Result;
use crate::options::EngineOptions;
use crate::tuning::{
    Choice, Choosing, Observed, Origin, Profile, Room, StepProfile, ThreadProfile, TiledStep,
    Tuning,
};

/// Phases of a layer with experts; others have fewer.
pub(crate) const PHASES_OF_A_LAYER: usize = 8;
/// Another number of threads than the default has to be this much faster: the probes are short.
const CLEARLY: f64 = 0.9;
/// The same of another way to compute products than the usual one: medians of many runs of the
/// model itself.
const CLEARLY_IN_STEPS: f64 = 0.97;
/// Reading the weights may add this share to what multiplying takes in a chunk of a prompt.
const READING: f64 = 0.1;
/// The chunks among which is chosen, in steps of a page.
const CHUNKS: (usize, usize) = (64, 256);
/// Without measurements.
const CHUNK: usize = 128;
/// Where experts are read from their file, each is read once a chunk: as large a one as there is
/// scratch for, within these.
const CHUNKS_LARGER: (usize, usize) = (512, 4096);
/// Scratch for it may take this part of the memory, as experts need the rest.
const SCRATCH_PART: usize = 64;
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

/// How rows are put together to steps, and steps are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batching {
    pub(crate) max_batched_tokens: usize,
    pub(crate) prefill_chunk: usize,
    pub(crate) max_sequences: usize,
    pub(crate) tiling: Tiling,
    pub(crate) prefetch: PrefetchPolicy,
    /// Whether observed step times may lower the number of sequences.
    pub(crate) adapts: bool,
}

impl Tuning {
    pub(crate) fn batching(&self) -> Batching {
        Batching {
            max_batched_tokens: self.max_batched_tokens.value,
            prefill_chunk: self.prefill_chunk.value,
            max_sequences: self.max_sequences.value,
            tiling: self.tiling.value,
            prefetch: self.prefetch.value,
            adapts: !self.max_sequences.given,
        }
    }

    /// Tells where the threads of the team that was made are bound, and why.
    pub(crate) fn tell_cpus(&mut self, team: &Team, options: &EngineOptions) {
        let reason = match (team.cpus(), &options.team, options.pin) {
            ([], ..) => "threads are not bound, the system places them",
            (_, Some(_), _) => "those of the team that was given",
            (_, None, true) => {
                "given as an option: one of each core first, performance cores \
                                before others"
            }
            (_, None, false) => "one of each core first, node by node, as weights lie by rows",
        };
        let given = options.team.is_some() || options.pin;
        self.cpus = Choice { value: team.cpus().to_vec(), given, reason: reason.to_owned() };
    }
}

impl Batching {
    /// Sequences that are never too many, whatever their steps take.
    pub(crate) const AT_LEAST: usize = LIMITS.0;

    /// Scratch for such steps.
    ///
    /// # Errors
    /// When memory is refused.
    pub(crate) fn state(&self, model: &Model, threads: usize) -> Result<State> {
        let mut state = State::new(model, self.max_batched_tokens, threads)?;
        state.set_tiling(self.tiling)?;
        state.set_prefetch(self.prefetch);
        Ok(state)
    }
}

fn given(value: usize) -> Choice {
    Choice { value, given: true, reason: "given as an option".to_owned() }
}

fn chosen<T>(value: T, reason: String) -> Choice<T> {
    Choice { value, given: false, reason }
}

impl Choosing<'_> {
    /// Chooses what the options leave open.
    pub(crate) fn choose(&self, origin: Origin, profile: Profile) -> Tuning {
        let EngineOptions { max_batched_tokens, prefill_chunk, max_sequences, .. } = *self.options;
        let threads = self.given_threads().map_or_else(|| self.threads(&profile), given);
        let machine = profile.of(threads.value);
        let most = max_batched_tokens.unwrap_or(usize::MAX);
        let chunk = prefill_chunk.map_or_else(|| self.chunk(machine, most), given);
        let sequences = max_sequences.map_or_else(|| self.sequences(machine), given);
        let rows = max_batched_tokens.map_or_else(
            || {
                let reason = "a chunk of prompts beside a row of each sequence";
                chosen(chunk.value.saturating_add(sequences.value), reason.to_owned())
            },
            given,
        );
        let steps = profile.steps.as_ref().filter(|steps| steps.threads == threads.value);
        let (tiling, prefetch) = (self.tiling(steps), self.prefetch(steps));
        Tuning {
            origin,
            profile,
            threads,
            cpus: chosen(Vec::new(), "no team has been made".to_owned()),
            tiling,
            prefetch,
            prefill_chunk: chunk,
            max_batched_tokens: rows,
            max_sequences: sequences,
            observed: Observed::default(),
        }
    }

    /// The number of threads with the fastest token; the performance cores, unless another is
    /// clearly faster.
    fn threads(&self, profile: &Profile) -> Choice {
        let seconds = |machine: &ThreadProfile| self.subject.needs.token_s(machine);
        let Room { usual, cores, .. } = self.room;
        let one_a_core = match usual == cores {
            true => "one a physical core".to_owned(),
            false => format!("one a performance core ({usual} of {cores} cores)"),
        };
        let Some(usual) = profile.of(usual).filter(|_| profile.threads.len() > 1) else {
            return chosen(usual, one_a_core + ": what may be used");
        };
        let best = profile.threads.iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let best = best.expect("the usual number is among them");
        let ms = |machine: &ThreadProfile| seconds(machine) * 1e3;
        if best.threads == usual.threads {
            let reason = format!(
                "{one_a_core}; expected {:.2} ms a token, the least of {} measured numbers",
                ms(usual),
                profile.threads.len()
            );
            return chosen(usual.threads, reason);
        }
        if seconds(best) < CLEARLY * seconds(usual) {
            let reason = format!(
                "expected {:.2} ms a token, against {:.2} ms with {} threads, {one_a_core}",
                ms(best),
                ms(usual),
                usual.threads
            );
            return chosen(best.threads, reason);
        }
        let reason = format!(
            "{one_a_core}: expected {:.2} ms a token; {} threads ({:.2} ms) are not clearly faster",
            ms(usual),
            best.threads,
            ms(best)
        );
        chosen(usual.threads, reason)
    }

    /// What was fastest of all that was tried; the usual tiling, unless another is clearly faster.
    fn tiling(&self, steps: Option<&StepProfile>) -> Choice<Tiling> {
        let Some(StepProfile { rows, prompts, answers, .. }) = steps else {
            return chosen(Tiling::DEFAULT, format!("the usual one: {}", self.why_no_steps()));
        };
        let seconds = |step: &TiledStep| step.seconds;
        let (prompts, why_prompts) = fastest(prompts, 0, seconds);
        let (answers, why_answers) = fastest(answers, 0, seconds);
        let value = Tiling { wide_rows: answers.tiling.wide_rows, ..prompts.tiling };
        let reason = format!(
            "layers of {rows} prompt rows take {why_prompts}; layers of an answer's row \
             {why_answers}"
        );
        chosen(value, reason)
    }

    /// What was fastest of all that was tried; what suits such processors, unless another is
    /// clearly faster.
    fn prefetch(&self, steps: Option<&StepProfile>) -> Choice<PrefetchPolicy> {
        let usual = PrefetchPolicy::detect();
        let Some(StepProfile { prefetches, .. }) = steps else {
            let why = self.why_no_steps();
            return chosen(usual, format!("what suits such processors: {why}"));
        };
        let policies = PrefetchPolicy::ALL.into_iter().zip(prefetches);
        let steps: Vec<_> =
            policies.map(|((_, policy), (_, seconds))| (policy, *seconds)).collect();
        let index = steps.iter().position(|(policy, _)| *policy == usual).unwrap_or(0);
        let ((value, _), why) = fastest(&steps, index, |(_, seconds)| *seconds);
        chosen(*value, format!("layers of an answer's row take {why}"))
    }

    /// Why no steps were measured.
    fn why_no_steps(&self) -> &'static str {
        match self.is_larger_than_memory() {
            true => "the disk would be measured with it",
            false => "others are measured by Engine::tune",
        }
    }

    /// The shortest chunk in which reading all weights adds little to multiplying with them.
    fn chunk(&self, machine: Option<&ThreadProfile>, most: usize) -> Choice {
        if let Some(memory) = self.options.max_memory.filter(|_| self.is_larger_than_memory()) {
            let enough = memory / SCRATCH_PART / self.subject.row_bytes.max(1);
            let value = (enough - enough % PAGE_TOKENS).clamp(CHUNKS_LARGER.0, CHUNKS_LARGER.1);
            let reason = format!(
                "the model is larger than its memory: each chunk reads what is missing; scratch \
                 for {enough} rows takes one {SCRATCH_PART}th of the memory; within {} to {}",
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
        let value = enough.next_multiple_of(PAGE_TOKENS).clamp(CHUNKS.0, CHUNKS.1).min(most);
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

/// The fastest way to compute a step, the usual one unless another is clearly faster, and why.
fn fastest<W>(steps: &[W], usual: usize, seconds: impl Fn(&W) -> f64) -> (&W, String) {
    let (usual, n) = (&steps[usual], steps.len());
    let best = steps.iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b))).unwrap_or(usual);
    let [usual_ms, best_ms] = [usual, best].map(|step| seconds(step) * 1e3);
    if best_ms < CLEARLY_IN_STEPS * usual_ms {
        return (best, format!("{best_ms:.2} ms, the usual way {usual_ms:.2} ms"));
    }
    let reason =
        format!("{usual_ms:.2} ms the usual way, clearly less in none of {} others", n - 1);
    (usual, reason)
}

#[cfg(test)]
mod tests {
    use oss_kernels::Activation;
    use oss_simd::Isa;
    use oss_threads::topology::{Core, Kind, Topology};

    use super::*;
    use crate::tuning::steps::{FOR_ANSWERS, FOR_PROMPTS};
    use crate::tuning::{StepProfile, Subject};

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
        let (row_bytes, others_bytes) = (200_000, 0);
        let has_experts = true;
        Subject { isa, activation, common: None, needs, has_experts, row_bytes, others_bytes }
    }

    /// What is chosen on a machine of four cores and eight hardware threads.
    fn choose(options: &EngineOptions, threads: &[ThreadProfile]) -> Tuning {
        let profile = Profile { threads: threads.to_vec(), ..Profile::default() };
        choose_in(Room { usual: 4, cores: 4, cpus: 8 }, options, profile)
    }

    fn choose_in(room: Room, options: &EngineOptions, profile: Profile) -> Tuning {
        let choosing = Choosing { subject: &subject(), options, room, all: false };
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

    /// Eight performance cores with two CPUs each, and eight efficiency cores.
    #[test]
    fn performance_cores_are_usual_where_others_are_slower() {
        let core = |cpus: Vec<usize>, kind| Core { cpus, node: 0, kind };
        let fast = (0..8).map(|i| core(vec![2 * i, 2 * i + 1], Kind::Performance));
        let slow = (16..24).map(|cpu| core(vec![cpu], Kind::Efficiency));
        let topology =
            Topology { cores: fast.chain(slow).collect(), nodes: Vec::new(), quota: None };
        let room = Room::of(&topology, 24);
        assert_eq!(room, Room { usual: 8, cores: 16, cpus: 24 });
        assert_eq!(Room::of(&topology, 4), Room { usual: 4, cores: 4, cpus: 4 });

        let (open, subject) = (EngineOptions::default(), subject());
        let choosing = Choosing { subject: &subject, options: &open, room, all: false };
        assert_eq!(choosing.counts(), [8, 16, 24]);
        let threads = |threads: &[ThreadProfile]| {
            let profile = Profile { threads: threads.to_vec(), ..Profile::default() };
            choose_in(room, &open, profile).threads
        };
        let performance = machine(8, 60.0, 800.0);
        let usual = threads(&[performance, machine(16, 61.0, 1000.0), machine(24, 50.0, 1000.0)]);
        assert_eq!(usual.value, 8);
        let words = "one a performance core (8 of 16 cores)";
        assert!(usual.reason.contains(words), "{}", usual.reason);
        let all = threads(&[performance, machine(16, 90.0, 1000.0)]);
        assert_eq!(all.value, 16);
        assert!(all.reason.contains(words), "{}", all.reason);
        assert_eq!(threads(&[]).value, 8);
    }

    /// What is chosen where steps took so long, prompts and answers by tiling, answers by how
    /// weights are prefetched.
    fn choose_by_steps(
        (prompts, answers, prefetches): ([f64; 4], [f64; 3], [f64; 3]),
        threads: usize,
    ) -> Tuning {
        let steps = |tilings: &[Tiling], seconds: &[f64]| {
            let step = |(tiling, seconds): (&Tiling, &f64)| TiledStep {
                tiling: *tiling,
                seconds: *seconds,
            };
            tilings.iter().zip(seconds).map(step).collect()
        };
        let (prompts, answers) = (steps(&FOR_PROMPTS, &prompts), steps(&FOR_ANSWERS, &answers));
        let names = PrefetchPolicy::ALL.map(|(name, _)| name.to_owned());
        let prefetches = names.into_iter().zip(prefetches).collect();
        let steps = Some(StepProfile { threads, rows: 96, prompts, answers, prefetches });
        let profile = Profile { steps, ..Profile::default() };
        choose_in(Room { usual: 4, cores: 4, cpus: 8 }, &EngineOptions::default(), profile)
    }

    #[test]
    fn another_way_to_prefetch_has_to_be_clearly_faster_with_the_same_threads() {
        let usual = PrefetchPolicy::detect();
        let place = PrefetchPolicy::ALL.iter().position(|(_, policy)| *policy == usual).unwrap();
        let (other, another) = ((place + 1) % 3, (place + 2) % 3);
        let choose = |seconds: f64, threads| {
            let mut prefetches = [0.0; 3];
            (prefetches[place], prefetches[other], prefetches[another]) = (2.0, 2.5, seconds);
            choose_by_steps(([2.0; 4], [0.5; 3], prefetches), threads)
        };
        assert_eq!(choose(1.95, 4).prefetch.value, usual);
        let tuning = choose(1.9, 4);
        assert_eq!(tuning.prefetch.value, PrefetchPolicy::ALL[another].1);
        assert_eq!(tuning.batching().prefetch, tuning.prefetch.value);
        let line = format!(
            "prefetch = {}: layers of an answer's row take 1900.00 ms, the usual way 2000.00 ms",
            PrefetchPolicy::ALL[another].0
        );
        assert!(tuning.to_string().contains(&line), "{tuning}");
        let measured_with_others = choose(1.0, 8).prefetch;
        assert_eq!(measured_with_others.value, usual);
        assert!(measured_with_others.reason.contains("Engine::tune"), "{measured_with_others:?}");
    }

    #[test]
    fn another_tiling_has_to_be_clearly_faster_with_the_same_threads() {
        let tiling = |prompts: [f64; 4], answers: [f64; 3], threads| {
            choose_by_steps((prompts, answers, [0.5; 3]), threads).tiling
        };
        let usual = Tiling::default();
        let Choice { value, reason, .. } = tiling([2.0, 1.95, 2.2, 2.0], [0.5, 0.49, 0.6], 4);
        assert_eq!(value, usual);
        assert!(reason.contains("96 prompt rows take 2000.00 ms the usual way"), "{reason}");
        let Choice { value, reason, .. } = tiling([2.0, 1.95, 2.2, 1.9], [0.5, 0.6, 0.4], 4);
        assert_eq!(value, Tiling { matrix_rows: 128, wide_rows: 512, ..usual });
        assert!(reason.contains("1900.00 ms, the usual way 2000.00 ms"), "{reason}");
        // Measured with others.
        let Choice { value, reason, .. } = tiling([2.0, 1.0, 2.2, 1.9], [0.5, 0.6, 0.4], 8);
        assert_eq!(value, usual);
        assert!(reason.contains("Engine::tune"), "{reason}");
    }

    #[test]
    fn chunks_and_batches_grow_with_what_reading_takes_beside_multiplying() {
        let open = EngineOptions::default();
        let numbers = |products: f64| {
            let tuning = choose(&open, &[machine(4, 20.0, products)]);
            (
                tuning.prefill_chunk.value,
                tuning.max_sequences.value,
                tuning.max_batched_tokens.value,
            )
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
            max_batched_tokens: Some(7),
            max_sequences: Some(9),
            ..EngineOptions::default()
        };
        let tuning = choose(&options, &[machine(3, 20.0, 100.0), machine(4, 90.0, 900.0)]);
        let choices = [
            &tuning.threads,
            &tuning.prefill_chunk,
            &tuning.max_batched_tokens,
            &tuning.max_sequences,
        ];
        assert_eq!(choices.map(|choice| choice.value), [3, 5, 7, 9]);
        assert!(choices.iter().all(|choice| choice.given));
        assert!(!tuning.batching().adapts);
        let narrow = EngineOptions { max_batched_tokens: Some(20), ..EngineOptions::default() };
        let tuning = choose(&narrow, &[machine(4, 20.0, 1000.0)]);
        assert_eq!((tuning.prefill_chunk.value, tuning.max_batched_tokens.value), (20, 20));
    }

    #[test]
    fn a_model_larger_than_its_memory_takes_large_chunks() {
        let chunk = |max_memory| {
            let options = EngineOptions { max_memory, ..EngineOptions::default() };
            choose(&options, &[]).prefill_chunk.value
        };
        assert_eq!([None, Some(12_000_000_000)].map(chunk), [CHUNK; 2]);
        let larger = [11_999_999_999, 8_000_000_000, 7_000_000_000, 1_000_000_000];
        let rows = larger.map(|memory| chunk(Some(memory)));
        assert_eq!(rows, [928, 624, 544, 512]);
        let fits = |(rows, memory): (&usize, usize)| rows * 200_000 <= memory / SCRATCH_PART;
        assert!(rows[..3].iter().zip(larger).all(fits));
    }

    #[test]
    fn without_measurements_the_usual_numbers_are_taken_and_every_reason_says_so() {
        let tuning = choose(&EngineOptions::default(), &[]);
        assert_eq!(tuning.threads.value, 4);
        assert_eq!((tuning.prefill_chunk.value, tuning.max_sequences.value), (CHUNK, SEQUENCES));
        let text = tuning.to_string();
        assert_eq!(text.matches("nothing was measured").count(), 2, "{text}");
        assert!(text.contains("max_batched_tokens = 160: a chunk of prompts"), "{text}");
    }
}
