//! oss-cache
