//! The two halves of a layer, the product and the normalisation that both are made of, and a look
//! at the next layer.

pub(crate) mod attention;
pub(crate) mod feed_forward;
pub(crate) mod foresee;
pub(crate) mod norm;
pub(crate) mod project;
