//! Header and table of the packed file as bytes. The drawing is in `docs/formats/oss.md`.

use std::collections::HashSet;
use std::path::Path;

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use crate::cursor::Cursor;
use crate::error::{Error, Result, shown};
use crate::fingerprint::Fingerprint;
use crate::metadata::encode_string;
use crate::packed::{Section, SectionPlan};

/// The first eight bytes of a finished file. As in PNG, a transfer that takes the file for text
/// damages them.
pub(crate) const MAGIC: &[u8; 8] = b"\x89OSS\r\n\x1a\n";
/// The first eight bytes of a file that is being written.
pub(crate) const PARTIAL_MAGIC: &[u8; 8] = b"\x89OSSpart";

/// The version of the format.
pub const VERSION: u32 = 1;
/// The kind of sections that are whole files, kept as they are.
pub const BLOB: &str = "blob";
/// The `kind` of a section that is one tensor, kept as its file had it: `format` is its element
/// type's name and `shape` its dimensions, outermost first.
pub const TENSOR: &str = "tensor";
/// The blob that holds a GGUF file's keys and values: the image of a GGUF file without tensors.
pub const METADATA: &str = "metadata.gguf";
/// Alignment of sections of at least this size: a huge page.
pub const HUGE_ALIGNMENT: u64 = 2 << 20;
/// Alignment of shorter sections, which no huge page could hold: a small page.
pub const SMALL_ALIGNMENT: u64 = 4096;

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 128;
/// Bytes of a record before its strings: offset, length, checksum, seal.
const FIXED_BYTES: usize = 32;
/// Where in a record checksum and seal stand.
pub(crate) const CHECKSUM_AT: u64 = 16;
/// The least that a record takes: the fixed part, four empty strings, an empty shape.
const LEAST_RECORD: u64 = FIXED_BYTES as u64 + 5 * 8;

const NAME_LIMIT: u64 = 65_535;
const NOTE_LIMIT: u64 = 1 << 20;

/// The alignment of a section of `length` bytes.
pub(crate) fn alignment(length: u64) -> u64 {
    if length >= HUGE_ALIGNMENT { HUGE_ALIGNMENT } else { SMALL_ALIGNMENT }
}

/// The header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) partial: bool,
    pub(crate) file_bytes: u64,
    pub(crate) table_bytes: u64,
    pub(crate) source: Fingerprint,
    pub(crate) table_checksum: u64,
    pub(crate) plan_checksum: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend(if self.partial { PARTIAL_MAGIC } else { MAGIC });
        out.extend(VERSION.to_le_bytes());
        out.extend((HEADER_BYTES as u32).to_le_bytes());
        out.extend(self.file_bytes.to_le_bytes());
        out.extend(self.table_bytes.to_le_bytes());
        out.extend(self.source.0.to_le_bytes());
        out.extend(self.table_checksum.to_le_bytes());
        out.extend(self.plan_checksum.to_le_bytes());
        out.resize(HEADER_BYTES - 8, 0);
        out.extend(xxh3_64(&out).to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&out);
        header
    }

    /// Reads and checks a header, of a finished file or one being written.
    pub(crate) fn decode(file: &Path, bytes: &[u8]) -> Result<Header> {
        let mut cursor = Cursor::new(file, bytes, 0);
        let magic: [u8; 8] = cursor.array("magic")?;
        let partial = match &magic {
            MAGIC => false,
            PARTIAL_MAGIC => true,
            other => {
                let got = format!("{other:02x?}");
                return Err(Error::invalid(file, "magic", got, format!("{MAGIC:02x?}")));
            }
        };
        let version = cursor.u32("version")?;
        if version != VERSION {
            return Err(Error::invalid(file, "format version", version, VERSION));
        }
        let header_bytes = cursor.u32("header length")?;
        if header_bytes as usize != HEADER_BYTES {
            return Err(Error::invalid(file, "header length", header_bytes, HEADER_BYTES));
        }
        let header = Header {
            partial,
            file_bytes: cursor.u64("file length")?,
            table_bytes: cursor.u64("table length")?,
            source: Fingerprint(u128::from_le_bytes(cursor.array("fingerprint")?)),
            table_checksum: cursor.u64("table checksum")?,
            plan_checksum: cursor.u64("plan checksum")?,
        };
        let zeros = cursor.take((HEADER_BYTES - 8 - cursor.position()) as u64, "zeros")?;
        let stated = cursor.u64("header checksum")?;
        let computed = xxh3_64(&bytes[..HEADER_BYTES - 8]);
        if stated != computed {
            let expected = format!("{computed:016x}, that of the header's bytes");
            return Err(Error::invalid(
                file,
                "header checksum",
                format!("{stated:016x}"),
                expected,
            ));
        }
        if zeros.iter().any(|&byte| byte != 0) {
            return Err(Error::invalid(file, "unused bytes of the header", "others", "zeros"));
        }
        Ok(header)
    }
}

/// What a section's record says when its bytes are complete: a hash that nothing but the writer
/// of this very plan computes.
pub(crate) fn seal(offset: u64, length: u64, checksum: u64, plan_checksum: u64) -> u64 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&offset.to_le_bytes());
    bytes[8..16].copy_from_slice(&length.to_le_bytes());
    bytes[16..].copy_from_slice(&checksum.to_le_bytes());
    xxh3_64_with_seed(&bytes, plan_checksum)
}

/// Where everything of a plan goes.
#[derive(Debug)]
pub(crate) struct Layout {
    /// In the order of the plan, checksums zero.
    pub(crate) sections: Vec<Section>,
    /// Where each section's record starts in the file.
    pub(crate) records: Vec<u64>,
    /// The table with checksums and seals zero.
    pub(crate) table: Vec<u8>,
    pub(crate) file_bytes: u64,
    /// Identity of the plan, source included.
    pub(crate) plan_checksum: u64,
}

impl Layout {
    /// Places all sections: short ones first, then long ones, each group in the plan's order.
    pub(crate) fn new(file: &Path, source: Fingerprint, plans: &[SectionPlan]) -> Result<Layout> {
        check_plans(file, plans)?;
        let mut sections: Vec<Section> = plans.iter().map(unplaced).collect();
        let (table, records) = encode_table(&sections);
        let mut end = (HEADER_BYTES + table.len()) as u64;
        for pass in [SMALL_ALIGNMENT, HUGE_ALIGNMENT] {
            for section in &mut sections {
                if alignment(section.length) == pass {
                    let placed = end.checked_next_multiple_of(pass).and_then(|offset| {
                        section.offset = offset;
                        offset.checked_add(section.length)
                    });
                    end = placed.filter(|&end| end <= i64::MAX as u64).ok_or_else(|| {
                        let expected = "a file below 2^63 bytes";
                        Error::section(file, &section.name, "length", section.length, expected)
                    })?;
                }
            }
        }
        // Offsets are known now; they do not change the table's length.
        let (table, _) = encode_table(&sections);
        let mut hash = Xxh3::new();
        hash.update(&table);
        hash.update(&source.0.to_le_bytes());
        let plan_checksum = hash.digest();
        Ok(Layout { sections, records, table, file_bytes: end, plan_checksum })
    }
}

fn check_plans(file: &Path, plans: &[SectionPlan]) -> Result<()> {
    let mut seen = HashSet::new();
    for plan in plans {
        if !seen.insert(plan.name.as_str()) {
            let (got, expected) = ("a second one", "every name once");
            return Err(Error::section(file, &plan.name, "name", got, expected));
        }
        check_name(file, &plan.name)?;
        let longest = plan.kind.len().max(plan.format.len()).max(plan.name.len()) as u64;
        if longest > NAME_LIMIT || plan.note.len() as u64 > NOTE_LIMIT {
            let expected = format!("at most {NAME_LIMIT}, {NOTE_LIMIT} for the note");
            let got = format!("{longest} and {}", plan.note.len());
            return Err(Error::section(file, &plan.name, "bytes of its strings", got, expected));
        }
    }
    Ok(())
}

fn check_name(file: &Path, name: &str) -> Result<()> {
    match name.is_empty() {
        true => Err(Error::section(file, name, "name", "an empty one", "at least one character")),
        false => Ok(()),
    }
}

fn unplaced(plan: &SectionPlan) -> Section {
    let SectionPlan { name, kind, format, shape, note, length } = plan.clone();
    Section { name, kind, format, shape, note, offset: 0, length, checksum: 0 }
}

/// The table without checksums and seals, and where in the file its records start.
fn encode_table(sections: &[Section]) -> (Vec<u8>, Vec<u64>) {
    let mut out = Vec::new();
    let mut records = Vec::with_capacity(sections.len());
    out.extend((sections.len() as u64).to_le_bytes());
    for section in sections {
        records.push((HEADER_BYTES + out.len()) as u64);
        out.extend(section.offset.to_le_bytes());
        out.extend(section.length.to_le_bytes());
        out.extend([0; 16]);
        for text in [&section.name, &section.kind, &section.format, &section.note] {
            encode_string(text, &mut out);
        }
        out.extend((section.shape.len() as u64).to_le_bytes());
        out.extend(section.shape.iter().flat_map(|dimension| dimension.to_le_bytes()));
    }
    (out, records)
}

/// Reads the table of a finished file and checks each record by itself: name, alignment, place,
/// seal.
pub(crate) fn decode_table(file: &Path, bytes: &[u8], header: &Header) -> Result<Vec<Section>> {
    let table_end = HEADER_BYTES + bytes.len();
    let mut cursor = Cursor::new(file, bytes, 0);
    let count = cursor.count("section count", LEAST_RECORD)?;
    let mut sections = Vec::new();
    for index in 0..count {
        let (section, sealed) = decode_record(&mut cursor, index)?;
        check_name(file, &section.name)?;
        let end = section.offset.checked_add(section.length);
        let inside = end.is_some_and(|end| end <= header.file_bytes);
        if !inside || section.offset < table_end as u64 {
            let got = format!("{} bytes at {}", section.length, section.offset);
            let expected = format!("bytes from {table_end} to {}", header.file_bytes);
            return Err(Error::section(file, &section.name, "place", got, expected));
        }
        let alignment = alignment(section.length);
        if !section.offset.is_multiple_of(alignment) {
            let expected = format!("a multiple of {alignment}");
            return Err(Error::section(file, &section.name, "offset", section.offset, expected));
        }
        let Section { offset, length, checksum, .. } = section;
        if sealed != seal(offset, length, checksum, header.plan_checksum) {
            let expected = "that of a complete section";
            return Err(Error::section(file, &section.name, "seal", sealed, expected));
        }
        sections.push(section);
    }
    if cursor.remaining() > 0 {
        let got = format!("{} bytes more", cursor.remaining());
        return Err(Error::invalid(file, "section table", got, "the end after the last record"));
    }
    Ok(sections)
}

/// One record and its seal.
fn decode_record(cursor: &mut Cursor<'_>, index: usize) -> Result<(Section, u64)> {
    let what = format!("record of section {index}");
    let offset = cursor.u64(&what)?;
    let length = cursor.u64(&what)?;
    let checksum = cursor.u64(&what)?;
    let sealed = cursor.u64(&what)?;
    let name = cursor.string(&format!("name of section {index}"), NAME_LIMIT)?.to_string();
    let what = format!("section {}", shown(&name));
    let kind = cursor.string(&what, NAME_LIMIT)?.to_string();
    let format = cursor.string(&what, NAME_LIMIT)?.to_string();
    let note = cursor.string(&what, NOTE_LIMIT)?.to_string();
    let dimensions = cursor.count(&what, 8)?;
    let bytes = cursor.take(8 * dimensions as u64, &what)?;
    let (dimensions, _) = bytes.as_chunks();
    let shape = dimensions.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect();
    Ok((Section { name, kind, format, shape, note, offset, length, checksum }, sealed))
}
