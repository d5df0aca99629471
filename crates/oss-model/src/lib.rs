//! oss-model
