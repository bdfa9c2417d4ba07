//! A client: one end of a pipe to a real connection of the server, and the pending commands.

use crate::model::Model;
use crate::workload::{Command, ReplyShape};
use client::{Inbox, MAX_INBOX_BYTES, Reply, put_command};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// Capacity of a pipe in bytes.
pub(crate) const PIPE_BYTES: usize = 4 << 20;

/// A command whose reply has not arrived yet.
pub(crate) struct PendingCommand {
    pub(crate) command: Command,
    /// Row version that [`Model::ask`] returned for each step.
    pub(crate) since: Vec<usize>,
    pub(crate) at: Duration,
}

pub(crate) struct Client {
    pipe: DuplexStream,
    inbox: Inbox,
    /// Replies to the first pending command.
    replies: Vec<Reply>,
    pub(crate) asked: VecDeque<PendingCommand>,
}

impl Client {
    pub(crate) fn new(pipe: DuplexStream) -> Client {
        Client {
            pipe,
            inbox: Inbox::new(MAX_INBOX_BYTES),
            replies: Vec::new(),
            asked: VecDeque::new(),
        }
    }

    /// Sends a command; [`Client::take`] returns its reply later.
    pub(crate) fn send(&mut self, command: Command, model: &mut Model, at: Duration) {
        let mut bytes = Vec::new();
        for request in &command.requests {
            let words: Vec<&[u8]> = request.iter().map(|word| word.as_bytes()).collect();
            put_command(&mut bytes, &words);
        }
        let mut context = Context::from_waker(Waker::noop());
        let written = Pin::new(&mut self.pipe).poll_write(&mut context, &bytes);
        assert!(
            matches!(written, Poll::Ready(Ok(n)) if n == bytes.len()),
            "the server does not read requests: {written:?}"
        );
        let since = command.steps.iter().map(|(key, step)| model.ask(*key, step)).collect();
        self.asked.push_back(PendingCommand { command, since, at });
    }

    /// Returns the next command whose replies have arrived completely, and its last reply.
    pub(crate) fn take(&mut self) -> Option<(PendingCommand, Reply)> {
        let mut context = Context::from_waker(Waker::noop());
        let mut buffer = vec![0; 64 << 10];
        loop {
            let mut read = ReadBuf::new(&mut buffer);
            match Pin::new(&mut self.pipe).poll_read(&mut context, &mut read) {
                Poll::Ready(Ok(())) if !read.filled().is_empty() => {
                    let room = self.inbox.room().expect("no limit");
                    room.extend_from_slice(read.filled());
                }
                Poll::Pending => break,
                closed => panic!("the server closed a connection: {closed:?}"),
            }
        }
        let wanted = self.asked.front()?.command.requests.len();
        while self.replies.len() < wanted {
            self.replies.push(self.inbox.take().expect("a valid reply")?);
        }
        let last = self.replies.drain(..).next_back();
        Some((self.asked.pop_front()?, last?))
    }
}

/// Checks a reply against the model and updates the model.
pub(crate) fn check(
    asked: &PendingCommand,
    reply: &Reply,
    model: &mut Model,
    at: Duration,
) -> Result<(), String> {
    let PendingCommand { command: Command { steps, shape, .. }, since, .. } = asked;
    let is_one = *shape == ReplyShape::One && !is_list_of_one(asked, reply);
    let whole = is_one || matches!(reply, Reply::Error(_));
    if !whole && reply.items().len() != steps.len() {
        return Err(format!("{:?} was answered {reply:?}", asked.command));
    }
    for (index, (key, step)) in steps.iter().enumerate() {
        let item = if whole { reply } else { &reply.items()[index] };
        model.answer((*key, step, since[index]), item, at)?;
    }
    if let (ReplyShape::Twins, [first, second]) = (shape, reply.items())
        && first != second
    {
        return Err(format!("{steps:?} changed in one transaction: {first:?}, {second:?}"));
    }
    Ok(())
}

/// Whether the reply is a list with one item. CNT.INCRBY returns the new values of its fields as a
/// list, even for a single field.
fn is_list_of_one(asked: &PendingCommand, reply: &Reply) -> bool {
    let is_increment = asked.command.requests[0][0] == "CNT.INCRBY";
    is_increment && reply.items().len() == 1
}
