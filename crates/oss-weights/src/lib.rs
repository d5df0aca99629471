//! oss-weights
