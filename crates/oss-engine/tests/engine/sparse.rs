//! Sparse attention as an option; what it gives is held to account where tiers and models are.

use oss_engine::{Engine, EngineOptions, Error, SparseAttention};

use crate::support::options;

#[test]
fn a_token_that_does_not_see_itself_is_refused() {
    let sparse_attention = Some(SparseAttention { first: 64, window: 0, blocks: 32 });
    let options = EngineOptions { sparse_attention, ..options() };
    let error = Engine::from_bytes_with(oss_demo::GGUF, options).unwrap_err();
    let Error::Option { field, got, .. } = &error else { panic!("{error}") };
    assert_eq!((*field, got.as_str()), ("sparse_attention.window", "0"));
}
