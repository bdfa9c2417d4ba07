//! Group commit: many writers mark what they changed; one thread reads the changed state once, logs
//! it, syncs, and says up to where.
//!
//! ```text
//!   writer                                     commit thread, one round after the other
//!   turn = committer.enter(hash of the id)     round n ends, n + 1 begins
//!     change the engines                       for each stripe that is not empty: lock, take its
//!                                              keys, dedupe,
//!     turn.mark(key) ...                           source.collect(keys) reads their state, unlock
//!   ticket = turn.leave()                      source.encode(batch), log.append(batch), log.sync()
//!   reply when durable() >= ticket             durable = n; source.published(..) wakes waiters
//! ```
//!
//! What holds:
//!
//! - **C1** What was marked before a ticket was given is in the log, and synced as the policy says,
//!   when [`Committer::durable`] has reached the ticket.
//! - **C2** All keys marked in one turn, and their state, go into one batch; so does everything
//!   that the turn's change made visible. A change of a counter and a flag that belong together is
//!   therefore in the log with both halves or not at all, if both are changed and marked within one
//!   turn, of one stripe. This is why the state is read under the stripe's lock: read outside it, a
//!   batch could hold a counter with an increment of which the flag comes only in the next batch.
//! - **C3** A key marked any number of times within a round costs one record, and memory for few:
//!   stripes dedupe themselves as they grow.
//! - **C4** A failed round loses nothing: its keys are taken up by the next one, which reads their
//!   state anew.
//! - **C5** Keys waiting are bounded: above [`CommitOptions::crowded_keys`] in any stripe, or
//!   [`CommitOptions::queued_keys`] in all, or beside what belongs together and is large,
//!   [`Committer::is_crowded`] says so, and the server stops taking writes until it does not.
//! - **C6** All that was marked during one [`Exclusive`] is in one batch, and no other writer's
//!   change comes between in the stripes that it holds. The stripes in which it marked, if there
//!   are several, are read together, in one moment, by the round that comes to the first of them;
//!   or all that it holds, if it says so ([`Exclusive::join`]): where a change is of unknown ids.
//! - **C7** A batch holds each key once: a source may sort what it has read as it likes, and the
//!   last state of a key is in the last batch that has it.
//! - **C8** A batch has a limit ([`MAX_BODY_BYTES`](crate::MAX_BODY_BYTES)), and C6 holds all the
//!   same: a writer of an atomic group says before its first change how many bytes the group may
//!   take, and waits while what waits for the log leaves no room for them ([`Committer::reserve`]).
//!   If other writers' changes of the same stripes are more than what is left, theirs go into
//!   batches of their own, those of the same ids excepted ([`Source::may_part`]). Only what was not
//!   reserved, or takes more than was reserved, is parted, down to what
//!   [`Source::may_part`] keeps together. It is never tried again as it is: that would be for ever.
//! - **C9** Under `always`: a reader of a changed id that then asks [`Committer::sight`] learns
//!   which round it has to wait for (`visibility.rs`).
//!
//! A writer holds its stripe for as long as its change takes, the commit thread for as long as
//! reading the state of the stripe's few keys takes. Readers take no stripe (promise 1).
//! `stripes.rs` has the writers' side, `commit_loop.rs` the commit thread's, `committer.rs` the
//! state that they share.
//!
//! Why a ticket is a round and not a count: it is then one load for the writer, no shared counter
//! is incremented, and every stripe may be empty. The commit thread first raises the round, then
//! looks for stripes with keys. A writer sets its stripe's bit, then loads the round. So a writer
//! that still saw round n set its bit before the commit thread looked, and its keys are in round n.
//! (Both orders are sequentially consistent.)

mod commit_loop;
mod committer;
mod source;
mod stripe;
mod stripes;
mod visibility;

pub use commit_loop::Rounds;
pub use committer::{CommitOptions, CommitStats, Committer, SyncPolicy};
pub use source::{Committed, Health, Source, Ticket};
pub use stripes::{Exclusive, Reserved, WriteGuard};
