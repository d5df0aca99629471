//! What the server counts beside the engine, and all of it as text for Prometheus.

mod books;
mod page;
mod text;

pub(crate) use books::Books;
pub(crate) use page::{cache_use, page};
