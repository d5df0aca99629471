//! Groups unpacked once for many input rows, in one form for all formats.

use super::codes::{Group, Place, Source, calls, tiles};
use super::{Walk, prefetch};
use oss_quant::CodeFormat;
use oss_simd::{Isa, Kernel, Simd};

/// From how many input rows on unpacking pays.
pub(super) const PANEL_ROWS: usize = 16;

/// Groups that are multiplied together, where registers allow: each number of the activations is
/// loaded once for both.
const GROUPS: usize = 2;

/// Blocks that are unpacked at once: they, and the blocks of a tile's rows of activations that they
/// meet, stay in the first-level cache.
const BLOCKS: usize = 24;

/// Scratch of [`linear`](super::linear): some columns of one group or two, unpacked.
#[derive(Clone, Debug)]
pub struct Panel([Block; BLOCKS]);

impl Panel {
    /// All zero.
    pub const ZERO: Self = Self([Block::ZERO; BLOCKS]);
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

/// Unpacked blocks; what of a format decides about the arithmetic is in the type.
#[derive(Clone, Copy)]
struct Unpacked<'a, const CALLS: usize, const HALVES: bool> {
    blocks: &'a [Block],
    zero: u8,
    has_min: bool,
    /// What is asked for ahead meanwhile: the packed group, and the bytes of a block in it.
    ahead: (&'a [u8], usize),
}

impl<const CALLS: usize, const HALVES: bool> Source for Unpacked<'_, CALLS, HALVES> {
    const CALLS: usize = CALLS;
    const HALVES: bool = HALVES;

    #[inline(always)]
    fn zero(self) -> u8 {
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
        let codes = &self.blocks[block].codes;
        (s.load_u8(&codes[j]), s.load_u8(&codes[4 + j]))
    }
    #[inline(always)]
    fn scales<S: Simd>(self, s: S, block: usize) -> (S::F32, S::F32) {
        let [low, high] = &self.blocks[block].scales;
        (s.load(low), s.load(high))
    }
    #[inline(always)]
    fn mins<S: Simd>(self, s: S, block: usize) -> (S::F32, S::F32) {
        let [low, high] = &self.blocks[block].mins;
        (s.load(low), s.load(high))
    }
}

/// All rows of a call times the unpacked blocks of one group or two.
struct Tiles<'p, 'w, 'a, 'b, const CALLS: usize, const HALVES: bool> {
    groups: [Unpacked<'p, CALLS, HALVES>; GROUPS],
    walk: &'w mut Walk<'a, 'b>,
    place: Place,
    n_groups: usize,
}

impl<const CALLS: usize, const HALVES: bool> Kernel for Tiles<'_, '_, '_, '_, CALLS, HALVES> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { groups, walk, place, n_groups } = self;
        // The same length in another guise: one that the compiler knows to be that of the rows.
        let blocks = place.blocks.1 - place.blocks.0;
        let groups = groups.map(|group| Unpacked { blocks: &group.blocks[..blocks], ..group });
        if n_groups == GROUPS && const { S::REGISTERS >= 32 && CALLS > 0 } {
            return tiles(s, groups, walk, place);
        }
        for (g, group) in groups.into_iter().enumerate().take(n_groups) {
            tiles(s, [group], walk, Place { group: place.group + g, ..place });
        }
    }
}

/// Multiplies all rows with all groups, unpacking each group once.
pub(super) fn multiply<F: CodeFormat>(isa: Isa, walk: &mut Walk<'_, '_>, panel: &mut Panel) {
    let n_blocks = walk.product.matrix.packing.n_blocks();
    // Signed bytes are made for each tile: wider ones of one group are better.
    let together = if calls::<F>() > 0 { GROUPS } else { 1 };
    let chunk = BLOCKS / together;
    for group in walk.groups.clone().step_by(together) {
        let n_groups = together.min(walk.groups.end - group);
        for first in (0..n_blocks).step_by(chunk) {
            let blocks = (first, n_blocks.min(first + chunk));
            for (g, panel) in panel.0.chunks_exact_mut(chunk).enumerate().take(n_groups) {
                let group = Group::<F>::new(walk.group(group + g), n_blocks);
                isa.run(Unpack { group, first, panel: &mut panel[..blocks.1 - first] });
            }
            let place = Place { group, first: 0, n: walk.code_rows(), blocks };
            match (F::HALVES, calls::<F>()) {
                (false, 8) => multiply_panel::<8, false, F>(isa, panel, walk, place, n_groups),
                (false, 4) => multiply_panel::<4, false, F>(isa, panel, walk, place, n_groups),
                (false, _) => multiply_panel::<0, false, F>(isa, panel, walk, place, n_groups),
                (true, _) => multiply_panel::<4, true, F>(isa, panel, walk, place, n_groups),
            }
        }
    }
}

fn multiply_panel<const CALLS: usize, const HALVES: bool, F: CodeFormat>(
    isa: Isa,
    panel: &Panel,
    walk: &mut Walk<'_, '_>,
    place: Place,
    n_groups: usize,
) {
    let groups = std::array::from_fn(|g| Unpacked::<CALLS, HALVES> {
        blocks: &panel.0[g.min(n_groups - 1) * (BLOCKS / GROUPS)..],
        zero: F::ZERO as u8,
        has_min: F::HAS_MIN,
        ahead: (walk.group(place.group + g.min(n_groups - 1)), F::BLOCK_BYTES),
    });
    isa.run(Tiles { groups, walk, place, n_groups });
}
