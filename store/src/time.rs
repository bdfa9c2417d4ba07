//! The clock, and waiting for other threads: what a simulator of the whole server replaces.
//!
//! A thread of a server asks the operating system. A thread that has called [`simulate`] asks its
//! [`Simulator`]: its time stands still unless the simulator moves it, and where it would sleep or
//! wait for another thread, the simulator does the work of that thread instead. So one thread runs
//! a whole server, or several, and the same seed gives the same run.

use parking_lot::{Condvar, MutexGuard};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What replaces the operating system on one thread.
pub trait Simulator {
    /// Time since the simulation began.
    fn elapsed(&self) -> Duration;
    /// Microseconds since 1970: a clock that may jump.
    fn unix_us(&self) -> u64;
    /// The caller waits for another thread, or sleeps, at most so long: do some of the others'
    /// work.
    fn wait(&self, at_most: Duration);
    /// Another thread is to do this; the caller does not wait for it.
    fn spawn(&self, work: Work);
}

/// Work for another thread.
pub type Work = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Looked at first, as it costs one instruction.
    static IS_SIMULATED: Cell<bool> = const { Cell::new(false) };
    static SIMULATOR: RefCell<Option<(Instant, Rc<dyn Simulator>)>> = const { RefCell::new(None) };
}

/// From now on this thread is simulated, or (`None`) it is not any more.
pub fn simulate(simulator: Option<Rc<dyn Simulator>>) {
    IS_SIMULATED.set(simulator.is_some());
    SIMULATOR.replace(simulator.map(|simulator| (Instant::now(), simulator)));
}

/// The simulator of this thread, and the moment from which its time is counted.
#[inline]
fn simulator() -> Option<(Instant, Rc<dyn Simulator>)> {
    if IS_SIMULATED.get() { SIMULATOR.with_borrow(Clone::clone) } else { None }
}

/// The moment now.
#[inline]
pub fn now() -> Instant {
    match simulator() {
        None => Instant::now(),
        Some((began, simulator)) => began + simulator.elapsed(),
    }
}

/// How long ago that was; nothing if it is yet to come.
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// Milliseconds since `then`, by the monotonic clock.
pub fn elapsed_ms(then: Instant) -> u64 {
    u64::try_from(since(then).as_millis()).unwrap_or(u64::MAX)
}

/// Microseconds since 1970.
pub fn unix_us() -> u64 {
    match simulator() {
        None => {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        }
        Some((_, simulator)) => simulator.unix_us(),
    }
}

/// Sleeps.
pub fn sleep(time: Duration) {
    match simulator() {
        None => std::thread::sleep(time),
        Some((_, simulator)) => simulator.wait(time),
    }
}

/// Waits for a notification, at most so long. Returns perhaps without one.
pub fn wait_for<T>(condition: &Condvar, guard: &mut MutexGuard<'_, T>, at_most: Duration) {
    match simulator() {
        None => _ = condition.wait_for(guard, at_most),
        Some((_, simulator)) => MutexGuard::unlocked(guard, || simulator.wait(at_most)),
    }
}

/// Lets threads that wait for this lock have it first.
pub fn bump<T>(guard: &mut MutexGuard<'_, T>) {
    match simulator() {
        None => MutexGuard::bump(guard),
        Some((_, simulator)) => MutexGuard::unlocked(guard, || simulator.wait(Duration::ZERO)),
    }
}

/// Hands work to the simulator; gives it back where there is none.
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
    struct Still {
        waited: Cell<Duration>,
        spawned: RefCell<Vec<Work>>,
    }

    impl Simulator for Still {
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
        let still = Rc::new(Still::default());
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
