//! A conversation in the terminal: reasoning dimmed, answers plain, tools from a JSON file.
//!
//! `cargo run --release --example chat -- --reasoning-effort low`
//!
//! Ctrl-C ends an answer, and at the prompt the conversation.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use oss_engine::{
    ChatRequest, Completion, Error, Event, FinishReason, Message, ReasoningEffort, Request, Role,
    Session, Tool,
};
use oss_examples::{EngineArgs, out, outln, run, told};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{IsTerminal, stdin, stdout};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::{ExitCode, exit};
use std::sync::atomic::{AtomicU8, Ordering};

/// Talks with a model.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    engine: EngineArgs,
    /// What the model is told before the conversation
    #[arg(long)]
    system: Option<String>,
    /// How long the model thinks: low, medium or high
    #[arg(long, alias = "reasoning", value_parser = effort)]
    reasoning_effort: Option<ReasoningEffort>,
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

fn effort(text: &str) -> Result<ReasoningEffort, String> {
    serde_json::from_value(text.into()).map_err(|_| "low, medium or high".to_owned())
}

/// What is being done, for ctrl-c: nothing, an answer, or one that is to end.
static STATE: AtomicU8 = AtomicU8::new(IDLE);
const IDLE: u8 = 0;
const ANSWERS: u8 = 1;
const STOPS: u8 = 2;

/// Ends an answer at its next token; at once the program, where no answer is given or this is the
/// second time. At the prompt of a terminal ctrl-c is a key, which ends the conversation in order.
fn interrupted() {
    if STATE.compare_exchange(ANSWERS, STOPS, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        exit(130);
    }
}

fn main() -> ExitCode {
    run(work)
}

fn work(arguments: &Arguments) -> Result<()> {
    let tools: Vec<Tool> = match &arguments.tools {
        None => Vec::new(),
        Some(path) => {
            let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
            serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?
        }
    };
    let engine = arguments.engine.load()?;
    ensure!(engine.text().has_chat(), "the model has no chat format: ask it with `generate`");
    ctrlc::set_handler(interrupted).context("ctrl-c cannot be caught")?;
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

struct Talk<'a> {
    session: Session,
    messages: Vec<Message>,
    tools: Vec<Tool>,
    dim: bool,
    arguments: &'a Arguments,
}

impl Talk<'_> {
    fn reset(&mut self) {
        self.messages.clear();
        if let Some(system) = &self.arguments.system {
            self.messages.push(Message::new(Role::System, system.as_str()));
        }
    }

    /// One answer, shown as it comes.
    fn ask(&self, request: Request) -> oss_engine::Result<Completion> {
        STATE.store(ANSWERS, Ordering::Relaxed);
        let completion = self.session.generate_with(request, |event| {
            show(event, self.dim);
            match STATE.load(Ordering::Relaxed) {
                STOPS => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        STATE.store(IDLE, Ordering::Relaxed);
        completion
    }

    /// Answers until no tool is called; the results of calls are asked for. Breaks where the user
    /// ends the conversation instead of giving one.
    fn answer(&mut self, editor: &mut DefaultEditor) -> Result<ControlFlow<()>> {
        let asked = self.messages.len() - 1;
        loop {
            let chat = ChatRequest {
                tools: self.tools.clone(),
                reasoning_effort: self.arguments.reasoning_effort,
                date: self.arguments.date.clone(),
                ..ChatRequest::new(self.messages.clone())
            };
            let mut request = Request::chat(chat).max_tokens(self.arguments.max_tokens);
            request.sampling.temperature = self.arguments.temperature;
            let completion = match self.ask(request) {
                Ok(completion) => completion,
                Err(Error::Closed) => return Err(Error::Closed.into()),
                // Nobody is there who would ask again.
                Err(error) if !stdin().is_terminal() => return Err(error.into()),
                Err(error) => {
                    // The conversation is as it was before the question.
                    self.messages.truncate(asked);
                    eprintln!("\nerror: {}", told::<Arguments>(&error.into()));
                    eprintln!("(the question is not kept; /reset begins anew)");
                    return Ok(ControlFlow::Continue(()));
                }
            };
            outln!();
            let mut message = completion.message();
            if completion.finish_reason != FinishReason::ToolCalls {
                // No tool can answer a call that was cut off, and no conversation goes on with one.
                message.tool_calls.clear();
                message.content = Some(completion.text);
                self.messages.push(message);
                match completion.finish_reason {
                    FinishReason::Length => {
                        outln!("(cut off: --max-tokens, or the context, is used up)");
                    }
                    FinishReason::Cancelled => outln!("(stopped)"),
                    _ => {}
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
