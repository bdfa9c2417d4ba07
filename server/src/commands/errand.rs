//! An errand: what a request waits for away from the worker (a disk that syncs), before it is executed. A command that needs one asks for it and does nothing; when
//! it is done, the request is executed again, and finds what came of it. So EXEC goes on where it stopped, and the connection does not notice.

use super::Refusal;
use std::pin::Pin;
use tokio::sync::oneshot;

/// Bytes of a reply, or why it is refused.
pub(crate) type Came = Result<Vec<u8>, Refusal>;

/// See the top of the file.
#[derive(Default)]
pub(crate) enum Errand {
    /// There is none.
    #[default]
    Nothing,
    /// It has been asked for, and is to be waited for.
    Asked(Pin<Box<dyn Future<Output = Came> + Send>>),
    /// It is waited for.
    Away(oneshot::Receiver<Came>),
}

impl Errand {
    /// Asks for it; the request is to be executed again.
    pub(super) fn ask(&mut self, work: impl Future<Output = Came> + Send + 'static) {
        *self = Errand::Asked(Box::pin(work));
    }

    /// Whether the request that was just executed has asked for one.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self, Errand::Asked(_))
    }

    /// Whether the request is executed again.
    #[inline]
    pub(super) fn is_back(&self) -> bool {
        matches!(self, Errand::Away(_))
    }

    /// What is to be waited for before the request is executed again. To be called where one [is asked for](Errand::is_asked).
    pub(crate) fn leave(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let (tell, told) = oneshot::channel();
        let asked = std::mem::replace(self, Errand::Away(told));
        async move {
            if let Errand::Asked(work) = asked {
                // Who does not listen any more has gone.
                let _ = tell.send(work.await);
            }
        }
    }

    /// What came of it, once.
    pub(super) fn come(&mut self) -> Option<Came> {
        match std::mem::take(self) {
            Errand::Away(mut told) => told.try_recv().ok(),
            other => {
                *self = other;
                None
            }
        }
    }
}
