//! Work that takes its time (walks all rows, syncs a file), on a thread of its own.

use tokio::sync::oneshot;

/// Has another thread do this, from now on. The future gives what came of it; the error: it
/// panicked.
pub fn apart<T, W>(work: W) -> impl Future<Output = Result<T, &'static str>> + Send + use<T, W>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let (done, came) = oneshot::channel();
    // Nothing may wait for it any more.
    let work = move || drop(done.send(work()));
    if let Err(work) = store::time::spawn(work) {
        drop(tokio::task::spawn_blocking(work));
    }
    async { came.await.map_err(|_| "the work behind it failed; see the server's log") }
}
