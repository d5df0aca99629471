//! How a program embeds the engine.
fn main() {}
