//! The chores of oss-engine.
fn main() {}
