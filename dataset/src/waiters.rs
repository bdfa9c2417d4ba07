//! Waiting for another thread (that of the log, say), on the worker threads, for one wake-up of
//! each worker a change.
//!
//! ```text
//!   commit thread --tell--> relay of worker 0 --> its connections that wait
//!                      '--> relay of worker 1 --> its connections that wait
//! ```
//!
//! Waking a task of another thread takes a system call (the thread may sleep in its poll), waking
//! one of the own thread is a push to a list. With 64 clients that wait for one sync the calls cost
//! more than all else that was done for them. So only one task of each worker, its *relay*, waits
//! for the commit thread; the others leave their wakers in a list of their thread.
//!
//! Without waiters no wake-up happens: a task that is about to wait registers, and then looks once
//! more.
//!
//! This relies on each worker being a runtime of one thread: a task stays on the thread that it was
//! spawned on.

use slab::Slab;
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::task::{Poll, Waker};
use tokio::sync::watch;

thread_local! {
    /// By [`Release::number`]: the waiters of this thread. An entry is there as long as its relay
    /// is.
    static WAITING: RefCell<HashMap<u64, Waiters>> = RefCell::default();
}

/// The waiters of one state.
#[derive(Default)]
struct Waiters {
    /// How often all of them were woken.
    woken: u64,
    wakers: Slab<Waker>,
}

/// A waiter's place in the list, which it leaves when it waits no more: a waker keeps the task's
/// memory, and there may be no change for days. As a task stays on its thread, so does its place.
struct Place {
    number: u64,
    /// When it got there, and where it is.
    at: Option<(u64, usize)>,
}

impl Place {
    /// Takes a place, or keeps it.
    fn take(&mut self, waiters: &mut Waiters, waker: &Waker) {
        match self.at {
            Some((woken, key)) if woken == waiters.woken => waiters.wakers[key].clone_from(waker),
            _ => self.at = Some((waiters.woken, waiters.wakers.insert(waker.clone()))),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((woken, key)) = self.at else { return };
        // Dropped when the list is not borrowed any more: it may be the last of its task.
        let left = WAITING.try_with(|all| {
            let mut all = all.borrow_mut();
            let waiters = all.get_mut(&self.number).filter(|waiters| waiters.woken == woken)?;
            waiters.wakers.try_remove(key)
        });
        drop(left);
    }
}

/// A state that one thread tells, and tasks of workers wait for.
pub(crate) struct Release<T> {
    number: u64,
    state: watch::Sender<T>,
    /// A task has looked since the last change that woke waiters, and waits.
    awaited: AtomicBool,
}

impl<T: Send + Sync + 'static> Release<T> {
    /// Begins with this state.
    pub(crate) fn new(state: T) -> Release<T> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Release {
            number: NEXT.fetch_add(1, Relaxed),
            state: watch::Sender::new(state),
            awaited: AtomicBool::new(false),
        }
    }

    /// The state now.
    pub(crate) fn look(&self) -> watch::Ref<'_, T> {
        self.state.borrow()
    }

    /// Changes the state, and wakes the waiters.
    pub(crate) fn tell(&self, change: impl FnOnce(&mut T)) {
        self.state.send_if_modified(|state| {
            change(state);
            self.awaited.swap(false, SeqCst)
        });
    }

    /// Waits until `asked` has an answer; what it asks beside the state must change before
    /// [`Release::tell`] is called.
    pub(crate) async fn wait<R>(&self, asked: impl Fn(&T) -> Option<R>) -> R {
        let mut place = Place { number: self.number, at: None };
        poll_fn(|cx| {
            let look = || asked(&self.state.borrow());
            // The second look sees all that was told before the flag was up. A relay of this thread
            // cannot run between it and the entry in the list, and is told of all that changes
            // later.
            let raise = || self.awaited.store(true, SeqCst);
            match look().or_else(|| {
                raise();
                look()
            }) {
                Some(answer) => Poll::Ready(answer),
                None => {
                    self.enlist(cx.waker(), &mut place);
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn enlist(&self, waker: &Waker, place: &mut Place) {
        WAITING.with_borrow_mut(|all| {
            let waiters = all.entry(self.number).or_insert_with(|| {
                tokio::spawn(relay(self.number, self.state.subscribe()));
                Waiters::default()
            });
            place.take(waiters, waker);
        });
    }
}

/// One worker's: wakes its tasks with every change, until the state is gone.
async fn relay<T>(number: u64, mut state: watch::Receiver<T>) {
    // Even what changed before this began: a waiter in the list may have looked before that.
    state.mark_changed();
    let mut wakers = Slab::new();
    // A waiter holds the state, so when it is gone there is none.
    while state.changed().await.is_ok() {
        // Not woken inside: a waker may run anything.
        WAITING.with_borrow_mut(|all| {
            let waiters = all.entry(number).or_default();
            waiters.woken += 1;
            std::mem::swap(&mut waiters.wakers, &mut wakers);
        });
        wakers.drain().for_each(Waker::wake);
    }
    WAITING.with_borrow_mut(|all| all.remove(&number));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn on_one_thread<F: Future>(f: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f)
    }

    async fn poll_once(waits: &mut (impl Future<Output = ()> + Unpin)) {
        poll_fn(|cx| {
            assert!(std::pin::Pin::new(&mut *waits).poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    /// A log without a change, and clients that wait for it with a deadline, again and again; or
    /// that are polled for other reasons.
    #[test]
    fn a_waiter_has_one_place_and_leaves_it() {
        on_one_thread(async {
            let release = Release::new(0_u64);
            let places = || {
                WAITING.with_borrow(|all| {
                    all.get(&release.number).map_or(0, |waiters| waiters.wakers.len())
                })
            };
            let mut waits = Box::pin(release.wait(|&now| (now == 1).then_some(())));
            for _ in 0..100 {
                poll_once(&mut waits).await;
                let mut other = Box::pin(release.wait(|&now| (now == 1).then_some(())));
                poll_once(&mut other).await;
                assert_eq!(places(), 2);
                drop(other);
                assert_eq!(places(), 1);
                tokio::task::yield_now().await;
            }
            release.tell(|now| *now = 1);
            tokio::time::timeout(Duration::from_secs(20), waits).await.expect("woken");
            assert_eq!(places(), 0);
        });
    }

    /// Tasks of two threads wait for numbers that a third one tells, as fast as it can: no task
    /// sleeps through its own.
    #[test]
    fn every_waiter_gets_its_number() {
        const LAST: u64 = 4_000;
        let release = Arc::new(Release::new(0u64));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let release = release.clone();
                std::thread::spawn(move || {
                    on_one_thread(async {
                        let tasks: Vec<_> = (0..50u64)
                            .map(|i| {
                                let release = release.clone();
                                tokio::spawn(async move {
                                    let mut rng = fastrand::Rng::with_seed(i);
                                    let mut want = 0;
                                    while want < LAST {
                                        want = (want + rng.u64(1..100)).min(LAST);
                                        let got =
                                            release.wait(|&now| (now >= want).then_some(now)).await;
                                        assert!(got >= want);
                                    }
                                })
                            })
                            .collect();
                        for task in tasks {
                            tokio::time::timeout(Duration::from_secs(60), task)
                                .await
                                .expect("woken")
                                .unwrap();
                        }
                    });
                })
            })
            .collect();
        for _ in 0..LAST {
            release.tell(|now| *now += 1);
            std::thread::yield_now();
        }
        workers.into_iter().for_each(|w| w.join().unwrap());
    }
}
