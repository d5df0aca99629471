//! Matrix products of every weight type against double precision, and against themselves.

use oss_kernels::{
    Activation, CodeBlock, InputBuffer, InputRow, Panel, Product, linear, linear_columns,
    linear_with_prefetch, prepare,
};
use oss_quant::{Dtype, Encoded, GROUP_ROWS, Matrix, Packing};
use oss_simd::{CacheLevel, Isa, PrefetchPolicy};
use oss_testing::{Seeded, assert_close};

fn prepared(isa: Isa, activation: Activation, x: &[Vec<f32>]) -> InputBuffer {
    let mut rows = InputBuffer::new(x.len(), x[0].len(), activation);
    for (i, x) in x.iter().enumerate() {
        prepare(isa, activation, x, rows.row(i));
    }
    rows
}

/// The numbers that a row stands for, as the matrix sees them: of so many planes of codes, or none.
fn numbers(rows: &InputBuffer, row: usize, planes: usize) -> Vec<f64> {
    let at = |k: usize| {
        if planes == 0 {
            return f64::from(rows.values[row * rows.stride + k]);
        }
        let code = |plane: usize| {
            let block = &rows.codes[plane][(row * rows.stride + k) / 32];
            f64::from(block.codes[k % 32]) * f64::from(block.scale)
        };
        (0..planes).map(code).sum()
    };
    (0..rows.stride).map(at).collect()
}

struct Weights {
    packing: Packing,
    bytes: Vec<u8>,
    /// `[rows, cols]`.
    numbers: Vec<f32>,
}

fn weights(dtype: Dtype, rows: usize, cols: usize, seeded: &mut Seeded) -> Weights {
    weights_of(dtype, cols, &seeded.normals(rows * cols, 0.05))
}

/// `[rows, cols]` of a type.
fn weights_of(dtype: Dtype, cols: usize, all: &[f32]) -> Weights {
    let rows = all.len() / cols;
    let row_bytes = dtype.row_bytes(cols).expect("whole blocks");
    let mut file = vec![0; rows * row_bytes];
    let mut numbers = vec![0.0; rows * cols];
    let decoded = numbers.chunks_exact_mut(cols);
    for ((all, file), numbers) in
        all.chunks_exact(cols).zip(file.chunks_exact_mut(row_bytes)).zip(decoded)
    {
        dtype.quantise_row(all, file).unwrap();
        dtype.dequantise_row(Isa::scalar(), file, numbers).unwrap();
    }
    let packing = Packing::for_dtype(dtype, rows, cols).unwrap();
    let mut bytes = vec![0; packing.bytes()];
    for (g, out) in bytes.chunks_exact_mut(packing.group_bytes()).enumerate() {
        packing
            .pack_group(g, |r| Encoded::Plain(&file[r * row_bytes..][..row_bytes]), out)
            .unwrap();
    }
    Weights { packing, bytes, numbers }
}

fn weight_types() -> impl Iterator<Item = Dtype> {
    Dtype::all().filter(|dtype| dtype.is_weight())
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16)
}

#[test]
fn columns_multiplied_apart_add_up_to_the_whole() {
    let mut seeded = Seeded::new(3);
    for dtype in weight_types() {
        let cols = 10 * dtype.block_len().max(32) + if is_float(dtype) { 5 } else { 0 };
        let w = weights(dtype, 40, cols, &mut seeded);
        let (matrix, groups) = (Matrix { packing: w.packing, bytes: &w.bytes }, w.packing.groups());
        let x: Vec<Vec<f32>> = (0..3).map(|_| seeded.normals(cols, 1.0)).collect();
        let (activation, rows, n) = (Activation::F32, &[0, 1, 2][..], 3 * groups * GROUP_ROWS);
        let input = prepared(Isa::scalar(), activation, &x);
        let product = Product { matrix, input: input.view(), activation };
        let (mut panel, mut whole) = (Panel::ZERO, vec![f32::NAN; n]);
        linear(Isa::scalar(), product, (rows, 0..groups), &mut panel, &mut whole);
        // From 32 on there are more columns than float weights are summed in one run.
        let narrow = (0..cols).step_by(64).collect();
        for begins in [narrow, vec![0, 32], vec![0, 32, 64]] {
            let ends = begins[1..].iter().copied().chain([cols]);
            let pieces: Vec<_> = begins.iter().zip(ends).map(|(begin, end)| *begin..end).collect();
            let mut first = None;
            for isa in Isa::available() {
                let mut outs = Vec::new();
                let mut sums = vec![0.0; n];
                for columns in &pieces {
                    let part: Vec<_> = x.iter().map(|x| x[columns.clone()].to_vec()).collect();
                    let input = prepared(isa, activation, &part);
                    let product = Product { matrix, input: input.view(), activation };
                    let mut out = vec![f32::NAN; n];
                    linear_columns(isa, product, (rows, 0..groups), columns.clone(), &mut out);
                    for (t, out) in out.chunks_exact(groups * GROUP_ROWS).enumerate() {
                        let exact = (0..w.packing.rows).map(|r| {
                            let weights = &w.numbers[r * cols..][columns.clone()];
                            let products = weights.iter().zip(&part[t]);
                            products.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
                        });
                        let exact: Vec<f64> = exact.collect();
                        assert_close(&out[..w.packing.rows], &exact, 2e-5, 1e-5);
                    }
                    sums.iter_mut().zip(&out).for_each(|(sum, out)| *sum += f64::from(*out));
                    outs.extend(out);
                }
                assert_close(&whole, &sums, 4e-5, 2e-5);
                assert_eq!(first.get_or_insert_with(|| outs.clone()), &outs, "{isa} {dtype:?}");
            }
        }
    }
}

#[test]
fn every_weight_type_and_activation_equals_double_precision() {
    let mut seeded = Seeded::new(1);
    for dtype in weight_types() {
        let block = dtype.block_len().max(32);
        for (rows, cols) in [(1, block), (33, 3 * block), (16, 2880usize.next_multiple_of(block))] {
            let w = weights(dtype, rows, cols, &mut seeded);
            let x: Vec<Vec<f32>> = (0..3).map(|_| seeded.normals(cols, 1.0)).collect();
            for activation in Activation::ALL {
                let input = prepared(Isa::scalar(), activation, &x);
                let groups = w.packing.groups();
                let mut out = vec![0.0; 3 * groups * GROUP_ROWS];
                let matrix = Matrix { packing: w.packing, bytes: &w.bytes };
                let product = Product { matrix, input: input.view(), activation };
                let mut panel = Panel::ZERO;
                linear(Isa::scalar(), product, (&[0, 1, 2], 0..groups), &mut panel, &mut out);
                let planes = if is_float(dtype) { 0 } else { activation.planes() };
                for t in 0..3 {
                    let x = numbers(&input, t, planes);
                    let want: Vec<f64> = (0..rows)
                        .map(|r| {
                            let row = &w.numbers[r * cols..(r + 1) * cols];
                            row.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum()
                        })
                        .collect();
                    assert_close(&out[t * 16 * groups..][..rows], &want, 2e-5, 1e-5);
                }
            }
        }
    }
}

#[test]
fn the_bits_depend_on_neither_company_nor_instruction_set() {
    // An odd number, and more than are widened at a time.
    let (n_rows, mut seeded) = (67, Seeded::new(2));
    for dtype in weight_types() {
        // More columns than float weights are summed in one run, and than a part or a panel has, in
        // an odd number of blocks.
        let cols = 9 * dtype.block_len().max(96);
        let w = weights(dtype, 40, cols, &mut seeded);
        let x: Vec<Vec<f32>> = (0..n_rows).map(|_| seeded.normals(cols, 1.0)).collect();
        let rows: Vec<u32> = (0..n_rows).rev().collect();
        for activation in Activation::ALL {
            let mut first: Option<Vec<f32>> = None;
            for isa in Isa::available() {
                let input = prepared(isa, activation, &x);
                let matrix = Matrix { packing: w.packing, bytes: &w.bytes };
                let product = Product { matrix, input: input.view(), activation };
                let mut together = vec![0.0; x.len() * 3 * GROUP_ROWS];
                let mut panel = Panel::ZERO;
                linear(isa, product, (&rows, 0..3), &mut panel, &mut together);
                for few in 2..=17 {
                    let mut out = vec![0.0; few * 3 * GROUP_ROWS];
                    linear(isa, product, (&rows[..few], 0..3), &mut panel, &mut out);
                    let name = dtype.name();
                    let (few, all) = (&out[..few * 48], &together[..few * 48]);
                    assert_eq!(few, all, "{name} {activation:?} {isa}, {}", few.len() / 48);
                }
                for (i, row) in rows.iter().enumerate() {
                    for group in 0..3 {
                        let mut alone = vec![0.0; GROUP_ROWS];
                        let only = (&[*row][..], group..group + 1);
                        linear(isa, product, only, &mut panel, &mut alone);
                        let here = &together[i * 48 + 16 * group..][..16];
                        let name = dtype.name();
                        assert_eq!(here, &alone[..16], "{name} {activation:?} {isa}, row {row}");
                    }
                }
                together.truncate(x.len() * 48);
                let first = first.get_or_insert_with(|| together.clone());
                assert_eq!(&together, first, "{} {activation:?} {isa}", dtype.name());
            }
        }
    }
}

/// Some processors take what is denormal for zero where they add products of bf16, others do not.
#[test]
fn the_smallest_numbers_of_bf16_give_the_same_bits() {
    let mut seeded = Seeded::new(17);
    let cols = 300;
    let mut small = |n: usize| -> Vec<f32> {
        let numbers = seeded.normals(n, 1.0);
        let exponents = seeded.bytes(n).into_iter().map(|byte| -i32::from(byte) / 2);
        numbers.into_iter().zip(exponents).map(|(x, e)| x * 2f32.powi(e)).collect()
    };
    let w = weights_of(Dtype::Bf16, cols, &small(32 * cols));
    let x: Vec<Vec<f32>> = (0..13).map(|_| small(cols)).collect();
    let rows: Vec<u32> = (0..13).collect();
    let mut first = None;
    for isa in Isa::available() {
        let (input, activation) = (prepared(isa, Activation::Bf16, &x), Activation::Bf16);
        let matrix = Matrix { packing: w.packing, bytes: &w.bytes };
        let product = Product { matrix, input: input.view(), activation };
        let mut panel = Panel::ZERO;
        // All together, and so few at a time that they are multiplied otherwise.
        for most in [13, 7] {
            let mut out = vec![f32::NAN; 13 * 32];
            for (piece, out) in rows.chunks(most).zip(out.chunks_mut(32 * most)) {
                linear(isa, product, (piece, 0..2), &mut panel, out);
            }
            assert_eq!(first.get_or_insert_with(|| out.clone()), &out, "{isa}, {most} at a time");
        }
    }
}

#[test]
fn codes_are_the_nearest_and_zero_stays_zero() {
    let mut x = vec![0.0; 64];
    x[..4].copy_from_slice(&[1.27, -1.27, 0.005, 0.016]);
    x[20] = -0.07;
    for isa in Isa::available() {
        let rows = prepared(isa, Activation::Int8, std::slice::from_ref(&x));
        assert_eq!(rows.codes[0][0].codes[..4], [127, -127, 0, 2], "{isa}");
        let [low, high, all] = rows.codes[0][0].sums;
        assert_eq!([low, high, all], [2 << 16, 0xfff9, 2 << 16 | 0xfff9], "{isa}");
        assert!((rows.codes[0][0].neg_sums[2] - 0.05).abs() < 1e-6, "{isa}");
        assert_eq!(rows.codes[0][0].zero_point_sum, 5 * 128, "{isa}");
        assert_eq!(rows.codes[0][1], CodeBlock::default());
    }
}

#[test]
fn two_planes_are_codes_of_sixteen_bits() {
    let mut seeded = Seeded::new(6);
    let mut x = seeded.normals(32 * 9, 1.0);
    // Half a coarse step is what the fine codes cannot quite hold; less than nothing is zero.
    x[..3].copy_from_slice(&[127.0, 3.5, -3.5]);
    x[3..32].fill(0.25);
    x[32 * 8..].fill(1e-31);
    for isa in Isa::available() {
        let rows = prepared(isa, Activation::Int16, std::slice::from_ref(&x));
        let [coarse, fine] = &rows.codes;
        assert_eq!((coarse[0].codes[1], fine[0].codes[1]), (4, -127), "{isa}");
        assert_eq!((coarse[0].codes[2], fine[0].codes[2]), (-4, 127), "{isa}");
        for (block, x) in x.chunks_exact(32).enumerate().take(8) {
            let (coarse, fine) = (&coarse[block], &fine[block]);
            assert_eq!(coarse.scale, 256.0 * fine.scale, "{isa}");
            let mut sums = [0.0; 2];
            for (column, x) in x.iter().enumerate() {
                let code = 256 * i32::from(coarse.codes[column]) + i32::from(fine.codes[column]);
                let number = f64::from(code) * f64::from(fine.scale);
                let error = (number - f64::from(*x)).abs();
                assert!(error <= 1.01 * f64::from(fine.scale), "{isa} {block} {column}: {error}");
                sums[column / 16] -= number;
            }
            let want = [sums[0], sums[1], sums[0] + sums[1]];
            assert_close(&fine.neg_sums, &want, 1e-6, 1e-6);
            for plane in [coarse, fine] {
                let sum: i32 = plane.codes.iter().map(|code| i32::from(*code)).sum();
                assert_eq!(plane.zero_point_sum, -128 * sum, "{isa} {block}");
            }
        }
        assert_eq!((coarse[8].codes, fine[8].codes), ([0; 32], [0; 32]), "{isa}");
    }
}

#[test]
fn a_row_may_be_prepared_in_pieces() {
    let mut seeded = Seeded::new(5);
    let x = seeded.normals(32 * 3 + 16, 1.0);
    for (isa, activation) in
        Isa::available().into_iter().flat_map(|isa| Activation::ALL.map(|a| (isa, a)))
    {
        let whole = prepared(isa, activation, std::slice::from_ref(&x));
        let mut pieces = InputBuffer::new(1, x.len(), activation);
        for (block, x) in x.chunks(32).enumerate() {
            let InputBuffer { values, value_sums, codes, .. } = &mut pieces;
            let codes = codes.each_mut().map(|plane| match plane.is_empty() {
                true => &mut [][..],
                false => &mut plane[block..=block],
            });
            let values = &mut values[32 * block..][..32];
            let value_sums = &mut value_sums[2 * block..][..2];
            prepare(isa, activation, x, InputRow { values, value_sums, codes, squares: &mut [] });
        }
        assert_eq!(pieces.values, whole.values, "{isa} {activation:?}");
        assert_eq!(pieces.value_sums, whole.value_sums, "{isa} {activation:?}");
        assert_eq!(pieces.codes, whole.codes, "{isa} {activation:?}");
    }
}

#[test]
fn a_second_plane_brings_what_the_first_one_leaves() {
    let mut seeded = Seeded::new(3);
    let x = seeded.normals(320, 1.0);
    for isa in Isa::available() {
        let rows = prepared(isa, Activation::Int16, std::slice::from_ref(&x));
        let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        for (x, number) in x.iter().zip(numbers(&rows, 0, 2)) {
            let off = (f64::from(*x) - number).abs();
            assert!(off < f64::from(largest) / 127.0 / 127.0 / 2.0, "{isa}: {x} as {number}");
        }
    }
}

/// A processor that runs this test reads memory in one way alone, and the others' tiles would never
/// be tried.
#[test]
fn products_are_the_same_however_memory_is_read() {
    let (rows, cols) = (5 * GROUP_ROWS, 512);
    let (mut seeded, mut panel) = (Seeded::new(11), Panel::ZERO);
    for dtype in weight_types() {
        let Weights { packing, bytes, .. } = weights(dtype, rows, cols, &mut seeded);
        let matrix = Matrix { packing, bytes: &bytes };
        let x: Vec<Vec<f32>> = (0..9).map(|_| seeded.normals(cols, 1.0)).collect();
        for activation in [Activation::Int8, Activation::Int16] {
            let input = prepared(Isa::scalar(), activation, &x);
            let product = Product { matrix, input: input.view(), activation };
            for isa in Isa::available() {
                for n in 1..=9 {
                    let ways = [CacheLevel::First, CacheLevel::Second].map(|l| [(1, l), (2, l)]);
                    let outs = ways.as_flattened().iter().map(|&(streams, level)| {
                        let mut out = vec![f32::NAN; n * rows];
                        let policy = PrefetchPolicy { streams, level, ..PrefetchPolicy::detect() };
                        let all = (&[0, 1, 2, 3, 4, 5, 6, 7, 8][..n], 0..5);
                        linear_with_prefetch(isa, policy, product, all, &mut panel, &mut out);
                        out
                    });
                    let outs: Vec<Vec<f32>> = outs.collect();
                    assert!(outs[0].iter().all(|x| x.is_finite()), "{isa} {dtype:?} {n}");
                    let is_same = outs.iter().all(|out| *out == outs[0]);
                    assert!(is_same, "{isa} {dtype:?} {activation:?}, {n} rows");
                }
            }
        }
    }
}

#[test]
fn an_activation_that_is_no_number_leaves_no_product() {
    let (mut seeded, mut panel) = (Seeded::new(13), Panel::ZERO);
    let cols = 128;
    for dtype in [Dtype::Mxfp4, Dtype::Q8_0, Dtype::Q4K, Dtype::F32, Dtype::Bf16] {
        let cols = cols.max(dtype.block_len());
        let w = weights(dtype, 16, cols, &mut seeded);
        for damage in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 5, 16, 31, 77, cols - 1] {
                let x: Vec<Vec<f32>> = (0..40).map(|_| seeded.normals(cols, 1.0)).collect();
                let mut damaged = x.clone();
                damaged[3][at] = damage;
                for isa in Isa::available() {
                    for (activation, n) in
                        Activation::ALL.into_iter().flat_map(|a| [(a, 4), (a, 40)])
                    {
                        let all: Vec<u32> = (0..n).collect();
                        let mut outs = [&x, &damaged].map(|x| {
                            let input = prepared(isa, activation, &x[..n as usize]);
                            let matrix = Matrix { packing: w.packing, bytes: &w.bytes };
                            let product = Product { matrix, input: input.view(), activation };
                            let mut out = vec![0.0; n as usize * GROUP_ROWS];
                            linear(isa, product, (&all, 0..1), &mut panel, &mut out);
                            out
                        });
                        let row = 3 * GROUP_ROWS..4 * GROUP_ROWS;
                        let none = outs[1][row.clone()].iter().all(|x| !x.is_finite());
                        assert!(none, "{isa} {dtype} {activation:?} {n} {damage} at {at}");
                        outs.iter_mut().for_each(|out| out[row.clone()].fill(0.0));
                        assert_eq!(outs[0], outs[1], "{isa} {dtype} {activation:?}: other rows");
                    }
                }
            }
        }
    }
}

#[test]
fn matrices_without_columns_give_zeros() {
    let mut panel = Panel::ZERO;
    for (dtype, n) in [(Dtype::Q8_0, 1), (Dtype::Q8_0, 40), (Dtype::F32, 3)] {
        let packing = Packing::for_dtype(dtype, 16, 0).expect("no columns");
        let all: Vec<u32> = (0..n).collect();
        let (rows, activation) = (vec![Vec::new(); n as usize], Activation::Int8);
        let input = prepared(Isa::scalar(), activation, &rows);
        let matrix = Matrix { packing, bytes: &[] };
        let product = Product { matrix, input: input.view(), activation };
        let mut out = vec![f32::NAN; n as usize * GROUP_ROWS];
        linear(Isa::scalar(), product, (&all, 0..1), &mut panel, &mut out);
        assert!(out.iter().all(|x| *x == 0.0), "{dtype}: {out:?}");
    }
}
