//! What a page is made of.

use crate::tier::PACK_QUEUE;
use crate::{Error, Result};

/// Slots start at multiples of this many bytes.
pub(crate) const SLOT_ALIGN: usize = 64;

/// The largest number of pages of one group in one extent (one bit each in a mask).
const MAX_PAGES_PER_EXTENT: usize = 64;

/// Layers whose keys and values live and die together.
///
/// The sliding-window layers of a model are one group, its full-attention layers another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The model's layer numbers; each layer of the model occurs in exactly one group.
    pub layers: Vec<usize>,
    /// A position `p` is needed by a query at `q` while `q - p < window`; `None`: always.
    pub window: Option<usize>,
}

/// The shape of one engine's keys and values.
///
/// One page of a group holds `page_tokens` positions in slots, `[layer in group][kv head]`; the
/// bytes inside a slot (keys, values, and what is kept beside them) belong to whoever reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Positions per page.
    pub page_tokens: usize,
    /// Key/value heads per layer.
    pub n_kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Bytes of one slot: the keys and values of one head and layer at `page_tokens` positions, and
    /// what is kept beside them.
    pub slot_bytes: usize,
    /// The groups of layers.
    pub groups: Vec<Group>,
}

impl Shape {
    /// Bytes from one slot to the next.
    fn slot_stride(&self) -> usize {
        self.slot_bytes.next_multiple_of(SLOT_ALIGN)
    }

    /// Bytes of a page of one group.
    fn page_bytes(&self, group: &Group) -> usize {
        group.layers.len() * self.n_kv_heads * self.slot_stride()
    }

    /// Bytes of the largest page.
    #[must_use]
    pub fn largest_page_bytes(&self) -> usize {
        self.groups.iter().map(|group| self.page_bytes(group)).max().unwrap_or(0)
    }

    /// Bytes of the pages of a sequence of `len` positions, computed at most `rows` at a time, with
    /// a copy of the page that its prompt ends in.
    #[must_use]
    pub fn sequence_bytes(&self, len: usize, rows: usize) -> usize {
        let bytes = |group: &Group| {
            // A window's first and last page are used in part, and one page behind it is kept.
            let tokens = group.window.map_or(len, |window| window + rows + 3 * self.page_tokens);
            let pages = tokens.min(len).div_ceil(self.page_tokens);
            let copies = usize::from(tokens >= len);
            (pages + copies) * self.page_bytes(group)
        };
        self.groups.iter().map(bytes).sum()
    }

    /// Bytes of the pages that may be on their way between the tiers: those that wait to be
    /// compressed, where compressed ones are kept, and as many as [`ColdOptions::queue`] says each
    /// to the file and from there (0: there is no file). Those to be compressed and those to the
    /// file may each wait beside their compressed copy.
    ///
    /// [`ColdOptions::queue`]: crate::ColdOptions::queue
    #[must_use]
    pub fn queue_bytes(&self, warm_bytes: usize, queue: usize) -> usize {
        let packing = if warm_bytes > 0 { PACK_QUEUE } else { 0 };
        let copies = if warm_bytes > 0 { packing + queue } else { 0 };
        (packing + 2 * queue + copies) * self.largest_page_bytes()
    }
}

/// Where things lie inside the arena, derived from a [`Shape`].
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) page_tokens: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) slot_bytes: usize,
    /// Bytes from one slot to the next: `slot_bytes` rounded up to [`SLOT_ALIGN`].
    pub(crate) slot_stride: usize,
    pub(crate) groups: Vec<GroupLayout>,
    /// Per layer: its group and its index there.
    pub(crate) layers: Vec<(usize, usize)>,
    /// Bytes of an extent, the unit that moves between groups: the largest page.
    pub(crate) extent_bytes: usize,
    /// A page id is `extent << extent_shift | page within the extent`.
    pub(crate) extent_shift: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupLayout {
    pub(crate) window: Option<usize>,
    pub(crate) page_bytes: usize,
    /// Slots of a page.
    pub(crate) slots: usize,
    pub(crate) pages_per_extent: usize,
}

impl GroupLayout {
    /// The first page that a query at `position` or later needs.
    pub(crate) fn first_page_needed(&self, position: usize, page_tokens: usize) -> usize {
        match self.window {
            None => 0,
            Some(window) => (position + 1).saturating_sub(window) / page_tokens,
        }
    }

    /// The most pages that a sequence has at a time, where no more than `rows` of its positions are
    /// reserved at a time: those of the window, the page that is kept behind it, and those of the
    /// rows.
    pub(crate) fn most_pages(&self, rows: usize, page_tokens: usize) -> usize {
        let window = |window: usize| (window + rows).div_ceil(page_tokens) + 2;
        self.window.map_or(usize::MAX, window)
    }
}

impl Layout {
    pub(crate) fn new(shape: &Shape) -> Result<Layout> {
        let positive = |field, got| match got {
            0 => Err(Error::Shape { field, got, expected: "at least 1" }),
            _ => Ok(()),
        };
        positive("page_tokens", shape.page_tokens)?;
        positive("n_kv_heads", shape.n_kv_heads)?;
        positive("head_dim", shape.head_dim)?;
        positive("slot_bytes", shape.slot_bytes)?;
        positive("groups", shape.groups.len())?;
        for group in &shape.groups {
            positive("group.layers", group.layers.len())?;
            positive("group.window", group.window.unwrap_or(1))?;
        }
        let layers = layer_table(shape)?;
        let extent_bytes = shape.largest_page_bytes();
        let groups: Vec<GroupLayout> = shape
            .groups
            .iter()
            .map(|group| GroupLayout {
                window: group.window,
                page_bytes: shape.page_bytes(group),
                slots: group.layers.len() * shape.n_kv_heads,
                pages_per_extent: (extent_bytes / shape.page_bytes(group))
                    .min(MAX_PAGES_PER_EXTENT),
            })
            .collect();
        let most = groups.iter().map(|group| group.pages_per_extent).max().unwrap_or(1);
        Ok(Layout {
            page_tokens: shape.page_tokens,
            n_kv_heads: shape.n_kv_heads,
            slot_bytes: shape.slot_bytes,
            slot_stride: shape.slot_stride(),
            groups,
            layers,
            extent_bytes,
            extent_shift: most.next_power_of_two().trailing_zeros(),
        })
    }

    /// Pages that hold positions `0..len`.
    pub(crate) fn pages_for(&self, len: usize) -> usize {
        len.div_ceil(self.page_tokens)
    }
}

/// Per layer its group and index there; each layer `0..n` must occur exactly once.
fn layer_table(shape: &Shape) -> Result<Vec<(usize, usize)>> {
    let n_layers: usize = shape.groups.iter().map(|group| group.layers.len()).sum();
    let mut table = vec![None; n_layers];
    for (group_index, group) in shape.groups.iter().enumerate() {
        for (index, &layer) in group.layers.iter().enumerate() {
            let expected = "each layer below the number of layers, once";
            match table.get_mut(layer) {
                Some(entry @ None) => *entry = Some((group_index, index)),
                _ => return Err(Error::Shape { field: "group.layers", got: layer, expected }),
            }
        }
    }
    Ok(table.into_iter().flatten().collect())
}
