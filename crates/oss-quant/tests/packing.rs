//! Packing, unpacking and the SIMD unpackers against `dequantise_row` of the source rows.

use oss_quant::{
    CodeFormat, Dtype, Encoded, Error, FloatFormat, GROUP_ROWS, Packed, Packing, Visitor,
};
use oss_simd::{Isa, Kernel, Simd};
use oss_testing::Seeded;
use proptest::prelude::*;

/// A matrix as files hold it, and its values.
struct Source {
    dtype: Dtype,
    rows: Vec<Vec<u8>>,
    values: Vec<Vec<f32>>,
}

/// Where a block has f16 scales and minima.
fn halves_at(dtype: Dtype) -> &'static [usize] {
    match dtype {
        Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 | Dtype::Iq4Nl => &[0],
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
        Dtype::Q2K => &[80, 82],
        Dtype::Q3K => &[108],
        Dtype::Q6K => &[208],
        _ => &[],
    }
}

/// Random bytes, of which scales are finite; f16 and bf16 numbers are whatever comes.
fn source(dtype: Dtype, rows: usize, cols: usize, seed: u64) -> Source {
    let mut seeded = Seeded::new(seed);
    let mut all = Source { dtype, rows: Vec::new(), values: Vec::new() };
    for _ in 0..rows {
        let mut bytes = seeded.bytes(dtype.row_bytes(cols).unwrap());
        if dtype == Dtype::Mxfp4 {
            for scale in bytes.iter_mut().step_by(17) {
                *scale = (*scale).min(254);
            }
        }
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            for at in halves_at(dtype) {
                // An exponent of all ones is that of infinities and of what is no number.
                if block[at + 1] & 0x7c == 0x7c {
                    block[at + 1] &= 0xbf;
                }
            }
        }
        let mut values = vec![0.0; cols];
        dtype.dequantise_row(Isa::scalar(), &bytes, &mut values).unwrap();
        all.rows.push(bytes);
        all.values.push(values);
    }
    all
}

fn pack(source: &Source, cols: usize) -> (Packing, Vec<u8>) {
    let packing = Packing::for_dtype(source.dtype, source.rows.len(), cols).unwrap();
    // Whatever was in the buffer must not shine through.
    let mut bytes = vec![0xa5; packing.bytes()];
    for (g, group) in bytes.chunks_exact_mut(packing.group_bytes()).enumerate() {
        packing.pack_group(g, |row| Encoded::Plain(&source.rows[row]), group).unwrap();
    }
    (packing, bytes)
}

#[track_caller]
fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (column, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(same, "{what}, column {column}: {got:e}, expected {want:e}");
    }
}

/// Unpacks all rows of one group with a format's vector functions.
struct UnpackGroup<'a> {
    packing: Packing,
    group: &'a [u8],
}

struct Unpacker<'a, S>(S, UnpackGroup<'a>);

impl Kernel for UnpackGroup<'_> {
    type Output = Vec<Vec<f32>>;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<Vec<f32>> {
        self.packing.format.visit(Unpacker(s, self))
    }
}

impl<S: Simd> Visitor for Unpacker<'_, S> {
    type Output = Vec<Vec<f32>>;

    #[inline(always)]
    fn codes<F: CodeFormat>(self) -> Vec<Vec<f32>> {
        let Unpacker(s, UnpackGroup { packing, group }) = self;
        let n_blocks = packing.n_blocks();
        let mut rows = vec![vec![f32::NAN; packing.padded_cols()]; GROUP_ROWS];
        let lanes = |x| {
            let mut lanes = [0.0; 16];
            s.store(x, &mut lanes);
            lanes
        };
        for index in 0..n_blocks {
            let block = F::block(group, n_blocks, index);
            let scales = F::scales(s, block);
            let scales = [lanes(scales.0), lanes(scales.1)];
            let mins = F::mins(s, block);
            let mins = [lanes(mins.0), lanes(mins.1)];
            assert!(F::HALVES || same_bits(scales), "{packing:?}: halves differ");
            assert!(F::HAS_MIN || mins == [[0.0; 16]; 2], "{packing:?}: a minimum appears");
            for j in 0..4 {
                let pair = F::pair(s, block, j);
                for (half, codes) in [pair.0, pair.1].into_iter().enumerate() {
                    let mut quads = [0; 16];
                    s.store_i32(s.u8_as_i32(codes), &mut quads);
                    for (lane, quad) in quads.into_iter().enumerate() {
                        for (b, code) in quad.to_le_bytes().into_iter().enumerate() {
                            let level = i32::from(code) - F::zero::<S>();
                            let most = F::MAX_CODE - F::ZERO;
                            assert!(level <= most, "{packing:?}: code {code}");
                            let level = level as f32;
                            rows[lane][32 * index + 16 * half + 4 * j + b] =
                                scales[half][lane] * level - mins[half][lane];
                        }
                    }
                }
            }
        }
        rows
    }

    #[inline(always)]
    fn floats<F: FloatFormat>(self) -> Vec<Vec<f32>> {
        let Unpacker(s, UnpackGroup { packing, group }) = self;
        let mut rows = vec![vec![f32::NAN; packing.padded_cols()]; GROUP_ROWS];
        for k in (0..packing.padded_cols()).step_by(2) {
            for (i, column) in F::pair(s, group, k).into_iter().enumerate() {
                let mut lanes = [0.0; 16];
                s.store(column, &mut lanes);
                for (row, x) in rows.iter_mut().zip(lanes) {
                    row[k + i] = x;
                }
            }
        }
        rows
    }
}

/// Whether both halves have the same bits.
fn same_bits(halves: [[f32; 16]; 2]) -> bool {
    let [low, high] = halves;
    low.iter().zip(high).all(|(low, high)| low.to_bits() == high.to_bits())
}

/// What the rows are once they are packed: bf16 numbers below 2^-50 are zero then.
fn packed_values(source: &Source) -> Vec<Vec<f32>> {
    let mut rows = source.values.clone();
    if source.dtype == Dtype::Bf16 {
        let tiny = |x: &&mut f32| x.abs() < 2f32.powi(-50);
        rows.iter_mut().flatten().filter(tiny).for_each(|x| *x = 0.0);
    }
    rows
}

/// Everything that must hold for one matrix.
fn check(dtype: Dtype, rows: usize, cols: usize, seed: u64) {
    let source = source(dtype, rows, cols, seed);
    let (packing, bytes) = pack(&source, cols);
    assert_eq!(packing.group_bytes() % 64, 0, "{packing:?}");
    let packed = packed_values(&source);
    for isa in Isa::available() {
        for (index, (file, values)) in source.rows.iter().zip(&source.values).enumerate() {
            let mut row = vec![f32::NAN; cols];
            dtype.dequantise_row(isa, file, &mut row).unwrap();
            assert_same(&row, values, &format!("dequantise_row of {dtype} on {isa}"));
            row.fill(f32::NAN);
            let values = &packed[index];
            packing.unpack_row(isa, &bytes, index, &mut row);
            assert_same(&row, values, &format!("unpack_row({index}) of {packing:?} on {isa}"));
        }
        for (g, group) in bytes.chunks_exact(packing.group_bytes()).enumerate() {
            for (lane, row) in isa.run(UnpackGroup { packing, group }).iter().enumerate() {
                let index = g * GROUP_ROWS + lane;
                let what = format!("row {index} of {packing:?} on {isa}");
                let values = packed.get(index).map_or(&[][..], Vec::as_slice);
                let (inside, padding) = row.split_at(values.len());
                assert_same(inside, values, &what);
                assert!(padding.iter().all(|x| *x == 0.0), "padding of {what}: {padding:?}");
            }
        }
    }
}

fn weights() -> impl Iterator<Item = Dtype> {
    Dtype::all().filter(|dtype| dtype.is_weight())
}

#[test]
fn every_format_is_packed_without_loss_for_all_row_counts() {
    for dtype in weights() {
        for rows in [1, 15, 16, 17, 33] {
            check(dtype, rows, dtype.block_len().max(32), 7 + rows as u64);
        }
    }
}

#[test]
fn every_format_is_packed_without_loss_for_all_block_counts() {
    for dtype in weights() {
        for blocks in [1, 2, 3, 5, 6, 7, 9] {
            check(dtype, 3, blocks * dtype.block_len().max(32), 100 + blocks as u64);
        }
    }
}

#[test]
fn rows_of_2880_columns_are_packed_without_loss() {
    for dtype in weights().filter(|dtype| 2880 % dtype.block_len() == 0) {
        check(dtype, 17, 2880, 5);
    }
}

#[test]
fn float_rows_may_have_any_length() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for cols in [1, 2, 3, 31, 33, 63, 100] {
            check(dtype, 17, cols, cols as u64);
        }
    }
}

#[test]
fn an_empty_matrix_packs_to_nothing() {
    for dtype in weights() {
        assert_eq!(Packing::for_dtype(dtype, 0, 256).unwrap().bytes(), 0);
        assert_eq!(Packing::for_dtype(dtype, 16, 0).unwrap().bytes(), 0);
    }
}

#[test]
fn packed_matrices_are_about_as_large_as_in_the_file() {
    let expanding = [Dtype::Q3K];
    for dtype in weights().filter(|dtype| !expanding.contains(dtype)) {
        for cols in [1536, 2048, 2816, 4096] {
            let packed = Packing::for_dtype(dtype, 4096, cols).unwrap().bytes();
            let file = 4096 * dtype.row_bytes(cols).unwrap();
            let ratio = packed as f64 / file as f64;
            assert!((1.0..=1.05).contains(&ratio), "{dtype} with {cols} columns: {ratio}");
        }
    }
}

#[test]
fn the_drawn_record_sizes_are_the_real_ones() {
    let group = |dtype, cols| Packing::for_dtype(dtype, 16, cols).unwrap().group_bytes();
    assert_eq!(group(Dtype::Mxfp4, 128), 1088);
    assert_eq!(group(Dtype::Mxfp4, 2880), 22 * 1088 + 2 * 256 + 64);
    assert_eq!(group(Dtype::Q4_0, 64), 576);
    assert_eq!(group(Dtype::Q4_0, 96), 576 + 256 + 64);
    assert_eq!(group(Dtype::Q4_1, 64), 640);
    assert_eq!(group(Dtype::Q5_0, 64), 704);
    assert_eq!(group(Dtype::Q5_1, 64), 768);
    assert_eq!(group(Dtype::Q8_0, 64), 1088);
    assert_eq!(group(Dtype::Iq4Nl, 64), 576);
    assert_eq!(group(Dtype::Q2K, 256), 1344);
    assert_eq!(group(Dtype::Q3K, 256), 3392);
    assert_eq!(group(Dtype::Q4K, 256), 2368);
    assert_eq!(group(Dtype::Q5K, 256), 2880);
    assert_eq!(group(Dtype::Q6K, 256), 3392);
    assert_eq!(group(Dtype::Bf16, 64), 64 * 32);
    assert_eq!(group(Dtype::F32, 40), 64 * 64);
}

/// Plain MXFP4 blocks with codes and scales taken apart.
fn split(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut codes = Vec::new();
    let mut scales = Vec::new();
    for block in bytes.chunks_exact(17) {
        scales.push(block[0]);
        let nibble = |column: usize| block[1 + column % 16] >> (4 * (column / 16)) & 15;
        codes.extend((0..16).map(|i| nibble(2 * i) | nibble(2 * i + 1) << 4));
    }
    (codes, scales)
}

#[test]
fn separate_planes_pack_to_the_same_bytes_as_whole_blocks() {
    let source = source(Dtype::Mxfp4, 18, 160, 3);
    let (packing, expected) = pack(&source, 160);
    let planes: Vec<_> = source.rows.iter().map(|row| split(row)).collect();
    let row = |index: usize| Encoded::Split { codes: &planes[index].0, scales: &planes[index].1 };
    let mut packed = vec![0; packing.bytes()];
    for (g, group) in packed.chunks_exact_mut(packing.group_bytes()).enumerate() {
        packing.pack_group(g, row, group).unwrap();
    }
    assert_eq!(packed, expected);
    let mut values = vec![0.0; 160];
    row(17).dequantise(Isa::scalar(), Dtype::Mxfp4, &mut values).unwrap();
    assert_same(&values, &source.values[17], "a split row");
}

#[test]
fn a_published_block_decodes_as_its_documentation_says() {
    // Byte 0: column 0 is 0.5 (code 1), column 1 is -6 (code 15); the scale 128 is 2^1.
    let mut codes = [0; 16];
    codes[0] = 0xf1;
    let mut values = [0.0; 32];
    let row = Encoded::Split { codes: &codes, scales: &[128] };
    row.dequantise(Isa::scalar(), Dtype::Mxfp4, &mut values).unwrap();
    assert_eq!(values[..3], [1.0, -12.0, 0.0]);
}

#[test]
fn damaged_or_misshapen_sources_are_refused_by_name() {
    let mut source = source(Dtype::Mxfp4, 2, 64, 9);
    let packing = Packing::for_dtype(Dtype::Mxfp4, 2, 64).unwrap();
    let mut out = vec![0; packing.bytes()];
    source.rows[1][17] = 255;
    let error =
        packing.pack_group(0, |row| Encoded::Plain(&source.rows[row]), &mut out).unwrap_err();
    assert_eq!(error, Error::ScaleNotFinite { row: 1, block: 1, got: 255 });
    let message = "a scale of block 1 in row 1 is 0xff, expected a finite number's bits";
    assert_eq!(error.to_string(), message);
    let error = packing.pack_group(0, |_| Encoded::Plain(&[0; 33]), &mut out).unwrap_err();
    assert_eq!(error.to_string(), "the source row has 33 bytes, expected 34");
    let error = packing.pack_group(0, |_| Encoded::Plain(&[0; 34]), &mut out[1..]).unwrap_err();
    assert_eq!(error.to_string(), "the packed group has 575 bytes, expected 576");
    let row = |_| Encoded::Split { codes: &[0; 32], scales: &[0; 1] };
    let error = packing.pack_group(0, row, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "the source row's scale plane has 1 bytes, expected 2");
    let other = Packing::for_dtype(Dtype::Q4_0, 2, 64).unwrap();
    let error = other.pack_group(0, row, &mut vec![0; other.bytes()]).unwrap_err();
    assert_eq!(error.to_string(), "element type Q4_0 has no separate scale plane, expected MXFP4");
}

#[test]
fn a_scale_or_minimum_that_is_not_finite_is_refused_in_every_format() {
    for dtype in weights().filter(|dtype| !halves_at(*dtype).is_empty()) {
        for at in halves_at(dtype) {
            for bits in [0x7c00_u16, 0xfc00, 0x7e01] {
                let mut source = source(dtype, 3, 2 * dtype.block_len(), 11);
                let block = dtype.block_bytes();
                source.rows[2][block + at..][..2].copy_from_slice(&bits.to_le_bytes());
                let packing = Packing::for_dtype(dtype, 3, 2 * dtype.block_len()).unwrap();
                let mut out = vec![0; packing.bytes()];
                let row = |row: usize| Encoded::Plain(&source.rows[row]);
                let error = packing.pack_group(0, row, &mut out).unwrap_err();
                let expected = Error::ScaleNotFinite { row: 2, block: 1, got: bits };
                assert_eq!(error, expected, "{dtype}, byte {at}");
            }
        }
    }
    let checked = weights().filter(|dtype| dtype.block_len() > 1).count();
    // All but MXFP4, whose scales are no f16.
    assert_eq!(weights().filter(|dtype| !halves_at(*dtype).is_empty()).count(), checked - 1);
}

#[test]
fn impossible_shapes_are_refused() {
    let error = Packing::for_dtype(Dtype::Q6K, 16, 128).unwrap_err();
    assert_eq!(error.to_string(), "a row of 128 columns is not whole Q6_K blocks of 256");
    let error = Packing::for_dtype(Dtype::I8, 16, 128).unwrap_err();
    assert_eq!(error.to_string(), "element type I8 cannot hold weights");
    let error = Packing::for_dtype(Dtype::F32, usize::MAX, 1 << 40).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

/// 64 bits of what bytes are (FNV-1a).
fn hash(bytes: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}

/// Packed files hold these bytes: whoever changes them makes another layout of it.
#[test]
fn the_packed_bytes_are_those_of_the_layout() {
    let mut wrong = Vec::new();
    let dtypes: Vec<Dtype> = weights().collect();
    assert!(dtypes.iter().eq(PACKED.iter().map(|(dtype, _)| dtype)));
    for (dtype, expected) in PACKED {
        // Two groups, one of them not whole, and a last record that is not whole.
        let cols = 3 * dtype.block_len().max(32);
        let got = hash(&pack(&source(dtype, 20, cols, 20), cols).1);
        if got != expected {
            wrong.push(format!("(Dtype::{dtype:?}, {got:#018x}),"));
        }
    }
    assert!(wrong.is_empty(), "raise LAYOUT of oss-model/src/weights/packed_file.rs: {wrong:#?}");
}

const PACKED: [(Dtype, u64); 15] = [
    (Dtype::F32, 0xbcf2_9f57_7f18_5ac3),
    (Dtype::F16, 0xc03c_8a4e_9859_6c7a),
    (Dtype::Bf16, 0x7541_8c80_ff7f_9813),
    (Dtype::Mxfp4, 0x209c_be32_5565_8dc1),
    (Dtype::Q4_0, 0xcb8c_56a5_963a_3ae3),
    (Dtype::Q4_1, 0xcfac_157a_0c48_c4d1),
    (Dtype::Q5_0, 0x5fd8_2ccf_20d1_0c1a),
    (Dtype::Q5_1, 0x994f_93e9_17ba_3ed0),
    (Dtype::Q8_0, 0x3da3_7ec9_44ef_a0a8),
    (Dtype::Q2K, 0x0806_0e64_dec2_e196),
    (Dtype::Q3K, 0xb1a7_1448_1a81_14ef),
    (Dtype::Q4K, 0xadfc_7e7c_079d_6d95),
    (Dtype::Q5K, 0x9cd7_dda0_4635_af0e),
    (Dtype::Q6K, 0x049e_464d_a81e_d6dd),
    (Dtype::Iq4Nl, 0xcb8c_56a5_963a_3ae3),
];

#[test]
fn every_weight_type_has_a_packed_format_of_its_own() {
    for packed in Packed::all() {
        assert_eq!(Packed::for_dtype(packed.dtype()).unwrap(), packed);
    }
    for dtype in weights() {
        assert_eq!(Packed::for_dtype(dtype).unwrap().dtype(), dtype);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    })]

    #[test]
    fn any_matrix_of_any_format_survives_packing(
        format in 0..15_usize, rows in 1..40_usize, blocks in 1..12_usize, seed: u64,
    ) {
        let dtype = weights().nth(format).unwrap();
        let blocks = if dtype.block_len() == 256 { 1 + blocks % 3 } else { blocks };
        check(dtype, rows, blocks * dtype.block_len().max(32), seed);
    }
}

#[test]
fn part_of_a_block_is_no_row_of_planes() {
    let (codes, scales) = ([0; 16], [127]);
    let row = Encoded::Split { codes: &codes, scales: &scales };
    let mut out = [0.0; 40];
    let error = row.dequantise(Isa::scalar(), Dtype::Mxfp4, &mut out).unwrap_err();
    assert!(matches!(error, Error::Columns { got: 40, expected: 32, .. }), "{error}");
}
