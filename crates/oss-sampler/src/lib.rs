//! oss-sampler
