//! The examples as their users run them: as processes, on the demo model.

use oss_engine::pack::{Precision, pack_to_file};
use oss_engine::{Container, Dtype};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;
use tempfile::TempDir;

/// An example's program, which `cargo test` has built beside this test.
fn program(name: &str) -> Command {
    let test = std::env::current_exe().expect("this test is a file");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("target/profile/deps");
    let path: PathBuf = profile.join("examples").join(name);
    // Cargo builds no examples where it is told which test to run.
    let hint = "run `cargo test -p oss-examples --no-run`";
    assert!(path.is_file(), "no {}: {hint}", path.display());
    let stale = younger_source(&path);
    assert!(stale.is_none(), "{} is older than {}: {hint}", path.display(), stale.unwrap());
    Command::new(path)
}

/// A file that a program is built from, as cargo tells beside it, and that was written later.
fn younger_source(program: &Path) -> Option<String> {
    let modified = |path: &Path| -> Option<SystemTime> { path.metadata().ok()?.modified().ok() };
    let built = modified(program)?;
    let told = std::fs::read_to_string(program.with_extension("d")).ok()?;
    let (_, sources) = told.split_once(": ")?;
    // Blanks in names are escaped.
    let sources = sources.replace("\\ ", "\0");
    let mut sources = sources.split_whitespace().map(|source| source.replace('\0', " "));
    sources.find(|source| modified(Path::new(source)).is_some_and(|written| written > built))
}

#[test]
fn a_program_that_is_older_than_its_source_is_not_taken() {
    let folder = folder();
    let [program, source] = ["program", "a source.rs"].map(|name| folder.path().join(name));
    std::fs::write(&source, "").expect("a file");
    std::fs::write(&program, "").expect("a file");
    let escaped = source.display().to_string().replace(' ', "\\ ");
    let told = format!("{}: /no/such.rs {escaped}\n", program.display());
    std::fs::write(folder.path().join("program.d"), told).expect("a file");
    let at = |seconds: u64| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let set = |path: &Path, seconds| {
        let file = File::options().write(true).open(path).expect("the file");
        file.set_modified(at(seconds)).expect("a time");
    };
    set(&program, 20);
    set(&source, 10);
    assert_eq!(younger_source(&program), None);
    set(&source, 30);
    assert_eq!(younger_source(&program), Some(source.display().to_string()));
}

fn printed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn bench_measures_the_demo_model_and_what_the_machine_gives() {
    let folder = folder();
    let chart = folder.path().join("decode.svg");
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
    assert!(pause.contains("got -1, expected a length of time"), "{pause}");
    // Refused before the machine is measured, for which there is a gigabyte of memory.
    let begin = std::time::Instant::now();
    let depth = said("--depth=18446744073709551615");
    let expected = "error: --depth with --gen-tokens or --prompt-tokens: got";
    assert!(depth.starts_with(expected) && begin.elapsed().as_secs() < 20, "{depth}");
    let model = said("--model=nowhere");
    assert!(model.starts_with("error: --model: got nowhere"), "{model}");
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
    let folder = folder();
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "Once upon a time there was a little dog. ".repeat(20)).expect("a file");
    let files = ["small.oss", "decode.svg", "speed.svg"].map(|name| folder.path().join(name));
    let mut quantise = program("quantise");
    quantise.args(["--tokens", "64", "--types", "q8_0", "--text"]).arg(&text);
    let mut bench = program("bench");
    bench.args(["--prompt-tokens", "0", "--gen-tokens", "2", "--repeat", "1"]);
    let mut ten_prompts = program("ten_prompts");
    ten_prompts.args(["--tune", "off", "--max-tokens", "2", "--repeat", "1"]);
    let flags = ["--output", "--svg", "--svg"];
    for ((command, flag), file) in
        [&mut quantise, &mut bench, &mut ten_prompts].into_iter().zip(flags).zip(&files)
    {
        let (ended_well, said) = unread(command.args(["--threads", "1", flag]).arg(file));
        assert!(ended_well && said.is_empty() && file.is_file(), "{}: {said}", file.display());
    }
}

#[test]
fn embedding_ends_with_an_error_where_nobody_reads() {
    let (ended_well, said) = unread(&mut program("embed"));
    assert!(!ended_well && said.starts_with("error: Broken pipe"), "{said}");
}

#[test]
fn inspect_shows_one_thing_at_a_time() {
    for (flags, expected) in [
        (&["--verify", "--tuning"][..], "cannot be used with"),
        (&["--tokenize", "a", "--parse-ids", "1"], "cannot be used with"),
        (&["--parse-special"], "required arguments"),
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
    let folder = folder();
    let model = folder.path().join("q3_k.oss");
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
}

#[test]
fn inspect_compares_checksums_and_names_what_is_damaged() {
    let folder = folder();
    let model = folder.path().join("demo.oss");
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
}

#[test]
fn inspect_names_what_is_wrong_with_a_conversation() {
    let folder = folder();
    let path = folder.path().join("chat.json");
    for (text, expected) in [
        (r#"{"messages": [], "date": 7}"#, "date: invalid type: integer `7`, expected a string"),
        (r#"{"tools": []}"#, "got the field tools without messages"),
        ("{}", "got no messages, expected a list"),
        ("7", "got 7, expected an object with messages"),
    ] {
        std::fs::write(&path, text).expect("a file");
        let output = program("inspect").arg("--chat").arg(&path).output();
        let output = output.expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{said}");
        assert!(said.contains("chat.json"), "{said}");
    }
}

/// An empty folder of this test's own.
fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
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
    let folder = folder();
    write_prompts(folder.path());
    assert_eq!(printed(&mut batch(folder.path(), &[])), "");
    let whole = answers(folder.path());
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
    let path = folder.path().join("answers.jsonl");
    let text = std::fs::read_to_string(&path).expect("the answers");
    let lines: Vec<&str> = text.lines().collect();
    let broken = format!("{}\n{}", lines[..9].join("\n"), &lines[9][..lines[9].len() / 2]);
    std::fs::write(&path, broken).expect("the answers");
    let output = batch(folder.path(), &[]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("9 of 12 prompts"), "{said}");
    let texts = |answers: &[Value]| -> Vec<(Value, Value)> {
        answers.iter().map(|answer| (answer["id"].clone(), answer["text"].clone())).collect()
    };
    assert_eq!(texts(&answers(folder.path())), texts(&whole));

    // Nothing is left to do: no model is loaded.
    let mut again = batch(folder.path(), &["--model", "nowhere"]);
    assert_eq!(printed(&mut again), "");

    // An answer is found again by its prompt, not by its place.
    let prompts =
        std::fs::read_to_string(folder.path().join("prompts.jsonl")).expect("the prompts");
    let edited = prompts.replacen("3 dogs", "3 cats", 1);
    std::fs::write(folder.path().join("prompts.jsonl"), edited).expect("the prompts");
    let output = batch(folder.path(), &[]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = "prompt 1: got another line than the one that the output has an answer to";
    assert!(!output.status.success() && said.contains(expected), "{said}");
    assert_eq!(texts(&answers(folder.path())), texts(&whole));

    // Lines that are no answers are left alone, though they have an id.
    std::fs::write(&path, "{\"id\":\"story 4\",\"prompt\":\"One day\"}\n").expect("the file");
    let output = batch(folder.path(), &[]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("line 1: got no answer"), "{said}");
}

#[test]
fn batch_writes_answers_as_they_end_and_tells_which_prompts_failed() {
    let folder = folder();
    write_prompts(folder.path());
    let path = folder.path().join("prompts.jsonl");
    let prompts = std::fs::read_to_string(&path).expect("the prompts");
    // A token that the model does not know.
    let lines = format!("{prompts}\n{{\"id\": \"bad\", \"prompt_ids\": [999999]}}");
    std::fs::write(&path, lines).expect("the prompts");
    let mut command = batch(folder.path(), &["--as-finished", "--max-sequences", "3"]);
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("prompt \"bad\": "), "{said}");
    let mut ids: Vec<String> = answers(folder.path()).iter().map(|a| a["id"].to_string()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 12, "{ids:?}");
}

#[test]
fn batch_refuses_lines_that_are_no_prompts_and_files_that_are_no_answers() {
    let folder = folder();
    let refused = |lines: &str| {
        std::fs::write(folder.path().join("prompts.jsonl"), lines).expect("the prompts");
        let output = batch(folder.path(), &[]).output().expect("the program starts");
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
    let prompts = folder.path().join("prompts.jsonl");
    let output = program("batch").arg(&prompts).arg("--output").arg(&prompts).output();
    let said = output.expect("the program starts").stderr;
    assert!(String::from_utf8_lossy(&said).contains("--output: got the input"));
    std::fs::write(folder.path().join("answers.jsonl"), "a diary\n").expect("a file");
    assert!(refused("a").contains("answers.jsonl, line 1"));
    let diary = std::fs::read_to_string(folder.path().join("answers.jsonl")).expect("a file");
    assert_eq!(diary, "a diary\n");
    std::fs::write(folder.path().join("answers.jsonl"), "a diary without an end").expect("a file");
    assert!(refused("a").contains("answers.jsonl: got a last line"));
    let diary = std::fs::read_to_string(folder.path().join("answers.jsonl")).expect("a file");
    assert_eq!(diary, "a diary without an end");
}

#[test]
fn errors_are_one_line_that_names_the_flag() {
    for (flags, expected) in [
        (&["--context-len", "0"][..], "error: --context-len: got 0, "),
        (&["--top-p", "2"], "error: --top-p: got 2, "),
        (&["--cold", "/dev/null/cold"], "error: /dev/null/cold"),
        (&["--logprobs", "3"], "--json"),
        (&["--plain", "--parse-special"], "cannot be used with"),
    ] {
        let mut command = program("generate");
        command.args(["--prompt", "Once", "--threads", "1", "--tune", "off"]).args(flags);
        let output = command.output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{said}");
        if expected.starts_with("error: ") {
            assert!(said.starts_with(expected) && said.lines().count() == 1, "{said}");
        }
        assert!(output.stdout.is_empty(), "nothing of an answer that is refused");
    }
    let output = program("generate").args(["--prompt-ids", "1", "--parse-special"]).output();
    assert!(!output.expect("the program starts").status.success());
}

#[test]
fn flags_of_before_are_still_heeded() {
    let printed = |name: &str, flags: &[&str]| {
        let mut command = program(name);
        printed(command.args(["--threads", "1", "--tune", "off"]).args(flags))
    };
    let ask = |flags: &[&str]| {
        let common = ["--prompt", "Once <|end|>", "--max-tokens", "8", "--seed", "5", "--json"];
        let said = printed("generate", &[&common, flags].concat());
        let mut answer: Value = serde_json::from_str(&said).expect("JSON");
        answer["timing"].take();
        answer
    };
    let before = ["--kv", "int8", "--activations", "int8", "--context", "64", "--ignore-stops"];
    let now =
        ["--kv-format", "int8", "--activation", "int8", "--context-len", "64", "--ignore-eos"];
    let more_before = ["--control-tokens", "--top-logprobs", "2", "--plain"];
    let more_now = ["--keep-special-tokens", "--logprobs", "2"];
    let plain = ask(&[&now[..], &more_now].concat());
    assert_eq!(ask(&[&before[..], &more_before].concat()), plain);
    // Names of control tokens are text, unless it is said.
    let special = ask(&["--parse-special"]);
    let tokens = |answer: &Value| answer["prompt_ids"].as_array().expect("a list").len();
    assert!(tokens(&special) < tokens(&plain), "{special} {plain}");
    let ids = |flag| printed("inspect", &["--tokenize", "<|end|>", flag]);
    assert_eq!(ids("--special"), ids("--parse-special"));
}

/// What the example `chat` says to lines that are no terminal's: whether it ended well, what it
/// printed, and what it complained of.
fn talk(flags: &[&str], lines: &str) -> (bool, String, String) {
    let folder = folder();
    let path = folder.path().join("lines");
    std::fs::write(&path, lines).expect("a file");
    let mut command = program("chat");
    command.args(["--threads", "1", "--tune", "off", "--temperature", "0"]).args(flags);
    let output = command.stdin(File::open(path).expect("the lines")).output();
    let output = output.expect("the program starts");
    let [printed, said] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), printed, said)
}

#[test]
fn chat_answers_and_ends_with_an_error_where_nobody_can_ask_again() {
    let (ended_well, printed, said) = talk(&[], "What is 47 + 38?\n/quit\nWhat is 1 + 1?\n");
    assert!(ended_well && printed.contains("47 + 38 = 85"), "{printed} {said}");
    assert!(!printed.contains("1 + 1"), "{printed}");
    let (ended_well, printed, said) = talk(&["--context-len", "8"], "What is 47 + 38?\nAnd?\n");
    assert!(!ended_well && said.starts_with("error: prompt: got "), "{printed} {said}");
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_an_answer_of_the_chat_and_not_the_chat() {
    use std::io::Write;
    let interrupt = |id: u32| {
        let mut command = Command::new("sh");
        command.args(["-c", "kill -INT \"$0\"", &id.to_string()]).status().expect("a shell")
    };
    // The answer may be over when the signal comes, which ends the program then.
    let stopped = (0..30).any(|_| {
        let mut command = program("chat");
        command.args(["--threads", "1", "--tune", "off", "--temperature", "0"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        let mut lines = child.stdin.take().expect("its input");
        let mut printed = child.stdout.take().expect("its output");
        writeln!(lines, "Tell me a story about a cat.").expect("it listens");
        let mut text = vec![0];
        printed.read_exact(&mut text).expect("it answers");
        interrupt(child.id());
        // It goes on with the next line, where it was an answer that ended.
        let asked = writeln!(lines, "What is 47 + 38?");
        drop(lines);
        printed.read_to_end(&mut text).expect("it ends");
        let text = String::from_utf8_lossy(&text).into_owned();
        let ended_well = child.wait().expect("it ends").success();
        // The signal may be late, too, and stop the second answer instead.
        asked.is_ok() && ended_well && text.contains("(stopped)") && text.contains("85")
    });
    assert!(stopped, "no answer was stopped and followed by another");
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
    let folder = folder();
    let (text, model) = (folder.path().join("text.txt"), folder.path().join("small.oss"));
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
    for flag in [
        ["--kv-format", "int8"],
        ["--isa", "scalar"],
        ["--max-memory", "8GB"],
        ["--eviction", "lru"],
    ] {
        let output = program("quantise").args(["--text", "nowhere"]).args(flag).output();
        let output = output.expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("cannot be used with"), "{said}");
    }
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
    let folder = folder();
    let schema = folder.path().join("schema.json");
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
    let fits: Value = serde_json::from_str(&answer(&["--json-schema", file])).expect("JSON");
    assert!(fits["sunny"].is_boolean() && fits.as_object().is_some_and(|f| f.len() == 1), "{fits}");
    assert!(["sunny", "rainy"].contains(&answer(&["--regex", "sunny|rainy"]).as_str()));

    write(r#"{"not": {}}"#);
    let refused = generate(&["--json-schema", file]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("JSON schema"), "{said}");
}

#[test]
fn ten_prompts_are_asked_and_measured() {
    let folder = folder();
    let chart = folder.path().join("speed.svg");
    let mut command = program("ten_prompts");
    command.args([
        "--threads",
        "1",
        "--tune",
        "off",
        "--max-tokens",
        "6",
        "--repeat",
        "2",
        "--json",
    ]);
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
}

#[test]
fn ten_prompts_prints_a_table() {
    let mut command = program("ten_prompts");
    command.args(["--threads", "1", "--tune", "off", "--max-tokens", "2", "--repeat", "1"]);
    let table = printed(&mut command);
    assert_eq!(table.lines().filter(|line| line.starts_with("| ")).count(), 11, "{table}");
    assert!(table.contains("| long, again | ") && table.contains("MB resident"), "{table}");
}
