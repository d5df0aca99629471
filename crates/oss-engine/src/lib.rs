//! oss-engine
