//! A conversation in the terminal: reasoning dimmed, answers plain, tools from a JSON file.
//!
//! `cargo run --release --example chat -- --reasoning low`

use anyhow::{Context, Result};
use clap::Parser;
use oss_engine::text::chat::{Message, Role, Tool};
use oss_engine::text::harmony::Effort;
use oss_engine::{ChatRequest, Error, Event, Finish, Request, Session};
use oss_examples::{EngineArgs, out, outln};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{IsTerminal, stdout};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Talks with a model.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    engine: EngineArgs,
    /// What the model is told before the conversation
    #[arg(long)]
    system: Option<String>,
    /// How long the model thinks: low, medium or high
    #[arg(long, value_parser = effort)]
    reasoning: Option<Effort>,
    /// A file with tools as in the OpenAI chat API: a JSON list
    #[arg(long)]
    tools: Option<PathBuf>,
    /// Today's date, such as 2025-06-28, where the format tells it
    #[arg(long)]
    date: Option<String>,
    /// Divides the logits; 0 is greedy
    #[arg(long)]
    temperature: Option<f32>,
    /// The most tokens of an answer
    #[arg(long, default_value_t = 2048)]
    max_tokens: usize,
}

fn effort(text: &str) -> Result<Effort, String> {
    serde_json::from_value(text.into()).map_err(|_| "low, medium or high".to_owned())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let tools: Vec<Tool> = match &arguments.tools {
        None => Vec::new(),
        Some(path) => {
            let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
            serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?
        }
    };
    let engine = arguments.engine.load()?;
    let mut talk = Talk {
        session: engine.session(),
        messages: Vec::new(),
        tools,
        dim: stdout().is_terminal(),
        arguments,
    };
    talk.reset();
    let mut editor = DefaultEditor::new()?;
    if talk.dim {
        outln!("/reset begins anew, /quit or Ctrl-D ends");
    }
    loop {
        match editor.readline("> ") {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) if line.trim() == "/quit" => break,
            Ok(line) if line.trim() == "/reset" => talk.reset(),
            Ok(line) => {
                editor.add_history_entry(&line)?;
                talk.messages.push(Message::user(line));
                if talk.answer(&mut editor)?.is_break() {
                    break;
                }
            }
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

struct Talk {
    session: Session,
    messages: Vec<Message>,
    tools: Vec<Tool>,
    dim: bool,
    arguments: Arguments,
}

impl Talk {
    fn reset(&mut self) {
        self.messages.clear();
        if let Some(system) = &self.arguments.system {
            self.messages.push(Message::new(Role::System, system.as_str()));
        }
    }

    /// Answers until no tool is called; the results of calls are asked for. Breaks where the user
    /// ends the conversation instead of giving one.
    fn answer(&mut self, editor: &mut DefaultEditor) -> Result<ControlFlow<()>> {
        let asked = self.messages.len() - 1;
        loop {
            let chat = ChatRequest {
                tools: self.tools.clone(),
                reasoning_effort: self.arguments.reasoning,
                date: self.arguments.date.clone(),
                ..ChatRequest::new(self.messages.clone())
            };
            let mut request = Request::chat(chat).max_tokens(self.arguments.max_tokens);
            request.sampling.temperature = self.arguments.temperature;
            let dim = self.dim;
            let completion = match self.session.generate_with(request, |event| show(event, dim)) {
                Ok(completion) => completion,
                Err(Error::Closed) => return Err(Error::Closed.into()),
                Err(error) => {
                    // The conversation is as it was before the question.
                    self.messages.truncate(asked);
                    outln!("\n{:#}", anyhow::Error::from(error));
                    outln!("(the question is not kept; /reset begins anew)");
                    return Ok(ControlFlow::Continue(()));
                }
            };
            outln!();
            let mut message = completion.message();
            if !matches!(completion.finish, Finish::ToolCalls) {
                // No tool can answer a call that was cut off, and no conversation goes on with one.
                message.tool_calls.clear();
                message.content = Some(completion.text);
                self.messages.push(message);
                if matches!(completion.finish, Finish::Length) {
                    outln!("(cut off: --max-tokens, or the context, is used up)");
                }
                return Ok(ControlFlow::Continue(()));
            }
            let calls = message.tool_calls.clone();
            self.messages.push(message);
            for call in calls {
                let result = match editor.readline(&format!("{} gives: ", call.function.name)) {
                    Ok(result) => result,
                    Err(ReadlineError::Eof | ReadlineError::Interrupted) => {
                        return Ok(ControlFlow::Break(()));
                    }
                    Err(error) => return Err(error.into()),
                };
                self.messages.push(Message {
                    name: Some(call.function.name),
                    tool_call_id: Some(call.id),
                    ..Message::new(Role::Tool, result)
                });
            }
        }
    }
}

fn show(event: &Event, dim: bool) {
    match event {
        Event::Reasoning(text) if dim => out!("\x1b[2m{text}\x1b[0m"),
        Event::Reasoning(_) => {}
        Event::Text(text) => out!("{text}"),
        Event::ToolCallStart { name, .. } => out!("\n{name} "),
        Event::ToolCallArguments { delta, .. } => out!("{delta}"),
        _ => {}
    }
}
