//! How pages pass between the tiers.

use super::backlog::Backlog;
use super::cold::{Cold, ColdOptions, Found, Owner, Payload};
use super::format::{Label, shape_key};
use super::warm::{Packed, Warm};
use super::workers::Wait;
use crate::cache::KvCache;
use crate::error::same;
use crate::policy::{EvictionPolicy, Policy};
use crate::pool::{NO_PAGE, PageId};
use crate::reuse::Match;
use crate::tree::{NO_SLOT, NodeId, Origin, ROOT, Tree};
use std::cmp::Reverse;
use std::collections::HashMap;

/// The lower tiers.
#[derive(Debug)]
pub(crate) struct Tiers {
    pub(crate) warm: Warm,
    pub(crate) cold: Option<Cold>,
    pub(super) backlog: Backlog,
    /// Memory is being given back: see [`KvCache::shed`].
    sheds: bool,
}

/// Why a page did not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is in no tier any more.
    Lost,
    /// The disk takes too long to get it.
    OnItsWay,
    /// There is no page for it to come back to.
    NoRoom,
}

/// Why a page goes to the file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause<'a> {
    /// It is complete, and stays in memory.
    Complete,
    /// It leaves memory, and nothing else has it.
    Leaves,
    /// The process ends; for each node when it was last used ([`Tree::last_uses`]).
    Ends(&'a [u64]),
}

impl Cause<'_> {
    /// How long to wait for the thread that writes.
    fn wait(self) -> Wait {
        match self {
            Cause::Complete => Wait::No,
            Cause::Leaves => Wait::Briefly,
            Cause::Ends(_) => Wait::Forever,
        }
    }

    /// Whether a page of the block `other` may go for one of `block`, as far as the cause says. At
    /// the end the last used are written first: what is written then must not go for the rest, nor
    /// what was used more often.
    fn may_go(self, tree: &Tree, other: NodeId, block: NodeId) -> bool {
        match self {
            Cause::Complete | Cause::Leaves => true,
            Cause::Ends(last) => {
                last[other as usize] < last[block as usize]
                    && tree.node(other).uses <= tree.node(block).uses
            }
        }
    }
}

impl Tiers {
    pub(crate) fn new(warm_limit: usize, policy: EvictionPolicy) -> crate::Result<Tiers> {
        let warm = Warm::new(warm_limit, policy)?;
        Ok(Tiers { warm, cold: None, backlog: Backlog::default(), sheds: false })
    }
}

fn label(tree: &Tree, block: NodeId, group: usize) -> Label<'_> {
    let node = tree.node(block);
    Label {
        hash: node.hash,
        parent: tree.node(node.parent).hash,
        index: node.index,
        group: group as u32,
        tokens: tree.tokens(block),
    }
}

impl KvCache {
    /// Pages in the file.
    pub fn cold_pages(&self) -> usize {
        self.tiers.cold.as_ref().map_or(0, Cold::in_use)
    }

    /// Starts to bring the pages of a match back from the file, as far as the queue has room, and
    /// returns how many the file alone still has. [`KvCache::poll`] takes them in as they come;
    /// [`KvCache::adopt`] does not wait for them but reads what is still missing itself.
    pub fn prefetch(&mut self, found: &Match) -> usize {
        let path = self.path_of(found);
        self.renew_path(&path);
        let missing = self.in_file_alone(&path, found.len);
        if let Some(cold) = &mut self.tiers.cold {
            for &(slot, page_bytes) in &missing {
                cold.fetch(slot, page_bytes);
            }
        }
        missing.len()
    }

    /// Pages of a match that the file alone has, on their way or not.
    #[must_use]
    pub fn missing(&self, found: &Match) -> usize {
        self.in_file_alone(&self.path_of(found), found.len).len()
    }

    /// The slots of the pages that the file alone has of those that position `len` needs, and the
    /// bytes of each.
    fn in_file_alone(&self, path: &[NodeId], len: usize) -> Vec<(u32, usize)> {
        let mut missing = Vec::new();
        let page_tokens = self.layout.page_tokens;
        for (group, layout) in self.layout.groups.iter().enumerate() {
            let first = layout.first_page_needed(len, page_tokens).min(path.len());
            for &block in &path[first..] {
                let places = self.tree.places(block, group);
                if places.hot == NO_PAGE && places.warm.is_none() && places.cold != NO_SLOT {
                    missing.push((places.cold, layout.page_bytes));
                }
            }
        }
        missing
    }

    /// Whether pages are on their way from the file.
    pub fn is_fetching(&self) -> bool {
        self.tiers.cold.as_ref().is_some_and(Cold::is_fetching)
    }

    /// Waits for one page that is on its way from the file or, where none is, for room for those
    /// that are still to be written: a quarter of a second at most, so that who calls this again
    /// and again serves others in between, whatever the disk does. False when there is neither.
    pub fn wait_for_tiers(&mut self) -> bool {
        self.renew_patience();
        let is_fetching = self.is_fetching();
        let Some(cold) = &mut self.tiers.cold else { return false };
        if is_fetching {
            if let Some((slot, bytes)) = cold.wait_for_fetched() {
                self.take_in(slot, bytes);
            }
            return true;
        }
        if self.tiers.backlog.is_empty() {
            return false;
        }
        let written = cold.wait_for_written();
        self.note(written);
        self.write_backlog();
        true
    }

    /// Takes note of what the background threads have done, and gives them more: pages that had no
    /// room in their queues, and those that will have to go soon. Call it now and then, as between
    /// steps; it waits for nothing but the file, and not for long, where a page would be lost that
    /// could not be compressed.
    pub fn poll(&mut self) {
        self.renew_patience();
        self.note_written();
        while self.note_packed(Wait::No) {}
        while let Some((slot, bytes)) =
            self.tiers.cold.as_mut().and_then(|cold| cold.fetched(Wait::No))
        {
            self.take_in(slot, bytes);
        }
        self.write_backlog();
        self.evict_ahead();
    }

    /// A call begins that may wait for the disk, all its pages together for a quarter of a second.
    pub(crate) fn renew_patience(&mut self) {
        if let Some(cold) = &mut self.tiers.cold {
            cold.renew_patience();
        }
    }

    /// Writes everything worth keeping to the file, as far as that has room: what was used last
    /// first, and nothing that the next process would not find. Waits for all background threads:
    /// for the end of a process.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] when the file cannot be made durable.
    pub fn persist(&mut self) -> crate::Result<()> {
        while self.note_packed(Wait::Forever) {}
        if self.tiers.cold.is_none() {
            return Ok(());
        }
        // What was to be written anyway comes first: the disk may not take all of it where it goes.
        while self.note_one_written(Wait::Forever) || !self.tiers.backlog.is_empty() {
            self.write_backlog();
        }
        let last = self.tree.last_uses();
        loop {
            let mut blocks: Vec<NodeId> = self.tree.ids().collect();
            blocks.sort_unstable_by_key(|&block| {
                (Reverse(last[block as usize]), self.tree.depth(block))
            });
            for block in blocks {
                if self.tree.node(block).live && self.follows_file(block) {
                    self.write_pages(block, Cause::Ends(&last));
                }
            }
            while self.note_one_written(Wait::Forever) {}
            // Where the disk had no room, some may yet go where others are.
            if self.tiers.backlog.is_empty() {
                break;
            }
            self.forget_backlog();
        }
        self.tiers.cold.as_ref().map_or(Ok(()), Cold::sync)
    }

    /// Empties the file and does without it from now on: for when what was computed must not be
    /// believed any more. Waits for the threads that write and read it.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] when the file cannot be emptied.
    pub fn discard_file(&mut self) -> crate::Result<()> {
        let Some(cold) = self.tiers.cold.take() else { return Ok(()) };
        self.stats.cold = cold.stats;
        self.forget_backlog();
        let blocks: Vec<NodeId> = self.tree.ids().collect();
        for &block in &blocks {
            for group in 0..self.layout.groups.len() {
                self.tree.places_mut(block, group).cold = NO_SLOT;
            }
        }
        for block in blocks {
            if self.tree.node(block).live {
                self.prune(block);
            }
        }
        cold.discard()
    }

    /// Opens the file and enters what it holds into the tree.
    pub(crate) fn open_cold(
        &mut self,
        options: &ColdOptions,
        policy: EvictionPolicy,
    ) -> crate::Result<()> {
        let page_bytes: Vec<usize> =
            self.layout.groups.iter().map(|group| group.page_bytes).collect();
        let key = shape_key(options.content_key, &self.shape);
        let shape = (self.layout.page_tokens, page_bytes.as_slice());
        let (mut cold, mut found) = Cold::open(options, policy, key, shape)?;
        self.tree.set_seed(cold.seed());
        // Parents before children, and of two copies the newer one first.
        found.sort_by_key(|found| (found.index, Reverse(found.used)));
        let (mut tails, mut claimed) = (HashMap::new(), Vec::new());
        for found in &found {
            let Some(block) = enter(&mut self.tree, &mut tails, found) else { continue };
            let windowed = self.layout.groups[found.group].window.is_some();
            self.tree.node_mut(block).boundary |= windowed;
            let place = self.tree.places_mut(block, found.group);
            if place.cold == NO_SLOT {
                place.cold = found.slot;
                self.tree.used_at(block, found.used);
                claimed.push((found, Owner { block, group: found.group }));
            }
        }
        // The oldest go first, and before what they follow: a page is as new as the newest of those
        // that follow it.
        let last = self.tree.last_uses();
        claimed.sort_by_key(|&(_, Owner { block, .. })| {
            (last[block as usize], Reverse(self.tree.depth(block)))
        });
        cold.claim(&claimed);
        self.tiers.cold = Some(cold);
        let blocks: Vec<NodeId> = self.tree.ids().collect();
        for block in blocks {
            if self.tree.node(block).live {
                self.prune(block);
            }
        }
        Ok(())
    }

    /// Sends the pages of a block that are worth keeping; false where that has to wait.
    pub(super) fn write_pages(&mut self, block: NodeId, cause: Cause<'_>) -> bool {
        self.pinned(block, |cache| {
            (0..cache.layout.groups.len()).all(|group| {
                let is_due =
                    cache.tree.places(block, group).cold == NO_SLOT && cache.is_kept(block, group);
                !is_due || cache.store(block, group, None, cause)
            })
        })
    }

    /// A block that is pinned is about to lose its resident pages: sees to it that a lower tier has
    /// them.
    pub(crate) fn demote(&mut self, block: NodeId) {
        for group in 0..self.layout.groups.len() {
            self.demote_page(block, group);
        }
    }

    /// The same for its page of one group.
    pub(crate) fn demote_page(&mut self, block: NodeId, group: usize) {
        let place = self.tree.places(block, group);
        if place.hot == NO_PAGE || place.warm.is_some() {
            return;
        }
        if !self.compress(block, group) && self.tree.places(block, group).cold == NO_SLOT {
            self.store(block, group, None, Cause::Leaves);
        }
    }

    /// A resident page for a group's page of a block that only a lower tier has.
    pub(crate) fn promote(&mut self, block: NodeId, group: usize) -> Result<PageId, Missing> {
        let page = self.page_for_one(block, group).ok_or(Missing::NoRoom)?;
        let on_its_way = |cache: &KvCache| {
            let place = cache.tree.places(block, group);
            let is_in_file_alone = place.warm.is_none() && place.cold != NO_SLOT;
            let cold = cache.tiers.cold.as_ref().filter(|_| is_in_file_alone);
            cold.is_some_and(|cold| cold.is_writing(place.cold))
        };
        let is_being_packed = |cache: &KvCache| {
            matches!(cache.tree.places(block, group).warm, Some(Packed::OnItsWay(_)))
        };
        while is_being_packed(self) && self.note_packed(Wait::Forever) {}
        while on_its_way(self) && self.note_one_written(Wait::Briefly) {}
        if on_its_way(self) {
            self.pool.release(&self.layout, group, page);
            return Err(Missing::OnItsWay);
        }
        let place = self.tree.places(block, group);
        let (slot, is_warm) = (place.cold, place.warm.is_some());
        let page_bytes = self.layout.groups[group].page_bytes;
        let restored = match (&place.warm, &mut self.tiers.cold) {
            (Some(Packed::Ready(packed)), _) => self.tiers.warm.restore(packed, page_bytes),
            (Some(Packed::OnItsWay(_)), _) => None,
            (None, Some(cold)) if slot != NO_SLOT => {
                cold.load(slot, &label(&self.tree, block, group), page_bytes)
            }
            (None, _) => None,
        };
        if let Some(bytes) = restored {
            self.pool.write(&self.layout, group, page, bytes);
        } else {
            self.pool.release(&self.layout, group, page);
            match is_warm {
                true => self.forget_warm(block, group),
                false if slot != NO_SLOT => self.unlink(slot),
                false => {}
            }
            return Err(Missing::Lost);
        }
        if is_warm {
            self.stats.restored_bytes += page_bytes as u64;
        }
        self.forget_warm(block, group);
        self.enter_hot(block, group, page, if is_warm { Origin::Warm } else { Origin::Cold });
        Ok(page)
    }

    /// Marks the lower tiers' copies of a block as used.
    pub(crate) fn touch_lower(&mut self, block: NodeId) {
        self.in_lower(block, |order, key| order.touch(key));
    }

    /// Lets the time begin for which the lower tiers' copies of a block are unused.
    pub(crate) fn renew_lower(&mut self, block: NodeId) {
        self.in_lower(block, |order, key| order.renew(key));
    }

    /// The same for all blocks of a path, which is about to come back: what makes room for it in a
    /// lower tier takes nothing from there that is still to come.
    pub(crate) fn renew_path(&mut self, path: &[NodeId]) {
        path.iter().rev().for_each(|&block| self.renew_lower(block));
    }

    fn in_lower(&mut self, block: NodeId, tell: impl Fn(&mut dyn Policy, u32)) {
        tell(self.tiers.warm.order.as_mut(), block);
        if let Some(cold) = &mut self.tiers.cold {
            for place in self.tree.all_places(block).iter().filter(|place| place.cold != NO_SLOT) {
                tell(cold.order.as_mut(), place.cold);
            }
        }
    }

    /// Gives up what the lower tiers have of a block.
    pub(crate) fn forget_lower(&mut self, block: NodeId) {
        for group in 0..self.layout.groups.len() {
            self.forget_warm(block, group);
            let slot = std::mem::replace(&mut self.tree.places_mut(block, group).cold, NO_SLOT);
            if let Some(cold) = self.tiers.cold.as_mut().filter(|_| slot != NO_SLOT) {
                cold.forget(slot);
            }
        }
    }

    /// Checks the books of the lower tiers.
    pub(crate) fn validate_lower(&self) -> crate::Result<()> {
        let mut slots = 0;
        for block in self.tree.ids() {
            for (group, place) in self.tree.all_places(block).iter().enumerate() {
                if place.cold != NO_SLOT {
                    slots += 1;
                    let owner = self.tiers.cold.as_ref().and_then(|cold| cold.owner(place.cold));
                    let right = owner == Some(Owner { block, group });
                    same("a cold slot knows its owner", right.into(), 1)?;
                }
            }
        }
        same("cold slots in use", self.cold_pages(), slots)?;
        self.validate_backlog()?;
        self.validate_warm()
    }

    fn enter_hot(&mut self, block: NodeId, group: usize, page: PageId, origin: Origin) {
        self.pool.give_to_tree(group, page);
        self.tree.set_hot(block, group, page);
        self.tree.places_mut(block, group).origin = origin;
        self.settle(block);
    }

    /// Room for a page of a block, next to that of the block before if possible.
    fn page_for_one(&mut self, block: NodeId, group: usize) -> Option<PageId> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.fill(0);
        wanted[group] = 1;
        let room = self.make_room(&wanted);
        self.wanted = wanted;
        room.ok()?;
        let before = self.tree.places(self.tree.node(block).parent, group).hot;
        self.pool.take(&self.layout, group, before)
    }

    pub(super) fn note_written(&mut self) {
        while self.note_one_written(Wait::No) {}
    }

    fn note_one_written(&mut self, wait: Wait) -> bool {
        let written = self.tiers.cold.as_mut().and_then(|cold| cold.written(wait));
        self.note(written);
        written.is_some()
    }

    /// Takes note of what has become of a slot. What the disk had no room for may go where others
    /// are: once more, while memory has it.
    fn note(&mut self, written: Option<Result<(), u32>>) {
        let Some(Err(slot)) = written else { return };
        let Some(cold) = &self.tiers.cold else { return };
        let block = cold.owner(slot).filter(|_| cold.is_refused(slot)).map(|owner| owner.block);
        if let Some(block) = block {
            self.put_off(block, true);
        }
        self.unlink(slot);
    }

    /// A slot's page cannot be had from it: forgets the slot.
    fn unlink(&mut self, slot: u32) {
        let Some(cold) = &mut self.tiers.cold else { return };
        let Some(Owner { block, group }) = cold.owner(slot) else { return };
        cold.forget(slot);
        self.tree.places_mut(block, group).cold = NO_SLOT;
        self.prune(block);
    }

    /// A page read ahead has come, from a slot or from one that was given up meanwhile.
    fn take_in(&mut self, slot: Option<u32>, bytes: Vec<u8>) {
        let cold = self.tiers.cold.as_ref();
        let owner = cold.and_then(|cold| slot.and_then(|slot| cold.owner(slot)));
        if let Some(owner) = owner
            && self.tree.places(owner.block, owner.group).hot == NO_PAGE
        {
            self.pinned(owner.block, |cache| {
                if !cache.enter_fetched(owner, &bytes)
                    && let Some(slot) = slot
                {
                    cache.unlink(slot);
                }
            });
        }
        if let Some(cold) = &mut self.tiers.cold {
            cold.recycle(bytes);
        }
    }

    /// Makes fetched bytes a resident page; false when they are not what they should be. That comes
    /// first: making room may give the slot to another page.
    fn enter_fetched(&mut self, Owner { block, group }: Owner, bytes: &[u8]) -> bool {
        let label = label(&self.tree, block, group);
        let page_bytes = self.layout.groups[group].page_bytes;
        let cold = self.tiers.cold.as_mut();
        let Some(payload) = cold.and_then(|cold| cold.unpack(bytes, &label, page_bytes)) else {
            return false;
        };
        if let Some(page) = self.page_for_one(block, group) {
            self.pool.write(&self.layout, group, page, payload);
            self.enter_hot(block, group, page, Origin::Cold);
            self.stats.prefetched_pages += 1;
        }
        true
    }

    /// Whether the next process would find a block, as it has the one before it in the file.
    pub(super) fn follows_file(&self, block: NodeId) -> bool {
        let parent = self.tree.node(block).parent;
        parent == ROOT || self.tree.is_in_file(parent)
    }

    /// Gives memory back, of which a great many pages may be in the way: none waits for the thread
    /// that writes. What its queue has no room for is computed again, should anybody ask.
    pub(crate) fn shed(&mut self, give: impl FnOnce(&mut KvCache)) {
        self.tiers.sheds = true;
        give(self);
        self.tiers.sheds = false;
    }

    /// A slot for a page of a block that is pinned. Where nothing else has the page, this waits for
    /// room in the queue, unless memory is being given back; at the end, also for pages on their
    /// way to the file that could go.
    fn cold_slot(&mut self, block: NodeId, cause: Cause<'_>) -> Option<u32> {
        let waits = |cold: &Cold| match cause {
            Cause::Complete => false,
            Cause::Leaves => !cold.has_room_in_queue(),
            Cause::Ends(_) => true,
        };
        let wait = if self.tiers.sheds { Wait::No } else { cause.wait() };
        self.note_written();
        let mut slot = self.slot_now(block, cause);
        while slot.is_none()
            && self.tiers.cold.as_ref().is_some_and(waits)
            && self.note_one_written(wait)
        {
            slot = self.slot_now(block, cause);
        }
        slot
    }

    /// Does without writing a page.
    fn drop_write(&mut self) {
        if let Some(cold) = &mut self.tiers.cold {
            cold.stats.dropped_writes += 1;
        }
    }

    /// A slot without waiting: a free one, or that of the page that the policy lets go among those
    /// that no other page in the file follows, and that the block does not follow itself. None goes
    /// for what the next process would not find, unless nothing else has it.
    fn slot_now(&mut self, block: NodeId, cause: Cause<'_>) -> Option<u32> {
        if !matches!(cause, Cause::Leaves) && !self.follows_file(block) {
            return None;
        }
        // Memory first: whatever makes room shall not go in vain.
        let cold = self.tiers.cold.as_mut()?;
        if !cold.prepare() {
            return None;
        }
        if let Some(slot) = cold.free_slot() {
            return Some(slot);
        }
        let tree = &self.tree;
        let (slot, owner) = cold.victim(|Owner { block: other, .. }| {
            !tree.children(other).any(|child| tree.is_in_file(child))
                && tree.ancestor(block, tree.depth(other)) != other
                && cause.may_go(tree, other, block)
        })?;
        self.tree.places_mut(owner.block, owner.group).cold = NO_SLOT;
        self.prune(owner.block);
        Some(slot)
    }

    /// Sends a page of a block that is pinned to the file: `copy` if it has left memory already,
    /// else the resident one, or the compressed one; one that is still being compressed not yet.
    /// False where a page stays in memory and its write has to be put off: others are on their way
    /// to the file, after which there may be a slot.
    pub(crate) fn store(
        &mut self,
        block: NodeId,
        group: usize,
        copy: Option<&[u8]>,
        cause: Cause<'_>,
    ) -> bool {
        let place = self.tree.places(block, group);
        let is_packed = matches!(place.warm, Some(Packed::Ready(_)));
        if copy.is_none() && place.hot == NO_PAGE && !is_packed {
            return true;
        }
        let packed = match &place.warm {
            Some(Packed::Ready(packed)) if copy.is_none() && place.hot == NO_PAGE => {
                let Ok(packed) = oss_memory::try_to_vec(packed) else {
                    self.drop_write();
                    return true;
                };
                Some(packed.into_boxed_slice())
            }
            _ => None,
        };
        let Some(slot) = self.cold_slot(block, cause) else {
            // Pages that are still on their way there may go later, or what it follows come.
            let is_early = matches!(cause, Cause::Complete)
                && self.tiers.cold.as_ref().is_some_and(Cold::is_writing_any);
            if !is_early {
                self.drop_write();
            }
            return !is_early;
        };
        let used = match cause {
            Cause::Ends(last) => last[block as usize],
            Cause::Complete => self.tree.node(block).used,
            Cause::Leaves => self.tree.now(),
        };
        let uses = (self.tree.node(block).uses, used);
        let label = label(&self.tree, block, group);
        let Some(cold) = &mut self.tiers.cold else { return true };
        let hot = self.tree.places(block, group).hot;
        let payload = match (copy, packed) {
            (Some(page), _) => Payload::Plain(page.into()),
            (None, Some(packed)) => Payload::Packed(packed, self.layout.groups[group].page_bytes),
            (None, None) => Payload::Plain(self.pool.bytes(&self.layout, group, hot)),
        };
        if cold.store(slot, Owner { block, group }, uses, &label, payload) {
            self.tree.places_mut(block, group).cold = slot;
        }
        true
    }
}

/// The block that a slot of an earlier process belongs to, made if its parent is known. `tails`
/// are known by their parents and their hashes.
fn enter(
    tree: &mut Tree,
    tails: &mut HashMap<(NodeId, u64), NodeId>,
    found: &Found,
) -> Option<NodeId> {
    let parent = tree.by_hash(found.parent)?;
    let right = tree.depth(parent) == found.index as usize
        && tree.chain(found.parent, &found.tokens) == found.hash;
    if !right {
        return None;
    }
    if found.tokens.len() == tree.page_tokens() {
        return tree.child(parent, &found.tokens).or_else(|| tree.insert(parent, &found.tokens));
    }
    let known = tails.get(&(parent, found.hash)).copied();
    known.filter(|&tail| tree.tokens(tail) == found.tokens.as_slice()).or_else(|| {
        let tail = tree.insert(parent, &found.tokens)?;
        tails.insert((parent, found.hash), tail);
        Some(tail)
    })
}
