//! Empty: the package consists of its benchmarks.
