//! Models that are not packed: packed to a file at their first load where a folder is given, so
//! that later loads map it, and experts for which there is no memory can stay there.

use std::sync::Arc;

use oss_memory::file;
use oss_model::{Precision, has_experts, pack_to_file, packed_bytes, packed_name};
use oss_weights::{Container, Kind};

use crate::budget;
use crate::error::{Error, Result};
use crate::options::EngineOptions;

/// The container itself; or, where the options name a folder and it is not packed, its packed file
/// there, written unless it is there.
pub(crate) fn packed_where_wanted(
    container: Arc<Container>,
    options: &EngineOptions,
) -> Result<Arc<Container>> {
    if container.kind() == Kind::Packed {
        return Ok(container);
    }
    let Some(directory) = &options.pack_directory else {
        return check_budget(&container, options).map(|()| container);
    };
    file::create_directory(directory)?;
    let path = directory.join(packed_name(&container)?);
    if !path.exists() {
        let progress = options.progress.as_deref();
        let progress = progress.map(|progress| progress as oss_model::Progress<'_>);
        pack_to_file(&container, &Precision::default(), &path, progress)?;
    }
    Ok(Arc::new(Container::open(&path)?))
}

/// Refuses experts that do not fit: only those of a packed file can stay outside memory.
fn check_budget(container: &Container, options: &EngineOptions) -> Result<()> {
    let Some(got) = options.max_memory else { return Ok(()) };
    let cache = options.cache_bytes.unwrap_or(budget::LEAST);
    let others = cache + options.warm_bytes + options.repeat_bytes;
    let expected = packed_bytes(container)? + others;
    if expected <= got || !has_experts(container)? {
        return Ok(());
    }
    Err(Error::LargerThanMemory { path: container.path().to_owned(), got, expected })
}
