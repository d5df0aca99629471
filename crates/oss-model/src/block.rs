//! The two halves of a layer, and the product that both are made of.

pub(crate) mod attention;
pub(crate) mod feed_forward;
pub(crate) mod project;
