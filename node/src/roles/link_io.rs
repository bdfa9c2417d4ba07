//! Input of both ends of a replication link.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use tokio::io::{AsyncRead, ReadBuf};

/// Reads the bytes that are available without waiting. Returns `None` if no bytes are available.
pub(super) async fn read_available(
    stream: &mut (impl AsyncRead + Unpin),
    input: &mut [u8],
) -> io::Result<Option<usize>> {
    poll_fn(|cx| {
        let mut buffer = ReadBuf::new(input);
        Poll::Ready(match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
            Poll::Ready(read) => read.map(|()| Some(buffer.filled().len())),
            Poll::Pending => Ok(None),
        })
    })
    .await
}
