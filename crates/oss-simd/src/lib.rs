//! oss-simd
