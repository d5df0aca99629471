//! The examples as their users run them: as processes, on the demo model.

use oss_engine::Dtype;
use oss_engine::model::{Precision, pack_to_file};
use oss_engine::weights::Container;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An example's program, which `cargo test` has built beside this test.
fn program(name: &str) -> Command {
    let test = std::env::current_exe().expect("this test is a file");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("target/profile/deps");
    let path: PathBuf = profile.join("examples").join(name);
    assert!(path.is_file(), "no {}: run `cargo test -p oss-examples`", path.display());
    Command::new(path)
}

fn printed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn bench_measures_the_demo_model_and_what_the_machine_gives() {
    let folder = std::env::temp_dir().join(format!("oss-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let chart = folder.join("decode.svg");
    let mut command = program("bench");
    command.args(["--prompt-tokens", "20", "--gen-tokens", "4", "--repeat", "2", "--depth", "70"]);
    command.args(["--batch", "3", "--threads", "1", "--json", "--svg"]).arg(&chart);
    let json: Value = serde_json::from_str(&printed(&mut command)).expect("one object");
    for part in ["prefill", "decode"] {
        let speed = |which: &str| json[part]["tokens_per_s"][which].as_f64().expect("a speed");
        let (min, median, max) = (speed("min"), speed("median"), speed("max"));
        assert!(0.0 < min && min <= median && median <= max, "{part}: {json}");
    }
    let positive = [
        "/machine/read_gb_per_s/max",
        "/machine/int8_peak_gop_per_s",
        "/bound/decode_tokens_per_s",
        "/bound/prefill_tokens_per_s",
        "/prefill/share_of_int8_peak",
        "/weights_bytes_per_token",
        "/load_s",
        "/first_token_ms",
    ];
    for path in positive {
        let value = json.pointer(path).and_then(Value::as_f64);
        assert!(value.is_some_and(|value| value > 0.0), "{path}: {json}");
    }
    // Three sequences touch at least what one touches, and at most three times that.
    let experts = json["decode"]["distinct_experts_per_layer"].as_f64().expect("a mixture");
    assert!((2.0..=6.0).contains(&experts), "{experts}");
    // The same experts by their bytes: a step of three reads more than a token, and not thrice.
    let rate = |path: &str| json.pointer(path).and_then(Value::as_f64).expect("a number");
    let step = rate("/decode/weights_gb_per_s") * 1e9 * 3.0 / rate("/decode/tokens_per_s/median");
    let token = rate("/weights_bytes_per_token");
    assert!((1.0..3.0).contains(&(step / token)), "{json}");
    assert!(rate("/decode/share_of_read_bandwidth") > 0.0, "{json}");
    let svg = std::fs::read_to_string(&chart).expect("the chart");
    // Two runs and the bound.
    assert_eq!(svg.matches("<polyline").count(), 3, "{svg}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn bench_prints_a_table_and_leaves_out_what_was_not_measured() {
    let mut command = program("bench");
    command.args(["--prompt-tokens", "0", "--gen-tokens", "3", "--repeat", "1", "--threads", "1"]);
    let table = printed(&mut command);
    assert!(table.contains("| decode of 3, tokens/s | "), "{table}");
    assert!(table.contains("| decode, % of the read bandwidth | "), "{table}");
    assert!(!table.contains("| prefill"), "{table}");
}

#[test]
fn bench_refuses_pauses_and_depths_that_cannot_be() {
    let said = |argument: &str| {
        let output = program("bench").args(["--threads", "1", argument]).output();
        let output = output.expect("the program starts");
        assert!(!output.status.success(), "{argument}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let pause = said("--pause=-1");
    assert!(pause.contains("--pause: got -1, expected seconds from 0 up"), "{pause}");
    let depth = said("--depth=18446744073709551615");
    assert!(depth.contains("--depth with --gen-tokens or --prompt-tokens: got"), "{depth}");
}

#[test]
fn a_reader_who_has_gone_ends_a_program_quietly() {
    let (ended_well, said) = unread(&mut program("inspect"));
    assert!(ended_well && said.is_empty(), "{said}");
}

/// How a program ends whose reader has gone before it prints.
fn unread(command: &mut Command) -> (bool, String) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn files_are_written_though_nobody_reads_what_is_printed() {
    let folder = folder("unread");
    let text = folder.join("text.txt");
    std::fs::write(&text, "Once upon a time there was a little dog. ".repeat(20)).expect("a file");
    let files = ["small.oss", "decode.svg", "speed.svg"].map(|name| folder.join(name));
    let mut quantise = program("quantise");
    quantise.args(["--tokens", "64", "--types", "q8_0", "--text"]).arg(&text);
    let mut bench = program("bench");
    bench.args(["--prompt-tokens", "0", "--gen-tokens", "2", "--repeat", "1"]);
    let mut ten_prompts = program("ten_prompts");
    ten_prompts.args(["--tune", "off", "--max-tokens", "2", "--runs", "1"]);
    let flags = ["--output", "--svg", "--svg"];
    for ((command, flag), file) in
        [&mut quantise, &mut bench, &mut ten_prompts].into_iter().zip(flags).zip(&files)
    {
        let (ended_well, said) = unread(command.args(["--threads", "1", flag]).arg(file));
        assert!(ended_well && said.is_empty() && file.is_file(), "{}: {said}", file.display());
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn embedding_ends_with_an_error_where_nobody_reads() {
    let (ended_well, said) = unread(&mut program("embed"));
    assert!(!ended_well && !said.contains("panicked"), "{said}");
}

#[test]
fn inspect_shows_one_thing_at_a_time() {
    for (flags, expected) in [
        (&["--verify", "--tuning"][..], "cannot be used with"),
        (&["--tokenize", "a", "--parse-ids", "1"], "cannot be used with"),
        (&["--special"], "required arguments"),
    ] {
        let output = program("inspect").args(flags).output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{flags:?}: {said}");
    }
}

#[test]
fn inspect_tells_what_was_measured_and_chosen() {
    let mut command = program("inspect");
    command.args(["--tuning", "--threads", "1", "--json"]);
    if cfg!(target_os = "linux") {
        command.arg("--pin");
    }
    let json: Value = serde_json::from_str(&printed(&mut command)).expect("one object");
    assert_eq!(json["origin"], "on_request");
    assert_eq!(json["threads"]["value"], 1, "{json}");
    assert_eq!(json["threads"]["given"], true, "{json}");
    let cpus = json["cpus"]["value"].as_array().map(Vec::len);
    assert_eq!(cpus, Some(usize::from(cfg!(target_os = "linux"))), "{json}");
    assert_eq!(json["prefill_chunk"]["given"], false, "{json}");
    assert!(json["by_threads"][0]["read_gb_per_s"].as_f64() > Some(0.0), "{json}");
    assert!(json["peak_gproducts_per_s"]["int8"].as_f64() > Some(0.0), "{json}");
}

#[test]
fn inspect_tells_which_types_take_more_in_memory_than_in_the_file() {
    let folder = folder("inspect");
    let model = folder.join("q3_k.oss");
    let demo = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).expect("the demo model");
    let mut precision = Precision::default();
    precision.set("blk.1.attn_output.weight", Dtype::Q3K);
    pack_to_file(&demo, &precision, &model, None).expect("a packed file");
    let mut command = program("inspect");
    let json = printed(command.arg("--json").arg("--model").arg(&model));
    let json: Value = serde_json::from_str(&json).expect("one object");
    let memory = &json["model"]["memory"];
    let types = memory["packed_types"].as_array().expect("a list");
    let ratio = |name: &str| &types.iter().find(|t| t["type"] == name).expect("the type")["ratio"];
    assert_eq!([ratio("Q3_K"), ratio("BF16")], [1.93, 1.0], "{memory}");
    let packed = |value: &Value| value["packed_bytes"].as_u64().expect("bytes");
    assert_eq!(packed(memory), types.iter().map(packed).sum::<u64>(), "{memory}");
    let text = printed(program("inspect").arg("--model").arg(&model));
    assert!(text.contains("\"ratio\": 1.93"), "{text}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn inspect_compares_checksums_and_names_what_is_damaged() {
    let folder = folder("verify");
    let model = folder.join("demo.oss");
    assert_eq!(printed(program("pack").arg("--output").arg(&model)), "");
    let verify = || {
        let mut command = program("inspect");
        command.arg("--verify").arg("--model").arg(&model);
        command
    };
    let said = printed(&mut verify());
    assert!(said.starts_with("all ") && said.ends_with(" sections are whole\n"), "{said}");
    let json: Value = serde_json::from_str(&printed(verify().arg("--json"))).expect("one object");
    assert_eq!(said, format!("all {} sections are whole\n", json["whole_sections"]));

    let mut bytes = std::fs::read(&model).expect("the file");
    // The file ends with its last layer's experts.
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(&model, bytes).expect("the file");
    let output = verify().output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("section experts.3: checksum"), "{said}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn inspect_names_what_is_wrong_with_a_conversation() {
    let folder = folder("inspect-chat");
    let path = folder.join("chat.json");
    for (text, expected) in [
        (r#"{"messages": [], "date": 7}"#, "date: invalid type: integer `7`, expected a string"),
        (r#"{"tools": []}"#, "messages: got none"),
        ("7", "got 7, expected an object with messages"),
    ] {
        std::fs::write(&path, text).expect("a file");
        let output = program("inspect").arg("--chat").arg(&path).output();
        let output = output.expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{said}");
        assert!(said.contains("chat.json"), "{said}");
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
}

/// An empty folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("oss-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn batch(folder: &Path, more: &[&str]) -> Command {
    let mut command = program("batch");
    command.arg(folder.join("prompts.jsonl")).arg("--output").arg(folder.join("answers.jsonl"));
    command.args(["--threads", "1", "--tune", "off", "--max-tokens", "12", "--temperature", "0"]);
    command.args(more);
    command
}

fn answers(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("answers.jsonl")).expect("the answers");
    assert!(text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
}

/// Twelve prompts of three kinds: a line of text, a text with a name, a chat.
fn write_prompts(folder: &Path) {
    let line = |n: usize| match n % 3 {
        0 => format!("Once upon a time there were {n} dogs"),
        1 => json!({"id": format!("story {n}"), "prompt": "One day", "max_tokens": n}).to_string(),
        _ => {
            json!({"id": n, "messages": [{"role": "user", "content": format!("What is {n} + 3?")}],
            "max_tokens": 40})
            .to_string()
        }
    };
    let lines: Vec<String> = (3..15).map(line).collect();
    std::fs::write(folder.join("prompts.jsonl"), lines.join("\n\n")).expect("the prompts");
}

#[test]
fn batch_answers_in_the_order_of_the_input_and_goes_on_where_it_was_broken_off() {
    let folder = folder("batch");
    write_prompts(&folder);
    assert_eq!(printed(&mut batch(&folder, &[])), "");
    let whole = answers(&folder);
    let ids: Vec<&Value> = whole.iter().map(|answer| &answer["id"]).collect();
    // Lines without a name have their number; every other line is empty.
    let expected = [json!(1), json!("story 4"), json!(5), json!(7), json!("story 7"), json!(8)];
    assert_eq!(ids[..6], expected.each_ref()[..], "{ids:?}");
    assert_eq!(whole[1]["usage"]["completion_tokens"], 4);
    assert_eq!(
        (&whole[2]["text"], &whole[2]["finish_reason"]),
        (&json!("5 + 3 = 8"), &json!("stop"))
    );

    // Two answers are lost, and one is cut in the middle of its line.
    let path = folder.join("answers.jsonl");
    let text = std::fs::read_to_string(&path).expect("the answers");
    let lines: Vec<&str> = text.lines().collect();
    let broken = format!("{}\n{}", lines[..9].join("\n"), &lines[9][..lines[9].len() / 2]);
    std::fs::write(&path, broken).expect("the answers");
    let output = batch(&folder, &[]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("9 of 12 prompts"), "{said}");
    let texts = |answers: &[Value]| -> Vec<(Value, Value)> {
        answers.iter().map(|answer| (answer["id"].clone(), answer["text"].clone())).collect()
    };
    assert_eq!(texts(&answers(&folder)), texts(&whole));

    // Nothing is left to do: no model is loaded.
    let mut again = batch(&folder, &["--model", "nowhere"]);
    assert_eq!(printed(&mut again), "");

    // An answer is found again by its prompt, not by its place.
    let prompts = std::fs::read_to_string(folder.join("prompts.jsonl")).expect("the prompts");
    let edited = prompts.replacen("3 dogs", "3 cats", 1);
    std::fs::write(folder.join("prompts.jsonl"), edited).expect("the prompts");
    let output = batch(&folder, &[]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = "prompt 1: got another line than the one that the output has an answer to";
    assert!(!output.status.success() && said.contains(expected), "{said}");
    assert_eq!(texts(&answers(&folder)), texts(&whole));

    // Lines that are no answers are left alone, though they have an id.
    std::fs::write(&path, "{\"id\":\"story 4\",\"prompt\":\"One day\"}\n").expect("the file");
    let output = batch(&folder, &[]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("line 1: got no answer"), "{said}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn batch_writes_answers_as_they_end_and_tells_which_prompts_failed() {
    let folder = folder("batch-as-finished");
    write_prompts(&folder);
    let path = folder.join("prompts.jsonl");
    let prompts = std::fs::read_to_string(&path).expect("the prompts");
    // A token that the model does not know.
    let lines = format!("{prompts}\n{{\"id\": \"bad\", \"prompt_ids\": [999999]}}");
    std::fs::write(&path, lines).expect("the prompts");
    let mut command = batch(&folder, &["--as-finished", "--parallel", "3"]);
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("prompt \"bad\": "), "{said}");
    let mut ids: Vec<String> = answers(&folder).iter().map(|a| a["id"].to_string()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 12, "{ids:?}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn batch_refuses_lines_that_are_no_prompts_and_files_that_are_no_answers() {
    let folder = folder("batch-refuses");
    let refused = |lines: &str| {
        std::fs::write(folder.join("prompts.jsonl"), lines).expect("the prompts");
        let output = batch(&folder, &[]).output().expect("the program starts");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused("\n").contains("got no prompts"));
    assert!(refused("a\n{\"prompt\": 7}").contains("line 2"));
    assert!(refused("{\"prompt\": \"a\", \"promt\": 1}").contains("got the field promt"));
    assert!(refused("{\"id\": 2, \"prompt\": \"a\"}\nb").contains("got the id 2 again"));
    let tools = refused("{\"prompt\": \"a\", \"tools\": []}");
    assert!(tools.contains("got the field tools without messages"), "{tools}");
    // Behind a mark of the encoding it is an object all the same.
    assert!(refused("\u{feff}{\"prompt\": 7}").contains("prompt: invalid type: integer `7`"));
    let both = refused("{\"prompt\": \"a\", \"prompt_ids\": [1]}");
    assert!(both.contains("got prompt and prompt_ids, expected one of prompt"), "{both}");
    let stop = refused("{\"prompt\": \"a\", \"stop\": 7}");
    assert!(stop.contains("stop: got 7, expected a text or a list of texts"), "{stop}");
    let prompts = folder.join("prompts.jsonl");
    let output = program("batch").arg(&prompts).arg("--output").arg(&prompts).output();
    let said = output.expect("the program starts").stderr;
    assert!(String::from_utf8_lossy(&said).contains("--output: got the input"));
    std::fs::write(folder.join("answers.jsonl"), "a diary\n").expect("a file");
    assert!(refused("a").contains("answers.jsonl, line 1"));
    let diary = std::fs::read_to_string(folder.join("answers.jsonl")).expect("a file");
    assert_eq!(diary, "a diary\n");
    std::fs::write(folder.join("answers.jsonl"), "a diary without an end").expect("a file");
    assert!(refused("a").contains("answers.jsonl: got a last line"));
    let diary = std::fs::read_to_string(folder.join("answers.jsonl")).expect("a file");
    assert_eq!(diary, "a diary without an end");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn generate_prints_a_dash_where_there_is_no_figure() {
    let mut command = program("generate");
    command.args(["--prompt", "Once", "--max-tokens", "0", "--threads", "1", "--tune", "off"]);
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("first token after - ms"), "{said}");
    assert!(said.contains("answer: 0 tokens, - tokens/s"), "{said}");
}

#[test]
fn quantise_keeps_to_its_limit_and_writes_a_model_that_runs() {
    let folder = folder("quantise");
    let (text, model) = (folder.join("text.txt"), folder.join("small.oss"));
    std::fs::write(&text, "Once upon a time there was a little dog. ".repeat(40)).expect("a file");
    let mut command = program("quantise");
    command.args(["--threads", "1", "--tokens", "128", "--types", "q8_0", "--json", "--text"]);
    command.arg(&text).arg("--output").arg(&model);
    let json: Value = serde_json::from_str(&printed(&mut command)).expect("one object");
    assert!(json["loss"].as_f64().expect("a loss") <= 0.01, "{json}");
    let bytes = |name: &str| json[name].as_u64().expect("bytes");
    assert!(bytes("bytes_per_token") < bytes("bytes_per_token_before"), "{json}");
    assert!(!json["trials"].as_array().expect("trials").is_empty(), "{json}");

    let inspected = printed(program("inspect").args(["--json", "--model"]).arg(&model));
    let inspected: Value = serde_json::from_str(&inspected).expect("one object");
    assert_eq!(inspected["precision"], json["precision"]);
    let mut command = program("generate");
    command.args(["--prompt", "Once upon a time", "--max-tokens", "8", "--temperature", "0"]);
    let story = printed(command.args(["--threads", "1", "--model"]).arg(&model));
    assert!(story.contains("there was a little"), "{story}");

    // Nothing given: the model writes the text itself, and nothing else is written.
    let mut command = program("quantise");
    command.args(["--threads", "1", "--tokens", "96", "--types", "q8_0", "--max-loss", "0"]);
    let said = printed(&mut command);
    assert!(said.contains("loss 0.000 %"), "{said}");

    // Where the text is given, no engine runs that would heed its flags.
    for flag in [["--kv", "int8"], ["--max-memory", "8GB"], ["--eviction", "lru"]] {
        let output = program("quantise").args(["--text", "nowhere"]).args(flag).output();
        let output = output.expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("cannot be used with"), "{said}");
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn outputs_that_cannot_be_written_are_refused_before_the_work() {
    let outputs = ["pack", "quantise"].map(|name| (name, "--output"));
    let charts = ["bench", "ten_prompts"].map(|name| (name, "--svg"));
    for (name, flag) in outputs.into_iter().chain(charts) {
        for path in ["no/such/folder/file", "."] {
            // No model is looked for.
            let output = program(name).args(["--model", "nowhere", flag, path]).output();
            let output = output.expect("the program starts");
            let said = String::from_utf8_lossy(&output.stderr);
            let expected = format!("{flag}: got {path}, expected a file in a folder");
            assert!(!output.status.success() && said.contains(&expected), "{said}");
        }
    }
}

#[test]
fn generate_holds_an_answer_to_a_schema_or_an_expression() {
    let folder = folder("generate");
    let schema = folder.join("schema.json");
    let write = |schema_text: &str| std::fs::write(&schema, schema_text).expect("a file");
    let generate = |arguments: &[&str]| {
        let mut command = program("generate");
        command.args(["--prompt", "The weather: ", "--seed", "3", "--threads", "1", "--json"]);
        command.args(arguments);
        command
    };
    let answer = |arguments: &[&str]| {
        let json: Value = serde_json::from_str(&printed(&mut generate(arguments))).expect("JSON");
        json["text"].as_str().expect("a text").to_owned()
    };
    write(
        r#"{"type": "object", "properties": {"sunny": {"type": "boolean"}},
        "required": ["sunny"], "additionalProperties": false}"#,
    );
    let file = schema.to_str().expect("UTF-8");
    let fits: Value = serde_json::from_str(&answer(&["--schema", file])).expect("JSON");
    assert!(fits["sunny"].is_boolean() && fits.as_object().is_some_and(|f| f.len() == 1), "{fits}");
    assert!(["sunny", "rainy"].contains(&answer(&["--regex", "sunny|rainy"]).as_str()));

    write(r#"{"not": {}}"#);
    let refused = generate(&["--schema", file]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("a JSON schema"), "{said}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn ten_prompts_are_asked_and_measured() {
    let folder = folder("ten-prompts");
    let chart = folder.join("speed.svg");
    let mut command = program("ten_prompts");
    command.args(["--threads", "1", "--tune", "off", "--max-tokens", "6", "--runs", "2", "--json"]);
    let json: Value =
        serde_json::from_str(&printed(command.arg("--svg").arg(&chart))).expect("one object");
    let prompts = json["prompts"].as_array().expect("a list");
    assert_eq!(prompts.len(), 10);
    for prompt in prompts {
        let number = |path: &str| prompt.pointer(path).and_then(Value::as_f64).expect("a number");
        let (min, median, max) =
            ["min", "median", "max"].map(|which| number(&format!("/tokens_per_s/{which}"))).into();
        assert!(0.0 < min && min <= median && median <= max, "{prompt}");
        assert!(number("/first_token_ms_first_run") > 0.0, "{prompt}");
        assert_eq!(prompt["completion_tokens"], json!([6, 6]), "{prompt}");
        // The second time the prompt is at hand.
        assert!(number("/cached_share/1") > 0.8, "{prompt}");
    }
    // The last prompt begins as the one before it.
    assert!(prompts[9]["cached_share"][0].as_f64() > Some(0.8), "{}", prompts[9]);
    assert!(json["memory"]["weights_bytes"].as_u64() > Some(0), "{json}");
    assert!(json["hits"]["prompt_tokens_at_hand"].as_f64() > Some(0.4), "{json}");
    let svg = std::fs::read_to_string(&chart).expect("the chart");
    assert!(svg.starts_with("<svg") && svg.contains("table to JSON"), "{svg}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn ten_prompts_prints_a_table() {
    let mut command = program("ten_prompts");
    command.args(["--threads", "1", "--tune", "off", "--max-tokens", "2", "--runs", "1"]);
    let table = printed(&mut command);
    assert_eq!(table.lines().filter(|line| line.starts_with("| ")).count(), 11, "{table}");
    assert!(table.contains("| long, again | ") && table.contains("MB resident"), "{table}");
}
