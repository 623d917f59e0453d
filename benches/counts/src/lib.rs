//! Nothing: the benchmarks are the package.
