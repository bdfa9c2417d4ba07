//! Execution context of a command: arguments, reply, and functions to wait for other work.

use crate::commands::turn::Step;
use crate::session::suspend::SuspendResult;
use crate::session::{LateReplies, Replies, Scratch, Session};
use dataset::commit::MAX_CHANGE_BYTES;
use dataset::dirty_keys::Mark;
use dataset::engines::{Action, CounterSpace, Engines, ExistenceSpace, KeyError, KeyRef, View};
use node::command::error::{Printable, Refusal, refuse};
use node::command::id_list::{self, ID_BYTES, MAX_PACKED_IDS};
use node::command::spec::{Outcome, Spec, flag};
use node::command::streams;
use node::roles::node::{Node, Now};
use node::runtime::blocking_task::{apart, apart_for};
use resp::{Args, Protocol, Reply};
use std::sync::Arc;

/// Encodes a reply, or the error if `write` refuses the request.
pub(crate) fn answer(protocol: Protocol, write: impl FnOnce(&mut Reply<'_>) -> Outcome) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, protocol);
    if let Err(refusal) = write(&mut reply) {
        reply.rewind(0);
        reply.error(refusal.text());
    }
    out
}

/// Lock that excludes other writers. `None` inside EXEC, which already holds the lock.
pub(crate) type ExclusiveGuard<'a> = Option<store::Exclusive<'a, Mark>>;

pub(crate) struct Call<'a> {
    pub(crate) spec: &'static Spec,
    /// The whole request, including the command name.
    pub(crate) args: Args<'a>,
    /// The request reduced to the items of this handler call; see
    /// [`Turn`](crate::commands::turn::Turn).
    pub(crate) part: Args<'a>,
    pub(crate) step: Step,
    /// Maximum number of items in this turn of a long request.
    pub(crate) most_items: usize,
    /// Next step of a long request. Set by a handler call that checked items but executed no item.
    pub(crate) checked: Option<Step>,
    pub(crate) reply: Reply<'a>,
    pub(crate) session: &'a mut Session,
    pub(crate) node: Now<'a>,
    pub(crate) scratch: &'a mut Scratch,
}

impl<'a> Call<'a> {
    /// Returns the arity error. Used where the declared arity does not suffice, for example if a
    /// field has no value.
    pub(crate) fn wrong_arity(&self) -> Refusal {
        refuse!("ERR wrong number of arguments for '{}' command", self.spec.name)
    }

    /// Returns the error for an unknown subcommand or a wrong number of its arguments.
    pub(crate) fn wrong_subcommand(&self) -> Refusal {
        let command = self.spec.name.split('|').next().unwrap_or_default().to_ascii_uppercase();
        let sub = Printable(self.args.at(1));
        refuse!(
            "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try {command} HELP."
        )
    }

    /// Checks whether the log accepts changes. Call it before the first change. EXEC checks once
    /// for all its commands.
    #[inline]
    pub(crate) fn admit_write(&mut self) -> Outcome {
        if let Some(admitted) = &self.session.admitted {
            return admitted.clone();
        }
        // A refused command changes nothing, so its reply need not wait for the disk.
        if let Some(refusal) = self.node.refusal() {
            return Err(refusal);
        }
        self.session.wrote = true;
        Ok(())
    }

    /// Locks these ids against other writers until the guard is dropped, for a group of changes.
    /// `bytes` is the maximum size of the group in the log (`log_size.rs`). Inside EXEC this
    /// function locks nothing, because EXEC already holds the locks and they are not reentrant.
    /// Returns `None` if the log has no room. The request is then executed again later.
    pub(crate) fn alone(&mut self, ids: Vec<u64>, bytes: usize) -> Option<ExclusiveGuard<'a>> {
        if self.session.in_exec {
            return Some(None);
        }
        let reserved = self.reserve(bytes)?;
        Some(Some(self.node.engines().exclusive(Some(ids), Some(reserved))))
    }

    /// Reserves the maximum size of a log batch. Until the reservation is dropped, other groups of
    /// changes have almost no room in the log. Returns `None` if the request has to wait. EXEC
    /// reserves the batch before its first command
    /// ([`log_size::may_change_schema`](crate::commands::log_size::may_change_schema)).
    pub(crate) fn reserve_whole_batch(
        &mut self,
    ) -> Option<Option<store::BatchReservation<'a, Mark>>> {
        if self.session.in_exec { Some(None) } else { self.reserve(MAX_CHANGE_BYTES).map(Some) }
    }

    /// Reserves room in the log for a group of changes. Returns `None` if there is no room; the
    /// request is then executed again later.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Option<store::BatchReservation<'a, Mark>> {
        // Discards the result of an earlier wait.
        self.session.suspension.take_result();
        let node: &'a Arc<Node> = self.node.node();
        let reserved = node.durability.committer().reserve(bytes);
        if reserved.is_none() {
            let node = node.clone();
            self.session.suspension.ask(async move {
                node.durability.room_for(bytes).await;
                Ok(Vec::new())
            });
        }
        reserved
    }

    /// Runs slow work (a scan, reading a filter, an fsync) on another thread, and replies when the
    /// work is done. Later requests of this client wait. Inside EXEC the following commands also
    /// wait. If EXEC holds locks, the work runs on this thread.
    pub(crate) fn answer_later(
        &mut self,
        work: impl FnOnce(Now<'_>, &mut Reply<'_>) -> Outcome + Send + 'static,
    ) -> Outcome {
        if self.session.in_exec && !self.session.may_suspend {
            return work(self.node, &mut self.reply);
        }
        let protocol = self.reply.protocol();
        if self.session.in_exec {
            let Some(bytes) =
                self.suspension(move |node| Ok(answer(protocol, |reply| work(node, reply))))
            else {
                return Ok(());
            };
            self.reply.bytes().extend_from_slice(&bytes?);
            return Ok(());
        }
        self.answer_without_engines(move |node, reply| work(node.moment().now(), reply));
        Ok(())
    }

    /// Like [`Call::answer_later`], but holds no reference to the engines; `work` loads them
    /// itself. Must not be called inside EXEC.
    pub(crate) fn answer_without_engines(
        &mut self,
        work: impl FnOnce(&Arc<Node>, &mut Reply<'_>) -> Outcome + Send + 'static,
    ) {
        let (node, protocol) = (self.node.node().clone(), self.reply.protocol());
        let work = move || answer(protocol, |reply| work(&node, reply));
        let failed = move |error| answer(protocol, |_| Err(refuse!("ERR {error}")));
        let changes = !self.spec.has(flag::READONLY) || self.spec.may_write(self.args);
        let work = apart_for(changes, work);
        self.answer_when(async move { work.await.unwrap_or_else(failed) });
    }

    /// Runs work on another thread before this request is executed. Returns `None` on the first
    /// call. The handler must then return, and runs again when the result is available.
    pub(crate) fn suspension(
        &mut self,
        work: impl FnOnce(Now<'_>) -> SuspendResult + Send + 'static,
    ) -> Option<SuspendResult> {
        let came = self.session.suspension.take_result();
        if came.is_none() {
            let node = self.node.node().clone();
            let work = apart(move || work(node.moment().now()));
            self.session
                .suspension
                .ask(async move { work.await.unwrap_or_else(|error| Err(refuse!("ERR {error}"))) });
        }
        came
    }

    /// Returns whether this request may report the end of the log now. If not, the request runs
    /// again when the log contains every acknowledged write. Inside a transaction that holds locks,
    /// a request never waits.
    pub(crate) fn may_show_offsets(&mut self) -> bool {
        let is_second_run = self.session.suspension.take_result().is_some();
        let may_wait = !self.session.in_exec || self.session.may_suspend;
        if is_second_run || !may_wait || self.node.durability.has_logged() {
            return true;
        }
        let node = self.node.node().clone();
        self.session.suspension.ask(async move {
            node.durability.logged().await;
            Ok(Vec::new())
        });
        false
    }

    /// Runs `done` on another thread, then executes this request again.
    pub(crate) fn again_when(&mut self, done: impl FnOnce(&Node) + Send + 'static) {
        // Discards the result of an earlier wait.
        self.session.suspension.take_result();
        self.suspension(move |node| {
            done(&node);
            Ok(Vec::new())
        });
    }

    /// Defers this request's reply until the future resolves ([`answer`] produces its bytes).
    /// Earlier replies of the same pipeline wait as well, unchanged.
    pub(crate) fn answer_when(&mut self, reply: impl Future<Output = Vec<u8>> + Send + 'static) {
        let wanted = self.session.replies == Replies::On;
        self.session.later = wanted;
        self.session.hold = Some(Box::pin(async move {
            let bytes = reply.await;
            LateReplies { last: if wanted { bytes } else { Vec::new() }, ..LateReplies::default() }
        }));
    }

    /// Counts a keyspace hit or miss for INFO.
    #[inline]
    pub(crate) fn note_found(&self, found: bool) {
        let tallies = &self.node.tallies[self.session.worker];
        if found { &tallies.hits } else { &tallies.misses }.add(1);
    }

    /// Resolves a key for a command that creates no data. Returns `None` for a key outside all
    /// spaces, which counts as absent. An unknown field is still an error.
    #[inline]
    pub(crate) fn known(&self, key: &[u8]) -> Result<Option<KeyRef<'a>>, Refusal> {
        match self.node.engines().resolve(key) {
            Ok(found) => Ok(Some(found)),
            Err(error @ KeyError::NoField { .. }) => Err(error.into()),
            Err(_) if streams::is_stream(key) => Err(Refusal::WRONG_TYPE),
            Err(_) => Ok(None),
        }
    }

    #[inline]
    pub(crate) fn row(&self, index: usize) -> Result<(&'a CounterSpace, u64), Refusal> {
        match self.node.engines().resolve(self.args.at(index))? {
            KeyRef::Row { space, id } => Ok((space, id)),
            _ => Err(Refusal::WRONG_TYPE),
        }
    }

    /// Like [`Call::row`], for a command that creates no data; see [`Call::known`].
    #[inline]
    pub(crate) fn existing_row(
        &self,
        index: usize,
    ) -> Result<Option<(&'a CounterSpace, u64)>, Refusal> {
        match self.known(self.args.at(index))? {
            Some(KeyRef::Row { space, id }) => Ok(Some((space, id))),
            Some(_) => Err(Refusal::WRONG_TYPE),
            None => Ok(None),
        }
    }

    /// Resolves a counter's key to space, id and field position.
    #[inline]
    pub(crate) fn cell(&self, key: &[u8]) -> Result<(&'a CounterSpace, u64, usize), Refusal> {
        match self.node.engines().resolve(key)? {
            KeyRef::Cell { space, id, field } => Ok((space, id, field)),
            KeyRef::Row { space, .. } if space.text_rows => Err(KeyError::WholeRow(key).into()),
            _ => Err(Refusal::WRONG_TYPE),
        }
    }

    /// Like [`Call::cell`], for a command that creates no data; see [`Call::known`].
    #[inline]
    pub(crate) fn existing_cell(
        &self,
        key: &[u8],
    ) -> Result<Option<(&'a CounterSpace, u64, usize)>, Refusal> {
        match self.known(key)? {
            Some(KeyRef::Cell { space, id, field }) => Ok(Some((space, id, field))),
            Some(_) => Err(Refusal::WRONG_TYPE),
            None => Ok(None),
        }
    }

    /// Resolves the argument at `index`, which is the key of the members of an id.
    #[inline]
    pub(crate) fn pairs(&self, index: usize) -> Result<(&'a ExistenceSpace, u64), Refusal> {
        match self.node.engines().resolve(self.args.at(index))? {
            KeyRef::Pair { space, id } if space.has_members => Ok((space, id)),
            KeyRef::Pair { space, .. } => Err(Refusal::no_members(space)),
            _ => Err(Refusal::WRONG_TYPE),
        }
    }

    /// Like [`Call::pairs`], for a command that creates no data; see [`Call::known`].
    #[inline]
    pub(crate) fn existing_pairs(
        &self,
        index: usize,
    ) -> Result<Option<(&'a ExistenceSpace, u64)>, Refusal> {
        match self.known(self.args.at(index))? {
            Some(KeyRef::Pair { space, id }) if space.has_members => Ok(Some((space, id))),
            Some(KeyRef::Pair { space, .. }) => Err(Refusal::no_members(space)),
            Some(_) => Err(Refusal::WRONG_TYPE),
            None => Ok(None),
        }
    }

    #[inline]
    pub(crate) fn id(&self, index: usize) -> Result<u64, Refusal> {
        id(self.args.at(index))
    }

    /// Parses all arguments from index `first` on as ids, and appends the ids to `scratch.ids`
    /// ([`Call::check_each`]). Also accepts `IDS packed` if the command allows packed ids.
    #[inline]
    pub(crate) fn read_ids(&mut self, first: usize) -> Outcome {
        let words = self.args.from(first);
        if self.spec.has(flag::PACKED) && id_list::is_ids(words.at(0)) {
            if words.len() != 2 {
                return Err(Refusal::SYNTAX);
            }
            return self.check_each(0, |call, _| call.read_packed_ids(words.at(1)));
        }
        self.check_each(words.len(), |call, items| {
            for text in words.until(items.end).from(items.start).iter() {
                call.scratch.ids.push(id(text)?);
            }
            Ok(())
        })
    }

    /// Refuses a request that contains no ids, or both packed ids and separate ids. A packed string
    /// may be empty.
    pub(crate) fn check_given_ids(&self) -> Outcome {
        let ids = self.scratch.ids.len();
        match self.scratch.asked.packed {
            Some(at) if ids * ID_BYTES == self.args.at(at).len() => Ok(()),
            Some(_) => Err(Refusal::SYNTAX),
            None if ids == 0 => Err(self.wrong_arity()),
            None => Ok(()),
        }
    }

    /// Appends packed ids to `scratch.ids`. A request that runs in one turn may contain at most
    /// `max_request_args` ids.
    pub(crate) fn read_packed_ids(&mut self, packed: &[u8]) -> Outcome {
        let ids = id_list::unpack(packed).ok_or(Refusal::PACKED_IDS)?;
        let most = if self.step == Step::Whole { self.session.args_limit } else { usize::MAX };
        check_packed(ids.len(), most)?;
        self.scratch.ids.extend(ids);
        Ok(())
    }
}

/// Checks the number of packed ids in a request.
pub(crate) fn check_packed(ids: usize, args_limit: usize) -> Outcome {
    let most = args_limit.min(MAX_PACKED_IDS);
    if ids > most { Err(refuse!("ERR too many ids: at most {most} per request")) } else { Ok(()) }
}

#[inline]
pub(crate) fn view<'a>(engines: &'a Engines, name: &[u8]) -> Result<&'a View, Refusal> {
    engines.view(name).ok_or_else(|| refuse!("ERR no such view '{}'", Printable(name)))
}

pub(crate) fn action<'a>(engines: &'a Engines, name: &[u8]) -> Result<&'a Action, Refusal> {
    engines.action(name).ok_or_else(|| refuse!("ERR no such action '{}'", Printable(name)))
}

pub(crate) fn counter_space<'a>(
    engines: &'a Engines,
    name: &[u8],
) -> Result<&'a CounterSpace, Refusal> {
    engines.counter(name).ok_or_else(|| refuse!("ERR no such counter space '{}'", Printable(name)))
}

#[inline]
pub(crate) fn id(text: &[u8]) -> Result<u64, Refusal> {
    resp::natural(text).ok_or_else(|| {
        refuse!(
            "ERR Invalid id '{}': an id is a decimal number from 0 to 18446744073709551615",
            Printable(text)
        )
    })
}

#[inline]
pub(crate) fn integer(text: &[u8]) -> Result<i64, Refusal> {
    resp::integer(text).ok_or(Refusal::NOT_AN_INTEGER)
}

pub(crate) fn disk(error: store::Error) -> Refusal {
    refuse!("ERR {error}. {}", error.advice())
}

/// Sets an option. Returns an error if the option was already set.
pub(crate) fn set_option_once<T>(option: &mut Option<T>, value: T) -> Outcome {
    option.replace(value).map_or(Ok(()), |_| Err(Refusal::SYNTAX))
}

/// Returns the error for a page above the output limit.
pub(crate) fn too_long(most: usize) -> Refusal {
    refuse!("ERR the page exceeds {most} bytes (max_output_buffer)")
}
