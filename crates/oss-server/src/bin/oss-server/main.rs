//! Serves a model over HTTP, as OpenAI's API describes it.
//!
//! `cargo run --release -p oss-server -- --model FILE`

mod flags;

use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result};
use clap::Parser;
use oss_engine::Engine;
use oss_server::Server;
use tokio::signal;
use tokio::sync::oneshot;

use crate::flags::Flags;

/// Threads for connections: the engine needs the cores.
const HTTP_THREADS: usize = 2;

fn main() -> ExitCode {
    let flags = Flags::parse();
    tracing_subscriber::fmt().with_max_level(flags.log).with_writer(std::io::stderr).init();
    match serve(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", flags::told(&error));
            ExitCode::FAILURE
        }
    }
}

fn serve(flags: &Flags) -> Result<()> {
    let signalled = listen_for_signals()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .thread_name("oss-http")
        .enable_all()
        .build()
        .context("no threads for connections")?;
    runtime.block_on(async {
        let options = flags.server()?;
        let server = Server::bind(options).await?;
        let handle = server.handle();
        tracing::info!(address = %server.address(), model = %flags.model.display(), "listening");
        let (model, options) = (flags.model.clone(), flags.engine());
        handle.load(move || Engine::load_with(model, options))?;
        tokio::spawn(async move {
            if signalled.await.is_ok() {
                handle.drain();
            }
        });
        Ok(server.run().await?)
    })
}

/// Tells of the first signal; the second ends the process at once. The thread that listens lives as
/// long as the process and holds nothing of the server: what is kept of keys and values is still
/// written when that is gone.
fn listen_for_signals() -> Result<oneshot::Receiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no signals can be waited for")?;
    let (first, signalled) = oneshot::channel();
    let builder = thread::Builder::new().name("oss-signals".to_owned());
    let listen = move || runtime.block_on(signals(first));
    builder.spawn(listen).context("no thread for signals")?;
    Ok(signalled)
}

async fn signals(first: oneshot::Sender<()>) {
    let mut signals = Signals::new();
    signals.next().await;
    // Nobody listens any more where the server was drained otherwise.
    let _ = first.send(());
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
