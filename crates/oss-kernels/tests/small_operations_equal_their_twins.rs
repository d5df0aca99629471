//! Norm, elementwise work and routing against double precision, on every instruction set.

use oss_kernels::elementwise::{Gate, rotate, scaled_add};
use oss_kernels::{
    Activation, GainedRows, GateUpSums, InputBuffer, InputRow, prepare, prepare_gated,
    prepare_with_gain, rms_factor, route, softmax,
};
use oss_simd::Isa;
use oss_testing::{Seeded, assert_close, twins};

const LENGTHS: [usize; 8] = [1, 15, 16, 17, 31, 33, 96, 2880];

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_row_normalised_in_parts_equals_double_precision() {
    let mut seeded = Seeded::new(5);
    for n in LENGTHS {
        let (x, gain) = (seeded.normals(n, 2.0), seeded.normals(n, 1.0));
        let want = twins::rms_norm(&twins::widen(&x), &twins::widen(&gain), 1e-5);
        let mut first = None;
        for isa in Isa::available() {
            let mut row = InputBuffer::new(1, n, Activation::F32).with_squares(1);
            let numbers = GainedRows { x: &x, width: n, gain: &gain };
            prepare_with_gain(isa, Activation::F32, numbers, &mut row);
            let factor = rms_factor(&row.squares, n, 1e-5);
            let out: Vec<f32> = row.values[..n].iter().map(|x| x * factor).collect();
            assert_close(&out, &want, 1e-6, 1e-6);
            assert_eq!(first.get_or_insert_with(|| out.clone()), &out, "{isa}, {n}");
        }
    }
}

#[test]
fn rows_with_gains_are_prepared_together_and_in_pieces_as_their_products_one_by_one() {
    let mut seeded = Seeded::new(11);
    for (n, width) in [(32, 32), (20, 32), (64, 64), (70, 80), (160, 160)] {
        let (x, gain) = (seeded.normals(5 * width, 1.0), seeded.normals(n, 1.0));
        for isa in Isa::available() {
            for activation in Activation::ALL {
                let mut expected = InputBuffer::new(5, n, activation);
                let mut got = InputBuffer::new(5, n, activation).with_squares(5);
                let mut pieces = got.clone();
                for (row, x) in x.chunks_exact(width).enumerate() {
                    let products: Vec<f32> = x.iter().zip(&gain).map(|(x, g)| x * g).collect();
                    prepare(isa, activation, &products, expected.row(row));
                    for (i, (x, gain)) in x[..n].chunks(32).zip(gain.chunks(32)).enumerate() {
                        let InputRow { values, value_sums, codes, squares } = pieces.row(row);
                        let blocks = i..i + 1;
                        let mut piece = InputRow {
                            values: &mut values[32 * i..32 * i + 32],
                            value_sums: &mut value_sums[2 * i..2 * i + 2],
                            codes: codes.map(|plane| match plane.is_empty() {
                                true => plane,
                                false => &mut plane[blocks.clone()],
                            }),
                            squares: &mut squares[blocks.clone()],
                        };
                        let numbers = GainedRows { x, width: x.len(), gain };
                        prepare_with_gain(isa, activation, numbers, &mut piece);
                    }
                }
                // The last row ends after its columns.
                let x = &x[..4 * width + n];
                prepare_with_gain(isa, activation, GainedRows { x, width, gain: &gain }, &mut got);
                for got in [&got, &pieces] {
                    assert_eq!(got.values, expected.values, "{isa} {activation:?} {n}");
                    assert_eq!(got.value_sums, expected.value_sums, "{isa} {activation:?} {n}");
                    assert_eq!(got.codes, expected.codes, "{isa} {activation:?} {n}");
                }
                assert_eq!(got.squares, pieces.squares, "{isa} {activation:?} {n}");
            }
        }
    }
}

#[test]
fn gates_equal_double_precision() {
    let mut seeded = Seeded::new(6);
    let clamped = Gate::Clamped { alpha: 1.702, limit: 7.0 };
    for n in [16_usize, 32, 48, 80] {
        // Some rows of sixteen gates, sixteen ups, and so on.
        let (rows, padded) = (7, n.next_multiple_of(32));
        let (sums, bias) = (seeded.normals(2 * n * rows, 5.0), seeded.normals(2 * n, 1.0));
        let factors = seeded.normals(rows, 1.0);
        let with = |factors: &[f32], bias: Option<&[f32]>, row: usize, i: usize| {
            let sum = sums[2 * n * row + i] * factors.get(row).unwrap_or(&1.0);
            f64::from(bias.map_or(sum, |bias| sum + bias[i]))
        };
        let cases =
            [Gate::Silu, clamped].into_iter().flat_map(|gate| [(gate, false), (gate, true)]);
        for (gate, is_full) in cases {
            let bias = is_full.then_some(&bias[..]);
            let factors = if is_full { &factors[..] } else { &[] };
            let want = (0..rows * padded).map(|i| {
                let (row, i) = (i / padded, i % padded);
                if i >= n {
                    return 0.0;
                }
                let at = i / 16 * 32 + i % 16;
                let (g, u) = (with(factors, bias, row, at), with(factors, bias, row, at + 16));
                match gate {
                    Gate::Silu => twins::swish(g, 1.0) * u,
                    Gate::Clamped { .. } => {
                        let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
                        (u + 1.0) * twins::swish(g, f64::from(1.702f32))
                    }
                }
            });
            let want: Vec<f64> = want.collect();
            let (width, n_sums) = (2 * n, 2 * n);
            let numbers = GateUpSums { gate, sums: &sums, width, n: n_sums, factors, bias };
            let mut first = None;
            for isa in Isa::available() {
                let mut exact = InputBuffer::new(rows, n, Activation::F32);
                prepare_gated(isa, Activation::F32, numbers, &mut exact);
                assert_close(&exact.values, &want, 1e-5, 2e-6);
                let first = first.get_or_insert_with(|| bits(&exact.values));
                assert_eq!(&bits(&exact.values), first, "{isa} {gate:?} {n}");
                // Other forms are those of the same numbers, with and without the numbers beside.
                for activation in Activation::ALL {
                    let mut expected = InputBuffer::new(rows, n, activation);
                    for (row, exact) in exact.values.chunks_exact(padded).enumerate() {
                        prepare(isa, activation, exact, expected.row(row));
                    }
                    let mut got = InputBuffer::new(rows, n, activation);
                    prepare_gated(isa, activation, numbers, &mut got);
                    assert_eq!(got.values, expected.values, "{isa} {activation:?}");
                    assert_eq!(got.value_sums, expected.value_sums, "{isa} {activation:?}");
                    assert_eq!(got.codes, expected.codes, "{isa} {activation:?}");
                    let mut codes = InputBuffer::for_codes(rows, n, activation);
                    prepare_gated(isa, activation, numbers, &mut codes);
                    assert_eq!(codes.codes, expected.codes, "{isa} {activation:?}");
                    assert_eq!(codes.values.is_empty(), activation.planes() > 0);
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "48 gates and ups, expected a multiple of 32")]
fn gates_without_their_ups_are_refused() {
    let (sums, mut to) = ([0.0; 64], InputBuffer::new(1, 32, Activation::F32));
    let gate = Gate::Silu;
    let numbers = GateUpSums { gate, sums: &sums, width: 64, n: 48, factors: &[], bias: None };
    prepare_gated(Isa::scalar(), Activation::F32, numbers, &mut to);
}

#[test]
fn rotation_keeps_lengths_and_turns_by_the_angle() {
    let mut seeded = Seeded::new(7);
    for half in [1, 8, 20, 32] {
        let head = seeded.normals(2 * half, 1.0);
        let angles: Vec<f64> = (0..half).map(|i| i as f64 * 0.7).collect();
        let cos: Vec<f32> = angles.iter().map(|a| a.cos() as f32).collect();
        let sin: Vec<f32> = angles.iter().map(|a| a.sin() as f32).collect();
        let mut want = vec![0.0; 2 * half];
        for i in 0..half {
            let (x, y) = (f64::from(head[i]), f64::from(head[i + half]));
            want[i] = x * angles[i].cos() - y * angles[i].sin();
            want[i + half] = y * angles[i].cos() + x * angles[i].sin();
        }
        let mut first = None;
        for isa in Isa::available() {
            let mut turned = head.clone();
            rotate(isa, &mut turned, &cos, &sin);
            assert_close(&turned, &want, 1e-6, 1e-6);
            let first = first.get_or_insert_with(|| bits(&turned));
            assert_eq!(&bits(&turned), first, "{isa}, {half}");
        }
    }
}

#[test]
fn sums_are_rounded_once() {
    let mut seeded = Seeded::new(13);
    let mut rounded_twice = 0;
    for n in LENGTHS {
        let (x, to, factor) = (seeded.normals(n, 2.0), seeded.normals(n, 2.0), 1.1);
        let want: Vec<f32> = x.iter().zip(&to).map(|(x, to)| x.mul_add(factor, *to)).collect();
        let twice = x.iter().zip(&to).map(|(x, to)| x * factor + to);
        rounded_twice += twice.zip(&want).filter(|(twice, want)| twice != *want).count();
        for isa in Isa::available() {
            let mut got = to.clone();
            scaled_add(isa, factor, &x, &mut got);
            assert_eq!(bits(&got), bits(&want), "{isa}, {n}");
        }
    }
    assert!(rounded_twice > 100, "only {rounded_twice} sums tell one rounding from two");
}

#[test]
fn the_lowest_id_wins_a_tie_and_shares_add_up() {
    for isa in Isa::available() {
        let logits = [1.0, 3.0, 2.0, 3.0, -1.0, 2.0];
        let (mut experts, mut shares) = ([0; 4], [0.0; 4]);
        route(isa, &logits, &mut experts, &mut shares);
        assert_eq!(experts, [1, 3, 2, 5]);
        let want = twins::softmax(&[3.0, 3.0, 2.0, 2.0]);
        assert_close(&shares, &want, 1e-7, 1e-6);
    }
}

#[test]
fn shares_are_the_same_bits_on_every_isa() {
    let mut seeded = Seeded::new(19);
    for n in LENGTHS {
        for k in [1, 4, 17, 40].into_iter().filter(|k| *k <= n) {
            let logits = seeded.normals(n, 3.0);
            let routed = |isa| {
                let (mut experts, mut shares) = (vec![0; k], vec![0.0; k]);
                route(isa, &logits, &mut experts, &mut shares);
                (experts, bits(&shares))
            };
            let want = routed(Isa::scalar());
            for isa in Isa::available() {
                assert_eq!(routed(isa), want, "{isa}, {k} of {n}");
            }
        }
    }
}

#[test]
fn shares_survive_large_and_infinite_logits() {
    for isa in Isa::available() {
        let mut x = [1e30, f32::NEG_INFINITY, 1e30, -5.0];
        softmax(isa, &mut x);
        assert_eq!(x, [0.5, 0.0, 0.5, 0.0]);
        let logits = [1e30, f32::NEG_INFINITY, 1e30, -5.0];
        let (mut experts, mut shares) = ([0; 4], [0.0; 4]);
        route(isa, &logits, &mut experts, &mut shares);
        assert_eq!((experts, shares), ([0, 2, 3, 1], [0.5, 0.5, 0.0, 0.0]));
    }
}

#[test]
fn a_logit_that_is_no_number_leaves_no_share() {
    for isa in Isa::available() {
        for at in [0, 3, 7] {
            let mut logits = [0.5, -1.0, 2.0, 0.0, 1.0, 0.25, 0.75, -3.0];
            logits[at] = f32::NAN;
            let (mut experts, mut shares) = ([0; 4], [0.0; 4]);
            route(isa, &logits, &mut experts, &mut shares);
            assert!(shares.iter().all(|share| share.is_nan()), "{isa} {at}: {shares:?}");
        }
    }
}
