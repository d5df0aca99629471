//! Large zeroed memory straight from the OS.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::path::Path;
use std::str::FromStr;

use bytemuck::Pod;
use memmap2::MmapMut;

use crate::os::{self, Advice, HUGE_PAGE};
use crate::{Error, Result, pressure};

/// The pages that a buffer should lie on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// The system's ordinary pages.
    #[default]
    Ordinary,
    /// Huge pages wherever the system has them to give while the buffer is touched (Linux's
    /// transparent ones), ordinary pages elsewhere.
    Transparent,
    /// Huge pages that the administrator has set aside (`vm.nr_hugepages`), where there are enough
    /// and this process's control groups let it have them; otherwise as `Transparent`.
    Reserved,
}

impl Pages {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::Ordinary, Self::Transparent, Self::Reserved];

    /// The name, as on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Transparent => "transparent",
            Self::Reserved => "reserved",
        }
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pages {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|pages| pages.name() == text);
        found.ok_or_else(|| Error::Pages { got: text.to_owned() })
    }
}

/// Zeroed memory that begins on a page (a huge page, if it was asked for) and takes no room before
/// it is touched. (Of [`Pages::Reserved`] the first page is taken at once, and all of them are kept
/// from others.)
pub struct Buffer {
    map: Option<MmapMut>,
    /// Where the buffer lies in the map.
    range: Range<usize>,
    pages: Pages,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, pages) = (self.range.len(), self.pages);
        f.debug_struct("Buffer").field("len", &len).field("pages", &pages).finish_non_exhaustive()
    }
}

impl Buffer {
    /// A buffer of `bytes` zeros.
    ///
    /// # Errors
    /// When the system has not that much address space.
    pub fn new(bytes: usize, pages: Pages) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self { map: None, range: 0..0, pages: Pages::Ordinary });
        }
        match pages {
            Pages::Ordinary => Self::ordinary(bytes),
            Pages::Transparent => Self::transparent(bytes),
            Pages::Reserved => Self::reserved(bytes).map_or_else(|| Self::transparent(bytes), Ok),
        }
    }

    fn ordinary(bytes: usize) -> Result<Self> {
        let map = os::map_memory(bytes).map_err(Error::memory("map", bytes))?;
        Ok(Self { map: Some(map), range: 0..bytes, pages: Pages::Ordinary })
    }

    fn transparent(bytes: usize) -> Result<Self> {
        let room = bytes.checked_next_multiple_of(HUGE_PAGE).and_then(|b| b.checked_add(HUGE_PAGE));
        let room = room.unwrap_or(usize::MAX);
        let map = os::map_memory(room).map_err(Error::memory("map", bytes))?;
        let begin = map.as_ptr().addr().next_multiple_of(HUGE_PAGE) - map.as_ptr().addr();
        let whole = begin..begin + bytes.next_multiple_of(HUGE_PAGE);
        // Kernels without huge pages refuse; the buffer says so by `pages`.
        let granted = os::advise(&map[whole], Advice::HugePage).is_ok();
        let pages = if granted { Pages::Transparent } else { Pages::Ordinary };
        Ok(Self { map: Some(map), range: begin..begin + bytes, pages })
    }

    fn reserved(bytes: usize) -> Option<Self> {
        let whole = bytes.checked_next_multiple_of(HUGE_PAGE)?;
        // What is mapped is there, but who touches more than its group may have is killed.
        let room = pressure::room_of_huge_pages(Path::new("/")).ok().flatten();
        if room.is_some_and(|room| room < whole as u64) {
            return None;
        }
        let mut map = os::map_huge(whole).ok()?;
        // So is who may have none for another reason, as on nodes that have none. The others are
        // taken when they are touched: they may have to lie somewhere.
        os::populate(&mut map[..HUGE_PAGE]).ok()?;
        Some(Self { map: Some(map), range: 0..bytes, pages: Pages::Reserved })
    }

    /// The kind of pages that was asked for and not refused: of [`Pages::Transparent`] the system
    /// may give fewer than the buffer has room for.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Bytes of the pages that the system places and takes back as a whole.
    pub(crate) fn page(&self) -> usize {
        match self.pages {
            Pages::Ordinary | Pages::Transparent => os::page_size(),
            Pages::Reserved => HUGE_PAGE,
        }
    }

    /// The buffer and what lies behind it on its last page, which nobody else has.
    pub(crate) fn with_last_page(&mut self) -> &mut [u8] {
        let len = self.len().next_multiple_of(self.page());
        let Some(map) = &mut self.map else { return &mut [] };
        let memory = &mut map[self.range.start..];
        let len = len.min(memory.len());
        &mut memory[..len]
    }

    /// Gives the memory of the whole pages within `range` back to the system; they read as zero
    /// afterwards, and bytes on pages that are partly outside stay. On memory that was set aside
    /// whole pages are huge ones. The buffer's last page counts as whole wherever the buffer ends.
    ///
    /// # Errors
    /// When the system refuses.
    ///
    /// # Panics
    /// When the range passes the end.
    pub fn release(&mut self, range: Range<usize>) -> Result<()> {
        let len = self.len();
        assert!(range.end <= len, "bytes {range:?} of a buffer of {len}");
        let page = self.page();
        // A part of a huge page that was set aside would stay as it is, without an error.
        let memory = self.with_last_page();
        let end = if range.end == len { memory.len() } else { range.end - range.end % page };
        let begin = range.start.next_multiple_of(page).min(end);
        if begin == end {
            return Ok(());
        }
        os::clear(&mut memory[begin..end]).map_err(Error::memory("release", end - begin))
    }

    /// Touches all of the buffer and keeps it resident while it lives.
    ///
    /// # Errors
    /// When the process may not lock so much (`ulimit -l`).
    pub fn lock(&self) -> Result<()> {
        os::lock(self).map_err(Error::memory("lock", self.len()))
    }

    /// The buffer as numbers.
    ///
    /// # Panics
    /// When its length is not a multiple of `T`'s size.
    pub fn view<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], |map| &map[self.range.clone()])
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.map.as_mut().map_or(&mut [], |map| &mut map[self.range.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_known_by_their_name() {
        for pages in Pages::ALL {
            assert_eq!(pages.to_string().parse::<Pages>().ok(), Some(pages));
        }
        let error = "large".parse::<Pages>().expect_err("no such pages").to_string();
        assert!(Pages::ALL.iter().all(|pages| error.contains(pages.name())), "{error}");
        assert!(error.contains("large"), "{error}");
    }
}
