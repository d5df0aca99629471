//! One checked cursor for every binary header of this crate.

use std::path::Path;

use crate::error::{Error, Result};

/// Reads little-endian fields from a byte slice and never past its end.
///
/// Lengths are `u64` as files state them; they become `usize` only after they were compared with
/// the bytes that are left.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at `at`, which may be anywhere, also behind the end.
    pub(crate) fn new(file: &'a Path, bytes: &'a [u8], at: usize) -> Cursor<'a> {
        Cursor { file, bytes, at: at.min(bytes.len()) }
    }

    /// The file that errors name.
    pub(crate) fn file(&self) -> &'a Path {
        self.file
    }

    /// The offset of the next byte.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// How many bytes are left.
    pub(crate) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8]> {
        if count > self.remaining() {
            return Err(Error::Truncated {
                file: self.file.to_path_buf(),
                what: what.to_string(),
                offset: self.at as u64,
                got: self.remaining(),
                expected: count,
            });
        }
        let end = self.at + count as usize;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    /// An unsigned 32-bit number.
    pub(crate) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// An unsigned 64-bit number.
    pub(crate) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A 64-bit number of items that each take at least `each` bytes of what follows.
    ///
    /// The check makes the count safe to reserve memory by: it is at most the bytes left.
    pub(crate) fn count(&mut self, what: &str, each: u64) -> Result<usize> {
        let count = self.u64(what)?;
        let most = self.remaining() / each;
        if count > most {
            let expected = format!("at most {most}, as {} bytes are left", self.remaining());
            return Err(Error::invalid(self.file, what, count, expected));
        }
        Ok(count as usize)
    }

    /// A string: 64-bit length, at most `limit`, then UTF-8 bytes.
    pub(crate) fn string(&mut self, what: &str, limit: u64) -> Result<&'a str> {
        let length = self.u64(what)?;
        if length > limit && length <= self.remaining() {
            let expected = format!("at most {limit} bytes");
            return Err(Error::invalid(self.file, what, format!("{length} bytes"), expected));
        }
        let bytes = self.take(length, what)?;
        std::str::from_utf8(bytes).map_err(|error| {
            let shown = bytes[error.valid_up_to()..].iter().take(4).map(|b| format!("{b:02x}"));
            let shown: Vec<String> = shown.collect();
            let got = format!("bytes {} after {}", shown.join(" "), error.valid_up_to());
            Error::invalid(self.file, what, got, "a UTF-8 string")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(bytes: &[u8]) -> Cursor<'_> {
        Cursor::new(Path::new("file"), bytes, 0)
    }

    #[test]
    fn a_field_behind_the_end_names_the_file_the_field_and_both_sizes() {
        let mut cursor = cursor(&[1, 0, 0]);
        let error = cursor.u32("version").unwrap_err().to_string();
        let expected = "file: version at byte 0 ends early: got 3 bytes, expected 4";
        assert_eq!(error, expected);
    }

    #[test]
    fn a_count_beyond_the_bytes_left_is_refused() {
        let mut bytes = u64::MAX.to_le_bytes().to_vec();
        bytes.extend([0; 30]);
        let error = cursor(&bytes).count("tensor count", 24).unwrap_err().to_string();
        assert!(error.contains("got 18446744073709551615"), "{error}");
        assert!(error.contains("expected at most 1, as 30 bytes are left"), "{error}");
    }

    #[test]
    fn a_string_that_is_not_utf8_says_where() {
        let mut bytes = 4u64.to_le_bytes().to_vec();
        bytes.extend([b'a', b'b', 0xff, b'c']);
        let error = cursor(&bytes).string("key", 100).unwrap_err().to_string();
        assert_eq!(error, "file: key: got bytes ff 63 after 2, expected a UTF-8 string");
    }

    #[test]
    fn a_string_over_its_limit_is_refused() {
        let mut bytes = 4u64.to_le_bytes().to_vec();
        bytes.extend(b"abcd");
        let error = cursor(&bytes).string("key", 3).unwrap_err().to_string();
        assert_eq!(error, "file: key: got 4 bytes, expected at most 3 bytes");
    }
}
