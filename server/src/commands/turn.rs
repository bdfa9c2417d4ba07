//! Unit of work of one handler call: all items of a request, or some of a long request.

use node::command::error::Refusal;
use resp::Args;

/// Position of a handler within its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Check and execute all items in one call.
    Whole,
    /// Check items from this index on.
    Check(usize),
    /// Execute items from this index on. All items have been checked.
    Do(usize),
}

impl Step {
    /// Returns whether this is the first call for the request.
    #[inline]
    pub(crate) fn begins_request(self) -> bool {
        matches!(self, Step::Whole | Step::Check(0))
    }

    /// Returns whether this call executes the first item.
    pub(crate) fn begins_items(self) -> bool {
        matches!(self, Step::Whole | Step::Do(0))
    }
}

/// Result of a handler over many items.
pub(crate) enum Answer {
    Done,
    Continue(Step),
}

pub(crate) type Answered = Result<Answer, Refusal>;

/// Arguments and step of one handler call.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    pub(crate) args: Args<'a>,
    /// The request reduced to the items and options of this call.
    pub(crate) part: Args<'a>,
    pub(crate) step: Step,
    /// Maximum number of items in this turn, unless the step is [`Step::Whole`].
    pub(crate) most_items: usize,
}

impl<'a> Turn<'a> {
    pub(crate) fn whole(args: Args<'a>) -> Turn<'a> {
        Turn { args, part: args, step: Step::Whole, most_items: usize::MAX }
    }
}
