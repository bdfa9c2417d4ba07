//! The page and the actions of a feed, and Weibo's own commands.

pub(crate) mod forget;
pub(crate) mod page;
pub(crate) mod weibo;
