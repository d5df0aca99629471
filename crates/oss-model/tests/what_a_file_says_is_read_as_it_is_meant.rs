//! Configurations: positions that a file says are stretched, numbers that none can have, experts
//! that are not there, and tensors of which nothing is made.

use oss_kernels::elementwise::Gate;
use oss_model::{Config, RopeScaling, describe};
use oss_weights::gguf::Writer;
use oss_weights::{Container, Dtype, TensorPlan, Value};
use serde_json::{Map, Value as Json, json};

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
    let mut metadata: Metadata = vec![("general.architecture".to_owned(), architecture.into())];
    let epsilon = ("attention.layer_norm_rms_epsilon", 1e-5f32.into());
    let usual = counts.map(|(name, n)| (name, Value::from(n))).into_iter().chain([epsilon]);
    // What has no default there.
    let stretched = [
        ("rope.freq_base", 150_000f32.into()),
        ("rope.scaling.type", "yarn".into()),
        ("rope.scaling.factor", 32f32.into()),
        ("rope.scaling.original_context_length", 4096u32.into()),
    ];
    let usual = usual.chain(stretched.into_iter().filter(|_| architecture == "gpt-oss"));
    let said = |name| more.iter().any(|(other, _)| *other == name);
    let usual = usual.filter(|(name, _)| !said(*name));
    metadata.extend(usual.map(|(name, value)| (key(name), value)));
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

/// An object with these fields as well, or instead.
fn with(mut object: Json, more: &Json) -> Json {
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

/// Describes a Llama of two layers in safetensors whose `config.json` has these fields as well, or
/// instead, and which has these tensors as well.
fn from_json(more: &Json, tensors: &[(&str, &str, &[usize])]) -> Result<Config, String> {
    let config = json!({
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
    });
    let config = with(config, more);
    let (mut header, mut end) = (Map::new(), 0);
    let embedding = ("model.embed_tokens.weight", "F32", &[300, HIDDEN][..]);
    for (name, dtype, shape) in [embedding].iter().chain(tensors) {
        let begin = end;
        let bytes = [("F32", 4), ("BF16", 2), ("U8", 1)].iter().find(|(name, _)| name == dtype);
        end += shape.iter().product::<usize>() * bytes.unwrap().1;
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, end] });
        header.insert((*name).to_owned(), entry);
    }
    let header = Json::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + end, 0);
    let side_files = vec![("config.json".to_owned(), config.to_string().into_bytes())];
    let container = Container::from_bytes("model.safetensors", bytes, side_files).unwrap();
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
    assert_eq!(scaling(&[], &divisors), Ok(RopeScaling::FrequencyFactors(vec![1.0; 8])));
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
fn positions_in_json_are_stretched_as_transformers_does_or_refused() {
    let found = |more: &Json| from_json(more, &[]).map(|config| config.rope.scaling);
    let refused = |more: Json, words: &str| {
        let error = found(&more).unwrap_err();
        assert!(error.contains(words), "{more}: {error}");
    };
    for not_at_all in [
        json!({}),
        json!({ "rope_scaling": null }),
        json!({ "rope_scaling": {} }),
        json!({ "rope_scaling": { "rope_type": "default" } }),
        json!({ "rope_parameters": { "rope_theta": 10_000.0 } }),
    ] {
        assert_eq!(found(&not_at_all), Ok(RopeScaling::None), "{not_at_all}");
    }
    let linear = Ok(RopeScaling::Linear { factor: 4.0 });
    for (object, kind) in [("rope_scaling", "type"), ("rope_parameters", "rope_type")] {
        let told = json!({ object: { kind: "linear", "factor": 4.0 } });
        assert_eq!(found(&told), linear, "{object}");
        refused(json!({ object: "linear" }), &format!("{object}: got linear, expected an object"));
        let untold = json!({ object: { "factor": 4.0 } });
        refused(untold, &format!("{object}.rope_type: got nothing"));
        let part = json!({ object: { "rope_type": "default", "partial_rotary_factor": 0.5 } });
        refused(part, &format!("{object}.partial_rotary_factor: got 0.5, expected 1"));
        refused(json!({ object: { "rope_type": "dynamic", "factor": 4.0 } }), "got dynamic");
        let nowhere = json!({ object: { "rope_type": "linear", "factor": 0.0 } });
        refused(nowhere, &format!("{object}.factor: got 0, expected a number above 0"));
        let both = json!({ "rope_theta": 1e4, object: { "rope_theta": 5e5 } });
        assert_eq!(from_json(&both, &[]).unwrap().rope.theta, 5e5, "{object}");
    }
}

#[test]
fn the_coefficients_of_yarn_in_json_make_its_attention_factor() {
    let yarn = |more: Json| {
        let all = with(json!({ "rope_type": "yarn", "factor": 4.0 }), &more);
        match from_json(&json!({ "rope_scaling": all }), &[]).map(|config| config.rope.scaling) {
            Ok(RopeScaling::Yarn { original, attention_factor, .. }) => {
                Ok((original, attention_factor))
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        }
    };
    // Without a context that it was first trained with, it is the one that it has.
    assert_eq!(yarn(json!({})), Ok((8192.0, None)));
    let original = json!({ "original_max_position_embeddings": 2048 });
    assert_eq!(yarn(original), Ok((2048.0, None)));
    let scale = |coefficient: f64| 0.1 * coefficient * 4f64.ln() + 1.0;
    let both = json!({ "mscale": 1.0, "mscale_all_dim": 0.707 });
    assert_eq!(yarn(both), Ok((8192.0, Some(scale(1.0) / scale(0.707)))));
    let beside = json!({ "mscale": 1.0, "mscale_all_dim": 0.707, "attention_factor": 1.25 });
    assert_eq!(yarn(beside), Ok((8192.0, Some(1.25))));
    for one in [json!({ "mscale": 1.0 }), json!({ "mscale": 0.0, "mscale_all_dim": 0.707 })] {
        assert_eq!(yarn(one), Ok((8192.0, None)));
    }
    for field in ["beta_fast", "beta_slow", "mscale", "attention_factor"] {
        let error = yarn(json!({ field: -1.0 })).unwrap_err();
        let words = format!("rope_scaling.{field}: got -1, expected a number above 0");
        assert!(error.contains(&words), "{error}");
    }
}

#[test]
fn where_a_file_is_silent_the_usual_holds() {
    let silent = json!({ "head_dim": null, "num_key_value_heads": null, "rope_theta": null });
    let config = from_json(&silent, &[]).unwrap();
    assert_eq!((config.n_heads, config.n_kv_heads, config.head_dim), (4, 4, HIDDEN / 4));
    assert_eq!((config.rope.theta, config.vocabulary), (10_000.0, 300));

    let yarn = |config: Result<Config, String>| match config.unwrap().rope.scaling {
        RopeScaling::Yarn { beta_fast, beta_slow, truncate, .. } => {
            (beta_fast, beta_slow, truncate)
        }
        other => panic!("{other:?}"),
    };
    let json = |more: Json| {
        let all = with(json!({ "rope_type": "yarn", "factor": 4.0 }), &more);
        yarn(from_json(&json!({ "rope_scaling": all }), &[]))
    };
    assert_eq!(json(json!({})), (32.0, 1.0, true));
    let said = json!({ "beta_fast": 16, "beta_slow": 2, "truncate": false });
    assert_eq!(json(said), (16.0, 2.0, false));

    // GGUF files cannot say whether bounds are whole: those of Llamas are.
    let gguf = |more: &[(&str, Value)]| {
        let mut all: Vec<(&str, Value)> = vec![
            ("rope.scaling.type", "yarn".into()),
            ("rope.scaling.factor", 4f32.into()),
            ("rope.scaling.original_context_length", 1024u32.into()),
        ];
        all.extend_from_slice(more);
        yarn(described("llama", &all, &[]))
    };
    assert_eq!(gguf(&[]), (32.0, 1.0, true));
    let said = [
        ("rope.scaling.yarn_beta_fast", 16f32.into()),
        ("rope.scaling.yarn_beta_slow", 2f32.into()),
    ];
    assert_eq!(gguf(&said), (16.0, 2.0, true));
}

#[test]
fn what_no_llama_has_is_refused_with_its_field() {
    for (more, words) in [
        (
            json!({ "num_key_value_heads": 3 }),
            "num_key_value_heads: got 3, expected a divisor of 4",
        ),
        (
            json!({ "num_key_value_heads": 0 }),
            "num_key_value_heads: got 0, expected a divisor of 4",
        ),
        (json!({ "head_dim": 15 }), "head_dim: got 15, expected an even number"),
        (json!({ "head_dim": 0 }), "head_dim: got 0, expected an even number"),
        (json!({ "num_attention_heads": 0 }), "num_attention_heads: got 0, expected at least 1"),
        (json!({ "num_hidden_layers": 0 }), "num_hidden_layers: got 0, expected at least 1"),
        (json!({ "num_hidden_layers": 4097 }), "num_hidden_layers: got 4097, expected at most"),
        (json!({ "num_hidden_layers": 2.5 }), "num_hidden_layers: got 2.5, expected a whole"),
        (json!({ "hidden_size": -64 }), "hidden_size: got -64, expected a whole number"),
        (json!({ "hidden_size": 1u64 << 32 }), "hidden_size: got 4294967296, expected a whole"),
        (json!({ "max_position_embeddings": null }), "max_position_embeddings: got nothing"),
        (json!({ "vocab_size": 299 }), "vocab_size: got 299, expected 300, the rows of"),
        (json!({ "tie_word_embeddings": 1 }), "tie_word_embeddings: got 1, expected true or false"),
        (
            json!({ "num_local_experts": 8 }),
            "a mixture of experts is not supported: got 8, expected none",
        ),
        (json!({ "hidden_act": "gelu" }), "activation is not supported: got gelu, expected silu"),
        (
            json!({ "sliding_window": 128 }),
            "a sliding window is not supported: got 128, expected none",
        ),
        (json!({ "model_type": "mamba" }), "got mamba"),
        (json!({ "model_type": null }), "model_type: got nothing, expected a model type"),
    ] {
        let error = from_json(&more, &[]).unwrap_err();
        assert!(error.contains(words), "{more}: {error}");
    }
    for (key, got) in [("attention.value_length", 8u32), ("rope.dimension_count", 8)] {
        let error = described("llama", &[(key, got.into())], &[]).unwrap_err();
        assert!(error.contains(&format!("llama.{key}: got 8, expected 16")), "{error}");
    }
    // Said, and said not to be there.
    for none in [json!({ "num_local_experts": 0 }), json!({ "sliding_window": null })] {
        assert!(from_json(&none, &[]).is_ok(), "{none}");
    }
}

#[test]
fn numbers_that_a_model_cannot_have_are_refused_with_their_field() {
    let routers = ["blk.0.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight"];
    let routers = routers.map(|name| (name, &[4, HIDDEN][..]));
    let experts: [(&str, Value); 3] = [
        ("attention.sliding_window", 128u32.into()),
        ("expert_count", 4u32.into()),
        ("expert_used_count", 2u32.into()),
    ];
    for (field, numbers) in [
        ("rope.freq_base", &[f32::NAN, f32::INFINITY, 1.0, -2.0][..]),
        ("attention.layer_norm_rms_epsilon", &[f32::NAN, f32::INFINITY, -1e-5][..]),
        ("swiglu_clamp_exp", &[f32::NAN, f32::INFINITY, 0.0, -7.0][..]),
    ] {
        for number in numbers {
            let mut more = experts.to_vec();
            more.push((field, (*number).into()));
            let error = described("gpt-oss", &more, &routers).unwrap_err();
            let words = format!("gpt-oss.{field}: got {}", f64::from(*number));
            assert!(error.contains(&words), "{error}");
        }
    }
    let mut more = experts.to_vec();
    more.push(("attention.layer_norm_rms_epsilon", 0f32.into()));
    assert_eq!(described("gpt-oss", &more, &routers).unwrap().norm_epsilon, 0.0);
}

#[test]
fn what_a_file_says_stands_in_messages_escaped_and_cut() {
    let long = format!("\u{1b}[2J{}", "x".repeat(300));
    let errors = [
        from_json(&json!({ "rope_scaling": { "type": long } }), &[]).unwrap_err(),
        from_json(&json!({ "rope_scaling": long }), &[]).unwrap_err(),
        from_json(&json!({ "model_type": long }), &[]).unwrap_err(),
        from_json(&json!({ "vocab_size": long }), &[]).unwrap_err(),
        scaling(&[("rope.scaling.type", long.as_str().into())], &[]).unwrap_err(),
        described(&long, &[], &[]).unwrap_err(),
        described("llama", &[], &[(&long, &[1])]).unwrap_err(),
    ];
    for error in errors {
        assert!(error.contains("\\u{1b}[2Jxxx") && error.contains('…'), "{error}");
        assert!(!error.contains('\u{1b}') && !error.contains(&"x".repeat(101)), "{error}");
    }
}

#[test]
fn tensors_of_which_nothing_is_made_are_refused() {
    let found = |name: &str| described("llama", &[], &[(name, &[64])]).map(|_| ());
    for taken in ["output.weight", "blk.1.attn_k.bias", "blk.0.ffn_up.bias"] {
        assert_eq!(found(taken), Ok(()), "{taken}");
    }
    for left in ["blk.2.attn_q.weight", "blk.0.attn_q_norm.weight", "output.bias"] {
        let error = found(left).unwrap_err();
        assert!(error.contains(&format!("tensor {left}: got no part of a llama")), "{error}");
        assert!(error.contains("of 2 layers") && error.contains("the first of 1 such"), "{error}");
    }

    let found = |more: Json, name: &str| from_json(&more, &[(name, "F32", &[64])]).map(|_| ());
    let (bias, head) = ("model.layers.0.self_attn.k_proj.bias", "lm_head.weight");
    assert_eq!(found(json!({ "attention_bias": true }), bias), Ok(()));
    assert!(found(json!({}), bias).unwrap_err().contains(bias));
    assert!(found(json!({ "mlp_bias": true }), bias).unwrap_err().contains(bias));
    let of_network = "model.layers.1.mlp.up_proj.bias";
    assert_eq!(found(json!({ "mlp_bias": true }), of_network), Ok(()));
    assert!(found(json!({ "attention_bias": true }), of_network).is_err());
    // Copies of the embedding, and of what positions turn by.
    for tied in [true, false] {
        assert_eq!(found(json!({ "tie_word_embeddings": tied }), head), Ok(()));
    }
    let frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq";
    assert_eq!(found(json!({}), frequencies), Ok(()));
}

/// The configuration of a layer with experts.
fn gpt_oss() -> Json {
    let stretch = json!({
        "rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 4096,
    });
    json!({
        "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
        "num_hidden_layers": 1, "sliding_window": 128, "hidden_size": 64, "intermediate_size": 64,
        "rope_theta": 150_000, "rope_scaling": stretch,
    })
}

/// The tensors of its experts.
const EXPERTS: [(&str, &str, &[usize]); 5] = [
    ("model.layers.0.mlp.router.weight", "F32", &[4, 64]),
    ("model.layers.0.mlp.experts.gate_up_proj_blocks", "U8", &[4, 128, 2, 16]),
    ("model.layers.0.mlp.experts.gate_up_proj_scales", "U8", &[4, 128, 2]),
    ("model.layers.0.mlp.experts.down_proj_blocks", "U8", &[4, 64, 2, 16]),
    ("model.layers.0.mlp.experts.down_proj_scales", "U8", &[4, 64, 2]),
];

/// Describes it with these fields as well, or instead.
fn gpt_oss_with(more: &Json) -> Result<Config, String> {
    from_json(&with(gpt_oss(), more), &EXPERTS)
}

#[test]
fn layers_have_the_windows_and_gates_that_a_file_says() {
    let window = |kinds: &Json| {
        gpt_oss_with(&json!({ "layer_types": kinds })).map(|config| config.layers[0].window)
    };
    assert_eq!(window(&json!(null)), Ok(Some(128)));
    assert_eq!(window(&json!(["sliding_attention"])), Ok(Some(128)));
    assert_eq!(window(&json!(["full_attention"])), Ok(None));
    for (kinds, words) in [
        (json!([]), "layer_types: got [], expected a list of 1 strings"),
        (json!("full_attention"), "layer_types: got full_attention, expected a list of 1"),
        (json!(["full_attention", "full_attention"]), "expected a list of 1 strings"),
        (json!(["linear_attention"]), "got linear_attention, expected sliding_attention or full"),
        (
            json!([7]),
            "layer type is not supported: got 7, expected sliding_attention or full_attention",
        ),
    ] {
        let error = window(&kinds).unwrap_err();
        assert!(error.contains(words), "{kinds}: {error}");
    }

    let limit = |limit: Json| match gpt_oss_with(&json!({ "swiglu_limit": limit })) {
        Ok(config) => match config.layers[0].gate {
            Gate::Clamped { limit, .. } => Ok(limit),
            other => panic!("{other:?}"),
        },
        Err(error) => Err(error),
    };
    assert_eq!(limit(json!(null)), Ok(7.0));
    assert_eq!(limit(json!(5.5)), Ok(5.5));
    assert!(limit(json!(0)).unwrap_err().contains("swiglu_limit: got 0, expected a number above"));
}

#[test]
fn experts_that_a_token_cannot_go_to_are_refused() {
    for (more, words) in [
        (json!({ "num_experts_per_tok": 5 }), "num_experts_per_tok: got 5, expected at most 4"),
        (json!({ "num_experts_per_tok": 0 }), "num_experts_per_tok: got 0, expected at least 1"),
        (json!({ "num_local_experts": 5 }), "num_local_experts: got 5, expected 4, the rows of"),
        (json!({ "hidden_act": "gelu" }), "activation is not supported: got gelu, expected silu"),
        (json!({ "sliding_window": 0 }), "sliding_window: got 0, expected at least 1"),
    ] {
        let error = gpt_oss_with(&more).unwrap_err();
        assert!(error.contains(words), "{more}: {error}");
    }
}

#[test]
fn positions_of_a_model_with_experts_are_not_guessed() {
    let without = |field: &str| {
        let mut config = gpt_oss();
        config.as_object_mut().unwrap().remove(field);
        from_json(&config, &EXPERTS).map(|_| ())
    };
    assert_eq!(without("tie_word_embeddings"), Ok(()));
    let error = without("rope_theta").unwrap_err();
    assert!(error.contains("rope_theta: got nothing, expected a number above 1"), "{error}");
    let error = without("rope_scaling").unwrap_err();
    assert!(error.contains("rope_scaling: got nothing, expected how positions"), "{error}");
}

#[test]
fn experts_in_safetensors_that_lie_otherwise_are_refused() {
    let config = gpt_oss();
    let both = "model.layers.0.mlp.experts.gate_up_proj";
    let tensors: [(&str, &str, &[usize]); 3] = [
        ("model.layers.0.mlp.router.weight", "F32", &[4, 64]),
        (both, "BF16", &[4, 64, 128]),
        ("model.layers.0.mlp.experts.down_proj", "BF16", &[4, 64, 64]),
    ];
    let error = from_json(&config, &tensors).unwrap_err();
    assert!(error.contains(&format!("tensor {both}: got BF16, expected blocks")), "{error}");
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
    let error = experts(30_000, &name.map(|name| (name, &[30_000, 0][..]))).unwrap_err();
    assert!(error.contains("got [30000, 0], expected [30000, 64]"), "{error}");
    let error = experts(u32::MAX, &name.map(|name| (name, &[4, HIDDEN][..]))).unwrap_err();
    assert!(error.contains("got 4294967295, expected at most 65536 in 2 layers"), "{error}");
}
