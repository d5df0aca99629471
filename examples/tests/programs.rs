//! The examples as their users run them: as processes, on the demo model.

use serde_json::Value;
use std::path::PathBuf;
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
    assert_eq!(json["decode"]["share_of_read_bandwidth"], Value::Null, "{json}");
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
fn a_reader_who_has_gone_ends_a_program_quietly() {
    let mut command = program("inspect");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
}
