//! oss-kernels
