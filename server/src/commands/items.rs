//! Loop over the items of a command: ids, keys or set members.
//!
//! A handler checks all items before it executes the first. For a short request, one call does
//! both. A long request yields the worker: the handler returns [`Answer::Continue`] after
//! [`Turn::most_items`](crate::commands::turn::Turn) or [`TURN_TIME`], and the request loop calls
//! it again with that step (`long_request.rs`). The request's own
//! [`Scratch`](crate::session::Scratch) keeps intermediate results.

use crate::commands::call::Call;
use crate::commands::turn::{Answer, Answered, Step};
use node::command::error::Refusal;
use node::command::spec::Outcome;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Maximum number of items per handler call of a long request.
pub(crate) const TURN_ITEMS: usize = 512;
/// Maximum number of packed ids that a handler call tests in memory. This takes about 0.1 ms.
pub(crate) const TURN_TESTS: usize = 4096;
const TURN_TIME: Duration = Duration::from_millis(2);
/// Number of items between two reads of the clock.
pub(crate) const FEW: usize = 8;

impl Call<'_> {
    /// Checks the items of this handler call. [`Call::do_each`] executes items only after all of
    /// them were checked.
    #[inline]
    pub(crate) fn check_each(
        &mut self,
        items: usize,
        check: impl FnOnce(&mut Self, Range<usize>) -> Outcome,
    ) -> Outcome {
        let from = match self.step {
            Step::Whole => return check(self, 0..items),
            Step::Check(from) => from,
            Step::Do(_) => return Ok(()),
        };
        let end = items.min(from + self.most_items);
        self.checked = Some(if end < items { Step::Check(end) } else { Step::Do(0) });
        check(self, from..end)
    }

    /// Executes items in groups of `together` until the time or the number of items of this handler
    /// call is used up.
    #[inline]
    pub(crate) fn do_each(
        &mut self,
        items: usize,
        together: usize,
        mut work: impl FnMut(&mut Self, Range<usize>) -> Outcome,
    ) -> Answered {
        if let Step::Check(_) = self.step {
            if self.checked.is_none() {
                self.check_each(items, |_, _| Ok(()))?;
            }
            return Ok(Answer::Continue(self.checked.unwrap_or(Step::Do(0))));
        }
        let Range { start: mut at, end: last } = self.items_of_turn(items);
        let began = (self.step != Step::Whole).then(Instant::now);
        while at < last {
            let end = last.min(at.saturating_add(together));
            work(self, at..end)?;
            at = end;
            if began.is_some_and(|began| began.elapsed() >= TURN_TIME) {
                break;
            }
        }
        Ok(if at < items { Answer::Continue(Step::Do(at)) } else { Answer::Done })
    }

    /// Returns the items that this handler call may execute. The last of them may be deferred to
    /// the next call.
    #[inline]
    pub(crate) fn items_of_turn(&self, items: usize) -> Range<usize> {
        match self.step {
            Step::Do(from) => from..items.min(from + self.most_items),
            Step::Check(_) => 0..0,
            Step::Whole => 0..items,
        }
    }

    /// Like [`Call::do_each`], but the reply is an array. `work` must write one element per item.
    #[inline]
    pub(crate) fn answer_each(
        &mut self,
        items: usize,
        together: usize,
        work: impl FnMut(&mut Self, Range<usize>) -> Outcome,
    ) -> Answered {
        if self.step.begins_items() {
            self.begin_array(items);
        }
        self.do_each(items, together, work)
    }

    /// Like [`Call::do_each`] for one item at a time, but the reply is the number of items for
    /// which `work` returned true.
    #[inline]
    pub(crate) fn count_each(
        &mut self,
        items: usize,
        mut work: impl FnMut(&mut Self, usize) -> Result<bool, Refusal>,
    ) -> Answered {
        if self.step.begins_items() {
            (self.scratch.count, self.scratch.unreadable) = (0, None);
        }
        let answer = self.do_each(items, FEW, |call, items| {
            for item in items {
                call.scratch.count += usize::from(work(call, item)?);
            }
            Ok(())
        })?;
        if matches!(answer, Answer::Done) {
            if let Some(error) = self.scratch.unreadable.take() {
                return Err(error.into());
            }
            self.reply.count(self.scratch.count);
        }
        Ok(answer)
    }

    #[inline]
    pub(crate) fn begin_array(&mut self, elements: usize) {
        self.reply.array(elements);
        self.scratch.elements = elements;
    }
}
