use super::*;
use oss_simd::{Isa, Kernel};

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next() * 3.0).collect()
}

fn filled(format: KvFormat, head_dim: usize) -> (Vec<u8>, Vec<Vec<f32>>, Vec<Vec<f32>>) {
    filled_on(Isa::scalar(), format, head_dim)
}

fn filled_on(
    isa: Isa,
    format: KvFormat,
    head_dim: usize,
) -> (Vec<u8>, Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let mut slot = vec![0xaa; format.slot_bytes(head_dim)];
    let keys: Vec<_> = (0..16).map(|p| numbers(p, head_dim)).collect();
    let values: Vec<_> = (0..16).map(|p| numbers(100 + p, head_dim)).collect();
    // An order that is not ascending: positions must not touch each other.
    for p in (0..16).map(|p| (p * 5 + 3) % 16) {
        format.write_key(isa, &mut slot, p, &keys[p]);
        format.write_value(isa, &mut slot, p, &values[p]);
    }
    (slot, keys, values)
}

/// Largest error allowed, relative to the largest magnitude (3) of a vector.
fn tolerance(format: KvFormat) -> f32 {
    match format {
        KvFormat::F32 => 0.0,
        KvFormat::F16 => 1.0 / 2048.0,
        KvFormat::Bf16 => 1.0 / 256.0,
        KvFormat::Int8 => 1.0 / 253.0,
        // A step is an eighth of the largest; the far end of the range clips by a whole step.
        KvFormat::Int4 => 1.001 / 8.0,
    }
}

#[test]
fn what_is_written_is_read_back_within_the_formats_error() {
    for format in KvFormat::ALL {
        for head_dim in [1, 8, 16, 33, 64, 80, 128] {
            let (slot, keys, values) = filled(format, head_dim);
            let mut back = vec![0.0; head_dim];
            for p in 0..16 {
                format.read_key(&slot, p, &mut back);
                for (got, want) in back.iter().zip(&keys[p]) {
                    let error = (got - want).abs();
                    assert!(error <= 3.0 * tolerance(format), "{format}: {got} for {want}");
                }
                format.read_value(&slot, p, &mut back);
                for (got, want) in back.iter().zip(&values[p]) {
                    let error = (got - want).abs();
                    assert!(error <= 3.0 * tolerance(format), "{format}: {got} for {want}");
                }
            }
        }
    }
}

/// Compares the SIMD readers with the scalar ones over a whole slot.
struct ReadAll<'a> {
    format: KvFormat,
    slot: &'a [u8],
    head_dim: usize,
}

impl Kernel for ReadAll<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        struct Inner<'a, S>(S, ReadAll<'a>);
        impl<S: Simd> KvVisitor for Inner<'_, S> {
            type Output = ();
            #[inline(always)]
            fn visit<C: KvCodec>(self) {
                let Inner(s, ReadAll { format, slot, head_dim }) = self;
                assert_eq!(C::FORMAT, format);
                let mut lanes = [0.0; 16];
                let mut expected = vec![0.0; head_dim];
                for d in 0..head_dim {
                    let columns = C::key_columns(s, slot, head_dim, d / 2);
                    s.store(C::Products::numbers(s, columns)[d % 2], &mut lanes);
                    for (position, lane) in lanes.iter().enumerate() {
                        C::read_key(slot, position, &mut expected);
                        assert_eq!(lane.to_bits(), expected[d].to_bits(), "{format} {}", S::NAME);
                    }
                }
                for position in 0..PAGE_TOKENS {
                    C::read_value(slot, position, &mut expected);
                    for d16 in 0..head_dim.div_ceil(16) {
                        let values = C::values(s, slot, head_dim, position / 2, d16);
                        s.store(C::Products::numbers(s, values)[position % 2], &mut lanes);
                        for (i, lane) in lanes.iter().enumerate() {
                            let want = expected.get(16 * d16 + i).copied().unwrap_or(0.0);
                            assert!(*lane == want, "{format} {}: {lane}, not {want}", S::NAME);
                        }
                    }
                }
            }
        }
        self.format.visit(Inner(s, self));
    }
}

#[test]
fn large_numbers_stay_numbers_in_four_bits() {
    for isa in Isa::available() {
        let large = [3e38, -3e38, 1e6, -6e5];
        for x in large {
            let mut slot = vec![0; KvFormat::Int4.slot_bytes(32)];
            let numbers = vec![x; 32 * PAGE_TOKENS];
            let all = Rows { numbers: &numbers, stride: 32, dim: 32, n: PAGE_TOKENS };
            let one = Rows { n: 1, ..all };
            for rows in [all, one] {
                KvFormat::Int4.write_keys(isa, &mut slot, 0, rows);
                KvFormat::Int4.write_values(isa, &mut slot, 0, rows);
                let (mut key, mut value) = ([0.0; 32], [0.0; 32]);
                Int4::read_key(&slot, 0, &mut key);
                Int4::read_value(&slot, 0, &mut value);
                for got in key.into_iter().chain(value) {
                    assert!(got.is_finite() && got * x > 0.0, "{isa} {x}: {got}");
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_reads_what_the_scalar_reader_reads() {
    for isa in Isa::available() {
        for format in KvFormat::ALL {
            for head_dim in [1, 16, 33, 64, 80] {
                let (slot, ..) = filled(format, head_dim);
                isa.run(ReadAll { format, slot: &slot, head_dim });
            }
        }
    }
}

#[test]
fn every_instruction_set_writes_the_same_bytes() {
    for isa in Isa::available() {
        for format in KvFormat::ALL {
            for head_dim in [1, 16, 33, 64, 80] {
                let (got, ..) = filled_on(isa, format, head_dim);
                let (expected, ..) = filled(format, head_dim);
                assert!(got == expected, "{isa} {format} {head_dim}");
            }
        }
    }
}

#[test]
fn the_mean_of_a_page_is_that_of_the_keys_as_they_are_stored() {
    for format in KvFormat::ALL {
        for head_dim in [1, 16, 33, 64, 80] {
            let (slot, ..) = filled(format, head_dim);
            let mut sums = vec![0.0; head_dim];
            let mut key = vec![0.0; head_dim];
            for position in 0..PAGE_TOKENS {
                format.read_key(&slot, position, &mut key);
                sums.iter_mut().zip(&key).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            let mut first = None;
            for isa in Isa::available() {
                let mut mean = vec![0xaa; mean_bytes(head_dim)];
                format.write_mean(isa, &slot, head_dim, &mut mean);
                let quads = (0..mean.len() / 16).flat_map(|d4| mean_quad(&mean, d4));
                for (d, got) in quads.enumerate() {
                    let want = sums.get(d).map_or(0.0, |sum| sum / 16.0);
                    assert!((f64::from(got) - want).abs() < 1e-6, "{format} {isa}: {got}, {want}");
                }
                assert_eq!(*first.get_or_insert_with(|| mean.clone()), mean, "{format} {isa}");
            }
        }
    }
}

/// Vectors as a model never has them all: zeros of both signs, ties, extremes, what is not finite.
fn odd_numbers(seed: u64, n: usize) -> Vec<f32> {
    let odd = [0.0, -0.0, 3.0, -3.0, 1e-45, -1e-30, 65_504.0, 1e30, f32::INFINITY, f32::NAN];
    // Some seeds without what is not finite, some of zeros alone.
    let kinds = [10, 8, 4, 2][seed as usize / 7 % 4];
    let mut numbers = numbers(seed, n);
    for (i, x) in numbers.iter_mut().enumerate() {
        if kinds == 2 || (i + seed as usize).is_multiple_of(37) {
            *x = odd[(i / 3 + seed as usize) % kinds];
        }
    }
    numbers
}

/// The slots of a sequence after some of its positions were stored, page by page in runs or one by
/// one.
fn stored(isa: Isa, format: KvFormat, rows: Rows<'_>, start: usize, in_runs: bool) -> Vec<Vec<u8>> {
    let pages = (start + rows.n).div_ceil(PAGE_TOKENS);
    let mut slots = vec![vec![0xaa; format.slot_bytes(rows.dim)]; pages];
    let mut i = 0;
    while i < rows.n {
        let (page, at) = ((start + i) / PAGE_TOKENS, (start + i) % PAGE_TOKENS);
        let n = if in_runs { (PAGE_TOKENS - at).min(rows.n - i) } else { 1 };
        let run = Rows { numbers: &rows.numbers[i * rows.stride..], n, ..rows };
        format.write_keys(isa, &mut slots[page], at, run);
        format.write_values(isa, &mut slots[page], at, run);
        i += n;
    }
    slots
}

#[test]
fn what_half_precision_cannot_hold_is_its_largest_number() {
    let numbers = [65_504.0, 65_520.0, -1e30, f32::MAX, -3.0, f32::NAN];
    for isa in Isa::available() {
        let mut slot = vec![0; KvFormat::F16.slot_bytes(numbers.len())];
        KvFormat::F16.write_key(isa, &mut slot, 3, &numbers);
        KvFormat::F16.write_value(isa, &mut slot, 3, &numbers);
        for read in [KvFormat::read_key, KvFormat::read_value] {
            let mut got = [0.0; 6];
            read(KvFormat::F16, &slot, 3, &mut got);
            assert_eq!(got[..5], [65_504.0, 65_504.0, -65_504.0, 65_504.0, -3.0], "{isa}");
            assert!(got[5].is_nan(), "{isa}");
        }
    }
}

#[test]
fn runs_store_the_bytes_of_single_positions() {
    let runs = [(0, 16), (0, 1), (3, 5), (5, 11), (15, 18), (0, 32), (7, 41), (32, 16)];
    for head_dim in [1, 8, 16, 32, 33, 64, 80, 96, 128] {
        for (seed, (start, n)) in runs.into_iter().cycle().take(5 * runs.len()).enumerate() {
            let stride = head_dim + seed % 3;
            let numbers: Vec<_> =
                (0..n).flat_map(|i| odd_numbers((9 * seed + i) as u64, stride)).collect();
            // The last vector ends where the numbers end.
            let numbers = &numbers[..(n - 1) * stride + head_dim];
            let rows = Rows { numbers, stride, dim: head_dim, n };
            for format in KvFormat::ALL {
                let expected = stored(Isa::scalar(), format, rows, start, false);
                for isa in Isa::available() {
                    let got = stored(isa, format, rows, start, true);
                    assert!(got == expected, "{isa} {format} {head_dim}: {n} from {start}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "position 17 in a page of 16")]
fn a_run_beyond_the_page_is_refused() {
    let mut slot = vec![0; KvFormat::Bf16.slot_bytes(8)];
    let rows = Rows { numbers: &[0.0; 24], stride: 8, dim: 8, n: 3 };
    KvFormat::Bf16.write_values(Isa::scalar(), &mut slot, 15, rows);
}

#[test]
fn codes_of_keys_are_the_nearest_with_ties_to_even() {
    // The largest magnitude makes the steps 1 in both formats.
    let cases: [(KvFormat, [f32; 6], [f32; 6]); 2] = [
        (
            KvFormat::Int8,
            [-127.0, 0.5, 1.5, -2.5, 126.5, 3.2],
            [-127.0, 0.0, 2.0, -2.0, 126.0, 3.0],
        ),
        (KvFormat::Int4, [-8.0, 0.5, 1.5, -2.5, 7.9, 3.2], [-8.0, 0.0, 2.0, -2.0, 7.0, 3.0]),
    ];
    for isa in Isa::available() {
        for (format, key, expected) in cases {
            let mut slot = vec![0; format.slot_bytes(key.len())];
            let mut back = [0.0; 6];
            format.write_key(isa, &mut slot, 7, &key);
            format.read_key(&slot, 7, &mut back);
            assert_eq!(back, expected, "{isa} {format}");
        }
    }
}

#[test]
fn formats_are_found_by_name() {
    for format in KvFormat::ALL {
        assert_eq!(format.to_string().parse::<KvFormat>(), Ok(format));
    }
    let error = "int2".parse::<KvFormat>().unwrap_err().to_string();
    let expected = "expected f32, f16, bf16, int8 or int4";
    assert_eq!(error, format!("got the format of keys and values int2, {expected}"));
}

#[test]
fn slots_have_the_documented_sizes() {
    let bytes = |format: KvFormat| format.slot_bytes(64);
    assert_eq!(bytes(KvFormat::F32), 8192);
    assert_eq!(bytes(KvFormat::F16), 4096);
    assert_eq!(bytes(KvFormat::Bf16), 4096);
    assert_eq!(bytes(KvFormat::Int8), 2048 + 128);
    assert_eq!(bytes(KvFormat::Int4), 1024 + 128);
}

#[test]
fn integer_formats_show_values_that_are_not_finite() {
    for format in [KvFormat::Int8, KvFormat::Int4] {
        let mut slot = vec![0; format.slot_bytes(32)];
        let mut key = vec![1.0; 32];
        key[9] = f32::INFINITY;
        format.write_key(Isa::scalar(), &mut slot, 4, &key);
        format.write_value(Isa::scalar(), &mut slot, 4, &key);
        let mut back = vec![0.0; 32];
        format.read_key(&slot, 4, &mut back);
        assert!(back.iter().all(|x| x.is_nan()), "{format}");
        format.read_value(&slot, 4, &mut back);
        assert!(back.iter().all(|x| x.is_nan()), "{format}");
    }
}

#[test]
#[should_panic(expected = "position 16 in a page of 16")]
fn a_position_outside_the_page_is_refused() {
    let mut slot = vec![0; KvFormat::F16.slot_bytes(8)];
    KvFormat::F16.write_key(Isa::scalar(), &mut slot, 16, &[0.0; 8]);
}
