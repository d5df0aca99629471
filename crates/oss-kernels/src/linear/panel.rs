//! Groups unpacked once for many input rows, in one form for all formats.

use super::codes::{Group, Place, Source, tiles};
use super::{Walk, prefetch};
use oss_quant::CodeFormat;
use oss_simd::{Isa, Kernel, Simd};

/// From how many input rows on unpacking pays.
pub(super) const PANEL_ROWS: usize = 16;

/// Blocks that are unpacked at once: they, and the blocks of eight rows of activations that they
/// meet, stay in the first-level cache.
const CHUNK: usize = 24;

/// Scratch of [`linear`](super::linear): some columns of a group, unpacked.
#[derive(Clone, Debug)]
pub struct Panel([Block; CHUNK]);

impl Panel {
    /// All zero.
    pub const ZERO: Self = Self([Block::ZERO; CHUNK]);
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

/// Unpacks the blocks of a group from `first` on.
struct Unpack<'a, 'b, F> {
    group: Group<'a, F>,
    first: usize,
    panel: &'b mut [Block],
}

impl<F: CodeFormat> Kernel for Unpack<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { group, first, panel } = self;
        for (block, out) in (first..).zip(panel) {
            for j in 0..4 {
                let (bottom, top) = group.pair(s, block, j);
                s.store_u8(bottom, &mut out.codes[j]);
                s.store_u8(top, &mut out.codes[4 + j]);
            }
            let (low, high) = group.scales(s, block);
            s.store(low, &mut out.scales[0]);
            if F::HALVES {
                s.store(high, &mut out.scales[1]);
            }
            if F::HAS_MIN {
                let (low, high) = group.mins(s, block);
                s.store(low, &mut out.mins[0]);
                if F::HALVES {
                    s.store(high, &mut out.mins[1]);
                }
            }
        }
    }
}

/// Unpacked blocks, from `first` on; what of a format decides about the arithmetic is in the type.
#[derive(Clone, Copy)]
struct Unpacked<'a, const MAX_CODE: i32, const HALVES: bool> {
    blocks: &'a [Block],
    first: usize,
    zero: i32,
    has_min: bool,
    /// What is asked for ahead meanwhile: the packed group, and the bytes of a block in it.
    ahead: (&'a [u8], usize),
}

impl<const MAX_CODE: i32, const HALVES: bool> Source for Unpacked<'_, MAX_CODE, HALVES> {
    const MAX_CODE: i32 = MAX_CODE;
    const HALVES: bool = HALVES;

    #[inline(always)]
    fn zero(self) -> i32 {
        self.zero
    }
    #[inline(always)]
    fn has_min(self) -> bool {
        self.has_min
    }
    #[inline(always)]
    fn prefetch<S: Simd, const G: usize>(self, s: S, block: usize) {
        let (bytes, block_bytes) = self.ahead;
        prefetch(s, bytes, block, block_bytes);
    }
    #[inline(always)]
    fn pair<S: Simd>(self, s: S, block: usize, j: usize) -> (S::U8, S::U8) {
        let codes = &self.blocks[block - self.first].codes;
        (s.load_u8(&codes[j]), s.load_u8(&codes[4 + j]))
    }
    #[inline(always)]
    fn scales<S: Simd>(self, s: S, block: usize) -> (S::F32, S::F32) {
        let [low, high] = &self.blocks[block - self.first].scales;
        (s.load(low), s.load(high))
    }
    #[inline(always)]
    fn mins<S: Simd>(self, s: S, block: usize) -> (S::F32, S::F32) {
        let [low, high] = &self.blocks[block - self.first].mins;
        (s.load(low), s.load(high))
    }
}

/// All rows of a call times the unpacked blocks of one group.
struct Tiles<'p, 'w, 'a, 'b, const MAX_CODE: i32, const HALVES: bool> {
    panel: Unpacked<'p, MAX_CODE, HALVES>,
    walk: &'w mut Walk<'a, 'b>,
    group: usize,
}

impl<const MAX_CODE: i32, const HALVES: bool> Kernel for Tiles<'_, '_, '_, '_, MAX_CODE, HALVES> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { panel, walk, group } = self;
        let blocks = (panel.first, panel.first + panel.blocks.len());
        let place = Place { group, first: 0, n: walk.code_rows(), blocks };
        tiles(s, panel, walk, place);
    }
}

/// Multiplies all rows with all groups, unpacking each group once.
pub(super) fn multiply<F: CodeFormat>(isa: Isa, walk: &mut Walk<'_, '_>, panel: &mut Panel) {
    let n_blocks = walk.product.matrix.packing.n_blocks();
    for index in walk.groups.clone() {
        let group = Group::<F>::new(walk.group(index), n_blocks);
        for first in (0..n_blocks).step_by(CHUNK) {
            let panel = &mut panel.0[..CHUNK.min(n_blocks - first)];
            isa.run(Unpack { group, first, panel });
            let place = (index, first);
            match (F::HALVES, F::MAX_CODE) {
                (false, ..=31) => multiply_panel::<31, false, F>(isa, panel, walk, place),
                (false, _) => multiply_panel::<255, false, F>(isa, panel, walk, place),
                (true, ..=31) => multiply_panel::<31, true, F>(isa, panel, walk, place),
                (true, _) => multiply_panel::<63, true, F>(isa, panel, walk, place),
            }
        }
    }
}

fn multiply_panel<const MAX_CODE: i32, const HALVES: bool, F: CodeFormat>(
    isa: Isa,
    blocks: &[Block],
    walk: &mut Walk<'_, '_>,
    (group, first): (usize, usize),
) {
    let (zero, has_min) = (F::ZERO, F::HAS_MIN);
    let ahead = (walk.group(group), F::BLOCK_BYTES);
    let panel = Unpacked::<MAX_CODE, HALVES> { blocks, first, zero, has_min, ahead };
    isa.run(Tiles { panel, walk, group });
}
