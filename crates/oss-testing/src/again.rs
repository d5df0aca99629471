//! Tests that run once more, in a process of their own.

use std::path::PathBuf;
use std::process::Command;

/// A command that runs a test of this program once more, alone, as a process of its own, which the
/// caller gives an environment that tells the two apart. `test` is the name as the program lists
/// it.
///
/// ```no_run
/// if std::env::var_os("WITHIN").is_some() {
///     return; // What is tested, in the second process.
/// }
/// oss_testing::passes(oss_testing::again("a_test_of_mine").env("WITHIN", "yes"));
/// ```
///
/// # Panics
/// When the system does not tell which program this is.
#[must_use]
pub fn again(test: &str) -> Command {
    // By this name another user needs no way to the program, and one that was built anew meanwhile
    // is not taken for this one.
    let own = if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { program() };
    let mut command = Command::new(own);
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// As [`again`], behind a line of shell, such as `ulimit -f 512;`. It may change what is run by
/// `set --`.
///
/// # Panics
/// As [`again`].
#[must_use]
pub fn again_behind(shell: &str, test: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{shell} exec \"$@\"")]).arg("sh").arg(program());
    command.args(["--exact", test, "--nocapture"]);
    command
}

fn program() -> PathBuf {
    std::env::current_exe().expect("the test's own program")
}

/// Runs such a command to its end and gives what it printed.
///
/// # Panics
/// Unless one test has run and passed: where none is called so, a test program ends well.
#[track_caller]
pub fn passes(command: &mut Command) -> String {
    let output = command.output().expect("a process");
    let [printed, said] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let passed = output.status.success() && printed.contains("test result: ok. 1 passed");
    assert!(passed, "{command:?}: {}\n{printed}{said}", output.status);
    printed.into_owned()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const WITHIN: &str = "OSS_TESTING_WITHIN";

    #[test]
    fn a_test_passes_once_more_and_none_is_no_pass() {
        match std::env::var(WITHIN).as_deref() {
            Ok("fails") => panic!("as it was told to"),
            Ok(limit) => return println!("within: {limit}"),
            Err(_) => {}
        }
        let test = "again::tests::a_test_passes_once_more_and_none_is_no_pass";
        assert!(passes(again(test).env(WITHIN, "yes")).contains("within: yes"));
        let refused = |mut command: Command| {
            let outcome = catch_unwind(AssertUnwindSafe(|| passes(&mut command)));
            *outcome.expect_err("no pass").downcast::<String>().expect("a message")
        };
        assert!(refused(again("no_such_test")).contains("0 passed"));
        let mut failing = again(test);
        failing.env(WITHIN, "fails");
        assert!(refused(failing).contains("as it was told to"));
        if cfg!(unix) {
            let shell = format!("{WITHIN}=$((40 + 2)); export {WITHIN};");
            assert!(passes(&mut again_behind(&shell, test)).contains("within: 42"));
        }
    }
}
