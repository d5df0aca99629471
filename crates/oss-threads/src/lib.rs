//! oss-threads
