//! Configurations: positions that a file says are stretched, and experts that are not there.

use oss_model::{Config, RopeScaling, describe};
use oss_weights::gguf::Writer;
use oss_weights::{Container, Dtype, TensorPlan, Value};

const HIDDEN: usize = 64;

type Metadata = Vec<(String, Value)>;

/// Describes a model of two layers whose GGUF file has these fields and tensors as well.
fn described(
    architecture: &str,
    more: &[(&str, Value)],
    tensors: &[(&str, &[usize])],
) -> Result<Config, String> {
    let counts = [
        ("block_count", 2),
        ("context_length", 4096),
        ("embedding_length", HIDDEN as u32),
        ("feed_forward_length", 64),
        ("expert_feed_forward_length", 64),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
    ];
    let key = |name: &str| format!("{architecture}.{name}");
    let mut metadata: Metadata = vec![
        ("general.architecture".to_owned(), architecture.into()),
        (key("attention.layer_norm_rms_epsilon"), 1e-5f32.into()),
    ];
    let said = |name| more.iter().any(|(other, _)| *other == name);
    let counts = counts.into_iter().filter(|(name, _)| !said(*name));
    metadata.extend(counts.map(|(name, n)| (key(name), n.into())));
    metadata.extend(more.iter().map(|(name, value)| (key(name), value.clone())));
    let all = [("token_embd.weight", &[300, HIDDEN][..])];
    let plans: Vec<TensorPlan> = all
        .iter()
        .chain(tensors)
        .map(|(name, shape)| {
            let (name, shape) = ((*name).to_owned(), shape.to_vec());
            TensorPlan { name, dtype: Dtype::F32, shape }
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut writer = Writer::create(&path, &metadata, &plans).unwrap();
    for plan in &plans {
        let ones = 1f32.to_le_bytes().repeat(plan.shape.iter().product());
        writer.tensor_bytes(&ones).unwrap();
    }
    writer.finish().unwrap();
    let container = Container::open(&path).unwrap();
    describe(&container).map(|(config, _)| config).map_err(|error| error.to_string())
}

fn scaling(more: &[(&str, Value)], tensors: &[(&str, &[usize])]) -> Result<RopeScaling, String> {
    described("llama", more, tensors).map(|config| config.rope.scaling)
}

#[test]
fn heads_that_no_page_can_hold_are_refused() {
    let wide: Value = ((1u32 << 20) + 32).into();
    let error = described("llama", &[("attention.key_length", wide)], &[]).unwrap_err();
    assert!(error.contains("attention.key_length"), "{error}");
    assert!(error.contains("1048576 at most"), "{error}");
}

#[test]
fn files_that_say_how_far_positions_are_stretched_but_not_how_mean_linearly() {
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        let found = scaling(&[(key, 4f32.into())], &[]);
        assert_eq!(found, Ok(RopeScaling::Linear { factor: 4.0 }), "{key}");
        for not_at_all in [0f32, 1.0] {
            assert_eq!(scaling(&[(key, not_at_all.into())], &[]), Ok(RopeScaling::None), "{key}");
        }
        let error = scaling(&[(key, (-2f32).into())], &[]).unwrap_err();
        assert!(error.contains(key) && error.contains("-2"), "{error}");
        let none = [("rope.scaling.type", "none".into()), (key, 4f32.into())];
        assert_eq!(scaling(&none, &[]), Ok(RopeScaling::None), "{key}");
    }
    assert_eq!(scaling(&[], &[]), Ok(RopeScaling::None));
}

#[test]
fn positions_are_stretched_in_one_way() {
    let divisors: [(&str, &[usize]); 1] = [("rope_freqs.weight", &[8])];
    assert_eq!(scaling(&[], &divisors), Ok(RopeScaling::Divisors(vec![1.0; 8])));
    let linear = [("rope.scaling.type", "linear".into()), ("rope.scaling.factor", 4f32.into())];
    let error = scaling(&linear, &divisors).unwrap_err();
    assert!(error.contains("rope_freqs.weight beside another one"), "{error}");
    let error = scaling(&[], &[("rope_freqs.weight", &[7])]).unwrap_err();
    assert!(error.contains("got 7 numbers, expected 8 numbers above 0"), "{error}");
}

#[test]
fn the_attention_factor_of_a_gguf_file_multiplies_the_usual_one() {
    let yarn = |more: &[(&str, Value)]| {
        let mut all: Vec<(&str, Value)> = vec![
            ("rope.scaling.type", "yarn".into()),
            ("rope.scaling.factor", 32f32.into()),
            ("rope.scaling.original_context_length", 4096f32.into()),
        ];
        all.extend_from_slice(more);
        scaling(&all, &[])
    };
    let factor = |more: &[(&str, Value)]| match yarn(more) {
        Ok(RopeScaling::Yarn { attention_factor, .. }) => attention_factor,
        other => panic!("{other:?}"),
    };
    let usual = 0.1 * 32f64.ln() + 1.0;
    assert_eq!(factor(&[]), None);
    assert_eq!(factor(&[("rope.scaling.attn_factor", 1f32.into())]), Some(usual));
    assert_eq!(factor(&[("rope.scaling.attn_factor", 0.5f32.into())]), Some(0.5 * usual));
    for key in ["rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"] {
        assert_eq!(factor(&[(key, 1f32.into())]), None);
        let error = yarn(&[(key, 0.5f32.into())]).unwrap_err();
        assert!(error.contains(key) && error.contains("got 0.5, expected 1"), "{error}");
    }
}

#[test]
fn experts_without_bytes_are_refused_before_they_are_listed() {
    let experts = |n: u32, routers: &[(&str, &[usize])]| {
        let counts = [
            ("attention.sliding_window", 128u32.into()),
            ("expert_count", n.into()),
            ("expert_used_count", 2u32.into()),
        ];
        described("gpt-oss", &counts, routers).map(|config| config.max_experts())
    };
    let name = ["blk.0.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight"];
    assert_eq!(experts(4, &name.map(|name| (name, &[4, HIDDEN][..]))), Ok(4));
    let error = experts(4, &[(name[0], &[4, HIDDEN]), (name[1], &[3, HIDDEN])]).unwrap_err();
    assert!(error.contains("got 4, expected 3, the rows of blk.1.ffn_gate_inp"), "{error}");
    // A router that is as long as the file likes, as it has no columns.
    let error = experts(500_000, &name.map(|name| (name, &[500_000, 0][..]))).unwrap_err();
    assert!(error.contains("got [500000, 0], expected [500000, 64]"), "{error}");
    let error = experts(u32::MAX, &name.map(|name| (name, &[4, HIDDEN][..]))).unwrap_err();
    assert!(error.contains("got 4294967295, expected at most 1048576 in 2 layers"), "{error}");
}
