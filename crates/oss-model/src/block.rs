//! The two halves of a layer, what both are made of (product, normalisation, router), and a look
//! at the next layer.

pub(crate) mod attention;
pub(crate) mod feed_forward;
pub(crate) mod norm;
pub(crate) mod predict;
pub(crate) mod project;
pub(crate) mod router;
