//! Groups unpacked once for many input rows, in one form for all formats.

use super::codes::{
    BLOCKS, GROUPS, Group, Groups, MOST_ROWS, Source, TileRange, calls, parts, tiles,
};
use super::pairs::Factors;
use super::wide::Wide;
use super::{Gemm, SharedPrefetch};
use oss_quant::CodeFormat;
use oss_simd::{Extension, Isa, Kernel, Simd, array_of};

/// From how many input rows on unpacking pays.
pub(super) const PANEL_ROWS: usize = 32;

/// Scratch of [`linear`](super::linear): some columns of two groups, unpacked, and what rows of
/// bf16, and 8-bit codes and their rows, are multiplied as.
#[derive(Clone, Debug)]
pub struct Panel {
    groups: [[Block; BLOCKS]; GROUPS],
    pub(super) factors: Factors,
    pub(super) wide: Wide,
}

impl Panel {
    /// All zero.
    pub const ZERO: Self =
        Self { groups: [[Block::ZERO; BLOCKS]; GROUPS], factors: Factors::ZERO, wide: Wide::ZERO };
}

/// 32 columns of a group of 16 weight rows.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Block {
    /// Vector `j`: columns `4 j..4 j + 4`, four columns a lane.
    codes: [[u8; 64]; 8],
    /// Of columns 0..16 and 16..32.
    scales: [[f32; 16]; 2],
    mins: [[f32; 16]; 2],
}

impl Block {
    const ZERO: Self = Self { codes: [[0; 64]; 8], scales: [[0.0; 16]; 2], mins: [[0.0; 16]; 2] };
}

/// Whether codes of a panel count from 128, whatever the format's do: then what a sum starts with
/// is known of the activations alone.
const fn counts_from_128<S: Simd>(has_min: bool) -> bool {
    S::DOT_IS_EXACT && !has_min
}

/// Unpacks blocks of a group.
struct Unpack<'a, 'b, F> {
    group: Group<'a, F, ()>,
    panel: &'b mut [Block],
}

impl<F: CodeFormat> Kernel for Unpack<'_, '_, F> {
    type Output = ();
    const EXTENSION: Extension = Extension::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { group, panel } = self;
        // No byte carries: a code is at most 127 above the zero.
        let above = if counts_from_128::<S>(F::HAS_MIN) { 128 - F::zero::<S>() } else { 0 };
        let above = s.splat_i32(0x0101_0101 * above);
        let shifted = |codes| s.i32_as_u8(s.add_i32(s.u8_as_i32(codes), above));
        for (block, out) in panel.iter_mut().enumerate() {
            let block = group.at(block);
            for j in 0..4 {
                let (bottom, top) = F::pair(s, block, j);
                s.store_u8(shifted(bottom), &mut out.codes[j]);
                s.store_u8(shifted(top), &mut out.codes[4 + j]);
            }
            let (low, high) = F::scales(s, block);
            s.store(low, &mut out.scales[0]);
            if F::HALVES {
                s.store(high, &mut out.scales[1]);
            }
            if F::HAS_MIN {
                let (low, high) = F::mins(s, block);
                s.store(low, &mut out.mins[0]);
                if F::HALVES {
                    s.store(high, &mut out.mins[1]);
                }
            }
        }
    }
}

/// Unpacked blocks; what of a format decides about the arithmetic is in the type.
#[derive(Clone, Copy)]
struct Unpacked<'a, const CALLS: usize, const HALVES: bool, const MIN: bool> {
    blocks: &'a [Block],
    /// The code of zero, unless [`Source::zero`] knows it.
    zero: u8,
    /// What is unpacked next.
    next: SharedPrefetch<'a>,
}

impl<'a, const CALLS: usize, const HALVES: bool, const MIN: bool> Source
    for Unpacked<'a, CALLS, HALVES, MIN>
{
    const CALLS: usize = CALLS;
    const HALVES: bool = HALVES;
    const HAS_MIN: bool = MIN;
    const HAS_RUNS: bool = false;
    const RECORD: usize = BLOCKS;
    type Record = &'a [Block];
    type Block = &'a Block;

    #[inline(always)]
    fn zero<S: Simd>(self) -> u8 {
        // Known to the compiler where it is that of every such format.
        if MIN {
            0
        } else if counts_from_128::<S>(MIN) {
            128
        } else {
            self.zero
        }
    }
    #[inline(always)]
    fn record(self, first: usize) -> &'a [Block] {
        &self.blocks[first..]
    }
    #[inline(always)]
    fn block(record: &'a [Block], index: usize) -> &'a Block {
        &record[index]
    }
    #[inline(always)]
    fn for_rows(self, first: usize, n: usize) -> Self {
        Self { next: self.next.for_rows(first, n), ..self }
    }
    #[inline(always)]
    fn prefetch<S: Simd, const T: usize, const N: usize>(self, s: S, block: usize, j: usize) {
        if j == 0 {
            self.next.prefetch(s, block);
        }
    }
    #[inline(always)]
    fn pair<S: Simd>(s: S, Block { codes, .. }: &Block, j: usize) -> (S::U8, S::U8) {
        (s.load_u8(&codes[j]), s.load_u8(&codes[4 + j]))
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, Block { scales: [low, high], .. }: &Block) -> (S::F32, S::F32) {
        (s.load(low), s.load(high))
    }
    #[inline(always)]
    fn mins<S: Simd>(s: S, Block { mins: [low, high], .. }: &Block) -> (S::F32, S::F32) {
        (s.load(low), s.load(high))
    }
}

/// All rows of a call times the unpacked blocks of one group or two.
struct Tiles<'p, 'w, 'a, 'b, const CALLS: usize, const HALVES: bool, const MIN: bool> {
    groups: [Unpacked<'p, CALLS, HALVES, MIN>; GROUPS],
    gemm: &'w mut Gemm<'a, 'b>,
    range: TileRange,
    n_groups: usize,
}

impl<const CALLS: usize, const HALVES: bool, const MIN: bool> Kernel
    for Tiles<'_, '_, '_, '_, CALLS, HALVES, MIN>
{
    type Output = ();
    const EXTENSION: Extension = Extension::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if const { CALLS == 0 && S::DOT_WIDE_IS_FASTER } {
            unreachable!("codes of 8 bits are multiplied as 16 bits");
        }
        let Self { groups, gemm, range, n_groups } = self;
        // As many as the rows have: the compiler checks neither twice.
        let blocks = range.blocks.1 - range.blocks.0;
        let groups: [_; GROUPS] = array_of(|g| {
            let group = groups[g];
            Unpacked { blocks: &group.blocks[..blocks], ..group }
        });
        // Signed bytes are made for each tile: wider ones of one group are better.
        let pays = const { S::REGISTERS >= 32 && (S::DOT_IS_EXACT || CALLS > 0) };
        if pays && n_groups == GROUPS {
            return tiles::<S, _, GROUPS, 4>(s, |_| groups, gemm, range);
        }
        for (g, group) in groups.into_iter().enumerate().take(n_groups) {
            let range = TileRange { group: range.group + g, ..range };
            if pays {
                tiles::<S, _, 1, 4>(s, |_| [group], gemm, range);
            } else {
                tiles::<S, _, 1, MOST_ROWS>(s, |_| [group], gemm, range);
            }
        }
    }
}

/// Whether [`multiply`] has a kernel for the format.
const fn is_summed<F: CodeFormat>() -> bool {
    matches!(
        (calls::<F>(), F::HALVES, F::HAS_MIN),
        (8, false, _) | (4, false, true) | (4, true, _) | (0, false, false)
    )
}

/// Multiplies all rows with all groups, unpacking each group once.
pub(super) fn multiply<F: CodeFormat>(isa: Isa, gemm: &mut Gemm<'_, '_>, panel: &mut Panel) {
    const { assert!(is_summed::<F>(), "a format whose codes are summed in no way") };
    let (packed, n_blocks) = (Groups::new(gemm), gemm.product.matrix.packing.n_blocks());
    for group in gemm.groups.clone().step_by(GROUPS) {
        let n_groups = GROUPS.min(gemm.groups.end - group);
        for blocks @ (first, end) in parts(n_blocks, 1) {
            for (g, panel) in panel.groups.iter_mut().enumerate().take(n_groups) {
                let group = packed.part(group + g, first, ());
                isa.run(Unpack::<F> { group, panel: &mut panel[..end - first] });
            }
            let range = TileRange { group, passes: 1, first: 0, n: gemm.code_rows(), blocks };
            let call = (isa, &*panel, &mut *gemm, range, n_groups);
            match (calls::<F>(), F::HALVES, F::HAS_MIN) {
                (8, false, false) => multiply_panel::<8, false, false, F>(call),
                (8, false, true) => multiply_panel::<8, false, true, F>(call),
                (4, false, true) => multiply_panel::<4, false, true, F>(call),
                (4, true, false) => multiply_panel::<4, true, false, F>(call),
                (4, true, true) => multiply_panel::<4, true, true, F>(call),
                (0, false, false) => multiply_panel::<0, false, false, F>(call),
                _ => unreachable!("`is_summed` names another kernel"),
            }
        }
    }
}

fn multiply_panel<const CALLS: usize, const HALVES: bool, const MIN: bool, F: CodeFormat>(
    (isa, panel, gemm, range, n_groups): (Isa, &Panel, &mut Gemm<'_, '_>, TileRange, usize),
) {
    assert!(!MIN || F::ZERO == 0, "codes with a minimum begin at it");
    let packed = Groups::new(gemm);
    let groups = std::array::from_fn(|g| {
        let next = packed.next::<F>(range.group + g, range.blocks.1);
        let next = SharedPrefetch::new(next, range.n, range.blocks.1 - range.blocks.0);
        Unpacked::<CALLS, HALVES, MIN> { blocks: &panel.groups[g], zero: F::ZERO as u8, next }
    });
    isa.run(Tiles { groups, gemm, range, n_groups });
}
