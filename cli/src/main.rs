//! `tidemark`: the executable. All code is in the library, so that tests can run it within the test
//! process.

/// The allocator is jemalloc, as in Redis, because jemalloc returns the memory of large requests to
/// the operating system.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
