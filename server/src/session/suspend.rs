//! A suspended request: it waits, away from the worker, for work such as a disk that syncs. The
//! command starts the work and does nothing else; when the work is done, the request is executed
//! again and finds its result. So EXEC goes on where it stopped, and the connection does not
//! notice.

use dataset::cold::fetch::Fetching;
use node::command::error::Refusal;
use std::pin::Pin;
use tokio::sync::oneshot;

/// Bytes of a reply, or why it is refused.
pub(crate) type SuspendResult = Result<Vec<u8>, Refusal>;

/// What a client's request waits for. See the top of the file.
#[derive(Default)]
pub(crate) enum Suspension {
    /// There is none.
    #[default]
    Nothing,
    /// It has been asked for, and is to be waited for.
    Asked(Pin<Box<dyn Future<Output = SuspendResult> + Send>>),
    /// It is waited for.
    Away(oneshot::Receiver<SuspendResult>),
    /// A page lacks cold rows, which are to be read.
    Lacks(Box<Fetching>),
    /// They are read, or were.
    Again,
}

impl Suspension {
    /// Asks for it; the request is to be executed again.
    pub(crate) fn ask(&mut self, work: impl Future<Output = SuspendResult> + Send + 'static) {
        *self = Suspension::Asked(Box::pin(work));
    }

    /// Whether the request that was just executed has asked for one.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self, Suspension::Asked(_) | Suspension::Lacks(_))
    }

    /// Whether the request is executed again.
    #[inline]
    pub(crate) fn is_back(&self) -> bool {
        matches!(self, Suspension::Away(_) | Suspension::Again)
    }

    /// The cold rows that are to be read before the request is executed again, if it asks for
    /// these.
    pub(crate) fn take_lacks(&mut self) -> Option<Box<Fetching>> {
        match std::mem::take(self) {
            Suspension::Lacks(fetching) => {
                *self = Suspension::Again;
                Some(fetching)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// What is to be waited for before the request is executed again. To be called where one [is
    /// asked for](Suspension::is_asked).
    pub(crate) fn leave(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let (tell, told) = oneshot::channel();
        let asked = std::mem::replace(self, Suspension::Away(told));
        async move {
            if let Suspension::Asked(work) = asked {
                // A receiver that is gone has disconnected.
                let _ = tell.send(work.await);
            }
        }
    }

    /// What came of it, once.
    pub(crate) fn come(&mut self) -> Option<SuspendResult> {
        match std::mem::take(self) {
            Suspension::Away(mut told) => told.try_recv().ok(),
            Suspension::Again => None,
            other => {
                *self = other;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fuzz::commands::{Guest, alone};
    use node::config::Config;
    use node::roles::node::Node;
    use node::roles::{Master, Order};
    use std::time::Duration;

    /// Changes that belong together wait for room in the log, which another writer has; then the
    /// disk fails, or this is no master any more.
    #[tokio::test]
    async fn a_request_that_waits_for_room_gets_the_reason_and_leaves_nothing_behind() {
        let begun = [
            ("MSET post:1:like 1 post:2:like 2\r\n", ""),
            (
                "MULTI\r\nHSET post:1 like 1\r\nHSET post:2 like 2\r\nEXEC\r\n",
                "+OK\r\n+QUEUED\r\n+QUEUED\r\n",
            ),
        ];
        type Change = fn(&Node);
        let fails: Change = |node| {
            _ = node.durability.unable(&store::Error::Refused("the disk is gone".to_owned()))
        };
        let follows: Change = |node| {
            let order = Order {
                master: Some(Master { host: "127.0.0.1".to_owned(), port: 1 }),
                ..Order::default()
            };
            assert!(node.replication.order(&node.config(), order, || ()).unwrap());
            node.durability.followed(store::Position::START, store::Position::START);
        };
        for ((requests, queued), (change, refusal)) in begun.into_iter().flat_map(|requests| {
            [(fails, "MISCONF"), (follows, "READONLY")].map(|refused| (requests, refused))
        }) {
            let folder = tempfile::tempdir().unwrap();
            let mut config = Config::default();
            config.durability.dir = folder.path().to_path_buf();
            let node = alone(&config);
            let all = node.durability.committer().reserve(usize::MAX / 2).unwrap();
            let mut guest = Guest::new(&node);
            let (used, told) = guest.step(requests.as_bytes());
            let rest = &requests[used..];
            assert_eq!(
                (String::from_utf8_lossy(&told), rest.is_empty()),
                (queued.into(), false),
                "{refusal}"
            );
            let mut waits = guest.talk.stalled.take().unwrap();
            assert!(
                tokio::time::timeout(Duration::from_millis(20), &mut waits).await.is_err(),
                "there is no room"
            );
            change(&node);
            tokio::time::timeout(Duration::from_secs(60), waits).await.unwrap();
            let told = String::from_utf8(guest.answers(rest.as_bytes()).await).unwrap();
            assert!(told.starts_with('-') && told.contains(refusal), "{told}");
            assert!(!guest.talk.session.suspension.is_back(), "it belongs to no client any more");
            drop(all);
            // The next one asks for something of its own, and gets that.
            let told = guest.answers(b"MULTI\r\nINFO tables\r\nECHO there\r\nEXEC\r\n").await;
            let told = String::from_utf8(told).unwrap();
            assert!(
                told.starts_with("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$")
                    && told.ends_with("$5\r\nthere\r\n"),
                "{told}"
            );
            assert!(told.contains("# Tables"), "{told}");
        }
    }
}
