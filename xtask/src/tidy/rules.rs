//! The rules that a source file can break on its own.

use crate::tidy::Violation;
use crate::tidy::source::{Line, Source, has_word, is_word};

/// One rule over one file.
type Rule = fn(&Source, &mut Vec<Violation>);

/// Every rule over sources.
pub(crate) const RULES: [Rule; 11] = [
    instruction_sets,
    format_names,
    architecture_names,
    kernels_allocate_nothing,
    files_through_memory,
    printing,
    signed_unsafe,
    forbidden_unsafe,
    sizes,
    unfinished,
    tests_that_run,
];

/// The crates that can do without unsafe code altogether.
const SAFE_CRATES: [&str; 11] = [
    "oss-cache",
    "oss-demo",
    "oss-engine",
    "oss-machine",
    "oss-model",
    "oss-quant",
    "oss-sampler",
    "oss-server",
    "oss-testing",
    "oss-text",
    "oss-weights",
];

/// The crates whose libraries are not built as tests (`test = false`): it would take minutes.
pub(crate) const WITHOUT_UNIT_TESTS: [&str; 1] = ["oss-kernels"];

/// File names that a kernel written for one instruction set has.
const ISA_FILES: [&str; 9] =
    ["avx2", "avx2vnni", "avx512", "avx512vnni", "avx512bf16", "neon", "neondot", "scalar", "amx"];

/// Names of quantisation formats, in lower case without separators.
const FORMATS: [&str; 13] = [
    "mxfp4", "q40", "q41", "q50", "q51", "q80", "q2k", "q3k", "q4k", "q5k", "q6k", "iq4nl", "e8m0",
];

/// Names of architectures, in lower case without separators.
const ARCHITECTURES: [&str; 2] = ["gptoss", "llama"];

/// Reports each shipped line in one of its two forms that a test finds at fault.
fn report(
    source: &Source,
    out: &mut Vec<Violation>,
    rule: &'static str,
    why: &'static str,
    fault: impl Fn(&Line) -> Option<String>,
) {
    for (number, line) in source.shipped() {
        if let Some(what) = fault(line) {
            out.push(Violation { path: source.path.clone(), line: number, rule, what, why });
        }
    }
}

fn is_isa_file(source: &Source) -> bool {
    let path = &source.path;
    path == "crates/oss-simd/src/isa.rs"
        || path.starts_with("crates/oss-simd/src/isa/")
        || ISA_FILES.contains(&source.stem())
}

fn instruction_sets(source: &Source, out: &mut Vec<Violation>) {
    if !source.is_library() || is_isa_file(source) {
        return;
    }
    let why = "intrinsics live in oss-simd/src/isa and in files named after their ISA";
    report(source, out, "instruction-sets", why, |line| {
        let words = ["core::arch", "std::arch", "target_feature", "feature_detected"];
        words.iter().find(|word| line.code.contains(**word)).map(|word| (*word).to_owned())
    });
}

/// The words of a line, letters and digits only, lower case: `Dtype::Q4_0` gives `dtype`, `q40`.
fn squeezed_words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !is_word(c) && c != '-').map(|word| {
        word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    })
}

fn named_in(line: &Line, names: &[&str]) -> Option<String> {
    squeezed_words(&line.literal).find(|word| names.iter().any(|name| word.contains(name)))
}

fn format_names(source: &Source, out: &mut Vec<Violation>) {
    let stem = source.stem().replace('_', "");
    let home = ["oss-quant", "oss-weights", "oss-demo"].contains(&source.krate())
        || source.krate() == "oss-kernels" && FORMATS.contains(&stem.as_str());
    if !source.is_library() || home {
        return;
    }
    let why = "a format is known to oss-quant, its kernel files named after it, and oss-weights";
    report(source, out, "format-names", why, |line| named_in(line, &FORMATS));
}

fn architecture_names(source: &Source, out: &mut Vec<Violation>) {
    let home = source.path.starts_with("crates/oss-model/src/arch")
        || ["oss-text", "oss-demo"].contains(&source.krate());
    if !source.is_library() || home {
        return;
    }
    let why = "an architecture is known to oss-model/src/arch and to the chat rules of oss-text";
    report(source, out, "architecture-names", why, |line| named_in(line, &ARCHITECTURES));
}

fn kernels_allocate_nothing(source: &Source, out: &mut Vec<Violation>) {
    if source.krate() != "oss-kernels" || !source.is_library() {
        return;
    }
    // Buffers that kernels are given are made in the one, and names are read in the other.
    let home =
        ["buffer", "activation"].map(|stem| format!("crates/oss-kernels/src/input/{stem}.rs"));
    if home.contains(&source.path) {
        return;
    }
    let why = "kernels get output and scratch as arguments";
    report(source, out, "kernels-allocate-nothing", why, |line| {
        let words = ["Vec", "vec", "Box", "String", "Rc", "Arc", "to_vec", "to_owned", "collect"];
        let found = words.iter().find(|word| has_word(&line.code, word));
        found.or(["format"].iter().find(|_| line.code.contains("format!"))).map(ToString::to_string)
    });
}

fn files_through_memory(source: &Source, out: &mut Vec<Violation>) {
    // The topology of the machine is read from the system's own files, behind that crate's `os`.
    let home = source.krate() == "oss-memory" || source.path == "crates/oss-threads/src/os.rs";
    if !source.is_library() || home {
        return;
    }
    let why = "files are opened through oss_memory::file alone";
    report(source, out, "files", why, |line| {
        let words = ["std::fs", "File::open", "File::create", "OpenOptions", "fs::"];
        words.iter().find(|word| line.code.contains(**word)).map(|word| (*word).to_owned())
    });
}

fn printing(source: &Source, out: &mut Vec<Violation>) {
    if !source.is_library() || source.krate() == "oss-server" {
        return;
    }
    let why = "only examples, the server and xtask print; a library traces or returns";
    report(source, out, "printing", why, |line| {
        let macros = ["print!", "println!", "eprint!", "eprintln!", "dbg!"];
        let found = macros.iter().find(|name| {
            let word = name.trim_end_matches('!');
            line.code.contains(**name) && has_word(&line.code, word)
        });
        found.map(|name| (*name).to_owned())
    });
}

fn signed_unsafe(source: &Source, out: &mut Vec<Violation>) {
    let why = "unsafe code is expected with a reason, item by item";
    for (number, line) in source.numbered() {
        let Some(at) = line.code.find("(unsafe_code") else { continue };
        let before = &line.code[..at];
        let what = if before.ends_with("allow") || before.ends_with("warn") {
            "allow(unsafe_code)"
        } else if before.ends_with("expect") {
            let rest = source.lines[number - 1..].iter().take(3);
            if rest.into_iter().any(|line| line.code.contains("reason")) {
                continue;
            }
            "expect(unsafe_code) without a reason"
        } else {
            continue;
        };
        out.push(Violation {
            path: source.path.clone(),
            line: number,
            rule: "signed-unsafe",
            what: what.to_owned(),
            why,
        });
    }
}

fn forbidden_unsafe(source: &Source, out: &mut Vec<Violation>) {
    let root = source.path == format!("crates/{}/src/lib.rs", source.krate());
    if !root || !SAFE_CRATES.contains(&source.krate()) {
        return;
    }
    if !source.lines.iter().any(|line| line.code.contains("#![forbid(unsafe_code)]")) {
        out.push(Violation {
            path: source.path.clone(),
            line: 1,
            rule: "forbidden-unsafe",
            what: "no #![forbid(unsafe_code)]".to_owned(),
            why: "this crate holds no unsafe code, and says so to the compiler",
        });
    }
}

fn sizes(source: &Source, out: &mut Vec<Violation>) {
    let mut add = |line: usize, what: String, why| {
        out.push(Violation { path: source.path.clone(), line, rule: "sizes", what, why });
    };
    for (number, line) in source.numbered() {
        let columns = line.raw.chars().count();
        if columns > 100 {
            add(number, format!("{columns} columns"), "a line has at most 100 columns");
        }
    }
    let limit = if is_isa_file(source) { 1400 } else { 800 };
    let lines = source.lines.len();
    if lines > limit {
        let why = "a file has at most 800 lines, a file of intrinsics 1,400";
        add(limit + 1, format!("{lines} lines"), why);
    }
    if source.stem() == "mod" {
        add(1, "mod.rs".to_owned(), "a module is foo.rs beside foo/");
    }
}

fn unfinished(source: &Source, out: &mut Vec<Violation>) {
    let why = "unfinished work is named in docs/shortcomings.md, not left in the code";
    for (number, line) in source.numbered() {
        let marks = ["todo!", "unimplemented!", "#[ignore", "static mut "];
        if let Some(mark) = marks.iter().find(|mark| line.code.contains(**mark)) {
            out.push(Violation {
                path: source.path.clone(),
                line: number,
                rule: "unfinished",
                what: (*mark).to_owned(),
                why,
            });
        }
    }
}

fn tests_that_run(source: &Source, out: &mut Vec<Violation>) {
    if !source.is_library() || !WITHOUT_UNIT_TESTS.contains(&source.krate()) {
        return;
    }
    let why = "its library is not built as tests, so nobody would run them: they lie in `tests`";
    let test = source.numbered().find(|(_, line)| line.test);
    out.extend(test.map(|(line, _)| Violation {
        path: source.path.clone(),
        line,
        rule: "tests-that-run",
        what: format!("tests beside the code of {}", source.krate()),
        why,
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules that a file breaks, with their lines.
    fn broken(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let source = Source::new(path, text);
        let mut out = Vec::new();
        for rule in RULES {
            rule(&source, &mut out);
        }
        out.iter().map(|violation| (violation.rule, violation.line)).collect()
    }

    #[test]
    fn intrinsics_stay_in_files_named_after_their_isa() {
        let text = "fn a() {}\nuse std::arch::x86_64::*;\n// core::arch in words is fine";
        assert_eq!(broken("crates/oss-quant/src/planes.rs", text), [("instruction-sets", 2)]);
        assert_eq!(broken("crates/oss-kernels/src/linear/avx2.rs", text), []);
        assert_eq!(broken("crates/oss-simd/src/isa/neon.rs", text), []);
    }

    #[test]
    fn format_names_stay_at_home() {
        let text = "let a = Dtype::Q4_0;\nlet b = \"MXFP4\";\n// mxfp4 in words\nlet c = q4k;";
        let expected = [("format-names", 1), ("format-names", 2), ("format-names", 4)];
        assert_eq!(broken("crates/oss-model/src/plan.rs", text), expected);
        assert_eq!(broken("crates/oss-weights/src/gguf/types.rs", text), []);
        assert_eq!(broken("crates/oss-kernels/src/linear/mxfp4.rs", text), []);
        let test = "#[cfg(test)]\nmod tests {\n    use Dtype::Q4_0;\n}";
        assert_eq!(broken("crates/oss-model/src/plan.rs", test), []);
    }

    #[test]
    fn architecture_names_stay_at_home() {
        let text = "let a = \"gpt-oss\";\nlet b = GptOss;\nlet c = gpt_oss::new();\nllama();";
        let lines: Vec<_> = (1..=4).map(|line| ("architecture-names", line)).collect();
        assert_eq!(broken("crates/oss-cache/src/pool.rs", text), lines);
        assert_eq!(broken("crates/oss-model/src/arch/llama.rs", text), []);
    }

    #[test]
    fn kernels_allocate_only_in_tests() {
        let text =
            "let a = vec![0];\nlet b: Vec<f32> = c;\nlet d = x.iter().collect();\nlet vector = 1;";
        let lines: Vec<_> = (1..=3).map(|line| ("kernels-allocate-nothing", line)).collect();
        assert_eq!(broken("crates/oss-kernels/src/norm.rs", text), lines);
        assert_eq!(broken("crates/oss-kernels/tests/norm.rs", text), []);
    }

    #[test]
    fn tests_lie_where_they_are_run() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}";
        assert_eq!(broken("crates/oss-kernels/src/norm.rs", text), [("tests-that-run", 2)]);
        assert_eq!(broken("crates/oss-kernels/tests/norm.rs", text), []);
        assert_eq!(broken("crates/oss-quant/src/kv.rs", text), []);
    }

    #[test]
    fn files_and_printing_are_kept_out_of_libraries() {
        let text = "use std::fs;\nprintln!();\neprintln!();\n// println!()\nlet s = \"dbg!\";";
        let expected = [("files", 1), ("printing", 2), ("printing", 3)];
        assert_eq!(broken("crates/oss-weights/src/gguf.rs", text), expected);
        assert_eq!(broken("examples/generate.rs", text), []);
        assert_eq!(broken("crates/oss-weights/tests/gguf.rs", text), []);
    }

    #[test]
    fn unsafe_is_signed_or_forbidden() {
        let text = "#[allow(unsafe_code)]\n#[expect(unsafe_code)]\nfn a() {}\nfn b() {}\nfn c() {}";
        let expected = [("signed-unsafe", 1), ("signed-unsafe", 2)];
        assert_eq!(broken("crates/oss-threads/src/team.rs", text), expected);
        let signed = "#[expect(\n unsafe_code,\n reason = \"x\"\n)]\n\
                      #[expect(unsafe_code, reason = \"y\")]";
        assert_eq!(broken("crates/oss-threads/src/team.rs", signed), []);
        assert_eq!(broken("crates/oss-text/src/lib.rs", "fn a() {}"), [("forbidden-unsafe", 1)]);
    }

    #[test]
    fn long_lines_long_files_and_unfinished_code_are_found() {
        let long = "x".repeat(101);
        assert_eq!(broken("examples/a.rs", &long), [("sizes", 1)]);
        assert_eq!(broken("examples/a.rs", &"\n".repeat(801)), [("sizes", 801)]);
        assert_eq!(broken("crates/oss-simd/src/isa/avx2.rs", &"\n".repeat(801)), []);
        assert_eq!(broken("crates/oss-x/src/a/mod.rs", ""), [("sizes", 1)]);
        let text = "todo!();\n#[ignore]\nlet a = \"todo!\";";
        assert_eq!(broken("crates/oss-x/tests/a.rs", text), [("unfinished", 1), ("unfinished", 2)]);
    }
}
