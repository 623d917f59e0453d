//! Short runs, which only show that a benchmark still works: `scripts/bench NAME --check`.

/// Returns whether this is a short run.
pub(crate) fn is_short() -> bool {
    std::env::var_os("TOOLBRIDGE_BENCH_CHECK").is_some()
}

/// Returns this number, or a hundredth of it in a short run, and at least one.
#[allow(dead_code, reason = "one benchmark only asks whether it is short")]
pub(crate) fn scaled(number: usize) -> usize {
    if is_short() { number.div_ceil(100) } else { number }
}
