//! The engine on the demo model: what it promises, as a program sees it.

#[path = "engine/api.rs"]
mod api;
#[path = "engine/support.rs"]
mod support;

#[path = "engine/answers.rs"]
mod answers;
#[path = "engine/chats.rs"]
mod chats;
#[path = "engine/damage.rs"]
mod damage;
#[path = "engine/failures.rs"]
mod failures;
#[path = "engine/grammars.rs"]
mod grammars;
#[path = "engine/larger.rs"]
mod larger;
#[path = "engine/memory.rs"]
mod memory;
#[path = "engine/pinned.rs"]
mod pinned;
#[path = "engine/placement.rs"]
mod placement;
#[path = "engine/quantise.rs"]
mod quantise;
#[path = "engine/same_tokens.rs"]
mod same_tokens;
#[path = "engine/scheduling.rs"]
mod scheduling;
#[path = "engine/sharing.rs"]
mod sharing;
#[path = "engine/sparse.rs"]
mod sparse;
#[path = "engine/speculation.rs"]
mod speculation;
#[path = "engine/tiers.rs"]
mod tiers;
#[path = "engine/tuning.rs"]
mod tuning;
