//! Serves a model over HTTP, as OpenAI's API describes it.
//!
//! `cargo run --release -p oss-server -- --model FILE`

mod flags;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use oss_engine::Engine;
use oss_server::{Handle, Server};
use tokio::signal;

use crate::flags::Flags;

/// Threads for connections: the engine needs the cores.
const HTTP_THREADS: usize = 2;

fn main() -> ExitCode {
    let flags = Flags::parse();
    tracing_subscriber::fmt().with_max_level(flags.log).with_writer(std::io::stderr).init();
    match serve(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(flags: &Flags) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .thread_name("oss-http")
        .enable_all()
        .build()
        .context("no threads for connections")?;
    runtime.block_on(async {
        let options = flags.server();
        let server = Server::bind(options).await?;
        let handle = server.handle();
        tracing::info!(address = %server.address(), model = %flags.model.display(), "listening");
        let (model, options) = (flags.model.clone(), flags.engine());
        handle.load(move || Engine::load_with(model, options))?;
        tokio::spawn(signals(handle));
        Ok(server.run().await?)
    })
}

/// The first signal drains, the second ends at once.
async fn signals(handle: Handle) {
    let mut signals = Signals::new();
    signals.next().await;
    handle.drain();
    signals.next().await;
    tracing::warn!("ended by a second signal");
    std::process::exit(1);
}

/// SIGTERM and ctrl-c; on Windows ctrl-c alone.
struct Signals {
    #[cfg(unix)]
    terminate: Option<signal::unix::Signal>,
}

impl Signals {
    fn new() -> Self {
        #[cfg(unix)]
        let terminate = match signal::unix::signal(signal::unix::SignalKind::terminate()) {
            Ok(terminate) => Some(terminate),
            Err(error) => {
                tracing::warn!(%error, "SIGTERM cannot be caught: it will end the server at once");
                None
            }
        };
        Self {
            #[cfg(unix)]
            terminate,
        }
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(terminate) = &mut self.terminate {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = signal::ctrl_c() => {}
            }
            return;
        }
        if let Err(error) = signal::ctrl_c().await {
            tracing::warn!(%error, "ctrl-c cannot be caught: it will end the server at once");
            std::future::pending::<()>().await;
        }
    }
}
