//! The steady state of decoding, where the system kills a process that calls it.
#![cfg(target_os = "linux")]

#[path = "steady/decoder.rs"]
mod decoder;

use decoder::{Case, Decoder, LONG};
use oss_kernels::attention::PAGE;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use std::process::Output;

const CHILD: &str = "OSS_TEST_WITHOUT_SYSTEM_CALLS";
const DONE: &str = "still alive";

/// Decodes most of a page with a single system call allowed: the one to say so. Where attention is
/// sparse, the page's tokens leave blocks out.
fn child(case: Case, calls: bool) {
    let mut decoder = Decoder::new(case, 1);
    (0..=LONG.next_multiple_of(PAGE)).for_each(|_| decoder.step());
    let allowed = [(libc::SYS_write, Vec::new())].into();
    let (others, listed) = (SeccompAction::KillProcess, SeccompAction::Allow);
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(allowed, others, listed, architecture).unwrap();
    let filter: BpfProgram = filter.try_into().unwrap();
    apply_filter(&filter).unwrap();
    (2..PAGE).for_each(|_| decoder.step());
    if calls {
        std::thread::yield_now();
    }
    println!("{DONE}");
}

/// With one thread: several wait for each other, and sleep where something else runs meanwhile.
#[test]
fn a_token_makes_no_system_call() {
    if let Ok(what) = std::env::var(CHILD) {
        let (case, calls) = what.split_once(' ').unwrap();
        return child(Case::all()[case.parse::<usize>().unwrap()], calls == "yes");
    }
    // Nothing undoes the filter, so it is set in processes of their own; they die with their end.
    let run = |case: usize, calls: &str| {
        let mut child = oss_testing::again("a_token_makes_no_system_call");
        child.env(CHILD, format!("{case} {calls}")).output().unwrap()
    };
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).contains(DONE);
    for (index, case) in Case::all().iter().enumerate() {
        let quiet = run(index, "no");
        assert!(said(&quiet), "{case:?}: a system call: {quiet:?}");
    }
    let calling = run(0, "yes");
    assert!(!said(&calling), "the filter let a call pass: {calling:?}");
}
