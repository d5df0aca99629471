//! Probes, loads and metrics.

use std::collections::{BTreeMap, BTreeSet};

use oss_engine::{Engine, EngineOptions};
use oss_server::Error;
use serde_json::json;

use crate::client::{Connection, get, post};
use crate::support::{
    bare, endless, engine, engine_options, engine_with, eventually, load, server, server_options,
    start,
};

#[test]
fn a_server_says_503_until_its_model_is_loaded() {
    let running = bare(server_options());
    let address = running.address;
    for path in ["/health", "/ready", "/health/ready", "/readyz", "/v1/models", "/v1/loads"] {
        assert_eq!(get(address, path).status(), 503, "{path}");
    }
    assert_eq!(get(address, "/health").json()["status"], "loading");
    for path in ["/live", "/livez", "/metrics", "/version"] {
        assert_eq!(get(address, path).status(), 200, "{path}");
    }
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
    for path in ["/v1/chat/completions", "/v1/chat/completions/render", "/tokenize"] {
        let early = post(address, path, &body);
        assert_eq!(early.status(), 503, "{path}");
        assert!(early.head.header("retry-after").is_some());
    }
    running.handle.load(|| Ok(engine_with(engine_options()))).unwrap();
    eventually("it is ready", || get(address, "/health").status() == 200);
    let models = get(address, "/v1/models").fine();
    assert_eq!(models["data"][0]["max_model_len"], engine().context_len());
    assert_eq!(models["data"][0]["owned_by"], "oss-engine");
    post(address, "/v1/chat/completions", &body).fine();
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_server_with_its_error() {
    let running = bare(server_options());
    running.handle.load(|| Engine::load("/no/such/model.gguf")).unwrap();
    assert!(matches!(running.ended(), Some(Error::Load(_))));
    let running = bare(server_options());
    running.handle.load(|| panic!("a broken loader")).unwrap();
    assert!(matches!(running.ended(), Some(Error::LoadPanicked)));
}

#[test]
fn a_model_whose_file_was_cut_off_is_503_with_the_reason_and_ends_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, oss_demo::GGUF).unwrap();
    let running = bare(server_options());
    running.handle.ready(Engine::load_with(&path, engine_options()).unwrap());
    let ask = || post(running.address, "/v1/completions", &json!({"prompt": "A", "max_tokens": 1}));
    ask().fine();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let refused = ask();
    assert_eq!(refused.status(), 503, "{}", refused.body);
    let error = refused.json()["error"].clone();
    assert_eq!(error["code"], "failed");
    // Where the file lies is not the client's business.
    assert_eq!(error["message"], "the model's files are damaged");
    assert!(matches!(running.ended(), Some(Error::Damaged(_))));
}

#[test]
fn a_server_that_still_loads_drains_at_once() {
    let running = bare(server_options());
    running.handle.drain();
    assert!(running.ended().is_none());
}

#[test]
fn loads_have_the_shape_that_gateways_read() {
    let all = get(server(), "/v1/loads").fine();
    assert_eq!(all["dp_rank_count"], 1);
    let timestamp = all["timestamp"].as_str().unwrap();
    assert!(timestamp.len() == 20 && timestamp.ends_with('Z'), "{timestamp}");
    let load = load(server());
    let whole = [
        "dp_rank",
        "num_running_reqs",
        "num_waiting_reqs",
        "num_waiting_uncached_tokens",
        "num_total_reqs",
        "num_used_tokens",
        "max_total_num_tokens",
        "max_running_requests",
    ];
    assert!(whole.iter().all(|name| load[name].is_u64()), "{load}");
    let shares = ["token_usage", "cache_hit_rate", "utilization"];
    let is_share = |name: &&str| load[*name].as_f64().is_some_and(|x| (0.0..=1.0).contains(&x));
    assert!(shares.iter().all(is_share), "{load}");
    assert!(load["gen_throughput"].as_f64().unwrap() >= 0.0);
    assert!(load["max_total_num_tokens"].as_u64().unwrap() > 16);
}

#[test]
fn the_capacity_of_the_cache_is_the_same_whatever_runs() {
    let engine = EngineOptions { cache_bytes: Some(2 << 20), ..engine_options() };
    let running = start(server_options(), engine);
    let address = running.address;
    let blocks = || {
        let page = get(address, "/metrics").body;
        let (_, rest) = page.split_once("num_gpu_blocks=\"").expect("the cache's size");
        rest.split_once('"').and_then(|(blocks, _)| blocks.parse::<u64>().ok()).expect("a number")
    };
    let (capacity, longest) = (blocks() * 16, get(address, "/v1/models").fine());
    let longest = longest["data"][0]["max_model_len"].as_u64().unwrap();
    assert!(capacity >= longest, "{capacity} tokens, {longest} in one sequence");
    let same = || blocks() * 16 == capacity && load(address)["max_total_num_tokens"] == capacity;
    assert!(same());
    let mut connection = Connection::open(address);
    connection.send("POST", "/v1/completions", "", &endless(false).to_string());
    eventually("a fifth of it is used", || {
        assert!(same());
        load(address)["token_usage"].as_f64() > Some(0.2)
    });
    drop(connection);
    eventually("nothing is used", || load(address)["token_usage"] == 0.0);
    assert!(same());
}

#[test]
fn bytes_of_pages_that_move_are_told_by_how() {
    // Room for about two prompts.
    let engine = EngineOptions {
        cache_bytes: Some(400 << 10),
        warm_bytes: 16 << 20,
        repeat_bytes: 0,
        ..engine_options()
    };
    let running = start(server_options(), engine);
    let moved = |how: &str| {
        let page = get(running.address, "/metrics").body;
        let labels = format!("{{model_name=\"demo\",engine=\"0\",how=\"{how}\"}} ");
        let name = "oss_cache_moved_bytes_total".to_owned() + &labels;
        let value = page.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap_or_else(|| panic!("{page}")).parse::<u64>().unwrap()
    };
    let hows = ["compressed", "decompressed", "written", "read", "compacted", "copied"];
    assert_eq!(hows.map(moved), [0; 6]);
    let texts = [" and then the rain came", " and then the sun came", " and so they went on"];
    for text in texts.iter().cycle().take(6) {
        let body = json!({"prompt": "One day".to_owned() + &text.repeat(12), "max_tokens": 2});
        post(running.address, "/v1/completions", &body).fine();
    }
    eventually("pages have come back", || moved("decompressed") > 0);
    assert!(moved("compressed") >= moved("decompressed"));
    assert_eq!(["written", "read"].map(moved), [0; 2], "there is no file");
}

/// The names that dashboards and gateways rely on, and their types.
const GOLDEN: &str = include_str!("metrics.txt");

#[test]
fn metrics_can_be_parsed_and_keep_their_names() {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 5});
    post(server(), "/v1/completions", &body).fine();
    let response = get(server(), "/metrics");
    let kind = response.head.header("content-type").unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"));
    let mut families = BTreeSet::new();
    let mut samples: BTreeMap<String, f64> = BTreeMap::new();
    for line in response.body.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            assert!(families.insert(family.to_owned()), "twice: {family}");
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            let labels = name.split_once('{').and_then(|(_, rest)| rest.strip_suffix('}'));
            let labels = labels.unwrap_or_else(|| panic!("no labels: {line}"));
            assert!(labels.starts_with("model_name=\"demo\",engine=\"0\""), "{line}");
            assert!(samples.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{line}");
        }
    }
    let golden: BTreeSet<String> = GOLDEN.lines().map(str::to_owned).collect();
    assert_eq!(families, golden);
    for family in families.iter().filter_map(|family| family.strip_suffix(" histogram")) {
        let of = |suffix: &str| format!("{family}{suffix}{{model_name=\"demo\",engine=\"0\"");
        let bucket = of("_bucket");
        let prefix = format!("{family}_bucket{{");
        let lines = response.body.lines().filter(|line| line.starts_with(&prefix));
        let counts: Vec<f64> =
            lines.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect();
        assert!(counts.is_sorted() && counts.len() > 10, "{bucket}: {counts:?}");
        assert_eq!(counts.last(), samples.get(&format!("{}}}", of("_count"))), "{family}");
    }
    let value = |name: &str| samples[&format!("{name}{{model_name=\"demo\",engine=\"0\"}}")];
    assert!(value("vllm:generation_tokens_total") >= 5.0);
    assert!((0.0..=1.0).contains(&value("vllm:kv_cache_usage_perc")));
    let info = samples.keys().find(|name| name.starts_with("vllm:cache_config_info")).unwrap();
    assert!(info.contains("block_size=\"16\"") && info.contains("num_gpu_blocks=\""), "{info}");
}
