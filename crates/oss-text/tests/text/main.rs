//! The crate against references: other implementations and recorded goldens.

mod o200k;
mod tokenizer;
