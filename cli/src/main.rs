//! `tidemark`: the executable. The library contains all code, so that tests can run it within their
//! own process.

/// jemalloc, as in Redis: it returns the memory of large requests to the system.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
