//! The decoders against an independent implementation (see `data/README.md`).

use oss_quant::Dtype;
use oss_simd::Isa;

const FIXTURES: [(Dtype, &[u8]); 14] = [
    (Dtype::F16, include_bytes!("data/f16.bin")),
    (Dtype::Bf16, include_bytes!("data/bf16.bin")),
    (Dtype::Mxfp4, include_bytes!("data/mxfp4.bin")),
    (Dtype::Q4_0, include_bytes!("data/q4_0.bin")),
    (Dtype::Q4_1, include_bytes!("data/q4_1.bin")),
    (Dtype::Q5_0, include_bytes!("data/q5_0.bin")),
    (Dtype::Q5_1, include_bytes!("data/q5_1.bin")),
    (Dtype::Q8_0, include_bytes!("data/q8_0.bin")),
    (Dtype::Q2K, include_bytes!("data/q2_k.bin")),
    (Dtype::Q3K, include_bytes!("data/q3_k.bin")),
    (Dtype::Q4K, include_bytes!("data/q4_k.bin")),
    (Dtype::Q5K, include_bytes!("data/q5_k.bin")),
    (Dtype::Q6K, include_bytes!("data/q6_k.bin")),
    (Dtype::Iq4Nl, include_bytes!("data/iq4_nl.bin")),
];

fn fixture(file: &'static [u8]) -> (&'static [u8], Vec<f32>) {
    let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let (bytes, values) = file[8..].split_at(number(0) as usize);
    let (values, rest) = values.as_chunks::<4>();
    assert_eq!((values.len(), rest.len()), (number(4) as usize, 0));
    (bytes, values.iter().map(|value| f32::from_le_bytes(*value)).collect())
}

/// Every product of a scale and a code has at most 24 significant bits, and where a minimum is
/// taken away that is the only rounding: all formats agree to the last bit.
#[test]
fn decoders_give_the_reference_values_bit_for_bit() {
    for (dtype, file) in FIXTURES {
        let (bytes, expected) = fixture(file);
        for isa in Isa::available() {
            let mut got = vec![f32::NAN; expected.len()];
            dtype.dequantise_row(isa, bytes, &mut got).unwrap();
            for (index, (got, want)) in got.iter().zip(&expected).enumerate() {
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{dtype}, {isa}: value {index} is {got:e}, expected {want:e}");
            }
        }
    }
}

#[test]
fn the_fixtures_hold_scales_of_every_kind() {
    let (_, mxfp4) = fixture(FIXTURES[2].1);
    assert!(mxfp4.iter().any(|x| x.is_subnormal()) && mxfp4.iter().any(|x| x.is_infinite()));
    for (dtype, file) in FIXTURES {
        let (_, values) = fixture(file);
        let sizes = values.iter().map(|x| x.abs()).filter(|x| x.is_finite() && *x > 0.0);
        let (least, most) = sizes.fold((f32::MAX, 0.0_f32), |(l, m), x| (l.min(x), m.max(x)));
        assert!(most / least > 1e3, "{dtype}: magnitudes from {least:e} to {most:e}");
        assert!(values.iter().any(|x| *x < 0.0) && values.iter().any(|x| *x > 0.0), "{dtype}");
    }
}
