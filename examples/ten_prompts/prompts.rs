//! The ten prompts: short and long, of many kinds, the same on every machine.

/// One of the ten.
pub(crate) struct Prompt {
    /// What kind it is, in a word or two.
    pub(crate) kind: &'static str,
    /// What is asked.
    pub(crate) text: String,
    /// The most tokens of the answer.
    pub(crate) max_tokens: usize,
}

/// A notice of about a hundred words, of which long prompts are made.
const NOTICE: &str = "The harbour office reports that ship number {n} arrived on day {n} of the \
    season with {cargo} crates of oranges, two crates of lamps and one crate of letters. The \
    captain said that the sea was calm and that the crew had slept well. The crates were counted \
    twice and put into hall {hall}, next to the old crane. A clerk wrote the numbers into the blue \
    book and the harbour master signed the page. In the evening the crew went into the town, ate \
    soup and bread, and told the children about the islands in the south. ";

/// The notices of so many ships.
fn notices(count: usize) -> String {
    let notice = |n: usize| {
        let (cargo, hall) = ((n * 37 % 90 + 10).to_string(), (n % 4 + 1).to_string());
        let text = NOTICE.replace("{n}", &n.to_string());
        text.replace("{cargo}", &cargo).replace("{hall}", &hall)
    };
    (1..=count).map(notice).collect()
}

const TABLE: &str = "name, age, town\nAda, 36, London\nGrace, 45, New York\nAlan, 41, \
    Manchester\nKatherine, 52, Hampton\nLinus, 28, Helsinki\n";

const FUNCTION: &str = "def mean(values):\n    total = 0\n    for value in values:\n        total \
    = total + value\n    return total / len(values)\n";

/// The ten prompts. The last two share all but their questions.
pub(crate) fn ten() -> [Prompt; 10] {
    let prompt = |kind, text: String, max_tokens| Prompt { kind, text, max_tokens };
    let report = notices(8);
    [
        prompt("greeting", "Hello! Who are you?".into(), 48),
        prompt("sum", "What is 47 + 38?".into(), 64),
        prompt("story", "Tell a story about a little dog that finds a red ball.".into(), 160),
        prompt("facts", "Name the capitals of France, Peru and Japan.".into(), 96),
        prompt("list", "Write the numbers from one to thirty as words, one a line.".into(), 128),
        prompt("code", format!("Add a check for an empty list:\n\n{FUNCTION}"), 160),
        prompt("table to JSON", format!("Write this table as a JSON list:\n\n{TABLE}"), 192),
        prompt("summary", format!("Say in two sentences what happened:\n\n{}", notices(3)), 96),
        prompt("long, first", format!("{report}\n\nWhich ship brought the most oranges?"), 64),
        prompt("long, again", format!("{report}\n\nIn which halls do the crates lie?"), 64),
    ]
}
