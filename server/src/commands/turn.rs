//! What one call of a handler works on: all items of a request, or those of one turn.

use node::command::error::Refusal;
use resp::Args;

/// Which items a handler works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// All of them, in one call.
    Whole,
    /// Checks the items from this one on.
    Check(usize),
    /// Does the items from this one on; all items are checked.
    Do(usize),
}

impl Step {
    /// Whether no earlier call has worked on this request.
    #[inline]
    pub(crate) fn begins_request(self) -> bool {
        matches!(self, Step::Whole | Step::Check(0))
    }

    /// Whether the first item is done in this call.
    pub(crate) fn begins_items(self) -> bool {
        matches!(self, Step::Whole | Step::Do(0))
    }
}

/// What a handler over many items returns.
pub(crate) enum Answer {
    /// The reply is complete.
    Done,
    /// The loop calls the handler again with this step.
    Continue(Step),
}

pub(crate) type Answered = Result<Answer, Refusal>;

/// What one call of a handler works on.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    /// The whole request.
    pub(crate) args: Args<'a>,
    /// The same request with at most the items and options of this turn.
    pub(crate) part: Args<'a>,
    pub(crate) step: Step,
}

impl<'a> Turn<'a> {
    pub(crate) fn whole(args: Args<'a>) -> Turn<'a> {
        Turn { args, part: args, step: Step::Whole }
    }
}
