//! oss-demo
