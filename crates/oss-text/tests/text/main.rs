//! The crate against references: other implementations and recorded goldens.

mod chat;
mod harmony;
mod malformed;
mod naive;
mod o200k;
mod tokenizer;
