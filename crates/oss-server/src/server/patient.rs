//! A socket that waits only so long for a client to take what is written to it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// A client's socket. Writes of which nothing is taken for as long as its patience lasts fail:
/// a client that reads nothing would hold its connection, and what it asked for, for ever.
pub(super) struct Patient {
    io: TokioIo<TcpStream>,
    patience: Duration,
    /// Runs while a write waits.
    waits: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    pub(super) fn new(socket: TcpStream, patience: Duration) -> Self {
        Self { io: TokioIo::new(socket), patience, waits: None }
    }

    /// What a write said, or that it has waited for too long.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        said: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if said.is_ready() {
            self.waits = None;
            return said;
        }
        let patience = self.patience;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(waits.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Read for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl Write for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.io).poll_write(context, bytes);
        self.bounded(context, said)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let said = Pin::new(&mut self.io).poll_flush(context);
        self.bounded(context, said)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let said = Pin::new(&mut self.io).poll_write_vectored(context, pieces);
        self.bounded(context, said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::net::TcpListener;

    #[test]
    fn a_write_that_nobody_takes_fails() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let far = listener.accept().await.unwrap();
            let mut patient = Patient::new(near, Duration::from_millis(100));
            let bytes = vec![0_u8; 1 << 20];
            // What the system keeps for the client is taken at once.
            let error = loop {
                let write = poll_fn(|context| Pin::new(&mut patient).poll_write(context, &bytes));
                if let Err(error) = write.await {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(far);
        });
    }
}
