//! How async code reads answers: any runtime does, here a few lines of the standard library.
//!
//! `cargo run --release --example async`

use oss_engine::{AsyncStream, Engine, Event, Request, Result};
use std::io::{Write, stdout};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Shows an answer as it comes. Dropped before its end, it cancels the request and waits for
/// nothing.
async fn show(mut stream: AsyncStream) -> Result<usize> {
    let mut tokens = 0;
    while let Some(event) = stream.next().await {
        match event? {
            Event::Text(text) => print(&text),
            Event::End(end) => tokens = end.usage.completion_tokens,
            _ => {}
        }
    }
    Ok(tokens)
}

fn print(text: &str) {
    let mut out = stdout();
    // Who reads it may be gone.
    let _written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn main() -> Result<()> {
    // Loading blocks: a program with a runtime does it where that may be, as `spawn_blocking`.
    let engine = Engine::from_bytes(oss_demo::GGUF)?;
    // So does submitting, for as long as the prompt takes to tokenise.
    let stream = engine.submit(Request::text("Once upon a time").max_tokens(40).greedy())?;
    let tokens = block_on(show(stream.into_async()))?;
    print(&format!("\n{tokens} tokens\n"));
    Ok(())
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What a runtime is for, of one task.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => thread::park(),
        }
    }
}
