//! Lets tasks wait for a state that another thread publishes, such as the commit thread. A change
//! wakes each worker at most once.
//!
//! ```text
//!   commit thread --tell--> relay of worker 0 --> its connections that wait
//!                      '--> relay of worker 1 --> its connections that wait
//! ```
//!
//! Waking a task of another thread takes a system call, because that thread may sleep in its poll.
//! Waking a task of the same thread only appends to a list. When 64 clients waited for one sync,
//! the system calls cost more than all other work for them. So only one task per worker, its
//! *relay*, waits for the commit thread. The other tasks insert their wakers into a thread-local
//! list, and the relay wakes them.
//!
//! Without waiting tasks there are no wake-ups. A task sets a flag before it waits, and then checks
//! the state again.
//!
//! Each worker must be a single-threaded runtime, so that a task stays on its thread.

use slab::Slab;
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::task::{Poll, Waker};
use tokio::sync::watch;

thread_local! {
    /// Waiting tasks of this thread by [`PublishedState::number`]. An entry lives as long as its
    /// relay.
    static THREAD_WAITERS: RefCell<HashMap<u64, Waiters>> = RefCell::default();
}

#[derive(Default)]
struct Waiters {
    /// Total number of wake-ups.
    woken: u64,
    wakers: Slab<Waker>,
}

/// Entry of a waiting task in the list. The destructor removes it. A waker left in the list would
/// keep its task's memory until the next change, which may take days.
struct WaiterEntry {
    number: u64,
    /// Value of `woken` when the waker was inserted, and the waker's key in the list.
    at: Option<(u64, usize)>,
}

impl WaiterEntry {
    /// Inserts the waker, or replaces it in its existing entry.
    fn take(&mut self, waiters: &mut Waiters, waker: &Waker) {
        match self.at {
            Some((woken, key)) if woken == waiters.woken => waiters.wakers[key].clone_from(waker),
            _ => self.at = Some((waiters.woken, waiters.wakers.insert(waker.clone()))),
        }
    }
}

impl Drop for WaiterEntry {
    fn drop(&mut self) {
        let Some((woken, key)) = self.at else { return };
        // Drop the waker after the borrow ends: it may be the last reference to its task.
        let left = THREAD_WAITERS.try_with(|all| {
            let mut all = all.borrow_mut();
            let waiters = all.get_mut(&self.number).filter(|waiters| waiters.woken == woken)?;
            waiters.wakers.try_remove(key)
        });
        drop(left);
    }
}

/// A state that one thread publishes and tasks of the workers wait for.
pub(crate) struct PublishedState<T> {
    number: u64,
    state: watch::Sender<T>,
    /// Whether a task has started to wait since the last wake-up.
    awaited: AtomicBool,
}

impl<T: Send + Sync + 'static> PublishedState<T> {
    pub(crate) fn new(state: T) -> PublishedState<T> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        PublishedState {
            number: NEXT.fetch_add(1, Relaxed),
            state: watch::Sender::new(state),
            awaited: AtomicBool::new(false),
        }
    }

    pub(crate) fn look(&self) -> watch::Ref<'_, T> {
        self.state.borrow()
    }

    /// Changes the state and wakes the waiters.
    pub(crate) fn tell(&self, change: impl FnOnce(&mut T)) {
        self.state.send_if_modified(|state| {
            change(state);
            self.awaited.swap(false, SeqCst)
        });
    }

    /// Waits until `asked` returns a value. If `asked` reads other state, every change of it must
    /// be followed by a call of [`PublishedState::tell`].
    pub(crate) async fn wait<R>(&self, asked: impl Fn(&T) -> Option<R>) -> R {
        let mut place = WaiterEntry { number: self.number, at: None };
        poll_fn(|cx| {
            let look = || asked(&self.state.borrow());
            // The second check sees every change made before the flag was set. Every later change
            // notifies this thread's relay, which cannot run before the insertion because it is a
            // task of the same thread.
            let raise = || self.awaited.store(true, SeqCst);
            match look().or_else(|| {
                raise();
                look()
            }) {
                Some(answer) => Poll::Ready(answer),
                None => {
                    self.add_waker(cx.waker(), &mut place);
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn add_waker(&self, waker: &Waker, place: &mut WaiterEntry) {
        THREAD_WAITERS.with_borrow_mut(|all| {
            let waiters = all.entry(self.number).or_insert_with(|| {
                tokio::spawn(relay(self.number, self.state.subscribe()));
                Waiters::default()
            });
            place.take(waiters, waker);
        });
    }
}

/// Wakes the waiters of a worker after every change, until the sender is dropped.
async fn relay<T>(number: u64, mut state: watch::Receiver<T>) {
    // The state may have changed between the check of a waiting task and the start of the relay.
    state.mark_changed();
    let mut wakers = Slab::new();
    // Every waiting task borrows the sender of `state`, so no task waits when the sender is
    // dropped.
    while state.changed().await.is_ok() {
        // Call the wakers after the borrow ends: they may run arbitrary code.
        THREAD_WAITERS.with_borrow_mut(|all| {
            let waiters = all.entry(number).or_default();
            waiters.woken += 1;
            std::mem::swap(&mut waiters.wakers, &mut wakers);
        });
        wakers.drain().for_each(Waker::wake);
    }
    THREAD_WAITERS.with_borrow_mut(|all| all.remove(&number));
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

    /// Clients wait repeatedly with a deadline, or are polled for other reasons, while the log does
    /// not change.
    #[test]
    fn a_waiter_has_one_place_and_leaves_it() {
        on_one_thread(async {
            let release = PublishedState::new(0_u64);
            let places = || {
                THREAD_WAITERS.with_borrow(|all| {
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

    /// Tasks of two threads wait for numbers that a third thread publishes at full speed. Every
    /// task must see its number.
    #[test]
    fn every_waiter_gets_its_number() {
        const LAST: u64 = 4_000;
        let release = Arc::new(PublishedState::new(0u64));
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
