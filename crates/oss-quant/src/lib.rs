//! oss-quant
