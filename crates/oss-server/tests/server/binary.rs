//! The program: its flags, its log, its signals.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::json;

use crate::client::{Connection, get, post};
use crate::support::{endless, eventually, load};

/// The program, ended when it goes out of sight.
struct Program {
    child: Child,
    address: SocketAddr,
}

impl Program {
    fn start(more: &[&str]) -> Self {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../oss-demo/data/demo.gguf");
        let flags = ["--model", model, "--port", "0", "--threads", "1", "--tune", "off"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_oss-server"));
        let mut child = command.args(flags).args(more).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it listens");
        }
        let address = line.split("address=").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.and_then(|address| address.parse().ok()).expect("an address");
        // Whoever logs must not wait for a reader.
        thread::spawn(move || log.lines().count());
        eventually("it is ready", || get(address, "/health").status() == 200);
        Self { child, address }
    }

    fn terminate(&self) {
        // The shell's own: a program of that name need not be there.
        let (script, id) = ("kill -TERM \"$0\"", self.child.id().to_string());
        assert!(Command::new("sh").args(["-c", script, &id]).status().unwrap().success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        eventually("it ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may be gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_signal_drains_the_program_and_it_exits_with_0() {
    let mut program = Program::start(&["--drain-settle", "2s", "--model-name", "a/b"]);
    let address = program.address;
    assert_eq!(get(address, "/v1/models/a/b").fine()["id"], "a/b");
    post(address, "/v1/completions", &json!({"prompt": "Once", "model": "a/b"})).fine();
    program.terminate();
    eventually("it drains", || get(address, "/health").status() == 503);
    assert_eq!(get(address, "/live").status(), 200);
    assert_eq!(program.exit_code(), Some(0));
}

#[test]
fn a_second_signal_ends_the_program_at_once() {
    let mut program = Program::start(&["--drain-settle", "60s"]);
    let address = program.address;
    let mut connection = Connection::open(address);
    connection.send("POST", "/v1/completions", "", &endless(false).to_string());
    eventually("it runs", || load(address)["num_running_reqs"] == 1);
    program.terminate();
    eventually("it drains", || get(address, "/health").status() == 503);
    program.terminate();
    assert_eq!(program.exit_code(), Some(1));
}

#[test]
fn what_is_kept_is_complete_when_the_program_was_drained_without_a_signal() {
    let directory = tempfile::tempdir().unwrap();
    let cold = directory.path().to_str().unwrap();
    let text = "There was a little dog who lived by the river. ".repeat(4);
    for is_known in [false, true] {
        let mut program = Program::start(&["--cold", cold, "--drain-settle", "0s"]);
        let body = json!({"prompt": text, "max_tokens": 1});
        let answer = post(program.address, "/v1/completions", &body).fine();
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(cached.as_u64() >= Some(16), is_known, "{answer}");
        assert_eq!(post(program.address, "/admin/drain", &json!({})).status(), 202);
        assert_eq!(program.exit_code(), Some(0));
    }
}

#[test]
fn an_option_that_cannot_be_is_told_by_its_flag() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../oss-demo/data/demo.gguf");
    for (flags, expected) in [
        (["--context-len", "0"], "error: the model could not be loaded: --context-len: got 0,"),
        (["--queue-limit", "0"], "error: --queue-limit: got 0,"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oss-server"));
        command.args(["--model", model, "--port", "0", "--threads", "1", "--log", "error"]);
        let output = command.args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_model_that_is_not_there_is_an_exit_with_its_name() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oss-server"));
    let output = command.args(["--model", "/no/such.gguf", "--port", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("could not be loaded") && said.contains("/no/such.gguf"), "{said}");
}
