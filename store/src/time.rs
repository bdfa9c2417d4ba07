//! Clocks and waits. A simulator of the whole server can replace the clocks and waits.
//!
//! By default the functions call the operating system. On a thread that has called [`simulate`],
//! the functions call the thread's [`Simulator`]. Simulated time advances only under the
//! simulator's control. When the thread would sleep or block, the simulator runs the work of other
//! threads. One thread can therefore run several servers, and the same seed reproduces the same
//! run.

use parking_lot::{Condvar, MutexGuard};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Replacement of the operating system's clock and scheduler on one thread.
pub trait Simulator {
    /// Returns the time since the simulation began.
    fn elapsed(&self) -> Duration;
    /// Returns microseconds since 1970 by a clock that may jump.
    fn unix_us(&self) -> u64;
    /// Runs work of other threads while the caller sleeps or blocks, for at most `at_most`.
    fn wait(&self, at_most: Duration);
    /// Queues work for another thread. The caller does not wait for it.
    fn spawn(&self, work: Work);
}

/// Work for another thread.
pub type Work = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Avoids borrowing `SIMULATOR` on threads without a simulator.
    static IS_SIMULATED: Cell<bool> = const { Cell::new(false) };
    static SIMULATOR: RefCell<Option<(Instant, Rc<dyn Simulator>)>> = const { RefCell::new(None) };
}

/// Sets or removes the simulator of this thread.
pub fn simulate(simulator: Option<Rc<dyn Simulator>>) {
    IS_SIMULATED.set(simulator.is_some());
    SIMULATOR.replace(simulator.map(|simulator| (Instant::now(), simulator)));
}

/// Returns this thread's simulator and the instant at which its time began.
#[inline]
fn simulator() -> Option<(Instant, Rc<dyn Simulator>)> {
    if IS_SIMULATED.get() { SIMULATOR.with_borrow(Clone::clone) } else { None }
}

/// Returns the current instant.
#[inline]
pub fn now() -> Instant {
    match simulator() {
        None => Instant::now(),
        Some((began, simulator)) => began + simulator.elapsed(),
    }
}

/// Returns the time elapsed since `then`; zero if `then` is in the future.
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// Returns the milliseconds since `then` by the monotonic clock.
pub fn elapsed_ms(then: Instant) -> u64 {
    u64::try_from(since(then).as_millis()).unwrap_or(u64::MAX)
}

/// Returns microseconds since 1970.
pub fn unix_us() -> u64 {
    match simulator() {
        None => {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        }
        Some((_, simulator)) => simulator.unix_us(),
    }
}

/// Sleeps for `time`.
pub fn sleep(time: Duration) {
    match simulator() {
        None => std::thread::sleep(time),
        Some((_, simulator)) => simulator.wait(time),
    }
}

/// Waits for a notification for at most `at_most`. May return early, without a notification.
pub fn wait_for<T>(condition: &Condvar, guard: &mut MutexGuard<'_, T>, at_most: Duration) {
    match simulator() {
        None => _ = condition.wait_for(guard, at_most),
        Some((_, simulator)) => MutexGuard::unlocked(guard, || simulator.wait(at_most)),
    }
}

/// Releases the lock for waiting threads, then locks it again.
pub fn bump<T>(guard: &mut MutexGuard<'_, T>) {
    match simulator() {
        None => MutexGuard::bump(guard),
        Some((_, simulator)) => MutexGuard::unlocked(guard, || simulator.wait(Duration::ZERO)),
    }
}

/// Passes work to the simulator. Returns the work if the thread is not simulated.
pub fn spawn<W: FnOnce() + Send + 'static>(work: W) -> Result<(), W> {
    match simulator() {
        None => Err(work),
        Some((_, simulator)) => {
            simulator.spawn(Box::new(work));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[derive(Default)]
    struct FrozenTime {
        waited: Cell<Duration>,
        spawned: RefCell<Vec<Work>>,
    }

    impl Simulator for FrozenTime {
        fn elapsed(&self) -> Duration {
            self.waited.get()
        }

        fn unix_us(&self) -> u64 {
            7
        }

        fn wait(&self, at_most: Duration) {
            self.waited.set(self.waited.get() + at_most);
        }

        fn spawn(&self, work: Work) {
            self.spawned.borrow_mut().push(work);
        }
    }

    #[test]
    fn a_simulated_thread_neither_sleeps_nor_waits() {
        const HOUR: Duration = Duration::from_secs(3600);
        let still = Rc::new(FrozenTime::default());
        simulate(Some(still.clone()));
        let (began, really) = (now(), Instant::now());
        sleep(HOUR);
        let lock = Mutex::new(());
        wait_for(&Condvar::new(), &mut lock.lock(), HOUR);
        assert_eq!(now() - began, 2 * HOUR);
        assert!(really.elapsed() < HOUR);
        assert_eq!(unix_us(), 7);
        assert!(spawn(|| ()).is_ok() && still.spawned.borrow().len() == 1);
        simulate(None);
        assert!(unix_us() > 7 && spawn(|| ()).is_err());
    }
}
