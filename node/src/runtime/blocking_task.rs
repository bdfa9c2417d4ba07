//! Runs long work, such as scanning all rows or syncing a file, on a thread that may block.

use tokio::sync::oneshot;

/// Runs `work` on another thread. The future returns the result, or an error if the work panicked.
pub fn apart<T, W>(work: W) -> impl Future<Output = Result<T, &'static str>> + Send + use<T, W>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    apart_for(true, work)
}

/// Like [`apart`]. If `changes` is false and the future is dropped before the work starts, the work
/// is skipped. Requests of disconnected clients then do not delay other requests.
pub fn apart_for<T, W>(
    changes: bool,
    work: W,
) -> impl Future<Output = Result<T, &'static str>> + Send + use<T, W>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let (done, came) = oneshot::channel();
    // An error means that the future has been dropped.
    let work = move || {
        if changes || !done.is_closed() {
            drop(done.send(work()));
        }
    };
    if let Err(work) = store::time::spawn(work) {
        drop(tokio::task::spawn_blocking(work));
    }
    async { came.await.map_err(|_| "a background task failed; see the server's log") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, mpsc};

    #[test]
    fn a_read_only_task_without_a_waiter_is_skipped() {
        let slow = 1;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(slow)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (begin, wait) = mpsc::channel();
            let first = apart(move || wait.recv());
            let done = Arc::new([const { AtomicBool::new(false) }; 3]);
            let [mut gone, mut gone_too, stays] =
                [(false, 0), (true, 1), (false, 2)].map(|(changes, at)| {
                    let done = done.clone();
                    Some(apart_for(changes, move || done[at].store(true, SeqCst)))
                });
            drop((gone.take(), gone_too.take()));
            begin.send(()).unwrap();
            assert!(first.await.unwrap().is_ok());
            stays.unwrap().await.unwrap();
            let done = done.each_ref().map(|done| done.load(SeqCst));
            assert_eq!(done, [false, true, true]);
        });
    }
}
