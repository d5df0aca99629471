//! Doubly linked lists over small, dense keys: no allocation once the largest key has been seen.

const NONE: u32 = u32::MAX;

/// The links of all keys; each key is in at most one list.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// Per key: (previous, next).
    links: Vec<(u32, u32)>,
}

/// One list; the front is the oldest.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) front: u32,
    back: u32,
    pub(super) len: usize,
}

impl Default for List {
    fn default() -> List {
        List { front: NONE, back: NONE, len: 0 }
    }
}

impl Links {
    pub(super) fn push_back(&mut self, list: &mut List, key: u32) {
        let index = key as usize;
        if index >= self.links.len() {
            self.links.resize(index + 1, (NONE, NONE));
        }
        self.links[index] = (list.back, NONE);
        match list.back {
            NONE => list.front = key,
            back => self.links[back as usize].1 = key,
        }
        list.back = key;
        list.len += 1;
    }

    pub(super) fn unlink(&mut self, list: &mut List, key: u32) {
        let (previous, next) = self.links[key as usize];
        match previous {
            NONE => list.front = next,
            previous => self.links[previous as usize].1 = next,
        }
        match next {
            NONE => list.back = previous,
            next => self.links[next as usize].0 = previous,
        }
        list.len -= 1;
    }

    /// The first evictable key of a list, looking at no more than `most`. What may not go is in
    /// use, or carries what is younger: it becomes the youngest, so that whoever asks again finds
    /// others in front.
    pub(super) fn first(
        &mut self,
        list: &mut List,
        most: usize,
        mut evictable: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        for _ in 0..list.len.min(most) {
            let key = list.front;
            if evictable(key) {
                return Some(key);
            }
            self.unlink(list, key);
            self.push_back(list, key);
        }
        None
    }
}

/// A value per key, none for keys that are not in.
#[derive(Debug)]
pub(super) struct Table<T> {
    values: Vec<Option<T>>,
    pub(super) len: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { values: Vec::new(), len: 0 }
    }
}

impl<T> Table<T> {
    pub(super) fn insert(&mut self, key: u32, value: T) {
        let index = key as usize;
        if index >= self.values.len() {
            self.values.resize_with(index + 1, || None);
        }
        assert!(self.values[index].is_none(), "key {key} inserted twice");
        self.values[index] = Some(value);
        self.len += 1;
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.values.get_mut(key as usize)?.as_mut()
    }

    pub(super) fn take(&mut self, key: u32) -> Option<T> {
        let value = self.values.get_mut(key as usize)?.take();
        self.len -= usize::from(value.is_some());
        value
    }
}
