//! Which buckets are asked for and which are read, in order: so that a test can count the waits for
//! memory that a command costs, whatever the machine. Builds without debug assertions note nothing.

use std::cell::{Cell, RefCell};

/// What a thread did to one bucket of a table's main segment, named by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asked the cache for it.
    Asked(usize),
    /// Looked into it.
    Read(usize),
}

thread_local! {
    /// Apart, as each look at a bucket asks for it, in builds of which instructions are counted,
    /// too.
    static NOTES: Cell<bool> = const { Cell::new(false) };
    static STEPS: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
}

/// What this thread does while `f` runs.
pub fn steps_of(f: impl FnOnce()) -> Vec<Step> {
    NOTES.set(true);
    f();
    NOTES.set(false);
    STEPS.take()
}

/// Waits for memory: how often something was read that had been asked for, if at all, only after
/// something else had been read. Rows whose buckets are asked for together and then read cost one.
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
