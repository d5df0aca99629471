//! What the quantisers lose, and what they must never do.

use oss_quant::kv::KvFormat;
use oss_quant::{Dtype, Error};
use oss_simd::Isa;
use oss_testing::{ADVERSARIAL, Seeded, relative_rms};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Relative RMS error allowed on 16,384 normal values of seed 1, and that of the quantisers of the
/// PyPI package `gguf` 0.19.0 on the same values where it has one.
const LIMITS: [(Dtype, f64, Option<f64>); 15] = [
    (Dtype::F32, 0.0, None),
    (Dtype::F16, 0.000_207, None),
    (Dtype::Bf16, 0.001_66, None),
    (Dtype::Mxfp4, 0.112, Some(0.113_69)),
    (Dtype::Q4_0, 0.082, Some(0.085_31)),
    (Dtype::Q4_1, 0.071, Some(0.078_04)),
    (Dtype::Q5_0, 0.041, Some(0.042_14)),
    (Dtype::Q5_1, 0.034_5, Some(0.037_75)),
    (Dtype::Q8_0, 0.005_3, Some(0.005_268)),
    (Dtype::Q2K, 0.275, None),
    (Dtype::Q3K, 0.147, None),
    (Dtype::Q4K, 0.073, None),
    (Dtype::Q5K, 0.036_5, None),
    (Dtype::Q6K, 0.017_9, None),
    (Dtype::Iq4Nl, 0.076, None),
];

fn weights() -> impl Iterator<Item = Dtype> {
    Dtype::all().filter(|dtype| dtype.is_weight())
}

fn round_trip(dtype: Dtype, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
    let mut got = vec![0.0; values.len()];
    dtype.quantise_row(values, &mut bytes).unwrap();
    dtype.dequantise_row(Isa::scalar(), &bytes, &mut got).unwrap();
    got
}

#[test]
fn normal_weights_lose_no_more_than_the_limits() {
    let values = Seeded::new(1).normals(64 * 256, 0.02);
    assert!(weights().eq(LIMITS.iter().map(|limit| limit.0)));
    for (dtype, limit, reference) in LIMITS {
        let lost = relative_rms(&round_trip(dtype, &values), &values);
        assert!(lost <= limit, "{dtype}: {lost}, limit {limit}");
        let reference = reference.unwrap_or(f64::INFINITY);
        assert!(lost <= reference, "{dtype}: {lost}, reference {reference}");
    }
}

#[test]
fn keys_and_values_lose_no_more_than_the_limits() {
    let limits = [0.0, 0.000_215, 0.001_7, 0.006, 0.085];
    let row = Seeded::new(2).normals(64 * 64, 1.0);
    for (format, limit) in KvFormat::ALL.into_iter().zip(limits) {
        let mut slot = vec![0; format.slot_bytes(64)];
        let (mut keys, mut values) = (vec![0.0; row.len()], vec![0.0; row.len()]);
        for (index, vector) in row.chunks_exact(64).enumerate() {
            let at = index * 64..(index + 1) * 64;
            format.write_key(Isa::scalar(), &mut slot, index % 16, vector);
            format.write_value(Isa::scalar(), &mut slot, index % 16, vector);
            format.read_key(&slot, index % 16, &mut keys[at.clone()]);
            format.read_value(&slot, index % 16, &mut values[at]);
        }
        assert_eq!(keys, values, "{format}");
        let lost = relative_rms(&keys, &row);
        assert!(lost <= limit, "{format}: {lost}, limit {limit}");
    }
}

#[test]
fn zeros_stay_zeros() {
    for dtype in weights() {
        let got = round_trip(dtype, &[0.0; 512]);
        assert!(got.iter().all(|x| *x == 0.0), "{dtype}: {got:?}");
    }
}

#[test]
fn a_constant_row_keeps_its_value() {
    for dtype in weights() {
        for constant in [1.0, -1.0, 0.011, -250.0] {
            let got = round_trip(dtype, &[constant; 256]);
            // The steps of K-formats are themselves integers of few bits.
            let worst = got.iter().map(|x| (x / constant - 1.0).abs()).fold(0.0, f32::max);
            let limit = if dtype == Dtype::Mxfp4 { 0.1 } else { 0.02 };
            assert!(worst <= limit, "{dtype}: {constant} became {}", got[0]);
        }
    }
}

#[test]
fn block_formats_refuse_what_is_not_finite() {
    for dtype in weights().filter(|dtype| dtype.block_len() > 1) {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 256];
            values[200] = bad;
            let mut bytes = vec![0; dtype.row_bytes(256).unwrap()];
            let error = dtype.quantise_row(&values, &mut bytes).unwrap_err();
            assert!(matches!(error, Error::NotFinite { index: 200, .. }), "{dtype}: {error}");
        }
    }
}

#[test]
fn mxfp4_takes_the_better_of_two_scales() {
    // 7 is nearer to 8 under the doubled scale than to 6, and 0 loses nothing.
    let mut values = [0.0; 32];
    values[3] = 7.5;
    assert_eq!(round_trip(Dtype::Mxfp4, &values)[3], 8.0);
    // With many halves that the doubled scale would lose, 6 is the better sacrifice.
    let mut values = [0.5; 32];
    values[3] = 6.4;
    assert_eq!(round_trip(Dtype::Mxfp4, &values)[3..5], [6.0, 0.5]);
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_mxfp4_can_hold_it_holds_exactly(
        e in 0..=252_u8, codes in proptest::array::uniform16(any::<u8>()),
    ) {
        let mut block = [e; 17];
        block[1..].copy_from_slice(&codes);
        let mut values = [0.0; 32];
        Dtype::Mxfp4.dequantise_row(Isa::scalar(), &block, &mut values).unwrap();
        prop_assert_eq!(round_trip(Dtype::Mxfp4, &values), values.to_vec());
    }

    #[test]
    fn errors_stay_within_the_largest_magnitude_of_the_block(seed: u64, spread in -3..4_i32) {
        let mut seeded = Seeded::new(seed);
        let scale = 10.0_f32.powi(spread);
        let values: Vec<f32> = (0..256).map(|_| seeded.normal() * scale).collect();
        let largest = values.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        for dtype in weights() {
            for (x, y) in values.iter().zip(round_trip(dtype, &values)) {
                // Least squares may clip a lone outlier; with four levels, by more than half.
                let share = if dtype == Dtype::Q2K { 0.75 } else { 0.5 };
                // Scales of tiny blocks round to f16's subnormals, 2^-24 apart.
                let allowed = share * largest + 128.0 * 2.0_f32.powi(-24);
                prop_assert!((x - y).abs() <= allowed, "{}: {} became {}", dtype, x, y);
            }
        }
    }

    #[test]
    fn any_finite_row_quantises_to_finite_values(seed: u64) {
        let mut seeded = Seeded::new(seed);
        let extremes = [f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, 65_504.0];
        let values: Vec<f32> = (0..256)
            .map(|_| match seeded.below(4) {
                0 => ADVERSARIAL[seeded.below(ADVERSARIAL.len())],
                1 => extremes[seeded.below(extremes.len())],
                _ => seeded.normal(),
            })
            .map(|x| if x.is_finite() { x } else { 0.0 })
            .collect();
        for dtype in weights().filter(|dtype| dtype.block_len() > 1) {
            let got = round_trip(dtype, &values);
            prop_assert!(got.iter().all(|x| x.is_finite()), "{}: {:?}", dtype, got);
        }
    }
}
