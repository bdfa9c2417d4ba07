//! Group commit. Writers mark the keys that they changed. One thread reads the state of each marked
//! key once, logs it, syncs, and publishes its progress.
//!
//! ```text
//!   writer                                     commit thread, in rounds
//!   guard = committer.enter(hash of the id)    round n ends, n + 1 begins
//!     change the engines                       for each stripe with keys: lock, remove the keys,
//!                                                  deduplicate,
//!     guard.mark(key) ...                          source.collect(keys) reads their state, unlock
//!   ticket = guard.leave()                     source.encode(batch), log.append(batch), log.sync()
//!   reply when durable() >= ticket             durable = n; source.published(..) wakes waiters
//! ```
//!
//! Invariants:
//!
//! - **C1** When [`Committer::durable`] reaches a ticket, all marks made before that ticket are in
//!   the log, and synced if the policy requires it.
//! - **C2** All keys marked under one [`WriteGuard`], and their state, share one batch. If a writer
//!   changes and marks both a counter and a flag, the log has both changes or neither. The thread
//!   therefore reads the state under the stripe's lock. Without the lock, a batch could contain a
//!   counter whose flag is only in the next batch.
//! - **C3** A key that is marked many times in a round takes one record and little memory: stripes
//!   deduplicate their keys as they grow.
//! - **C4** A failed round loses nothing. The next round collects its keys and reads their state
//!   again.
//! - **C5** The number of pending keys is bounded. [`Committer::is_crowded`] returns true above
//!   [`CommitOptions::max_stripe_keys`] in a stripe or [`CommitOptions::queued_keys`] in total, or
//!   while large atomic groups are pending. The server then holds back writes.
//! - **C6** All keys marked under one [`Exclusive`] guard share one batch, and no other writer
//!   changes the guard's stripes until the guard is dropped. If the guard marked keys in several
//!   stripes, the next round reads those stripes together, under all their locks.
//!   [`Exclusive::join`] extends this to all stripes of the guard, for changes whose ids are not
//!   known in advance.
//! - **C7** A batch contains each key once. A source may therefore sort its copies. The last batch
//!   that contains a key has the latest state of the key.
//! - **C8** C6 holds despite the size limit of a batch ([`MAX_BODY_BYTES`](crate::MAX_BODY_BYTES)).
//!   Before its first change the writer of an atomic group reserves space for the group
//!   ([`Committer::reserve`]), and waits until pending groups leave enough space. Changes of other
//!   writers in the same stripes may exceed the remaining space. Such changes then get separate
//!   batches, except for changes of the same ids ([`LoggedState::may_split_between`]). Only a group
//!   without a sufficient reservation is split, down to the units that
//!   [`LoggedState::may_split_between`] keeps together. A retry of an oversized batch would loop
//!   forever.
//! - **C9** Under `always`, a reader of a changed id learns from [`Committer::last_change`] which
//!   round its reply must wait for (`visibility.rs`).
//!
//! A writer locks its stripe for the duration of its change. The commit thread locks a stripe while
//! it reads the state of the stripe's keys. Readers lock no stripe (promise 1). `stripes.rs`
//! contains the code of the writers, `commit_loop.rs` the code of the commit thread, and
//! `committer.rs` the state that they share.
//!
//! A ticket is the sequence number of a commit round, so a writer only loads this number and need
//! not increment a counter. The commit thread first increments the round, then reads the dirty
//! bits. A writer sets its stripe's dirty bit, then loads the round. If the writer loads round n,
//! its bit was set before the commit thread read the bits, so its keys are in round n. All these
//! operations are sequentially consistent.

mod commit_loop;
mod committer;
mod source;
mod stripe;
mod stripes;
mod visibility;

pub use commit_loop::Rounds;
pub use committer::{CommitOptions, CommitStats, Committer, SyncPolicy};
pub use source::{Committed, Health, LoggedState, Ticket};
pub use stripes::{BatchReservation, Exclusive, WriteGuard};
