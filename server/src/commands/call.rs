//! One command being executed: its arguments, its reply, and what it may ask for.

use crate::commands::turn::Step;
use crate::session::suspend::SuspendResult;
use crate::session::{Come, Replies, Scratch, Session};
use dataset::commit::MOST_BYTES;
use dataset::dirty_keys::Mark;
use dataset::engines::{Action, CounterSpace, Engines, ExistenceSpace, KeyError, KeyRef, View};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{Outcome, Spec, flag};
use node::command::streams;
use node::roles::node::{Node, Now};
use node::runtime::blocking_task::{apart, apart_for};
use resp::{Args, Protocol, Reply};
use std::sync::Arc;

/// The bytes of a reply: what `write` says, or its refusal.
pub(crate) fn answer(protocol: Protocol, write: impl FnOnce(&mut Reply<'_>) -> Outcome) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, protocol);
    if let Err(refusal) = write(&mut reply) {
        reply.rewind(0);
        reply.error(refusal.text());
    }
    out
}

/// Other writers are kept out, if that is not EXEC's affair.
pub(crate) type Alone<'a> = Option<store::Exclusive<'a, Mark>>;

/// One command being executed.
pub(crate) struct Call<'a> {
    pub(crate) spec: &'static Spec,
    /// The whole request, the name first.
    pub(crate) args: Args<'a>,
    /// The request with the items of this turn: see [`Turn`](crate::commands::turn::Turn).
    pub(crate) part: Args<'a>,
    pub(crate) step: Step,
    /// The step behind the items that this turn has checked.
    pub(crate) checked: Option<Step>,
    pub(crate) reply: Reply<'a>,
    pub(crate) session: &'a mut Session,
    pub(crate) node: Now<'a>,
    pub(crate) scratch: &'a mut Scratch,
}

impl<'a> Call<'a> {
    /// The refusal for a wrong number of arguments that the arity alone cannot tell (a field
    /// without a value).
    pub(crate) fn wrong_arity(&self) -> Refusal {
        refuse!("ERR wrong number of arguments for '{}' command", self.spec.name)
    }

    /// The refusal for a wrong number of arguments of a subcommand that takes some or none.
    pub(crate) fn wrong_subcommand(&self) -> Refusal {
        let command = self.spec.name.split('|').next().unwrap_or_default().to_ascii_uppercase();
        let sub = Printable(self.args.at(1));
        refuse!(
            "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try {command} HELP."
        )
    }

    /// To be asked before anything is changed: whether the log takes changes now. Inside EXEC that
    /// was asked for all commands together.
    #[inline]
    pub(crate) fn admit_write(&mut self) -> Outcome {
        if let Some(admitted) = &self.session.admitted {
            return admitted.clone();
        }
        // Nothing was written, so the refusal need not wait for the disk.
        if let Some(refusal) = self.node.refusal() {
            return Err(refusal);
        }
        self.session.wrote = true;
        Ok(())
    }

    /// Keeps other writers of these ids out until it is dropped, for changes that belong together
    /// and take so many bytes of the log at most (`log_size.rs`). Inside EXEC they are out already,
    /// and a thread must not ask twice. `None`: the log has no room for them yet, and the request
    /// is executed again when it has.
    pub(crate) fn alone(&mut self, ids: Vec<u64>, bytes: usize) -> Option<Alone<'a>> {
        if self.session.in_exec {
            return Some(None);
        }
        let reserved = self.reserve(bytes)?;
        Some(Some(self.node.engines().exclusive(Some(ids), Some(reserved))))
    }

    /// Sees to it that nearly nothing that was reserved waits for the log until this is dropped.
    /// `None`: it does, and the request is executed again. Inside EXEC that is so already
    /// ([`log_size::reshapes`](crate::commands::log_size::reshapes)).
    pub(crate) fn room_beside_none(&mut self) -> Option<Option<store::Reserved<'a, Mark>>> {
        if self.session.in_exec { Some(None) } else { self.reserve(MOST_BYTES).map(Some) }
    }

    /// Room in the log for changes that belong together. `None`: there is none yet, and the request
    /// is executed again when there is.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Option<store::Reserved<'a, Mark>> {
        // The last time was for nothing, or for this.
        self.session.suspension.come();
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

    /// Does something that takes its time (walks all rows, reads a whole filter, syncs a file) on
    /// another thread, and answers when it is done. Others go on; the requests behind this one
    /// wait. Inside EXEC the commands behind it do; but where EXEC keeps others out it must not
    /// wait, and it is done at once.
    pub(crate) fn answer_later(
        &mut self,
        work: impl FnOnce(Now<'_>, &mut Reply<'_>) -> Outcome + Send + 'static,
    ) -> Outcome {
        if self.session.in_exec && !self.session.may_leave {
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
        self.answer_apart(move |node, reply| work(node.moment().now(), reply));
        Ok(())
    }

    /// The same for what asks for the engines itself, and holds none meanwhile. Not inside EXEC.
    pub(crate) fn answer_apart(
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

    /// Does something on another thread before this request is executed: none at first, and the
    /// request is to do nothing; then what came of it.
    pub(crate) fn suspension(
        &mut self,
        work: impl FnOnce(Now<'_>) -> SuspendResult + Send + 'static,
    ) -> Option<SuspendResult> {
        let came = self.session.suspension.come();
        if came.is_none() {
            let node = self.node.node().clone();
            let work = apart(move || work(node.moment().now()));
            self.session
                .suspension
                .ask(async move { work.await.unwrap_or_else(|error| Err(refuse!("ERR {error}"))) });
        }
        came
    }

    /// Whether this request may show the log's end now. If not, the request runs again when the log
    /// contains every acknowledged write. A request inside EXEC with writes never waits.
    pub(crate) fn may_show_offsets(&mut self) -> bool {
        let is_back = self.session.suspension.come().is_some();
        let may_wait = !self.session.in_exec || self.session.may_leave;
        if is_back || !may_wait || self.node.durability.has_logged() {
            return true;
        }
        let node = self.node.node().clone();
        self.session.suspension.ask(async move {
            node.durability.logged().await;
            Ok(Vec::new())
        });
        false
    }

    /// This request is executed again when something is done on another thread.
    pub(crate) fn again_when(&mut self, done: impl FnOnce(&Node) + Send + 'static) {
        // The last time was for nothing.
        self.session.suspension.come();
        self.suspension(move |node| {
            done(&node);
            Ok(Vec::new())
        });
    }

    /// Gives the bytes of this request's reply when `reply` has them: [`answer`]. The replies
    /// before it wait, too, but stay what they are.
    pub(crate) fn answer_when(&mut self, reply: impl Future<Output = Vec<u8>> + Send + 'static) {
        let wanted = self.session.replies == Replies::On;
        self.session.later = wanted;
        self.session.hold = Some(Box::pin(async move {
            let bytes = reply.await;
            Come { last: if wanted { bytes } else { Vec::new() }, ..Come::default() }
        }));
    }

    /// Counts for INFO whether the row of a key that is read is there.
    #[inline]
    pub(crate) fn note_found(&self, found: bool) {
        let tallies = &self.node.tallies[self.session.worker];
        if found { &tallies.hits } else { &tallies.misses }.add(1);
    }

    /// What a key names, for a command that adds nothing: `None` for a key of no space, which is
    /// absent then, as in Redis. A field that the schema lacks is an error all the same.
    #[inline]
    pub(crate) fn known(&self, key: &[u8]) -> Result<Option<KeyRef<'a>>, Refusal> {
        match self.node.engines().resolve(key) {
            Ok(found) => Ok(Some(found)),
            Err(error @ KeyError::NoField { .. }) => Err(error.into()),
            Err(_) if streams::is_stream(key) => Err(Refusal::WRONG_TYPE),
            Err(_) => Ok(None),
        }
    }

    /// Resolves argument `index` as the key of a row.
    #[inline]
    pub(crate) fn row(&self, index: usize) -> Result<(&'a CounterSpace, u64), Refusal> {
        match self.node.engines().resolve(self.args.at(index))? {
            KeyRef::Row { space, id } => Ok((space, id)),
            _ => Err(Refusal::WRONG_TYPE),
        }
    }

    /// As [`Call::row`], for a command that adds nothing: see [`Call::known`].
    #[inline]
    pub(crate) fn known_row(
        &self,
        index: usize,
    ) -> Result<Option<(&'a CounterSpace, u64)>, Refusal> {
        match self.known(self.args.at(index))? {
            Some(KeyRef::Row { space, id }) => Ok(Some((space, id))),
            Some(_) => Err(Refusal::WRONG_TYPE),
            None => Ok(None),
        }
    }

    /// Resolves a key of a cell: space, id, position of the field.
    #[inline]
    pub(crate) fn cell(&self, key: &[u8]) -> Result<(&'a CounterSpace, u64, usize), Refusal> {
        match self.node.engines().resolve(key)? {
            KeyRef::Cell { space, id, field } => Ok((space, id, field)),
            KeyRef::Row { space, .. } if space.text_rows => Err(KeyError::WholeRow(key).into()),
            _ => Err(Refusal::WRONG_TYPE),
        }
    }

    /// As [`Call::cell`], for a command that adds nothing: see [`Call::known`].
    #[inline]
    pub(crate) fn known_cell(
        &self,
        key: &[u8],
    ) -> Result<Option<(&'a CounterSpace, u64, usize)>, Refusal> {
        match self.known(key)? {
            Some(KeyRef::Cell { space, id, field }) => Ok(Some((space, id, field))),
            Some(_) => Err(Refusal::WRONG_TYPE),
            None => Ok(None),
        }
    }

    /// Resolves argument `index` as the key of an id's pairs, which are told apart by their
    /// members.
    #[inline]
    pub(crate) fn pairs(&self, index: usize) -> Result<(&'a ExistenceSpace, u64), Refusal> {
        match self.node.engines().resolve(self.args.at(index))? {
            KeyRef::Pair { space, id } if space.has_members => Ok((space, id)),
            KeyRef::Pair { space, .. } => Err(Refusal::no_members(space)),
            _ => Err(Refusal::WRONG_TYPE),
        }
    }

    /// As [`Call::pairs`], for a command that adds nothing: see [`Call::known`].
    #[inline]
    pub(crate) fn known_pairs(
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

    /// Argument `index` as an id.
    #[inline]
    pub(crate) fn id(&self, index: usize) -> Result<u64, Refusal> {
        id(self.args.at(index))
    }

    /// Reads all arguments from `first` on as ids, into `scratch.ids` ([`Call::check_each`]).
    #[inline]
    pub(crate) fn read_ids(&mut self, first: usize) -> Outcome {
        let words = self.args.from(first);
        self.check_each(words.len(), |call, items| {
            for text in words.until(items.end).from(items.start).iter() {
                call.scratch.ids.push(id(text)?);
            }
            Ok(())
        })
    }
}

/// The view of this name.
#[inline]
pub(crate) fn view<'a>(engines: &'a Engines, name: &[u8]) -> Result<&'a View, Refusal> {
    engines.view(name).ok_or_else(|| refuse!("ERR no such view '{}'", Printable(name)))
}

/// The action of this name.
pub(crate) fn action<'a>(engines: &'a Engines, name: &[u8]) -> Result<&'a Action, Refusal> {
    engines.action(name).ok_or_else(|| refuse!("ERR no such action '{}'", Printable(name)))
}

/// The counter space of this name.
pub(crate) fn counter_space<'a>(
    engines: &'a Engines,
    name: &[u8],
) -> Result<&'a CounterSpace, Refusal> {
    engines.counter(name).ok_or_else(|| refuse!("ERR no such counter space '{}'", Printable(name)))
}

/// Reads an id.
#[inline]
pub(crate) fn id(text: &[u8]) -> Result<u64, Refusal> {
    resp::natural(text).ok_or_else(|| {
        refuse!(
            "ERR Invalid id '{}': an id is a decimal number from 0 to 18446744073709551615",
            Printable(text)
        )
    })
}

/// Reads an integer argument.
#[inline]
pub(crate) fn integer(text: &[u8]) -> Result<i64, Refusal> {
    resp::integer(text).ok_or(Refusal::NOT_AN_INTEGER)
}

/// The refusal for a failure of the disk.
pub(crate) fn disk(error: store::Error) -> Refusal {
    refuse!("ERR {error}. {}", error.advice())
}

/// An option: a second one of its kind is an error.
pub(crate) fn put_once<T>(option: &mut Option<T>, value: T) -> Outcome {
    option.replace(value).map_or(Ok(()), |_| Err(Refusal::SYNTAX))
}
