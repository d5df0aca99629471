//! One source file, split into what the compiler reads and what people read.
//!
//! A small scanner, not a parser: it knows comments, strings, characters and braces, which is what
//! the rules need, and takes a millisecond for a large file.

/// A line in two forms, and where it stands.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// As it stands in the file.
    pub(crate) raw: String,
    /// Without comments; strings kept.
    pub(crate) literal: String,
    /// Without comments and without the contents of strings and characters.
    pub(crate) code: String,
    /// Inside an item under `#[cfg(test)]`, or in a file of tests or benches.
    pub(crate) test: bool,
}

/// A file of the workspace.
#[derive(Debug)]
pub(crate) struct Source {
    /// From the root, with `/` between the parts.
    pub(crate) path: String,
    pub(crate) lines: Vec<Line>,
}

impl Source {
    /// Scans a file's text.
    pub(crate) fn new(path: &str, text: &str) -> Source {
        let mut scanner = Scanner::default();
        let mut lines: Vec<Line> = text
            .lines()
            .map(|raw| {
                let (literal, code) = scanner.line(raw);
                Line { raw: raw.to_owned(), literal, code, test: false }
            })
            .collect();
        if is_test_path(path) {
            lines.iter_mut().for_each(|line| line.test = true);
        } else {
            mark_tests(&mut lines);
        }
        Source { path: path.to_owned(), lines }
    }

    /// The lines that end up in a published crate, with their numbers.
    pub(crate) fn shipped(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.numbered().filter(|(_, line)| !line.test)
    }

    /// All lines with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Whether the file lies in the library part of a crate.
    pub(crate) fn is_library(&self) -> bool {
        self.path.starts_with("crates/") && self.path.contains("/src/")
    }

    /// The name of the crate's folder, empty outside of `crates/`.
    pub(crate) fn krate(&self) -> &str {
        self.path.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or("")
    }

    /// The file's name without its ending.
    pub(crate) fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or("");
        name.strip_suffix(".rs").unwrap_or(name)
    }
}

/// Files whose whole content is for tests, benches or fuzzing.
fn is_test_path(path: &str) -> bool {
    let mut parts = path.split('/').peekable();
    while let Some(part) = parts.next() {
        let folder = parts.peek().is_some();
        if folder && ["tests", "benches", "fuzz"].contains(&part) || part == "tests.rs" {
            return true;
        }
    }
    false
}

/// Marks the items that stand under `#[cfg(test)]`, by counting braces.
fn mark_tests(lines: &mut [Line]) {
    let mut depth = 0i32;
    // Some(depth at which the item began) while inside one; pending after the attribute.
    let mut inside: Option<i32> = None;
    let mut pending = false;
    for line in lines {
        let code = line.code.trim();
        if inside.is_none()
            && (code.starts_with("#[cfg(test)]") || code.starts_with("#[cfg(all(test"))
        {
            pending = true;
        }
        line.test = pending || inside.is_some();
        for c in code.chars() {
            match c {
                '{' => {
                    if pending {
                        pending = false;
                        inside = Some(depth);
                    }
                    depth += 1;
                }
                '}' => {
                    depth -= 1;
                    if inside == Some(depth) {
                        inside = None;
                    }
                }
                ';' if pending => pending = false,
                _ => {}
            }
        }
    }
}

/// What a scanner is in the middle of at the end of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Within {
    #[default]
    Code,
    /// Nested comments, with their depth.
    Comment(usize),
    Text,
    /// A raw string, with its number of hashes.
    RawText(usize),
}

#[derive(Default)]
struct Scanner {
    within: Within,
}

impl Scanner {
    /// The line without comments, and without comments and the contents of strings.
    fn line(&mut self, raw: &str) -> (String, String) {
        let chars: Vec<char> = raw.chars().collect();
        let (mut literal, mut code) = (String::new(), String::new());
        let mut at = 0;
        while at < chars.len() {
            let start = at;
            let before = self.within;
            at = self.step(&chars, at);
            let text: String = chars[start..at].iter().collect();
            match (before, self.within) {
                (_, Within::Comment(_)) | (Within::Comment(_), _) => {}
                (Within::Code, Within::Code) if text.starts_with("//") => {}
                (Within::Code, Within::Code) if text.starts_with('\'') && text.len() > 2 => {
                    literal.push_str(&text);
                    code.push_str("' '");
                }
                (Within::Code, _) | (_, Within::Code) => {
                    literal.push_str(&text);
                    code.push_str(&text);
                }
                _ => literal.push_str(&text),
            }
        }
        (literal, code)
    }

    /// Takes one token, or one character, and returns where the next begins.
    fn step(&mut self, chars: &[char], at: usize) -> usize {
        let next = chars.get(at + 1).copied();
        match self.within {
            Within::Code => self.code_step(chars, at),
            Within::Comment(depth) => match (chars[at], next) {
                ('*', Some('/')) => {
                    self.within =
                        if depth == 1 { Within::Code } else { Within::Comment(depth - 1) };
                    at + 2
                }
                ('/', Some('*')) => {
                    self.within = Within::Comment(depth + 1);
                    at + 2
                }
                _ => at + 1,
            },
            Within::Text => match chars[at] {
                '\\' => (at + 2).min(chars.len()),
                '"' => {
                    self.within = Within::Code;
                    at + 1
                }
                _ => at + 1,
            },
            Within::RawText(hashes) => {
                let end = at + 1 + hashes;
                if chars[at] == '"'
                    && end <= chars.len()
                    && chars[at + 1..end].iter().all(|c| *c == '#')
                {
                    self.within = Within::Code;
                    end
                } else {
                    at + 1
                }
            }
        }
    }

    fn code_step(&mut self, chars: &[char], at: usize) -> usize {
        let next = chars.get(at + 1).copied();
        match chars[at] {
            '/' if next == Some('/') => chars.len(),
            '/' if next == Some('*') => {
                self.within = Within::Comment(1);
                at + 2
            }
            '"' => {
                self.within = Within::Text;
                at + 1
            }
            'r' if at == 0 || !is_word(chars[at - 1]) || chars[at - 1] == 'b' => {
                let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
                if chars.get(at + 1 + hashes) == Some(&'"') {
                    self.within = Within::RawText(hashes);
                    return at + 2 + hashes;
                }
                at + 1
            }
            '\'' => character(chars, at),
            _ => at + 1,
        }
    }
}

/// The end of a character literal, or of the quote of a lifetime.
fn character(chars: &[char], at: usize) -> usize {
    if chars.get(at + 1) == Some(&'\\') {
        let from = at + 3;
        let close = chars.iter().skip(from).position(|c| *c == '\'');
        return close.map_or(chars.len(), |close| from + close + 1);
    }
    if chars.get(at + 2) == Some(&'\'') { at + 3 } else { at + 1 }
}

/// Whether a character can stand in an identifier.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `text` holds `word` with no letter, digit or underscore beside it.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(is_word)
            && !text[at + word.len()..].chars().next().is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_told_from_code() {
        let text = "let a = \"x // y\"; // z\n\
                    /* b /* c */ d */ let e = r#\"f\"g\"#;\n\
                    let h = '\"'; i('{');";
        let source = Source::new("crates/oss-x/src/lib.rs", text);
        let code: Vec<_> = source.lines.iter().map(|line| line.code.trim()).collect();
        assert_eq!(code, ["let a = \"\";", "let e = r#\"\"#;", "let h = ' '; i(' ');"]);
        assert_eq!(source.lines[0].literal.trim(), "let a = \"x // y\";");
    }

    #[test]
    fn strings_and_comments_go_on_over_lines() {
        let source = Source::new("a.rs", "\"one\ntwo {\" + x\n/* three\n{ */ four");
        let code: Vec<_> = source.lines.iter().map(|line| line.code.trim()).collect();
        assert_eq!(code, ["\"", "\" + x", "", "four"]);
    }

    #[test]
    fn test_items_are_marked_to_their_last_brace() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { '{'; }\n}\nfn c<'a>() {}";
        let source = Source::new("crates/oss-x/src/lib.rs", text);
        let marks: Vec<_> = source.lines.iter().map(|line| line.test).collect();
        assert_eq!(marks, [false, true, true, true, true, false]);
    }

    #[test]
    fn a_declared_test_module_ends_at_its_semicolon() {
        let source = Source::new("crates/oss-x/src/a.rs", "#[cfg(test)]\nmod tests;\nfn a() {}");
        assert_eq!(source.lines.iter().map(|l| l.test).collect::<Vec<_>>(), [true, true, false]);
        assert!(Source::new("crates/oss-x/src/a/tests.rs", "fn a() {}").lines[0].test);
    }
}
