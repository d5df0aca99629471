//! What is compared: one row each.

/// What a row's number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Tokens per second of decoding, all sequences together.
    Decode,
    /// Tokens per second of a prompt.
    Prefill,
    /// Milliseconds that a prompt takes.
    FirstToken,
    /// Seconds of a whole process that loads the model and takes a prompt.
    Start,
}

/// One thing to measure.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) figure: Figure,
    /// One thread instead of all.
    pub(crate) alone: bool,
    /// Tokens of the prompt, where one is measured.
    pub(crate) prompt: usize,
    /// Positions before.
    pub(crate) depth: usize,
    /// Sequences.
    pub(crate) batch: usize,
    /// Seconds of idleness before; llama.cpp's bench has none, which favours it.
    pub(crate) pause: f64,
    /// The instruction set that we are held to, in the words of `OSS_ISA`; llama.cpp is not.
    pub(crate) isa: Option<&'static str>,
    /// Another row of ours that this one is held beside, measured right before or after it.
    pub(crate) beside: Option<&'static Row>,
    /// Whether llama.cpp is measured, too.
    pub(crate) llama: bool,
}

const DECODE: Row = Row {
    name: "decode",
    what: "decode",
    figure: Figure::Decode,
    alone: false,
    prompt: 0,
    depth: 0,
    batch: 1,
    pause: 0.0,
    isa: None,
    beside: None,
    llama: true,
};

const PREFILL: Row =
    Row { name: "prefill", what: "prefill of 512", figure: Figure::Prefill, prompt: 512, ..DECODE };

const DEEP: Row = Row { name: "decode-4096", what: "decode at depth 4096", depth: 4096, ..DECODE };

/// Every row: those that share a process of llama.cpp stand together, the cheap ones first.
pub(crate) const ROWS: [Row; 11] = [
    Row { name: "decode-1", what: "decode, 1 thread", alone: true, ..DECODE },
    Row {
        name: "start",
        what: "whole process: load, first token of 40",
        figure: Figure::Start,
        prompt: 40,
        ..DECODE
    },
    Row { name: "batch-16", what: "decode of 16 sequences", batch: 16, ..DECODE },
    DECODE,
    Row {
        name: "decode-avx2",
        what: "decode, ours with AVX2",
        isa: Some("avx2"),
        beside: Some(&DECODE),
        ..DECODE
    },
    PREFILL,
    Row {
        name: "prefill-avx2",
        what: "prefill of 512, ours with AVX2",
        isa: Some("avx2"),
        ..PREFILL
    },
    Row {
        name: "first-token",
        what: "first token of 40 after an idle second",
        figure: Figure::FirstToken,
        prompt: 40,
        pause: 1.0,
        ..DECODE
    },
    DEEP,
    Row {
        name: "prefill-4096",
        what: "prefill of 512 at depth 4096",
        prompt: 512,
        figure: Figure::Prefill,
        ..DEEP
    },
    Row {
        name: "decode-16384",
        what: "decode at depth 16384",
        depth: 16_384,
        beside: Some(&DECODE),
        llama: false,
        ..DECODE
    },
];

impl Row {
    /// Whether one process of llama.cpp measures both: what takes it longest is to load. Its bench
    /// takes depths and prompts in lists, but not loading, threads and many sequences.
    pub(crate) fn shares_their_process(&self, other: &Row) -> bool {
        let can = |row: &Row| row.llama && row.batch == 1 && row.figure != Figure::Start;
        can(self) && can(other) && self.alone == other.alone
    }

    /// Whether one process of ours measures both: what takes it longest is to get to their depth.
    pub(crate) fn shares_our_process(&self, other: &Row) -> bool {
        self.depth > 0 && self.depth == other.depth && self.shares_their_process(other)
    }

    /// Whether one number is better than another.
    pub(crate) fn better(&self, a: f64, b: f64) -> bool {
        self.ratio(a, b) > 1.0
    }

    /// How many times better one number is than another.
    pub(crate) fn ratio(&self, a: f64, b: f64) -> f64 {
        match self.figure {
            Figure::Decode | Figure::Prefill => a / b,
            Figure::FirstToken | Figure::Start => b / a,
        }
    }

    pub(crate) fn unit(&self) -> &'static str {
        match self.figure {
            Figure::Decode | Figure::Prefill => "tokens/s",
            Figure::FirstToken => "ms",
            Figure::Start => "s",
        }
    }

    /// A number of this row with its unit.
    pub(crate) fn shown(&self, value: f64) -> String {
        let digits = if value < 100.0 { 2 } else { 0 };
        format!("{value:.digits$} {}", self.unit())
    }
}
