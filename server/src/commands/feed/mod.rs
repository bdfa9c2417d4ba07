//! Feed pages, actions, and commands specific to Weibo's clients.

pub(crate) mod forget;
pub(crate) mod page;
pub(crate) mod weibo;
