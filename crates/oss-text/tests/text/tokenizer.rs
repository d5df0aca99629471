//! Token ids equal those of the references.

use oss_text::Special;
use serde_json::Value;

use crate::o200k;

#[test]
fn o200k_harmony_gives_the_golden_ids() {
    let cases: Value =
        serde_json::from_slice(include_bytes!("../data/tokenizer_o200k_harmony.json")).unwrap();
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 60);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        let got = o200k::TOKENIZER.encode(text, Special::Parse);
        assert_eq!(got, expected, "{text:?}");
        assert_eq!(o200k::TOKENIZER.decode(&expected), text);
    }
}
