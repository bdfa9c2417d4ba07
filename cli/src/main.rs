//! `tidemark`: the program. The library contains the code, so that tests can run it in their own
//! process.

/// jemalloc, as in Redis: it returns memory of large requests to the system.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
