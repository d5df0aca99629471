//! oss-text
