//! oss-testing
