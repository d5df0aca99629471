//! How a program embeds the engine: load once, ask from anywhere, read events as they come.
//!
//! `cargo run --release --example embed`

use oss_engine::{ChatRequest, Engine, Event, Message, Request};
use std::error::Error;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::thread;

fn main() -> ExitCode {
    match ask() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn ask() -> Result<(), Box<dyn Error>> {
    let mut out = stdout();
    // A program of its own has a file here: Engine::load("model.gguf").
    let engine = Engine::from_bytes(oss_demo::GGUF)?;

    // One answer, all at once.
    let story = engine.generate(Request::text("Once upon a time").max_tokens(60).greedy())?;
    writeln!(out, "Once upon a time{}\n", story.text)?;

    // A conversation, event by event.
    let chat = ChatRequest::new(vec![Message::user("What is 47 + 38?")]);
    for event in engine.submit(Request::chat(chat).greedy())? {
        // What fails after it was submitted is told in place of the end: what came before is no
        // whole answer then.
        match event? {
            Event::Reasoning(text) => write!(out, "({text})")?,
            Event::Text(text) => write!(out, "{text}")?,
            Event::End(end) => writeln!(out, "\n{} tokens\n", end.usage.completion_tokens)?,
            _ => {}
        }
        out.flush()?;
    }

    // Requests from several threads share the steps of one model.
    let ask = |question: &'static str| {
        let engine = engine.clone();
        thread::spawn(move || {
            let chat = ChatRequest::new(vec![Message::user(question)]);
            engine.generate(Request::chat(chat).greedy()).map(|answer| (question, answer.text))
        })
    };
    let questions = ["What is the capital of Peru?", "What sound does a cow make?"];
    for asked in questions.map(ask) {
        let (question, answer) = asked.join().expect("the thread does not panic")?;
        writeln!(out, "{question} {answer}")?;
    }
    Ok(())
}
