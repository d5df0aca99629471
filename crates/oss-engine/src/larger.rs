//! Models that are larger than the memory they may take: packed to a file first, so that their
//! experts can stay there.

use std::sync::Arc;

use oss_memory::file;
use oss_model::{has_experts, pack_to_file, packed_bytes, packed_name};
use oss_weights::{Container, Kind};

use crate::budget;
use crate::error::{Error, Result};
use crate::options::EngineOptions;

/// The container itself; or, where its packed weights are larger than the budget, their packed file
/// in the folder that the options name, written unless it is there.
pub(crate) fn packed_where_needed(
    container: Arc<Container>,
    options: &EngineOptions,
) -> Result<Arc<Container>> {
    let Some(got) = options.max_memory.filter(|_| container.kind() != Kind::Packed) else {
        return Ok(container);
    };
    let cache = options.cache_bytes.unwrap_or(budget::LEAST);
    let others = cache + options.warm_bytes + options.repeat_bytes;
    let expected = packed_bytes(&container)? + others;
    if expected <= got || !has_experts(&container)? {
        return Ok(container);
    }
    let Some(directory) = &options.pack_directory else {
        let path = container.path().to_owned();
        return Err(Error::LargerThanMemory { path, got, expected });
    };
    file::create_directory(directory)?;
    let path = directory.join(packed_name(&container));
    if !path.exists() {
        let progress = options.progress.as_deref();
        let progress = progress.map(|progress| progress as oss_model::Progress<'_>);
        pack_to_file(&container, &path, progress)?;
    }
    Ok(Arc::new(Container::open(&path)?))
}
