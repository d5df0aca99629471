//! What the compiler has made of the kernels.
//!
//! Operations of vectors are inlined into functions that are compiled for their instruction set.
//! Where one is called, a function between was compiled for the baseline, such as a closure that
//! was not inlined: products are right, and slow.

#[path = "support/runner.rs"]
mod common;

use common::{Runner, Setting, data};
use object::{Object as _, ObjectSymbol as _};

#[test]
fn no_operation_of_vectors_is_called() {
    // So that this program has the kernels.
    assert!(!Runner::new(&data("demo.gguf"), Setting::fast()).logits(&[1, 2, 3], 2).is_empty());
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let program = object::File::parse(&*program).unwrap();
    let names: Vec<_> = program
        .symbols()
        .filter_map(|symbol| symbol.name().ok())
        .map(|name| format!("{:#}", rustc_demangle::demangle(name)))
        .collect();
    let kernels = names.iter().filter(|name| name.starts_with("oss_simd::isa::trampolines::"));
    assert!(kernels.count() > 100, "a program with names of its kernels");
    // The standard library asks the processor what it is.
    let asks = |name: &str| name.ends_with("::_xgetbv") || name.contains("::__cpuid");
    let called = names.iter().filter(|name| name.starts_with("core::core_arch::") && !asks(name));
    let called: Vec<_> = called.collect();
    assert!(called.is_empty(), "functions of their own: {called:#?}");
}
