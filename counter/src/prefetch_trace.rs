//! Records prefetches and reads of buckets, so that tests can count memory stalls independently of
//! the machine. Only builds with debug assertions record anything.

use std::cell::{Cell, RefCell};

/// One access to a bucket of a table's main segment, by the address of the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The thread prefetched the bucket.
    Asked(usize),
    /// The thread read the bucket.
    Read(usize),
}

thread_local! {
    /// Whether this thread records its accesses. Separate from `STEPS`, because every access checks
    /// this flag.
    static NOTES: Cell<bool> = const { Cell::new(false) };
    static STEPS: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
}

/// Returns the accesses of this thread during `f`.
pub fn steps_of(f: impl FnOnce()) -> Vec<Step> {
    NOTES.set(true);
    f();
    NOTES.set(false);
    STEPS.take()
}

/// Counts memory stalls. A stall is the first read of a bucket, unless an earlier stall has covered
/// the bucket. One stall covers all prefetches issued before it, so prefetching several buckets
/// together costs one.
pub fn waits(steps: &[Step]) -> usize {
    let (mut asked, mut fetched) = (Vec::new(), Vec::new());
    let mut waits = 0;
    for step in steps {
        match *step {
            Step::Asked(bucket) => asked.push(bucket),
            Step::Read(bucket) if fetched.contains(&bucket) => {}
            Step::Read(bucket) => {
                waits += 1;
                fetched.append(&mut asked);
                fetched.push(bucket);
            }
        }
    }
    waits
}

#[inline(always)]
pub(crate) fn note(step: impl FnOnce() -> Step) {
    if NOTES.get() {
        STEPS.with_borrow_mut(|steps| steps.push(step()));
    }
}

#[cfg(test)]
mod tests {
    use super::Step::{Asked, Read};
    use super::*;

    #[test]
    fn what_is_asked_for_together_is_one_wait() {
        assert_eq!(waits(&[]), 0);
        assert_eq!(waits(&[Asked(1), Asked(2), Read(1), Asked(1), Read(2), Read(1)]), 1);
        assert_eq!(waits(&[Asked(1), Read(1), Asked(2), Read(2)]), 2);
        assert_eq!(waits(&[Read(1), Read(2)]), 2);
        assert_eq!(
            waits(&[Asked(1), Asked(2), Read(1), Asked(3), Asked(4), Read(2), Read(3), Read(4)]),
            2
        );
    }
}
