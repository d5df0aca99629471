//! The cold file's bytes.
//!
//! ```text
//! file:   header (4096 bytes) | slot 0 | slot 1 | ..     all numbers little-endian
//!
//! header  0  magic "osskv\0\0\2"     8  content key      16  page tokens   20  slot bytes (u32)
//!         24 seed                    32 checksum of 0..32
//!
//! slot    0  magic                   8  content key      16  hash          24  parent's hash
//!         32 time (`Found::used`)    40 index            44  group         48  tokens
//!         52 payload bytes           56 payload checksum 64  tokens, u32, padded to page tokens
//!         .. checksum of all before  .. payload          .. a gap up to a multiple of 4096
//! ```
//!
//! A slot is written at once and never synchronised: after a crash it may hold anything. Its gap is
//! not written: it holds what was there before, or lies behind the end of the file. A slot counts
//! only if both checksums, the content key, the hash chain and the tokens agree. Checksums and
//! hashes are XXH3. A slot's parent is known by its hash alone: hashes have the file's own seed, a
//! random number, so that texts of one hash cannot be searched for without reading the file.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::shape::Shape;

/// Bytes of the file's header; slots are multiples of it.
pub(crate) const SECTOR: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"osskv\0\0\x02");
const FIXED: usize = 64;

/// What a slot says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label<'a> {
    pub(crate) hash: u64,
    pub(crate) parent: u64,
    pub(crate) index: u32,
    pub(crate) group: u32,
    pub(crate) tokens: &'a [u32],
}

/// Sizes of everything in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) page_tokens: usize,
    /// Bytes of a slot's header, its checksum included.
    pub(crate) header: usize,
    pub(crate) slot: usize,
    pub(crate) key: u64,
}

impl Sizes {
    pub(crate) fn new(page_tokens: usize, most_page_bytes: usize, key: u64) -> Sizes {
        let header = FIXED + 4 * page_tokens + 8;
        let slot = (header + most_page_bytes).next_multiple_of(SECTOR);
        Sizes { page_tokens, header, slot, key }
    }

    pub(crate) fn offset(&self, slot: u32) -> u64 {
        SECTOR as u64 + u64::from(slot) * self.slot as u64
    }

    /// Slots whose header a file of `len` bytes has.
    pub(crate) fn slots_begun(&self, len: u64) -> u32 {
        let begun = len.checked_sub(self.offset(0) + self.header as u64);
        let slots = begun.map_or(0, |more| more / self.slot as u64 + 1);
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    pub(crate) fn file_header(&self, seed: u64) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.page_tokens as u32).to_le_bytes());
        bytes[20..24].copy_from_slice(&(self.slot as u32).to_le_bytes());
        bytes[24..32].copy_from_slice(&seed.to_le_bytes());
        let checksum = xxh3_64(&bytes[..32]);
        bytes[32..40].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The seed in a file's header; none where it is another file's, or damaged.
    pub(crate) fn seed_of(&self, header: &[u8; SECTOR]) -> Option<u64> {
        let seed = number(header, 24);
        (*header == self.file_header(seed)).then_some(seed)
    }

    /// Writes a slot's header, for a payload of `payload` bytes that follows, to the empty `slot`.
    pub(crate) fn compose(&self, label: &Label, used: u64, payload: usize, slot: &mut Vec<u8>) {
        slot.clear();
        for word in [MAGIC, self.key, label.hash, label.parent, used] {
            slot.extend_from_slice(&word.to_le_bytes());
        }
        for word in [label.index, label.group, label.tokens.len() as u32, payload as u32] {
            slot.extend_from_slice(&word.to_le_bytes());
        }
        slot.extend_from_slice(&[0; 8]); // the payload's checksum: see `seal`
        slot.extend(label.tokens.iter().flat_map(|token| token.to_le_bytes()));
        slot.resize(self.header, 0);
    }

    /// Lengthens a slot that is a header alone by its payload, and returns that to be filled.
    pub(crate) fn add_payload<'a>(&self, slot: &'a mut Vec<u8>) -> &'a mut [u8] {
        let payload = word(slot, 52) as usize;
        slot.resize(self.header + payload, 0);
        &mut slot[self.header..]
    }

    /// Fills in the checksums; apart from [`Sizes::compose`] so that a worker can do it.
    pub(crate) fn seal(&self, slot: &mut [u8]) {
        let payload = xxh3_64(&slot[self.header..]);
        slot[56..64].copy_from_slice(&payload.to_le_bytes());
        let header = xxh3_64(&slot[..self.header - 8]);
        slot[self.header - 8..self.header].copy_from_slice(&header.to_le_bytes());
    }

    /// Reads a slot's header: the label's tokens go to `tokens`.
    pub(crate) fn parse<'a>(&self, slot: &[u8], tokens: &'a mut Vec<u32>) -> Parsed<'a> {
        let Some(header) = slot.get(..self.header) else { return Parsed::Torn };
        if number(header, 0) != MAGIC {
            return Parsed::Torn;
        }
        if number(header, self.header - 8) != xxh3_64(&header[..self.header - 8]) {
            return Parsed::Torn;
        }
        if number(header, 8) != self.key {
            return Parsed::Foreign;
        }
        let count = word(header, 48) as usize;
        if count == 0 || count > self.page_tokens {
            return Parsed::Torn;
        }
        tokens.clear();
        tokens.extend((0..count).map(|index| word(header, FIXED + 4 * index)));
        let label = Label {
            hash: number(header, 16),
            parent: number(header, 24),
            index: word(header, 40),
            group: word(header, 44),
            tokens,
        };
        Parsed::Slot { label, used: number(header, 32), payload: word(header, 52) as usize }
    }

    /// The payload of a slot, if it is the page that `expected` describes, of `bytes` bytes, whole
    /// and unchanged.
    pub(crate) fn open<'a>(
        &self,
        slot: &'a [u8],
        expected: &Label,
        bytes: usize,
    ) -> Option<&'a [u8]> {
        let mut tokens = Vec::with_capacity(self.page_tokens);
        let Parsed::Slot { label, payload, .. } = self.parse(slot, &mut tokens) else {
            return None;
        };
        if label != *expected || payload != bytes {
            return None;
        }
        let payload = slot.get(self.header..self.header + bytes)?;
        (xxh3_64(payload) == number(slot, 56)).then_some(payload)
    }
}

/// What the bytes of a slot's header turned out to be.
#[derive(Debug)]
pub(crate) enum Parsed<'a> {
    /// Nothing that was ever written whole.
    Torn,
    /// Written by another model or another build.
    Foreign,
    Slot {
        label: Label<'a>,
        used: u64,
        payload: usize,
    },
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// The content key that files are written under: the engine's key and everything of the shape
/// that decides what a page holds.
pub(crate) fn shape_key(content_key: u64, shape: &Shape) -> u64 {
    let mut hash = Xxh3::with_seed(1);
    let mut add = |number: usize| hash.update(&(number as u64).to_le_bytes());
    for number in [shape.page_tokens, shape.n_kv_heads, shape.head_dim, shape.slot_bytes] {
        add(number);
    }
    for group in &shape.groups {
        add(group.layers.len());
        group.layers.iter().copied().for_each(&mut add);
        add(group.window.map_or(0, |window| window + 1));
    }
    hash.update(&content_key.to_le_bytes());
    hash.digest()
}
