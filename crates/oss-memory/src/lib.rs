//! oss-memory
