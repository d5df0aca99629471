//! Sparse attention as an option; what it gives is held to account where tiers and models are.

use oss_engine::{Engine, EngineOptions, Error, SparseAttention, parse_sparse_attention};

use crate::support::options;

#[test]
fn it_is_written_as_three_numbers() {
    let sparse = SparseAttention { first: 64, window: 1024, blocks: 32 };
    assert_eq!(parse_sparse_attention(&sparse.to_string()).unwrap(), sparse);
    for wrong in ["", "64,1024", "64,0,32", "64,1024,32,1", "64,-1,32", "a,b,c"] {
        let error = parse_sparse_attention(wrong).unwrap_err().to_string();
        assert!(error.contains(&format!("sparse_attention: got {wrong}, expected")), "{error}");
    }
}

#[test]
fn a_token_that_does_not_see_itself_is_refused() {
    let sparse_attention = Some(SparseAttention { first: 64, window: 0, blocks: 32 });
    let options = EngineOptions { sparse_attention, ..options() };
    let error = Engine::from_bytes_with(oss_demo::GGUF, options).unwrap_err();
    let Error::Option { field, got, .. } = &error else { panic!("{error}") };
    assert_eq!((*field, got.as_str()), ("sparse_attention.window", "0"));
}
