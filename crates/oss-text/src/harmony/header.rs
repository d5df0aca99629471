//! What stands before a message's content, and how to read it from whatever a model writes.

use crate::chat::Role;

/// A message's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Who speaks.
    pub role: Role,
    /// The speaker's name, of tools and of roles that the format does not know.
    pub name: Option<String>,
    /// `analysis`, `commentary`, `final`, or what the model wrote in that place.
    pub channel: Option<String>,
    /// Whom the message is for, such as `functions.get_weather`.
    pub recipient: Option<String>,
    /// The content's type, such as `<|constrain|>json`.
    pub content_type: Option<String>,
}

/// What a message is to the program that shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The model thinks: the `analysis` channel.
    Reasoning,
    /// The model says what it is about to do: `commentary` for nobody in particular.
    Preamble,
    /// The model answers: `final`, and whatever else has no other meaning.
    Answer,
    /// The model calls a tool: any message for a recipient.
    ToolCall,
    /// Not the model's own words: another role's message, which only a confused model writes.
    Foreign,
}

impl Header {
    /// What the message is to the program that shows it.
    pub fn kind(&self) -> Kind {
        let recipient = self.recipient.as_deref().filter(|&r| r != "all" && r != "user");
        match (self.role, recipient, self.channel.as_deref()) {
            (Role::Assistant, Some(_), _) => Kind::ToolCall,
            (Role::Assistant, None, Some("analysis")) => Kind::Reasoning,
            (Role::Assistant, None, Some("commentary")) => Kind::Preamble,
            (Role::Assistant, None, _) => Kind::Answer,
            _ => Kind::Foreign,
        }
    }

    /// The name of the function that is called, if one of `functions` is.
    pub fn function(&self) -> Option<&str> {
        self.recipient.as_deref()?.strip_prefix("functions.")
    }
}

/// The marker of a content type, as text inside a header.
pub(super) const CONSTRAIN: &str = "<|constrain|>";

/// A header longer than this is none: the model forgot `<|message|>`.
const MAX_LEN: usize = 512;

/// The header's text so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    /// The role that the prompt gave, if the header does not have to name one.
    role: Option<Role>,
    /// Whether `<|start|>` began this header: then its first word is a role.
    started: bool,
    /// The text before `<|channel|>`.
    before: String,
    /// The text after it, if it came.
    after: Option<String>,
}

/// A header read from a draft, and the text in the draft that belongs to no header.
#[derive(Debug, PartialEq)]
pub(super) struct Reading {
    pub(super) header: Header,
    pub(super) rest: String,
}

impl Draft {
    /// The header after a prompt that ends with `<|start|>` and a role.
    pub(super) fn of_role(role: Role) -> Self {
        Self { role: Some(role), ..Self::default() }
    }

    /// The header after `<|start|>`.
    pub(super) fn started() -> Self {
        Self { started: true, ..Self::default() }
    }

    pub(super) fn push(&mut self, text: &str) {
        self.after.as_mut().unwrap_or(&mut self.before).push_str(text);
    }

    pub(super) fn has_channel(&self) -> bool {
        self.after.is_some()
    }

    /// `<|channel|>` came.
    pub(super) fn open_channel(&mut self) {
        self.after.get_or_insert_default();
    }

    /// The header that a second `<|channel|>` begins: of the same role, and for the same recipient
    /// where this one says nothing else.
    pub(super) fn begun_anew(&self) -> Self {
        let reading = self.cut_off();
        let after = words(self.after.as_deref().unwrap_or_default());
        let mut words = words(&self.before).into_iter().chain(after).map(|word| word.text);
        let recipient = words.rfind(|word| names_recipient(word));
        let kept = recipient.filter(|_| reading.rest.is_empty()).unwrap_or_default();
        let mut anew = Self { before: kept.to_owned(), ..Self::of_role(reading.header.role) };
        anew.open_channel();
        anew
    }

    /// Whether all that it says is a channel's name that is none.
    pub(super) fn misnames_channel(&self) -> bool {
        let after = words(self.after.as_deref().unwrap_or_default());
        after.len() == 1 && self.read(false).header.channel.is_none()
    }

    /// Whether nothing that may still come can make this a header.
    pub(super) fn is_hopeless(&self) -> bool {
        let after = self.after.as_deref().unwrap_or_default();
        let len = self.before.len() + after.len();
        let lines = |text: &str| text.trim().contains('\n');
        if len > MAX_LEN || lines(&self.before) || lines(after) {
            return true;
        }
        let growing = self.after.is_none() && !self.before.ends_with(char::is_whitespace);
        let words = words(&self.before);
        let after_role = usize::from(words.first().is_some_and(|word| self.may_be_role(word.text)));
        let strange = words.iter().enumerate().skip(after_role).any(|(index, word)| {
            let last = growing && index + 1 == words.len();
            let first_may_grow = index == 0 && last && self.may_grow_to_role(word.text);
            !(is_header_word(word.text) || first_may_grow || last && may_grow(word.text))
        });
        // After the channel: its name, a recipient and a type.
        let many = self::words(after).iter().filter(|word| word.text != CONSTRAIN).count() > 3;
        strange || many
    }

    /// Whether the first word before the channel is this header's role.
    fn may_be_role(&self, word: &str) -> bool {
        match self.role {
            Some(role) => word == role.name(),
            None => is_known_role(word) || self.started && !is_header_word(word),
        }
    }

    /// Whether `<|start|>` was followed by the beginning of a role's name alone.
    fn is_cut_role(&self, word: &str) -> bool {
        self.started && (self.may_grow_to_role(word) || "functions.".starts_with(word))
    }

    fn may_grow_to_role(&self, word: &str) -> bool {
        let roles = [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool];
        match self.role {
            Some(role) => role.name().starts_with(word),
            None => roles.iter().any(|role| role.name().starts_with(word)),
        }
    }

    /// Reads the header that `<|message|>` ended: every word of it is header.
    pub(super) fn complete(&self) -> Header {
        self.read(true).header
    }

    /// Reads the header of a message that never came to `<|message|>`: words that no header has
    /// are the message's content.
    pub(super) fn cut_off(&self) -> Reading {
        let mut reading = self.read(false);
        if !reading.rest.is_empty() && reading.header.channel.is_none() {
            reading.header.channel = Some("final".to_owned());
        }
        reading
    }

    fn read(&self, complete: bool) -> Reading {
        let mut header = Header {
            role: self.role.unwrap_or(Role::Assistant),
            name: None,
            channel: None,
            recipient: None,
            content_type: None,
        };
        let mut before = words(&self.before);
        let after = self.after.as_deref().unwrap_or_default();
        let mut after_words = words(after);
        let alone = before.len() == 1 && self.after.is_none();
        let is_role = |word: &&Word<'_>| {
            self.may_be_role(word.text)
                && (complete || is_known_role(word.text) || alone && self.is_cut_role(word.text))
        };
        let is_stranger = |word: &Word<'_>| match word.text.strip_prefix(CONSTRAIN) {
            Some(kind) => !"json".starts_with(kind),
            None => !is_header_word(word.text),
        };
        let role = before.first().filter(is_role).map(|word| word.text);
        // Where nothing says that a header begins, "user wants …" is text.
        let is_other = |word| role_of(word).is_none_or(|(role, _)| role != Role::Assistant);
        let headless = !complete && !self.started && self.role.is_none() && self.after.is_none();
        let prose = headless && role.is_some_and(is_other) && before[1..].iter().any(is_stranger);
        let role = role.filter(|_| !prose);
        if role.is_some() {
            before.remove(0);
        }
        let is_channel = |word: &Word<'_>| {
            let known = CHANNELS.contains(&word.text);
            let cut = CHANNELS.iter().any(|name| name.starts_with(word.text))
                && after.trim() == word.text;
            let possible = !word.text.starts_with("to=") && !word.text.starts_with(CONSTRAIN);
            possible && (complete || known || cut)
        };
        if after_words.first().is_some_and(is_channel) {
            header.channel = Some(after_words.remove(0).text.to_owned());
        }
        let mut rest = String::new();
        let mut plain: Vec<&str> = Vec::new();
        for (text, list) in [(self.before.as_str(), before), (after, after_words)] {
            let is_content = |word| !complete && (prose || is_stranger(word));
            let stranger = list.iter().position(is_content);
            if let Some(stranger) = stranger {
                rest.push_str(&text[list[stranger].start..]);
            }
            plain.extend(list[..stranger.unwrap_or(list.len())].iter().map(|word| word.text));
        }
        assign(&mut header, &plain);
        if let Some(word) = role.filter(|_| self.role.is_none()) {
            name_role(&mut header, word, !plain.is_empty());
        }
        // Text without any header keeps its first space.
        if rest.len() == self.before.trim_start().len() && self.after.is_none() {
            rest = self.before.clone();
        }
        let rest = rest.replace(CONSTRAIN, "");
        let rest = if rest.trim().is_empty() { String::new() } else { rest };
        Reading { header, rest }
    }
}

/// A role with a name after a colon, or alone.
fn role_of(word: &str) -> Option<(Role, Option<&str>)> {
    let (role, name) = match word.split_once(':') {
        Some((role, name)) => (role, Some(name)),
        None => (word, None),
    };
    Role::from_name(role).map(|role| (role, name))
}

fn is_known_role(word: &str) -> bool {
    word.starts_with("functions.") || role_of(word).is_some()
}

/// Unknown roles: a word with a recipient or with a dot is a tool, any other the model.
fn name_role(header: &mut Header, word: &str, has_more: bool) {
    let (role, name) = match role_of(word) {
        Some(known) => known,
        None if has_more || word.contains('.') => (Role::Tool, Some(word)),
        None => (Role::Assistant, Some(word)),
    };
    header.role = role;
    header.name = name.map(str::to_owned);
}

/// Gives the words besides role and channel their meaning.
fn assign(header: &mut Header, words: &[&str]) {
    let mut others: Vec<&str> = Vec::new();
    let mut content_type = String::new();
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        if let Some(recipient) = word.strip_prefix("to=") {
            header.recipient = Some(recipient.to_owned()).filter(|recipient| !recipient.is_empty());
        } else if word == CONSTRAIN {
            // `<|constrain|> json` is `<|constrain|>json`.
            content_type = content_type + CONSTRAIN + words.next().unwrap_or_default();
        } else if word.starts_with(CONSTRAIN) {
            content_type += word;
        } else if CHANNELS.contains(&word) {
            header.channel.get_or_insert_with(|| word.to_owned());
        } else {
            others.push(word);
        }
    }
    // A word alone is a recipient, of two words the last is the type.
    if header.recipient.is_none() && !others.is_empty() {
        header.recipient = Some(others.remove(0).to_owned());
    }
    let parts = Some(content_type).filter(|kind| !kind.is_empty()).into_iter();
    let parts: Vec<String> = parts.chain(others.into_iter().map(str::to_owned)).collect();
    header.content_type = Some(parts.join(" ")).filter(|kind| !kind.is_empty());
}

const CHANNELS: [&str; 3] = ["analysis", "commentary", "final"];

fn names_recipient(word: &str) -> bool {
    word.starts_with("to=") || word.starts_with("functions.")
}

/// What is header wherever it stands.
fn is_header_word(word: &str) -> bool {
    names_recipient(word)
        || word.starts_with(CONSTRAIN)
        || word == "json"
        || CHANNELS.contains(&word)
}

/// Whether more letters can make a header word of this one.
fn may_grow(word: &str) -> bool {
    ["to=", "functions.", "json"].iter().chain(&CHANNELS).any(|full| full.starts_with(word))
}

#[derive(Clone, Copy, Debug)]
struct Word<'a> {
    text: &'a str,
    start: usize,
}

/// The words of a header's part; the constrain marker begins a word.
fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, character) in text.char_indices() {
        let marker = text[at..].starts_with(CONSTRAIN);
        if let Some(from) = start.filter(|_| marker || character.is_whitespace()) {
            words.push(Word { text: &text[from..at], start: from });
            start = None;
        }
        if start.is_none() && !character.is_whitespace() {
            start = Some(at);
        }
    }
    words.extend(start.map(|from| Word { text: &text[from..], start: from }));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(role: Option<Role>, before: &str, after: Option<&str>) -> Draft {
        let (before, after) = (before.to_owned(), after.map(str::to_owned));
        Draft { role, started: role.is_none(), before, after }
    }

    #[test]
    fn the_recipient_stands_before_or_after_the_channel() {
        let a = draft(None, "assistant to=functions.x", Some("commentary <|constrain|>json"));
        let b = draft(None, "assistant", Some("commentary to=functions.x <|constrain|>json"));
        let c = draft(None, "assistant", Some("commentary to=functions.x<|constrain|> json"));
        assert_eq!(a.complete(), b.complete());
        assert_eq!(a.complete(), c.complete());
        let header = a.complete();
        assert_eq!(header.function(), Some("x"));
        assert_eq!(header.channel.as_deref(), Some("commentary"));
        assert_eq!(header.content_type.as_deref(), Some("<|constrain|>json"));
        assert_eq!(header.kind(), Kind::ToolCall);
    }

    #[test]
    fn a_tool_is_named_by_its_role() {
        let header = draft(None, "functions.f to=assistant", Some("commentary")).complete();
        assert_eq!((header.role, header.name.as_deref()), (Role::Tool, Some("functions.f")));
        assert_eq!(header.recipient.as_deref(), Some("assistant"));
        assert_eq!(header.kind(), Kind::Foreign);
    }

    #[test]
    fn text_is_no_header_as_soon_as_it_cannot_be_one() {
        let role = Some(Role::Assistant);
        for before in ["", " ", " to", " to=functions.get_we", "assist", "assistant", "\n", "fin"] {
            assert!(!draft(role, before, None).is_hopeless(), "{before:?}");
        }
        for before in ["Hello", "assistants", "to be", " The", "a\nb", "final answer"] {
            assert!(draft(role, before, None).is_hopeless(), "{before:?}");
        }
        assert!(!draft(role, "", Some("final Hello, you")).is_hopeless());
        assert!(draft(role, "", Some("final Hello, you there")).is_hopeless());
        assert!(draft(role, "", Some("final\nHello")).is_hopeless());
    }

    #[test]
    fn what_is_cut_off_keeps_its_text() {
        let role = Some(Role::Assistant);
        let cut = |before, after| draft(role, before, after).cut_off();
        assert_eq!(cut(" Hello  you", None).rest, " Hello  you");
        assert_eq!(cut(" Hello", None).header.channel.as_deref(), Some("final"));
        assert_eq!(cut("", Some("analysis I  think")).rest, "I  think");
        assert_eq!(cut("", Some("analysis I  think")).header.channel.as_deref(), Some("analysis"));
        assert_eq!(cut("", Some("ana")).rest, "");
        assert_eq!(cut("assistant to=functions.f", None).rest, "");
    }
}
