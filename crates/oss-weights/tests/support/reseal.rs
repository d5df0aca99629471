//! Seals and checksums put over a packed file whose header or table was changed, as an attacker
//! would put them. The fuzz target `packed` does so too.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const HEADER: usize = 128;

/// Makes the seals of all records, as far as they can be told, and both checksums right.
pub(crate) fn reseal(file: &mut [u8]) {
    let plan_checksum = word(file, 56).unwrap_or(0);
    if let Some(table) = table(file) {
        let mut at = 8;
        while let Some(record) = table.get_mut(at..).and_then(|rest| rest.get_mut(..32)) {
            let seal = xxh3_64_with_seed(&record[..24], plan_checksum);
            record[24..].copy_from_slice(&seal.to_le_bytes());
            let Some(next) = behind(table, at + 32) else { break };
            at = next;
        }
    }
    put_checksums(file);
}

/// Makes the checksums of table and header right.
pub(crate) fn put_checksums(file: &mut [u8]) {
    if let Some(checksum) = table(file).map(|table| xxh3_64(table)) {
        file[48..56].copy_from_slice(&checksum.to_le_bytes());
    }
    let checksum = xxh3_64(&file[..120]);
    file[120..HEADER].copy_from_slice(&checksum.to_le_bytes());
}

/// The table of a file that has a header, and all of the table that the header says.
fn table(file: &mut [u8]) -> Option<&mut [u8]> {
    let bytes = usize::try_from(word(file, 24)?).ok()?;
    file.get_mut(HEADER..HEADER.checked_add(bytes)?)
}

/// Where the record ends whose strings begin at `at`: four of them, and the shape.
fn behind(table: &[u8], mut at: usize) -> Option<usize> {
    for each in [1, 1, 1, 1, 8] {
        let count = usize::try_from(word(table, at)?).ok()?;
        at = at.checked_add(8)?.checked_add(count.checked_mul(each)?)?;
    }
    Some(at)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*word))
}
